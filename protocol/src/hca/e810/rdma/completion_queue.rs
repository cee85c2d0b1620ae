//! CQP operations on completion queues.
//!
//! # Spec
//! E810 interface, sections 10.3 and 12.

use super::index::PbleIndex;
use super::page_list::ListLevel;
use crate::ids::{Cqn, Iova};
use crate::layout;

layout! {
    /// CQP WQE of "Create CQ" and "Modify CQ".
    pub struct CqCommand[64] {
        /// Number of entries in the ring.
        @0[20:0]    entries: u32,
        /// Cookie for the CQ's completion events.
        @8          cookie: u64 => Hex,
        /// Number of unread entries at which the device rereads the shadow area.
        @16[17:0]   threshold: u32,
        /// CQ number, 19 bits.
        @24[18:0]   cqn: Cqn,
        /// CEQ that receives the CQ's events.
        @24[31:22]  ceq: u16,
        /// In "Modify CQ": whether to replace the ring.
        @24[43]     resize: bool,
        /// Number of levels in the ring's page list.
        @24[45:44]  level: ListLevel as u8,
        /// Whether to report CQ overflows.
        @24[46]     check_overflow: bool,
        /// Whether a page list describes the ring.
        @24[47]     in_pages: bool,
        /// Whether to generate events only while the CQ is armed.
        @24[48]     mask_events: bool,
        /// Whether `ceq` is valid.
        @24[49]     ceq_valid: bool,
        /// Address of the ring, if it is contiguous.
        @32         ring: Iova,
        /// Address of the shadow area, where the driver writes its consumer index and arm requests.
        @40         shadow: Iova,
        /// First PBLE of the page list.
        @48[27:0]   first_page: PbleIndex,
        @56[23:8]   vsi: u16,
    }
}

layout! {
    /// Part of the shadow area that the device reads.
    pub struct CqShadow[40] {
        /// Index of the next entry that the driver will read.
        @0[19:0]    head: u32,
        /// Number of times the ring has been replaced, modulo 2^14.
        @32[13:0]   moves: u16,
        /// Whether the next completion generates an event.
        @32[14]     arm_next: bool,
        /// Whether the next solicited or failed completion generates an event.
        @32[15]     arm_solicited: bool,
        /// Sequence number of arm requests.
        @32[17:16]  sequence: u8,
    }
}

layout! {
    /// CQP WQE of "Destroy CQ".
    pub struct DestroyCq[64] {
        /// CQ number, 19 bits.
        @24[18:0]  cqn: Cqn,
    }
}
