//! rdma-core's device tests. Debian's binary packages omit them, so they come from the source package.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::apt::{Apt, Component, Kind, Package, Release, Suite, run};
use super::cache;
use super::debian::{IMAGE, debian, make_image, newest, tools, with_python};
use super::{packages, python};
use crate::arch::Arch;

/// The package under test, whose version must match that of the tests.
const TESTED: &str = "python3-pyverbs";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RdmaCore {
    /// The version in Debian's stable release.
    Stable,
    /// The version in Debian's unstable release.
    Newest,
}

/// Returns an image with the tests. Creates the image if it is not in the cache.
pub(super) fn tests(cache: &Path, arch: Arch, rdma_core: RdmaCore) -> Result<PathBuf> {
    let (system, release) = match rdma_core {
        RdmaCore::Stable => (debian(cache, arch)?, Release::Stable(Suite::Trixie)),
        RdmaCore::Newest => (newest(cache, arch)?, Release::Unstable),
    };
    let tools = tools(cache, arch)?;
    let built = packages::version(&system, TESTED)?;
    let version = source_version(&built);
    let entry = cache::entry(cache, &format!("rdma-core-tests-2-{version}"), |work| {
        let folder = |name: &str| -> Result<PathBuf> {
            let folder = work.scratch.join(name);
            fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
            Ok(folder)
        };
        let package = Package { name: "rdma-core".into(), version: version.into() };
        let apt =
            Apt::open(&folder("apt")?, Path::new("/etc/apt"), Kind::Source, Component::Main, release, arch)?;
        let archive = apt.download_upstream(&package, &folder("download")?)?;
        let tree = folder("tree")?;
        // The archive contains a single directory, whose name includes the version.
        let mut tar = Command::new("tar");
        tar.arg("-xf").arg(&archive).arg("-C").arg(&tree);
        run(tar.args(["--strip-components=1", "--wildcards", "*/tests"]))
            .context("cannot unpack the rdma-core tests")?;
        python::compile(with_python(arch, &tools, &system.join("root")), &tree, &[tree.join("tests")])?;
        make_image(&tools, &tree, &work.entry.join(IMAGE))
    })?;
    Ok(entry.join(IMAGE))
}

/// Removes the binNMU suffix, which Debian appends to a version when it rebuilds the same sources.
fn source_version(built: &str) -> &str {
    match built.rsplit_once("+b") {
        Some((source, number)) if number.parse::<u32>().is_ok() => source,
        _ => built,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_version_omits_binary_rebuild_suffix() {
        assert_eq!(source_version("56.1-1+b2"), "56.1-1");
        assert_eq!(source_version("56.1-1"), "56.1-1");
        assert_eq!(source_version("56.1-1~bpo12+1"), "56.1-1~bpo12+1");
    }
}
