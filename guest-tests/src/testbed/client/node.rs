//! `node` boots one guest of a testbed on several hosts and runs a command in it.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use agent::wire::exec::Start;
use anyhow::{Context as _, Result, anyhow, bail};
use tokio::time::timeout;

use super::ci::{FOLDER, can_start, check_size};
use super::exec::run_as_local;
use super::gathering::{Gathering, listen};
use super::job::Job;
use super::{copy, until_signal};
use crate::testbed::UpOptions;
use crate::testbed::name::Target;
use crate::testbed::node::NodeArgs;
use crate::testbed::protocol::Description;

/// Exit status if the command was terminated because another guest failed. It is that of a program that SIGTERM ends.
const TERMINATED: u8 = 128 + 15;

/// Arguments of [`super::Command::Node`].
#[derive(Clone, Debug, clap::Args)]
pub struct Node {
    #[command(flatten)]
    wanted: UpOptions,
    #[command(flatten)]
    node: NodeArgs,
    /// Directory to copy to /work in the guest
    #[arg(long, value_name = "DIR", default_value = ".")]
    folder: PathBuf,
    /// Collect console output, kernel messages, logs, traces and captures in this directory
    #[arg(long, value_name = "DIR")]
    logs: Option<PathBuf>,
    /// Time limit for the command, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 1800)]
    timeout: u64,
    /// Command to run in /work; $HCAD_RANK is the number of the guest, and $HCAD_RANKS the number of guests
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

impl Node {
    /// Boots the guest, waits for the guests of the other hosts, runs the command, and stops the guest once the command
    /// has ended in all guests. If it fails in one of them, all others are terminated.
    ///
    /// # Errors
    /// The command could not be run.
    pub(super) async fn run(self) -> Result<ExitCode> {
        let mut wanted = self.wanted;
        let node = self.node.node(|name| std::env::var(name).ok())?;
        wanted.node = Some(node.clone());
        wanted.check()?;
        check_size(&self.folder, &wanted)?;
        can_start(&self.command, &self.folder)?;
        let listener = listen(&node).await?;
        let mut gathering = until_signal(Gathering::join(&node, listener)).await?;
        let start = Start { argv: self.command, folder: Some(FOLDER.into()), ..Start::default() };
        let limit = Duration::from_secs(self.timeout);
        // A name contains the rank, because hosts that share a home directory also share the directory of the logs.
        let prefix = format!("node-{}-", node.rank);
        let job = Job { wanted: &wanted, prefix: &prefix, logs: self.logs.as_deref() };
        let run = async |description: &Description| {
            in_guest(description, &self.folder, start, limit, &mut gathering).await
        };
        job.run(run).await.map(ExitCode::from)
    }
}

async fn in_guest(
    description: &Description,
    folder: &Path,
    start: Start,
    limit: Duration,
    gathering: &mut Gathering,
) -> Result<u8> {
    let [guest] = description.guests.as_slice() else { bail!("the testbed does not have exactly one guest") };
    let target = Target { testbed: description.name.clone(), guest: guest.name };
    until_signal(async {
        copy::into_guest(folder, &target, Path::new(FOLDER)).await?;
        gathering.ready().await
    })
    .await?;
    let status = tokio::select! {
        // Signals are forwarded to the command.
        status = timeout(limit, run_as_local(&target, start, None)) => {
            status.map_err(|_| anyhow!("the command did not exit within {} s; --timeout changes this limit", limit.as_secs()))??
        }
        failure = gathering.failed() => {
            tracing::error!("{failure:#}; terminating the command");
            return Ok(TERMINATED);
        }
    };
    match until_signal(gathering.end(status)).await.context("the command has ended here") {
        Ok(()) => Ok(status),
        Err(error) if status == 0 => {
            tracing::error!("{error:#}");
            Ok(TERMINATED)
        }
        Err(_) => Ok(status),
    }
}
