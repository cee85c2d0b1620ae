//! NIC and kernel counters, and the distribution of flows across queues.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::net::Wire;
use super::ping;
use super::station::{CPUS, Station};
use crate::vm::Vm;

/// The program that sends flows.
const PROGRAM: &str = include_str!("../../../guest/flows.py");
/// A UDP port that no program listens on.
pub(super) const PORT: u32 = 9;

/// Names of the counters for frames sent, frames received, and errors.
type Names = (&'static [&'static str], &'static [&'static str], &'static [&'static str]);

const E810: Names = (
    &["tx_unicast.nic", "tx_multicast.nic", "tx_broadcast.nic"],
    &["rx_unicast.nic", "rx_multicast.nic", "rx_broadcast.nic"],
    &["rx_crc_errors.nic", "rx_oversize.nic", "rx_undersize.nic", "rx_jabber.nic", "tx_errors"],
);
const CONNECTX: Names = (
    &["tx_packets_phy"],
    &["rx_packets_phy"],
    &["rx_crc_errors_phy", "rx_oversize_pkts_phy", "tx_recover", "tx_cqe_err", "rx_recover", "rx_wqe_err"],
);

/// Returns the counters reported by `ethtool -S`.
pub(super) async fn statistics(vm: &mut Vm, device: &str) -> Result<BTreeMap<String, u64>> {
    let text = vm.run(&["ethtool", "-S", device]).await?;
    let numbers = text.lines().filter_map(|line| {
        let (name, value) = line.split_once(':')?;
        Some((name.trim().to_owned(), value.trim().parse().ok()?))
    });
    Ok(numbers.collect())
}

/// Returns the number of interrupts for each queue.
async fn interrupts(station: &mut Station) -> Result<Vec<u64>> {
    let text = station.vm.run(&["cat", "/proc/interrupts"]).await?;
    let mut counts = Vec::new();
    for queue in 0..CPUS {
        let name = if station.is_connectx() {
            format!(" mlx5_comp{queue}@")
        } else {
            format!(" ice-{}-TxRx-{queue}", station.device)
        };
        let line = text.lines().find(|line| line.contains(&name));
        let line = line.with_context(|| format!("{name} is missing in\n{text}"))?;
        // The line starts with the interrupt number, followed by a count for each CPU.
        counts.push(line.split_whitespace().skip(1).map_while(|word| word.parse::<u64>().ok()).sum());
    }
    Ok(counts)
}

/// Sends `datagrams` datagrams to guest `b` in each of `flows` flows with random source ports and waits until all
/// datagrams have arrived.
pub(super) async fn send(a: &mut Station, b: &Station, flows: u32, datagrams: u32) -> Result<()> {
    send_to(a, b, PORT, flows, datagrams).await
}

/// Like [`send`], but to the given port.
pub(super) async fn send_to(
    a: &mut Station,
    b: &Station,
    port: u32,
    flows: u32,
    datagrams: u32,
) -> Result<()> {
    cast_to(a, b, port, flows, datagrams).await?;
    // A reply to this ping shows that all earlier packets have arrived.
    ping::one_size(a, &b.address(0).ipv4, 56, Wire::Good).await
}

/// Like [`send`], but does not wait until the datagrams have arrived.
pub(super) async fn cast(a: &mut Station, b: &Station, flows: u32, datagrams: u32) -> Result<()> {
    cast_to(a, b, PORT, flows, datagrams).await
}

async fn cast_to(a: &mut Station, b: &Station, port: u32, flows: u32, datagrams: u32) -> Result<()> {
    let [port, flows, datagrams] = [port, flows, datagrams].map(|number| number.to_string());
    let address = b.address(0).ipv4;
    a.vm.run(&["python3", "-c", PROGRAM, &address, &port, &flows, &datagrams]).await.map(drop)
}

