//! rdma-core's ping-pong programs between two guests, each with an E810 that `ice` and `irdma` drive: by every kind of
//! GID, with and without events, over path MTUs up to the largest. Each message is checked by the program itself.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::station::{Station, load};
use crate::daemon::{HcaSpec, Interface};
use crate::lab::Lab;
use crate::report::Report;
use crate::tools::{Exchange, Ready, await_text};

/// What programs of verbs need besides the driver.
const MODULES: &[&str] = &["irdma", "ib_uverbs", "rdma_ucm"];
/// Name that the kernel gives the first device of this driver.
const DEVICE: &str = "irdma0";
/// From the driver's start until its port is active.
const PORT_TIMEOUT: Duration = Duration::from_secs(30);
/// Frames that a path MTU of 4096 fits in.
const JUMBO: u32 = 9000;
/// Where all programs wait for their client.
const PORT: u16 = 18515;
const LIMIT: Duration = Duration::from_secs(120);

/// What a GID stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gid {
    /// The IPv4 address.
    V4,
    /// The IPv6 address that was given.
    V6,
    /// The link-local address of the MAC.
    LinkLocal,
}

/// Program and arguments, beside the device's, the GID's and the check of the content; first with Ethernet's usual MTU.
const CASES: &[(&str, Gid)] = &[
    ("ibv_rc_pingpong", Gid::V4),
    ("ibv_rc_pingpong -e", Gid::V4),
    ("ibv_rc_pingpong", Gid::V6),
    ("ibv_rc_pingpong", Gid::LinkLocal),
    ("ibv_rc_pingpong -s 1 -n 2000", Gid::V4),
    ("ibv_rc_pingpong -s 1 -n 2000 -e", Gid::V6),
    ("ibv_rc_pingpong -s 4096 -m 256", Gid::V4),
    ("ibv_rc_pingpong -s 4096 -m 512", Gid::V6),
    ("ibv_rc_pingpong -s 65537 -m 1024 -n 200", Gid::V4),
    ("ibv_rc_pingpong -s 3145728 -m 1024 -n 20", Gid::V4),
    ("ibv_rc_pingpong -r 1 -n 2000", Gid::V4),
    ("ibv_ud_pingpong -s 1024", Gid::V4),
    ("ibv_ud_pingpong -s 1024 -e", Gid::V4),
    ("ibv_ud_pingpong -s 1024", Gid::V6),
    ("ibv_ud_pingpong -s 1 -n 2000", Gid::LinkLocal),
];

/// The same with frames of 9000 bytes.
const JUMBO_CASES: &[(&str, Gid)] = &[
    ("ibv_rc_pingpong -s 4096 -m 4096", Gid::V4),
    ("ibv_rc_pingpong -s 4097 -m 4096 -e", Gid::V6),
    ("ibv_rc_pingpong -s 65536 -m 2048 -n 200", Gid::LinkLocal),
    ("ibv_rc_pingpong -s 3145728 -m 4096 -n 50", Gid::V4),
    ("ibv_rc_pingpong -s 3145728 -m 4096 -n 20 -e", Gid::V6),
    ("ibv_ud_pingpong -s 4096", Gid::V4),
    ("ibv_ud_pingpong -s 4096 -e", Gid::V6),
];

pub(in super::super) async fn run(lab: &Lab, report: &mut Report) -> Result<()> {
    let run = lab.new_run("e810-pingpong")?;
    let hint = format!("consoles, logs, captures and command lines: {}", run.path().display());
    let image = lab.debian_image(&run).await?;
    let [mut a, mut b] = HcaSpec::pair()?;
    for spec in [&mut a, &mut b] {
        spec.interface = Interface::E810;
        spec.options = json!({ "rdma": true });
        spec.capture = false;
        spec.trace = lab.trace();
    }
    let (mut a, mut b) = tokio::try_join!(
        Station::with_e810(lab, &run, &image, &a),
        Station::with_e810(lab, &run, &image, &b),
    )
    .context(hint.clone())?;
    let start = async {
        start(&mut a).await?;
        start(&mut b).await
    };
    report.case("both ports are active", &hint, start).await?;
    cases(report, &hint, (&mut a, &mut b), CASES).await?;
    for station in [&mut a, &mut b] {
        let device = station.device.clone();
        station.sh(&format!("ip link set {device} mtu {JUMBO}")).await?;
    }
    cases(report, &hint, (&mut a, &mut b), JUMBO_CASES).await?;
    let ends = async {
        a.no_warnings().await?;
        b.no_warnings().await
    };
    report.case("no kernel warned of anything", &hint, ends).await?;
    let ends = async {
        a.stop().await?;
        b.stop().await
    };
    report.case("the daemons end with success on SIGTERM", &hint, ends).await
}

async fn cases(
    report: &mut Report,
    hint: &str,
    (a, b): (&mut Station, &mut Station),
    cases: &[(&str, Gid)],
) -> Result<()> {
    for &(command, gid) in cases {
        report.case(&format!("{command}, {gid:?}"), hint, ping_pong(a, b, command, gid)).await?;
    }
    Ok(())
}

/// Loads `irdma` and waits until its port is active.
async fn start(station: &mut Station) -> Result<()> {
    load(&mut station.vm, MODULES).await?;
    let path = format!("/sys/class/infiniband/{DEVICE}/ports/1/state");
    await_text(&mut station.vm, &[&path], &["4: ACTIVE"], PORT_TIMEOUT).await
}

/// Runs a program on both sides.
async fn ping_pong(a: &mut Station, b: &mut Station, command: &str, gid: Gid) -> Result<()> {
    let line = |index: usize| format!("{command} -c -d {DEVICE} -g {index}");
    let (of_a, of_b) = (gid_index(a, gid).await?, gid_index(b, gid).await?);
    let client = format!("{} {}", line(of_a), b.address(0).ipv4);
    let exchange = Exchange { server: line(of_b), client, ready: Ready::Tcp(PORT), limit: LIMIT };
    let ends = exchange.run(&mut b.vm, &mut a.vm).await?;
    for end in [&ends.client, &ends.server] {
        // What it finds wrong it prints, and ends with success all the same.
        ensure!(!end.stdout.contains("invalid data"), "{}", end.stdout);
        ensure!(end.stdout.contains(" iters in "), "no result: {}{}", end.stdout, end.stderr);
    }
    Ok(())
}

/// Index of a GID of this kind.
async fn gid_index(station: &mut Station, kind: Gid) -> Result<usize> {
    let gids = station
        .sh(&format!(
            "cd /sys/class/infiniband/{DEVICE}/ports/1/gids && for i in $(seq 0 31); do cat $i; done"
        ))
        .await?;
    let prefix = match kind {
        Gid::V4 => "0000:0000:0000:0000:0000:ffff:",
        Gid::V6 => "fd81:",
        Gid::LinkLocal => "fe80:",
    };
    gids.lines().position(|gid| gid.starts_with(prefix)).with_context(|| format!("no {kind:?} GID in {gids}"))
}
