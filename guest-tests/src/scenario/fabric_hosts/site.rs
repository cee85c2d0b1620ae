//! Three hosts on one Ethernet network.
//!
//! ```text
//!   host 1: eth0 192.0.2.1 --(veth)-- port1 of br0 in the namespace "wire", and so on
//! ```

use anyhow::{Context as _, Result, ensure};

use crate::scenario::namespace::Namespace;

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

/// Returns the address of a host on the Ethernet network.
pub(super) fn address(host: usize) -> String {
    format!("192.0.2.{}", host + 1)
}

fn port(host: usize) -> String {
    format!("port{}", host + 1)
}

impl Site {
    pub(super) async fn create() -> Result<Self> {
        ensure!(std::path::Path::new("/dev/net/tun").exists(), "/dev/net/tun does not exist");
        let wire = Namespace::create("wire").await?;
        wire.ip(&["link", "add", "br0", "type", "bridge"]).await?;
        wire.ip(&["link", "set", "br0", "up"]).await?;
        let mut hosts = Vec::new();
        for number in 0..HOSTS {
            let host = Namespace::create(&format!("host{}", number + 1)).await?;
            let veth = ["type", "veth", "peer", "eth0", "netns", host.name()];
            wire.ip(&[&["link", "add", &port(number)][..], &veth].concat()).await?;
            wire.ip(&["link", "set", &port(number), "master", "br0", "up"]).await?;
            host.ip(&["address", "add", &format!("{}/24", address(number)), "dev", "eth0"]).await?;
            host.ip(&["link", "set", "eth0", "up"]).await?;
            host.ip(&["tuntap", "add", "dev", TAP, "mode", "tap"]).await?;
            hosts.push(host);
        }
        Ok(Self { hosts, wire })
    }

    pub(super) fn hosts(&self) -> &[Namespace] {
        &self.hosts
    }

    /// Connects all tap interfaces through a VXLAN over the Ethernet network, which gets the given MTU.
    pub(super) async fn join_by_vxlan(&self, mtu: u16) -> Result<()> {
        let (outer, inner) = (mtu.to_string(), (mtu - VXLAN_OVERHEAD).to_string());
        self.wire.ip(&["link", "set", "br0", "mtu", &outer]).await?;
        for (number, host) in self.hosts.iter().enumerate() {
            self.wire.ip(&["link", "set", &port(number), "mtu", &outer]).await?;
            host.ip(&["link", "set", "eth0", "mtu", &outer]).await?;
            // On the first call, these interfaces do not exist yet.
            let _ = host.ip(&["link", "delete", "vx0"]).await;
            let _ = host.ip(&["link", "delete", "br0"]).await;
            host.ip(&["link", "add", "br0", "mtu", &inner, "type", "bridge"]).await?;
            let local = address(number);
            let vxlan = ["type", "vxlan", "id", "7", "dstport", VXLAN_PORT, "local", &local];
            host.ip(&[&["link", "add", "vx0", "mtu", &inner][..], &vxlan].concat()).await?;
            for other in (0..HOSTS).filter(|other| *other != number) {
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
            // The IP part has two lines: names, and values in the same order.
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
