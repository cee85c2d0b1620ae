//! A pair of stock guests that exchange messages, and the disturbances that affect them.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tokio::time::{Instant, sleep};

use super::account::Account;
use super::plan::{Plan, Side, Step};
use super::talk::{Report, Talker};
use super::{LaneContext, switch_capture, take_port_down};
use crate::daemon::{Control, Daemon, HcaSpec};
use crate::lab::Guest;
use crate::process::Reading;
use crate::scenario::kernel_log;
use crate::scenario::stock_pair::{is_unanswered_sweep, load_mthca};
use crate::vm::Vm;

/// Number of messages that each end must receive to prove progress.
const PROGRESS: u64 = 8;
/// Timeout for progress while other guests may be booting.
const PROGRESS_TIMEOUT: Duration = Duration::from_secs(60);
/// How long an end may take to report the loss of its peer after the retries are exhausted.
const LOSS_MARGIN: Duration = Duration::from_secs(60);
const ASK_AGAIN: Duration = Duration::from_millis(500);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Disturbance {
    /// QEMU is killed and immediately restarted.
    KillQemu,
    /// The daemon is killed and restarted. QEMU does not reconnect to the new daemon, so it is restarted as well.
    KillDaemon,
    StopQemu,
    StopDaemon,
    ReloadDriver,
    PortDown,
    SwitchCapture,
    /// The read end of the pipe for the daemon's log is closed.
    LeaveLog,
}

impl Disturbance {
    /// Disturbances for a guest whose daemon also serves other guests.
    pub(super) const GUEST: &[Self] =
        &[Self::KillQemu, Self::StopQemu, Self::ReloadDriver, Self::PortDown, Self::SwitchCapture];
    /// Disturbances for a guest that has its own daemon.
    pub(super) const ALL: &[Self] = &[
        Self::KillQemu,
        Self::KillDaemon,
        Self::StopQemu,
        Self::StopDaemon,
        Self::ReloadDriver,
        Self::PortDown,
        Self::SwitchCapture,
        Self::LeaveLog,
    ];
}

/// How a guest is connected to its HCA.
#[derive(Debug)]
pub(super) struct Attachment {
    pub(super) name: String,
    pub(super) socket: PathBuf,
    pub(super) control: Control,
    /// The HCA and its daemon, if the daemon serves only this guest.
    pub(super) own: Option<(HcaSpec, Daemon)>,
}

impl Attachment {
    fn guest(&self) -> Guest<'_> {
        Guest { name: &self.name, hcas: vec![self.socket.clone()], ..Guest::default() }
    }

    fn daemon(&mut self) -> Result<&mut (HcaSpec, Daemon)> {
        self.own.as_mut().with_context(|| format!("guest {} has no daemon of its own", self.name))
    }
}

#[derive(Debug)]
pub(super) struct Pair<'a> {
    ground: &'a LaneContext<'a>,
    name: String,
    ends: [End; 2],
    connection: u32,
}

#[derive(Debug)]
struct End {
    seat: Attachment,
    vm: Vm,
    talker: Talker,
}

impl<'a> Pair<'a> {
    pub(super) async fn start(ground: &'a LaneContext<'a>, [a, b]: [Attachment; 2]) -> Result<Self> {
        let name = format!("guests {} and {}", a.name, b.name);
        let (a, b) = tokio::try_join!(End::start(ground, a, Side::A), End::start(ground, b, Side::B))?;
        let mut pair = Self { ground, name, ends: [a, b], connection: 0 };
        pair.connect().await?;
        pair.expect_progress().await?;
        Ok(pair)
    }

    /// Executes the plan until the time is up and every kind of disturbance has occurred.
    pub(super) async fn run_plan(&mut self, mut plan: Plan<Disturbance>, until: Instant) -> Result<()> {
        while !plan.has_drawn_all() || Instant::now() < until {
            let step = plan.draw();
            sleep(step.pause).await;
            self.expect_progress().await?;
            let name = &self.ends[step.side.index()].seat.name;
            let what = format!("{:?} at {name} for {:?}", step.kind, step.length);
            self.ground.timeline.note(&self.name, &what)?;
            self.disturb(&step).await.with_context(|| what.clone())?;
            self.expect_progress().await.with_context(|| format!("after {what}"))?;
            self.ground.timeline.count(&self.name, &format!("{:?}", step.kind))?;
        }
        Ok(())
    }

    async fn disturb(&mut self, step: &Step<Disturbance>) -> Result<()> {
        let end = &mut self.ends[step.side.index()];
        match step.kind {
            Disturbance::StopQemu => {
                end.vm.signal(libc::SIGSTOP)?;
                sleep(step.length).await;
                end.vm.signal(libc::SIGCONT)
            }
            Disturbance::StopDaemon => {
                let process = end.seat.daemon()?.1.process();
                process.signal(libc::SIGSTOP)?;
                sleep(step.length).await;
                process.signal(libc::SIGCONT)
            }
            Disturbance::PortDown => take_port_down(&end.seat.control, step.length).await,
            Disturbance::SwitchCapture => {
                switch_capture(self.ground, &end.seat.name, &end.seat.control, step.length).await
            }
            Disturbance::LeaveLog => {
                end.seat.daemon()?.1.process().read_output(Reading::Over);
                // A port change makes the daemon write a log line.
                take_port_down(&end.seat.control, Duration::ZERO).await
            }
            Disturbance::KillQemu | Disturbance::KillDaemon | Disturbance::ReloadDriver => {
                let [a, b] = &mut self.ends;
                let (victim, survivor) = if step.side == Side::A { (a, b) } else { (b, a) };
                tokio::try_join!(victim.restart_part(self.ground, step), survivor.loses_its_peer())?;
                self.connect().await
            }
        }
    }

