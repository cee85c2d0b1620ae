//! Memory protection table (MPT) entries.
//!
//! # Spec
//! JingZhao interface, sections 3.7, 4.6, 9.3 and 12 (J-20, J-26).

use bitflags::bitflags;
use zerocopy::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, transmute};

use super::cmd::{CmdError, CmdStatus};
use super::init::Table;
use crate::describe::{Field, Hex, Visitor, describe, show_flags};
use crate::ids::{Lkey, Pdn, Va};

bitflags! {
    /// MPT flags. Bits without a name are preserved and ignored.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct MptFlags: u32 {
        /// Bits 31:28: software owns the entry. The device ignores these bits; the public driver sets them in every
        /// entry.
        const SW_OWNS = 0xf << 28;
        /// Memory-mapped I/O. Ignored by the device.
        const MIO = 1 << 17;
        /// Bind-enable flag. Ignored by the device.
        const BIND_ENABLE = 1 << 15;
        /// No translation: virtual addresses are bus addresses.
        const PHYSICAL = 1 << 9;
        /// Memory region rather than memory window. The public driver always sets this flag.
        const REGION = 1 << 8;
        /// Ignored; local reads are always allowed.
        const LOCAL_READ = 1 << 7;
        /// On-demand flag. Ignored by the device.
        const ON_DEMAND = 1 << 6;
        /// Virtual addresses are offsets from the start of the region.
        const ZERO_BASED = 1 << 5;
        /// Flag for binding memory windows. Ignored by the device.
        const MW_BIND = 1 << 4;
        /// Peers can execute atomic operations.
        const REMOTE_ATOMIC = 1 << 3;
        /// Peers can execute RDMA READ.
        const REMOTE_READ = 1 << 2;
        /// Peers can execute RDMA WRITE.
        const REMOTE_WRITE = 1 << 1;
        /// The device can write to the region for local work requests and receives.
        const LOCAL_WRITE = 1;
        const _ = !0;
    }
}

/// Page size of a region: a power of two from 4 KiB to 2 GiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageSize {
    log: u8,
}

impl PageSize {
    /// Smallest page size, 4 KiB.
    pub const MIN: Self = Self { log: 12 };

    /// Decodes the page size field. It contains either a size in bytes, where 0 means 4 KiB, or a code from 1 to 19 for
    /// 2^13 to 2^31 bytes. The public RTL's tests use codes (J-20).
    #[expect(clippy::cast_possible_truncation, reason = "both values are below 32")]
    pub const fn from_field(field: u32) -> Option<Self> {
        match field {
            0 => Some(Self::MIN),
            1..=19 => Some(Self { log: 12 + field as u8 }),
            _ if field.is_power_of_two() && field >= 4096 => Some(Self { log: field.trailing_zeros() as u8 }),
            _ => None,
        }
    }

    /// Returns the size in bytes.
    pub const fn bytes(self) -> u64 {
        1 << self.log
    }

    /// Returns the log2 of the size in bytes.
    pub const fn log2(self) -> u8 {
        self.log
    }
}

/// An entry in the memory protection table (MPT).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Mpt {
    /// Access rights and type of the region.
    pub flags: MptFlags,
    /// Size of the pages that the MTT entries point to.
    pub page_size: PageSize,
    /// Value of both the L_Key and the R_Key. The low bits are the index of the entry.
    pub key: Lkey,
    pub pd: Pdn,
    pub start: Va,
    /// Length of the region in bytes.
    pub length: u64,
    /// Index of the first MTT entry, relative to the table base.
    pub mtt: u64,
}

impl Mpt {
    /// Length in bytes of the mailbox and of the entry in ICM.
    pub const LEN: usize = 0x40;

    /// Parses the mailbox of SW2HW_MPT.
    ///
    /// # Errors
    /// BAD_PARAM for an unsupported page size.
    pub fn parse(inbox: &[u8; Self::LEN]) -> Result<Self, CmdError> {
        let raw: Raw = transmute!(*inbox);
        let page_size = PageSize::from_field(raw.page_size.get())
            .ok_or(CmdError::param("MPT page size", raw.page_size.get().into()))?;
        Ok(Self {
            flags: MptFlags::from_bits_retain(raw.flags.get()),
            page_size,
            key: Lkey::new(raw.key.get()),
            pd: Pdn::new(raw.pd.get()),
            start: Va::new(raw.start.get()),
            length: raw.length.get(),
            mtt: raw.mtt_seg.get(),
        })
    }

    /// Returns the entry in wire format, as a driver builds it.
    pub fn emit(&self) -> [u8; Self::LEN] {
        transmute!(Raw {
            flags: self.flags.bits().into(),
            page_size: (1u32 << self.page_size.log).into(),
            key: self.key.get().into(),
            pd: self.pd.get().into(),
            start: self.start.get().into(),
            length: self.length.into(),
            lkey: U32::ZERO,
            window_count: U32::ZERO,
            window_count_limit: U32::ZERO,
            mtt_seg: self.mtt.into(),
            mtt_sz: U32::ZERO,
            reserved_38: [0; 8],
        })
    }

    /// Checks that the index passed to SW2HW_MPT is in the table and matches the key.
    ///
    /// # Errors
    /// BAD_INDEX if the index is outside the table or does not match the key.
    pub fn check_index(&self, index: u32, table: &Table) -> Result<(), CmdError> {
        if u64::from(index) >= table.entries() {
            return Err(CmdError::new(CmdStatus::BadIndex, "MPT index", index.into()));
        }
        if table.index(self.key.get()) != index {
            return Err(CmdError::new(CmdStatus::BadIndex, "key does not match MPT index", index.into()));
        }
        Ok(())
    }

