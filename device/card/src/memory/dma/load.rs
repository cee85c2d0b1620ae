//! Loads from guest memory to which software may be storing.
//!
//! Software stores a word of a work request or of a doorbell record with a single instruction, and relies on the device
//! reading it as a whole. For example, the word with the valid bit of an E810 request also contains the R_Key.
//! `copy_to` reads a word in parts if the destination is not aligned.

use std::sync::atomic::Ordering;

use vm_memory::{Bytes as _, VolatileSlice};

/// Fills `out` from the beginning of `from`. Reads an aligned word of 2, 4 or 8 bytes with a single load. Returns
/// whether `from` is long enough.
#[inline]
pub(super) fn take(from: &VolatileSlice<'_>, out: &mut [u8]) -> bool {
    if let Ok(out) = <&mut [u8; 8]>::try_from(&mut *out)
        && let Ok(word) = from.load::<u64>(0, Ordering::Acquire)
    {
        *out = word.to_ne_bytes();
        return true;
    }
    if let Ok(out) = <&mut [u8; 4]>::try_from(&mut *out)
        && let Ok(word) = from.load::<u32>(0, Ordering::Acquire)
    {
        *out = word.to_ne_bytes();
        return true;
    }
    if let Ok(out) = <&mut [u8; 2]>::try_from(&mut *out)
        && let Ok(word) = from.load::<u16>(0, Ordering::Acquire)
    {
        *out = word.to_ne_bytes();
        return true;
    }
    from.copy_to(out) == out.len()
}
