//! Host memory cache (HMC): object limits reported by the device, and backing memory provided by the driver.
//!
//! # Spec
//! E810 interface, section 11.

use crate::ids::Iova;
use crate::layout;

/// Memory covered by a segment descriptor, in bytes.
pub const SEGMENT_LEN: u64 = 2 << 20;
/// Length of a page in bytes.
pub const PAGE_LEN: u64 = 4096;
/// Length of a PBLE or page directory entry in bytes.
pub const ENTRY_LEN: u64 = 8;
/// Object base addresses are stored in units of 512 bytes.
pub const BASE_UNIT: u64 = 512;

layout! {
    /// CQP WQE for "Query FPM" and "Commit FPM" (function private memory).
    pub struct FpmCommand[64] {
        @16[7:0]   function: u8,
        /// In "Commit FPM": length of the buffer, in bytes.
        @24[31:0]  len: u32,
        @32        buffer: Iova,
    }
}

layout! {
    /// Limits on an object type.
    pub struct Limit[8] {
        /// Maximum number of objects.
        @0  max: u32,
        /// Log2 of the object size, in bytes.
        @4  exponent: u32,
    }
}

layout! {
    /// Limits on an object type that is allocated in blocks.
    pub struct BlockLimit[8] {
        /// Maximum number of objects.
        @0  max: u32,
        /// Number of objects per block; nonzero.
        @4  block: u32,
    }
}

layout! {
    /// Response to "Query FPM".
    pub struct FpmLimits[176] {
        /// Index of the first segment descriptor.
        @0[13:0]     first_segment: u16,
        /// Maximum number of segment descriptors.
        @0[44:32]    max_segments: u16,
        @8           qps: Limit,
        @16          cqs: Limit,
        @24          srqs: Limit,
        @32          hash_entries: Limit,
        @40          arp_entries: Limit,
        @48          regions: Limit,
        @56          transmit_buffers: Limit,
        /// Free list of transmit FIFO buffers.
        @64          transmit_free: BlockLimit,
        @72          responses: Limit,
        /// Free list of read response buffers.
        @80          responses_free: BlockLimit,
        @88          timers: Limit,
        /// Multicast group entries. A group consists of eight entries.
        @96          groups: Limit,
        @104         address_handles: Limit,
        @112         pbles: u32,
        @120[9:0]    max_ceqs: u16,
        /// Multiplier of the hash table size.
        @120[19:16]  hash_multiplier: u8,
        /// Number of timer buckets.
        @120[47:32]  timer_buckets: u16,
        /// Read request FIFO entries.
        @128         read_requests: Limit,
        /// Free list of read request FIFO entries.
        @136         read_requests_free: BlockLimit,
        @144         headers: Limit,
        @152         metadata: Limit,
        /// Out-of-order buffers (iWARP only).
        @160         out_of_order: Limit,
        /// Free list of out-of-order buffers.
        @168         out_of_order_free: BlockLimit,
    }
}

layout! {
    /// A word in the "Commit FPM" buffer: the number of objects requested by the driver, and the base address chosen by
    /// the device.
    pub struct Placement[8] {
        @0  count: u32,
        /// Base address in the function's HMC address space, in units of [`BASE_UNIT`] bytes.
        @4  base: u32 => Hex,
    }
}

layout! {
    /// CQP WQE for "Update SDs" (segment descriptors).
    pub struct UpdateSegments[64] {
        @0          first: SegmentEntry,
        /// Address of additional entries, aligned to 128 bytes.
        @16         more: Iova,
        /// Number of additional entries.
        @24[3:0]    more_count: u8,
        /// Whether to ignore the first entry.
        @24[7]      skip_first: bool,
        @32         second: SegmentEntry,
        @48         third: SegmentEntry,
    }
}

layout! {
    /// Update of a segment descriptor.
    pub struct SegmentEntry[16] {
        /// Index of the segment descriptor.
        @0[11:0]   index: u16,
        /// Whether the descriptor belongs to a physical function.
        @0[15]     physical: bool,
        /// Whether to write the segment descriptor.
        @0[31]     write: bool,
        /// In the second and third entries: whether the entry is valid.
        @0[63]     valid: bool,
        /// New value of the segment descriptor.
        @8         descriptor: SegmentDescriptor,
    }
}

layout! {
    /// An HMC segment descriptor.
    pub struct SegmentDescriptor[8] {
        /// Whether memory backs the segment.
        [0]      valid: bool,
        /// Whether the segment is contiguous. If not, `page` is the address of a page directory.
        [1]      direct: bool,
        /// Number of page directory entries.
        [11:2]   entries: u16,
        /// Bits 63:12 of the address of the segment or its page directory.
        [63:12]  page: u64 => Hex,
    }
}

layout! {
    /// An entry of a page directory.
    pub struct DirectoryEntry[8] {
        /// Whether memory backs the page.
        [0]      valid: bool,
        /// Bits 63:12 of the page's address.
        [63:12]  page: u64 => Hex,
    }
}

impl SegmentDescriptor {
    /// Returns the address of the segment or its page directory.
    pub const fn address(&self) -> Iova {
        Iova::new(self.page << 12)
    }
}

impl DirectoryEntry {
    /// Returns the address of the page.
    pub const fn address(&self) -> Iova {
        Iova::new(self.page << 12)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The words are from the recordings `irdma-probe.cqp.gz` (operation 3) and `run73-lvl2-paged-sd.cqp.gz`
    /// (operation 7).
    #[test]
    fn parses_recorded_segment_updates() {
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