    /// Returns whether virtual addresses are bus addresses. This is the case for regions with [`MptFlags::PHYSICAL`]
    /// and for regions that cover the whole address space, such as the public driver's DMA region (J-26).
    pub fn is_physical(&self) -> bool {
        self.flags.contains(MptFlags::PHYSICAL) || (self.start.get() == 0 && self.length == u64::MAX)
    }
}

describe!(Mpt { flags, page_size, key, pd, start, length as Hex, mtt });

impl Field for MptFlags {
    fn show(&self, name: &str, to: &mut dyn Visitor) {
        show_flags(self, name, to);
    }
}

impl Field for PageSize {
    fn show(&self, name: &str, to: &mut dyn Visitor) {
        self.bytes().show(name, to);
    }
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    flags: U32,
    page_size: U32,
    key: U32,
    pd: U32,
    start: U64,
    length: U64,
    lkey: U32,
    window_count: U32,
    window_count_limit: U32,
    mtt_seg: U64,
    mtt_sz: U32,
    reserved_38: [u8; 8],
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::IcmAddr;
    use proptest::prelude::*;

    /// Example from section 14.5: a CQ buffer created by the public driver.
    const CQ_BUFFER: [u8; 0x40] = {
        let mut bytes = [0; 0x40];
        bytes[0] = 0xf0;
        bytes[1] = 0x02;
        bytes[2] = 0x01;
        bytes[3] = 0x81;
        bytes[6] = 0x10;
        bytes[0x1e] = 0x04;
        bytes
    };

    /// Example from section 14.5: a user region.
    const USER: [u8; 0x40] = [
        0xf0, 0x02, 0x01, 0x87, 0x00, 0x00, 0x10, 0x00, 0x00, 0x02, 0x00, 0x05, 0x00, 0x00, 0x00,
        0x03, //
        0x00, 0x00, 0x7f, 0x00, 0x12, 0x34, 0x56, 0x78, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x21,
        0x00, //
        0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
        0x00, //
        0x00, 0x00, 0x00, 0x10, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    ];

    const DRIVER: MptFlags =
        MptFlags::SW_OWNS.union(MptFlags::MIO).union(MptFlags::REGION).union(MptFlags::LOCAL_READ);

    fn user() -> Mpt {
        Mpt {
            flags: DRIVER | MptFlags::LOCAL_WRITE | MptFlags::REMOTE_WRITE | MptFlags::REMOTE_READ,
            page_size: PageSize::MIN,
            key: Lkey::new(0x2_0005),
            pd: Pdn::new(3),
            start: Va::new(0x7f00_1234_5678),
            length: 0x2100,
            mtt: 0x10,
        }
    }

    #[test]
    fn example_entries_round_trip() {
        let cq = Mpt {
            flags: DRIVER | MptFlags::LOCAL_WRITE,
            page_size: PageSize::MIN,
            key: Lkey::new(0),
            pd: Pdn::new(0),
            start: Va::new(0),
            length: 1024,
            mtt: 0,
        };
        assert_eq!(Mpt::parse(&CQ_BUFFER), Ok(cq));
        assert_eq!(cq.emit(), CQ_BUFFER);
        assert_eq!(Mpt::parse(&USER), Ok(user()));
        assert_eq!(user().emit(), USER);
    }

    #[test]
    fn region_covering_all_memory_is_physical() {
        assert!(Mpt { start: Va::new(0), length: u64::MAX, ..user() }.is_physical());
        assert!(Mpt { flags: user().flags | MptFlags::PHYSICAL, ..user() }.is_physical());
        assert!(!user().is_physical());
    }

    #[test]
    fn accepts_all_page_size_encodings() {
        assert_eq!(PageSize::from_field(0), Some(PageSize::MIN));
        assert_eq!(PageSize::from_field(1).map(PageSize::bytes), Some(8192));
        assert_eq!(PageSize::from_field(19).map(PageSize::bytes), Some(1 << 31));
        for log in 12..=31 {
            assert_eq!(PageSize::from_field(1 << log).map(PageSize::bytes), Some(1 << log));
        }
        for bad in [20, 32, 2048, 4097, 0x3000, u32::MAX] {
            assert_eq!(PageSize::from_field(bad), None, "{bad:#x}");
        }
    }

    #[test]
    fn mpt_index_must_match_key_and_table() {
        let table = Table { base: IcmAddr::new(0), log_entries: 17 };
        assert_eq!(user().check_index(5, &table), Ok(()));
        assert_eq!(user().check_index(6, &table).unwrap_err().status, CmdStatus::BadIndex);
        assert_eq!(user().check_index(0x2_0005, &table).unwrap_err().status, CmdStatus::BadIndex);
    }

    proptest! {
        #[test]
        fn parsed_mpt_entry_round_trips(words in prop::array::uniform16(any::<u32>())) {
            let inbox: [u8; 0x40] = transmute!(words);
            let mut usual = inbox;
            usual[4..8].copy_from_slice(&[0, 0, 0x10, 0]);
            for bytes in [inbox, usual] {
                if let Ok(mpt) = Mpt::parse(&bytes) {
                    prop_assert_eq!(Mpt::parse(&mpt.emit()), Ok(mpt));
                }
            }
        }
    }
}
