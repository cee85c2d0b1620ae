//! Mailbox layouts for all commands except queue pair commands, in big-endian byte order.
//!
//! # Spec
//! JingZhao interface, sections 3 and 4.4 to 4.6; test vectors in sections 14.2 to 14.6.

use anyhow::{Result, ensure};

use crate::wire::{Access, CqArm};

/// Size of a mailbox in bytes.
pub(crate) const MAILBOX: usize = 4096;
/// Maximum number of entries in a MAP_ICM mailbox.
pub(crate) const MAP_ICM_MAX: usize = 256;
/// Maximum number of addresses in a WRITE_MTT mailbox.
pub(crate) const WRITE_MTT_MAX: usize = 508;
/// Size of a translation entry in bytes.
pub(crate) const MTT_ENTRY: usize = 8;

/// Writes a big-endian 32-bit value at `offset`.
pub(crate) fn put32(bytes: &mut [u8], offset: usize, value: u32) {
    bytes[offset..offset + 4].copy_from_slice(&value.to_be_bytes());
}

/// Writes a big-endian 64-bit value at `offset`.
pub(crate) fn put64(bytes: &mut [u8], offset: usize, value: u64) {
    bytes[offset..offset + 8].copy_from_slice(&value.to_be_bytes());
}

/// Reads the big-endian 32-bit value at `offset`. Returns 0 if `offset` is out of range.
pub(crate) fn get32(bytes: &[u8], offset: usize) -> u32 {
    bytes.get(offset..offset + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_be_bytes)
}

/// Reads the big-endian 64-bit value at `offset`. Returns 0 for each half that is out of range.
pub(crate) fn get64(bytes: &[u8], offset: usize) -> u64 {
    u64::from(get32(bytes, offset)) << 32 | u64::from(get32(bytes, offset + 4))
}

fn get16(bytes: &[u8], offset: usize) -> u16 {
    bytes.get(offset..offset + 2).and_then(|b| b.try_into().ok()).map_or(0, u16::from_be_bytes)
}

/// The fields of QUERY_DEV_LIM's output mailbox that this driver uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DevLim {
    /// Log2 of the numbers of reserved QPs, CQs and EQs, in that order.
    pub(crate) log_reserved: [u8; 3],
    /// Size of a QP context in bytes.
    pub(crate) qpc_entry: u16,
    /// Size of a CQ context in bytes.
    pub(crate) cqc_entry: u16,
    /// Size of an EQ context in bytes.
    pub(crate) eqc_entry: u16,
    /// Size of an MPT entry in bytes.
    pub(crate) mpt_entry: u16,
    /// Size of the ICM address space in bytes.
    pub(crate) max_icm: u64,
}

impl DevLim {
    /// Length of the output mailbox in bytes.
    pub(crate) const LEN: usize = 0x40;

    /// Parses the output mailbox and rejects values that this driver does not support.
    pub(crate) fn parse(outbox: &[u8]) -> Result<Self> {
        let lim = Self {
            log_reserved: [0, 1, 2].map(|i| outbox.get(i).map_or(0, |b| b & 0xf)),
            qpc_entry: get16(outbox, 0x18),
            cqc_entry: get16(outbox, 0x1a),
            eqc_entry: get16(outbox, 0x1c),
            mpt_entry: get16(outbox, 0x1e),
            max_icm: get64(outbox, 0x30),
        };
        let byte = |offset| outbox.get(offset).copied().unwrap_or(0);
        ensure!(byte(0x15) == 8, "the device has MTT entries of {} bytes, expected 8", byte(0x15));
        ensure!(byte(0x23) & 0xf == 1, "the device has {} ports, expected 1", byte(0x23) & 0xf);
        ensure!(
            byte(0x25) <= 12,
            "the device's smallest page has 2^{} bytes, more than a guest page",
            byte(0x25)
        );
        for (name, size) in
            [("QPC", lim.qpc_entry), ("CQC", lim.cqc_entry), ("EQC", lim.eqc_entry), ("MPT", lim.mpt_entry)]
        {
            ensure!(
                size.is_power_of_two() && size <= 4096,
                "the device has {name} entries of {size} bytes, expected a power of two up to 4096"
            );
        }
        Ok(lim)
    }
}

