//! VLANs with customer tags, with service tags, and with both. The NIC inserts and strips customer tags.

use anyhow::{Result, ensure};

use super::net::Wire;
use super::ping;
use super::station::{Station, bring_up};
use super::streams::{Amount, Protocol, Streams};

/// VLAN IDs, including both ends of the valid range.
const FIRST: u16 = 1;
const LAST: u16 = 4094;
const SERVICE: u16 = 300;
const INNER: u16 = 301;

/// Checks two VLANs concurrently. They must carry the same kinds of traffic as the untagged network, and a VLAN with
/// only one member must not carry any.
pub(super) async fn customer(a: &mut Station, b: &mut Station, wire: Wire) -> Result<()> {
    for vlan in [FIRST, LAST] {
        // Assign a priority to the frames in this VLAN.
        add(a, "802.1Q", vlan, "egress-qos-map 0:5").await?;
        add(b, "802.1Q", vlan, "egress-qos-map 0:5").await?;
    }
    let result = talk(a, b, wire).await;
    for vlan in [FIRST, LAST] {
        remove(a, vlan).await?;
        remove(b, vlan).await?;
    }
    result
}

async fn talk(a: &mut Station, b: &mut Station, wire: Wire) -> Result<()> {
    for vlan in [FIRST, LAST] {
        let address = b.address(vlan);
        ping::some_sizes(a, &address.ipv4, wire).await?;
        ping::one_size(a, &address.ipv6, 1000, wire).await?;
    }
    let streams =
        Streams { protocol: Protocol::Tcp, count: 1, back: false, ipv6: false, amount: Amount::Mib(8) };
    streams.arrive(a, b, LAST, wire).await?;
    Streams { back: true, ipv6: true, ..streams }.arrive(a, b, LAST, wire).await?;
    Streams { protocol: Protocol::Udp, amount: Amount::Seconds(1), ..streams }
        .arrive(a, b, LAST, wire)
        .await?;
    // Only one of the stations is a member of this VLAN.
    let only = 77;
    add(a, "802.1Q", only, "").await?;
    let silence = a.sh(&format!("ping -n -q -c 2 -i 0.2 -W 1 {}; true", b.address(only).ipv4)).await;
    remove(a, only).await?;
    let silence = silence?;
    ensure!(silence.contains(" 0 received"), "{silence}");
    Ok(())
}

/// Checks service tags and customer tags inside service tags. The kernel, not the NIC, inserts and strips service tags.
pub(super) async fn service(a: &mut Station, b: &mut Station, wire: Wire) -> Result<()> {
    for station in [&mut *a, &mut *b] {
        add(station, "802.1ad", SERVICE, "").await?;
        let inner = format!("ip link add link vlan{SERVICE} name vlan{INNER} type vlan id {INNER}");
        station.sh(&inner).await?;
        let address = station.address(INNER);
        bring_up(&mut station.vm, &format!("vlan{INNER}"), &address).await?;
    }
    let result = async {
        for vlan in [SERVICE, INNER] {
            ping::some_sizes(a, &b.address(vlan).ipv4, wire).await?;
        }
        let streams =
            Streams { protocol: Protocol::Tcp, count: 1, back: false, ipv6: false, amount: Amount::Mib(4) };
        streams.arrive(a, b, SERVICE, wire).await
    }
    .await;
    for station in [a, b] {
        // Removing the outer device also removes the inner one.
        remove(station, SERVICE).await?;
    }
    result
}

async fn add(station: &mut Station, protocol: &str, vlan: u16, options: &str) -> Result<()> {
    let device = station.device.clone();
    let command = format!(
        "ip link add link {device} name vlan{vlan} type vlan protocol {protocol} id {vlan} {options}"
    );
    station.sh(&command).await?;
    let address = station.address(vlan);
    bring_up(&mut station.vm, &format!("vlan{vlan}"), &address).await
}

async fn remove(station: &mut Station, vlan: u16) -> Result<()> {
    station.sh(&format!("ip link del vlan{vlan}")).await.map(drop)
}
