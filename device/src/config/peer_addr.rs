//! The address of a UDP peer, given as an IP address or a host name.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::sync::{Mutex, MutexGuard, PoisonError};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Longest name of a host (RFC 1035, section 2.3.4).
const MAX_NAME_LEN: usize = 253;

/// An address or a host name, with a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub enum PeerAddr {
    /// An address.
    Address(SocketAddr),
    /// A name, which is looked up once.
    Name {
        /// Host name of the peer.
        host: String,
        /// UDP port of the peer.
        port: u16,
    },
}

impl PeerAddr {
    /// Resolves the peer for a socket bound to `bind`. A host name resolves to its first address of the same
    /// IP version, or to its previous address if it can no longer be resolved.
    pub(super) fn resolve(&self, bind: SocketAddr) -> Result<SocketAddr, String> {
        let (host, port) = match self {
            Self::Address(addr) => return Ok(*addr),
            Self::Name { host, port } => (host, *port),
        };
        let name = (host.clone(), bind.is_ipv4());
        let mut found = match ((host.as_str(), port).to_socket_addrs(), known().get(&name)) {
            (Ok(found), _) => found,
            (Err(_), Some(before)) => return Ok(SocketAddr::new(*before, port)),
            (Err(error), None) => return Err(format!("cannot resolve {host:?}: {error}")),
        };
        let addr = found.find(|addr| addr.is_ipv4() == bind.is_ipv4()).ok_or_else(|| {
            let version = if bind.is_ipv4() { 4 } else { 6 };
            format!("{host:?} has no IPv{version} address, but this device receives on {bind}")
        })?;
        known().insert(name, addr.ip());
        Ok(addr)
    }
}

/// Returns the host names resolved so far, by IP version. A sandboxed process cannot resolve them again.
fn known() -> MutexGuard<'static, BTreeMap<(String, bool), IpAddr>> {
    static KNOWN: Mutex<BTreeMap<(String, bool), IpAddr>> = Mutex::new(BTreeMap::new());
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
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
            // A malformed IP address is not a host name.
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

    #[test]
    fn name_resolves_to_local_ip_version() {
        let name = PeerAddr::try_from("localhost:7".to_owned()).unwrap();
        let bind = SocketAddr::from(([127, 0, 0, 1], 1));
        assert_eq!(name.resolve(bind), Ok(SocketAddr::from(([127, 0, 0, 1], 7))));
        let nobody = PeerAddr::try_from("nobody.invalid:7".to_owned()).unwrap();
        assert!(nobody.resolve(bind).unwrap_err().starts_with("cannot resolve \"nobody.invalid\": "));
    }
}
