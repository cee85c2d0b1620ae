//! The project's own programs: the daemon beside this one, and the agent built for guests.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// The workspace this program was built from.
fn workspace() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here)
}

/// The folder for what runs leave behind: `lab` in the target folder this program runs from.
///
/// # Errors
/// When this program's own path is unknown.
pub fn lab_dir() -> Result<PathBuf> {
    Ok(target_dir()?.join("lab"))
}

/// The daemon, beside this program.
///
/// # Errors
/// When it was not built.
pub fn hcad() -> Result<PathBuf> {
    beside("hcad")
}

/// What looks into a running daemon, beside this program.
///
/// # Errors
/// When it was not built.
pub fn hcactl() -> Result<PathBuf> {
    beside("hcactl")
}

/// Builds the agent as a static program, since a guest has no libraries, in a target folder of its own, since the
/// flag would rebuild everything else. A build with nothing to do takes a fraction of a second.
///
/// # Errors
/// When cargo cannot be run or the build fails.
pub fn build_agent() -> Result<PathBuf> {
    const TARGET: &str = "x86_64-unknown-linux-gnu";
    let target_dir = target_dir()?.join("guest");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .current_dir(workspace())
        .args(["build", "--quiet", "--release", "--locked", "-p", "agent", "--bin", "guest-agent"])
        .args(["--target", TARGET, "--target-dir"])
        .arg(&target_dir)
        .env("RUSTFLAGS", "-C target-feature=+crt-static -C strip=symbols")
        .env_remove("CARGO_ENCODED_RUSTFLAGS");
    tracing::debug!("building the agent: {command:?}");
    let output = command
        .output()
        .with_context(|| format!("starting {command:?} to build the agent (or give one with --agent)"))?;
    ensure!(
        output.status.success(),
        "building the agent failed: {command:?}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(target_dir.join(TARGET).join("release/guest-agent"))
}

fn beside(program: &str) -> Result<PathBuf> {
    let path = profile_dir()?.join(program);
    ensure!(
        path.is_file(),
        "{} does not exist: run 'cargo build --release --workspace --bins'",
        path.display()
    );
    Ok(path)
}

/// The folder of this program, such as `target/release`; test programs are one folder deeper.
fn profile_dir() -> Result<PathBuf> {
    let program = std::env::current_exe().context("finding this program")?;
    let folder = program.parent().context("this program has no folder")?;
    let folder = if folder.ends_with("deps") { folder.parent().unwrap_or(folder) } else { folder };
    Ok(folder.to_owned())
}

fn target_dir() -> Result<PathBuf> {
    let profile = profile_dir()?;
    Ok(profile.parent().context("this program is not in a target folder")?.to_owned())
}