    async fn connect(&mut self) -> Result<()> {
        self.connection += 1;
        let connection = self.connection;
        let [a, b] = &mut self.ends;
        let (at_a, at_b) = tokio::try_join!(
            a.talker.prepare(&mut a.vm, connection),
            b.talker.prepare(&mut b.vm, connection)
        )?;
        tokio::try_join!(
            a.talker.connect(&mut a.vm, &b.talker, at_b),
            b.talker.connect(&mut b.vm, &a.talker, at_a)
        )?;
        tokio::try_join!(a.talker.go(&mut a.vm), b.talker.go(&mut b.vm)).map(drop)
    }

    /// Checks that both ends receive messages without errors.
    pub(super) async fn expect_progress(&mut self) -> Result<()> {
        let [a, b] = &mut self.ends;
        tokio::try_join!(a.expect_progress(), b.expect_progress()).map(drop)
    }

    /// Checks that neither driver has reported a problem with its HCA.
    pub(super) async fn no_complaints(&mut self) -> Result<()> {
        for end in &mut self.ends {
            let lines = kernel_log::warnings(&mut end.vm).await?;
            let about = |line: &&String| line.contains("mthca") && !is_unanswered_sweep(line);
            let about: Vec<_> = lines.iter().filter(about).collect();
            ensure!(about.is_empty(), "guest {}: {about:#?}", end.seat.name);
        }
        Ok(())
    }

    /// Returns the resource usage of each of the pair's own daemons.
    pub(super) fn accounts(&mut self) -> Result<Vec<(String, Account)>> {
        let daemons = self.ends.iter_mut().filter_map(|end| end.seat.own.as_mut());
        daemons
            .map(|(spec, daemon)| Ok((format!("hcad-{}", spec.name), Account::of(daemon.process().id()?)?)))
            .collect()
    }

    /// Kills the guests, then shuts the pair's own daemons down cleanly.
    pub(super) async fn stop(self) -> Result<()> {
        for End { seat, mut vm, .. } in self.ends {
            vm.kill().await?;
            if let Some((_, daemon)) = seat.own {
                daemon.stop().await?;
            }
        }
        Ok(())
    }
}

impl End {
    async fn start(ground: &LaneContext<'_>, seat: Attachment, side: Side) -> Result<Self> {
        let (vm, talker) = boot(ground, &seat, side).await?;
        Ok(Self { seat, vm, talker })
    }

    /// Restarts the driver, the guest, or the guest together with its daemon.
    async fn restart_part(&mut self, ground: &LaneContext<'_>, step: &Step<Disturbance>) -> Result<()> {
        match step.kind {
            Disturbance::ReloadDriver => {
                self.talker.kill(&mut self.vm).await?;
                self.vm.run(&["modprobe", "-r", "ib_mthca"]).await?;
                load_mthca(&mut self.vm).await?;
                self.talker = Talker::start(&mut self.vm, ground.seed, step.side.index()).await?;
                return Ok(());
            }
            Disturbance::KillDaemon => {
                let (spec, daemon) = self.seat.daemon()?;
                daemon.process().kill().await?;
                self.vm.signal(libc::SIGKILL)?;
                *daemon = Daemon::start(&ground.lab.hcad()?, spec, ground.run).await?;
            }
            // The new guest starts without waiting for this QEMU process to exit.
            _ => self.vm.signal(libc::SIGKILL)?,
        }
        (self.vm, self.talker) = boot(ground, &self.seat, step.side).await?;
        Ok(())
    }

    async fn report(&mut self) -> Result<Report> {
        self.talker.report(&mut self.vm).await
    }

    async fn expect_progress(&mut self) -> Result<()> {
        let deadline = Instant::now() + PROGRESS_TIMEOUT;
        let before = self.report().await?;
        before.is_undisturbed().with_context(|| format!("guest {}", self.seat.name))?;
        loop {
            sleep(ASK_AGAIN).await;
            let now = self.report().await?;
            now.is_undisturbed().with_context(|| format!("guest {}", self.seat.name))?;
            if now.received >= before.received + PROGRESS {
                return Ok(());
            }
            ensure!(
                Instant::now() < deadline,
                "guest {} made no progress within {PROGRESS_TIMEOUT:?}: {now:?}",
                self.seat.name
            );
        }
    }

    async fn loses_its_peer(&mut self) -> Result<()> {
        let limit = super::RETRY_TIME + LOSS_MARGIN;
        let deadline = Instant::now() + limit;
        loop {
            let report = self.report().await?;
            let lost = report.has_detected_peer_loss();
            if lost.with_context(|| format!("guest {}", self.seat.name))? {
                return Ok(());
            }
            ensure!(
                Instant::now() < deadline,
                "guest {} did not report the loss of its peer within {limit:?}: {report:?}",
                self.seat.name
            );
            sleep(ASK_AGAIN).await;
        }
    }
}

/// Boots a guest and starts its traffic program, which is not connected yet.
async fn boot(ground: &LaneContext<'_>, seat: &Attachment, side: Side) -> Result<(Vm, Talker)> {
    let mut vm = ground.lab.boot(ground.run, ground.image, seat.guest()).await?;
    load_mthca(&mut vm).await?;
    let talker = Talker::start(&mut vm, ground.seed, side.index()).await?;
    Ok((vm, talker))
}
