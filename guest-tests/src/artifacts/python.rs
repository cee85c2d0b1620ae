//! Python's compiled modules, which Debian has maintainer scripts make. Without them the first program of every emulated
//! guest compiles what it imports, for seconds, and every program where the folder is read-only.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use super::apt::run;
use super::packages::Unpacked;

/// Compiles the modules of a system.
///
/// # Errors
/// As [`compile`].
pub(super) fn compile_system(root: &Path) -> Result<()> {
    compile(root, root, &versioned(&root.join("usr/lib"))?)
}

/// Compiles modules below folders of `tree` with the Python of `system`. Who mounts the tree elsewhere than at `/` sees that
/// in tracebacks only.
///
/// # Errors
/// When the system has no Python, or a module is none.
pub(super) fn compile(system: &Path, tree: &Path, folders: &[PathBuf]) -> Result<()> {
    let programs = versioned(&system.join("usr/bin"))?;
    // Others beside it are configured by scripts, or links.
    let program = programs.iter().find(|path| fs::symlink_metadata(path).is_ok_and(|there| there.is_file()));
    let program = program.and_then(|path| path.strip_prefix(system).ok()?.to_str());
    let program = program.with_context(|| format!("{} contains no Python interpreter", system.display()))?;
    let mut command = Unpacked::new(system, program, None).command();
    command.env("PYTHONHOME", system.join("usr")).args(["-S", "-m", "compileall", "-q"]);
    // Nobody changes a module, and the image's times need not be those of the files.
    command.args(["--invalidation-mode", "unchecked-hash", "-s"]).arg(tree).args(["-p", "/"]).args(folders);
    run(&mut command).context("cannot compile Python modules").map(drop)
}

/// What is in a folder by the name of Python 3, of any version.
fn versioned(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut found: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    found.retain(|path| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"python3")));
    Ok(found)
}
