//! The daemon that serves all HCAs except c and d. Disturbances stop it, leave its log unread, or have a hostile client
//! use one of its HCAs.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};

use super::hostile::{self, Attack};
use super::plan::{Plan, Step};
use super::{LaneContext, take_port_down};
use crate::daemon::{Control, Daemon};
use crate::process::Reading;

/// Number of times that a port goes down and up while the daemon's log is not read.
const CHANGES: usize = 10;
/// How long the daemon may take to detect that a client has disconnected.
const SETTLED: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Disturbance {
    Stop,
    /// The pipe that the daemon logs to is full.
    StallLog,
    Attack(Attack),
}

impl Disturbance {
    pub(super) fn with(attacks: &[Attack]) -> Vec<Self> {
        let attacks = attacks.iter().copied().map(Self::Attack);
        [Self::Stop, Self::StallLog].into_iter().chain(attacks).collect()
    }
}

#[derive(Debug)]
pub(super) struct Neighbour<'a> {
    pub(super) ground: &'a LaneContext<'a>,
    pub(super) daemon: Daemon,
    /// The HCA used by the hostile client.
    pub(super) hostile: (PathBuf, Control),
    /// The HCA used by an uninvolved, well-behaved client.
    pub(super) bystander: (PathBuf, Control),
    /// The attacks that this machine can run.
    pub(super) attacks: Vec<Attack>,
}

impl Neighbour<'_> {
    /// Executes the plan until the time is up and every kind of disturbance has occurred.
    pub(super) async fn run_plan(&mut self, mut plan: Plan<Disturbance>, until: Instant) -> Result<()> {
        while !plan.has_drawn_all() || Instant::now() < until {
            let step = plan.draw();
            sleep(step.pause).await;
            let what = format!("{:?} for {:?}", step.kind, step.length);
            self.ground.timeline.note("process", &what)?;
            self.disturb(&step).await.with_context(|| what.clone())?;
            self.serves().await.with_context(|| format!("after {what}"))?;
            self.ground.timeline.count("process", &format!("{:?}", step.kind))?;
        }
        Ok(())
    }

    /// Runs each attack once before the daemon's memory use is first measured. Memory that the allocator retains then
    /// does not count as a leak.
    pub(super) async fn warm_up(&mut self) -> Result<()> {
        for attack in &self.attacks {
            self.attack(*attack, Duration::ZERO).await.with_context(|| format!("{attack:?}"))?;
        }
        self.serves().await
    }

    /// Waits until the HCAs of the hostile client and the bystander have no client. All remaining resources then belong
    /// to the other HCAs.
    pub(super) async fn settle(&self) -> Result<()> {
        let deadline = Instant::now() + SETTLED;
        for (socket, control) in [&self.hostile, &self.bystander] {
            while control.ask(&["devices"]).await?.pointer("/0/connected") != Some(&Value::Bool(false)) {
                ensure!(
                    Instant::now() < deadline,
                    "the client of {} was not removed within {SETTLED:?}",
                    socket.display()
                );
            }
        }
        Ok(())
    }

    async fn disturb(&mut self, step: &Step<Disturbance>) -> Result<()> {
        match step.kind {
            Disturbance::Stop => {
                self.daemon.process().signal(libc::SIGSTOP)?;
                sleep(step.length).await;
                self.daemon.process().signal(libc::SIGCONT)
            }
            Disturbance::StallLog => {
                self.daemon.process().read_output(Reading::Stalled);
                for _ in 0..CHANGES {
                    take_port_down(&self.hostile.1, Duration::ZERO).await?;
                }
                self.serves().await.context("while its log is not read")?;
                sleep(step.length).await;
                self.daemon.process().read_output(Reading::On);
                Ok(())
            }
            Disturbance::Attack(attack) => self.attack(attack, step.length).await,
        }
    }

    /// Runs an attack and holds its resources for the given time. Afterwards, the attacked HCA must serve the next
    /// client.
    async fn attack(&self, attack: Attack, length: Duration) -> Result<()> {
        let socket = self.hostile.0.clone();
        let attacker = spawn_blocking(move || attack.begin(&socket)).await??;
        self.serves().await.context("during the attack")?;
        sleep(length).await;
        drop(attacker);
        let socket = self.hostile.0.clone();
        spawn_blocking(move || hostile::behave(&socket)).await?.context("after the attack")
    }

    /// Checks that the daemon answers control requests and serves the bystander.
    async fn serves(&self) -> Result<()> {
        self.hostile.1.ask(&["devices"]).await?;
        let bystander = self.bystander.0.clone();
        spawn_blocking(move || hostile::behave(&bystander)).await?.context("the bystander")
    }
}
