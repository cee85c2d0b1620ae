//! The completion queue in memory.
//!
//! # Spec
//! mlx5 interface, sections 7.2, 8 and 9.

use anyhow::{Result, bail};

use super::bytes::{get_u32, put_u32};
use super::queue::{OWNER, Ring, UAR};
use crate::vfio::{Arena, Bar, Device, PAGE};

#[derive(Clone, Copy, Debug)]
pub(super) struct Completion {
    /// Whether the completion belongs to a receive rather than a send.
    pub(super) is_receive: bool,
    pub(super) qpn: u32,
    /// The number that the driver assigned to the QP.
    pub(super) user_index: u32,
    /// Index of the WQE.
    pub(super) index: u16,
    /// Number of bytes received. Undefined in the requester's completion of a SEND or an RDMA WRITE.
    pub(super) len: u32,
    /// Syndrome, or 0 for success.
    pub(super) syndrome: u8,
}

#[derive(Debug)]
pub(super) struct Completions {
    ring: Ring,
    record: usize,
    /// Number of arm requests so far. Since each has led to an event, the low two bits of this number are the sequence
    /// number of the next request.
    arms: u32,
}

impl Completions {
    /// Opcode of an entry that the device has not written.
    const INVALID: u8 = 15;

    /// Creates a queue of `2^log` entries. `log` is at least 6, so that the queue fills a page.
    pub(super) fn new(arena: &mut Arena, log: u8) -> Result<Self> {
        let ring = Ring::new(arena, log, Self::INVALID << 4 | 1)?;
        Ok(Self { ring, record: arena.alloc(1, PAGE)?, arms: 0 })
    }

    /// Returns log2 of the number of entries.
    pub(super) const fn log(&self) -> u8 {
        self.ring.log
    }

    pub(super) fn place(&self) -> (usize, usize) {
        self.ring.place()
    }

    pub(super) const fn record(&self) -> usize {
        self.record
    }

    /// Returns the next completion, if the device has written one.
    pub(super) fn next(&mut self, arena: &Arena) -> Result<Option<Completion>> {
        const REQUEST: u8 = 0;
        const SEND_RECEIVED: u8 = 2;
        const REQUEST_ERROR: u8 = 13;
        const RECEIVE_ERROR: u8 = 14;
        let is_written = |last: u8| last >> 4 != Self::INVALID;
        let Some(entry) = self.ring.next(arena, is_written) else { return Ok(None) };
        arena.store_word(self.record, (self.ring.consumer & 0xff_ffff).swap_bytes());
        let (is_receive, syndrome) = match entry[OWNER] >> 4 {
            REQUEST => (false, 0),
            SEND_RECEIVED => (true, 0),
            REQUEST_ERROR => (false, entry[0x37]),
            RECEIVE_ERROR => (true, entry[0x37]),
            opcode => bail!("unexpected CQE opcode {opcode}"),
        };
        Ok(Some(Completion {
            is_receive,
            qpn: get_u32(&entry, 0x38) & 0xff_ffff,
            user_index: get_u32(&entry, 0x20) & 0xff_ffff,
            index: u16::from_be_bytes([entry[0x3c], entry[0x3d]]),
            len: get_u32(&entry, 0x2c),
            syndrome,
        }))
    }

    /// Discards all unread completions. Called when the only QP that uses this queue has been reset.
    pub(super) fn drain(&mut self, arena: &Arena) {
        while matches!(self.next(arena), Ok(Some(_))) {}
    }

    /// Requests an event for the next completion.
    pub(super) fn arm(&mut self, device: &Device, arena: &Arena, uar: u32, cqn: u32) -> Result<()> {
        let word = (self.arms & 3) << 28 | self.ring.consumer & 0xff_ffff;
        self.arms += 1;
        arena.store_word(self.record + 4, word.swap_bytes());
        let mut doorbell = [0; 8];
        put_u32(&mut doorbell, 0, word);
        put_u32(&mut doorbell, 4, cqn);
        device.write(Bar::Zero, u64::from(uar) * UAR + 0x20, &doorbell)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(arena: &Arena, at: usize, words: &[(usize, u32)]) {
        for &(offset, word) in words {
            arena.write(at + offset, &word.to_be_bytes());
        }
    }

    #[test]
    fn completions_match_spec_example() {
        let mut arena = Arena::detached(2 << 20);
        let mut completions = Completions::new(&mut arena, 6).unwrap();
        let (start, _) = completions.place();
        assert!(completions.next(&arena).unwrap().is_none());
        // Section 22: the responder's and the requester's completions of a 512-byte SEND.
        write(&arena, start, &[(0x20, 7), (0x2c, 0x200), (0x38, 0x83), (0x3c, 0x0005_0020)]);
        write(&arena, start + 64, &[(0x20, 9), (0x38, 0x0a00_0084), (0x3c, 0x0006_0000)]);
        let received = completions.next(&arena).unwrap().unwrap();
        assert!(received.is_receive);
        assert_eq!((received.user_index, received.qpn, received.index), (7, 0x83, 5));
        assert_eq!((received.len, received.syndrome), (0x200, 0));
        let sent = completions.next(&arena).unwrap().unwrap();
        assert!(!sent.is_receive);
        assert_eq!((sent.user_index, sent.qpn, sent.index, sent.syndrome), (9, 0x84, 6, 0));
        assert!(completions.next(&arena).unwrap().is_none());
        let mut consumer = [0; 4];
        arena.read(completions.record(), &mut consumer);
        assert_eq!(consumer, [0, 0, 0, 2]);
    }
}
