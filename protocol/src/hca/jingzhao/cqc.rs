//! Completion queue contexts (CQC) and the mailbox of RESIZE_CQ.
//!
//! # Spec
//! JingZhao interface, sections 3.11 and 4.4.

use bitfield_struct::bitfield;
use zerocopy::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, transmute};

use super::cmd::{CmdError, CmdStatus};
use crate::describe::{Code, Describe, Field, Hex, Visitor, describe};
use crate::ids::{Cqn, Eqn, Lkey, Pdn};

/// First word of a CQC.
#[bitfield(u32, repr = U32, from = U32::new, into = U32::get)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct CqFlags {
    __: u8,
    /// Bits 11:8: arm state; see [`CqArm`].
    #[bits(4)]
    pub state: u8,
    #[bits(5)]
    __: u8,
    /// Bit 17: ignore overruns (defined by the public driver only).
    pub oi: bool,
    /// Bit 18: translation required (set by the public driver).
    pub tr: bool,
    #[bits(9)]
    __: u16,
    /// Bits 31:28: status, which is 0 (OK), [`STATUS_OVERFLOW`] or [`STATUS_WRITE_FAIL`].
    #[bits(4)]
    pub status: u8,
}

/// Offset in a CQC of the log2 of the number of entries.
pub const LOG_SIZE: usize = 0x0c;
/// Offset of the buffer's L_Key in a CQC.
pub const LKEY: usize = 0x18;
const _: () = {
    assert!(std::mem::offset_of!(Raw, logsize) == LOG_SIZE);
    assert!(std::mem::offset_of!(Raw, lkey) == LKEY);
};

/// Status after an overrun.
pub const STATUS_OVERFLOW: u8 = 9;
/// Status after a failed write to the CQ buffer.
pub const STATUS_WRITE_FAIL: u8 = 10;

/// Arm state of a CQ: which completions raise an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CqArm {
    /// Completions do not raise events.
    Disarmed,
    /// The next completion raises an event.
    Armed,
    /// The next solicited or failed completion raises an event.
    ArmedSolicited,
}

impl CqFlags {
    /// Returns the initial arm state of the CQ. Undefined codes are treated as disarmed.
    pub fn arm(self) -> CqArm {
        match self.state() {
            1 => CqArm::Armed,
            4 => CqArm::ArmedSolicited,
            _ => CqArm::Disarmed,
        }
    }
}

impl Describe for CqFlags {
    fn describe(&self, to: &mut dyn Visitor) {
        let state = match self.state() {
            0 => None,
            1 => Some("armed"),
            4 => Some("armed_solicited"),
            _ => None,
        };
        Code(self.state().into(), state).show("state", to);
        self.oi().show("oi", to);
        self.tr().show("tr", to);
        self.status().show("status", to);
    }
}

impl Field for CqFlags {
    fn show(&self, name: &str, to: &mut dyn Visitor) {
        to.object(name, self);
    }
}

/// CQC fields used by the device. The other fields stay in ICM as the driver wrote them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cqc {
    /// Status and arm state.
    pub flags: CqFlags,
    /// Address or offset of the first entry in the buffer's region; normally 0.
    pub start: u64,
    /// Log2 of the number of entries.
    pub log_entries: u8,
    /// EQ for completion events.
    pub comp_eqn: Eqn,
    /// Protection domain of the buffer.
    pub pd: Pdn,
    /// L_Key of the buffer's region.
    pub lkey: Lkey,
    /// CQ number as written by the driver.
    pub cqn: Cqn,
}

impl Cqc {
    /// Length in bytes of the mailbox and of the context in ICM.
    pub const LEN: usize = 0x40;
    /// Length in bytes of the part of the ICM context that SW2HW_CQ writes and HW2SW_CQ clears.
    pub const STORED_LEN: usize = 56;

    /// Parses the mailbox of SW2HW_CQ. `max_log_entries` is the limit reported by QUERY_DEV_LIM.
    ///
    /// # Errors
    /// EXCEED_LIM if the number of entries exceeds the limit.
    pub fn parse(inbox: &[u8; Self::LEN], max_log_entries: u16) -> Result<Self, CmdError> {
        let raw: Raw = transmute!(*inbox);
        Ok(Self {
            flags: raw.flags,
            start: raw.start.get(),
            log_entries: check_size(raw.logsize, max_log_entries)?,
            comp_eqn: Eqn::new(raw.comp_eqn.get()),
            pd: Pdn::new(raw.pd.get()),
            lkey: Lkey::new(raw.lkey.get()),
            cqn: Cqn::new(raw.cqn.get()),
        })
    }

    /// Returns the mailbox in wire format, as a driver builds it.
    pub fn emit(&self) -> [u8; Self::LEN] {
        transmute!(Raw {
            flags: self.flags,
            start: self.start.into(),
            logsize: self.log_entries,
            usrpage: [0; 3],
            comp_eqn: self.comp_eqn.get().into(),
            pd: self.pd.get().into(),
            lkey: self.lkey.get().into(),
            last_notified_index: U32::ZERO,
            solicit_producer_index: U32::ZERO,
            consumer_index: U32::ZERO,
            producer_index: U32::ZERO,
            cqn: self.cqn.get().into(),
            ci_db: U32::ZERO,
            state_db: U32::ZERO,
            reserved_38: [0; 8],
        })
    }
}

