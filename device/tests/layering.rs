//! Checks which modules each module of the device crate uses, according to the diagram in `ARCHITECTURE.md`.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use device::frontend::list;

/// The parts from the bottom up, each with the parts that it may use. These precede it in the list, so there
/// are no cycles.
const PARTS: &[(&str, &[&str])] = &[
    ("capabilities", &[]),
    ("descriptors", &[]),
    ("identity", &[]),
    ("manual", &[]),
    ("nic", &[]),
    ("notify", &[]),
    ("sanitize", &[]),
    ("rate", &[]),
    ("runtime_folder", &[]),
    ("shared_memory", &[]),
    ("sparse", &[]),
    ("text_file", &[]),
    ("telemetry", &["capabilities"]),
    ("capture", &["telemetry"]),
    ("record", &["capabilities", "sanitize", "telemetry"]),
    ("memory", &["sparse", "record"]),
    ("vfio", &["shared_memory", "memory", "telemetry", "record"]),
    ("inherited", &["vfio"]),
    ("fabric", &["identity", "rate", "shared_memory", "telemetry", "vfio"]),
    ("net", &["identity", "rate", "telemetry", "fabric"]),
    ("management", &["identity", "net"]),
    ("frontend", &["identity", "nic", "sparse", "telemetry", "memory", "vfio", "net", "management"]),
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
    (
        "config",
        &[
            "identity",
            "runtime_folder",
            "text_file",
            "telemetry",
            "memory",
            "vfio",
            "fabric",
            "management",
            "frontend",
        ],
    ),
    ("cli", &["inherited", "runtime_folder", "telemetry", "frontend", "config"]),
    ("confinement", &["capabilities", "runtime_folder", "telemetry", "vfio", "fabric", "config"]),
    (
        "control",
        &[
            "descriptors",
            "identity",
            "telemetry",
            "capture",
            "record",
            "vfio",
            "fabric",
            "net",
            "frontend",
            "hca",
            "config",
            "confinement",
        ],
    ),
    ("metrics", &["descriptors", "telemetry", "vfio", "net", "control"]),
    (
        "worker",
        &["descriptors", "telemetry", "capture", "record", "vfio", "fabric", "frontend", "hca", "control"],
    ),
    (
        "builder",
        &[
            "inherited",
            "telemetry",
            "capture",
            "record",
            "vfio",
            "fabric",
            "net",
            "frontend",
            "hca",
            "config",
            "worker",
        ],
    ),
    (
        "replay",
        &[
            "descriptors",
            "sanitize",
            "telemetry",
            "record",
            "vfio",
            "fabric",
            "frontend",
            "hca",
            "config",
            "builder",
        ],
    ),
    ("supervisor", &["telemetry", "control", "worker"]),
    (
        "fleet",
        &[
            "telemetry",
            "inherited",
            "runtime_folder",
            "text_file",
            "vfio",
            "fabric",
            "config",
            "confinement",
            "control",
            "worker",
            "builder",
            "supervisor",
        ],
    ),
    (
        "daemon",
        &["inherited", "notify", "vfio", "config", "confinement", "control", "metrics", "builder", "fleet"],
    ),
];

/// The interfaces of the HCR lineage, which use `frontend/hcr` in addition to their own modules. All others
/// use only their own modules.
const HCR_LINEAGE: &[&str] = &["jingzhao", "mthca"];

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// Returns every file below a folder, without tests.
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

/// Returns the text of a file without the tests at its end.
fn product(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap();
    let tests = text.find("#[cfg(test)]\nmod tests {").unwrap_or(text.len());
    text[..tests].to_owned()
}

/// Returns the names that follow `prefix` in a text.
fn named<'a>(text: &'a str, prefix: &'a str) -> impl Iterator<Item = &'a str> {
    text.match_indices(prefix).map(move |(at, _)| {
        let rest = &text[at + prefix.len()..];
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
        &rest[..end]
    })
}

/// Returns the module to which a file of the crate belongs.
fn part(path: &Path) -> String {
    let first = path.strip_prefix(source()).unwrap().iter().next().unwrap().to_str().unwrap();
    first.trim_end_matches(".rs").to_owned()
}

