//! IP over InfiniBand, connections set up by `rdma_cm`, and subnet diagnostics.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::super::stock_pair::{StockNode, StockPair};
use crate::lab::Lab;
use crate::report::Report;
use crate::scenario::nic::ping as echo;
use crate::tools::{Exchange, Ready, await_text};

/// How long the interface may take to join the broadcast group after being brought up.
const CARRIER_TIMEOUT: Duration = Duration::from_secs(240);
const LIMIT: Duration = Duration::from_secs(60);
/// Ports that iperf3 and perftest listen on.
const IPERF_PORT: u16 = 5201;
const PERFTEST_PORT: u16 = 18515;

/// IPoIB modes, each with the interface's MTU (RFC 4391 and 4755).
const MODES: &[(&str, u32)] = &[("datagram", 2044), ("connected", 65520)];
/// Payload lengths of pings: some fit into one packet, some are close to the limit of datagram mode, and some need many
/// fragments.
const PINGS: &[u32] = &[1, 56, 2016, 2017, 20000, 60000];

/// Programs that use `rdma_cm`: the server's and the client's command lines, and how the server shows that it is ready.
/// `{a}` is the client's address, and `{b}` is the server's.
const CONNECTED: &[(&str, &str, Ready)] = &[
    ("rping -s -a {b} -C 50 -V", "rping -c -a {b} -C 50 -V", Ready::Cm),
    ("rping -s -a {b} -C 20 -S 65000 -V", "rping -c -a {b} -C 20 -S 65000 -V", Ready::Cm),
    ("udaddy -b {b} -C 20 -S 1024", "udaddy -s {b} -b {a} -C 20 -S 1024", Ready::Cm),
    ("ucmatose -b {b} -C 50 -S 4096", "ucmatose -s {b} -b {a} -C 50 -S 4096", Ready::Cm),
    ("ucmatose -b {b} -c 8 -C 10", "ucmatose -s {b} -b {a} -c 8 -C 10", Ready::Cm),
    (
        "mckey -m 239.1.1.1 -b {b} -C 20",
        "mckey -m 239.1.1.1 -b {a} -s -C 20",
        Ready::Line("receiving data transfers"),
    ),
    ("rstream -b {b} -S 65536 -C 100 -T v", "rstream -s {b} -S 65536 -C 100 -T v", Ready::Cm),
    // `-T a` is not used, because the client would exit with status 16 (POLLHUP) if the server closed the connection
    // before the client polled for the last bytes.
    ("rstream -b {b} -S 1000 -C 100 -T n", "rstream -s {b} -S 1000 -C 100 -T n", Ready::Cm),
    ("riostream -b {b} -S 4096 -C 50 -T v", "riostream -s {b} -S 4096 -C 50 -T v", Ready::Cm),
];

/// perftest programs whose connections are set up by `rdma_cm`.
const PERFTEST: &[&str] = &[
    "ib_send_bw -R -n 500",
    "ib_write_bw -R -n 500",
    "ib_read_lat -R -n 200",
    "ib_send_lat -R -c UD -s 1024 -n 200",
];

/// Subnet diagnostics, with the output expected from each. `{lid}` is the guest's own LID and `{peer}` the other
/// guest's, in decimal. `{guid}` is the guest's own node GUID and `{peer_guid}` the other guest's, in hexadecimal.
const DIAGNOSTICS: &[(&str, &[&str])] = &[
    (
        "ibstat",
        &[
            "CA type: MT25204",
            "Firmware version: 1.2.0",
            "State: Active",
            "Physical state: LinkUp",
            "Base lid: {lid}",
            "Node GUID: 0x{guid}",
        ],
    ),
    ("ibstatus", &["mthca0", "4: ACTIVE", "20 Gb/sec (4X DDR)", "InfiniBand"]),
    ("ibaddr", &["LID start"]),
    ("sminfo", &["sm lid 49151", "SMINFO_MASTER"]),
    ("smpquery nodeinfo {lid}", &["NodeType:........................Channel Adapter", "{guid}"]),
    ("smpquery -D nodeinfo 0", &["Channel Adapter", "{guid}"]),
    ("smpquery nodeinfo {peer}", &["Channel Adapter", "{peer_guid}"]),
    (
        "smpquery portinfo {lid} 1",
        &["LinkState:.......................Active", "PhysLinkState:...................LinkUp"],
    ),
    ("smpquery portinfo {peer} 1", &["LinkState:.......................Active"]),
    ("smpquery nodedesc {peer}", &["Node Description:"]),
    ("smpquery pkeys {lid} 1", &["0xffff"]),
    ("smpquery guidinfo {lid}", &["{guid}"]),
    ("perfquery", &["PortXmitPkts:", "PortRcvPkts:"]),
    ("perfquery -x", &["PortXmitPkts:", "PortUnicastRcvPkts:"]),
    ("perfquery {peer} 1", &["PortRcvPkts:"]),
    ("saquery -c", &["ClassPortInfo"]),
    (
        "saquery -p --sgid-to-dgid {gid}-{peer_gid}",
        &["dlid....................{peer}", "mtu.....................0x84"],
    ),
    ("saquery -g", &["ff12:401b:ffff::ffff:ffff"]),
    ("ibnodes", &["Ca	: 0x{guid}", "Ca	: 0x{peer_guid}", "Switch"]),
    ("ibhosts", &["0x{guid}", "0x{peer_guid}"]),
    ("ibswitches", &["Switch"]),
    ("iblinkinfo", &["4X", "Active/  LinkUp"]),
    ("ibnetdiscover", &["Ca	1", "Switch"]),
    ("ibtracert {lid} {peer}", &["To ca"]),
];

