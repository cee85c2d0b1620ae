//! Checks the packet counters at both ends.

use std::collections::HashMap;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::Bench;
use crate::vm::Vm;

const HW_COUNTERS: &str = "/sys/class/infiniband/rxe0/ports/1/hw_counters";

/// Checks that every received RoCE packet was intact and had a correct ICRC.
///
/// Soft-RoCE counts only packets that pass its ICRC check. Its packet count must equal its kernel's count of UDP
/// datagrams. The HCA's socket buffer is large enough for all packets from soft-RoCE, so all of them must have reached
/// the HCA. In the other direction, packets may be missing if a burst overruns the emulated NIC's socket buffer.
pub(super) async fn check(bench: &mut Bench) -> Result<()> {
    let vm = &mut bench.rxe.vm;
    let hw = vm.run(&["grep", "-r", ".", HW_COUNTERS]).await?;
    let udp = udp_datagrams(vm).await?;
    let counters = bench.hca.driver.daemon.control(&["counters"]).await?;

    let (received, sent) = (hw_counter(&hw, "rcvd_pkts")?, hw_counter(&hw, "sent_pkts")?);
    ensure!(received > 0 && received == udp, "rxe accepted {received} of {udp} datagrams");
    let hca = |pointer: &str| counters.pointer(pointer).and_then(Value::as_u64);
    let arrived = hca("/port/roce").with_context(|| format!("counters: {counters}"))?;
    ensure!(arrived == sent, "hcad accepted {arrived} of the {sent} packets that rxe sent: {counters}");
    for reason in ["icrc", "invalid", "short", "checksum", "no_room"] {
        let dropped = hca(&format!("/port/dropped/{reason}"));
        ensure!(dropped == Some(0), "hcad dropped {dropped:?} frames for {reason}");
    }
    let malformed = hca("/engine/drops/malformed");
    ensure!(malformed == Some(0), "hcad dropped {malformed:?} malformed packets");
    Ok(())
}

/// Returns the number of datagrams that reached soft-RoCE but failed its checks.
pub(super) async fn dropped_by_rxe(bench: &mut Bench) -> Result<u64> {
    let vm = &mut bench.rxe.vm;
    // Read the number of UDP datagrams first. Otherwise, a datagram that arrives between the two reads would count as
    // dropped.
    let udp = udp_datagrams(vm).await?;
    let hw = vm.run(&["grep", "-r", ".", HW_COUNTERS]).await?;
    Ok(udp.saturating_sub(hw_counter(&hw, "rcvd_pkts")?))
}

/// Returns the number of UDP datagrams received over IPv4 and IPv6.
async fn udp_datagrams(vm: &mut Vm) -> Result<u64> {
    let ipv4 = vm.run(&["grep", "^Udp:", "/proc/net/snmp"]).await?;
    let ipv6 = vm.run(&["grep", "^Udp6InDatagrams", "/proc/net/snmp6"]).await?;
    let ipv4 = snmp_counter(&ipv4, "InDatagrams").context("no count of UDP datagrams")?;
    let ipv6 = ipv6.split_whitespace().nth(1).and_then(|value| value.parse::<u64>().ok());
    Ok(ipv4 + ipv6.context("no count of UDP datagrams over IPv6")?)
}

/// Finds a counter in lines of the form `/path/of/NAME:VALUE`.
fn hw_counter(text: &str, name: &str) -> Result<u64> {
    let counters: HashMap<&str, &str> =
        text.lines().filter_map(|line| line.rsplit('/').next()?.split_once(':')).collect();
    counters
        .get(name)
        .and_then(|value| value.parse().ok())
        .with_context(|| format!("{name} is missing in {text}"))
}

/// Finds a counter in a table that has a line of names and a line of values.
fn snmp_counter(text: &str, name: &str) -> Option<u64> {
    let (names, values) = text.split_once('\n')?;
    let mut both = names.split_whitespace().zip(values.split_whitespace());
    both.find(|(found, _)| *found == name)?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_found_by_name() {
        assert_eq!(snmp_counter("Udp: InDatagrams NoPorts\nUdp: 31 0\n", "NoPorts"), Some(0));
        assert_eq!(snmp_counter("Udp: InDatagrams NoPorts\nUdp: 31 0\n", "InDatagrams"), Some(31));
        let hw = "/sys/hw_counters/rcvd_pkts:7\n/sys/hw_counters/sent_pkts:8\n";
        assert_eq!(hw_counter(hw, "sent_pkts").unwrap(), 8);
        assert!(hw_counter(hw, "icrc").is_err());
    }
}
