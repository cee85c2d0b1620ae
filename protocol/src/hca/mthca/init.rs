//! Inbox of INIT_HCA: addresses and sizes of the context tables in the ICM.
//!
//! # Spec
//! mthca interface, sections 3.3.5 and 4.2.

use zerocopy::big_endian::U64;

use crate::describe::describe;
use crate::hca::status::{CmdError, CmdStatus};
use crate::hca::table::Table;
use crate::ids::{Eqn, IcmAddr};

/// The part of the ICM layout that the device needs. For most tables, the device needs only the size, because it keeps
/// the contexts in its own memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct InitHca {
    pub qpc: Table,
    pub srqc: Table,
    pub cqc: Table,
    pub eqc: Table,
    /// Memory protection table (MPT).
    pub mpt: Table,
    /// Number of hash buckets in the multicast table.
    pub group_buckets: u16,
    /// Log2 of the number of entries in the multicast table.
    pub log_groups: u8,
    /// Log2 of the size in bytes of the doorbell record area for one UAR page.
    pub log_uarc: u8,
    /// Log2 of the size of a UAR page in units of 4 KiB. Drivers use the page size of their processor.
    pub log_uar_page: u8,
    /// ICM address of the first doorbell record of UAR page 0.
    pub uarc_base: IcmAddr,
}

describe!(InitHca { qpc, srqc, cqc, eqc, mpt, group_buckets, log_groups, log_uarc, log_uar_page, uarc_base });

const _: () = assert!(1 << InitHca::LOG_MAX_EQS == super::regs::EQS);

impl InitHca {
    /// Length of the inbox in bytes.
    pub const LEN: usize = 0x200;

    /// Parses an inbox. Drivers can request larger tables than QUERY_DEV_LIM reports; the limits below apply instead.
    ///
    /// # Errors
    /// EXCEED_LIM for more than 2^24 QPs, SRQs, CQs or MPT entries, more than 2^6 EQs, more than 2^16 multicast groups,
    /// more than 4 GiB of doorbell records per page, or more than 1 MiB per UAR page.
    pub fn parse(inbox: &[u8; Self::LEN]) -> Result<Self, CmdError> {
        let wide = |at: usize| U64::from_bytes(field(inbox, at)).get();
        let table = |at: usize, max_log, what| Table::parse(wide(at), max_log, what);
        let [mpt_log] = field(inbox, 0xfb);
        // The MPT's size is in a separate field, not in the low byte of its base as for the other tables.
        let mpt = Table::parse(wide(0xf0) & !0xff | u64::from(mpt_log), 24, "log2 of the MPT count")?;
        let [log_groups] = field(inbox, 0xdb);
        let [uarc_pages] = field(inbox, 0x129);
        let [log_uar_page] = field(inbox, 0x12b);
        Ok(Self {
            qpc: table(0x30, 24, "log2 of the QP count")?,
            srqc: table(0x48, 24, "log2 of the SRQ count")?,
            cqc: table(0x50, 24, "log2 of the CQ count")?,
            eqc: table(0x80, Self::LOG_MAX_EQS, "log2 of the EQ count")?,
            mpt,
            group_buckets: u16::from_be_bytes(field(inbox, 0xd6)),
            log_groups: limit(log_groups, 16, "log2 of the multicast group count")?,
            log_uarc: 12 + limit(uarc_pages, 20, "log2 of the number of doorbell record pages")?,
            log_uar_page: limit(log_uar_page, 8, "log2 of the UAR page size")?,
            uarc_base: IcmAddr::new(wide(0x138)),
        })
    }

    /// Layout that the driver uses with default module parameters (sections 3.3.5 and 4.3).
    pub const DRIVER_DEFAULT: Self = Self {
        qpc: Table { base: IcmAddr::new(0x2400_0000), log_entries: 16 },
        srqc: Table { base: IcmAddr::new(0x2680_0000), log_entries: 12 },
        cqc: Table { base: IcmAddr::new(0x2600_0000), log_entries: 16 },
        eqc: Table { base: IcmAddr::new(0x2685_2000), log_entries: 5 },
        mpt: Table { base: IcmAddr::new(0x2580_0000), log_entries: 17 },
        group_buckets: 4096,
        log_groups: 13,
        log_uarc: 18,
        log_uar_page: 0,
        uarc_base: IcmAddr::new(0),
    };

    /// Returns the inbox in wire format, as a driver builds it. It contains only the fields that the device reads.
    pub fn emit(&self) -> [u8; Self::LEN] {
        let mut inbox = [0; Self::LEN];
        let mut put = |at: usize, bytes: &[u8]| inbox[at..at + bytes.len()].copy_from_slice(bytes);
        put(0x30, &self.qpc.word().to_be_bytes());
        put(0x48, &self.srqc.word().to_be_bytes());
        put(0x50, &self.cqc.word().to_be_bytes());
        put(0x80, &self.eqc.word().to_be_bytes());
        put(0xd6, &self.group_buckets.to_be_bytes());
        put(0xdb, &[self.log_groups]);
        put(0xf0, &self.mpt.base.get().to_be_bytes());
        put(0xfb, &[self.mpt.log_entries]);
        put(0x129, &[self.log_uarc.saturating_sub(12)]);
        put(0x12b, &[self.log_uar_page]);
        put(0x138, &self.uarc_base.get().to_be_bytes());
        inbox
    }

