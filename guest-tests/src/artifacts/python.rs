//! Compiles Python modules to bytecode, as maintainer scripts would. Without the bytecode, a Python program in an
//! emulated guest would spend seconds on compilation, and on a read-only file system it would do so at every start.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use super::apt::run;
use super::packages::Unpacked;

/// Compiles the modules of the system in `root` to bytecode, using the Python interpreter in `tools`. The system and
/// the interpreter must have the same Python version.
///
/// # Errors
/// Same as for [`compile`].
pub(super) fn compile_system(tools: &Path, root: &Path) -> Result<()> {
    compile(tools, root, &versioned(&root.join("usr/lib"))?)
}

/// Compiles the modules below `folders`, which are directories in `tree`, with the Python interpreter of `system`. If
/// the tree is not mounted at `/`, tracebacks show wrong paths, but nothing else is affected.
///
/// # Errors
/// Fails if the system has no Python or if a module does not compile.
pub(super) fn compile(system: &Path, tree: &Path, folders: &[PathBuf]) -> Result<()> {
    let mut command = command(system)?;
    command.args(["-S", "-m", "compileall", "-q"]);
    // Modules never change, but their modification times in the image may differ from those at compile time, so disable
    // Python's check for outdated bytecode.
    command.args(["--invalidation-mode", "unchecked-hash", "-s"]).arg(tree).args(["-p", "/"]).args(folders);
    run(&mut command).context("cannot compile Python modules").map(drop)
}

/// Returns a command that starts the Python interpreter of `system`, without arguments.
///
/// # Errors
/// Fails if the system has no Python.
pub(super) fn command(system: &Path) -> Result<Command> {
    let programs = versioned(&system.join("usr/bin"))?;
    // `python3` is a symbolic link to the interpreter, which is a regular file.
    let program = programs.iter().find(|path| fs::symlink_metadata(path).is_ok_and(|there| there.is_file()));
    let program = program.and_then(|path| path.strip_prefix(system).ok()?.to_str());
    let program = program.with_context(|| format!("{} contains no Python interpreter", system.display()))?;
    let mut command = Unpacked::new(system, program, None).command();
    command.env("PYTHONHOME", system.join("usr"));
    Ok(command)
}

/// Returns the directory entries whose names start with `python3`, such as `python3.13`.
fn versioned(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut found: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    found.retain(|path| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"python3")));
    Ok(found)
}
