//! `node` boots one guest of a testbed that spans several hosts, and runs a command in this guest.

use std::process::ExitCode;

use agent::wire::exec::Start;
use anyhow::{Context as _, Result, bail};

use super::exec::run_as_local;
use super::gathering::{Gathering, listen};
use super::job::Job;
use super::task::{TaskOptions, start};
use super::until_signal;
use crate::testbed::UpOptions;
use crate::testbed::name::Target;
use crate::testbed::node::NodeArgs;
use crate::testbed::protocol::Description;

/// Exit status if another guest has failed but this guest's command has not. A program killed by SIGTERM has the same
/// exit status.
const TERMINATED: u8 = 128 + 15;

/// Arguments of [`super::Command::Node`].
#[derive(Clone, Debug, clap::Args)]
pub struct Node {
    #[command(flatten)]
    wanted: UpOptions,
    #[command(flatten)]
    node: NodeArgs,
    #[command(flatten)]
    task: TaskOptions,
    /// Command to run in /work; $HCAD_RANK is the number of the guest, and $HCAD_RANKS the number of guests
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

impl Node {
    /// Boots the guest, waits for the guests on the other hosts, runs the command, and stops the guest once the command
    /// has ended in all guests. If the command fails in one guest, it is terminated in all others.
    ///
    /// # Errors
    /// Fails if the command could not be run.
    pub(super) async fn run(self) -> Result<ExitCode> {
        let mut wanted = self.wanted;
        let node = self.node.node(|name| std::env::var(name).ok())?;
        wanted.node = Some(node.clone());
        wanted.check()?;
        self.task.check(&wanted, &self.command)?;
        let listener = listen(&node).await?;
        let mut gathering = until_signal(Gathering::join(&node, listener)).await?;
        let (task, start) = (self.task, start(self.command));
        // The name includes the rank because hosts that share a home directory also share the log directory.
        let prefix = format!("node-{}-", node.rank);
        let job = Job { wanted: &wanted, prefix: &prefix, logs: task.logs.as_deref() };
        let run = async |description: &Description| in_guest(description, &task, start, &mut gathering).await;
        job.run(run).await.map(ExitCode::from)
    }
}

async fn in_guest(
    description: &Description,
    task: &TaskOptions,
    start: Start,
    gathering: &mut Gathering,
) -> Result<u8> {
    let [guest] = description.guests.as_slice() else { bail!("the testbed does not have exactly one guest") };
    let target = Target { testbed: description.name.clone(), guest: guest.name };
    until_signal(async {
        task.copy_to(&target).await?;
        gathering.ready().await
    })
    .await?;
    let status = tokio::select! {
        // Signals are forwarded to the command.
        status = task.limit(run_as_local(&target, start, None)) => status?,
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
