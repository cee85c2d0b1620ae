//! Tests settings made with `ethtool`: queues, hashing, rules, rings, moderation and offloads. The effect of steering
//! settings is verified by counting the packets that each queue receives.

use anyhow::{Context as _, Result, ensure};

use super::flows::{self, by_queue};
use super::net::Wire;
use super::ping;
use super::station::{Station, carrier};
use super::streams::{Amount, Protocol, Streams};

/// Offloads to disable, each with the name of its case.
pub(super) const OFFLOADS: &[(&str, &str)] = &[
    ("rx", "no receive checksums"),
    ("tx", "no transmit checksums"),
    ("tso", "no segmentation of TCP"),
    ("tx-udp-segmentation", "no segmentation of UDP"),
    ("sg", "no scatter-gather"),
    ("gro", "no merging of segments"),
    ("rxhash", "no hash values"),
    ("rx-vlan-offload", "no removal of VLAN tags"),
    ("tx-vlan-offload", "no insertion of VLAN tags"),
    ("rx-vlan-filter", "no VLAN filter"),
];

/// Selftests in `ethtool -t` that must pass.
const SELF_TESTS: &[&str] = &["Link Test", "Speed Test", "Health Test", "Loopback Test"];

/// Number of flows and number of datagrams per flow.
const FLOWS: u32 = 64;
const DATAGRAMS: u32 = 8;
/// Maximum number of other packets, such as pings, that may arrive while the flows are counted.
const OTHERS: u64 = 64;
/// UDP ports that the rules match.
const STEERED: u32 = 7777;
const DROPPED: u32 = 7778;

/// Selects which of the receiver's queues the flows must reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    All,
    Only(usize),
    None,
}

/// Runs all driver selftests.
pub(super) async fn self_test(station: &mut Station) -> Result<()> {
    let device = station.device.clone();
    let text = station.sh(&format!("ethtool -t {device}")).await?;
    ensure!(text.contains("The test result is PASS"), "{text}");
    for test in SELF_TESTS {
        let line = text.lines().find(|line| line.trim_start().starts_with(test));
        let result = line.and_then(|line| line.split_whitespace().last());
        ensure!(result == Some("0"), "{test} did not pass: {text}");
    }
    carrier(&mut station.vm, &device, true).await
}

/// Checks traffic in both directions while an offload is disabled in guest `b`.
pub(super) async fn without(a: &mut Station, b: &mut Station, feature: &str) -> Result<()> {
    set(b, &format!("-K {{}} {feature} off")).await?;
    let result = async {
        ping::some_sizes(a, &b.address(0).ipv4, Wire::Good).await?;
        streams(a, b).await
    }
    .await;
    set(b, &format!("-K {{}} {feature} on")).await?;
    result
}

/// Checks rules that steer a UDP port's traffic to a queue, and one that drops a port's traffic.
pub(super) async fn rules(a: &mut Station, b: &mut Station) -> Result<()> {
    for queue in [1, 0] {
        let rule = add_rule(b, &format!("flow-type udp4 dst-port {STEERED} action {queue}")).await?;
        let result = reach(a, b, STEERED, Reach::Only(queue)).await;
        let others = reach(a, b, flows::PORT, Reach::All).await;
        remove_rule(b, rule).await?;
        result.context("the port of the rule")?;
        others.context("other ports")?;
    }
    let rule = add_rule(b, &format!("flow-type udp4 dst-port {DROPPED} action -1")).await?;
    let result = reach(a, b, DROPPED, Reach::None).await;
    remove_rule(b, rule).await?;
    result.context("the dropped port")?;
    let left = set(b, "-n {}").await?;
    ensure!(left.contains("Total 0 rules"), "{left}");
    reach(a, b, DROPPED, Reach::All).await
}

/// Adds a rule and returns its number.
async fn add_rule(station: &mut Station, rule: &str) -> Result<u32> {
    let text = set(station, &format!("-N {{}} {rule}")).await?;
    let number = text.split_once("ID ").and_then(|(_, rest)| rest.trim().parse().ok());
    number.with_context(|| format!("no rule number in {text:?}"))
}

async fn remove_rule(station: &mut Station, number: u32) -> Result<()> {
    set(station, &format!("-N {{}} delete {number}")).await.map(drop)
}

/// Checks that all flows between two hosts use the same queue if only their addresses are hashed.
pub(super) async fn hash_fields(a: &mut Station, b: &mut Station) -> Result<()> {
    set(b, "-N {} rx-flow-hash udp4 sd").await?;
    let before = by_queue(b).await?;
    flows::send(a, b, FLOWS, DATAGRAMS).await?;
    let counts = since(&before, b).await?;
    set(b, "-N {} rx-flow-hash udp4 sdfn").await?;
    let (sent, used) = (u64::from(FLOWS * DATAGRAMS), counts.iter().filter(|&&count| count > OTHERS).count());
    ensure!(used == 1 && counts.iter().sum::<u64>() >= sent, "queues received {counts:?} of {sent} packets");
    reach(a, b, flows::PORT, Reach::All).await
}

