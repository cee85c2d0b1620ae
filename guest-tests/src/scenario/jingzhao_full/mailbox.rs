//! Input mailboxes, built byte by byte in the interface's layout.
//!
//! # Spec
//! JingZhao interface, sections 3.3, 3.5, 3.8, 3.11 and 4.3 to 4.6. All fields are big-endian.

use agent::wire::{Hex, InParam};

/// The bytes of an input mailbox. They are initially zero.
#[derive(Clone, Debug)]
pub(super) struct Mailbox(Vec<u8>);

impl Mailbox {
    pub(super) fn new(len: usize) -> Self {
        Self(vec![0; len])
    }

    pub(super) fn byte(self, offset: usize, value: u8) -> Self {
        self.put(offset, &[value])
    }

    pub(super) fn word(self, offset: usize, value: u32) -> Self {
        self.put(offset, &value.to_be_bytes())
    }

    pub(super) fn double(self, offset: usize, value: u64) -> Self {
        self.put(offset, &value.to_be_bytes())
    }

    /// Copies the bits in the mask `bits` from `value` to the word at `offset`.
    pub(super) fn field(self, offset: usize, bits: u32, value: u32) -> Self {
        let word = self.get(offset) & !bits | value & bits;
        self.word(offset, word)
    }

    pub(super) fn get(&self, offset: usize) -> u32 {
        let bytes = self.0.get(offset..offset + 4).and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, u32::from_be_bytes)
    }

    /// Sets every byte from `offset` to the end.
    pub(super) fn rest(mut self, offset: usize, value: u8) -> Self {
        self.0.iter_mut().skip(offset).for_each(|byte| *byte = value);
        self
    }

    pub(super) fn input(&self) -> InParam {
        InParam::Mailbox(Hex(self.0.clone()))
    }

    fn put(mut self, offset: usize, bytes: &[u8]) -> Self {
        for (to, from) in self.0.iter_mut().skip(offset).zip(bytes) {
            *to = *from;
        }
        self
    }
}

/// Returns the INIT_HCA mailbox (3.3) for tables with the sizes given in section 13.
pub(super) fn init_hca() -> Mailbox {
    Mailbox::new(0x40)
        .double(0x08, 16)
        .double(0x10, 0x200_0000 | 16)
        .double(0x18, 0x240_0000 | 5)
        .double(0x30, 0x100_0000 | 17)
        .double(0x38, 0x180_0000)
}

/// A run of ICM pages, given by its first ICM address, its first bus address, and its number of pages.
pub(super) type IcmRun = (u64, u64, u64);

/// Returns the MAP_ICM mailbox (3.5), in which the two entries of each pair are swapped.
pub(super) fn map_icm(runs: &[IcmRun]) -> Mailbox {
    let mailbox = Mailbox::new(runs.len().div_ceil(2) * 0x20);
    runs.iter().enumerate().fold(mailbox, |mailbox, (i, &(virt, bus, pages))| {
        let at = (i / 2) * 0x20 + if i % 2 == 0 { 0x10 } else { 0 };
        mailbox.double(at, virt).double(at + 8, bus | pages)
    })
}

/// Returns the WRITE_MTT mailbox (3.8) for `count` consecutive pages, starting at bus address `first`.
pub(super) fn write_mtt(start: u64, first: u64, count: u32) -> Mailbox {
    let groups = usize::try_from(count.div_ceil(4)).unwrap_or(0);
    (0..count).fold(Mailbox::new(0x20 + groups * 0x20).double(0x18, start), |mailbox, i| {
        let at = 0x20 + (i / 4) * 0x20 + (3 - i % 4) * 8;
        mailbox.double(at as usize, first + u64::from(i) * 0x1000)
    })
}

/// Returns the SW2HW_MPT mailbox (4.6) for a region in PD 1 that consists of one 4 KiB page and has all access rights.
pub(super) fn mpt(key: u32, mtt_seg: u64) -> Mailbox {
    const REGION_WITH_ALL_RIGHTS: u32 = 0xf002_018f;
    Mailbox::new(0x40)
        .word(0x00, REGION_WITH_ALL_RIGHTS)
        .word(0x04, 0x1000)
        .word(0x08, key)
        .word(0x0c, 1)
        .double(0x18, 0x1000)
        .double(0x2c, mtt_seg)
}

/// Returns the SW2HW_CQ mailbox (4.4) for a CQ in PD 1.
pub(super) fn cqc(log_entries: u8, lkey: u32) -> Mailbox {
    Mailbox::new(0x40).word(0x00, 1 << 18).byte(0x0c, log_entries).word(0x14, 1).word(0x18, lkey)
}

/// Returns the RESIZE_CQ mailbox (3.11).
pub(super) fn resize_cq(log_entries: u8, lkey: u32) -> Mailbox {
    Mailbox::new(8).byte(0x00, log_entries).word(0x04, lkey)
}

/// Returns the SW2HW_EQ mailbox (4.5) for an EQ in PD 1 that is owned by hardware and not armed.
pub(super) fn eqc(log_entries: u8, lkey: u32) -> Mailbox {
    Mailbox::new(0x40).word(0x00, 1 << 24 | 1 << 18).byte(0x0c, log_entries).word(0x18, 1).word(0x1c, lkey)
}

/// Service type codes (4.3).
pub(super) mod service {
    pub(crate) const RC: u8 = 0;
    pub(crate) const UC: u8 = 1;
    pub(crate) const UD: u8 = 3;
}

/// One of a QP's two work queues.
#[derive(Clone, Copy, Debug)]
pub(super) struct WorkQueue {
    pub(super) lkey: u32,
    pub(super) len: u32,
    pub(super) log_slot: u8,
    pub(super) cqn: u32,
}

/// Returns the QPC (4.3) as the public driver sends it with every command. It contains everything needed to move a QP
/// from RESET to RTS: PD 1, port 1, path MTU 4096, and messages of up to 2^31 bytes. The destination is QP FFFFFFh at
/// the default peer.
pub(super) fn qpc(service: u8, sq: WorkQueue, rq: WorkQueue) -> Mailbox {
    let mailbox = Mailbox::new(0xc0)
        .byte(0x09, service)
        .byte(0x0c, 5 << 5 | 31)
        .byte(0x0d, rq.log_slot)
        .byte(0x0e, sq.log_slot)
        .word(0x10, 1)
        .word(0x18, 0xff_ffff)
        .word(0x1c, 1 << 24)
        .word(0x5c, 1)
        .word(0x6c, 0x100)
        .word(0x7c, 0x100)
        .word(0x84, 12 << 24 | 0x200);
    [(0x70, sq), (0x8c, rq)].into_iter().fold(mailbox, |mailbox, (at, queue)| {
        mailbox.word(at, queue.cqn).word(at + 4, queue.lkey).word(at + 8, queue.len)
    })
}
