//! The process in which all the others' HCAs are too, and what happens to it: it is stopped, nobody reads its log, and
//! a hostile client is on one of its HCAs.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};

use super::hostile::{self, Attack};
use super::plan::{Plan, Step};
use super::{Ground, take_port_down};
use crate::daemon::{Control, Daemon};
use crate::process::Reading;

/// Changes of a port's state, which the daemon wants to log, while nobody reads.
const CHANGES: usize = 10;
/// Until the process has noticed that a client has left.
const SETTLED: Duration = Duration::from_secs(60);

/// What can happen to the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Disturbance {
    Stop,
    /// The pipe of its log is full.
    StallLog,
    Attack(Attack),
}

impl Disturbance {
    pub(super) fn with(attacks: &[Attack]) -> Vec<Self> {
        let attacks = attacks.iter().copied().map(Self::Attack);
        [Self::Stop, Self::StallLog].into_iter().chain(attacks).collect()
    }
}

/// The daemon that also runs the HCAs of the other tests.
#[derive(Debug)]
pub(super) struct Neighbour<'a> {
    pub(super) ground: &'a Ground<'a>,
    pub(super) daemon: Daemon,
    /// The HCA of the hostile client.
    pub(super) hostile: (PathBuf, Control),
    /// An HCA for somebody who has done nothing.
    pub(super) bystander: (PathBuf, Control),
    /// What the hostile client can do on this machine.
    pub(super) attacks: Vec<Attack>,
}

impl Neighbour<'_> {
    /// Lives through the plan until it is time and everything has happened once.
    pub(super) async fn endure(&mut self, mut plan: Plan<Disturbance>, until: Instant) -> Result<()> {
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

    /// Lives through every attack once. What an allocator keeps of the largest for the next is no leak, and is to be
    /// known before anything is compared.
    pub(super) async fn warm_up(&mut self) -> Result<()> {
        for attack in &self.attacks {
            self.attack(*attack, Duration::ZERO).await.with_context(|| format!("{attack:?}"))?;
        }
        self.serves().await
    }

    /// Waits until nobody is on these two HCAs: what the process holds then is for the others.
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

    /// The attacker stays for a while; whoever comes after it is served.
    async fn attack(&self, attack: Attack, length: Duration) -> Result<()> {
        let socket = self.hostile.0.clone();
        let attacker = spawn_blocking(move || attack.begin(&socket)).await??;
        self.serves().await.context("on a device next to the attacker's")?;
        sleep(length).await;
        drop(attacker);
        let socket = self.hostile.0.clone();
        spawn_blocking(move || hostile::behave(&socket)).await?.context("on the attacker's former device")
    }

    /// It answers its operator, and does what a new client wants.
    async fn serves(&self) -> Result<()> {
        self.hostile.1.ask(&["devices"]).await?;
        let bystander = self.bystander.0.clone();
        spawn_blocking(move || hostile::behave(&bystander)).await?.context("a client that has sent nothing")
    }
}
