//! NIXL, NVIDIA's transfer library for inference servers. Debian does not package it. The lab fetches its wheel, which
//! includes UCX, from the Python package index that this machine's pip uses.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use agent::pattern::Digest;
use anyhow::{Context as _, Result};

use super::apt::run;
use super::debian::{IMAGE, debian, make_image};
use super::{cache, python};
use crate::arch::Arch;
use crate::testbed::progress::Line;

/// Versions and hashes of the wheels.
const REQUIREMENTS: &str = include_str!("../../guest/nixl-requirements.txt");

/// Options that select wheels for Python 3.13, the version in Debian's stable release, regardless of the host's Python.
/// pip would compare a wheel's `Requires-Python` with the host's version, so that check is disabled.
const FOR_GUEST: &[&str] = &[
    "--only-binary=:all:",
    "--ignore-requires-python",
    "--python-version=3.13",
    "--implementation=cp",
    "--abi=cp313",
    "--platform=manylinux_2_28_x86_64",
    "--platform=manylinux_2_27_x86_64",
];

/// Returns an image with the unpacked wheels. Creates the image if it is not in the cache.
pub(super) fn image(cache: &Path) -> Result<PathBuf> {
    let system = debian(cache, Arch::HOST)?;
    let mut digest = Digest::default();
    digest.update(REQUIREMENTS.as_bytes());
    digest.update(system.file_name().unwrap_or_default().as_encoded_bytes());
    let entry = cache::entry(cache, &format!("nixl-1-{:016x}", digest.finish()), |work| {
        let progress = Line::begin("NIXL");
        progress.step("downloading the wheels");
        let tree = work.scratch.join("tree");
        install(&work.scratch, &tree)?;
        progress.step("compiling Python modules");
        let root = system.join("root");
        python::compile(&root, &tree, &["nixl_cu12", "numpy"].map(|folder| tree.join(folder)))?;
        progress.step("creating the disk image");
        make_image(&root, &tree, &work.entry.join(IMAGE))?;
        progress.done("created the disk image");
        Ok(())
    })?;
    Ok(entry.join(IMAGE))
}

/// Unpacks the wheels into `tree`, without their dependencies. NIXL lists PyTorch as a dependency, but uses it only for
/// tensors from programs that have already loaded it.
fn install(scratch: &Path, tree: &Path) -> Result<()> {
    let (venv, list) = (scratch.join("venv"), scratch.join("requirements.txt"));
    fs::write(&list, REQUIREMENTS).with_context(|| list.display().to_string())?;
    run(Command::new("python3").args(["-m", "venv"]).arg(&venv))
        .context("cannot create a virtual environment with pip; install Python's venv module")?;
    let mut pip = Command::new(venv.join("bin/pip"));
    pip.args(["--quiet", "--disable-pip-version-check", "install", "--no-deps", "--require-hashes"]);
    pip.args(FOR_GUEST).arg("--no-compile").arg("--target").arg(tree).arg("-r").arg(&list);
    run(&mut pip).context("cannot fetch NIXL").map(drop)
}
