//! SMInfo: who manages the subnet.
//!
//! # Spec
//! IBTA volume 1, section 14.2.5.13.

use super::field::attribute;

/// `SMState` of the subnet manager that manages.
pub const MASTER: u8 = 3;

attribute! {
    /// SMInfo.
    pub struct SmInfo[24] {
        /// GUID of its port.
        guid: u64 = 0, 64;
        /// Its key; told to nobody.
        sm_key: u64 = 64, 64;
        /// Counts up while it works.
        act_count: u32 = 128, 32;
        /// Priority, 0 to 15.
        priority: u8 = 160, 4;
        /// State.
        state: u8 = 164, 4;
    }
}