    /// Log2 of the maximum number of EQs. The arm register has one bit for each EQ.
    const LOG_MAX_EQS: u8 = 6;

    /// Returns whether the EQ number is within the EQ table.
    pub const fn has_eq(&self, eqn: Eqn) -> bool {
        (eqn.get() as u64) < self.eqc.entries()
    }

    /// Returns the ICM address of doorbell record `index` of a UAR page.
    pub const fn record(&self, page: u32, index: u32) -> IcmAddr {
        let page = (page as u64).wrapping_shl(self.log_uarc as u32);
        let offset = page.wrapping_add(index as u64 * super::doorbell::RECORD_LEN as u64);
        IcmAddr::new(self.uarc_base.get().wrapping_add(offset))
    }
}

fn limit(value: u8, max: u8, what: &'static str) -> Result<u8, CmdError> {
    if value > max { Err(CmdError::new(CmdStatus::ExceedLim, what, value.into())) } else { Ok(value) }
}

/// Returns a field of the inbox. Callers pass only offsets inside the inbox.
fn field<const N: usize>(inbox: &[u8; InitHca::LEN], at: usize) -> [u8; N] {
    inbox.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; N])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the inbox from the last column of section 3.3.5, with the addresses from section 4.3.
    fn inbox() -> [u8; InitHca::LEN] {
        let mut inbox = [0; InitHca::LEN];
        for (at, bytes) in [
            (0x0c, &[0, 0, 0, 1][..]),
            (0x14, &[0, 0, 0, 1]),
            (0x30, &[0, 0, 0, 0, 0x24, 0, 0, 16]),
            (0x48, &[0, 0, 0, 0, 0x26, 0x80, 0, 12]),
            (0x50, &[0, 0, 0, 0, 0x26, 0, 0, 16]),
            (0x80, &[0, 0, 0, 0, 0x26, 0x85, 0x20, 5]),
            (0xc0, &[0, 0, 0, 0, 0x26, 0x60, 0, 0]),
            (0xd2, &[0, 8, 0, 0, 0x10, 0, 0, 0, 0, 13]),
            (0xf0, &[0, 0, 0, 0, 0x25, 0x80, 0, 0, 0, 0, 0, 17]),
            (0x100, &[0, 0, 0, 0, 0x20, 0, 0, 0]),
            (0x129, &[6, 11, 0]),
        ] {
            inbox[at..at + bytes.len()].copy_from_slice(bytes);
        }
        inbox
    }

    #[test]
    fn default_icm_layout_round_trips() {
        assert_eq!(InitHca::parse(&inbox()), Ok(InitHca::DRIVER_DEFAULT));
        let emitted = InitHca::DRIVER_DEFAULT.emit();
        for (at, (byte, published)) in emitted.into_iter().zip(inbox()).enumerate() {
            assert!(byte == published || byte == 0, "{at:#x}: {byte:#x}, published value is {published:#x}");
        }
        let moved =
            InitHca { uarc_base: IcmAddr::new(0x400_0000), log_uar_page: 2, ..InitHca::DRIVER_DEFAULT };
        assert_eq!(InitHca::parse(&moved.emit()), Ok(moved));
        assert_eq!(InitHca::parse(&emitted), Ok(InitHca::DRIVER_DEFAULT));
    }

    /// Example from section 14.3, commands 174 and 175: the doorbell records of UAR page 2 begin at 80000h, and the
    /// last 4 KiB of them at BF000h.
    #[test]
    fn doorbell_record_addresses_match_driver() {
        let init = InitHca::DRIVER_DEFAULT;
        assert_eq!(init.record(2, 0), IcmAddr::new(0x8_0000));
        assert_eq!(init.record(2, 32767), IcmAddr::new(0xb_fff8));
        let moved = InitHca { uarc_base: IcmAddr::new(0x400_0000), ..init };
        assert_eq!(moved.record(1, 1), IcmAddr::new(0x404_0008));
    }

    #[test]
    fn rejects_oversized_tables() {
        for (at, accepted) in
            [(0x37, 24), (0x4f, 24), (0x57, 24), (0x87, 6), (0xdb, 16), (0xfb, 24), (0x129, 20), (0x12b, 8)]
        {
            let mut inbox = inbox();
            inbox[at] = accepted;
            assert!(InitHca::parse(&inbox).is_ok(), "{at:#x}");
            inbox[at] = accepted + 1;
            assert_eq!(InitHca::parse(&inbox).unwrap_err().status, CmdStatus::ExceedLim, "{at:#x}");
        }
    }
}
