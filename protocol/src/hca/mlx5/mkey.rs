//! Memory key contexts, translation lists, and the commands that create and query keys.
//!
//! # Spec
//! mlx5 interface, sections 5.3, 13.1 and 13.2.

use super::code::codes;
use super::user_memory::UmemPlace;
use crate::describe::describe;
use crate::ids::{Iova, Pdn, Qpn, UmemId, Va};
use crate::layout;

/// Length in bytes of a translation unit, which holds two page addresses or one [`Klm`].
pub const UNIT: usize = 16;

/// Value of [`MkeyContext::qpn`] for a key that any QP of its PD can use.
pub const ANY_QP: Qpn = Qpn::new(0xff_ffff);

/// Key of the entry that ends the scatter list of a receive WQE. The byte count of such an entry is 0.
pub const TERMINATE_KEY: u32 = 0x100;

codes! {
    /// How a key translates addresses.
    pub enum AccessMode(u8) {
        /// Addresses are DMA addresses, without translation.
        Physical = 0 "PA",
        /// List of page addresses.
        Pages = 1 "MTT",
        /// List of ranges in the address spaces of other keys.
        Ranges = 2 "KLM",
        /// List of equally sized ranges in the address spaces of other keys.
        FixedRanges = 3 "KSM",
        /// Software ICM. Not supported.
        SoftwareIcm = 4 "SW_ICM",
        /// Device memory. Not supported.
        DeviceMemory = 5 "MEMIC",
        /// Key that belongs to another function. Not supported.
        Crossing = 6 "CROSSING",
    }
}

layout! {
    /// Context of a memory key, as it appears in CREATE_MKEY and in UMR work requests.
    pub struct MkeyContext[64] big_endian {
        /// Whether the key is free. A free key does not permit access until a UMR clears this bit.
        @0x00[30]     free: bool,
        /// Bits 4 to 2 of the access mode; see [`MkeyContext::access_mode`].
        @0x00[28:26]  mode_high: u8,
        /// Whether writes may be reordered. Ignored.
        @0x00[18]     relaxed_write: bool,
        /// Whether a small fence is sufficient after a UMR that changes this key. Ignored.
        @0x00[16]     small_fence: bool,
        /// Whether UMRs can change the key.
        @0x00[15]     umr_enabled: bool,
        /// Whether peers can execute atomic operations.
        @0x00[14]     atomic: bool,
        /// Whether peers can execute RDMA WRITE.
        @0x00[13]     remote_write: bool,
        /// Whether peers can execute RDMA READ.
        @0x00[12]     remote_read: bool,
        /// Whether local work requests can write to the region.
        @0x00[11]     local_write: bool,
        /// Whether local work requests can read from the region.
        @0x00[10]     local_read: bool,
        /// Bits 1 and 0 of the access mode.
        @0x00[9:8]    mode_low: u8,
        /// The only QP that can use the key, or [`ANY_QP`].
        @0x04[31:8]   qpn: Qpn,
        /// Low byte of the key.
        @0x04[7:0]    key: u8 => Hex,
        /// If set, the key covers the whole address space, and start and length are not used.
        @0x0c[31]     length64: bool,
        /// Whether the key uses signatures. Not supported.
        @0x0c[30]     signature: bool,
        /// Whether peers can invalidate the key.
        @0x0c[24]     remote_invalidate: bool,
        @0x0c[23:0]   pd: Pdn,
        @0x10         start: Va,
        /// Length of the region in bytes.
        @0x18         length: u64 => Hex,
        /// Size of the signature data in units of 16 bytes. Always 0; signatures are not supported.
        @0x20         signature_units: u32,
        /// Size of the translation list in units of 16 bytes.
        @0x34         translation_units: u32,
        /// Whether reads may overtake writes. Ignored.
        @0x38[6]      relaxed_read: bool,
        /// Log2 of the page size in bytes.
        @0x38[5:0]    log_page: u8,
    }
}

impl MkeyContext {
    /// Returns the access mode, or `None` if the code is unknown.
    pub const fn access_mode(&self) -> Option<AccessMode> {
        AccessMode::from_code(self.mode_high << 2 | self.mode_low)
    }

    /// Returns the context with its access mode set to `mode`.
    #[must_use]
    pub const fn with_access_mode(self, mode: AccessMode) -> Self {
        Self { mode_high: mode.code() >> 2, mode_low: mode.code() & 3, ..self }
    }
}

layout! {
    /// Fixed part of the CREATE_MKEY input. A translation list can follow.
    pub struct CreateMkey[0x110] big_endian {
        /// Whether the entries of a translation list are page addresses. A list is present if `translation_units` is
        /// not 0.
        @0x0c[31]  page_access: bool,
        /// Whether the region is in a UMEM.
        @0x0c[30]  in_umem: bool,
        @0x10      context: MkeyContext,
        /// Size of the list that follows, in units of 16 bytes, or 0 if a UMR will provide the list.
        @0x60      translation_units: u32,
        @0x64      umem: UmemId,
        /// Byte offset of the region in its UMEM.
        @0x68      umem_offset: u64 => Hex,
    }
}

