//! Shared receive queue contexts (SRQC).
//!
//! # Spec
//! mthca interface, section 6.6.

use bitfield_struct::bitfield;
use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, transmute};

use crate::describe::{Hex, describe};
use crate::hca::status::{CmdError, CmdStatus};
use crate::ids::{Lkey, Pdn, Srqn};

/// SRQC fields used by the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Srqc {
    /// Log2 of the number of slots.
    pub log_slots: u8,
    /// SRQ number. It contains no generation number.
    pub srqn: Srqn,
    /// L_Key of the queue's region.
    pub lkey: Lkey,
    /// UAR page of the doorbell record.
    pub page: u32,
    /// Index of the doorbell record that counts posted WQEs.
    pub record: u32,
    /// Log2 of the slot size in bytes.
    pub log_slot: u8,
    /// Protection domain of the queue and the data.
    pub pd: Pdn,
    /// A single event is raised when fewer than this many WQEs remain posted; 0 disables the event.
    pub limit: u16,
}

describe!(Srqc { log_slots, srqn, lkey, page as Hex, record, log_slot, pd, limit });

impl Srqc {
    /// Length in bytes of the inbox that the driver writes.
    pub const LEN: usize = 0x30;
    /// Length in bytes of the outbox of QUERY_SRQ.
    pub const QUERY_LEN: usize = 0x40;

    /// Parses the inbox of SW2HW_SRQ. `max_log_slots` is the log2 of the maximum number of slots.
    ///
    /// # Errors
    /// EXCEED_LIM if the SRQ has more slots than `max_log_slots` permits.
    pub fn parse(inbox: &[u8; Self::LEN], max_log_slots: u8) -> Result<Self, CmdError> {
        let raw: Raw = transmute!(*inbox);
        let log_slots = raw.head.log_slots();
        if log_slots > max_log_slots {
            return Err(CmdError::new(CmdStatus::ExceedLim, "log2 of the SRQ size", log_slots.into()));
        }
        Ok(Self {
            log_slots,
            srqn: Srqn::new(raw.head.srqn()),
            lkey: Lkey::new(raw.lkey.get()),
            record: raw.record.get(),
            log_slot: raw.stride.log_stride() + 4,
            page: raw.stride.page(),
            pd: Pdn::new(raw.owner.pd()),
            limit: raw.limit.get(),
        })
    }

    /// Returns the outbox of QUERY_SRQ, given the numbers of WQEs posted and consumed.
    pub fn emit(&self, posted: u16, consumed: u16) -> [u8; Self::QUERY_LEN] {
        let raw = Raw {
            head: Head::new().with_log_slots(self.log_slots & 0xf).with_srqn(self.srqn.get()),
            lkey: self.lkey.get().into(),
            record: self.record.into(),
            stride: Stride::new()
                .with_log_stride(self.log_slot.saturating_sub(4) & 0x7)
                .with_page(self.page & 0xff_ffff),
            start: U64::ZERO,
            owner: Owner::new().with_pd(self.pd.get() & 0xff_ffff),
            limit: self.limit.into(),
            count: posted.into(),
            reserved_20: [0; 2],
            counter: consumed.into(),
            reserved_24: [0; 12],
        };
        let bytes: [u8; Self::LEN] = transmute!(raw);
        let mut out = [0; Self::QUERY_LEN];
        out[..Self::LEN].copy_from_slice(&bytes);
        out
    }
}

#[bitfield(u32, repr = U32, from = U32::new, into = U32::get)]
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
struct Head {
    #[bits(24)]
    srqn: u32,
    #[bits(4)]
    log_slots: u8,
    #[bits(4)]
    state: u8,
}

#[bitfield(u32, repr = U32, from = U32::new, into = U32::get)]
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
struct Stride {
    #[bits(24)]
    page: u32,
    #[bits(5)]
    __: u8,
    #[bits(3)]
    log_stride: u8,
}

/// Protection domain and EQ number. The device ignores the EQ number; the driver always writes 1.
#[bitfield(u32, repr = U32, from = U32::new, into = U32::get)]
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
struct Owner {
    #[bits(24)]
    pd: u32,
    eqn: u8,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    head: Head,
    lkey: U32,
    record: U32,
    stride: Stride,
    start: U64,
    owner: Owner,
    limit: U16,
    count: U16,
    reserved_20: [u8; 2],
    counter: U16,
    reserved_24: [u8; 12],
}

const _: () = assert!(size_of::<Raw>() == Srqc::LEN);

#[cfg(test)]
mod tests {
    use super::*;

    /// Context of SRQ 11h: 256 slots of 64 bytes each, key 1a00h, record 32764 of UAR page 3, PD 5.
    const INBOX: [u8; Srqc::LEN] = [
        0x08, 0x00, 0x00, 0x11, 0x00, 0x00, 0x1a, 0x00, 0x00, 0x00, 0x7f, 0xfc, 0x40, 0x00, 0x00,
        0x03, //
        0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x05, 0x00, 0x00, 0x00,
        0x00, //
        0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    ];

    #[test]
    fn srq_context_fields_are_at_specified_offsets() {
        let srqc = Srqc {
            log_slots: 8,
            srqn: Srqn::new(0x11),
            lkey: Lkey::new(0x1a00),
            page: 3,
            record: 32764,
            log_slot: 6,
            pd: Pdn::new(5),
            limit: 0,
        };
        assert_eq!(Srqc::parse(&INBOX, 14), Ok(srqc));
        let armed = Srqc { limit: 0x1234, ..srqc }.emit(0x0102, 0x0304);
        assert_eq!(armed[0x1c..0x24], [0x12, 0x34, 0x01, 0x02, 0, 0, 0x03, 0x04]);
        assert_eq!(armed[..0x18], INBOX[..0x18]);
    }

    #[test]
    fn rejects_oversized_srq() {
        let mut inbox = INBOX;
        inbox[0] = 0x0f;
        assert_eq!(Srqc::parse(&inbox, 14).unwrap_err().status, CmdStatus::ExceedLim);
    }
}
