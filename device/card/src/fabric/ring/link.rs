//! A link to one member: the shared memory, and the socket used for wake-ups and for ending the link.

use std::os::unix::net::UnixStream;

use protocol::ids::MacAddr;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use serde::{Deserialize, Serialize};

use super::memory::{Consumer, Producer, RingError};
use crate::fabric::{RxBatch, TxBatch};

/// A member and its counters, as listed by `hcactl`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberRow {
    /// MAC of the member.
    pub mac: String,
    /// MACs reached through the member, at most 16: its own MAC and those of its NIC.
    pub macs: Vec<String>,
    /// Whether the member is sleeping until frames arrive.
    pub asleep: bool,
    /// Number of frames received from the member.
    pub rx_frames: u64,
    /// Number of frames from the member that were dropped because their source MAC belongs to another member.
    pub rx_foreign_mac: u64,
    /// Number of frames from the member that were dropped because their source IP address belongs to another
    /// member.
    #[serde(default)]
    pub rx_foreign_ip: u64,
    /// Number of frames put into the member's ring.
    pub tx_frames: u64,
    /// Number of frames dropped because the member's ring was full.
    pub tx_refused: u64,
    /// Number of bytes in the member's ring that the member has not read yet.
    pub tx_waiting_bytes: u32,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counters {
    pub(super) rx_frames: u64,
    pub(super) rx_foreign_mac: u64,
    pub(super) rx_foreign_ip: u64,
    pub(super) tx_frames: u64,
    pub(super) tx_refused: u64,
}

/// Why a link ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkError {
    /// The other side closed the link.
    Closed,
    /// The other side violated the shared-memory protocol.
    Invalid(RingError),
}

impl From<RingError> for LinkError {
    fn from(error: RingError) -> Self {
        Self::Invalid(error)
    }
}

#[derive(Debug)]
pub(super) struct Link {
    mac: MacAddr,
    socket: UnixStream,
    producer: Producer,
    consumer: Consumer,
    /// Whether frames have been pushed but not published.
    unpublished: bool,
    /// Whether frames have been taken whose space has not been released.
    unreleased: bool,
    pub(super) counters: Counters,
}

impl Link {
    pub(super) fn new(mac: MacAddr, socket: UnixStream, producer: Producer, consumer: Consumer) -> Self {
        Self {
            mac,
            socket,
            producer,
            consumer,
            unpublished: false,
            unreleased: false,
            counters: Counters::default(),
        }
    }

    pub(super) fn mac(&self) -> MacAddr {
        self.mac
    }

    pub(super) fn socket(&self) -> &UnixStream {
        &self.socket
    }

    /// Pushes up to `count` frames from the start of a batch, but stops at the first one that does not fit. Returns the
    /// number of frames pushed, including those that were dropped because guest memory with their payload was lost.
    pub(super) fn put(&mut self, batch: &TxBatch, count: usize) -> Result<usize, LinkError> {
        let mut put = 0;
        for frame in batch.frames().take(count) {
            let fits = match batch.whole(frame) {
                Some(bytes) => self.producer.push(bytes, frame.offload)?,
                None => {
                    let (parts, len) = (batch.parts(frame), frame.len());
                    self.producer.push_parts(parts, len, frame.offload, || batch.is_intact(frame))?
                }
            };
            if !fits {
                break;
            }
            self.unpublished = true;
            put += 1;
        }
        self.counters.tx_frames += put as u64;
        Ok(put)
    }

    /// Returns the row that `hcactl` shows for the link. `macs` are the MACs reached through it.
    pub(super) fn row(&self, macs: Vec<String>) -> MemberRow {
        let Counters { rx_frames, rx_foreign_mac, rx_foreign_ip, tx_frames, tx_refused } = self.counters;
        MemberRow {
            mac: self.mac.to_string(),
            macs,
            asleep: self.producer.is_asleep(),
            rx_frames,
            rx_foreign_mac,
            rx_foreign_ip,
            tx_frames,
            tx_refused,
            tx_waiting_bytes: self.producer.waiting(),
        }
    }

    /// Publishes the pushed frames and wakes the other side if it is sleeping. Returns whether the other side was
    /// woken.
    pub(super) fn publish(&mut self) -> bool {
        let woken = std::mem::take(&mut self.unpublished) && self.producer.publish();
        if woken {
            self.wake_peer();
        }
        woken
    }

    /// Requests a wake-up for the next time the other side frees space. Returns false if a frame of `frame` bytes
    /// already fits.
    pub(super) fn wait_for_room(&mut self, frame: usize) -> Result<bool, LinkError> {
        // The other side can take only frames that have been published.
        self.publish();
        Ok(self.producer.request_room(frame)?)
    }

    pub(super) fn has_frames(&self) -> bool {
        self.consumer.has_frames()
    }

    /// Appends the frames that have arrived. Their space is occupied until [`Link::release`] is called.
    pub(super) fn take(&mut self, batch: &mut RxBatch, max_frames: usize) -> Result<(), LinkError> {
        self.unreleased = true;
        Ok(self.consumer.take(batch, max_frames)?)
    }

    /// Releases the space of the frames that were taken.
    pub(super) fn release(&mut self) {
        if std::mem::take(&mut self.unreleased) && self.consumer.release() {
            self.wake_peer();
        }
    }

    pub(super) fn enable_wakeups(&mut self) -> bool {
        self.consumer.enable_wakeups()
    }

    pub(super) fn disable_wakeups(&mut self) {
        self.consumer.disable_wakeups();
    }

    fn wake_peer(&self) {
        // Ignore errors. If the socket is full, a wake-up is already pending; if the other side has closed it,
        // `drain_wakeups` reports that.
        let _ = send(&self.socket, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }

    pub(super) fn drain_wakeups(&self) -> Result<(), LinkError> {
        let mut wakeups = [0; 64];
        match recv(&self.socket, &mut wakeups, RecvFlags::DONTWAIT) {
            Ok((_, 0)) => Err(LinkError::Closed),
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(_) => Err(LinkError::Closed),
        }
    }
}
