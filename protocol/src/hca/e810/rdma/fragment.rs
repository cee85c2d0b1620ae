//! Fragments in gather and scatter lists (SGEs).
//!
//! # Spec
//! E810 interface, section 13.4.

use crate::ids::{Lkey, Va};
use crate::layout;

layout! {
    /// Entry of a gather or scatter list. The device skips an entry of length 0 without checking its key.
    pub struct Fragment[16] {
        @0         va: Va,
        /// STag of the region.
        @8         key: Lkey,
        /// Length of the fragment in bytes.
        @8[62:32]  len: u32,
    }
}