impl CreateMkey {
    /// Returns the location of the region in a UMEM, or `None` if it is not in one.
    pub fn place(&self) -> Option<UmemPlace> {
        UmemPlace::new(self.in_umem, self.umem, self.umem_offset)
    }
}

layout! {
    /// Output of the QUERY_MKEY command.
    pub struct QueriedMkey[272] big_endian {
        @0x10  context: MkeyContext,
    }
}

layout! {
    /// Entry of a KLM or KSM list: a range in the address space of another key.
    pub struct Klm[16] big_endian {
        /// Length of the range in bytes; 0 means 2 GiB. Not used in a KSM.
        @0x00  byte_count: u32,
        /// Key whose address space contains the range.
        @0x04  key: u32 => Hex,
        /// First address of the range in the address space of `key`.
        @0x08  va: Va,
    }
}

impl Klm {
    /// Returns the length of the range in bytes, from 1 byte to 2 GiB.
    pub const fn len(&self) -> u64 {
        match self.byte_count & 0x7fff_ffff {
            0 => 1 << 31,
            len => len as u64,
        }
    }

    /// Always returns false, because a range is never empty.
    pub const fn is_empty(&self) -> bool {
        false
    }
}

/// Entry of a translation list (MTT): a page address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mtt {
    /// DMA address of the page. Bits 2 to 0 of the entry are rights, which this device ignores.
    pub page: Iova,
}

describe!(Mtt { page });

impl Mtt {
    /// Length of an entry in bytes.
    pub const LEN: usize = 8;

    /// Parses the entry from its bytes.
    pub const fn parse(entry: [u8; Self::LEN]) -> Self {
        Self { page: Iova::new(u64::from_be_bytes(entry) & !7) }
    }

    /// Returns the entry in wire format, with read and write rights.
    pub const fn emit(self) -> [u8; Self::LEN] {
        (self.page.get() | 3).to_be_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::words;
    use super::*;

    /// Example from section 22: a free key from the MR cache.
    #[test]
    fn recorded_context_round_trips() {
        let bytes =
            words(&[(0x00, 0x4000_8500), (0x04, 0xffff_ff04), (0x0c, 3), (0x34, 1), (0x38, 0x0000_000c)]);
        let context = MkeyContext {
            free: true,
            umr_enabled: true,
            local_read: true,
            qpn: ANY_QP,
            key: 4,
            pd: Pdn::new(3),
            translation_units: 1,
            log_page: 12,
            ..MkeyContext::default()
        }
        .with_access_mode(AccessMode::Pages);
        assert_eq!(MkeyContext::parse(&bytes), context);
        assert_eq!(context.emit(), bytes);
    }

    #[test]
    fn mkey_context_fields_are_at_specified_offsets() {
        let context = MkeyContext {
            relaxed_write: true,
            small_fence: true,
            atomic: true,
            remote_write: true,
            remote_read: true,
            local_write: true,
            qpn: Qpn::new(0x88),
            length64: true,
            signature: true,
            remote_invalidate: true,
            pd: Pdn::new(8),
            start: Va::new(0x5567_be5f_6000),
            length: 0x2_0000_0000,
            signature_units: 5,
            relaxed_read: true,
            log_page: 31,
            ..MkeyContext::default()
        }
        .with_access_mode(AccessMode::DeviceMemory);
        let bytes = words(&[
            (0x00, 0x0405_7900),
            (0x04, 0x0000_8800),
            (0x0c, 0xc100_0008),
            (0x10, 0x5567),
            (0x14, 0xbe5f_6000),
            (0x18, 2),
            (0x20, 5),
            (0x38, 0x5f),
        ]);
        assert_eq!(context.emit(), bytes);
        assert_eq!(MkeyContext::parse(&bytes), context);
        assert_eq!(context.access_mode(), Some(AccessMode::DeviceMemory));
    }

    #[test]
    fn unknown_access_mode_parses_to_none() {
        let context = MkeyContext { mode_high: 7, mode_low: 3, ..MkeyContext::default() };
        assert_eq!(context.access_mode(), None);
    }

    #[test]
    fn zero_klm_byte_count_means_2_gib() {
        assert_eq!(Klm::default().len(), 1 << 31);
        let klm = Klm::parse(&words(&[(0, 0x20), (4, 0xf08), (8, 1), (12, 0x0da0_b010)]));
        assert_eq!((klm.len(), klm.key, klm.va), (0x20, 0xf08, Va::new(0x1_0da0_b010)));
    }

    #[test]
    fn page_entry_ignores_rights() {
        let mtt = Mtt::parse(0x3662_b007_u64.to_be_bytes());
        assert_eq!(mtt.page, Iova::new(0x3662_b000));
        assert_eq!(Mtt::parse(mtt.emit()), mtt);
    }
}
