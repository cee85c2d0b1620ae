//! `ci` boots guests, runs one command in them, and stops them.

use std::process::ExitCode;

use anyhow::Result;

use super::job::{self, Job};
use super::task::{TaskOptions, start};
use super::until_signal;
use crate::testbed::UpOptions;
use crate::testbed::name::Target;
use crate::testbed::protocol::Description;

/// Name prefix of testbeds started by `ci`.
const NAME: &str = "ci-";

/// Arguments of [`super::Command::Ci`].
#[derive(Clone, Debug, clap::Args)]
pub struct Ci {
    #[command(flatten)]
    wanted: UpOptions,
    #[command(flatten)]
    task: TaskOptions,
    /// Command to run in /work on every guest simultaneously; $HCAD_GUEST is set to the guest's name
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

impl Ci {
    /// Boots guests, copies the directory given by `--folder` to /work in each, runs the command in all of them, and
    /// stops them. If a command fails, the others are terminated after a grace period. A signal terminates all
    /// commands. The logs are collected in all cases.
    ///
    /// The exit status is that of the first command that fails. If none fails, it is 0, or 1 if a problem was reported
    /// when the guests were stopped.
    ///
    /// # Errors
    /// Fails if the command could not be run.
    pub(super) async fn run(self) -> Result<ExitCode> {
        self.task.check(&self.wanted, &self.command)?;
        let job = Job { wanted: &self.wanted, prefix: NAME, logs: self.task.logs.as_deref() };
        let code = job.run(async |description| until_signal(self.in_guests(description)).await).await?;
        Ok(ExitCode::from(code))
    }

    async fn in_guests(&self, description: &Description) -> Result<u8> {
        for guest in &description.guests {
            let target = Target { testbed: description.name.clone(), guest: guest.name };
            self.task.copy_to(&target).await?;
        }
        let start = start(self.command.clone());
        job::run_in_all(description, &start, Some(&self.task)).await
    }
}
