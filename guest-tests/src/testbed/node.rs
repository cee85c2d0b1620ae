//! One testbed across several hosts. Each `guest-lab node` boots one guest and is given the hosts of all guests.
//!
//! The guests' devices are peers on the `udp` fabric. The guests' Ethernet traffic uses the same fabric. Each guest's
//! NIC is connected to the guest's own device, which forwards the NIC's frames.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use anyhow::{Context as _, Result, bail, ensure};
use tokio::net::lookup_host;

use super::MOST_GUESTS;
use super::slurm::Task;
use crate::daemon::{HcaSpec, Peer};

/// Arguments that describe the guests of a testbed on several hosts.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct NodeArgs {
    /// Number of the guest to boot, starting at 0 [default: the number of this Slurm task]
    #[arg(long, value_name = "N", requires = "hosts")]
    rank: Option<u8>,
    /// Host of each guest, in the order of the guests' numbers; a host with several guests is repeated [default: the
    /// hosts of the Slurm job step]
    #[arg(long, value_name = "HOST,...", value_delimiter = ',', requires = "rank")]
    hosts: Vec<String>,
    /// First UDP port of the guests' devices, and TCP port on the host of guest 0; each additional guest uses the next
    /// UDP port
    #[arg(long, value_name = "PORT", default_value_t = 47911)]
    port: u16,
}

/// One guest of a testbed on several hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Node {
    /// Guest number, starting at 0.
    pub(super) rank: u8,
    /// Host of each guest.
    pub(super) hosts: Vec<String>,
    pub(super) port: u16,
    /// Text that distinguishes this testbed from others that use the same port.
    pub(super) job: String,
}

impl NodeArgs {
    /// Returns the guest described by the arguments or, without a rank, by the environment.
    ///
    /// # Errors
    /// Fails if the description is incomplete or the testbed is too large.
    pub(super) fn node(&self, variable: impl Fn(&str) -> Option<String>) -> Result<Node> {
        let port = self.port;
        let node = match self.rank {
            Some(rank) => Node { rank, hosts: self.hosts.clone(), port, job: String::new() },
            None => match Task::of(variable)? {
                Some(Task { rank, hosts, step }) => Node { rank, hosts, port, job: step },
                None => {
                    bail!("not in a Slurm job step; start this command with srun, or pass --rank and --hosts")
                }
            },
        };
        let size = node.hosts.len();
        ensure!(size <= usize::from(MOST_GUESTS), "--hosts: too many hosts (maximum {MOST_GUESTS})");
        ensure!(usize::from(node.rank) < size, "--rank: guest {} of {size} does not exist", node.rank);
        ensure!(node.hosts.iter().all(|host| !host.is_empty()), "--hosts: the name of a host is empty");
        ensure!(
            port != 0 && usize::from(port) + size <= 1 << 16,
            "--port: {port} leaves no room for {size} ports"
        );
        Ok(node)
    }
}

impl Node {
    /// Returns the number of guests.
    pub(super) fn size(&self) -> u8 {
        u8::try_from(self.hosts.len()).unwrap_or(MOST_GUESTS)
    }

    /// Returns the HCA number of the guest's device.
    pub(super) fn id(&self) -> u16 {
        u16::from(self.rank) + 1
    }

    /// Returns the UDP port of a guest's device.
    fn port_of(&self, rank: usize) -> u16 {
        self.port.saturating_add(u16::try_from(rank).unwrap_or_default())
    }

    /// Returns the address that this guest's NIC uses to reach the guest's device.
    pub(super) fn gate(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port_of(self.rank.into())).into()
    }

    /// Returns the settings of this guest's device. `nic` is the address of the guest's NIC.
    ///
    /// # Errors
    /// Fails if a host's name has no IPv4 address.
    pub(super) async fn device(&self, nic: SocketAddr) -> Result<HcaSpec> {
        let mut peers = vec![Peer { addr: nic, leaf: true, id: None }];
        for (rank, host) in self.hosts.iter().enumerate().filter(|(rank, _)| *rank != usize::from(self.rank))
        {
            let ip = self.ip_of(host).await?;
            let id = u16::try_from(rank)? + 1;
            peers.push(Peer { addr: (ip, self.port_of(rank)).into(), leaf: false, id: Some(id) });
        }
        let [example, _] = HcaSpec::pair()?;
        Ok(HcaSpec {
            id: self.id(),
            default_peer: 1 + u16::from(self.rank == 0),
            bind: (Ipv4Addr::UNSPECIFIED, self.port_of(self.rank.into())).into(),
            peers,
            ..example
        })
    }

    /// Returns a host's address. Uses the system's resolver, as Slurm does.
    ///
    /// # Errors
    /// Fails if the name has no IPv4 address.
    pub(super) async fn ip_of(&self, host: &str) -> Result<Ipv4Addr> {
        // Use the loopback address, since frames sent to this host's name may arrive from another of its addresses.
        if self.hosts.get(usize::from(self.rank)).is_some_and(|own| own == host) {
            return Ok(Ipv4Addr::LOCALHOST);
        }
        let found = lookup_host((host, 0)).await.with_context(|| format!("cannot look up host {host}"))?;
        let ipv4 = |addr: SocketAddr| match addr.ip() {
            IpAddr::V4(ip) => Some(ip),
            IpAddr::V6(_) => None,
        };
        found.filter_map(ipv4).next().with_context(|| format!("host {host} has no IPv4 address"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(rank: u8, hosts: &[&str], port: u16) -> NodeArgs {
        NodeArgs { rank: Some(rank), hosts: hosts.iter().map(|&host| host.to_owned()).collect(), port }
    }

    #[test]
    fn invalid_rank_hosts_or_port_options_are_rejected() {
        let node = |args: NodeArgs| args.node(|_| None);
        assert_eq!(node(written(1, &["n1", "n2"], 4000)).unwrap().size(), 2);
        for bad in
            [written(2, &["n1", "n2"], 4000), written(0, &["n1", ""], 4000), written(0, &["n1"; 33], 4000)]
        {
            assert!(node(bad.clone()).is_err(), "{bad:?}");
        }
        assert!(
            node(written(0, &["n1", "n2"], 65_535)).is_err() && node(written(0, &["n1"], 65_535)).is_ok()
        );
        let none = NodeArgs { rank: None, hosts: Vec::new(), port: 1 };
        assert!(node(none).unwrap_err().to_string().contains("srun"));
    }

    #[tokio::test]
    async fn device_has_all_other_guests_as_peers() {
        let node = written(1, &["127.0.0.2", "n1", "n1"], 4000).node(|_| None).unwrap();
        let spec = node.device(([127, 0, 0, 1], 9).into()).await.unwrap();
        let peers: Vec<_> =
            spec.peers.iter().map(|peer| (peer.addr.to_string(), peer.leaf, peer.id)).collect();
        let peer = |addr: &str, leaf, id| (addr.to_owned(), leaf, id);
        let expected = [
            peer("127.0.0.1:9", true, None),
            peer("127.0.0.2:4000", false, Some(1)),
            peer("127.0.0.1:4002", false, Some(3)),
        ];
        assert_eq!(peers, expected);
        assert_eq!((spec.id, spec.bind.to_string()), (2, "0.0.0.0:4001".into()));
    }
}
