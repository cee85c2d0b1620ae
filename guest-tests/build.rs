//! Builds the agent that `guest-lab` embeds. The agent is linked statically, because a small guest has no libraries.
//!
//! The agent's target and flags differ from those of the current build. A separate cargo process therefore builds the
//! agent in another target directory. To embed an agent that was built elsewhere, set `HCAD_AGENT` to its path.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

const TARGET: &str = "x86_64-unknown-linux-gnu";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-env-changed=HCAD_AGENT");
    let output = PathBuf::from(variable("OUT_DIR")?);
    let agent = match env::var_os("HCAD_AGENT") {
        Some(agent) => {
            println!("cargo::rerun-if-changed={}", Path::new(&agent).display());
            PathBuf::from(agent)
        }
        None => build(&output)?,
    };
    fs::copy(&agent, output.join("guest-agent"))
        .map_err(|error| format!("copying {}: {error}", agent.display()))?;
    Ok(())
}

fn build(output: &Path) -> Result<PathBuf, Box<dyn Error>> {
    let here = PathBuf::from(variable("CARGO_MANIFEST_DIR")?);
    for source in ["agent/src", "agent/Cargo.toml", "../Cargo.toml", "../Cargo.lock"] {
        println!("cargo::rerun-if-changed={source}");
    }
    // Agents for all profiles share one target directory, next to the profiles' own directories.
    let own = output.ancestors().find(|folder| folder.join(".cargo-lock").is_file());
    let all = own.and_then(Path::parent);
    let target_dir = all.unwrap_or(output).join("guest");
    // PROFILE is `release` or `debug`, depending on the profile from which the current one inherits.
    let (profile, folder) = match variable("PROFILE")?.to_str() {
        Some("release") => ("release", "release"),
        _ => ("dev", "debug"),
    };
    let mut command = Command::new(variable("CARGO")?);
    command
        .current_dir(here)
        .args(["build", "--quiet", "--profile", profile, "--frozen", "-p", "agent", "--bin", "guest-agent"])
        .args(["--target", TARGET, "--target-dir"])
        .arg(&target_dir)
        .env("RUSTFLAGS", "-C target-feature=+crt-static -C strip=symbols")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        // `cargo clippy` sets this variable. If the nested cargo inherited it, the agent would not be built.
        .env_remove("RUSTC_WORKSPACE_WRAPPER");
    if !command.status()?.success() {
        return Err(format!("building the agent failed: {command:?}").into());
    }
    Ok(target_dir.join(TARGET).join(folder).join("guest-agent"))
}

fn variable(name: &str) -> Result<std::ffi::OsString, String> {
    env::var_os(name).ok_or_else(|| format!("cargo sets no {name}"))
}
