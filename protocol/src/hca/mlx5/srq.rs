//! Shared receive queues: RMPs and XRC SRQs.
//!
//! # Spec
//! mlx5 interface, sections 5.4, 12.2 and 12.3.

use super::code::codes;
use super::user_memory::UmemPlace;
use crate::ids::{Cqn, Iova, Pdn, Srqn, UarIndex, UmemId, UserIndex, XrcDomain};
use crate::layout;

codes! {
    /// The kind of work queue.
    pub enum WorkQueueKind(u8) {
        /// The entries form a linked list.
        Linked = 0 "linked",
        /// The entries are used in ascending order.
        Cyclic = 1 "cyclic",
        /// The entries form a linked list and can each hold several packets. Not supported.
        LinkedStriding = 2 "linked_striding",
        /// The entries are used in ascending order and can each hold several packets. Not supported.
        CyclicStriding = 3 "cyclic_striding",
    }
}

layout! {
    /// Work queue description, without the list of pages.
    pub struct WorkQueue[0xc0] big_endian {
        /// A value of [`WorkQueueKind`].
        @0x00[31:28]  kind: u8 => WorkQueueKind::word,
        /// Offset of the first entry in its page; see [`super::page_offset`].
        @0x04[20:16]  page_offset: u8,
        /// An event is raised when fewer entries than this are available; 0 disables the event.
        @0x04[15:0]   limit: u16,
        /// Protection domain of the entries.
        @0x08[23:0]   pd: Pdn,
        @0x0c[23:0]   uar: UarIndex,
        /// Address of the doorbell record.
        @0x10         record: Iova,
        /// Log2 of the size of an entry in bytes.
        @0x20[19:16]  log_stride: u8,
        /// The pages of the queue are `4096 << log_page_size` bytes long.
        @0x20[12:8]   log_page_size: u8,
        /// Log2 of the number of entries.
        @0x20[4:0]    log_entries: u8,
        /// Whether the doorbell record is in a UMEM. If so, `record` is an offset into that UMEM.
        @0x24[31]     record_in_umem: bool,
        /// Whether the queue is in a UMEM. If so, the input does not list pages.
        @0x24[30]     in_umem: bool,
        /// UMEM that holds the doorbell record.
        @0x28         record_umem: UmemId,
        /// UMEM that holds the queue.
        @0x2c         umem: UmemId,
        /// Byte offset of the queue in its UMEM.
        @0x30         umem_offset: u64 => Hex,
    }
}

impl WorkQueue {
    /// Returns the location of the doorbell record in a UMEM, or `None` if `record` is a DMA address.
    pub fn record_place(&self) -> Option<UmemPlace> {
        UmemPlace::new(self.record_in_umem, self.record_umem, self.record.get())
    }

    /// Returns the location of the queue in a UMEM, or `None` if the input lists its pages.
    pub fn place(&self) -> Option<UmemPlace> {
        UmemPlace::new(self.in_umem, self.umem, self.umem_offset)
    }
}

layout! {
    /// Context of an RMP, without its list of pages.
    pub struct RmpContext[0xf0] big_endian {
        /// State of the queue; 1 means ready.
        @0x00[23:20]  state: u8,
        /// Whether the entries of a cyclic queue have no link at their start. Not supported.
        @0x04[31]     without_links: bool,
        @0x30         queue: WorkQueue,
    }
}

layout! {
    /// Fixed part of the CREATE_RMP input. The page addresses of the queue follow.
    pub struct CreateRmp[0x110] big_endian {
        @0x20  context: RmpContext,
    }
}

layout! {
    /// Input of the MODIFY_RMP command.
    pub struct ModifyRmp[0x110] big_endian {
        @0x08[31:28]  state: u8,
        @0x08[23:0]   srqn: Srqn,
        /// Whether the command sets the limit.
        @0x14[0]      has_limit: bool,
        /// Context with the new values.
        @0x20         context: RmpContext,
    }
}

layout! {
    /// Output of the QUERY_RMP command.
    pub struct QueriedRmp[272] big_endian {
        @0x20  context: RmpContext,
    }
}

layout! {
    /// Context of an XRC SRQ. With ISSI 0, also the context of an ordinary SRQ.
    pub struct SrqContext[64] big_endian {
        @0x00[31:28]  state: u8,
        /// Log2 of the number of entries.
        @0x00[27:24]  log_entries: u8,
        /// Whether entries have signatures. Not supported.
        @0x04[31]     signature: bool,
        /// Log2 of the size of an entry in bytes, minus 4.
        @0x04[26:24]  log_stride: u8,
        @0x04[23:0]   xrcd: XrcDomain,
        /// Offset of the first entry in its page; see [`super::page_offset`].
        @0x08[31:26]  page_offset: u8,
        /// CQ that receives XRC completions.
        @0x08[23:0]   cqn: Cqn,
        /// The pages of the queue are `4096 << log_page_size` bytes long.
        @0x10[29:24]  log_page_size: u8,
        /// User index that CQEs report. Unused with ISSI 0.
        @0x10[23:0]   user_index: UserIndex,
        /// Protection domain of the entries. Keys in XRC requests are also checked against it.
        @0x18[23:0]   pd: Pdn,
        /// An event is raised when fewer entries than this are available; 0 disables the event.
        @0x1c[31:16]  limit: u16,
        /// Number of available entries.
        @0x1c[15:0]   count: u16,
        /// Address of the doorbell record.
        @0x28         record: Iova,
    }
}

