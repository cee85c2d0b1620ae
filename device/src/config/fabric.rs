//! Fabric configuration: how frames travel between devices.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use card::fabric::ring;
use card::fabric::tap::{self, InterfaceName};
use card::fabric::udp::UdpPeer;
use control_api::peer::{PeerAddr, UdpPeerEntry};
use control_api::runtime_folder;
use engine::Mtu;
use protocol::ids::MacAddr;
use rustix::net::SocketAddrUnix;
use schemars::JsonSchema;
use serde::Deserialize;

use super::device::{lid, unicast_mac};
use super::named_peer::NamedPeer;
use super::{ConfigError, value};

/// The fabric that connects a device to its peers.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FabricEntry {
    /// One UDP datagram per Ethernet frame. Compatible with QEMU's `-netdev dgram`.
    Udp(UdpEntry),
    /// Shared memory between devices in the same hcad process.
    Local(LocalEntry),
    /// Shared memory between devices in different processes on this host.
    Ring(RingEntry),
    /// A Linux tap interface, for bridges, VXLAN and other host networks.
    Tap(TapEntry),
}

/// Settings for the `ring` fabric.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RingEntry {
    /// Ring directory. All devices that use the same directory are connected to each other, even if they belong to
    /// different hcad processes. These processes must run as the same user. Each device creates a socket in the
    /// directory. If the directory does not exist, hcad creates it. Default: `ring` in the runtime directory
    /// ($RUNTIME_DIRECTORY if set, otherwise $XDG_RUNTIME_DIR/hcad if $XDG_RUNTIME_DIR is set, otherwise /run/hcad).
    pub folder: Option<PathBuf>,
}

/// Settings for the `local` fabric.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LocalEntry {
    /// Name of the local network. All devices in this hcad process that use the same name are connected to each
    /// other.
    pub network: String,
}

impl Default for LocalEntry {
    fn default() -> Self {
        Self { network: "local".to_owned() }
    }
}

/// Settings for the `tap` fabric.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TapEntry {
    /// Name of the tap interface. With CAP_NET_ADMIN, hcad creates the interface if it does not exist.
    /// Without CAP_NET_ADMIN, the interface must exist and be accessible to the user that runs hcad (`ip
    /// tuntap add dev NAME mode tap user USER`). The interface MTU must be large enough for the path MTU
    /// (4200 bytes for a path MTU of 4096). If the device is a NIC, the interface MTU must also be large
    /// enough for the MTU that the guest sets.
    pub interface: String,
    /// The port's maximum path MTU: 256, 512, 1024, 2048 or 4096. Default: the largest path MTU that fits
    /// the interface MTU when hcad starts. An interface created by hcad has an MTU of 1500, which allows
    /// a path MTU of 1024. This setting does not affect drivers that choose the path MTU themselves, such as
    /// the E810 driver.
    pub path_mtu: Option<u16>,
}

/// Settings for the `udp` fabric.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UdpEntry {
    /// Local address and port on which the device receives frames.
    pub bind: SocketAddr,
    /// Peers with which the device exchanges frames. Frames from other addresses are dropped.
    pub peers: Vec<UdpPeerEntry>,
}

/// A checked fabric configuration.
#[derive(Clone, Debug)]
pub enum FabricConfig {
    Udp {
        bind: SocketAddr,
        peers: Vec<UdpPeer>,
        /// Peers that are specified by DNS name.
        named: Vec<NamedPeer>,
    },
    Local {
        network: String,
    },
    Ring {
        folder: PathBuf,
        /// Path of the device's socket in the ring directory.
        socket: PathBuf,
    },
    Tap {
        interface: InterfaceName,
        path_mtu: Mtu,
    },
}

