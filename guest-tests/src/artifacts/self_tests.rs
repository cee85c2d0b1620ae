//! The kernel's network driver selftests and the C and BPF programs that they run.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use super::apt::run;
use super::cache::{self, Work};
use super::clang::{Clang, Target};
use super::debian::{IMAGE, make_image, tools, with_self_test_programs};
use super::kernel::KernelChoice;
use super::linux_source::Source;
use super::python;
use crate::arch::Arch;

/// Linux source paths needed by the tests.
const FOLDERS: &[&str] = &[
    "Documentation/netlink",
    "tools/net/ynl",
    "tools/testing/selftests/drivers/net",
    "tools/testing/selftests/kselftest",
    "tools/testing/selftests/kselftest.h",
    "tools/testing/selftests/net",
];
/// Directory of the tests in the Linux sources.
const TESTS: &str = "tools/testing/selftests";
/// Directories below [`TESTS`] that contain BPF programs.
const BPF_FOLDERS: &[&str] = &["net/lib", "drivers/net/hw"];

/// A C program that a test runs.
struct Helper {
    /// Path below [`TESTS`], without the suffix. A program that the kernel's sources do not contain is skipped.
    path: &'static str,
    /// Netlink families used by the program. Code for them is generated from the families' specifications.
    families: &'static [&'static str],
}

const HELPERS: &[Helper] = &[
    Helper { path: "drivers/net/hw/ncdevmem", families: &["ethtool", "netdev"] },
    Helper { path: "drivers/net/hw/toeplitz", families: &["ethtool"] },
    Helper { path: "drivers/net/napi_id_helper", families: &[] },
    Helper { path: "drivers/net/psp_responder", families: &["psp"] },
    Helper { path: "drivers/net/so_txtime", families: &[] },
    Helper { path: "net/lib/csum", families: &[] },
    Helper { path: "net/lib/gro", families: &[] },
    Helper { path: "net/lib/xdp_helper", families: &[] },
];

/// Returns an image with the tests and their compiled programs, under the same paths as in the Linux source tree.
///
/// All guests run the tests from the default kernel's sources. The kernel's documentation recommends running the newest
/// tests on older kernels as well (`Documentation/dev-tools/kselftest.rst`).
///
/// # Errors
/// Fails if the source or the compiler cannot be fetched, or if a program does not compile.
pub(super) fn image(cache: &Path) -> Result<PathBuf> {
    let source = Source::of(cache, &KernelChoice::default())?;
    let tools = tools(cache, Arch::HOST)?;
    let system = with_self_test_programs(cache, Arch::HOST)?.join("root");
    let entry = cache::entry(cache, &format!("{}-selftests-2", source.package), |work| {
        let tree = work.scratch.join("tree");
        fs::create_dir_all(&tree).with_context(|| tree.display().to_string())?;
        source.unpack(cache, work, &tree, FOLDERS, 0)?;
        let clang = Clang::fetch(work, source.suite)?;
        Build { work, tree: &tree, system: &system, clang: &clang }.run()?;
        clang.remove()?;
        make_image(&tools, &tree, &work.entry.join(IMAGE))
    })?;
    Ok(entry.join(IMAGE))
}

struct Build<'a> {
    work: &'a Work,
    /// Root of the unpacked Linux sources, which also receives the compiled programs.
    tree: &'a Path,
    /// A system with Python and a YAML parser for it.
    system: &'a Path,
    clang: &'a Clang,
}

impl Build<'_> {
    fn run(&self) -> Result<()> {
        let tests = self.tree.join(TESTS);
        let netlink = self.work.scratch.join("netlink");
        fs::create_dir_all(&netlink).with_context(|| netlink.display().to_string())?;
        for Helper { path, families } in HELPERS {
            let source = tests.join(path).with_extension("c");
            if source.is_file() {
                let objects = self.netlink_objects(families, &netlink)?;
                let object = netlink.join("program.o");
                let ynl = self.tree.join("tools/net/ynl/lib");
                let includes = [tests.as_path(), &tests.join("kselftest"), &ynl, &netlink];
                self.clang.compile(Target::Guest, &source, &includes, &object)?;
                self.clang.link(&object, &objects, &tests.join(path))?;
            }
        }
        for folder in BPF_FOLDERS {
            let folder = tests.join(folder);
            for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
                let source = entry?.path();
                if source.file_name().is_some_and(|name| name.as_encoded_bytes().ends_with(b".bpf.c")) {
                    self.clang.compile(Target::Bpf, &source, &[], &source.with_extension("o"))?;
                }
            }
        }
        Ok(())
    }

    /// Generates the code for Netlink families and compiles it together with its runtime library. Returns the object
    /// files.
    fn netlink_objects(&self, families: &[&str], folder: &Path) -> Result<Vec<PathBuf>> {
        if families.is_empty() {
            return Ok(Vec::new());
        }
        let ynl = self.tree.join("tools/net/ynl");
        // The generator searches the parent directories for this file. Without it, the search would never end.
        let marker = self.tree.join("MAINTAINERS");
        fs::write(&marker, "").with_context(|| marker.display().to_string())?;
        let mut sources = vec![ynl.join("lib/ynl.c")];
        for family in families {
            let specification = self.tree.join(format!("Documentation/netlink/specs/{family}.yaml"));
            for (kind, suffix) in [("--header", "h"), ("--source", "c")] {
                let output = folder.join(format!("{family}-user.{suffix}"));
                let mut command = python::command(self.system)?;
                command.arg(ynl.join("pyynl/ynl_gen_c.py")).args(["--mode", "user", kind]);
                command.arg("--spec").arg(&specification).arg("-o").arg(&output);
                if *family == "ethtool" {
                    // The kernel's makefile passes the same options.
                    command.args(["--user-header", "linux/ethtool_netlink.h", "--exclude-op", "stats-get"]);
                }
                run(&mut command).with_context(|| format!("cannot generate code for {family}"))?;
            }
            sources.push(folder.join(format!("{family}-user.c")));
        }
        let mut objects = Vec::new();
        for source in sources {
            let name = source.file_stem().unwrap_or(OsStr::new("library"));
            let object = folder.join(name).with_extension("o");
            self.clang.compile(Target::Guest, &source, &[&ynl.join("lib"), folder], &object)?;
            objects.push(object);
        }
        Ok(objects)
    }
}
