//! Fragment of a gather or scatter list (SGE).
//!
//! # Spec
//! E810 interface, section 13.4.

use crate::ids::{Lkey, Va};
use crate::layout;

layout! {
    /// A fragment. A fragment of length 0 is skipped, and its key is not checked.
    pub struct Fragment[16] {
        @0         va: Va,
        /// STag of the region.
        @8         key: Lkey,
        /// Length of the fragment in bytes.
        @8[62:32]  len: u32,
    }
}
