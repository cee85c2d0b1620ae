//! One piece of a gather or scatter list.
//!
//! # Spec
//! E810 interface, section 13.4.

use crate::ids::{Lkey, Va};
use crate::layout;

layout! {
    /// Bytes under a key. Without bytes it contributes nothing, and its key means nothing.
    pub struct Fragment[16] {
        /// First byte.
        @0         va: Va,
        /// STag.
        @8         key: Lkey,
        /// Bytes.
        @8[62:32]  len: u32,
    }
}