/// Returns the number of packets that each queue of a station has received.
pub(super) async fn by_queue(station: &mut Station) -> Result<Vec<u64>> {
    let device = station.device.clone();
    let all = statistics(&mut station.vm, &device).await?;
    let is_connectx = station.is_connectx();
    let name = |queue| {
        if is_connectx { format!("rx{queue}_packets") } else { format!("rx_queue_{queue}_packets") }
    };
    (0..CPUS)
        .map(|queue| all.get(&name(queue)).copied().with_context(|| format!("no {}", name(queue))))
        .collect()
}

/// Checks packet counters and interrupts to verify that flows from random ports use all queues of guest `b`. The
/// streams in other test cases use consecutive ports, which could all hash to the same queue.
pub(super) async fn spread(a: &mut Station, b: &mut Station) -> Result<()> {
    const FLOWS: u32 = 64;
    const DATAGRAMS: u32 = 16;
    /// Minimum share of the packets that each queue must receive, in percent. Each of the two queues receives 32 of the
    /// 64 flows on average. The probability that one receives fewer than 13 (20%) is below one in a million.
    const LEAST_SHARE: u64 = 20;
    let (packets, raised) = (by_queue(b).await?, interrupts(b).await?);
    send(a, b, FLOWS, DATAGRAMS).await?;
    let (packets_then, raised_then) = (by_queue(b).await?, interrupts(b).await?);
    let received: Vec<u64> = packets_then.iter().zip(&packets).map(|(then, before)| then - before).collect();
    let total: u64 = received.iter().sum();
    let sent = u64::from(FLOWS * DATAGRAMS);
    ensure!(total >= sent, "the queues of b received {received:?} packets, but {sent} were sent");
    ensure!(
        received.iter().all(|&count| count * 100 >= total * LEAST_SHARE),
        "the queues of b received {received:?} packets"
    );
    ensure!(
        raised_then.iter().zip(&raised).all(|(then, before)| then > before),
        "the queues of b interrupted {raised:?} times before, {raised_then:?} after"
    );
    Ok(())
}

/// Checks that the NIC's counters are consistent with the kernel's and that neither shows an error.
pub(super) async fn counted(station: &mut Station) -> Result<()> {
    let device = station.device.clone();
    // Read the kernel's counters first. They cannot exceed the NIC counters read afterwards, since the kernel counts
    // each frame after the NIC does.
    let links = station.vm.run(&["ip", "-j", "-s", "link", "show", &device]).await?;
    let links: Value = serde_json::from_str(&links)?;
    let nic = statistics(&mut station.vm, &device).await?;
    let nic_count = |names: &[&str]| -> Result<u64> {
        let of = |name: &&str| nic.get(*name).with_context(|| format!("{name} is missing in {nic:#?}"));
        names.iter().map(of).sum()
    };
    let kernel_count = |place: &str| {
        let value = links.pointer(&format!("/0/stats64/{place}")).and_then(Value::as_u64);
        value.with_context(|| format!("{place} is missing in {links}"))
    };
    // The NIC counts frames on the wire, so its counts can exceed the kernel's. A packet may be sent as several frames,
    // and received frames are counted before they are merged.
    let (sent, received, errors) = if station.is_connectx() { CONNECTX } else { E810 };
    let (sent, received) = (nic_count(sent)?, nic_count(received)?);
    let (sent_kernel, received_kernel) = (kernel_count("tx/packets")?, kernel_count("rx/packets")?);
    ensure!(sent >= sent_kernel && sent_kernel > 0, "the NIC sent {sent}, the kernel {sent_kernel}");
    ensure!(
        received >= received_kernel && received_kernel > 0,
        "the NIC received {received}, the kernel {received_kernel}"
    );
    for error in errors {
        ensure!(nic_count(&[error])? == 0, "{error}: {}", nic_count(&[error])?);
    }
    for error in ["rx/errors", "tx/errors", "tx/dropped"] {
        ensure!(kernel_count(error)? == 0, "{error}: {links}");
    }
    Ok(())
}
