//! User memory registration (UMR): work requests that change memory keys.
//!
//! # Spec
//! mlx5 interface, section 13.3.

use bitflags::bitflags;

use super::mkey::MkeyContext;
use crate::describe::{Field, Visitor, show_flags};
use crate::layout;

bitflags! {
    /// Fields that a UMR copies from its mkey segment.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct MkeyMask: u64 {
        /// Length of the region in bytes.
        const LENGTH = 1 << 0;
        /// Log2 of the page size, bits 4:0.
        const PAGE_SIZE = 1 << 1;
        /// First address of the region.
        const START = 1 << 6;
        /// Protection domain of the memory key.
        const PD = 1 << 7;
        /// Whether a SEND with invalidate can free the key.
        const REMOTE_INVALIDATE = 1 << 8;
        /// Whether the key has signatures (T10 DIF).
        const SIGNATURE = 1 << 9;
        /// Low byte of the key.
        const KEY = 1 << 13;
        /// QP that the key is restricted to.
        const QPN = 1 << 14;
        /// Whether local reads are allowed.
        const LOCAL_READ = 1 << 17;
        /// Whether local writes are allowed.
        const LOCAL_WRITE = 1 << 18;
        /// Whether peers can execute RDMA READ.
        const REMOTE_READ = 1 << 19;
        /// Whether peers can execute RDMA WRITE.
        const REMOTE_WRITE = 1 << 20;
        /// Whether peers can execute atomic operations.
        const ATOMIC = 1 << 21;
        /// Whether a small fence separates the UMR from later WQEs.
        const SMALL_FENCE = 1 << 23;
        /// Whether PCIe writes use relaxed ordering.
        const RELAXED_WRITE = 1 << 25;
        /// Whether the key is in the free state.
        const FREE = 1 << 29;
        /// Log2 of the page size, bit 5.
        const PAGE_SIZE_5 = 1 << 42;
        /// Whether PCIe reads use relaxed ordering.
        const RELAXED_READ = 1 << 47;
        const _ = !0;
    }
}

impl From<u64> for MkeyMask {
    fn from(bits: u64) -> Self {
        Self::from_bits_retain(bits)
    }
}

impl From<MkeyMask> for u64 {
    fn from(mask: MkeyMask) -> Self {
        mask.bits()
    }
}

impl Field for MkeyMask {
    fn show(&self, name: &str, to: &mut dyn Visitor) {
        show_flags(self, name, to);
    }
}

layout! {
    /// The control segment of a UMR.
    pub struct UmrControl[48] big_endian {
        /// If set, the translation list is in the WQE; otherwise, a data segment points to it.
        @0x00[31]    inline: bool,
        /// Whether to fail if the key is free (section 20, M-5).
        @0x00[30]    check_used: bool,
        /// Whether to fail if the key is not free.
        @0x00[29]    check_free: bool,
        /// Whether the translation offset is valid. If not, the offset is 0.
        @0x00[28]    offset_valid: bool,
        /// Whether to fail if the key is restricted to a different QP.
        @0x00[27]    check_qpn: bool,
        /// Length of the translation list in units of 16 bytes.
        @0x04[31:16] units: u16,
        /// Bits 15 to 0 of the translation offset.
        @0x04[15:0]  offset_low: u16,
        /// Fields to copy from the mkey segment.
        @0x08        mask: MkeyMask as u64,
        /// Bits 47 to 16 of the translation offset.
        @0x10        offset_high: u32,
    }
}

impl UmrControl {
    /// Returns where the new entries start in the key's translation list, in units of 16 bytes.
    pub const fn offset(&self) -> u64 {
        if self.offset_valid { (self.offset_high as u64) << 16 | self.offset_low as u64 } else { 0 }
    }
}

const fn pick<T: Copy>(mask: MkeyMask, bit: MkeyMask, new: T, old: T) -> T {
    if mask.contains(bit) { new } else { old }
}

