//! Fabrics carry Ethernet frames between HCAs and NICs. They handle MAC addresses, never QPs.

pub mod impair;
pub mod local;
mod macs;
pub mod padding;
pub mod ring;
mod rx_batch;
mod sources;
pub mod switch;
pub mod tap;
mod tx_batch;
pub mod udp;
mod wake_flag;

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use protocol::roce::MAX_OFFLOADED_PAYLOAD;
pub use rx_batch::{Arrival, RxBatch};
use serde::{Deserialize, Serialize};
pub use tx_batch::{Origin, TxBatch};

use self::ring::MemberRow;
use self::switch::Switch;

/// Maximum number of frame bytes sent to or received from shared memory in one turn of the event loop. The last frame
/// may exceed this limit. Frames up to this limit, together with an equal amount of guest memory, should still be in
/// the L2 cache when the receiver reads them.
pub(crate) const MEMORY_TURN_BYTES: usize = 256 << 10;

/// Longest frame that a fabric carries: that of a ConnectX at its largest MTU. No other front-end sends longer frames.
/// A RoCE packet with a 4096-byte payload needs less than half of this.
pub const MAX_FRAME_LEN: usize = 9974;

/// Number of bytes at the beginning of a RoCE frame that contain all headers, even with a VLAN tag, IPv6 and all
/// extension headers.
pub const HEADERS_LEN: usize = 128;

/// Longest frame with segmentation offload, carried only by fabrics without ICRCs.
pub const MAX_OFFLOADED_FRAME_LEN: usize = MAX_OFFLOADED_PAYLOAD + HEADERS_LEN;

/// Shortest frame that a fabric carries: a bare Ethernet header. A fabric does not require padding.
pub const MIN_FRAME_LEN: usize = 14;

/// Whether a fabric accepted the whole batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// All frames were sent, and the batch is empty.
    All,
    /// The kernel's buffer or the receiver's ring is full. Unsent frames remain in the batch. Before sending them, wait
    /// until the descriptor is ready.
    Blocked,
}

/// Carries frames between devices. No call blocks.
pub trait Fabric {
    /// Sends the frames of `batch` in order and removes them from it. A frame that the network rejects is lost, as on a
    /// wire, but the loss is counted.
    fn send(&mut self, batch: &mut TxBatch) -> Sent;

    /// Replaces the content of `batch` with the received frames, in order of arrival.
    ///
    /// # Errors
    /// Fails if the descriptor is unusable.
    fn recv(&mut self, batch: &mut RxBatch) -> io::Result<()>;

    /// Releases the memory of the frames that [`Fabric::recv`] has put into `batch`, and empties the batch.
    fn release(&mut self, batch: &mut RxBatch) {
        batch.clear();
    }

    /// Returns a descriptor that becomes readable when frames arrive, and readable or writable when sending is no
    /// longer blocked.
    fn as_fd(&self) -> BorrowedFd<'_>;

    /// Handles fabric events. Call this when the descriptor is readable.
    ///
    /// # Errors
    /// Fails if the descriptor is unusable.
    fn handle_ready(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Returns the maximum time to wait for the descriptor after [`Sent::Blocked`], or `None` if there is no limit.
    /// After this time, call [`Fabric::send`] again even if the descriptor is not ready.
    fn retry_after(&self) -> Option<Duration> {
        None
    }

    /// Returns whether frames have arrived. Call this between [`Fabric::disable_wakeups`] and
    /// [`Fabric::enable_wakeups`], when the descriptor need not report arriving frames.
    fn has_frames(&self) -> bool {
        false
    }

    /// Returns whether every packet needs a frame of its own, with an ICRC. Shared-memory fabrics need neither: they do
    /// not corrupt frames, and computing an ICRC costs more than moving the frame.
    fn needs_icrc(&self) -> bool {
        true
    }

    /// Returns whether the payload of the frames to send may be [detached](engine::DetachedPayload). If so,
    /// [`Fabric::send`] copies the payload of all frames, including those that remain in the batch.
    fn takes_detached_payload(&self) -> bool {
        false
    }

    /// Returns whether [`Fabric::has_frames`] reports all frames. If it does, the descriptor need not be polled.
    fn is_memory(&self) -> bool {
        false
    }

    /// Returns the maximum number of frame bytes handled in one turn of the event loop. The last frame may exceed this
    /// limit. Sockets have no limit, since the kernel copies the frames immediately and larger batches need fewer
    /// turns.
    fn turn_bytes(&self) -> usize {
        if self.is_memory() { MEMORY_TURN_BYTES } else { usize::MAX }
    }

    /// Enables wake-ups through the descriptor before the thread blocks. Returns false if frames have already
    /// arrived.
    fn enable_wakeups(&mut self) -> bool {
        true
    }

    /// Disables wake-up notifications while the thread runs.
    fn disable_wakeups(&mut self) {}

    fn stats(&mut self) -> FabricStats;

    /// Makes the fabric also deliver frames for MACs that do not belong to a device. NICs filter these frames
    /// themselves.
    fn set_promiscuous(&mut self) {}

    /// Returns the switch with the peers of a `udp` fabric, or `None` for any other fabric.
    fn switch(&mut self) -> Option<&mut Switch> {
        None
    }

    /// Returns the members of a `ring` network, or `None` for any other fabric.
    fn members(&self) -> Option<Vec<MemberRow>> {
        None
    }
}

impl<F: Fabric + ?Sized> Fabric for Box<F> {
    fn send(&mut self, batch: &mut TxBatch) -> Sent {
        (**self).send(batch)
    }

