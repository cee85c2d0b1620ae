//! How Ethernet frames reach other HCAs and NICs.
//!
//! A fabric knows frames and MAC addresses, never a QP.

mod batch;
pub mod impair;
pub mod local;
mod macs;
pub mod ring;
mod sources;
pub mod switch;
pub mod tap;
pub mod udp;
mod wish;

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

pub(crate) use batch::MEMORY_TURN_BYTES;
pub use batch::{Origin, RxBatch, TxBatch};
use serde::{Deserialize, Serialize};

use self::ring::MemberRow;
use self::switch::Switch;

/// Longest frame a fabric carries: a jumbo Ethernet frame of 9728 bytes with two VLAN tags. A RoCE packet with a 4096-byte
/// payload needs less than half.
pub const MAX_FRAME_LEN: usize = 9728 + 2 * 4;

/// Shortest frame a fabric carries: an Ethernet header. What cables want beyond that is padding.
pub const MIN_FRAME_LEN: usize = 14;

/// Whether a fabric took everything it was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// The batch is empty.
    All,
    /// The kernel's buffer is full: wait until the descriptor is writable. What was not sent is still in the batch.
    Blocked,
}

/// A carrier of frames. Neither call blocks.
pub trait Fabric {
    /// Sends the frames of `batch` in order and takes them out of it. A frame the network refuses is lost and
    /// counted, as on any wire.
    fn send(&mut self, batch: &mut TxBatch) -> Sent;

    /// Replaces the content of `batch` by frames that have arrived, in order of arrival; empty if there are none.
    ///
    /// # Errors
    /// The descriptor is unusable.
    fn recv(&mut self, batch: &mut RxBatch) -> io::Result<()>;

    /// Becomes readable when frames arrive, writable when [`Sent::Blocked`] is over.
    fn as_fd(&self) -> BorrowedFd<'_>;

    /// The descriptor is readable.
    ///
    /// # Errors
    /// The descriptor is unusable.
    fn attend(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// After [`Sent::Blocked`]: for how much longer the descriptor's word is waited for before the frames are offered again all
    /// the same. None: without end.
    fn patience(&self) -> Option<Duration> {
        None
    }

    /// Whether frames have arrived that the descriptor says nothing of, as it does not between [`Fabric::awake`] and
    /// [`Fabric::doze`].
    fn has_frames(&self) -> bool {
        false
    }

    /// Whether a frame needs an ICRC on its way. In memory it comes to no harm, and the computing costs more than the carrying.
    fn needs_icrc(&self) -> bool {
        true
    }

    /// Whether [`Fabric::has_frames`] tells of all frames, with no look at the descriptor.
    fn is_memory(&self) -> bool {
        false
    }

    /// Bytes of frames that a turn makes, but for the last frame. A socket's kernel copies them at once, and the more each turn
    /// brings it the fewer turns there are.
    fn turn_bytes(&self) -> usize {
        if self.is_memory() { MEMORY_TURN_BYTES } else { usize::MAX }
    }

    /// The thread is about to sleep: from now on the descriptor tells of frames. False: some have arrived already.
    fn doze(&mut self) -> bool {
        true
    }

    /// The thread does not sleep any more: nobody needs to pay for waking it.
    fn awake(&mut self) {}

    /// What was carried and what was lost.
    fn stats(&mut self) -> FabricStats;

    /// The device is a NIC, which filters by itself: frames that are for nobody else come to it too.
    fn hear_all(&mut self) {}

    /// The list of peers, if the fabric has one.
    fn switch(&mut self) -> Option<&mut Switch> {
        None
    }

    /// The members of a ring, if the fabric is one.
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

    fn as_fd(&self) -> BorrowedFd<'_> {
        (**self).as_fd()
    }

    fn attend(&mut self) -> io::Result<()> {
        (**self).attend()
    }

    fn patience(&self) -> Option<Duration> {
        (**self).patience()
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

    fn doze(&mut self) -> bool {
        (**self).doze()
    }

    fn awake(&mut self) {
        (**self).awake();
    }

    fn stats(&mut self) -> FabricStats {
        (**self).stats()
    }

    fn hear_all(&mut self) {
        (**self).hear_all();
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
    /// Frames handed to the network; a flooded frame counts once for each peer.
    pub tx_frames: u64,
    /// System calls that took.
    pub tx_calls: u64,
    /// Frames that arrived.
    pub rx_frames: u64,
    /// Frames the network refused to take.
    pub tx_refused: u64,
    /// Frames of a NIC that say to come from a MAC of somebody else.
    pub tx_foreign_mac: u64,
    /// Frames of a NIC that say to come from an IP address of another member.
    #[serde(default)]
    pub tx_foreign_ip: u64,
    /// Frames that had no peer to go to: there is none, or they answer somebody who is not known any more, or they are for
    /// who sent them.
    pub tx_no_peer: u64,
    /// Frames from an address that is not a configured peer's.
    pub rx_stranger: u64,
    /// Frames too long or too short to be Ethernet.
    pub rx_bad_length: u64,
    /// Frames of peers that sent more than they may.
    pub rx_over_rate: u64,
    /// Frames from a MAC that is another peer's.
    pub rx_foreign_mac: u64,
    /// Frames from an IP address that is another member's.
    #[serde(default)]
    pub rx_foreign_ip: u64,
    /// Datagrams the kernel lost at our socket, nearly always because its buffer was full: raise `net.core.rmem_max`.
    pub rx_overflow: u64,
    /// Frames of one peer sent on to another.
    pub passed_on: u64,
    /// Peers whose shared memory was given up because of what they wrote to it or handed over.
    pub rings_broken: u64,
}
