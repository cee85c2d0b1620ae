//! The server side of the vfio-user protocol: one client at a time on a Unix socket, without blocking.
//!
//! - [`Listener`] owns the socket file and accepts clients.
//! - [`Connection`] moves the bytes and descriptors of one client. Its owner calls [`Connection::serve`] when the
//!   socket is ready.
//! - `session` executes each message on a [`Device`] and builds the reply. It does no I/O.
//!
//! The client is untrusted. If the content of a well-formed message is invalid, the reply carries an errno. A framing
//! error ends this client's connection ([`ConnectionError`]), but does not affect other devices.
//!
//! # Spec
//! QEMU documentation, "vfio-user Protocol Specification", version 0.1; structures of `linux/vfio.h`.

mod connection;
mod input;
mod irqs;
mod listener;
mod message;
mod session;
mod stats;
#[cfg(test)]
mod tests;

pub use connection::{Connection, ConnectionError, Served};
pub use input::ProtocolError;
pub use listener::{Access, ListenError, Listener, Source, keep_probe};
pub use message::{MAX_TRANSFER_LEN, Region};
pub use stats::MessageStats;

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::msix::Interrupts;
use crate::memory::GuestMemory;

/// The file behind a region.
#[derive(Clone, Debug)]
pub struct RegionFile {
    /// Offsets in the file equal offsets in the region.
    pub file: Arc<OwnedFd>,
    /// Offsets that the client may map. Accesses to the rest of the region arrive as messages.
    pub offsets: Range<u64>,
}

/// A device exposed through the protocol.
///
/// Callers pass only ranges that lie inside the region. Messages are served strictly in order: the effects of a call
/// are complete before the reply is sent and before the client's next message is served.
pub trait Device {
    /// Returns the length of a region in bytes, or 0 if the region does not exist.
    fn region_len(&self, region: Region) -> u64;

    /// Returns the file behind a region if the client may map all or part of the region. Stores to the mapping do not
    /// trigger messages.
    fn region_file(&mut self, region: Region) -> Option<RegionFile> {
        let _ = region;
        None
    }

    fn region_read(&mut self, region: Region, offset: u64, out: &mut [u8]);

    fn region_write(&mut self, region: Region, offset: u64, data: &[u8]);

    /// Returns the client's memory. A range is never accessed after it has been unmapped, because DMA happens only
    /// inside calls to the device, on the thread that also unmaps.
    fn memory(&mut self) -> &mut GuestMemory;

    fn interrupts(&mut self) -> &mut Interrupts;

    fn reset(&mut self);
}
