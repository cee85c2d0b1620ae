//! Tunnels between two stations. The kernel builds both the inner and the outer headers.

use anyhow::Result;

use super::net::Wire;
use super::ping;
use super::station::{Station, bring_up, load};
use super::streams::{Amount, Protocol, Streams};

#[derive(Clone, Copy, Debug)]
pub(super) struct Tunnel {
    pub(super) name: &'static str,
    module: &'static str,
    /// Link type and options of the tunnel device, without its addresses.
    link: &'static str,
    /// Network number inside the tunnel, which determines the stations' addresses.
    network: u16,
}

pub(super) const ALL: &[Tunnel] = &[
    Tunnel { name: "VXLAN", module: "vxlan", link: "vxlan id 42 dstport 4789", network: 601 },
    Tunnel { name: "Geneve", module: "geneve", link: "geneve id 42", network: 602 },
    Tunnel { name: "GRE", module: "ip_gre", link: "gre", network: 603 },
    Tunnel { name: "Ethernet over GRE", module: "ip_gre", link: "gretap", network: 604 },
    Tunnel { name: "IP over IP", module: "ipip", link: "ipip", network: 605 },
];

/// Name of the tunnel device.
const DEVICE: &str = "tunnel";

impl Tunnel {
    /// Checks ping with several packet sizes, TCP streams in both directions and UDP streams in one direction.
    pub(super) async fn carries(&self, a: &mut Station, b: &mut Station) -> Result<()> {
        self.add(a, b).await?;
        self.add(b, a).await?;
        let result = self.talk(a, b).await;
        for station in [a, b] {
            station.sh(&format!("ip link del {DEVICE}")).await?;
        }
        result
    }

    async fn add(&self, station: &mut Station, peer: &Station) -> Result<()> {
        load(&mut station.vm, &[self.module]).await?;
        let (own, remote, device) = (station.address(0).ipv4, peer.address(0).ipv4, station.device.clone());
        let ends = if self.module == "geneve" {
            format!("remote {remote}")
        } else {
            format!("local {own} remote {remote} dev {device}")
        };
        station.sh(&format!("ip link add {DEVICE} type {} {ends}", self.link)).await?;
        let address = station.address(self.network);
        bring_up(&mut station.vm, DEVICE, &address).await
    }

    async fn talk(&self, a: &mut Station, b: &mut Station) -> Result<()> {
        let streams =
            Streams { protocol: Protocol::Tcp, count: 4, back: false, ipv6: false, amount: Amount::Mib(8) };
        ping::some_sizes(a, &b.address(self.network).ipv4, Wire::Good).await?;
        streams.arrive(a, b, self.network, Wire::Good).await?;
        Streams { back: true, ..streams }.arrive(a, b, self.network, Wire::Good).await?;
        Streams { protocol: Protocol::Udp, amount: Amount::Seconds(1), ..streams }
            .arrive(a, b, self.network, Wire::Good)
            .await
    }
}
