//! Benchmarks a single ConnectX whose QP is connected to itself. One driver thread and one device thread, each on its
//! own CPU, suffice to measure the device without a peer and without a fabric.

use std::time::Duration;

use agent::serve::Agent;
use agent::wire::{CloseMlx5, DeviceSelector, OpenMlx5, PingByWrite, StreamWrites};
use anyhow::{Context as _, Result};
use rustix::thread::CpuSet;
use serde_json::{Value, json};

use crate::Cli;
use crate::daemon::Daemon;
use crate::doorbells::Doorbells;
use crate::processors;
use crate::report::{Figure, Figures};
use crate::runs::{micros, rate, repeated, runs, size};
use crate::yardstick::{PINGS, Yardstick};

/// Number of messages in a rate run, and maximum number of messages in a bandwidth run.
const MESSAGES: u32 = 200_000;
/// Number of bytes in a bandwidth run.
const RUN_BYTES: u32 = 1 << 30;
/// Number of messages per doorbell.
const BATCH: u32 = 32;
/// Length of a message in the rate and latency measurements.
const SMALL: u32 = 64;
const SIZES: [u32; 2] = [4 << 10, 1 << 20];

/// Returns the common prefix of the figure names.
fn prefix(doorbells: Doorbells) -> String {
    format!("loopback_{}", doorbells.infix())
}

pub(crate) fn measure(cli: &Cli, yardstick: &Yardstick, figures: &mut Figures) -> Result<()> {
    for doorbells in Doorbells::ALL {
        let prefix = prefix(doorbells);
        let names = [
            format!("{prefix}rc_write_64b_rate"),
            format!("{prefix}rc_write_64b_latency"),
            format!("{prefix}rc_write_4k_bw"),
            format!("{prefix}rc_write_1m_bw"),
        ];
        if names.iter().any(|name| cli.wants(name)) {
            let [driver, device] = processors::two()?;
            processors::bound(&driver, || measure_with(cli, doorbells, &device, yardstick, figures))??;
        }
    }
    Ok(())
}

fn measure_with(
    cli: &Cli,
    doorbells: Doorbells,
    processor: &CpuSet,
    yardstick: &Yardstick,
    figures: &mut Figures,
) -> Result<()> {
    let prefix = prefix(doorbells);
    let folder = tempfile::tempdir().context("cannot create a directory for sockets")?;
    let socket = folder.path().join("hcad.sock");
    let device: Value = json!({
        "id": 1,
        "socket_path": socket,
        "frontend": { "connectx": { "port": "infiniband" } },
        "fabric": { "local": {} },
        "doorbells": doorbells.key(),
    });
    let _daemon = Daemon::start(folder.path(), "hcad", &[device], cli.metrics, Some(processor))?;
    let mut agent = Agent::default();
    let socket = socket.display().to_string();
    agent.call(OpenMlx5 { device: DeviceSelector::Socket(socket), data_mib: 4, ..OpenMlx5::default() })?;

    let mut stream = |len: u32, count: u32| -> Result<u64> {
        Ok(agent.call(StreamWrites { len, count, batch: BATCH })?.elapsed_ns)
    };
    let name = format!("{prefix}rc_write_64b_rate");
    if cli.wants(&name) {
        let rates = runs(cli.runs, || Ok(rate(MESSAGES.into(), stream(SMALL, MESSAGES)?)))?;
        figures.add(Figure::new(name, "1/s", &rates, &yardstick.rate));
    }
    for len in SIZES {
        let name = format!("{prefix}rc_write_{}_bw", size(len.into()));
        if cli.wants(&name) {
            let count = (RUN_BYTES / len).min(MESSAGES);
            let bytes = u64::from(count) * u64::from(len);
            let widths = runs(cli.runs, || Ok(rate(bytes, stream(len, count)?) / 1e6))?;
            figures.add(Figure::new(name, "MB/s", &widths, &yardstick.bandwidth));
        }
    }
    let name = format!("{prefix}rc_write_64b_latency");
    if cli.wants(&name) {
        let one_way = repeated(cli.runs, || {
            let times = agent.call(PingByWrite { len: SMALL, rounds: PINGS })?;
            Ok([times.median_ns, times.p99_ns].map(|nanos| micros(Duration::from_nanos(nanos))))
        })?;
        for ((name, runs), reference) in
            [name.clone(), format!("{name}_p99")].into_iter().zip(&one_way).zip(&yardstick.latency)
        {
            figures.add(Figure::new(name, "us", runs, reference));
        }
    }
    agent.call(CloseMlx5::default())?;
    Ok(())
}
