//! Which devices there are, as those who serve others see them, and what they ask to be changed of that.

use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Map, Value};
use tokio::sync::{mpsc, oneshot, watch};

use super::call::Handle;
use super::message::Reloaded;
use crate::identity::Identity;
use crate::record::Header;

/// Bound: changes that wait. As many as there are control clients, each of which waits for one at a time.
const CHANGES: usize = 16;

/// A device that runs.
#[derive(Debug)]
pub struct Device {
    /// Number.
    pub id: u16,
    /// Device interface, by its key in the configuration.
    pub interface: &'static str,
    /// Interface name in captures.
    pub name: String,
    /// Addresses.
    pub identity: Identity,
    /// Socket of the VMM.
    pub socket: Option<PathBuf>,
    /// Bound of a capture, bytes.
    pub capture_max_bytes: u64,
    /// Bound of a trace, bytes.
    pub trace_max_bytes: u64,
    /// Bound of a record, bytes.
    pub record_max_bytes: u64,
    /// What a record says of it.
    pub header: Header,
    /// Its thread.
    pub handle: Handle,
}

/// All devices at one moment, in the order in which they came.
pub type Devices = Arc<[Arc<Device>]>;

/// All devices from now on.
pub type Roster = watch::Receiver<Devices>;

/// A request that changes which devices there are. One after the other is carried out; a refusal is a line for people, and
/// nothing has changed then.
#[derive(Debug)]
pub enum Change {
    /// One more, by its entry in a configuration. Gives its number and its socket.
    Add(Map<String, Value>, oneshot::Sender<Result<(u16, Option<PathBuf>), String>>),
    /// One less.
    Remove(u16, oneshot::Sender<Result<(), String>>),
    /// Those that this text of a configuration says.
    Reload(String, oneshot::Sender<Result<Reloaded, String>>),
}

/// Where changes are asked for, and where they are carried out.
pub fn changes() -> (mpsc::Sender<Change>, mpsc::Receiver<Change>) {
    mpsc::channel(CHANGES)
}
