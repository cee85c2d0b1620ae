//! The project's own programs: the daemon beside this one, and the agent inside it.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

use crate::artifacts::cache_dir;

/// The folder for what runs leave behind: `lab` in the target folder this program runs from, or in the cache when it was
/// installed elsewhere.
///
/// # Errors
/// When this program's own path is unknown.
pub fn lab_dir() -> Result<PathBuf> {
    let profile = profile_dir()?;
    // Cargo locks the folder of a profile it builds; its mark of a target folder is missing where somebody else made that.
    let built_here = profile.join(".cargo-lock").is_file();
    let target = profile.parent().filter(|_| built_here);
    Ok(target.map_or_else(cache_dir, |target| Ok(target.to_owned()))?.join("lab"))
}

/// The daemon, beside this program or in `HCAD_PROGRAMS`.
///
/// # Errors
/// When it was not built.
pub fn hcad() -> Result<PathBuf> {
    beside("hcad")
}

/// The control program of a running daemon, beside this program or in `HCAD_PROGRAMS`.
///
/// # Errors
/// When it was not built.
pub fn hcactl() -> Result<PathBuf> {
    beside("hcactl")
}

/// The agent, a static program for guests.
pub const AGENT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/guest-agent"));

fn beside(program: &str) -> Result<PathBuf> {
    let folder = std::env::var_os("HCAD_PROGRAMS").filter(|folder| !folder.is_empty());
    let path = folder.map_or_else(profile_dir, |folder| Ok(folder.into()))?.join(program);
    ensure!(
        path.is_file(),
        "{} does not exist; run 'cargo build --release', or set HCAD_PROGRAMS to the directory that contains the binaries",
        path.display()
    );
    Ok(path)
}

/// The folder of this program, such as `target/release`; test programs are one folder deeper.
fn profile_dir() -> Result<PathBuf> {
    let program = std::env::current_exe().context("cannot determine this program's path")?;
    let folder = program.parent().context("this program's path has no parent directory")?;
    let folder = if folder.ends_with("deps") { folder.parent().unwrap_or(folder) } else { folder };
    Ok(folder.to_owned())
}
