//! Event queue contexts (EQC).
//!
//! # Spec
//! JingZhao interface, sections 3.10 and 4.5.

use bitfield_struct::bitfield;
use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, transmute};

use super::cmd::{CmdError, CmdStatus};
use crate::describe::{Describe, Field, Hex, Visitor, describe};
use crate::ids::{Lkey, Pdn};

/// First word of an EQC.
#[bitfield(u32, repr = U32, from = U32::new, into = U32::get)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct EqFlags {
    __: u8,
    /// Bit 8: the EQ is armed. The next event raises an interrupt.
    pub armed: bool,
    __: u8,
    /// Bit 17: ignore overruns (defined by the public driver only).
    pub oi: bool,
    /// Bit 18: translation required (set by the public driver).
    pub tr: bool,
    #[bits(5)]
    __: u8,
    /// Bit 24: owned by the device.
    pub owner: bool,
    #[bits(3)]
    __: u8,
    /// Bits 31:28: status; 0 is OK.
    #[bits(4)]
    pub status: u8,
}

impl Describe for EqFlags {
    fn describe(&self, to: &mut dyn Visitor) {
        self.armed().show("armed", to);
        self.oi().show("oi", to);
        self.tr().show("tr", to);
        self.owner().show("owner", to);
        self.status().show("status", to);
    }
}

impl Field for EqFlags {
    fn show(&self, name: &str, to: &mut dyn Visitor) {
        to.object(name, self);
    }
}

/// EQC fields used by the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Eqc {
    /// Status and arm state of the EQ.
    pub flags: EqFlags,
    /// Address or offset of the first entry in the buffer's region; normally 0.
    pub start: u64,
    /// Log2 of the number of entries.
    pub log_entries: u8,
    pub msix_vector: u16,
    /// Protection domain of the buffer.
    pub pd: Pdn,
    /// L_Key of the buffer's region.
    pub lkey: Lkey,
    /// Initial consumer index of the EQ.
    pub consumer_index: u32,
    /// Initial producer index of the EQ.
    pub producer_index: u32,
}

impl Eqc {
    /// Length in bytes of the mailbox and of the context in ICM.
    pub const LEN: usize = 0x40;
    /// Length in bytes of the part of the ICM context that SW2HW_EQ writes and HW2SW_EQ clears.
    pub const STORED_LEN: usize = 48;
    /// Log2 of the maximum number of entries.
    pub const MAX_LOG_ENTRIES: u8 = 20;

    /// Parses the mailbox of SW2HW_EQ.
    ///
    /// # Errors
    /// EXCEED_LIM if the EQ has more than 2^20 entries.
    pub fn parse(inbox: &[u8; Self::LEN]) -> Result<Self, CmdError> {
        let raw: Raw = transmute!(*inbox);
        if raw.logsize > Self::MAX_LOG_ENTRIES {
            return Err(CmdError::new(CmdStatus::ExceedLim, "log2 of the EQ size", raw.logsize.into()));
        }
        Ok(Self {
            flags: raw.flags,
            start: raw.start.get(),
            log_entries: raw.logsize,
            msix_vector: raw.msix_vector.get(),
            pd: Pdn::new(raw.pd.get()),
            lkey: Lkey::new(raw.lkey.get()),
            consumer_index: raw.consumer_index.get(),
            producer_index: raw.producer_index.get(),
        })
    }

    /// Returns the EQC in wire format, as a driver builds it.
    pub fn emit(&self) -> [u8; Self::LEN] {
        transmute!(Raw {
            flags: self.flags,
            start: self.start.into(),
            logsize: self.log_entries,
            reserved_0d: [0; 9],
            msix_vector: self.msix_vector.into(),
            pd: self.pd.get().into(),
            lkey: self.lkey.get().into(),
            reserved_20: [0; 8],
            consumer_index: self.consumer_index.into(),
            producer_index: self.producer_index.into(),
            reserved_30: [0; 16],
        })
    }
}

describe!(Eqc {
    flags,
    start as Hex,
    log_entries,
    msix_vector,
    pd,
    lkey,
    consumer_index,
    producer_index,
});

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    flags: EqFlags,
    start: U64,
    logsize: u8,
    reserved_0d: [u8; 9],
    msix_vector: U16,
    pd: U32,
    lkey: U32,
    reserved_20: [u8; 8],
    consumer_index: U32,
    producer_index: U32,
    reserved_30: [u8; 16],
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Example mailbox from section 14.6.
    const MAILBOX: [u8; 0x40] = [
        0x01, 0x04, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x07, 0x00, 0x00,
        0x00, //
        0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x02, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
        0x30, //
        0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
        0x00, //
        0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    ];

    #[test]
    fn example_mailbox_round_trips() {
        let eqc = Eqc {
            flags: EqFlags::new().with_owner(true).with_tr(true).with_armed(true),
            start: 0,
            log_entries: 7,
            msix_vector: 2,
            pd: Pdn::new(0),
            lkey: Lkey::new(0x30),
            consumer_index: 0,
            producer_index: 0,
        };
        assert_eq!(Eqc::parse(&MAILBOX), Ok(eqc));
        assert_eq!(eqc.emit(), MAILBOX);
    }

    #[test]
    fn eq_indices_are_at_specified_offsets() {
        let mut bytes = MAILBOX;
        bytes[0x2b] = 3;
        bytes[0x2f] = 4;
        let eqc = Eqc::parse(&bytes).unwrap();
        assert_eq!((eqc.consumer_index, eqc.producer_index), (3, 4));
        assert_eq!(eqc.emit(), bytes);
    }

    #[test]
    fn rejects_entry_count_above_limit() {
        let mut bytes = MAILBOX;
        bytes[0x0c] = 21;
        assert_eq!(Eqc::parse(&bytes).unwrap_err().status.basic(), CmdStatus::BadParam);
    }

    proptest! {
        #[test]
        fn any_parsed_eq_context_round_trips(words in prop::array::uniform16(any::<u32>()), log in 0u8..=20) {
            let mut inbox: [u8; 0x40] = transmute!(words);
            inbox[0x0c] = log;
            let eqc = Eqc::parse(&inbox).unwrap();
            prop_assert_eq!(Eqc::parse(&eqc.emit()), Ok(eqc));
        }
    }
}
