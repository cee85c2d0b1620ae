//! Locates the project's own programs: the daemon, `hcactl` and the guest agent.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

use crate::arch::Arch;
use crate::artifacts::cache_dir;

/// Returns the directory for run output: `lab` in Cargo's target directory if this program was built there, and
/// otherwise `lab` in the cache directory.
///
/// # Errors
/// Fails if the path of this program or the cache directory cannot be determined.
pub fn lab_dir() -> Result<PathBuf> {
    let profile = profile_dir()?;
    // Cargo creates this lock file in each profile directory that it builds. CACHEDIR.TAG in the target directory is
    // less reliable: it is missing if another tool created the directory.
    let built_here = profile.join(".cargo-lock").is_file();
    let target = profile.parent().filter(|_| built_here);
    Ok(target.map_or_else(cache_dir, |target| Ok(target.to_owned()))?.join("lab"))
}

/// Returns the path of the daemon, in `HCAD_PROGRAMS` or, if that is unset, next to this program.
///
/// # Errors
/// Fails if the daemon has not been built.
pub fn hcad() -> Result<PathBuf> {
    beside("hcad")
}

/// Returns the path of `hcactl`, in `HCAD_PROGRAMS` or, if that is unset, next to this program.
///
/// # Errors
/// Fails if `hcactl` has not been built.
pub fn hcactl() -> Result<PathBuf> {
    beside("hcactl")
}

/// Returns the path of `guest-lab`, in `HCAD_PROGRAMS` or, if that is unset, next to this program.
///
/// # Errors
/// Fails if `guest-lab` has not been built.
pub fn guest_lab() -> Result<PathBuf> {
    beside("guest-lab")
}

/// Returns the guest agent, a static executable.
///
/// # Errors
/// Fails if the agent was not built because its Rust target was not installed.
pub fn agent(arch: Arch) -> Result<&'static [u8]> {
    let (agent, target): (&[u8], _) = match arch {
        Arch::Amd64 => {
            (include_bytes!(concat!(env!("OUT_DIR"), "/guest-agent-amd64")), "x86_64-unknown-linux-gnu")
        }
        Arch::Arm64 => {
            (include_bytes!(concat!(env!("OUT_DIR"), "/guest-agent-arm64")), "aarch64-unknown-linux-musl")
        }
    };
    ensure!(
        !agent.is_empty(),
        "this guest-lab was built without the agent for {arch} guests; run 'rustup target add {target}', then build \
         guest-lab again"
    );
    Ok(agent)
}

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

/// Returns this program's directory, such as `target/release`. Test programs are in its subdirectory `deps`.
fn profile_dir() -> Result<PathBuf> {
    let program = std::env::current_exe().context("cannot determine this program's path")?;
    let folder = program.parent().context("this program's path has no parent directory")?;
    let folder = if folder.ends_with("deps") { folder.parent().unwrap_or(folder) } else { folder };
    Ok(folder.to_owned())
}
