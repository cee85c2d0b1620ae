//! Checks that the modules of a crate depend on each other only as shown in the diagram in `ARCHITECTURE.md`. Cargo
//! checks the dependencies between crates.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use device::interfaces;

/// The modules of `card`, each with the modules that it may use. A module may use only modules earlier in the list, so
/// there are no cycles.
const CARD: &[(&str, &[&str])] = &[
    ("capabilities", &[]),
    ("identity", &[]),
    ("nic", &[]),
    ("rate", &[]),
    ("sanitize", &[]),
    ("shared_memory", &[]),
    ("sparse", &[]),
    ("telemetry", &["capabilities"]),
    ("capture", &["telemetry"]),
    ("record", &["capabilities", "sanitize", "telemetry"]),
    ("memory", &["sparse", "record"]),
    ("vfio", &["shared_memory", "memory", "telemetry", "record"]),
    ("fabric", &["identity", "memory", "rate", "shared_memory", "telemetry", "vfio"]),
    ("net", &["identity", "rate", "telemetry", "fabric"]),
    ("management", &["identity", "net"]),
    ("frontend", &["telemetry", "memory", "vfio", "net", "management"]),
    (
        "hca",
        &[
            "identity",
            "telemetry",
            "capture",
            "record",
            "memory",
            "vfio",
            "fabric",
            "net",
            "management",
            "frontend",
        ],
    ),
    ("replay", &["sanitize", "record", "vfio", "fabric", "frontend", "hca"]),
];

/// The modules of `device`, in the same format as [`CARD`].
const DEVICE: &[(&str, &[&str])] = &[
    ("clock", &[]),
    ("descriptors", &[]),
    ("inherited", &[]),
    ("interfaces", &[]),
    ("notify", &[]),
    ("config", &["interfaces"]),
    ("cli", &["inherited", "interfaces", "config"]),
    ("confinement", &["config"]),
    ("control", &["clock", "descriptors", "interfaces", "config", "confinement"]),
    ("metrics", &["descriptors", "control"]),
    ("peer_names", &["clock", "config", "control"]),
    ("worker", &["clock", "descriptors", "control"]),
    ("builder", &["clock", "inherited", "config", "control", "worker"]),
    ("replay", &["descriptors", "config", "builder"]),
    ("supervisor", &["control", "worker"]),
    ("fleet", &["inherited", "config", "confinement", "control", "worker", "builder", "supervisor"]),
    (
        "daemon",
        &[
            "inherited",
            "notify",
            "config",
            "confinement",
            "control",
            "metrics",
            "peer_names",
            "builder",
            "fleet",
        ],
    ),
];

/// The interfaces with a host command register. Each of them has its own strict mode.
const HCR_LINEAGE: &[&str] = &["jingzhao", "mthca"];

/// Returns the source directory of a crate below `device/` or of `device` itself.
fn source(package: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(package).join("src")
}

/// Returns all Rust files below a directory, except for tests.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if path.is_dir() && name != "tests" {
            found.extend(files(&path));
        } else if name.ends_with(".rs") && !matches!(&*name, "tests.rs" | "testing.rs") {
            found.push(path);
        }
    }
    found
}

/// Returns the text of a file without its test module.
fn product(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap();
    let tests = text.find("#[cfg(test)]\nmod tests {").unwrap_or(text.len());
    text[..tests].to_owned()
}

/// Returns each identifier that follows `prefix` in a text.
fn named<'a>(text: &'a str, prefix: &'a str) -> impl Iterator<Item = &'a str> {
    text.match_indices(prefix).map(move |(at, _)| {
        let rest = &text[at + prefix.len()..];
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
        &rest[..end]
    })
}

/// Returns the top-level module that contains a file.
fn part(path: &Path, source: &Path) -> String {
    let first = path.strip_prefix(source).unwrap().iter().next().unwrap().to_str().unwrap();
    first.trim_end_matches(".rs").to_owned()
}

#[test]
fn card_modules_depend_only_on_permitted_layers() {
    check_layers(&source("card"), CARD);
}

#[test]
fn device_modules_depend_only_on_permitted_layers() {
    check_layers(&source("."), DEVICE);
}

