//! Inbox of INIT_HCA: locations and sizes of the context tables in ICM.
//!
//! # Spec
//! JingZhao interface, sections 3.3 and 12 (J-09).

use zerocopy::big_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, transmute};

use super::cmd::CmdError;
use crate::describe::describe;
pub use crate::hca::table::Table;
use crate::ids::IcmAddr;

/// Layout of the tables in ICM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct InitHca {
    pub qpc: Table,
    pub cqc: Table,
    pub eqc: Table,
    /// Memory protection table (MPT).
    pub mpt: Table,
    /// Base of the memory translation table (MTT). Its size is not in the inbox: the table ends where its ICM mapping
    /// ends.
    pub mtt_base: IcmAddr,
}

impl InitHca {
    /// Length of the inbox in bytes.
    pub const LEN: usize = 0x40;

    /// Parses an inbox. Sizes above the limits of QUERY_DEV_LIM are accepted (J-09).
    ///
    /// # Errors
    /// EXCEED_LIM for more than 2^24 QPs or CQs, 2^8 EQs or 2^32 MPT entries.
    pub fn parse(inbox: &[u8; Self::LEN]) -> Result<Self, CmdError> {
        let raw: RawInitHca = transmute!(*inbox);
        Ok(Self {
            qpc: Table::parse(raw.qpc.get(), 24, "log2 of the QP count")?,
            cqc: Table::parse(raw.cqc.get(), 24, "log2 of the CQ count")?,
            eqc: Table::parse(raw.eqc.get(), 8, "log2 of the EQ count")?,
            mpt: Table::parse(raw.mpt.get(), 32, "log2 of the MPT count")?,
            mtt_base: IcmAddr::new(raw.mtt_base.get()),
        })
    }

    /// Returns the inbox in wire format, as a driver builds it.
    pub fn emit(&self) -> [u8; Self::LEN] {
        let pack = |table: Table| U64::new(table.word());
        transmute!(RawInitHca {
            reserved_00: [0; 8],
            qpc: pack(self.qpc),
            cqc: pack(self.cqc),
            eqc: pack(self.eqc),
            reserved_20: [0; 16],
            mpt: pack(self.mpt),
            mtt_base: self.mtt_base.get().into(),
        })
    }
}

describe!(InitHca { qpc, cqc, eqc, mpt, mtt_base });

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawInitHca {
    reserved_00: [u8; 8],
    qpc: U64,
    cqc: U64,
    eqc: U64,
    reserved_20: [u8; 16],
    mpt: U64,
    mtt_base: U64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hca::status::CmdStatus;
    use proptest::prelude::*;

    /// Example inbox from section 14.2.
    const INBOX: [u8; 0x40] = [
        0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
        0x10, //
        0x00, 0x00, 0x00, 0x00, 0x02, 0x00, 0x00, 0x10, 0x00, 0x00, 0x00, 0x00, 0x02, 0x40, 0x00,
        0x05, //
        0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
        0x00, //
        0x00, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x11, 0x00, 0x00, 0x00, 0x00, 0x01, 0x80, 0x00, 0x00,
    ];

    fn layout() -> InitHca {
        let table = |base, log_entries| Table { base: IcmAddr::new(base), log_entries };
        InitHca {
            qpc: table(0, 16),
            cqc: table(0x200_0000, 16),
            eqc: table(0x240_0000, 5),
            mpt: table(0x100_0000, 17),
            mtt_base: IcmAddr::new(0x180_0000),
        }
    }

    #[test]
    fn example_inbox_round_trips() {
        assert_eq!(InitHca::parse(&INBOX), Ok(layout()));
        assert_eq!(layout().emit(), INBOX);
    }

    #[test]
    fn rejects_oversized_tables() {
        for (offset, most) in [(0x0f, 24), (0x17, 24), (0x1f, 8), (0x37, 32)] {
            let mut inbox = INBOX;
            inbox[offset] = most;
            assert!(InitHca::parse(&inbox).is_ok());
            inbox[offset] = most + 1;
            assert_eq!(InitHca::parse(&inbox).unwrap_err().status.basic(), CmdStatus::BadParam);
        }
    }

    #[test]
    fn table_index_drops_bits_above_size() {
        let qpc = Table { base: IcmAddr::new(0), log_entries: 16 };
        assert_eq!(qpc.index(0x7_0005), 5);
        let mpt = Table { base: IcmAddr::new(0), log_entries: 32 };
        assert_eq!(mpt.index(0xdead_beef), 0xdead_beef);
        assert_eq!(mpt.entries(), 1 << 32);
    }

    proptest! {
        #[test]
        fn any_parsed_inbox_round_trips(words in prop::array::uniform16(any::<u32>())) {
            let inbox: [u8; 0x40] = transmute!(words);
            if let Ok(init) = InitHca::parse(&inbox) {
                prop_assert_eq!(InitHca::parse(&init.emit()), Ok(init));
            }
        }
    }
}
