//! Context memory (HMC): what the device says that it needs for its objects, and where software puts it.
//!
//! # Spec
//! E810 interface, section 11.

use crate::ids::Iova;
use crate::layout;

/// Bytes of what a segment descriptor stands for.
pub const SEGMENT_LEN: u64 = 2 << 20;
/// Bytes of a page.
pub const PAGE_LEN: u64 = 4096;
/// Bytes of a PBLE, and of an entry of a page directory.
pub const ENTRY_LEN: u64 = 8;
/// Unit in which bases of objects count.
pub const BASE_UNIT: u64 = 512;

layout! {
    /// "Query FPM" and "commit FPM".
    pub struct FpmCommand[64] {
        /// The function.
        @16[7:0]   function: u8,
        /// Commit: bytes of the buffer.
        @24[31:0]  len: u32,
        /// The buffer.
        @32        buffer: Iova,
    }
}

layout! {
    /// Most objects of a kind, and log2 of the bytes of one.
    pub struct Limit[8] {
        /// Objects.
        @0  max: u32,
        /// log2 of the bytes of one.
        @4  exponent: u32,
    }
}

layout! {
    /// Most objects of a kind of which some make a block.
    pub struct BlockLimit[8] {
        /// Objects.
        @0  max: u32,
        /// Of how many a block is; not 0.
        @4  block: u32,
    }
}

layout! {
    /// Answer of "query FPM".
    pub struct FpmLimits[176] {
        /// First segment descriptor.
        @0[13:0]     first_segment: u16,
        /// Segment descriptors.
        @0[44:32]    max_segments: u16,
        /// Queue pairs.
        @8           qps: Limit,
        /// Completion queues.
        @16          cqs: Limit,
        /// Shared receive queues.
        @24          srqs: Limit,
        /// Entries of the hash table.
        @32          hash_entries: Limit,
        /// Entries of the ARP table.
        @40          arp_entries: Limit,
        /// Memory regions.
        @48          regions: Limit,
        /// Transmit buffers.
        @56          transmit_buffers: Limit,
        /// Free list of them.
        @64          transmit_free: BlockLimit,
        /// Read responses.
        @72          responses: Limit,
        /// Free list of them.
        @80          responses_free: BlockLimit,
        /// Timers.
        @88          timers: Limit,
        /// Eighths of multicast groups.
        @96          groups: Limit,
        /// Address handles.
        @104         address_handles: Limit,
        /// PBLEs.
        @112         pbles: u32,
        /// Completion event queues.
        @120[9:0]    max_ceqs: u16,
        /// Multiplier of the hash table.
        @120[19:16]  hash_multiplier: u8,
        /// Timer buckets.
        @120[47:32]  timer_buckets: u16,
        /// Read request fifo.
        @128         read_requests: Limit,
        /// Free list of it.
        @136         read_requests_free: BlockLimit,
        /// Headers.
        @144         headers: Limit,
        /// Metadata.
        @152         metadata: Limit,
        /// Out-of-order packets, of iWARP.
        @160         out_of_order: Limit,
        /// Free list of them.
        @168         out_of_order_free: BlockLimit,
    }
}

layout! {
    /// A word of "commit FPM": how many objects of a kind software wants, and where the device puts them.
    pub struct Placement[8] {
        /// Objects.
        @0  count: u32,
        /// First byte in the function's own address space, in units of [`BASE_UNIT`].
        @4  base: u32 => Hex,
    }
}

layout! {
    /// "Update SDs".
    pub struct UpdateSegments[64] {
        /// The first entry.
        @0          first: SegmentEntry,
        /// Bytes with more entries, aligned to 128.
        @16         more: Iova,
        /// How many more.
        @24[3:0]    more_count: u8,
        /// The first entry does not count.
        @24[7]      skip_first: bool,
        /// The second entry.
        @32         second: SegmentEntry,
        /// The third.
        @48         third: SegmentEntry,
    }
}

layout! {
    /// A segment descriptor, and which one it is to be.
    pub struct SegmentEntry[16] {
        /// Which one.
        @0[11:0]   index: u16,
        /// It is of a physical function.
        @0[15]     physical: bool,
        /// It is to be written.
        @0[31]     write: bool,
        /// Of the second and third: the entry counts.
        @0[63]     valid: bool,
        /// What it becomes.
        @8         descriptor: SegmentDescriptor,
    }
}

layout! {
    /// A segment descriptor.
    pub struct SegmentDescriptor[8] {
        /// There is one.
        [0]      valid: bool,
        /// Its bytes are contiguous; otherwise the address is that of a page directory.
        [1]      direct: bool,
        /// Entries of the page directory.
        [11:2]   entries: u16,
        /// Bits 63 to 12 of the address.
        [63:12]  page: u64 => Hex,
    }
}

layout! {
    /// Entry of a page directory.
    pub struct DirectoryEntry[8] {
        /// There is a page.
        [0]      valid: bool,
        /// Bits 63 to 12 of its address.
        [63:12]  page: u64 => Hex,
    }
}

impl SegmentDescriptor {
    /// Where the segment or its page directory is.
    pub const fn address(&self) -> Iova {
        Iova::new(self.page << 12)
    }
}

impl DirectoryEntry {
    /// Where the page is.
    pub const fn address(&self) -> Iova {
        Iova::new(self.page << 12)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// [3] of `irdma-probe.cqp.gz` and [7] of `run73-lvl2-paged-sd.cqp.gz`.
    #[test]
    fn segments_are_as_drivers_write_them() {
        let wqe = |first: u64, second: u64| {
            let mut wqe = [0; 64];
            wqe[..8].copy_from_slice(&first.to_le_bytes());
            wqe[8..16].copy_from_slice(&second.to_le_bytes());
            wqe[24..32].copy_from_slice(&0x8000_001f_0000_0000_u64.to_le_bytes());
            UpdateSegments::parse(&wqe)
        };
        let direct = wqe(0x8000_8000, 0x0300_0803);
        assert_eq!((direct.first.index, direct.skip_first, direct.more_count), (0, false, 0));
        let descriptor = direct.first.descriptor;
        assert!(descriptor.valid && descriptor.direct);
        assert_eq!((descriptor.entries, descriptor.address()), (512, Iova::new(0x300_0000)));
        assert!(!direct.second.valid && !direct.third.valid);
        let paged = wqe(0x8000_8001, 0x484d_9801).first;
        assert_eq!((paged.index, paged.descriptor.direct), (1, false));
        assert_eq!(paged.descriptor.address(), Iova::new(0x484d_9000));
    }
}