layout! {
    /// Fixed part of the CREATE_XRC_SRQ and CREATE_SRQ inputs. The page addresses of the queue follow.
    pub struct CreateSrq[0x110] big_endian {
        @0x10  context: SrqContext,
    }
}

layout! {
    /// Output of QUERY_XRC_SRQ and QUERY_SRQ.
    pub struct QueriedSrq[272] big_endian {
        @0x10  context: SrqContext,
    }
}

layout! {
    /// Input of ARM_XRC_SRQ and ARM_RQ.
    pub struct ArmSrq[16] big_endian {
        /// Event to arm; 1 is the limit event.
        @0x06        op_mod: u16,
        @0x08[23:0]  srqn: Srqn,
        @0x0e        limit: u16,
    }
}

layout! {
    /// First 16 bytes of an SRQ entry. Data segments follow them.
    pub struct LinkSegment[16] big_endian {
        /// Index of the next entry.
        @0x02         next: u16,
        /// Signature of the entry. Not used.
        @0x04[31:24]  signature: u8,
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::words;
    use super::*;

    /// The context of the driver's XRC SRQ in golden trace ib-2.
    #[test]
    fn xrc_srq_matches_trace() {
        let context = SrqContext {
            log_entries: 1,
            log_stride: 1,
            xrcd: XrcDomain::new(1),
            cqn: Cqn::new(0x41),
            user_index: UserIndex::NONE,
            pd: Pdn::new(2),
            record: Iova::new(0x35b9_d080),
            ..SrqContext::default()
        };
        let bytes = words(&[
            (0x00, 0x0100_0000),
            (0x04, 0x0100_0001),
            (0x08, 0x41),
            (0x10, 0x00ff_ffff),
            (0x18, 2),
            (0x2c, 0x35b9_d080),
        ]);
        assert_eq!(context.emit(), bytes);
        assert_eq!(SrqContext::parse(&bytes), context);
    }

    #[test]
    fn srq_context_fields_are_at_specified_offsets() {
        let context = SrqContext {
            state: 15,
            signature: true,
            page_offset: 33,
            log_page_size: 4,
            limit: 0x1234,
            count: 0x5678,
            ..SrqContext::default()
        };
        let expected = words(&[
            (0x00, 0xf000_0000),
            (0x04, 0x8000_0000),
            (0x08, 33 << 26),
            (0x10, 0x0400_0000),
            (0x1c, 0x1234_5678),
        ]);
        assert_eq!(context.emit(), expected);
        // Section 5.4 specifies the offset of the limit in the outputs of the query commands.
        let output = QueriedSrq { context }.emit();
        assert_eq!(output[0x2c..0x2e], [0x12, 0x34]);
        let queue = WorkQueue { limit: 0x1234, ..WorkQueue::default() };
        let output = QueriedRmp { context: RmpContext { queue, ..RmpContext::default() } }.emit();
        assert_eq!(output[0x56..0x58], [0x12, 0x34]);
    }

    #[test]
    fn work_queue_fields_are_at_specified_offsets() {
        let queue = WorkQueue {
            kind: 1,
            page_offset: 17,
            limit: 5,
            pd: Pdn::new(2),
            uar: UarIndex::new(0x11),
            record: Iova::new(0x1_35b9_d0c0),
            log_stride: 5,
            log_page_size: 3,
            log_entries: 9,
            ..WorkQueue::default()
        };
        let context = RmpContext { state: 1, without_links: true, queue };
        let bytes = CreateRmp { context }.emit();
        let expected = words(&[
            (0x20, 0x0010_0000),
            (0x24, 0x8000_0000),
            (0x50, 0x1000_0000),
            (0x54, 0x0011_0005),
            (0x58, 2),
            (0x5c, 0x11),
            (0x60, 1),
            (0x64, 0x35b9_d0c0),
            (0x70, 0x0005_0309),
        ]);
        assert_eq!(bytes, expected);
        assert_eq!(CreateRmp::parse(&bytes).context, context);
    }

    #[test]
    fn srq_limit_commands_match_specified_layout() {
        let arm = ArmSrq { op_mod: 1, srqn: Srqn::new(0x10), limit: 3 };
        assert_eq!(arm.emit(), [0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0x10, 0, 0, 0, 3]);
        let modify = ModifyRmp { state: 1, srqn: Srqn::new(0x11), has_limit: true, ..ModifyRmp::default() };
        assert_eq!(modify.emit()[8..0x18], [0x10, 0, 0, 0x11, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    }

    #[test]
    fn link_segment_contains_next_index() {
        let link = LinkSegment::parse(&[0, 0, 0x12, 0x34, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!((link.next, link.signature), (0x1234, 7));
    }
}
