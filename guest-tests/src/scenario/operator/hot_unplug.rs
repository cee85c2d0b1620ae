//! Unplugs a card while it carries traffic, then plugs it in again. A QEMU without the change "vfio-user: Do not delete
//! the subregion" aborts during the unplug. In that case, the unplug and replug cases are skipped.

use std::os::unix::process::ExitStatusExt as _;
use std::time::Duration;

use agent::wire::{Dmesg, ExitStatus};
use anyhow::{Context as _, Error, Result, ensure};
use tokio::time::{Instant, sleep};

use super::{MESSAGES_LIMIT, PLUG_LIMIT, PORT, RunningProgram, SECOND, Site};
use crate::lab::Lab;
use crate::report::{Report, Skip};
use crate::scenario::stock_pair::MTHCA;
use crate::tools::{Ready, spawn, stop, wait};
use crate::vm::LastState;

/// TCP port of the program that uses the unplugged card.
const OTHER_PORT: u16 = PORT + 1;
/// Path of a device's counter of received RoCE packets.
const RECEIVED: &str = "/port/roce";
/// Number of packets that a device must receive to prove progress.
const UNDER_WAY: u64 = 100;
const PROGRESS: Duration = Duration::from_secs(60);
/// How long QEMU may take to release a card's memory after it reports the card's deletion.
const RELEASE: Duration = Duration::from_secs(3);
/// Message printed by a QEMU that lacks the change.
const ASSERTION: &str = "subregion->container == mr";

pub(in crate::scenario) async fn run(lab: &Lab, report: &mut Report) -> Result<()> {
    let run = lab.new_run("hot-unplug")?;
    let hint = format!("console output, logs and command lines: {}", run.path().display());
    let mut site = Site::start(lab, run).await.with_context(|| hint.clone())?;
    report.case("both guests have an active port", &hint, site.load()).await?;
    report.case("a device is added", &hint, site.add()).await?;
    report.case("its card is hot-plugged", &hint, site.plug()).await?;
    let mut aborts = false;
    let unplug = async {
        let result = site.unplug_during_traffic().await;
        if result.as_ref().is_err_and(has_aborted) {
            aborts = true;
            return Err(skip());
        }
        result
    };
    report
        .case("the card is unplugged while it carries traffic, and its peer is unaffected", &hint, unplug)
        .await?;
    let again = async {
        if aborts {
            return Err(skip());
        }
        site.plug().await?;
        site.talk(SECOND).await
    };
    report.case("the card is plugged in again, and communicates", &hint, again).await?;
    report.case("the daemon exits cleanly on SIGTERM", &hint, site.stop()).await
}

fn skip() -> Error {
    Skip("this QEMU aborts on device_del; the book's page 'Hot unplug' describes the fix".into()).into()
}

/// Returns whether QEMU has aborted because it lacks the change.
fn has_aborted(error: &Error) -> bool {
    let state = error.downcast_ref::<LastState>();
    state.is_some_and(|state| {
        state.exited.is_some_and(|status| status.signal() == Some(libc::SIGABRT))
            && state.log.contains(ASSERTION)
    })
}

impl Site {
    /// Unplugs the second card of guest `a` while both of the guest's cards communicate with guest `b`.
    async fn unplug_during_traffic(&mut self) -> Result<()> {
        let bystanders = self.start_traffic("", MTHCA, PORT).await?;
        // `ib_mthca` releases a card only after the programs that use it have exited.
        let users = self.start_traffic("timeout 20 ", SECOND, OTHER_PORT).await?;
        self.await_packets(3).await?;
        self.a.unplug(1, PLUG_LIMIT).await?;
        sleep(RELEASE).await;
        self.a.call(Dmesg { level: None }).await?;
        let device = format!("/sys/class/infiniband/{SECOND}");
        let gone = self.a.program(PLUG_LIMIT, &format!("test ! -e {device}")).await?;
        ensure!(gone.status == ExitStatus::Code(0), "{device} still exists");
        wait(&mut self.a, users.client, MESSAGES_LIMIT).await?;
        wait(&mut self.b, users.server, MESSAGES_LIMIT).await?;
        self.await_packets(1).await.context("the other card of guest a")?;
        for (vm, program) in [(&mut self.a, bystanders.client), (&mut self.b, bystanders.server)] {
            let end = stop(vm, program).await?;
            let is_intact =
                end.status == ExitStatus::Signal(libc::SIGKILL) && !end.stdout.contains("invalid data");
            ensure!(is_intact, "{}{}", end.stdout, end.stderr);
        }
        Ok(())
    }

    /// Starts an endless exchange of verified messages between a card of guest `a` and guest `b`. `prefix` is prepended
    /// to the commands.
    async fn start_traffic(&mut self, prefix: &str, card: &str, port: u16) -> Result<RunningProgram> {
        let command = |card| format!("{prefix}ibv_rc_pingpong -c -d {card} -p {port} -n 1000000000");
        let line = command(MTHCA);
        let server = spawn(&mut self.b, &line).await?;
        Ready::Tcp(port).wait(&mut self.b, server, &line).await?;
        let client = spawn(&mut self.a, &format!("{} {}", command(card), self.server)).await?;
        Ok(RunningProgram { server, client })
    }

    /// Waits until a device has received [`UNDER_WAY`] more packets.
    async fn await_packets(&self, device: u16) -> Result<()> {
        let control = self.daemon.controls_of(device);
        let before = control.counter(RECEIVED).await?;
        let deadline = Instant::now() + PROGRESS;
        while control.counter(RECEIVED).await? < before + UNDER_WAY {
            ensure!(Instant::now() < deadline, "no traffic within {PROGRESS:?}");
            sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    }
}
