//! Peers that a device's configuration specifies by DNS name.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use card::fabric::switch::ResolvedPeer;

use crate::config::{DeviceConfig, FabricConfig, NamedPeer};

/// The named peers of a device.
#[derive(Debug)]
pub struct PeerNames {
    pub bind: SocketAddr,
    pub entries: Vec<NamedPeer>,
    pub resolved: ResolvedPeers,
}

impl PeerNames {
    /// Returns a device's named peers, if it has any. `resolved` will hold the peers found through DNS.
    pub fn of(device: &DeviceConfig, resolved: &ResolvedPeers) -> Option<Self> {
        match &device.fabric {
            FabricConfig::Udp { bind, named, .. } if !named.is_empty() => {
                Some(Self { bind: *bind, entries: named.clone(), resolved: resolved.clone() })
            }
            _ => None,
        }
    }
}

/// The result of the last DNS lookup of a device's named peers. A device that is re-created after a failure starts with
/// this result.
#[derive(Clone, Debug, Default)]
pub struct ResolvedPeers(Arc<Mutex<Vec<ResolvedPeer>>>);

impl ResolvedPeers {
    pub fn get(&self) -> Vec<ResolvedPeer> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn set(&self, peers: Vec<ResolvedPeer>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = peers;
    }
}
