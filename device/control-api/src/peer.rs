//! Entry for a peer on the `udp` fabric. Such entries appear in the configuration and in requests.

use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroU32;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A device's peer on the `udp` fabric.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UdpPeerEntry {
    /// The peer's address and port. The configuration file can specify a host name instead of an address.
    /// hcad resolves the name when it loads the file.
    pub addr: PeerAddr,
    /// The peer's device number, 1 to 49150. The peer's MAC is derived from this number. Cannot be combined
    /// with `mac`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<u16>,
    /// The peer's MAC address. Frames with this source MAC are accepted only from this peer. If unset, hcad
    /// learns the address from the peer's frames, and no other peer can use the address while this peer is
    /// active.
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

/// An address or a host name, with a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub enum PeerAddr {
    /// An address.
    Address(SocketAddr),
    /// A name, which is resolved each time the configuration is loaded.
    Name {
        /// Host name of the peer.
        host: String,
        /// UDP port of the peer.
        port: u16,
    },
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
        let is_name = |host: &str| {
            // Require a letter, so that a malformed IPv4 address is not taken for a host name.
            host.len() <= MAX_NAME_LEN
                && host.bytes().any(|byte| byte.is_ascii_alphabetic())
                && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_'))
        };
        match named {
            Some((host, port)) if is_name(host) => Ok(Self::Name { host: host.to_owned(), port }),
            _ => Err(format!("{text:?} is neither ADDRESS:PORT nor HOST:PORT")),
        }
    }
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
            Self::Name { host, port } => write!(f, "{host}:{port}"),
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
        assert_eq!(parse("host-b.lab:47911"), Ok(PeerAddr::Name { host: "host-b.lab".into(), port: 47911 }));
        for wrong in ["127.0.0:7", "::1:7", "host", "host:", "host:70000", ":7", "ho st:7", "a/b:7"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        assert!(parse(&format!("{}:7", "a".repeat(254))).is_err());
        assert_eq!(String::from(parse("host-b.lab:47911").unwrap()), "host-b.lab:47911");
    }
}
