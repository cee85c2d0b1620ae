//! The set of running devices, as seen by the control and metrics servers, and requests to change this set.

use std::path::PathBuf;
use std::sync::Arc;

use card::identity::Identity;
use card::record::Header;
use control_api::message::Reloaded;
use serde_json::{Map, Value};
use tokio::sync::{mpsc, oneshot, watch};

use super::call::Handle;
use super::named_peers::PeerNames;

/// Maximum number of pending changes. Each control client waits for one change at a time, so the limit equals the
/// maximum number of clients.
const CHANGES: usize = 16;

#[derive(Debug)]
pub struct Device {
    pub id: u16,
    /// Configuration key of the device interface.
    pub interface: &'static str,
    /// Name of the interface in captures.
    pub name: String,
    pub identity: Identity,
    /// Path of the VMM socket.
    pub socket: Option<PathBuf>,
    pub capture_max_bytes: u64,
    pub trace_max_bytes: u64,
    pub record_max_bytes: u64,
    pub header: Header,
    /// Peers that are specified by DNS name, if there are any.
    pub names: Option<PeerNames>,
    pub handle: Handle,
}

/// A snapshot of all devices, in order of creation.
pub type Devices = Arc<[Arc<Device>]>;

/// The current set of devices.
pub type DeviceRegistry = watch::Receiver<Devices>;

/// A request that changes the set of devices. Changes are executed one after another. A failed change has no effect and
/// returns a one-line error.
#[derive(Debug)]
pub enum Change {
    /// Adds a device from its configuration entry. Returns the device's ID and socket path.
    Add(Map<String, Value>, oneshot::Sender<Result<(u16, Option<PathBuf>), String>>),
    Remove(u16, oneshot::Sender<Result<(), String>>),
    /// Applies the text of a configuration.
    Reload(String, oneshot::Sender<Result<Reloaded, String>>),
}

/// Creates the channel for requests that change the set of devices.
pub fn changes() -> (mpsc::Sender<Change>, mpsc::Receiver<Change>) {
    mpsc::channel(CHANGES)
}
