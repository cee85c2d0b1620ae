//! Event queue contexts (EQC).
//!
//! # Spec
//! mthca interface, sections 1.7 and 6.3.

use bitfield_struct::bitfield;
use zerocopy::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, transmute};

use crate::describe::{Field, Hex, Visitor, describe};
use crate::hca::status::{CmdError, CmdStatus};
use crate::ids::{Lkey, Pdn};

/// Interrupt assigned to an EQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interrupt {
    /// The interrupt is an MSI-X vector.
    MsiX(u16),
    /// The interrupt is the INTx pin.
    Pin,
}

/// EQC fields used by the device. An EQ is armed when it is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Eqc {
    /// Virtual address of the first entry, within the buffer's region.
    pub start: u64,
    /// Log2 of the number of entries.
    pub log_entries: u8,
    /// Interrupt raised by an event.
    pub interrupt: Interrupt,
    /// Protection domain of the buffer.
    pub pd: Pdn,
    /// L_Key of the buffer's region.
    pub lkey: Lkey,
}

describe!(Eqc { start as Hex, log_entries, interrupt, pd, lkey });

impl Field for Interrupt {
    fn show(&self, name: &str, to: &mut dyn Visitor) {
        match self {
            Self::MsiX(vector) => format_args!("MSIX[{vector}]").show(name, to),
            Self::Pin => "INTx".show(name, to),
        }
    }
}

impl Eqc {
    /// Length of the inbox in bytes.
    pub const LEN: usize = 0x40;
    /// Log2 of the maximum number of entries. The driver's EQ for completion events has 2^17 entries.
    pub const MAX_LOG_ENTRIES: u8 = 20;

    /// Parses the inbox of SW2HW_EQ.
    ///
    /// # Errors
    /// EXCEED_LIM if there are more than 2^20 entries.
    pub fn parse(inbox: &[u8; Self::LEN]) -> Result<Self, CmdError> {
        const MSIX: u8 = 1 << 7;
        let raw: Raw = transmute!(*inbox);
        let log_entries = raw.size.log_entries();
        if log_entries > Self::MAX_LOG_ENTRIES {
            return Err(CmdError::new(CmdStatus::ExceedLim, "log2 of the EQ size", log_entries.into()));
        }
        let vector = raw.interrupt & !MSIX;
        let interrupt =
            if raw.interrupt & MSIX == 0 { Interrupt::Pin } else { Interrupt::MsiX(vector.into()) };
        let (pd, lkey) = (Pdn::new(raw.pd.get() & 0xff_ffff), Lkey::new(raw.lkey.get()));
        Ok(Self { start: raw.start.get(), log_entries, interrupt, pd, lkey })
    }
}

/// Size and UAR page of a ring, in EQ and CQ contexts.
#[bitfield(u32, repr = U32, from = U32::new, into = U32::get)]
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub(super) struct RingSize {
    #[bits(24)]
    pub(super) page: u32,
    #[bits(5)]
    pub(super) log_entries: u8,
    #[bits(3)]
    __: u8,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    flags: U32,
    start: U64,
    size: RingSize,
    reserved_10: [u8; 7],
    interrupt: u8,
    pd: U32,
    lkey: U32,
    reserved_20: [u8; 8],
    consumer: U32,
    producer: U32,
    reserved_30: [u8; 16],
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Example from section 13.3, with the PD and key from section 14.
    const INBOX: [u8; Eqc::LEN] = {
        let mut inbox = [0; Eqc::LEN];
        let head: [u8; 32] = [
            0x01, 0x04, 0x09, 0x00, 0, 0, 0, 0, 0, 0, 0, 0, 0x11, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x80, 0, 0,
            0, 1, 0, 0, 0x11, 0x00,
        ];
        let mut i = 0;
        while i < head.len() {
            inbox[i] = head[i];
            i += 1;
        }
        inbox
    };

    #[test]
    fn parses_completion_eq_example() {
        let expected = Eqc {
            start: 0,
            log_entries: 17,
            interrupt: Interrupt::MsiX(0),
            pd: Pdn::new(1),
            lkey: Lkey::new(0x1100),
        };
        assert_eq!(Eqc::parse(&INBOX), Ok(expected));
        let mut inbox = INBOX;
        inbox[0x04..0x0c].copy_from_slice(&[0, 0, 0, 0x12, 0x34, 0x50, 0, 0]);
        assert_eq!(Eqc::parse(&inbox), Ok(Eqc { start: 0x12_3450_0000, ..expected }));
    }

    #[test]
    fn bit_7_of_interrupt_field_selects_msix() {
        let with = |interrupt| {
            let mut inbox = INBOX;
            inbox[0x17] = interrupt;
            Eqc::parse(&inbox).unwrap().interrupt
        };
        assert_eq!(with(0x82), Interrupt::MsiX(2));
        assert_eq!(with(0), Interrupt::Pin);
    }

    #[test]
    fn rejects_oversized_eq() {
        let mut inbox = INBOX;
        inbox[0x0c] = 21;
        assert_eq!(Eqc::parse(&inbox).unwrap_err().status, CmdStatus::ExceedLim);
    }
}
