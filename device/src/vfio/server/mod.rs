//! The server side of the vfio-user protocol: one client at a time on a Unix socket, never blocking.
//!
//! - [`Listener`] owns the socket's place in the file system and accepts clients.
//! - [`Connection`] moves bytes and descriptors of one client; its owner calls [`Connection::serve`] when the socket
//!   is ready.
//! - `session` turns each message into calls of a [`Device`] and a reply. It does no I/O.
//!
//! The client is not trusted. What it sends wrongly but inside a well-formed message is answered with an errno; what
//! breaks the framing ends the connection ([`Gone`]), and only that.
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

pub use connection::{Connection, Gone, Served};
pub use input::Violation;
pub use listener::{Access, ListenError, Listener, Source, keep_probe};
pub use message::{MAX_TRANSFER_LEN, Region};
pub use stats::MessageStats;

use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::msix::Interrupts;
use crate::memory::GuestMemory;

/// What the protocol serves.
///
/// Ranges are inside the region when they arrive here. Messages are served strictly one after the other, so whatever
/// a call does is done before the client's next message and before the reply.
pub trait Device {
    /// Bytes of a region; 0 if there is none.
    fn region_len(&self, region: Region) -> u64;

    /// The file behind a region, if the client may map it: all of the region, from the file's first byte on. What is
    /// stored there makes no message.
    fn region_file(&mut self, region: Region) -> Option<Arc<OwnedFd>> {
        let _ = region;
        None
    }

    /// Reads bytes of a region.
    fn region_read(&mut self, region: Region, offset: u64, out: &mut [u8]);

    /// Writes bytes of a region.
    fn region_write(&mut self, region: Region, offset: u64, data: &[u8]);

    /// Where ranges of the client's memory are kept. Nothing touches an old range after an unmap returned: DMA
    /// happens only inside calls, on the one thread that also unmaps.
    fn memory(&mut self) -> &mut GuestMemory;

    /// The MSI-X vectors.
    fn interrupts(&mut self) -> &mut Interrupts;

    /// Resets the function.
    fn reset(&mut self);
}
