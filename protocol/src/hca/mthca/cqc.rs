//! Completion queue contexts (CQC) and the inbox of RESIZE_CQ.
//!
//! # Spec
//! mthca interface, sections 3.5 and 6.4.

use zerocopy::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, transmute};

use super::eqc::RingSize;
use crate::describe::{Hex, describe};
use crate::hca::status::{CmdError, CmdStatus};
use crate::ids::{Cqn, Eqn, Lkey, Pdn};

/// CQC fields used by the device. A new CQ is not armed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cqc {
    /// Virtual address of the first entry, in the buffer's region.
    pub start: u64,
    /// Log2 of the number of entries.
    pub log_entries: u8,
    /// UAR page of the CQ's doorbells and doorbell records.
    pub page: u32,
    /// EQ that receives the completion events.
    pub comp_eqn: Eqn,
    /// Protection domain of the buffer.
    pub pd: Pdn,
    /// L_Key of the buffer's region.
    pub lkey: Lkey,
    /// CQ number, with a generation number in the bits above the table size.
    pub cqn: Cqn,
    /// Index of the doorbell record that holds the consumer index.
    pub consumer_record: u32,
    /// Index of the doorbell record that holds the last arm request.
    pub arm_record: u32,
}

describe!(Cqc { start as Hex, log_entries, page as Hex, comp_eqn, pd, lkey, cqn, consumer_record, arm_record });

impl Cqc {
    /// Length of the inbox in bytes.
    pub const LEN: usize = 0x40;

    /// Parses the inbox of SW2HW_CQ. `max_log_entries` is the limit reported by QUERY_DEV_LIM.
    ///
    /// # Errors
    /// EXCEED_LIM if the CQ has more entries than `max_log_entries` permits.
    pub fn parse(inbox: &[u8; Self::LEN], max_log_entries: u8) -> Result<Self, CmdError> {
        let raw: Raw = transmute!(*inbox);
        Ok(Self {
            start: raw.start.get(),
            log_entries: check_size(raw.size.log_entries(), max_log_entries)?,
            page: raw.size.page(),
            comp_eqn: Eqn::new(raw.comp_eqn.get() & 0xff),
            pd: Pdn::new(raw.pd.get() & 0xff_ffff),
            lkey: Lkey::new(raw.lkey.get()),
            cqn: Cqn::new(raw.cqn.get()),
            consumer_record: raw.consumer_record.get(),
            arm_record: raw.arm_record.get(),
        })
    }
}

/// Inbox of the RESIZE_CQ command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResizeCq {
    /// Virtual address of the first entry, in the new buffer's region.
    pub start: u64,
    /// Log2 of the new number of entries.
    pub log_entries: u8,
    /// L_Key of the new buffer's region.
    pub lkey: Lkey,
}

describe!(ResizeCq { start as Hex, log_entries, lkey });

impl ResizeCq {
    /// Length of the inbox in bytes.
    pub const LEN: usize = 0x40;

    /// Parses the inbox. `max_log_entries` is the limit reported by QUERY_DEV_LIM.
    ///
    /// # Errors
    /// EXCEED_LIM if the CQ has more entries than `max_log_entries` permits.
    pub fn parse(inbox: &[u8; Self::LEN], max_log_entries: u8) -> Result<Self, CmdError> {
        let raw: Raw = transmute!(*inbox);
        // Unlike in SW2HW_CQ, the log2 of the size is a full byte here.
        let [log_entries, ..] = raw.size.into_bits().to_bytes();
        Ok(Self {
            start: raw.start.get(),
            log_entries: check_size(log_entries, max_log_entries)?,
            lkey: Lkey::new(raw.lkey.get()),
        })
    }
}

fn check_size(log_entries: u8, max: u8) -> Result<u8, CmdError> {
    if log_entries > max {
        return Err(CmdError::new(CmdStatus::ExceedLim, "log2 of the CQ size", log_entries.into()));
    }
    Ok(log_entries)
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    flags: U32,
    start: U64,
    size: RingSize,
    error_eqn: U32,
    comp_eqn: U32,
    pd: U32,
    lkey: U32,
    last_notified: U32,
    solicited_producer: U32,
    consumer: U32,
    producer: U32,
    cqn: U32,
    consumer_record: U32,
    arm_record: U32,
    reserved_3c: [u8; 4],
}

const _: () = assert!(size_of::<Raw>() == Cqc::LEN);

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the inbox from section 6.4 for the kernel's first CQ: 2048 entries, doorbell records 3 and
    /// 32767 of UAR page 2.
    fn inbox() -> [u8; Cqc::LEN] {
        let mut inbox = [0; Cqc::LEN];
        for (at, bytes) in [
            (0x00, [0x00, 0x04, 0x00, 0x00]),
            (0x04, [0, 0, 0, 0x12]),
            (0x08, [0x34, 0x50, 0, 0]),
            (0x0c, [0x0b, 0x00, 0x00, 0x02]),
            (0x10, [0, 0, 0, 2]),
            (0x14, [0, 0, 0, 1]),
            (0x18, [0, 0, 0, 1]),
            (0x1c, [0x00, 0x00, 0x16, 0x00]),
            (0x30, [0, 0, 0, 0x10]),
            (0x34, [0, 0, 0x7f, 0xff]),
            (0x38, [0, 0, 0, 3]),
        ] {
            inbox[at..at + 4].copy_from_slice(&bytes);
        }
        inbox
    }

    #[test]
    fn cq_context_fields_are_at_specified_offsets() {
        let expected = Cqc {
            start: 0x12_3450_0000,
            log_entries: 11,
            page: 2,
            comp_eqn: Eqn::new(1),
            pd: Pdn::new(1),
            lkey: Lkey::new(0x1600),
            cqn: Cqn::new(0x10),
            consumer_record: 32767,
            arm_record: 3,
        };
        assert_eq!(Cqc::parse(&inbox(), 17), Ok(expected));
    }

    #[test]
    fn resize_cq_inbox_contains_size_and_lkey() {
        let mut bytes = [0; ResizeCq::LEN];
        bytes[0x09] = 0x30;
        bytes[0x0c] = 8;
        bytes[0x1c..0x20].copy_from_slice(&[0, 0, 0x17, 0]);
        let expected = ResizeCq { start: 0x30_0000, log_entries: 8, lkey: Lkey::new(0x1700) };
        assert_eq!(ResizeCq::parse(&bytes, 17), Ok(expected));
        bytes[0x0c] = 0x28;
        assert_eq!(ResizeCq::parse(&bytes, 17).unwrap_err().status, CmdStatus::ExceedLim);
    }

    #[test]
    fn rejects_cq_larger_than_reported_limit() {
        let mut inbox = inbox();
        inbox[0x0c] = 18;
        assert_eq!(Cqc::parse(&inbox, 17).unwrap_err().status, CmdStatus::ExceedLim);
    }
}