/// Checks a peer. `key` is the prefix of the peer's configuration keys in messages.
///
/// # Errors
/// [`ConfigError::Value`] if a value is invalid.
pub fn check_peer(entry: &UdpPeerEntry, key: &str) -> Result<UdpPeer, ConfigError> {
    let addr = match &entry.addr {
        PeerAddr::Address(addr) => *addr,
        PeerAddr::Host { .. } | PeerAddr::Service(_) => {
            return Err(value(
                &format!("{key}addr"),
                format!("{} is not of the form ADDRESS:PORT", entry.addr),
            ));
        }
    };
    if addr.port() == 0 {
        return Err(value(&format!("{key}addr"), "port 0 is not a valid destination"));
    }
    let ip = addr.ip();
    if !is_unicast(ip) {
        return Err(value(&format!("{key}addr"), format!("{ip} is not a unicast address")));
    }
    Ok(UdpPeer {
        addr,
        mac: check_mac(entry, key)?,
        leaf: entry.leaf,
        max_frames_per_second: entry.max_frames_per_second,
    })
}

/// Returns whether an address can be a peer's address.
pub(crate) fn is_unicast(ip: IpAddr) -> bool {
    !ip.is_unspecified() && !ip.is_multicast() && ip != IpAddr::V4(Ipv4Addr::BROADCAST)
}

/// Returns whether the kernel can reject a socket with one of these addresses while another socket uses the other.
pub(super) fn binds_overlap(a: SocketAddr, b: SocketAddr) -> bool {
    // ip(7): a socket bound to the unspecified address uses its port on all addresses.
    a.port() == b.port() && (a.ip() == b.ip() || a.ip().is_unspecified() || b.ip().is_unspecified())
}

/// Returns the MAC that an entry reserves for its peer, if any.
pub(super) fn check_mac(entry: &UdpPeerEntry, key: &str) -> Result<Option<MacAddr>, ConfigError> {
    let by_id = entry.id.map(|id| lid(id, &format!("{key}id")).map(MacAddr::from_lid)).transpose()?;
    let mac = entry.mac.as_deref().map(|text| unicast_mac(text, &format!("{key}mac"))).transpose()?;
    if by_id.is_some() && mac.is_some() {
        return Err(value(&format!("{key}mac"), "conflicts with `id`, which already determines the MAC"));
    }
    Ok(mac.or(by_id))
}

impl FabricConfig {
    /// Checks the configuration of a fabric. `own` is the device's MAC, and `key` is the fabric's configuration key,
    /// for error messages.
    pub(super) fn check(entry: FabricEntry, own: MacAddr, key: &str) -> Result<Self, ConfigError> {
        match entry {
            FabricEntry::Udp(udp) => Self::check_udp(&udp, own, &format!("{key}.udp")),
            FabricEntry::Local(LocalEntry { network }) => Ok(Self::Local { network }),
            FabricEntry::Ring(RingEntry { folder }) => {
                let folder = folder.unwrap_or_else(runtime_folder::ring);
                if folder.as_os_str().is_empty() {
                    return Err(value(&format!("{key}.ring.folder"), "the path is empty"));
                }
                let socket = ring::socket_path(&folder, own);
                if let Err(error) = SocketAddrUnix::new(&socket) {
                    let problem = format!("{} cannot be used as a socket path: {error}", socket.display());
                    return Err(value(&format!("{key}.ring.folder"), problem));
                }
                Ok(Self::Ring { folder, socket })
            }
            FabricEntry::Tap(TapEntry { interface, path_mtu }) => {
                let name = InterfaceName::try_from(interface);
                let interface = name.map_err(|problem| value(&format!("{key}.tap.interface"), problem))?;
                let path_mtu = match path_mtu {
                    None => tap::path_mtu(&interface),
                    Some(bytes) => {
                        let known = Mtu::ALL.into_iter().find(|mtu| mtu.bytes() == usize::from(bytes));
                        let wrong = || format!("{bytes} is not 256, 512, 1024, 2048 or 4096");
                        known.ok_or_else(|| value(&format!("{key}.tap.path_mtu"), wrong()))?
                    }
                };
                Ok(Self::Tap { interface, path_mtu })
            }
        }
    }