pub(in super::super) async fn run(lab: &Lab, report: &mut Report) -> Result<()> {
    let mut pair = StockPair::start_strict(lab, "mthca-ipoib", &[]).await?;
    let hint = pair.hint();
    report.case("both ports are active", &hint, pair.load()).await?;
    report.case("both interfaces have a carrier", &hint, both_up(&mut pair)).await?;
    pair.capture_on().await?;
    cases(report, &hint, &mut pair).await?;
    for &(command, expected) in DIAGNOSTICS {
        report.case(command, &hint, diagnose(&mut pair, command, expected)).await?;
    }
    report.case("ibping", &hint, ibping(&mut pair)).await?;
    pair.capture_off().await?;
    perftests(report, &hint, &mut pair).await?;
    report
        .case("perfquery and hcactl report the same counters", &hint, super::counters::agree(&mut pair))
        .await?;
    report.case("no kernel warnings", &hint, pair.no_warnings()).await?;
    report.case("the daemons exit cleanly on SIGTERM", &hint, pair.stop()).await
}

/// Runs the cases that apply to any InfiniBand HCA.
pub(in super::super) async fn cases(report: &mut Report, hint: &str, pair: &mut StockPair) -> Result<()> {
    for &(mode, mtu) in MODES {
        report.case(&format!("{mode} mode"), hint, switch(pair, mode, mtu)).await?;
        for &size in PINGS {
            report.case(&format!("ping of {size} bytes, {mode} mode"), hint, ping(pair, size)).await?;
        }
        report.case(&format!("iperf3, {mode} mode"), hint, iperf(pair)).await?;
    }
    for &(server, client, ready) in CONNECTED {
        report.case(client, hint, connected(pair, server, client, ready)).await?;
    }
    Ok(())
}

/// Runs perftest programs that connect through `rdma_cm`, for any InfiniBand HCA.
pub(in super::super) async fn perftests(report: &mut Report, hint: &str, pair: &mut StockPair) -> Result<()> {
    for case in PERFTEST {
        report.case(case, hint, perftest(pair, case)).await?;
    }
    Ok(())
}

/// Returns the address of a guest's `ib0`.
fn address(node: &StockNode) -> String {
    format!("10.99.0.{}", node.id)
}

pub(in super::super) async fn both_up(pair: &mut StockPair) -> Result<()> {
    tokio::try_join!(up(&mut pair.a), up(&mut pair.b)).map(drop)
}

/// Configures an address on `ib0` and waits until the interface has a carrier.
pub(in super::super) async fn up(node: &mut StockNode) -> Result<()> {
    node.vm.run(&["modprobe", "ib_ipoib"]).await?;
    let address = format!("{}/24", address(node));
    node.vm.run(&["ip", "address", "add", &address, "dev", "ib0"]).await?;
    node.vm.run(&["ip", "link", "set", "ib0", "up"]).await?;
    await_text(&mut node.vm, &["/sys/class/net/ib0/carrier"], &["1"], CARRIER_TIMEOUT)
        .await
        .context("no carrier")
}

async fn switch(pair: &mut StockPair, mode: &str, mtu: u32) -> Result<()> {
    for node in [&mut pair.a, &mut pair.b] {
        let commands = format!("echo {mode} > /sys/class/net/ib0/mode; ip link set ib0 mtu {mtu}");
        node.vm.run(&["sh", "-c", &commands]).await?;
        let state = node.vm.run(&["cat", "/sys/class/net/ib0/mode", "/sys/class/net/ib0/mtu"]).await?;
        ensure!(state == format!("{mode}\n{mtu}\n"), "{state}");
        await_text(&mut node.vm, &["/sys/class/net/ib0/carrier"], &["1"], CARRIER_TIMEOUT).await?;
        // Accept the kernel's warning that packets in connected mode can exceed the multicast MTU.
        let warnings = node.new_warnings().await?;
        let expected = |line: &String| line.contains("will cause multicast packet drops");
        ensure!(warnings.iter().all(expected), "the kernel logged warnings: {warnings:?}");
    }
    Ok(())
}

