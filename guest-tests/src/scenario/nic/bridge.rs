//! Hosts behind a macvlan or a bridge on a station. Each host is a network namespace.

use anyhow::Result;

use super::net::Wire;
use super::ping;
use super::station::{Address, Station};
use crate::scenario::nic::station::carrier;

/// Difference between a station's number and that of the host behind it.
const BEHIND: u16 = 100;
/// Network namespace that acts as the host behind a station.
const SPACE: &str = "behind";

/// Checks that station `a` can reach a host behind a macvlan on station `b`. The host has its own MAC address, which
/// the NIC must accept.
pub(super) async fn macvlan(a: &mut Station, b: &mut Station, wire: Wire) -> Result<()> {
    let device = b.device.clone();
    let make = format!("ip link add link {device} name inside type macvlan mode bridge");
    reached(a, b, &make, wire).await
}

/// Checks that station `a` can reach a host behind a bridge on station `b`. The bridge puts the NIC into promiscuous
/// mode.
pub(super) async fn bridge(a: &mut Station, b: &mut Station, wire: Wire) -> Result<()> {
    let device = b.device.clone();
    let make = format!(
        "ip link add br0 type bridge forward_delay 0 && ip link set br0 up && \
         ip link set {device} master br0 && ip link add inside type veth peer name outside && \
         ip link set outside master br0 up"
    );
    let result = reached(a, b, &make, wire).await;
    b.sh("ip link del br0").await?;
    carrier(&mut b.vm, &device, true).await?;
    result
}

async fn reached(a: &mut Station, b: &mut Station, make: &str, wire: Wire) -> Result<()> {
    let address = Address::on(0, b.id + BEHIND);
    let Address { ipv4, ipv6 } = &address;
    let settle = format!(
        "ip netns add {SPACE} && {make} && ip link set inside netns {SPACE} && \
         ip -n {SPACE} address add {ipv4}/24 dev inside && \
         ip -n {SPACE} address add {ipv6}/64 dev inside nodad && ip -n {SPACE} link set inside up"
    );
    // Flush the neighbour entries for the previous host, which had the same IP addresses but a different MAC address.
    let device = a.device.clone();
    a.sh(&format!("ip neighbour flush dev {device}")).await?;
    let result = async {
        b.sh(&settle).await?;
        ping::until_answered(a, ipv4).await?;
        ping::some_sizes(a, ipv4, wire).await?;
        ping::one_size(a, ipv6, 1400, wire).await
    }
    .await;
    // Deleting the namespace also deletes its interfaces.
    b.sh(&format!("ip netns del {SPACE}")).await?;
    result
}