pub(crate) fn board_id(outbox: &[u8]) -> u64 {
    get64(outbox, 0x18)
}

/// Input mailbox of INIT_HCA. Each tuple contains a table's ICM base address and the log2 of its number of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InitHca {
    pub(crate) qpc: (u64, u8),
    pub(crate) cqc: (u64, u8),
    pub(crate) eqc: (u64, u8),
    pub(crate) mpt: (u64, u8),
    pub(crate) mtt_base: u64,
}

impl InitHca {
    pub(crate) fn emit(&self) -> [u8; 0x40] {
        let mut inbox = [0; 0x40];
        for (offset, (base, log)) in [(0x08, self.qpc), (0x10, self.cqc), (0x18, self.eqc), (0x30, self.mpt)]
        {
            put64(&mut inbox, offset, base | u64::from(log));
        }
        put64(&mut inbox, 0x38, self.mtt_base);
        inbox
    }
}

/// A run of consecutive ICM pages and the consecutive bus pages mapped there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IcmRun {
    /// ICM address of the first page.
    pub(crate) virt: u64,
    /// Bus address of the first page.
    pub(crate) bus: u64,
    /// Number of pages, less than 4096.
    pub(crate) pages: u16,
}

/// Returns the input mailbox of MAP_ICM. The two 16-byte entries in each pair are swapped.
pub(crate) fn map_icm(runs: &[IcmRun]) -> Vec<u8> {
    let mut inbox = vec![0; runs.len().div_ceil(2) * 0x20];
    for (i, run) in runs.iter().enumerate() {
        let offset = (i / 2) * 0x20 + if i.is_multiple_of(2) { 0x10 } else { 0 };
        put64(&mut inbox, offset, run.virt);
        put64(&mut inbox, offset + 8, run.bus | u64::from(run.pages & 0xfff));
    }
    inbox
}

/// Returns the input mailbox of WRITE_MTT for at most the first [`WRITE_MTT_MAX`] addresses. Each group of four
/// addresses is stored in reverse order.
pub(crate) fn write_mtt(start_index: u64, pages: &[u64]) -> Vec<u8> {
    let pages = &pages[..pages.len().min(WRITE_MTT_MAX)];
    let mut inbox = vec![0; 0x20 + pages.len().div_ceil(4) * 0x20];
    put64(&mut inbox, 0x18, start_index);
    for (i, &page) in pages.iter().enumerate() {
        put64(&mut inbox, 0x20 + (i / 4) * 0x20 + (3 - i % 4) * 8, page);
    }
    inbox
}

/// An entry of the memory protection table (MPT).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mpt {
    pub(crate) access: Access,
    pub(crate) zero_based: bool,
    pub(crate) page_size: u32,
    pub(crate) key: u32,
    pub(crate) pd: u32,
    pub(crate) start: u64,
    pub(crate) length: u64,
    /// Index of the first translation entry.
    pub(crate) mtt_seg: u64,
}

impl Mpt {
    /// Returns the input mailbox of SW2HW_MPT.
    pub(crate) fn emit(&self) -> [u8; 0x40] {
        // Bits that the public driver (`ib_hgrnic`) sets in every region: all four owner bits, MIO, REGION and
        // LOCAL_READ.
        const ALWAYS: u32 = 0xf << 28 | 1 << 17 | 1 << 8 | 1 << 7;
        let bit = |set: bool, n: u32| u32::from(set) << n;
        let flags = ALWAYS
            | bit(self.access.local_write, 0)
            | bit(self.access.remote_write, 1)
            | bit(self.access.remote_read, 2)
            | bit(self.access.remote_atomic, 3)
            | bit(self.zero_based, 5);
        let mut inbox = [0; 0x40];
        put32(&mut inbox, 0x00, flags);
        put32(&mut inbox, 0x04, self.page_size);
        put32(&mut inbox, 0x08, self.key);
        put32(&mut inbox, 0x0c, self.pd);
        put64(&mut inbox, 0x10, self.start);
        put64(&mut inbox, 0x18, self.length);
        put64(&mut inbox, 0x2c, self.mtt_seg);
        inbox
    }
}