fn check_layers(source: &Path, parts: &[(&str, &[&str])]) {
    let mut order = BTreeSet::new();
    for (part, below) in parts {
        let unknown: Vec<_> = below.iter().filter(|below| !order.contains(*below)).collect();
        assert!(unknown.is_empty(), "{part} must come after {unknown:?}");
        order.insert(part);
    }
    let mut used = BTreeSet::new();
    for path in files(source) {
        let part = part(&path, source);
        // The crate roots may use all modules.
        if matches!(&*part, "lib" | "main") {
            continue;
        }
        let (_, below) = parts
            .iter()
            .find(|(name, _)| *name == part)
            .unwrap_or_else(|| panic!("{part} is missing from the table"));
        let text = product(&path);
        for name in named(&text, "crate::") {
            // The logging macros belong to `telemetry`.
            let name = if matches!(name, "limited" | "log_line" | "log_target") { "telemetry" } else { name };
            assert!(!name.is_empty(), "{}: use one line per module", path.display());
            assert!(name == part || below.contains(&name), "{} uses {name}", path.display());
            used.insert((part.clone(), name.to_owned()));
        }
    }
    for (part, below) in parts {
        for below in *below {
            let arrow = (part.to_string(), below.to_string());
            assert!(used.contains(&arrow), "{part} does not use {below}: remove it from the table");
        }
    }
}

/// `device.rs` decodes registers and implements `Frontend`. The other modules of a front-end do not depend on it.
#[test]
fn frontend_modules_do_not_use_device_module() {
    for module in interfaces::ALL.iter().map(|interface| interface.module) {
        for path in files(&source(module)) {
            // The crate root exports the device.
            if path.ends_with("src/lib.rs") {
                continue;
            }
            let text = product(&path);
            for prefix in ["super::", "crate::"] {
                let used = named(&text, prefix).any(|name| name == "device");
                assert!(!used, "{} uses device.rs", path.display());
            }
        }
    }
}

/// Objects only report events. Strict-mode checks belong in observers, commands and registers.
#[test]
fn objects_do_not_use_strict_mode() {
    const MAY: &[&str] = &["cmd.rs", "device.rs", "observers.rs", "strict.rs"];
    for interface in HCR_LINEAGE {
        let folder = source(interface);
        for path in files(&folder) {
            let place = path.strip_prefix(&folder).unwrap();
            if place.starts_with("strict") || MAY.iter().any(|name| place == Path::new(name)) {
                continue;
            }
            let text = product(&path);
            let is_local = |line: &&str| line.starts_with("use super::") || line.starts_with("use crate::");
            let mut uses = text.lines().filter(is_local);
            let found = uses.find(|line| {
                line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').any(|word| word == "strict")
            });
            assert_eq!(found, None, "{} uses strict mode", path.display());
        }
    }
}

/// All interfaces share the NIC offloads, which must not use the layouts of any one interface.
#[test]
fn nic_offloads_do_not_use_frontends() {
    let mut paths = files(&source("card").join("nic"));
    assert!(paths.len() > 3, "{paths:?}");
    paths.push(source("card").join("nic.rs"));
    for path in paths {
        let text = fs::read_to_string(&path).unwrap();
        assert!(!text.contains("protocol::hca"), "{} uses the layouts of an interface", path.display());
    }
}

/// The `Debug` format contains type names, which output must not depend on. Only tests may use this format.
#[test]
fn outputs_do_not_use_debug_format() {
    let card = source("card");
    let shared = ["frontend", "hca", "telemetry/monitor.rs", "capture.rs"].map(|part| card.join(part));
    let interfaces = interfaces::ALL.iter().map(|interface| interface.module);
    let crates = interfaces.chain(["hcr"]).map(source);
    let mut seen = 0;
    let list = ["interfaces", "interfaces.rs"].map(|part| source(".").join(part));
    for part in shared.into_iter().chain(crates).chain(list) {
        for path in sources(&part) {
            let text = fs::read_to_string(&path).unwrap();
            let shipped = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
            assert!(!shipped.contains(":?}"), "{} prints `Debug` output", path.display());
            seen += 1;
        }
    }
    assert!(seen > 100, "found only {seen} files");
}

/// Returns the Rust files below the directory `at`, except for tests. If `at` is a file, returns only that file.
fn sources(at: &Path) -> Vec<PathBuf> {
    if at.is_file() {
        return vec![at.to_owned()];
    }
    let is_test = |path: &Path| {
        path.components().any(|part| part.as_os_str() == "tests")
            || path.file_stem().is_some_and(|stem| stem == "tests" || stem == "testing" || stem == "race")
    };
    fs::read_dir(at)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| !is_test(path) && (path.is_dir() || path.extension().is_some_and(|ext| ext == "rs")))
        .flat_map(|path| sources(&path))
        .collect()
}
