//! Resolves host names of UDP peers.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::sync::{Mutex, MutexGuard, PoisonError};

use control_api::peer::PeerAddr;

/// Resolves the peer for a socket bound to `bind`. A host name resolves to its first address with the same IP version
/// as `bind`, or to its previous address if the name can no longer be resolved.
pub(super) fn resolve(peer: &PeerAddr, bind: SocketAddr) -> Result<SocketAddr, String> {
    let (host, port) = match peer {
        PeerAddr::Address(addr) => return Ok(*addr),
        PeerAddr::Name { host, port } => (host, *port),
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

/// Returns the cache of resolved addresses, keyed by host name and whether the address is IPv4. A sandboxed process
/// cannot resolve the names again.
fn known() -> MutexGuard<'static, BTreeMap<(String, bool), IpAddr>> {
    static KNOWN: Mutex<BTreeMap<(String, bool), IpAddr>> = Mutex::new(BTreeMap::new());
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peer_name_resolves_to_bind_ip_version() {
        let name = PeerAddr::try_from("localhost:7".to_owned()).unwrap();
        let bind = SocketAddr::from(([127, 0, 0, 1], 1));
        assert_eq!(resolve(&name, bind), Ok(SocketAddr::from(([127, 0, 0, 1], 7))));
        let nobody = PeerAddr::try_from("nobody.invalid:7".to_owned()).unwrap();
        assert!(resolve(&nobody, bind).unwrap_err().starts_with("cannot resolve \"nobody.invalid\": "));
    }
}
