//! Operations on completion queues.
//!
//! # Spec
//! E810 interface, sections 10.3 and 12.

use super::index::PbleIndex;
use super::page_list::ListLevel;
use crate::ids::{Cqn, Iova};
use crate::layout;

layout! {
    /// "Create CQ" and "modify CQ".
    pub struct CqCommand[64] {
        /// Entries of its ring.
        @0[20:0]    entries: u32,
        /// What its events carry.
        @8          cookie: u64 => Hex,
        /// How far software may lag behind before the device looks.
        @16[17:0]   threshold: u32,
        /// The queue.
        @24[18:0]   cqn: Cqn,
        /// Its event queue.
        @24[31:22]  ceq: u16,
        /// Modify: the queue moves to another ring.
        @24[43]     resize: bool,
        /// Levels of the list of its pages.
        @24[45:44]  level: ListLevel as u8,
        /// Report when it is full.
        @24[46]     check_overflow: bool,
        /// The ring lies in pages.
        @24[47]     in_pages: bool,
        /// Events come only while it is armed.
        @24[48]     mask_events: bool,
        /// Its event queue counts.
        @24[49]     ceq_valid: bool,
        /// Its ring, if that is contiguous.
        @32         ring: Iova,
        /// Its shadow area, where software says how far it is and what it waits for.
        @40         shadow: Iova,
        /// The first PBLE of its pages.
        @48[27:0]   first_page: PbleIndex,
        /// Its VSI.
        @56[23:8]   vsi: u16,
    }
}

layout! {
    /// The part of a shadow area that the device reads.
    pub struct CqShadow[40] {
        /// The entry that software reads next.
        @0[19:0]    head: u32,
        /// Rings that software has left behind, modulo 2^14.
        @32[13:0]   moves: u16,
        /// It waits for the next entry.
        @32[14]     arm_next: bool,
        /// It waits for the next entry that is solicited or of a failure.
        @32[15]     arm_solicited: bool,
        /// Counts its arms.
        @32[17:16]  sequence: u8,
    }
}

layout! {
    /// "Destroy CQ".
    pub struct DestroyCq[64] {
        /// The queue.
        @24[18:0]  cqn: Cqn,
    }
}