pub(super) async fn ping(pair: &mut StockPair, size: u32) -> Result<()> {
    let peer = address(&pair.b);
    let text = pair.a.vm.run(&["sh", "-c", &echo::script(size, 5, &peer)]).await?;
    echo::all_answered(&text, size, 5)
}

async fn iperf(pair: &mut StockPair) -> Result<()> {
    let peer = address(&pair.b);
    let server = format!("iperf3 -s -1 -B {peer}");
    let client = format!("iperf3 -c {peer} -n 20M -J");
    // `Ready::Tcp` also detects a server that listens on a single address.
    let ready = Ready::Tcp(IPERF_PORT);
    let ends = pair.exchange(&Exchange { server, client, ready, limit: LIMIT }).await?;
    let result: Value = serde_json::from_str(&ends.client.stdout).context("iperf3's report")?;
    // The client exits as soon as its kernel has accepted all bytes. Some may still be in flight then, so require only
    // about half of them. Other cases check the content.
    let received = result.pointer("/end/sum_received/bytes").and_then(Value::as_u64);
    ensure!(received.is_some_and(|bytes| bytes >= 10_000_000), "{received:?} of 20 MiB received");
    Ok(())
}

pub(super) async fn connected(pair: &mut StockPair, server: &str, client: &str, ready: Ready) -> Result<()> {
    let (a, b) = (address(&pair.a), address(&pair.b));
    let fill = |line: &str| line.replace("{a}", &a).replace("{b}", &b);
    let exchange = Exchange { server: fill(server), client: fill(client), ready, limit: LIMIT };
    pair.exchange(&exchange).await.map(drop)
}

async fn perftest(pair: &mut StockPair, case: &str) -> Result<()> {
    let server = format!("{case} -F -d {}", pair.b.rdma_device());
    let client = format!("{server} {}", address(&pair.b));
    let ready = if case.contains("-R") { Ready::Cm } else { Ready::Tcp(PERFTEST_PORT) };
    pair.exchange(&Exchange { server, client, ready, limit: LIMIT }).await.map(drop)
}

pub(in super::super) async fn diagnose(pair: &mut StockPair, command: &str, expected: &[&str]) -> Result<()> {
    let mut guids = Vec::new();
    let mut gids = Vec::new();
    for node in [&mut pair.a, &mut pair.b] {
        let device = node.rdma_device();
        let read = |file: &str| format!("/sys/class/infiniband/{device}/{file}");
        let guid = node.vm.run(&["cat", &read("node_guid")]).await?;
        guids.push(guid.trim().replace(':', ""));
        gids.push(node.vm.run(&["cat", &read("ports/1/gids/0")]).await?.trim().to_owned());
    }
    let fill = |text: &str| {
        text.replace("{lid}", &pair.a.id.to_string())
            .replace("{peer}", &pair.b.id.to_string())
            .replace("{guid}", &guids[0])
            .replace("{peer_guid}", &guids[1])
            .replace("{gid}", &gids[0])
            .replace("{peer_gid}", &gids[1])
    };
    let end = pair.a.vm.program(LIMIT, &fill(command)).await?;
    for text in expected {
        let text = fill(text);
        ensure!(end.stdout.contains(&text), "{text:?} is missing in {}{}", end.stdout, end.stderr);
    }
    ensure!(end.status == agent::wire::ExitStatus::Code(0), "{:?}: {}{}", end.status, end.stdout, end.stderr);
    Ok(())
}

async fn ibping(pair: &mut StockPair) -> Result<()> {
    let server = crate::tools::spawn(&mut pair.b.vm, "ibping -S").await?;
    let result = ping_agent(pair).await;
    crate::tools::stop(&mut pair.b.vm, server).await?;
    result
}

async fn ping_agent(pair: &mut StockPair) -> Result<()> {
    /// Maximum number of pings before giving up. The server does not report when it is ready, so the client pings it
    /// once per second until it replies.
    const ATTEMPTS: usize = 20;
    let lid = pair.b.id.to_string();
    for attempt in 1.. {
        let first = pair.a.vm.run(&["ibping", "-c", "1", &lid]).await;
        match first {
            Ok(text) if text.contains("1 received") => break,
            other => ensure!(attempt < ATTEMPTS, "no reply to {ATTEMPTS} pings: {other:?}"),
        }
    }
    let text = pair.a.vm.run(&["ibping", "-c", "5", &lid]).await?;
    ensure!(text.contains("5 received, 0% packet loss"), "{text}");
    Ok(())
}
