//! GIDs derived from the addresses of a network device and its VLANs.

use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::{SECOND, VLAN};
use crate::scenario::nic::roce::DEVICE;
use crate::scenario::nic::station::Station;
use crate::tools::{Exchange, Ready};

/// TCP port of the ping-pong servers.
const PORT: u16 = 18515;
const LIMIT: Duration = Duration::from_secs(60);

/// The cases: a description of the GID, its network, and whether it is an IPv6 GID.
pub(super) const CASES: &[(&str, u16, bool)] = &[
    ("a second IPv4 address", SECOND, false),
    ("a second IPv6 address", SECOND, true),
    ("an IPv4 address in a VLAN", VLAN, false),
    ("an IPv6 address in a VLAN", VLAN, true),
];

pub(super) const PROGRAMS: &[&str] = &["ibv_rc_pingpong -n 200", "ibv_ud_pingpong -n 200 -s 1000"];

/// Runs a program between the two guests, using their GIDs on `network`. The program checks the received data.
pub(super) async fn ping_pong(
    a: &mut Station,
    b: &mut Station,
    program: &str,
    network: u16,
    ipv6: bool,
) -> Result<()> {
    let line = |index: usize| format!("{program} -c -d {DEVICE} -g {index}");
    let (of_a, of_b) = (index(a, network, ipv6).await?, index(b, network, ipv6).await?);
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

/// Returns the index of the GID for a station's address on `network`.
async fn index(station: &mut Station, network: u16, ipv6: bool) -> Result<usize> {
    let address = station.address(network);
    let wanted = text(if ipv6 { address.ipv6.parse()? } else { address.ipv4.parse()? });
    let gids = all(station).await?;
    gids.lines().position(|gid| gid == wanted).with_context(|| format!("no GID {wanted} in {gids}"))
}

/// Returns a station's GIDs, in index order.
pub(super) async fn all(station: &mut Station) -> Result<String> {
    let folder = format!("/sys/class/infiniband/{DEVICE}/ports/1/gids");
    station.sh(&format!("cd {folder} && cat $(seq 0 31)")).await
}

/// Formats the GID for an address as the kernel does.
pub(super) fn text(address: IpAddr) -> String {
    let gid = match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    Ipv6Addr::segments(&gid).map(|group| format!("{group:04x}")).join(":")
}