    fn recv(&mut self, batch: &mut RxBatch) -> io::Result<()> {
        (**self).recv(batch)
    }

    fn release(&mut self, batch: &mut RxBatch) {
        (**self).release(batch);
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        (**self).as_fd()
    }

    fn handle_ready(&mut self) -> io::Result<()> {
        (**self).handle_ready()
    }

    fn retry_after(&self) -> Option<Duration> {
        (**self).retry_after()
    }

    fn has_frames(&self) -> bool {
        (**self).has_frames()
    }

    fn is_memory(&self) -> bool {
        (**self).is_memory()
    }

    fn turn_bytes(&self) -> usize {
        (**self).turn_bytes()
    }

    fn needs_icrc(&self) -> bool {
        (**self).needs_icrc()
    }

    fn takes_detached_payload(&self) -> bool {
        (**self).takes_detached_payload()
    }

    fn enable_wakeups(&mut self) -> bool {
        (**self).enable_wakeups()
    }

    fn disable_wakeups(&mut self) {
        (**self).disable_wakeups();
    }

    fn stats(&mut self) -> FabricStats {
        (**self).stats()
    }

    fn set_promiscuous(&mut self) {
        (**self).set_promiscuous();
    }

    fn switch(&mut self) -> Option<&mut Switch> {
        (**self).switch()
    }

    fn members(&self) -> Option<Vec<MemberRow>> {
        (**self).members()
    }
}

/// Counters of one fabric.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FabricStats {
    /// Frames passed to the network. A flooded frame counts once for each peer.
    pub tx_frames: u64,
    /// Send calls, each of which can send several frames.
    pub tx_calls: u64,
    pub rx_frames: u64,
    /// Frames rejected by the network.
    pub tx_refused: u64,
    /// NIC frames dropped because their source MAC belongs to another device.
    pub tx_foreign_mac: u64,
    /// NIC frames dropped because their source IP address belongs to another member.
    #[serde(default)]
    pub tx_foreign_ip: u64,
    /// Frames without a destination: no peer exists, the frame is a reply to an unknown peer, the peer's name has no
    /// address in DNS, or the frame is addressed to its own sender.
    pub tx_no_peer: u64,
    /// Frames from an address that is not configured as a peer.
    pub rx_stranger: u64,
    /// Frames that are too short or too long for Ethernet.
    pub rx_bad_length: u64,
    /// Frames from peers that exceeded their rate limit.
    pub rx_over_rate: u64,
    /// Frames whose source MAC belongs to another peer.
    pub rx_foreign_mac: u64,
    /// Frames whose source IP address belongs to another member.
    #[serde(default)]
    pub rx_foreign_ip: u64,
    /// Datagrams that the kernel dropped at the socket, nearly always because its buffer was full. To avoid
    /// this, raise `net.core.rmem_max`.
    pub rx_overflow: u64,
    /// Frames forwarded from one peer to another.
    pub passed_on: u64,
    /// Links closed because of an invalid value in shared memory, and connections rejected because of an
    /// invalid message or descriptor.
    pub rings_broken: u64,
}
