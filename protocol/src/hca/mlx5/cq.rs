//! Completion queue contexts, and the commands that create, modify and query CQs.
//!
//! # Spec
//! mlx5 interface, sections 5.3, 9.1 and 9.5.

use bitflags::bitflags;

use super::code::codes;
use super::user_memory::UmemPlace;
use crate::describe::{Field, Visitor, show_flags};
use crate::ids::{Cqn, Eqn, Iova, UarIndex, UmemId};
use crate::layout;

codes! {
    /// Entry size of a CQ.
    pub enum CqeSize(u8) {
        Bytes64 = 0 "64",
        /// 128-byte entries, with the fields in the second half.
        Bytes128 = 1 "128",
        /// 64-byte entries, each padded to 128 bytes.
        Bytes64Padded = 2 "64_padded",
    }
}

impl CqeSize {
    /// Returns the distance between entries, in bytes.
    pub const fn stride(self) -> usize {
        match self {
            Self::Bytes64 => 64,
            Self::Bytes128 | Self::Bytes64Padded => 128,
        }
    }

    /// Returns the offset of the fields within an entry.
    pub const fn fields_at(self) -> usize {
        match self {
            Self::Bytes64 | Self::Bytes64Padded => 0,
            Self::Bytes128 => 64,
        }
    }
}

layout! {
    /// The context of a CQ.
    pub struct CqContext[64] big_endian {
        /// A value of [`CqeSize`].
        @0x00[23:21]  cqe_size: u8 => CqeSize::word,
        /// Whether all completions are written to entry 0. Not supported by this device.
        @0x00[20]     collapsed: bool,
        /// Whether a solicited completion ends moderation. Ignored by this device.
        @0x00[18]     break_moderation: bool,
        /// Whether overruns are ignored instead of reported.
        @0x00[17]     ignore_overrun: bool,
        /// Which event starts the moderation period. Ignored by this device.
        @0x00[16:15]  period_mode: u8,
        /// Whether the device may compress CQEs. This device never does.
        @0x00[14]     compression: bool,
        @0x00[11:8]   state: u8,
        /// Whether the doorbell record is in a UMEM. If so, `record` is an offset into that UMEM.
        @0x00[25]     record_in_umem: bool,
        /// UMEM that holds the doorbell record.
        @0x04         record_umem: UmemId,
        /// Offset of the first entry in its page; see [`super::page_offset`].
        @0x08[11:6]   page_offset: u8,
        /// Log2 of the number of entries.
        @0x0c[28:24]  log_entries: u8,
        /// UAR page with the CQ's doorbells.
        @0x0c[23:0]   uar: UarIndex,
        /// Moderation period in microseconds.
        @0x10[27:16]  moderation_period: u16,
        /// Moderation count in CQEs.
        @0x10[15:0]   moderation_count: u16,
        /// EQ that receives the completion events, 8 bits.
        @0x14[7:0]    eqn: Eqn,
        /// Page size of the ring, `4096 << log_page_size` bytes.
        @0x18[28:24]  log_page_size: u8,
        /// Number of entries that the driver has consumed, modulo 2^24. Reported by QUERY_CQ.
        @0x28[23:0]   consumer: u32,
        /// Number of entries that the device has written, modulo 2^24. Reported by QUERY_CQ.
        @0x2c[23:0]   producer: u32,
        /// Address of the doorbell record.
        @0x38         record: Iova,
    }
}

impl CqContext {
    /// Returns the size of the entries, or `None` if the code is unknown.
    pub const fn cqe_size(&self) -> Option<CqeSize> {
        CqeSize::from_code(self.cqe_size)
    }

    /// Returns the location of the doorbell record in a UMEM, or `None` if `record` is a DMA address.
    pub fn record_place(&self) -> Option<UmemPlace> {
        UmemPlace::new(self.record_in_umem, self.record_umem, self.record.get())
    }
}

layout! {
    /// Fixed part of the CREATE_CQ input. The ring's page addresses follow, unless the ring is in a UMEM.
    pub struct CreateCq[0x110] big_endian {
        @0x10      context: CqContext,
        /// Byte offset of the ring in its UMEM.
        @0x50      umem_offset: u64 => Hex,
        @0x58      umem: UmemId,
        /// Whether the ring is in a UMEM.
        @0x5c[31]  in_umem: bool,
    }
}

impl CreateCq {
    /// Returns the location of the ring in a UMEM, or `None` if the input lists the ring's pages.
    pub fn place(&self) -> Option<UmemPlace> {
        UmemPlace::new(self.in_umem, self.umem, self.umem_offset)
    }
}

layout! {
    /// Output of the QUERY_CQ command.
    pub struct QueriedCq[272] big_endian {
        @0x10  context: CqContext,
    }
}

codes! {
    /// Kind of change that MODIFY_CQ makes, given by its op_mod.
    pub enum CqChange(u16) {
        /// Changes the moderation fields selected by [`CqFields`].
        Moderation = 0 "moderation",
        /// Replaces the CQ's ring.
        Resize = 1 "resize",
    }
}