    fn check_udp(udp: &UdpEntry, own: MacAddr, key: &str) -> Result<Self, ConfigError> {
        let bind = udp.bind;
        if bind.ip().is_multicast() || bind.ip() == IpAddr::V4(Ipv4Addr::BROADCAST) {
            return Err(value(&format!("{key}.bind"), format!("{} is not a unicast address", bind.ip())));
        }
        let mut peers: Vec<UdpPeer> = Vec::with_capacity(udp.peers.len());
        let mut named: Vec<NamedPeer> = Vec::new();
        let mut macs = HashMap::new();
        for (index, entry) in udp.peers.iter().enumerate() {
            let key = format!("{key}.peers[{index}].");
            let wrong = |name, problem| Err(value(&format!("{key}{name}"), problem));
            let mac = if let Some(peer) = NamedPeer::check(entry, &key)? {
                if named.iter().any(|earlier| earlier.name == peer.name) {
                    return wrong("addr", format!("{} is already a peer", entry.addr));
                }
                named.push(peer);
                named.last().and_then(|peer| peer.mac)
            } else {
                let peer = check_peer(entry, &key)?;
                let addr = peer.addr;
                if addr.is_ipv4() != bind.is_ipv4() {
                    return wrong("addr", format!("{addr} and `bind` {bind} must have the same IP version"));
                }
                // A socket bound to the unspecified address also receives on loopback addresses.
                let is_bound =
                    addr.ip() == bind.ip() || bind.ip().is_unspecified() && addr.ip().is_loopback();
                if is_bound && addr.port() == bind.port() {
                    return wrong("addr", format!("{addr} is this device's own address"));
                }
                if peers.iter().any(|earlier| earlier.addr == addr) {
                    return wrong("addr", format!("{addr} is already a peer"));
                }
                peers.push(peer);
                peer.mac
            };
            if let Some(mac) = mac {
                if mac == own {
                    return wrong("mac", format!("{mac} is this device's own MAC"));
                }
                if let Some(other) = macs.insert(mac, index) {
                    return wrong("mac", format!("{mac} is already used by peers[{other}]"));
                }
            }
        }
        Ok(Self::Udp { bind, peers, named })
    }

