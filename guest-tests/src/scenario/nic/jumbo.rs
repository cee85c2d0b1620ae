//! MTUs from the IPv6 minimum to the device's maximum.

use anyhow::{Result, ensure};

use super::net::Wire;
use super::ping;
use super::station::{Station, carrier};
use super::streams::{Amount, Protocol, Streams};

/// MTUs to test: the IPv6 minimum, two values in between, and the largest that the driver accepts (E810 interface,
/// section 6.1).
pub(super) const MTUS: &[u32] = &[1280, 4000, 9000, 9702];
/// The default MTU for Ethernet.
const USUAL: u32 = 1500;
/// Total length of the IP and ICMP headers for each IP version.
const IPV4_ECHO: u32 = 28;
const IPV6_ECHO: u32 = 48;

/// Checks that MTU-sized packets pass in both directions, that longer packets are rejected locally, and that streams
/// arrive.
pub(super) async fn mtu(a: &mut Station, b: &mut Station, mtu: u32, wire: Wire) -> Result<()> {
    set(a, mtu).await?;
    set(b, mtu).await?;
    let result = passes(a, b, mtu, wire).await;
    set(a, USUAL).await?;
    set(b, USUAL).await?;
    result
}

async fn passes(a: &mut Station, b: &mut Station, mtu: u32, wire: Wire) -> Result<()> {
    let (to_b, to_a) = (b.address(0), a.address(0));
    ping::one_size(a, &to_b.ipv4, mtu - IPV4_ECHO, wire).await?;
    ping::one_size(a, &to_b.ipv6, mtu - IPV6_ECHO, wire).await?;
    ping::one_size(b, &to_a.ipv4, mtu - IPV4_ECHO, wire).await?;
    let too_long =
        a.sh(&format!("ping -n -c 1 -W 1 -M do -s {} {} 2>&1; true", mtu - IPV4_ECHO + 1, to_b.ipv4)).await?;
    ensure!(too_long.contains("essage too long"), "{too_long}");
    let streams =
        Streams { protocol: Protocol::Tcp, count: 1, back: false, ipv6: false, amount: Amount::Mib(4) };
    streams.arrive(a, b, 0, wire).await?;
    Streams { back: true, ipv6: true, ..streams }.arrive(a, b, 0, wire).await
}

async fn set(station: &mut Station, mtu: u32) -> Result<()> {
    let device = station.device.clone();
    station.sh(&format!("ip link set {device} mtu {mtu}")).await?;
    carrier(&mut station.vm, &device, true).await
}
