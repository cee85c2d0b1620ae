//! Checks that the driver's selftest passes and that `ethtool`'s loopback works (E810 interface, sections 3.3, 5.3 and
//! 5.6).

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::package::Package;
use super::probe::Probe;
use crate::lab::Lab;
use crate::line_program::LineProgram;
use crate::report::Report;
use crate::scenario::nic::filter::{EVERYBODY, FRAMES, LIMIT};

/// Tests that must pass every time.
const ALWAYS: [&str; 3] = ["Register test", "EEPROM test", "Link test"];
/// Tests with a time limit of one or two milliseconds, which a busy host may exceed.
const TIMED: [&str; 2] = ["Interrupt test", "Loopback test"];
/// Maximum number of selftest runs. Each timed test must pass in at least one of them.
const ATTEMPTS: u32 = 30;
/// Timeout for all attempts together.
const ATTEMPTS_TIMEOUT: Duration = Duration::from_secs(300);

pub(in super::super) async fn run(lab: &Lab, report: &mut Report) -> Result<()> {
    let run = lab.new_run("e810-selftest")?;
    let hint = format!("console output, logs and command lines: {}", run.path().display());
    let mut probe = Probe::start(lab, &run, Vec::new()).await.context(hint.clone())?;
    report.case("the driver binds", &hint, probe.binds(Package::Synthetic)).await?;
    report.case("ethtool -t online", &hint, online(&mut probe)).await?;
    report.case_within(ATTEMPTS_TIMEOUT, "ethtool -t offline", &hint, offline(&mut probe)).await?;
    report.case("ethtool -K loopback on, then off", &hint, loopback(&mut probe)).await?;
    report.case("no kernel warnings", &hint, probe.no_warnings(Package::Synthetic)).await?;
    report.case("the daemon exits cleanly on SIGTERM", &hint, probe.stop()).await
}

async fn online(probe: &mut Probe) -> Result<()> {
    let failed = failures(probe, "online").await?;
    ensure!(failed.is_empty(), "not passed: {failed:?}");
    probe.talk().await
}

async fn offline(probe: &mut Probe) -> Result<()> {
    let mut left = TIMED.to_vec();
    let mut failed = BTreeMap::new();
    for _ in 0..ATTEMPTS {
        failed = failures(probe, "offline").await?;
        ensure!(!ALWAYS.iter().any(|name| failed.contains_key(*name)), "not passed: {failed:?}");
        left.retain(|name| failed.contains_key(*name));
        if left.is_empty() {
            // The offline selftest takes the interface down and brings it back up.
            probe.carrier(true).await?;
            return probe.talk().await;
        }
    }
    anyhow::bail!("{left:?} did not pass in {ATTEMPTS} attempts; in the last: {failed:?}")
}

/// Runs a selftest and returns the tests that failed, with the driver's messages.
async fn failures(probe: &mut Probe, kind: &str) -> Result<BTreeMap<String, String>> {
    // Ignore the exit status: the output contains the result of each test.
    let text = probe.sh(&format!("ethtool -t {} {kind}; true", probe.device)).await?;
    let results: BTreeMap<String, String> = text
        .lines()
        .filter_map(|line| {
            let (name, result) = line.split_once('(')?;
            Some((name.trim().to_owned(), result.split_whitespace().last()?.to_owned()))
        })
        .collect();
    for name in ALWAYS.iter().chain(&TIMED) {
        ensure!(results.contains_key(*name), "{name} is missing in {text}");
    }
    Ok(results.into_iter().filter(|(_, result)| result != "0").collect())
}

/// Checks that loopback returns frames to the interface that sent them, and that the other interface receives none.
async fn loopback(probe: &mut Probe) -> Result<()> {
    let device = probe.device.clone();
    set_loopback(probe, "on").await?;
    let program = LineProgram::start(&mut probe.vm, FRAMES).await?;
    program.ask::<()>(LIMIT, &mut probe.vm, "open", json!({ "device": device })).await?;
    let sent = [1, 2, 3].map(|mark| (EVERYBODY, mark));
    program.ask::<()>(LIMIT, &mut probe.vm, "send", json!({ "frames": sent })).await?;
    let until = json!({ "until": 3, "seconds": LIMIT.as_secs() });
    let marks = program.ask::<Vec<u32>>(LIMIT * 2, &mut probe.vm, "marks", until).await?;
    program.close(LIMIT, &mut probe.vm).await?;
    ensure!(marks == [1, 2], "frames {marks:?} and 3 of {sent:?} were looped back");
    let cut_off = probe.talk().await;
    ensure!(cut_off.is_err(), "the other interface replied although loopback is enabled");
    set_loopback(probe, "off").await?;
    probe.talk().await
}

async fn set_loopback(probe: &mut Probe, to: &str) -> Result<()> {
    let device = probe.device.clone();
    let text = probe.sh(&format!("ethtool -K {device} loopback {to} && ethtool -k {device}")).await?;
    ensure!(text.contains(&format!("loopback: {to}")), "{text}");
    probe.carrier(true).await
}
