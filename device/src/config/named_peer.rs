//! Peers that the configuration specifies by DNS name.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;

use card::fabric::udp::UdpPeer;
use control_api::peer::{PeerAddr, UdpPeerEntry};
use protocol::ids::MacAddr;

use super::fabric::check_mac;
use super::{ConfigError, value};

/// A peer, or a set of peers, whose addresses are in DNS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedPeer {
    pub name: PeerName,
    /// Configured MAC. It belongs to a single peer, so if it is set, only one of the name's addresses is used.
    pub mac: Option<MacAddr>,
    pub leaf: bool,
    /// Rate limit for frames from each peer.
    pub max_frames_per_second: Option<NonZeroU32>,
}

/// A DNS name in lower case. A name without a final dot is subject to the resolver's search list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerName {
    /// All addresses of a host, each with this UDP port.
    Host { host: Arc<str>, port: u16 },
    /// The targets of the name's SRV records (RFC 2782).
    Service(Arc<str>),
}

impl NamedPeer {
    /// Checks an entry. Returns `None` if the entry has an address instead of a name. `key` is the prefix of the
    /// entry's configuration keys, for error messages.
    pub(super) fn check(entry: &UdpPeerEntry, key: &str) -> Result<Option<Self>, ConfigError> {
        let lower = |name: &str| name.to_ascii_lowercase().into();
        let name = match &entry.addr {
            PeerAddr::Address(_) => return Ok(None),
            PeerAddr::Host { port: 0, .. } => {
                return Err(value(&format!("{key}addr"), "port 0 is not a valid destination"));
            }
            PeerAddr::Host { host, port } => PeerName::Host { host: lower(host), port: *port },
            PeerAddr::Service(name) => PeerName::Service(lower(name)),
        };
        let mac = check_mac(entry, key)?;
        if let (PeerName::Service(name), Some(_)) = (&name, mac) {
            let own = if entry.id.is_some() { "id" } else { "mac" };
            let problem = format!("belongs to one peer, but {name} is a service, which can have several");
            return Err(value(&format!("{key}{own}"), problem));
        }
        let UdpPeerEntry { leaf, max_frames_per_second, .. } = *entry;
        Ok(Some(Self { name, mac, leaf, max_frames_per_second }))
    }

    /// Returns the peer at one of the name's addresses.
    pub fn at(&self, addr: SocketAddr) -> UdpPeer {
        let Self { mac, leaf, max_frames_per_second, .. } = *self;
        UdpPeer { addr, mac, leaf, max_frames_per_second }
    }
}

#[cfg(test)]
mod tests {
    use super::super::FabricConfig;
    use super::super::tests::{check, device};
    use super::*;

    fn named(peers: &str) -> Result<Vec<NamedPeer>, String> {
        let device = device("").replace(r#""peers": []"#, &format!(r#""peers": [{peers}]"#));
        check(&device).map(|config| match &config.devices[0].fabric {
            FabricConfig::Udp { named, .. } => named.clone(),
            other => panic!("{other:?}"),
        })
    }

    #[test]
    fn peers_specified_by_dns_name_are_parsed() {
        let found = named(
            r#"{"addr": "Host-B.lab:47911", "id": 2}, {"addr": "_hcad._udp.lab", "leaf": true}, {"addr": "127.0.0.1:9"}"#,
        )
        .unwrap();
        let host = PeerName::Host { host: "host-b.lab".into(), port: 47911 };
        assert_eq!((&found[0].name, found[0].mac), (&host, Some(MacAddr([2, 0, 0, 0, 0, 2]))));
        assert_eq!((&found[1].name, found[1].leaf), (&PeerName::Service("_hcad._udp.lab".into()), true));
        assert_eq!(found.len(), 2);
    }

    #[test]
    fn rejects_invalid_peers_specified_by_name() {
        let key = "devices[0].fabric.udp.peers";
        for (peers, message) in [
            (
                r#"{"addr": "_hcad._udp.lab", "id": 2}"#,
                "[0].id: belongs to one peer, but _hcad._udp.lab is a service, which can have several",
            ),
            (r#"{"addr": "lab:0"}"#, "[0].addr: port 0 is not a valid destination"),
            (r#"{"addr": "lab:1"}, {"addr": "LAB:1"}"#, "[1].addr: LAB:1 is already a peer"),
            (
                r#"{"addr": "127.0.0.1:9", "id": 2}, {"addr": "lab:1", "id": 2}"#,
                "[1].mac: 02:00:00:00:00:02 is already used by peers[0]",
            ),
        ] {
            let error = named(peers).unwrap_err();
            assert_eq!(error, format!("{key}{message}"));
        }
    }
}