/// Inbox of the RESIZE_CQ command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResizeCq {
    /// Log2 of the new number of entries.
    pub log_entries: u8,
    /// L_Key of the new buffer's region.
    pub lkey: Lkey,
}

impl ResizeCq {
    /// Length of the mailbox in bytes.
    pub const LEN: usize = 8;

    /// Parses the mailbox. `max_log_entries` is the limit reported by QUERY_DEV_LIM.
    ///
    /// # Errors
    /// EXCEED_LIM if the number of entries exceeds the limit.
    pub fn parse(inbox: &[u8; Self::LEN], max_log_entries: u16) -> Result<Self, CmdError> {
        let raw: RawResize = transmute!(*inbox);
        let log_entries = check_size(raw.logsize, max_log_entries)?;
        Ok(Self { log_entries, lkey: Lkey::new(raw.lkey.get()) })
    }

    /// Returns the mailbox in wire format, as a driver builds it.
    pub fn emit(&self) -> [u8; Self::LEN] {
        let lkey = self.lkey.get().into();
        transmute!(RawResize { logsize: self.log_entries, reserved_01: [0; 3], lkey })
    }
}

describe!(Cqc { flags, start as Hex, log_entries, comp_eqn, pd, lkey, cqn });
describe!(ResizeCq { log_entries, lkey });

fn check_size(log_entries: u8, max: u16) -> Result<u8, CmdError> {
    if u16::from(log_entries) > max {
        return Err(CmdError::new(CmdStatus::ExceedLim, "log2 of the CQ size", log_entries.into()));
    }
    Ok(log_entries)
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    flags: CqFlags,
    start: U64,
    logsize: u8,
    usrpage: [u8; 3],
    comp_eqn: U32,
    pd: U32,
    lkey: U32,
    last_notified_index: U32,
    solicit_producer_index: U32,
    consumer_index: U32,
    producer_index: U32,
    cqn: U32,
    ci_db: U32,
    state_db: U32,
    reserved_38: [u8; 8],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawResize {
    logsize: u8,
    reserved_01: [u8; 3],
    lkey: U32,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn example_mailbox_round_trips() {
        let mut bytes = [0; 0x40];
        bytes[1] = 0x04;
        bytes[0x0c] = 0x05;
        let cqc = Cqc {
            flags: CqFlags::new().with_tr(true),
            start: 0,
            log_entries: 5,
            comp_eqn: Eqn::new(0),
            pd: Pdn::new(0),
            lkey: Lkey::new(0),
            cqn: Cqn::new(0),
        };
        assert_eq!(Cqc::parse(&bytes, 16), Ok(cqc));
        assert_eq!(cqc.emit(), bytes);
        assert_eq!(cqc.flags.arm(), CqArm::Disarmed);
    }

    #[test]
    fn cq_context_fields_are_at_specified_offsets() {
        let cqc = Cqc {
            flags: CqFlags::new().with_status(STATUS_OVERFLOW).with_oi(true).with_state(1),
            start: 0x7f00_1234_5000,
            log_entries: 16,
            comp_eqn: Eqn::new(0x11),
            pd: Pdn::new(0x2222_2222),
            lkey: Lkey::new(0x3333_3333),
            cqn: Cqn::new(0x44_4444),
        };
        let bytes = cqc.emit();
        assert_eq!(bytes[..4], [0x90, 0x02, 0x01, 0x00]);
        assert_eq!(bytes[4..0x0c], [0, 0, 0x7f, 0, 0x12, 0x34, 0x50, 0]);
        assert_eq!(bytes[0x10..0x1c], [0, 0, 0, 0x11, 0x22, 0x22, 0x22, 0x22, 0x33, 0x33, 0x33, 0x33]);
        assert_eq!(bytes[0x2c..0x30], [0, 0x44, 0x44, 0x44]);
        assert_eq!(cqc.flags.arm(), CqArm::Armed);
        assert_eq!(CqFlags::new().with_state(4).arm(), CqArm::ArmedSolicited);
    }

    #[test]
    fn rejects_entry_count_above_limit() {
        let mut bytes = [0; 0x40];
        bytes[0x0c] = 17;
        assert_eq!(Cqc::parse(&bytes, 16).unwrap_err().status.basic(), CmdStatus::BadParam);
        assert_eq!(
            ResizeCq::parse(&[17, 0, 0, 0, 0, 0, 0, 1], 16).unwrap_err().status.basic(),
            CmdStatus::BadParam
        );
    }

    #[test]
    fn resize_cq_inbox_round_trips() {
        let bytes = [7, 0, 0, 0, 0x00, 0x02, 0x00, 0x05];
        let resize = ResizeCq { log_entries: 7, lkey: Lkey::new(0x2_0005) };
        assert_eq!(ResizeCq::parse(&bytes, 16), Ok(resize));
        assert_eq!(resize.emit(), bytes);
    }

    proptest! {
        #[test]
        fn any_parsed_cq_context_round_trips(words in prop::array::uniform16(any::<u32>()), log in 0u8..=16) {
            let mut inbox: [u8; 0x40] = transmute!(words);
            inbox[0x0c] = log;
            let cqc = Cqc::parse(&inbox, 16).unwrap();
            prop_assert_eq!(Cqc::parse(&cqc.emit(), 16), Ok(cqc));
        }
    }
}
