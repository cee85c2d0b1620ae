//! Records devices while stock drivers use them. `hcad replay` must then reproduce each session bit for bit, without a
//! guest, QEMU or a network.

mod pair;
mod sessions;
mod storm;
mod verdict;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tokio::time::Instant;

use self::pair::{Drawn, Pair};
use self::verdict::Files;
use crate::daemon::Interface;
use crate::lab::Lab;
use crate::report::{Report, line};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    /// One session with each driver, including its trace.
    Core,
    /// One minute of random programs on each of [`PAIRS`] guest pairs.
    Random,
    /// New recordings of the sessions replayed by the `device` crate's tests.
    Kept,
}

/// Number of guest pairs. They are recorded one after another.
const PAIRS: u64 = 5;
/// Time during which new programs are started on a pair.
const MINUTE: Duration = Duration::from_secs(60);
/// Additional time for the last program, setup and teardown.
const MARGIN: Duration = Duration::from_secs(240);

const ONE_PERCENT: &str = "0.01";

/// Program that checks that a pair still works.
const FINAL_PROGRAM: &str = "ibv_rc_pingpong -n 100";

const INTERFACES: [Interface; 2] = [Interface::Mthca, Interface::E810];

pub(super) async fn run(lab: &Lab, report: &mut Report, extent: Extent) -> Result<()> {
    match extent {
        Extent::Core => {
            for interface in INTERFACES {
                core(lab, report, interface).await?;
            }
            Ok(())
        }
        Extent::Random => random(lab, report).await,
        Extent::Kept => sessions::run(lab, report).await,
    }
}

/// Records a pair of devices through traffic, loss, errors, a link flap and a driver reload, then replays both
/// recordings.
async fn core(lab: &Lab, report: &mut Report, interface: Interface) -> Result<()> {
    let run = lab.new_run("replay")?;
    let hint = format!("console output, logs, traces and records: {}", run.path().display());
    let mut pair = Pair::start(lab, run, interface, true).await.with_context(|| hint.clone())?;
    let name = |what: &str| format!("{}: {what}", interface.name());
    report
        .case(
            &name("a link that drops, duplicates and delays frames"),
            &hint,
            pair.make_wire_bad(ONE_PERCENT, 1),
        )
        .await?;
    for program in pair.programs() {
        report.case(&name(program), &hint, pair.run(program)).await?;
    }
    report.case(&name("errors of all kinds"), &hint, storm::run(&mut pair, storm::ROUNDS)).await?;
    report.case(&name("the impairments are removed"), &hint, pair.make_wire_good()).await?;
    report.case(&name("the link goes down and up"), &hint, pair.toggle_link()).await?;
    report.case(&name("a driver is reloaded"), &hint, pair.reload()).await?;
    report.case(&name("both devices still work"), &hint, pair.run(FINAL_PROGRAM)).await?;
    let files = pair.files();
    report.case(&name("the daemons exit cleanly on SIGTERM"), &hint, pair.stop()).await?;
    for (side, files) in ["a", "b"].iter().zip(&files) {
        let name = name(&format!("the session record of {side} is replayed, with an equal trace"));
        report.case(&name, &hint, same(lab, files, true)).await?;
    }
    Ok(())
}

/// Runs random programs under loss on each pair and replays the recordings of all devices.
async fn random(lab: &Lab, report: &mut Report) -> Result<()> {
    let seed = match lab.chance().seed {
        Some(seed) => seed,
        // A short seed is easy to type.
        None => SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs() % 1_000_000,
    };
    line(&format!("      seed {seed}; repeat with: guest-lab run replay-random --seed {seed}"))?;
    for (session, interface) in (0..PAIRS).zip(INTERFACES.into_iter().cycle()) {
        // Keep the recordings until the next run, so that they can be replayed elsewhere.
        let run = lab.new_run(&format!("replay-random-{session}"))?;
        let hint = format!("seed {seed}; consoles, logs and records: {}", run.path().display());
        let mut dice = ChaCha8Rng::seed_from_u64(seed);
        dice.set_stream(session);
        let mut pair = Pair::start(lab, run, interface, false).await.with_context(|| hint.clone())?;
        let name = format!("session {session} of {}: one minute under loss", interface.name());
        report.case_within(MINUTE + MARGIN, &name, &hint, minute(&mut pair, &mut dice)).await?;
        let files = pair.files();
        let name = format!("session {session}: the daemons exit cleanly on SIGTERM");
        report.case(&name, &hint, pair.stop()).await?;
        for (side, files) in ["a", "b"].iter().zip(&files) {
            let name = format!("session {session}: the record of {side} is replayed");
            report.case(&name, &hint, same(lab, files, false)).await?;
        }
    }
    Ok(())
}

async fn minute(pair: &mut Pair, dice: &mut ChaCha8Rng) -> Result<()> {
    pair.make_wire_bad(ONE_PERCENT, dice.random()).await?;
    let end = Instant::now() + MINUTE;
    let mut programs = 0_u32;
    while Instant::now() < end {
        match Drawn::draw(dice, pair) {
            Drawn::Program(program) => {
                pair.run(&program)
                    .await
                    .with_context(|| format!("{program}, after {programs} other programs"))?;
            }
            Drawn::Storm => storm::run(pair, 1).await?,
        }
        programs += 1;
    }
    line(&format!("      {programs} programs"))
}

/// Replays a recording and compares the traces if `traced` is set.
async fn same(lab: &Lab, files: &Files, traced: bool) -> Result<()> {
    line(&format!("      {}", files.replay(&lab.hcad()?).await?))?;
    if traced {
        let lines = files.compare_traces()?;
        line(&format!("      {lines} trace lines are equal except for timestamps"))?;
    }
    Ok(())
}
