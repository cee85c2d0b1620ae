//! Runs rdma-core's ping-pong programs between two guests, each with an E810 driven by `ice` and `irdma`. The programs
//! run with every kind of GID, with and without events, and with all path MTUs, and check every message.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::lab::Lab;
use crate::report::Report;
use crate::scenario::extent::Extent;
use crate::scenario::nic::roce::{self, DEVICE, Gid, gid_index};
use crate::scenario::nic::station::Station;
use crate::tools::{Exchange, Ready};

/// TCP port of the ping-pong servers.
const PORT: u16 = 18515;
const LIMIT: Duration = Duration::from_secs(120);

/// Command lines to run with the default Ethernet MTU. The options for the device, the GID and the content check are
/// added later.
const CASES: &[(&str, Gid)] = &[
    ("ibv_rc_pingpong -e", Gid::V4),
    ("ibv_rc_pingpong", Gid::V6),
    ("ibv_rc_pingpong", Gid::LinkLocal),
    ("ibv_rc_pingpong -s 1 -n 2000 -e", Gid::V6),
    ("ibv_rc_pingpong -s 4096 -m 256 -n 200", Gid::V4),
    ("ibv_rc_pingpong -s 65537 -m 1024 -n 50", Gid::V4),
    ("ibv_rc_pingpong -r 1 -n 2000", Gid::V4),
    ("ibv_ud_pingpong -s 1024 -e", Gid::V4),
    ("ibv_ud_pingpong -s 1024", Gid::V6),
    ("ibv_ud_pingpong -s 1 -n 2000", Gid::LinkLocal),
];

/// More command lines to run with the default MTU.
const MORE_CASES: &[(&str, Gid)] = &[
    ("ibv_rc_pingpong", Gid::V4),
    ("ibv_rc_pingpong -s 1 -n 2000", Gid::V4),
    ("ibv_rc_pingpong -s 4096 -m 512", Gid::V6),
    ("ibv_ud_pingpong -s 1024", Gid::V4),
];

/// Command lines to run with a 9000-byte MTU.
const JUMBO_CASES: &[(&str, Gid)] = &[
    ("ibv_rc_pingpong -s 4096 -m 4096", Gid::V4),
    ("ibv_rc_pingpong -s 4097 -m 4096 -e", Gid::V6),
    ("ibv_rc_pingpong -s 65536 -m 2048 -n 50", Gid::LinkLocal),
    ("ibv_ud_pingpong -s 4096", Gid::V4),
    ("ibv_ud_pingpong -s 4096 -e", Gid::V6),
];

/// Command lines that transfer too much data to be captured.
const LARGE_CASES: &[(&str, Gid)] = &[("ibv_rc_pingpong -s 3145728 -m 4096 -n 4 -e", Gid::V6)];

/// More command lines that transfer too much data to be captured, with other path MTUs and more messages.
const MORE_LARGE_CASES: &[(&str, Gid)] = &[
    ("ibv_rc_pingpong -s 3145728 -m 1024 -n 20", Gid::V4),
    ("ibv_rc_pingpong -s 3145728 -m 4096 -n 50", Gid::V4),
];

