//! `here` runs a command in a guest that uses the host's root file system.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use agent::wire::exec::{Start, User};
use anyhow::{Context as _, Result, ensure};
use rustix::process::{getegid, geteuid, getgroups};

use super::exec::run_as_local;
use super::job::{self, Job};
use super::task::can_start;
use super::until_signal;
use crate::testbed::UpOptions;
use crate::testbed::boot::Place as GuestPlace;
use crate::testbed::host_root::HostRoot;
use crate::testbed::name::Target;
use crate::testbed::protocol::Description;
use crate::testbed::providers;

/// Name prefix of testbeds started by `here`.
const NAME: &str = "here-";
/// Environment variables that the command always inherits. They describe the user, the locale, the time zone, and where
/// programs are found.
const INHERITED: &[&str] =
    &["HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TZ", "USER", "VIRTUAL_ENV"];

/// Arguments of [`super::Command::Here`].
#[derive(Clone, Debug, clap::Args)]
pub struct Here {
    #[command(flatten)]
    wanted: UpOptions,
    #[command(flatten)]
    place: Place,
    /// Environment variable to set, or to copy from this command's environment (repeatable)
    #[arg(long = "env", value_name = "NAME[=VALUE]", value_parser = variable)]
    environment: Vec<Variable>,
    /// Boot even if the program to run, or the RDMA device's library, is missing on this machine
    #[arg(long)]
    no_check: bool,
    /// Collect console output, kernel messages, logs, traces and captures in this directory
    #[arg(long, value_name = "DIR")]
    logs: Option<PathBuf>,
    /// Command to run; with several guests, it runs in all of them simultaneously
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// The options of `here` that affect the boot. The supervisor needs them too.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(super) struct Place {
    /// Boot two guests, a and b, and run the command in both (same as --count 2)
    #[arg(long, conflicts_with = "count")]
    pair: bool,
    /// Let the command change the files in the current directory
    #[arg(long)]
    write: bool,
}

/// An environment variable. Without a value, it is copied from this program's environment.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Variable {
    name: String,
    value: Option<String>,
}

fn variable(text: &str) -> Result<Variable, String> {
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, Some(value.to_owned())),
        None => (text, None),
    };
    if name.is_empty() || text.contains('\0') {
        return Err(format!("'{text}' is not of the form NAME or NAME=VALUE, or contains a NUL byte"));
    }
    Ok(Variable { name: name.to_owned(), value })
}

impl Place {
    /// Adds these options to the options of the guests.
    ///
    /// # Errors
    /// Fails if the current directory is unknown or is not available in guests.
    pub(super) fn apply(self, mut wanted: UpOptions) -> Result<UpOptions> {
        let folder = current_folder()?;
        let root = HostRoot { writable: self.write.then(|| folder.clone()) };
        root.check(&folder)?;
        wanted.host_root = Some(root);
        if self.pair {
            wanted.count = Some(2);
        }
        Ok(wanted)
    }
}

fn current_folder() -> Result<PathBuf> {
    std::env::current_dir().context("cannot determine the current directory")
}

impl Here {
    /// Boots the guests, runs the command in them, and stops them. A single command uses this program's input and
    /// output and receives its signals. The output of several commands is printed line by line, and if one of them
    /// fails, the others are terminated after a grace period.
    ///
    /// # Errors
    /// Fails if the command could not be run.
    pub(super) async fn run(self) -> Result<ExitCode> {
        ensure!(
            self.wanted.options.root.is_none(),
            "the guests of 'guest-lab here' have this machine's root filesystem; --root selects one for 'guest-lab up' and 'guest-lab ci'"
        );
        let wanted = self.place.apply(self.wanted)?;
        wanted.check()?;
        let folder = current_folder()?;
        can_start(&self.command, &folder)?;
        let host = |name: &str| std::env::var(name).ok();
        let env = environment(&self.environment, host);
        if !self.no_check {
            // Without PATH, the guest's agent uses its own default.
            if let Some(path) = env.get("PATH") {
                is_installed(&self.command, path)?;
            }
            for place in GuestPlace::all(&wanted) {
                providers::check(Path::new("/"), place.device)?;
            }
        }
        let start = Start {
            argv: self.command,
            env,
            folder: folder.to_str().map(str::to_owned),
            user: Some(current_user()?),
            terminal: None,
        };
        let job = Job { wanted: &wanted, prefix: NAME, logs: self.logs.as_deref() };
        let code = job.run(async |description| in_guests(description, start).await).await?;
        Ok(ExitCode::from(code))
    }
}

/// Checks that a program named without a slash is in one of the directories in `path`, the value of `PATH`. Without
/// this check, the error would appear only after the guests have booted.
fn is_installed(command: &[String], path: &str) -> Result<()> {
    let Some(program) = command.first().filter(|name| !name.contains('/')) else { return Ok(()) };
    let is_file = |folder: PathBuf| folder.join(program).is_file();
    ensure!(
        std::env::split_paths(path).any(is_file),
        "this machine has no program '{program}', and the guest has the files of this machine; install the program, or \
         use 'guest-lab up' or 'guest-lab ci', whose guests contain common RDMA programs. If the program \
         exists only in the guest, pass --no-check"
    );
    Ok(())
}

async fn in_guests(description: &Description, start: Start) -> Result<u8> {
    match description.guests.as_slice() {
        [guest] => {
            let target = Target { testbed: description.name.clone(), guest: guest.name };
            run_as_local(&target, start, None).await
        }
        _ => until_signal(job::run_in_all(description, &start, None)).await,
    }
}

fn current_user() -> Result<User> {
    let groups = getgroups().context("cannot determine the user's groups")?;
    Ok(User {
        uid: geteuid().as_raw(),
        gid: getegid().as_raw(),
        groups: groups.into_iter().map(rustix::process::Gid::as_raw).collect(),
    })
}

/// Returns the command's environment. Variables that are not set in `host` are omitted.
fn environment(chosen: &[Variable], host: impl Fn(&str) -> Option<String>) -> BTreeMap<String, String> {
    let inherited = INHERITED.iter().map(|&name| (name.to_owned(), host(name)));
    let chosen = chosen
        .iter()
        .map(|variable| (variable.name.clone(), variable.value.clone().or_else(|| host(&variable.name))));
    inherited.chain(chosen).filter_map(|(name, value)| Some((name, value?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn environment_contains_inherited_and_chosen_variables() {
        let host = |name: &str| match name {
            "PATH" => Some("/venv/bin:/bin".to_owned()),
            "SECRET" | "TOKEN" => Some("s".to_owned()),
            _ => None,
        };
        let chosen = ["TOKEN", "ABSENT", "A=b=c", "PATH=/bin"].map(|text| variable(text).unwrap());
        let pairs = |variables: BTreeMap<String, String>| variables.into_iter().collect::<Vec<_>>();
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(pairs(environment(&[], host)), [pair("PATH", "/venv/bin:/bin")]);
        let expected = [pair("A", "b=c"), pair("PATH", "/bin"), pair("TOKEN", "s")];
        assert_eq!(pairs(environment(&chosen, host)), expected);
    }

    #[test]
    fn program_must_be_in_search_path() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("program"), "").unwrap();
        let path = format!("/none:{}", folder.path().display());
        let check = |program: &str| is_installed(&[program.to_owned()], &path);
        assert!(check("program").is_ok() && check("./another").is_ok());
        assert!(check("another").unwrap_err().to_string().contains("no program 'another'"));
    }

    #[test]
    fn variable_name_must_not_be_empty() {
        assert!(variable("=x").is_err() && variable("").is_err());
    }
}