impl MkeyContext {
    /// Returns the context of the key after a UMR. A UMR never changes the access mode, the size of the translation
    /// list or `umr_enabled`.
    #[must_use]
    pub fn updated(&self, mask: MkeyMask, new: &Self) -> Self {
        let pick_flag = |bit, new, old| pick(mask, bit, new, old);
        Self {
            free: pick_flag(MkeyMask::FREE, new.free, self.free),
            relaxed_write: pick_flag(MkeyMask::RELAXED_WRITE, new.relaxed_write, self.relaxed_write),
            small_fence: pick_flag(MkeyMask::SMALL_FENCE, new.small_fence, self.small_fence),
            atomic: pick_flag(MkeyMask::ATOMIC, new.atomic, self.atomic),
            remote_write: pick_flag(MkeyMask::REMOTE_WRITE, new.remote_write, self.remote_write),
            remote_read: pick_flag(MkeyMask::REMOTE_READ, new.remote_read, self.remote_read),
            local_write: pick_flag(MkeyMask::LOCAL_WRITE, new.local_write, self.local_write),
            local_read: pick_flag(MkeyMask::LOCAL_READ, new.local_read, self.local_read),
            remote_invalidate: pick_flag(
                MkeyMask::REMOTE_INVALIDATE,
                new.remote_invalidate,
                self.remote_invalidate,
            ),
            relaxed_read: pick_flag(MkeyMask::RELAXED_READ, new.relaxed_read, self.relaxed_read),
            signature: pick_flag(MkeyMask::SIGNATURE, new.signature, self.signature),
            length64: pick_flag(MkeyMask::LENGTH, new.length64, self.length64),
            length: pick(mask, MkeyMask::LENGTH, new.length, self.length),
            start: pick(mask, MkeyMask::START, new.start, self.start),
            pd: pick(mask, MkeyMask::PD, new.pd, self.pd),
            qpn: pick(mask, MkeyMask::QPN, new.qpn, self.qpn),
            key: pick(mask, MkeyMask::KEY, new.key, self.key),
            log_page: pick(mask, MkeyMask::PAGE_SIZE, new.log_page, self.log_page),
            ..*self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::words;
    use super::*;
    use crate::ids::{Pdn, Va};

    /// Example from section 22: registering a user MR.
    #[test]
    fn recorded_control_segment_round_trips() {
        let bytes = words(&[(0x00, 0x3000_0000), (0x04, 0x0004_0000), (0x0c, 0x203e_20c3)]);
        let control = UmrControl::parse(&bytes);
        assert_eq!((control.check_free, control.check_used), (true, false));
        assert_eq!((control.units, control.offset()), (4, 0));
        let expected = MkeyMask::LENGTH
            | MkeyMask::PAGE_SIZE
            | MkeyMask::START
            | MkeyMask::PD
            | MkeyMask::KEY
            | MkeyMask::LOCAL_READ
            | MkeyMask::LOCAL_WRITE
            | MkeyMask::REMOTE_READ
            | MkeyMask::REMOTE_WRITE
            | MkeyMask::ATOMIC
            | MkeyMask::FREE;
        assert_eq!(control.mask, expected);
        assert_eq!(control.emit(), bytes);
    }

    #[test]
    fn umr_control_fields_are_at_specified_offsets() {
        let control = UmrControl {
            inline: true,
            check_used: true,
            check_free: false,
            offset_valid: true,
            check_qpn: true,
            units: 0x180,
            offset_low: 0x1234,
            mask: MkeyMask::RELAXED_READ,
            offset_high: 0x5678,
        };
        let bytes = words(&[(0x00, 0xd800_0000), (0x04, 0x0180_1234), (0x08, 0x8000), (0x10, 0x5678)]);
        assert_eq!(control.emit(), bytes);
        assert_eq!(control.offset(), 0x5678_1234);
        assert_eq!(UmrControl { offset_valid: false, ..control }.offset(), 0);
    }

    #[test]
    fn umr_changes_only_masked_fields() {
        let old = MkeyContext { umr_enabled: true, free: true, key: 4, log_page: 12, ..Default::default() };
        let new = MkeyContext {
            local_write: true,
            key: 5,
            pd: Pdn::new(4),
            start: Va::new(0x1000),
            length: 0x200,
            log_page: 21,
            translation_units: 99,
            ..MkeyContext::default()
        };
        let mask = MkeyMask::FREE | MkeyMask::LOCAL_WRITE | MkeyMask::PD | MkeyMask::LENGTH;
        let expected = MkeyContext { free: false, local_write: true, pd: Pdn::new(4), length: 0x200, ..old };
        assert_eq!(old.updated(mask, &new), expected);
        assert_eq!(old.updated(MkeyMask::empty(), &new), old);
        let all = old.updated(MkeyMask::all(), &new);
        assert_eq!(all, MkeyContext { umr_enabled: true, translation_units: 0, ..new });
    }
}