pub(in super::super) async fn run(lab: &Lab, report: &mut Report, extent: Extent) -> Result<()> {
    let run = lab.new_run(extent.select("e810-pingpong", "e810-pingpong-full"))?;
    let hint = format!("console output, logs, captures and command lines: {}", run.path().display());
    let image = lab.debian_image(&run).await?;
    let [mut a, mut b] = roce::pair(lab, &run, &image).await.context(hint.clone())?;
    let start = async {
        roce::start(&mut a).await?;
        roce::start(&mut b).await
    };
    report.case("both ports are active", &hint, start).await?;
    a.capture(true).await?;
    b.capture(true).await?;
    cases(report, &hint, (&mut a, &mut b), CASES).await?;
    cases(report, &hint, (&mut a, &mut b), extent.select(&[], MORE_CASES)).await?;
    report.case("counters match the traffic", &hint, statistics(&mut a, &mut b)).await?;
    roce::jumbo([&mut a, &mut b]).await?;
    cases(report, &hint, (&mut a, &mut b), JUMBO_CASES).await?;
    a.capture(false).await?;
    b.capture(false).await?;
    cases(report, &hint, (&mut a, &mut b), LARGE_CASES).await?;
    cases(report, &hint, (&mut a, &mut b), extent.select(&[], MORE_LARGE_CASES)).await?;
    let ends = async {
        a.no_warnings().await?;
        b.no_warnings().await
    };
    report.case("no kernel warnings", &hint, ends).await?;
    let ends = async {
        a.stop().await?;
        b.stop().await
    };
    report.case("the daemons exit cleanly on SIGTERM", &hint, ends).await
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

/// Checks that `irdma` counts exactly the messages that a program transfers, and that each guest's counts of received
/// packets and bytes equal the other guest's counts of sent packets and bytes (E810 interface, section 10.7).
async fn statistics(a: &mut Station, b: &mut Station) -> Result<()> {
    /// Number of messages in each direction.
    const MESSAGES: u64 = 100;
    /// Number of packets per message at a path MTU of 1024.
    const PACKETS: u64 = 5;
    let before = (counters(a).await?, counters(b).await?);
    let command = format!("ibv_rc_pingpong -s 4097 -m 1024 -n {MESSAGES}");
    ping_pong(a, b, &command, Gid::V4).await?;
    let (of_a, of_b) = (counters(a).await?, counters(b).await?);
    for (name, before, after, other_before, other) in
        [("a", &before.0, &of_a, &before.1, &of_b), ("b", &before.1, &of_b, &before.0, &of_a)]
    {
        for messages in ["OutRdmaSends", "InRdmaSends"] {
            let found = grown(before, after, messages)?;
            ensure!(found == MESSAGES, "{messages} of {name} grew by {found}, expected {MESSAGES}");
        }
        let sent = grown(before, after, "ip4OutPkts")?;
        ensure!(sent >= MESSAGES * PACKETS, "{name} sent {sent} packets");
        for (out, into) in [("ip4OutPkts", "ip4InPkts"), ("ip4OutOctets", "ip4InOctets"), ("TxUDP", "RxUDP")]
        {
            let (sent, received) = (grown(before, after, out)?, grown(other_before, other, into)?);
            ensure!(sent == received, "{out} of {name} grew by {sent}, {into} of the peer by {received}");
        }
        for nothing in ["ip6OutPkts", "InRdmaWrites", "InRdmaReads", "ip4InDiscards"] {
            let found = grown(before, after, nothing)?;
            ensure!(found == 0, "{nothing} of {name} grew by {found}");
        }
    }
    Ok(())
}

type Counters = BTreeMap<String, u64>;

/// Returns the increase in a counter.
fn grown(before: &Counters, after: &Counters, name: &str) -> Result<u64> {
    let of = |counters: &Counters| counters.get(name).copied().with_context(|| format!("no counter {name}"));
    Ok(of(after)?.wrapping_sub(of(before)?))
}

/// Returns all `hw_counters` under the names that kernels after 6.12 use. In kernel 6.12, the names of message counters
/// have the prefix `iw`.
async fn counters(station: &mut Station) -> Result<Counters> {
    let line = format!("cd /sys/class/infiniband/{DEVICE}/ports/1/hw_counters && grep . *");
    let text = station.sh(&line).await?;
    let pairs = text.lines().filter_map(|line| line.split_once(':'));
    let later = |name: &str| name.strip_prefix("iw").unwrap_or(name).to_owned();
    Ok(pairs.filter_map(|(name, value)| Some((later(name), value.trim().parse().ok()?))).collect())
}

/// Runs a ping-pong program between the two guests.
async fn ping_pong(a: &mut Station, b: &mut Station, command: &str, gid: Gid) -> Result<()> {
    let line = |index: usize| format!("{command} -c -d {DEVICE} -g {index}");
    let (of_a, of_b) = (gid_index(a, gid).await?, gid_index(b, gid).await?);
    let client = format!("{} {}", line(of_a), b.address(0).ipv4);
    let exchange = Exchange { server: line(of_b), client, ready: Ready::Tcp(PORT), limit: LIMIT };
    let ends = exchange.run(&mut b.vm, &mut a.vm).await?;
    for end in [&ends.client, &ends.server] {
        // The program exits with status 0 even if it prints errors.
        ensure!(!end.stdout.contains("invalid data"), "{}", end.stdout);
        ensure!(end.stdout.contains(" iters in "), "no result: {}{}", end.stdout, end.stderr);
    }
    Ok(())
}