#[test]
fn modules_depend_on_permitted_layers_only() {
    let mut order = BTreeSet::new();
    for (part, below) in PARTS {
        let unknown: Vec<_> = below.iter().filter(|below| !order.contains(*below)).collect();
        assert!(unknown.is_empty(), "{part} stands below {unknown:?}");
        order.insert(part);
    }
    let mut used = BTreeSet::new();
    for path in files(&source()) {
        let part = part(&path);
        // This is the root of the library, or a program with its modules.
        if matches!(&*part, "lib" | "main" | "bin") {
            continue;
        }
        let (_, below) = PARTS
            .iter()
            .find(|(name, _)| *name == part)
            .unwrap_or_else(|| panic!("{part} is not in the table"));
        let text = product(&path);
        for name in named(&text, "crate::") {
            // The macro that limits the rate of log lines.
            let name = if name == "limited" { "telemetry" } else { name };
            assert!(!name.is_empty(), "{}: one module a line", path.display());
            assert!(name == part || below.contains(&name), "{} uses {name}", path.display());
            used.insert((part.clone(), name.to_owned()));
        }
    }
    for (part, below) in PARTS {
        for below in *below {
            let arrow = (part.to_string(), below.to_string());
            assert!(used.contains(&arrow), "{part} does not use {below}: the table says more than there is");
        }
    }
}

#[test]
fn interface_depends_on_own_lineage_only() {
    let folder = source().join("frontend");
    let modules = list::ALL.iter().map(|interface| interface.module);
    let parts: Vec<_> = modules.chain(["hcr"]).collect();
    for interface in &parts {
        let has_hcr = HCR_LINEAGE.contains(interface);
        let paths = files(&folder.join(interface));
        assert!(!paths.is_empty(), "{interface} is no interface");
        for path in paths {
            let text = product(&path);
            for name in named(&text, "crate::frontend::") {
                let may = !parts.contains(&name) || name == *interface || has_hcr && name == "hcr";
                assert!(may, "{} uses {name}", path.display());
            }
        }
    }
}

/// The list names all interfaces, so no module that an interface may use can use the list.
#[test]
fn front_ends_and_seam_do_not_use_the_list() {
    let seam = product(&source().join("frontend/mod.rs"));
    assert_eq!(named(&seam, "self::").filter(|name| *name == "list").count(), 0);
    for path in files(&source().join("frontend")) {
        let text = product(&path);
        assert!(!text.contains("frontend::list"), "{}", path.display());
    }
}

/// `device.rs` decodes registers and implements `Frontend`. All modules below it operate on state that does
/// not depend on it.
#[test]
fn interface_parts_do_not_use_device() {
    for module in list::ALL.iter().map(|interface| interface.module) {
        let folder = source().join("frontend").join(module);
        for path in files(&folder) {
            let text = product(&path);
            for prefix in ["super::", &format!("frontend::{module}::")] {
                let used = named(&text, prefix).any(|name| name == "device");
                assert!(!used, "{} uses device.rs", path.display());
            }
        }
    }
}

/// Objects report events. Only observers, commands and registers use strict mode, which examines these
/// objects.
#[test]
fn objects_do_not_use_strict_mode() {
    const MAY: &[&str] = &["cmd.rs", "device.rs", "observers.rs", "strict.rs"];
    for interface in HCR_LINEAGE {
        let folder = source().join("frontend").join(interface);
        for path in files(&folder) {
            let place = path.strip_prefix(&folder).unwrap();
            if place.starts_with("strict") || MAY.iter().any(|name| place == Path::new(name)) {
                continue;
            }
            let text = product(&path);
            let mut uses = text.lines().filter(|line| line.starts_with("use super::"));
            let found = uses.find(|line| {
                line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').any(|word| word == "strict")
            });
            assert_eq!(found, None, "{} uses strict mode", path.display());
        }
    }
}

/// The offloads of a NIC serve every interface, so their requests do not mention any.
#[test]
fn nic_offloads_name_no_interface() {
    let mut paths = files(&source().join("nic"));
    assert!(paths.len() > 3, "{paths:?}");
    paths.push(source().join("nic.rs"));
    for path in paths {
        let text = fs::read_to_string(&path).unwrap();
        assert!(!text.contains("protocol::hca"), "{} uses the layouts of an interface", path.display());
    }
}

/// Rust's `Debug` format is not a stable interface, because it changes with the names of types. Tests may
/// print it.
#[test]
fn outputs_do_not_use_debug_format() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut seen = 0;
    for part in ["frontend", "hca", "telemetry/monitor.rs", "capture.rs"] {
        for path in sources(&src.join(part)) {
            let text = fs::read_to_string(&path).unwrap();
            let shipped = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
            assert!(!shipped.contains(":?}"), "{} shows something by Debug", path.display());
            seen += 1;
        }
    }
    assert!(seen > 100, "only {seen} files were found");
}

/// Returns the Rust files in a folder except test files, or the single file.
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
