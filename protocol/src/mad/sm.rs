//! SMInfo: state of a subnet manager.
//!
//! # Spec
//! IBTA volume 1, section 14.2.5.13.

use super::field::attribute;

/// `SMState` of the master subnet manager.
pub const MASTER: u8 = 3;

attribute! {
    /// A subnet manager's SMInfo attribute.
    pub struct SmInfo[24] {
        /// GUID of the port that the subnet manager runs on.
        guid: u64 = 0, 64;
        /// Secret SM_Key of the subnet manager.
        sm_key: u64 = 64, 64;
        /// Activity counter. If it stops increasing, the subnet manager has failed.
        act_count: u32 = 128, 32;
        /// Priority, 0 to 15; the subnet manager with the highest priority becomes master.
        priority: u8 = 160, 4;
        /// `SMState`, for example [`MASTER`].
        state: u8 = 164, 4;
    }
}
