//! Builds the agents that `guest-lab` embeds, one per guest architecture. They are statically linked, since small
//! guests do not contain shared libraries.
//!
//! The agents' targets and flags differ from those of the current build. A separate cargo process therefore builds each
//! agent, in a different target directory. If the Rust target of an architecture is not installed, an empty file is
//! embedded instead. To embed an agent for x86-64 that was built elsewhere, set `HCAD_AGENT` to its path.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// An agent's output file name, Rust target and compiler flags.
struct Agent {
    file: &'static str,
    target: &'static str,
    flags: &'static str,
}

const AMD64: Agent = Agent {
    file: "guest-agent-amd64",
    target: "x86_64-unknown-linux-gnu",
    flags: "-C target-feature=+crt-static -C strip=symbols",
};
/// Uses the linker and the musl libc that come with Rust, so no cross compiler is needed.
const ARM64: Agent = Agent {
    file: "guest-agent-arm64",
    target: "aarch64-unknown-linux-musl",
    flags: "-C target-feature=+crt-static -C strip=symbols -C linker=rust-lld",
};

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-env-changed=HCAD_AGENT");
    for source in ["agent/src", "agent/Cargo.toml", "../Cargo.toml", "../Cargo.lock"] {
        println!("cargo::rerun-if-changed={source}");
    }
    let output = PathBuf::from(variable("OUT_DIR")?);
    let given = env::var_os("HCAD_AGENT").map(PathBuf::from);
    for agent in [AMD64, ARM64] {
        let embedded = output.join(agent.file);
        let made = match &given {
            Some(given) if agent.file == AMD64.file => {
                println!("cargo::rerun-if-changed={}", given.display());
                Some(given.clone())
            }
            _ if is_installed(agent.target)? => Some(agent.build(&output)?),
            _ => None,
        };
        match made {
            Some(made) => fs::copy(&made, &embedded)
                .map(drop)
                .map_err(|error| format!("copying {}: {error}", made.display()))?,
            None => fs::write(&embedded, "")?,
        }
    }
    Ok(())
}

/// Returns whether the standard library for a target is installed.
fn is_installed(target: &str) -> Result<bool, Box<dyn Error>> {
    let output = Command::new(variable("RUSTC")?)
        .args(["--print", "target-libdir", "--target", target])
        .output()
        .map_err(|error| format!("starting rustc: {error}"))?;
    let folder = PathBuf::from(String::from_utf8(output.stdout)?.trim());
    // rustup changes this file when it installs a target.
    let installed = folder.ancestors().nth(2).map(|all| all.join("components"));
    if let Some(installed) = installed.filter(|file| file.is_file()) {
        println!("cargo::rerun-if-changed={}", installed.display());
    }
    Ok(folder.is_dir())
}

impl Agent {
    fn build(&self, output: &Path) -> Result<PathBuf, Box<dyn Error>> {
        let here = PathBuf::from(variable("CARGO_MANIFEST_DIR")?);
        // Agents for all profiles share one target directory, next to the directories of the profiles.
        let own = output.ancestors().find(|folder| folder.join(".cargo-lock").is_file());
        let all = own.and_then(Path::parent);
        let target_dir = all.unwrap_or(output).join("guest");
        // PROFILE is `release` or `debug`, depending on which of the two the current profile inherits from.
        let (profile, folder) = match variable("PROFILE")?.to_str() {
            Some("release") => ("release", "release"),
            _ => ("dev", "debug"),
        };
        let mut command = Command::new(variable("CARGO")?);
        command
            .current_dir(here)
            .args(["build", "--quiet", "--profile", profile, "--frozen", "-p", "agent"])
            .args(["--bin", "guest-agent", "--target", self.target, "--target-dir"])
            .arg(&target_dir)
            .env("RUSTFLAGS", self.flags)
            .env_remove("CARGO_ENCODED_RUSTFLAGS")
            // `cargo clippy` sets this variable. If the nested cargo inherited it, the agent would not be built.
            .env_remove("RUSTC_WORKSPACE_WRAPPER");
        if !command.status()?.success() {
            return Err(format!("building the agent failed: {command:?}").into());
        }
        Ok(target_dir.join(self.target).join(folder).join("guest-agent"))
    }
}

fn variable(name: &str) -> Result<std::ffi::OsString, String> {
    env::var_os(name).ok_or_else(|| format!("cargo sets no {name}"))
}