    /// Returns the peers that are specified by DNS name.
    pub fn named_peers(&self) -> &[NamedPeer] {
        match self {
            Self::Udp { named, .. } => named,
            Self::Local { .. } | Self::Ring { .. } | Self::Tap { .. } => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{check, device};
    use super::*;

    #[test]
    fn udp_peer_mac_is_derived_or_explicit() {
        let peer = |extra: &str| {
            let peer = format!(r#""peers": [{{"addr": "127.0.0.1:7001" {extra}}}]"#);
            check(&device("").replace(r#""peers": []"#, &peer)).map(|config| {
                match &config.devices[0].fabric {
                    FabricConfig::Udp { peers, .. } => peers[0].mac.map(|mac| mac.to_string()),
                    other => panic!("{other:?}"),
                }
            })
        };
        assert_eq!(peer(""), Ok(None));
        assert_eq!(peer(r#", "id": 259"#), Ok(Some("02:00:00:00:01:03".to_owned())));
        assert_eq!(peer(r#", "mac": "52:54:00:00:00:09""#), Ok(Some("52:54:00:00:00:09".to_owned())));
        for (extra, problem) in [
            (r#", "id": 0"#, "devices[0].fabric.udp.peers[0].id: 0 is not between 1 and 49150"),
            (
                r#", "id": 3, "mac": "52:54:00:00:00:09""#,
                "devices[0].fabric.udp.peers[0].mac: conflicts with `id`",
            ),
        ] {
            let error = peer(extra).unwrap_err();
            assert!(error.contains(problem), "{error}");
        }
    }

    #[test]
    fn tap_name_must_be_valid_interface_name() {
        let tap = |name: &str| {
            let device = format!(
                r#"{{"id": 1, "frontend": {{"jingzhao": {{}}}}, "fabric": {{"tap": {{"interface": "{name}"}}}}}}"#
            );
            check(&device).map(drop)
        };
        assert_eq!(tap("hca-tap.0"), Ok(()));
        for name in ["", "sixteen-letters-", "a b", "a/b", "..", "tap%d", "a:1", "\u{e4}"] {
            let error = tap(name).unwrap_err();
            assert!(error.starts_with("devices[0].fabric.tap.interface: "), "{error}");
        }
    }

    #[test]
    fn tap_path_mtu_must_be_infiniband_mtu() {
        let tap = |more: &str| {
            let device = format!(
                r#"{{"id": 1, "frontend": {{"mthca": {{}}}}, "fabric": {{"tap": {{"interface": "no-such-tap" {more}}}}}}}"#
            );
            check(&device).map(|config| match config.devices[0].fabric {
                FabricConfig::Tap { path_mtu, .. } => path_mtu.bytes(),
                ref other => panic!("{other:?}"),
            })
        };
        assert_eq!((tap(r#", "path_mtu": 2048"#), tap("")), (Ok(2048), Ok(1024)));
        let error = tap(r#", "path_mtu": 1500"#).unwrap_err();
        assert_eq!(error, "devices[0].fabric.tap.path_mtu: 1500 is not 256, 512, 1024, 2048 or 4096");
    }

    #[test]
    fn rejects_self_and_duplicate_peers() {
        let peers = |bind: &str, peers: &str| {
            let entry = device("").replace(
                r#""bind": "127.0.0.1:7000", "peers": []"#,
                &format!(r#""bind": "{bind}", "peers": [{peers}]"#),
            );
            check(&entry).map(drop)
        };
        let ours = r#"{"addr": "127.0.0.1:7000"}"#;
        let others = r#"{"addr": "127.0.0.1:7001"}, {"addr": "127.0.0.1:7002"}"#;
        assert_eq!(peers("127.0.0.1:7000", others), Ok(()));
        assert_eq!(peers("127.0.0.1:7003", ours), Ok(()));
        let key = "devices[0].fabric.udp.peers";
        let mac = r#""mac": "52:54:00:00:00:07""#;
        for (bind, list, message) in [
            ("127.0.0.1:7000", ours.to_owned(), "[0].addr: 127.0.0.1:7000 is this device's own address"),
            ("0.0.0.0:7000", ours.to_owned(), "[0].addr: 127.0.0.1:7000 is this device's own address"),
            ("127.0.0.1:7003", format!("{ours}, {ours}"), "[1].addr: 127.0.0.1:7000 is already a peer"),
            (
                "127.0.0.1:7000",
                format!(r#"{{"addr": "127.0.0.1:1", {mac}}}, {{"addr": "127.0.0.1:2", {mac}}}"#),
                "[1].mac: 52:54:00:00:00:07 is already used by peers[0]",
            ),
            (
                "127.0.0.1:7000",
                r#"{"addr": "127.0.0.1:1", "mac": "02:00:00:00:01:02"}"#.to_owned(),
                "[0].mac: 02:00:00:00:01:02 is this device's own MAC",
            ),
            (
                "127.0.0.1:7000",
                r#"{"addr": "239.1.1.1:1"}"#.to_owned(),
                "[0].addr: 239.1.1.1 is not a unicast address",
            ),
            (
                "127.0.0.1:7000",
                r#"{"addr": "0.0.0.0:1"}"#.to_owned(),
                "[0].addr: 0.0.0.0 is not a unicast address",
            ),
        ] {
            let error = peers(bind, &list).unwrap_err();
            assert!(error.starts_with(&format!("{key}{message}")), "{error:?} should contain {message:?}");
        }
    }
}
