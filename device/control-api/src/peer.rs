//! Entry for a peer on the `udp` fabric. Such entries appear in the configuration and in requests.

use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroU32;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Error message for a device whose fabric has no list of peers.
pub const NO_PEER_LIST: &str = "this device's fabric has no peer list; only UDP and ring fabrics have one";

/// A device's peer on the `udp` fabric.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UdpPeerEntry {
    /// The peer's address and port (ADDRESS:PORT). The configuration file can specify a DNS name instead: either
    /// HOST:PORT, where each address of HOST is a peer, or the name of an SRV record (_SERVICE._udp.DOMAIN), where
    /// each address of each target is a peer. hcad looks up the name again when its TTL expires, but at most once per
    /// second and at least once per hour. After an answer without records, hcad looks up the name again within
    /// 30 seconds. The device's own address is never a peer.
    pub addr: PeerAddr,
    /// The peer's device number, 1 to 49150. The peer's MAC is derived from this number. Cannot be combined with `mac`
    /// or with the name of an SRV record. If `id` is set and HOST has several addresses, only the lowest one is a peer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<u16>,
    /// The peer's MAC address. Frames with this source MAC are accepted only from this peer. If unset, hcad learns the
    /// address from the peer's frames, and no other peer can use the address while this peer is active. Cannot be
    /// combined with the name of an SRV record. If `mac` is set and HOST has several addresses, only the lowest one is
    /// a peer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
    /// Whether the peer is a leaf. A leaf, such as QEMU's `-netdev dgram`, sends only to this device. The
    /// device forwards frames between leaves and all other peers. Any two peers that are not leaves must also
    /// be peers of each other.
    #[serde(default)]
    pub leaf: bool,
    /// Maximum number of frames per second that the device accepts from the peer. Excess frames are dropped.
    /// Default: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_frames_per_second: Option<NonZeroU32>,
}

/// Maximum length of a host name (RFC 1035, section 2.3.4).
const MAX_NAME_LEN: usize = 253;

/// Maximum length of a label in a host name (RFC 1035, section 2.3.4).
const MAX_LABEL_LEN: usize = 63;

/// An address or a host name, with a port, or the name of a service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub enum PeerAddr {
    /// An address.
    Address(SocketAddr),
    /// A host name, whose A or AAAA records contain the addresses.
    Host {
        /// Host name of the peer.
        host: String,
        /// UDP port of the peer.
        port: u16,
    },
    /// A service name, whose SRV records (RFC 2782) contain the host names and ports.
    Service(String),
}

impl From<SocketAddr> for PeerAddr {
    fn from(addr: SocketAddr) -> Self {
        Self::Address(addr)
    }
}

impl TryFrom<String> for PeerAddr {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        if let Ok(addr) = text.parse() {
            return Ok(Self::Address(addr));
        }
        let named = text.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse().ok()?)));
        match named {
            Some((host, port)) if is_name(host) && !host.starts_with('_') => {
                Ok(Self::Host { host: host.to_owned(), port })
            }
            None if is_service(&text) => Ok(Self::Service(text)),
            _ => Err(format!("{text:?} is none of ADDRESS:PORT, HOST:PORT and _SERVICE._udp.DOMAIN")),
        }
    }
}

fn is_name(text: &str) -> bool {
    // Require a letter so that a malformed IPv4 address is not mistaken for a host name.
    text.len() <= MAX_NAME_LEN
        && text.bytes().any(|byte| byte.is_ascii_alphabetic())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_'))
        && text
            .strip_suffix('.')
            .unwrap_or(text)
            .split('.')
            .all(|label| (1..=MAX_LABEL_LEN).contains(&label.len()))
}

fn is_service(text: &str) -> bool {
    let mut labels = text.split('.');
    let service = labels.next().is_some_and(|label| label.len() > 1 && label.starts_with('_'));
    let protocol = labels.next().is_some_and(|label| label.eq_ignore_ascii_case("_udp"));
    service && protocol && labels.next().is_some() && is_name(text)
}

impl From<PeerAddr> for String {
    fn from(addr: PeerAddr) -> Self {
        addr.to_string()
    }
}

impl fmt::Display for PeerAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(addr) => addr.fmt(f),
            Self::Host { host, port } => write!(f, "{host}:{port}"),
            Self::Service(name) => f.write_str(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_names_are_distinguished() {
        let parse = |text: &str| PeerAddr::try_from(text.to_owned());
        assert_eq!(parse("127.0.0.1:7"), Ok(SocketAddr::from(([127, 0, 0, 1], 7)).into()));
        assert!(matches!(parse("[::1]:7"), Ok(PeerAddr::Address(addr)) if addr.is_ipv6()));
        assert_eq!(parse("host-b.lab:47911"), Ok(PeerAddr::Host { host: "host-b.lab".into(), port: 47911 }));
        let service = "_hcad._udp.lab.example";
        assert_eq!(parse(service), Ok(PeerAddr::Service(service.to_owned())));
        for wrong in
            ["_hcad._udp.lab:7", "_hcad._tcp.lab", "_._udp.lab", "_hcad._udp", "_hcad._udp..lab", "a..b:7"]
        {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        for wrong in ["127.0.0:7", "::1:7", "host", "host:", "host:70000", ":7", "ho st:7", "a/b:7"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        assert!(parse(&format!("{}:7", "a".repeat(254))).is_err());
        assert_eq!(String::from(parse("host-b.lab:47911").unwrap()), "host-b.lab:47911");
    }
}
