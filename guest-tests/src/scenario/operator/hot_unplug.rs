//! Unplugs a card during its traffic, and plugs it in again. QEMU aborts during the unplug unless it has the change
//! "vfio-user: Do not delete the subregion". The cases are then skipped.

use std::os::unix::process::ExitStatusExt as _;
use std::time::Duration;

use agent::wire::{Dmesg, ExitStatus};
use anyhow::{Context as _, Error, Result, ensure};
use tokio::time::{Instant, sleep};

use super::{MESSAGES_LIMIT, PLUG_LIMIT, PORT, SECOND, Site};
use crate::lab::Lab;
use crate::report::{Report, Skip};
use crate::scenario::stock_pair::MTHCA;
use crate::tools::{Ready, spawn, wait};
use crate::vm::LastState;

/// TCP port of the program that uses the unplugged card.
const OTHER_PORT: u16 = PORT + 1;
/// Time after which the program that uses the unplugged card exits. `ib_mthca` waits for it before it releases the card.
const TRAFFIC: &str = "20";
/// Number of packets that the card receives before it is unplugged.
const UNDER_WAY: u64 = 100;
const BEGIN: Duration = Duration::from_secs(60);
/// QEMU releases the memory of a card some time after it reports that the card is deleted.
const RELEASE: Duration = Duration::from_secs(3);
/// Message of a QEMU that lacks the change.
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
        .case("the card is unplugged during its traffic, and its peer is unaffected", &hint, unplug)
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
    Skip(
        "this QEMU aborts on device_del; the book's page 'Build QEMU for hot unplug' describes the fix"
            .into(),
    )
    .into()
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
    async fn unplug_during_traffic(&mut self) -> Result<()> {
        let bystanders = self.begin().await?;
        let server = format!("timeout {TRAFFIC} ibv_rc_pingpong -d {MTHCA} -p {OTHER_PORT} -n 10000000");
        let client = format!("timeout {TRAFFIC} ibv_rc_pingpong -d {SECOND} -p {OTHER_PORT} -n 10000000");
        let at_server = spawn(&mut self.b, &server).await?;
        Ready::Tcp(OTHER_PORT).wait(&mut self.b, at_server, &server).await?;
        let at_client = spawn(&mut self.a, &format!("{client} {}", self.server)).await?;
        let card = self.daemon.controls_of(3);
        let deadline = Instant::now() + BEGIN;
        while card.counter("/port/roce").await? < UNDER_WAY {
            ensure!(Instant::now() < deadline, "no traffic started within {BEGIN:?}");
            sleep(Duration::from_millis(100)).await;
        }
        self.a.unplug(1, PLUG_LIMIT).await?;
        sleep(RELEASE).await;
        self.a.call(Dmesg { level: None }).await?;
        let device = format!("/sys/class/infiniband/{SECOND}");
        let gone = self.a.program(PLUG_LIMIT, &format!("test ! -e {device}")).await?;
        ensure!(gone.status == ExitStatus::Code(0), "{device} still exists");
        for (vm, program) in [(&mut self.a, at_client), (&mut self.b, at_server)] {
            wait(vm, program, MESSAGES_LIMIT).await?;
        }
        self.end(Some(&bystanders)).await.context("messages between the other cards")
    }
}
