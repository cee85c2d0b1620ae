//! Three hosts on one Ethernet. The hosts and the network between them are network namespaces, so a scenario does not
//! change the network of the machine it runs on.
//!
//! ```text
//!   host 1: eth0 192.0.2.1 --(veth)-- port1 of br0 in the namespace "wire", and so on
//! ```

pub(super) mod host;

use std::net::{Ipv4Addr, Ipv6Addr};

use anyhow::{Context as _, Result, ensure};

use super::namespace::Namespace;

pub(super) const HOSTS: usize = 3;
/// Name of the HCA's tap interface on each host.
pub(super) const TAP: &str = "tap0";
/// Total length of the headers that a VXLAN over IPv4 adds to a frame: Ethernet, IPv4, UDP and VXLAN (RFC 7348, section
/// 5).
const VXLAN_OVERHEAD: u16 = 50;
const VXLAN_PORT: &str = "4789";

/// Network namespaces that act as hosts.
#[derive(Debug)]
pub(super) struct Site {
    hosts: Vec<Namespace>,
    wire: Namespace,
}

/// Returns an IPv4 address on the Ethernet. Host `n` (counted from 0) has number `n + 1`.
pub(super) fn ipv4(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(192, 0, 2, number)
}

/// Returns an IPv6 address on the Ethernet.
pub(super) fn ipv6(number: u8) -> Ipv6Addr {
    Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, number.into())
}

/// Returns the number at the end of a host's own addresses.
pub(super) fn number(host: usize) -> u8 {
    u8::try_from(host).unwrap_or(u8::MAX).saturating_add(1)
}

/// Returns a host's IPv4 address on the Ethernet.
pub(super) fn address(host: usize) -> String {
    ipv4(number(host)).to_string()
}

fn port(host: usize) -> String {
    format!("port{}", host + 1)
}

impl Site {
    /// Creates the hosts. `name` distinguishes the sites of scenarios that run in parallel.
    pub(super) async fn create(name: &str) -> Result<Self> {
        let wire = Namespace::create(&format!("{name}-wire")).await?;
        wire.ip(&["link", "add", "br0", "type", "bridge"]).await?;
        wire.ip(&["link", "set", "br0", "up"]).await?;
        let mut hosts = Vec::new();
        for index in 0..HOSTS {
            let host = Namespace::create(&format!("{name}-host{}", index + 1)).await?;
            let veth = ["type", "veth", "peer", "eth0", "netns", host.name()];
            wire.ip(&[&["link", "add", &port(index)][..], &veth].concat()).await?;
            wire.ip(&["link", "set", &port(index), "master", "br0", "up"]).await?;
            add_ipv4(&host, "eth0", number(index)).await?;
            host.ip(&["link", "set", "eth0", "up"]).await?;
            hosts.push(host);
        }
        Ok(Self { hosts, wire })
    }

    pub(super) fn hosts(&self) -> &[Namespace] {
        &self.hosts
    }

    /// Returns the namespace of the network itself.
    pub(super) fn wire(&self) -> &Namespace {
        &self.wire
    }

    /// Adds an IPv4 address to the network's own namespace for servers to use.
    pub(super) async fn add_server(&self, number: u8) -> Result<()> {
        add_ipv4(&self.wire, "br0", number).await
    }

    /// Replaces a host's IPv4 address.
    pub(super) async fn renumber(&self, host: usize, number: u8) -> Result<()> {
        let host = self.hosts.get(host).context("no such host")?;
        host.ip(&["-4", "address", "flush", "dev", "eth0"]).await?;
        add_ipv4(host, "eth0", number).await
    }

    /// Adds an IPv6 address to each host.
    pub(super) async fn add_ipv6(&self) -> Result<()> {
        for (index, host) in self.hosts.iter().enumerate() {
            // The addresses are unique, so do not wait for duplicate address detection.
            let address = format!("{}/64", ipv6(number(index)));
            host.ip(&["address", "add", &address, "dev", "eth0", "nodad"]).await?;
        }
        Ok(())
    }

    /// Creates the HCAs' tap interfaces.
    pub(super) async fn add_taps(&self) -> Result<()> {
        ensure!(std::path::Path::new("/dev/net/tun").exists(), "/dev/net/tun does not exist");
        for host in &self.hosts {
            host.ip(&["tuntap", "add", "dev", TAP, "mode", "tap"]).await?;
        }
        Ok(())
    }

    /// Connects all tap interfaces through a VXLAN over an Ethernet with the given MTU.
    pub(super) async fn join_by_vxlan(&self, mtu: u16) -> Result<()> {
        let (outer, inner) = (mtu.to_string(), (mtu - VXLAN_OVERHEAD).to_string());
        self.wire.ip(&["link", "set", "br0", "mtu", &outer]).await?;
        for (index, host) in self.hosts.iter().enumerate() {
            self.wire.ip(&["link", "set", &port(index), "mtu", &outer]).await?;
            host.ip(&["link", "set", "eth0", "mtu", &outer]).await?;
            // On the first call, these interfaces do not exist yet.
            let _ = host.ip(&["link", "delete", "vx0"]).await;
            let _ = host.ip(&["link", "delete", "br0"]).await;
            host.ip(&["link", "add", "br0", "mtu", &inner, "type", "bridge"]).await?;
            let local = address(index);
            let vxlan = ["type", "vxlan", "id", "7", "dstport", VXLAN_PORT, "local", &local];
            host.ip(&[&["link", "add", "vx0", "mtu", &inner][..], &vxlan].concat()).await?;
            for other in (0..HOSTS).filter(|other| *other != index) {
                // Flood broadcast frames and frames to unknown destinations to each of the other hosts.
                let to = address(other);
                host.exec(&["bridge", "fdb", "append", "00:00:00:00:00:00", "dev", "vx0", "dst", &to])
                    .await?;
            }
            for port in ["vx0", TAP] {
                host.ip(&["link", "set", port, "mtu", &inner, "master", "br0", "up"]).await?;
            }
            host.ip(&["link", "set", "br0", "up"]).await?;
        }
        Ok(())
    }

    /// Returns the number of IPv4 fragments that the hosts have created.
    pub(super) async fn fragments(&self) -> Result<u64> {
        let mut sum = 0;
        for host in &self.hosts {
            // The IP part has two lines: names and values in the same order.
            let table = host.exec(&["cat", "/proc/net/snmp"]).await?;
            let mut lines = table.lines().filter_map(|line| line.strip_prefix("Ip: "));
            let names = lines.next().context("no IP counter names")?;
            let values = lines.next().context("no IP counter values")?;
            let mut counters = names.split_whitespace().zip(values.split_whitespace());
            let (_, made) = counters.find(|(name, _)| *name == "FragCreates").context("no FragCreates")?;
            sum += made.parse::<u64>()?;
        }
        Ok(sum)
    }
}

async fn add_ipv4(host: &Namespace, interface: &str, number: u8) -> Result<()> {
    host.ip(&["address", "add", &format!("{}/24", ipv4(number)), "dev", interface]).await
}
