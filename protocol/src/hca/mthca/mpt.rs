//! Memory keys and memory protection table (MPT) entries.
//!
//! # Spec
//! mthca interface, sections 6.1 and 6.2.

use bitflags::bitflags;
use zerocopy::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, transmute};

use crate::describe::{Field, Hex, Visitor, describe, show_flags};
use crate::hca::status::{CmdError, CmdStatus};
use crate::hca::table::Table;
use crate::ids::{IcmAddr, Lkey, Pdn, Va};

/// A key is its MPT index rotated left by this number of bits.
pub const KEY_ROTATION: u32 = 8;

/// Key that terminates a scatter list. Its MPT entry is entry 1, which is never valid.
pub const END_KEY: Lkey = key(1);

/// Returns the key for an MPT index. Index bits above the table size are a generation number.
pub const fn key(index: u32) -> Lkey {
    Lkey::new(index.rotate_left(KEY_ROTATION))
}

bitflags! {
    /// MPT flags. Unnamed bits are preserved but otherwise ignored.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct MptFlags: u32 {
        /// Peers can execute atomic operations.
        const REMOTE_ATOMIC = 1 << 14;
        /// Peers can execute RDMA WRITE.
        const REMOTE_WRITE = 1 << 13;
        /// Peers can execute RDMA READ.
        const REMOTE_READ = 1 << 12;
        /// Local writes are allowed, including those by receives.
        const LOCAL_WRITE = 1 << 11;
        /// Local reads are allowed. The device allows them even if this flag is clear.
        const LOCAL_READ = 1 << 10;
        /// No translation: virtual addresses are bus addresses.
        const PHYSICAL = 1 << 9;
        const _ = !0;
    }
}

/// An entry of the memory protection table (MPT).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Mpt {
    /// Access rights and whether addresses are translated.
    pub flags: MptFlags,
    /// Log2 of the page size in bytes, 12 to 31.
    pub page_shift: u8,
    /// Key of the region, used as both L_Key and R_Key.
    pub key: Lkey,
    pub pd: Pdn,
    pub start: Va,
    /// Length of the region in bytes.
    pub length: u64,
    /// ICM address of the MTT entry for the page that contains `start`.
    pub mtt: IcmAddr,
}

impl Mpt {
    /// Length of the inbox in bytes.
    pub const LEN: usize = 0x40;

    /// Parses the inbox of SW2HW_MPT.
    ///
    /// # Errors
    /// BAD_PARAM for pages larger than 2 GiB.
    pub fn parse(inbox: &[u8; Self::LEN]) -> Result<Self, CmdError> {
        const MAX_LOG_PAGES: u32 = 31 - 12;
        let raw: Raw = transmute!(*inbox);
        let key_index = raw.key_index.get();
        let log_pages = raw.log_pages.get();
        let page_shift = u8::try_from(log_pages)
            .ok()
            .filter(|log| u32::from(*log) <= MAX_LOG_PAGES)
            .ok_or(CmdError::param("MPT page size", log_pages.into()))?;
        Ok(Self {
            flags: MptFlags::from_bits_retain(raw.flags.get()),
            page_shift: 12 + page_shift,
            key: key(key_index),
            pd: Pdn::new(raw.pd.get() & 0xff_ffff),
            start: Va::new(raw.start.get()),
            length: raw.length.get(),
            mtt: IcmAddr::new(raw.mtt.get()),
        })
    }

    /// Checks that the entry's key selects entry `index` of the table.
    ///
    /// # Errors
    /// BAD_INDEX if the key selects a different entry.
    pub fn check_index(&self, index: u32, table: &Table) -> Result<(), CmdError> {
        if table.index(self.key.get().rotate_right(KEY_ROTATION)) == index {
            return Ok(());
        }
        Err(CmdError::new(CmdStatus::BadIndex, "key does not match MPT index", index.into()))
    }
}

describe!(Mpt { flags, page_shift, key, pd, start, length as Hex, mtt });

impl Field for MptFlags {
    fn show(&self, name: &str, to: &mut dyn Visitor) {
        show_flags(self, name, to);
    }
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    flags: U32,
    log_pages: U32,
    key_index: U32,
    pd: U32,
    start: U64,
    length: U64,
    window_key: U32,
    window_count: U32,
    window_count_limit: U32,
    mtt: U64,
    mtt_len: U32,
    reserved_38: [u8; 8],
}

const _: () = assert!(std::mem::offset_of!(Raw, mtt) == 0x2c && size_of::<Raw>() == Mpt::LEN);

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: Table = Table { base: IcmAddr::new(0x2580_0000), log_entries: 17 };

    /// Example from section 13.3: the region of the driver's PD, in MPT entry 10h.
    fn driver_pd() -> [u8; Mpt::LEN] {
        let mut inbox = [0; Mpt::LEN];
        inbox[..0x10].copy_from_slice(&[0xf0, 0x02, 0x0f, 0, 0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 1]);
        inbox[0x18..0x20].fill(0xff);
        inbox
    }

    #[test]
    fn key_is_rotated_index() {
        // Example from section 13.3: entry 18h. The driver copies bit 3 of the index to bit 23.
        assert_eq!(key(0x0080_0018), Lkey::new(0x8000_1800));
        assert_eq!(TABLE.index(0x0080_0018), 0x18);
        assert_eq!(key(0x10), Lkey::new(0x1000));
        assert_eq!(END_KEY, Lkey::new(0x100));
    }

    #[test]
    fn parses_example_region_covering_all_memory() {
        let mpt = Mpt::parse(&driver_pd()).unwrap();
        assert_eq!((mpt.key, mpt.pd), (Lkey::new(0x1000), Pdn::new(1)));
        assert_eq!((mpt.start, mpt.length), (Va::new(0), u64::MAX));
        assert!(mpt.flags.contains(MptFlags::PHYSICAL | MptFlags::LOCAL_WRITE));
        assert!(
            !mpt.flags.intersects(MptFlags::REMOTE_READ | MptFlags::REMOTE_WRITE | MptFlags::REMOTE_ATOMIC)
        );
    }

    /// The region is a queue buffer that the device can read but not write (section 12, T38).
    #[test]
    fn mtt_address_is_absolute() {
        let mut inbox = driver_pd();
        inbox[..8].copy_from_slice(&[0xf0, 0x02, 0x05, 0x00, 0, 0, 0, 1]);
        inbox[0x2c..0x34].copy_from_slice(&[0, 0, 0, 0, 0x20, 0x00, 0x20, 0x08]);
        let mpt = Mpt::parse(&inbox).unwrap();
        assert_eq!((mpt.page_shift, mpt.mtt), (13, IcmAddr::new(0x2000_2008)));
        assert!(!mpt.flags.intersects(MptFlags::PHYSICAL | MptFlags::LOCAL_WRITE));
    }

    #[test]
    fn rejects_wrong_index_and_oversized_pages() {
        let mut inbox = driver_pd();
        let mpt = Mpt::parse(&inbox).unwrap();
        assert_eq!(mpt.check_index(0x10, &TABLE), Ok(()));
        assert_eq!(mpt.check_index(0x11, &TABLE).unwrap_err().status, CmdStatus::BadIndex);
        inbox[7] = 20;
        assert_eq!(Mpt::parse(&inbox).unwrap_err().status, CmdStatus::BadParam);
        inbox[7] = 19;
        assert_eq!(Mpt::parse(&inbox).unwrap().page_shift, 31);
    }
}