/// Checks two indirection tables that each select a single queue, and then the default table. Afterwards, checks a
/// different hash key and both hash functions.
pub(super) async fn indirection(a: &mut Station, b: &mut Station) -> Result<()> {
    const KEY_BYTES: usize = 40;
    let key: Vec<String> = (0..KEY_BYTES).map(|n| format!("{:02x}", (n * 37 + 11) % 256)).collect();
    let key = key.join(":");
    let settings = [
        ("equal 1", Reach::Only(0)),
        ("weight 0 1", Reach::Only(1)),
        ("default", Reach::All),
        (&*format!("hkey {key}"), Reach::All),
        ("hfunc xor", Reach::All),
        ("hfunc toeplitz", Reach::All),
    ];
    for (setting, expected) in settings {
        set(b, &format!("-X {{}} {setting}")).await?;
        reach(a, b, flows::PORT, expected).await.context(setting.to_owned())?;
    }
    let shown = set(b, "-x {}").await?;
    ensure!(shown.contains(&key) && shown.contains("toeplitz: on"), "{shown}");
    Ok(())
}

/// Checks traffic with small rings, then with large ones.
pub(super) async fn rings(a: &mut Station, b: &mut Station) -> Result<()> {
    for (setting, rx, tx) in [("rx 64 tx 128", 64, 128), ("rx 1024 tx 1024", 1024, 1024)] {
        set(b, &format!("-G {{}} {setting}")).await?;
        let shown = set(b, "-g {}").await?;
        let (_, current) = shown.split_once("Current hardware settings").context("no settings")?;
        let value = |name: &str| {
            let line = current.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u32>().ok());
            line.with_context(|| format!("no {name} in {shown}"))
        };
        ensure!(value("RX:")? == rx && value("TX:")? == tx, "{shown}");
        settled(b).await?;
        streams(a, b).await?;
    }
    Ok(())
}

/// Checks traffic with one channel, then with both.
pub(super) async fn channels(a: &mut Station, b: &mut Station) -> Result<()> {
    for (setting, expected) in [("combined 1", Reach::Only(0)), ("combined 2", Reach::All)] {
        set(b, &format!("-L {{}} {setting}")).await?;
        settled(b).await?;
        reach(a, b, flows::PORT, expected).await.context(setting)?;
        streams(a, b).await?;
    }
    Ok(())
}

/// Checks fixed and adaptive interrupt moderation.
pub(super) async fn moderation(a: &mut Station, b: &mut Station) -> Result<()> {
    const FIXED: &str = "adaptive-rx off adaptive-tx off rx-usecs 100 rx-frames 64 tx-usecs 50 tx-frames 32";
    for (setting, shown) in [(FIXED, "rx-usecs:\t100"), ("adaptive-rx on adaptive-tx on", "Adaptive RX: on")]
    {
        set(b, &format!("-C {{}} {setting}")).await?;
        let text = set(b, "-c {}").await?;
        ensure!(text.contains(shown), "{shown:?} is missing in {text}");
        ping::one_size(a, &b.address(0).ipv4, 56, Wire::Good).await?;
        streams(a, b).await?;
    }
    Ok(())
}

/// Runs `ethtool` with `arguments`, in which `{}` stands for the device.
async fn set(station: &mut Station, arguments: &str) -> Result<String> {
    let line = format!("ethtool {}", arguments.replace("{}", &station.device));
    station.sh(&line).await
}

/// Waits until the device can be used again after the driver has recreated its queues.
async fn settled(station: &mut Station) -> Result<()> {
    let device = station.device.clone();
    carrier(&mut station.vm, &device, true).await
}

async fn streams(a: &mut Station, b: &mut Station) -> Result<()> {
    let streams =
        Streams { protocol: Protocol::Tcp, count: 2, back: false, ipv6: false, amount: Amount::Mib(4) };
    streams.arrive(a, b, 0, Wire::Good).await?;
    Streams { back: true, ipv6: true, ..streams }.arrive(a, b, 0, Wire::Good).await
}

/// Returns how many packets each queue has received since the counters in `before` were read.
async fn since(before: &[u64], station: &mut Station) -> Result<Vec<u64>> {
    Ok(by_queue(station).await?.iter().zip(before).map(|(now, before)| now - before).collect())
}

/// Sends flows with random source ports and checks which queues of guest `b` receive them.
async fn reach(a: &mut Station, b: &mut Station, port: u32, expected: Reach) -> Result<()> {
    let before = by_queue(b).await?;
    flows::send_to(a, b, port, FLOWS, DATAGRAMS).await?;
    let counts = since(&before, b).await?;
    let sent = u64::from(FLOWS * DATAGRAMS);
    let is_expected = |(queue, &count): (usize, &u64)| match expected {
        Reach::All => count > OTHERS,
        Reach::Only(only) if queue == only => count >= sent,
        Reach::Only(_) | Reach::None => count <= OTHERS,
    };
    ensure!(
        counts.iter().enumerate().all(is_expected),
        "the queues received {counts:?} packets, expected {expected:?} to receive {sent}"
    );
    Ok(())
}