bitflags! {
    /// Fields that MODIFY_CQ copies from the context.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct CqFields: u32 {
        /// Moderation period. For [`CqChange::Resize`]: log2 of the number of entries.
        const PERIOD = 1 << 0;
        /// Moderation count. For [`CqChange::Resize`]: the page offset.
        const COUNT = 1 << 1;
        /// Whether to ignore overruns. For [`CqChange::Resize`]: the page size.
        const IGNORE_OVERRUN = 1 << 2;
        /// Which event starts the moderation period.
        const PERIOD_MODE = 1 << 4;
        const _ = !0;
    }
}

impl CqFields {
    /// Fields that a driver selects for [`CqChange::Resize`]: size, page offset and page size.
    pub const RESIZE: Self = Self::from_bits_retain(7);
}

impl From<u32> for CqFields {
    fn from(bits: u32) -> Self {
        Self::from_bits_retain(bits)
    }
}

impl From<CqFields> for u32 {
    fn from(fields: CqFields) -> Self {
        fields.bits()
    }
}

impl Field for CqFields {
    fn show(&self, name: &str, to: &mut dyn Visitor) {
        show_flags(self, name, to);
    }
}

layout! {
    /// Fixed part of the MODIFY_CQ input. The page addresses of a new ring, if any, follow.
    pub struct ModifyCq[0x110] big_endian {
        /// A value of [`CqChange`].
        @0x06        change: u16 => CqChange::word,
        @0x08[23:0]  cqn: Cqn,
        /// Fields to copy from `context`.
        @0x0c        fields: CqFields as u32,
        /// Context with the new values.
        @0x10        context: CqContext,
        /// Byte offset of the new ring in its UMEM.
        @0x50        umem_offset: u64 => Hex,
        @0x58        umem: UmemId,
        /// Whether the new ring is in a UMEM.
        @0x5c[31]    in_umem: bool,
    }
}

impl ModifyCq {
    /// Returns the location of the new ring in a UMEM, or `None` if the input lists the ring's pages.
    pub fn place(&self) -> Option<UmemPlace> {
        UmemPlace::new(self.in_umem, self.umem, self.umem_offset)
    }

    /// Returns the kind of change, or `None` if the code is unknown.
    pub const fn change(&self) -> Option<CqChange> {
        CqChange::from_code(self.change)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::words;
    use super::*;

    #[test]
    fn cq_context_fields_are_at_specified_offsets() {
        let context = CqContext {
            cqe_size: 1,
            collapsed: true,
            break_moderation: true,
            ignore_overrun: true,
            period_mode: 3,
            compression: true,
            state: 9,
            page_offset: 32,
            log_entries: 9,
            uar: UarIndex::new(0x12),
            moderation_period: 0xabc,
            moderation_count: 0x1234,
            eqn: Eqn::new(4),
            log_page_size: 1,
            consumer: 0x11_2233,
            producer: 0x44_5566,
            record: Iova::new(0x1_194e_e000),
            record_in_umem: true,
            record_umem: UmemId::new(0x1122_3344),
        };
        let expected = words(&[
            (0x00, 0x0237_c900),
            (0x04, 0x1122_3344),
            (0x08, 32 << 6),
            (0x0c, 0x0900_0012),
            (0x10, 0x0abc_1234),
            (0x14, 4),
            (0x18, 0x0100_0000),
            (0x28, 0x11_2233),
            (0x2c, 0x44_5566),
            (0x38, 1),
            (0x3c, 0x194e_e000),
        ]);
        assert_eq!(context.emit(), expected);
        assert_eq!(CqContext::parse(&expected), context);
        assert_eq!(context.cqe_size(), Some(CqeSize::Bytes128));
    }

    /// In golden trace ib-5, libmlx5 resizes a CQ from 128 to 512 entries.
    #[test]
    fn resize_input_matches_trace() {
        let input = words(&[(0x00, 0x0403_0000), (0x04, 1), (0x08, 0x48), (0x0c, 7), (0x1c, 0x0900_0000)]);
        let modify = ModifyCq::parse(&input);
        assert_eq!(modify.change(), Some(CqChange::Resize));
        assert_eq!((modify.cqn, modify.fields), (Cqn::new(0x48), CqFields::RESIZE));
        assert_eq!(modify.context.log_entries, 9);
    }

    #[test]
    fn cqe_size_determines_stride_and_field_offset() {
        assert_eq!((CqeSize::Bytes64.stride(), CqeSize::Bytes64.fields_at()), (64, 0));
        assert_eq!((CqeSize::Bytes128.stride(), CqeSize::Bytes128.fields_at()), (128, 64));
        assert_eq!((CqeSize::Bytes64Padded.stride(), CqeSize::Bytes64Padded.fields_at()), (128, 0));
        assert_eq!(CqeSize::from_code(3), None);
    }
}