/// The TR bit, which the public driver sets in every queue.
const TRANSLATED: u32 = 1 << 18;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cqc {
    pub(crate) cqn: u32,
    pub(crate) log_entries: u8,
    pub(crate) pd: u32,
    pub(crate) lkey: u32,
    /// Event queue that receives the completion events.
    pub(crate) eqn: u32,
    pub(crate) arm: CqArm,
}

impl Cqc {
    /// Returns the input mailbox of SW2HW_CQ.
    pub(crate) fn emit(&self) -> [u8; 0x40] {
        let armed: u32 = match self.arm {
            CqArm::Disarmed => 0,
            CqArm::Any => 1,
            CqArm::Solicited => 4,
        };
        let mut inbox = [0; 0x40];
        put32(&mut inbox, 0x00, TRANSLATED | armed << 8);
        put32(&mut inbox, 0x0c, u32::from(self.log_entries) << 24);
        put32(&mut inbox, 0x10, self.eqn);
        put32(&mut inbox, 0x14, self.pd);
        put32(&mut inbox, 0x18, self.lkey);
        put32(&mut inbox, 0x2c, self.cqn);
        inbox
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Eqc {
    pub(crate) log_entries: u8,
    pub(crate) vector: u16,
    pub(crate) pd: u32,
    pub(crate) lkey: u32,
    pub(crate) armed: bool,
}

impl Eqc {
    /// Returns the input mailbox of SW2HW_EQ.
    pub(crate) fn emit(&self) -> [u8; 0x40] {
        const OWNED_BY_HARDWARE: u32 = 1 << 24;
        let mut inbox = [0; 0x40];
        put32(&mut inbox, 0x00, OWNED_BY_HARDWARE | TRANSLATED | u32::from(self.armed) << 8);
        put32(&mut inbox, 0x0c, u32::from(self.log_entries) << 24);
        put32(&mut inbox, 0x14, self.vector.into());
        put32(&mut inbox, 0x18, self.pd);
        put32(&mut inbox, 0x1c, self.lkey);
        inbox
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_bytes::hex;
    use super::*;

    #[test]
    fn dev_lim_matches_specification_vector() {
        let outbox = hex("01 00 00 00 00 00 00 00 00 0E 00 10 10 10 05 11
             0F 00 00 00 00 08 00 00 01 00 00 40 00 40 00 40
             00 50 00 11 00 0C 00 00 00 10 02 00 00 10 02 00
             00 00 01 00 00 00 00 00 00 00 00 00 00 00 00 00");
        let lim = DevLim::parse(&outbox).unwrap();
        assert_eq!(lim.log_reserved, [1, 0, 0]);
        assert_eq!((lim.qpc_entry, lim.cqc_entry, lim.eqc_entry, lim.mpt_entry), (256, 64, 64, 64));
        assert_eq!(lim.max_icm, 1 << 40);
    }

    #[test]
    fn init_hca_matches_specification_vector() {
        let init = InitHca {
            qpc: (0, 16),
            cqc: (0x200_0000, 16),
            eqc: (0x240_0000, 5),
            mpt: (0x100_0000, 17),
            mtt_base: 0x180_0000,
        };
        let expected = hex("00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 10
             00 00 00 00 02 00 00 10 00 00 00 00 02 40 00 05
             00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
             00 00 00 00 01 00 00 11 00 00 00 00 01 80 00 00");
        assert_eq!(init.emit().as_slice(), expected);
    }

    #[test]
    fn map_icm_swaps_entry_pairs() {
        let one = map_icm(&[IcmRun { virt: 0x240_0000, bus: 0x1234_5000, pages: 1 }]);
        let expected = hex("00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
             00 00 00 00 02 40 00 00 00 00 00 00 12 34 50 01");
        assert_eq!(one, expected);

        let three = map_icm(&[
            IcmRun { virt: 0, bus: 0x1_0000_0000, pages: 64 },
            IcmRun { virt: 0x4_0000, bus: 0x1_0004_0000, pages: 32 },
            IcmRun { virt: 0x6_0000, bus: 0x1_0020_0000, pages: 32 },
        ]);
        let expected = hex("00 00 00 00 00 04 00 00 00 00 00 01 00 04 00 20
             00 00 00 00 00 00 00 00 00 00 00 01 00 00 00 40
             00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
             00 00 00 00 00 06 00 00 00 00 00 01 00 20 00 20");
        assert_eq!(three, expected);
    }

    #[test]
    fn write_mtt_reverses_groups_of_four() {
        let pages: Vec<u64> = (1..=5).map(|i| 0x2_0000_0000 + i * 0x1000).collect();
        let mut expected = hex("00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
             00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 10
             00 00 00 02 00 00 40 00 00 00 00 02 00 00 30 00
             00 00 00 02 00 00 20 00 00 00 00 02 00 00 10 00
             00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00");
        expected.extend(hex("00 00 00 00 00 00 00 00 00 00 00 02 00 00 50 00"));
        assert_eq!(write_mtt(0x10, &pages), expected);
    }

    #[test]
    fn write_mtt_inbox_does_not_exceed_mailbox() {
        assert_eq!(write_mtt(0, &[0; 600]).len(), MAILBOX);
    }

    #[test]
    fn region_entries_match_specification_vectors() {
        let cq_buffer = Mpt {
            access: Access { local_write: true, ..Access::default() },
            zero_based: false,
            page_size: 4096,
            key: 0,
            pd: 0,
            start: 0,
            length: 1024,
            mtt_seg: 0,
        };
        let expected = hex("F0 02 01 81 00 00 10 00 00 00 00 00 00 00 00 00
             00 00 00 00 00 00 00 00 00 00 00 00 00 00 04 00");
        assert_eq!(cq_buffer.emit()[..0x20], expected);
        assert_eq!(cq_buffer.emit()[0x20..], [0; 0x20]);

        let user = Mpt {
            access: Access { local_write: true, remote_write: true, remote_read: true, remote_atomic: false },
            key: 0x2_0005,
            pd: 3,
            start: 0x7f00_1234_5678,
            length: 0x2100,
            mtt_seg: 0x10,
            ..cq_buffer
        };
        let expected = hex("F0 02 01 87 00 00 10 00 00 02 00 05 00 00 00 03
             00 00 7F 00 12 34 56 78 00 00 00 00 00 00 21 00
             00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
             00 00 00 10 00 00 00 00 00 00 00 00 00 00 00 00");
        assert_eq!(user.emit().as_slice(), expected);
    }

    #[test]
    fn queue_contexts_match_specification_examples() {
        let cqc = Cqc { cqn: 0, log_entries: 5, pd: 0, lkey: 0, eqn: 0, arm: CqArm::Disarmed };
        let expected = hex("00 04 00 00 00 00 00 00 00 00 00 00 05 00 00 00");
        assert_eq!(cqc.emit()[..0x10], expected);
        assert_eq!(cqc.emit()[0x10..], [0; 0x30]);

        let eqc = Eqc { log_entries: 7, vector: 2, pd: 0, lkey: 0x30, armed: true };
        let expected = hex("01 04 01 00 00 00 00 00 00 00 00 00 07 00 00 00
             00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 30");
        assert_eq!(eqc.emit()[..0x20], expected);
        assert_eq!(eqc.emit()[0x20..], [0; 0x20]);
    }

    #[test]
    fn cq_context_contains_eq_and_arm_condition() {
        let cqc = Cqc { cqn: 0x123, log_entries: 5, pd: 3, lkey: 0x21, eqn: 9, arm: CqArm::Any };
        assert_eq!((cqc.emit()[2], &cqc.emit()[0x10..0x14]), (1, &[0, 0, 0, 9][..]));
        assert_eq!(Cqc { arm: CqArm::Solicited, ..cqc }.emit()[2], 4);
    }
}
