//! Loads from guest memory that software may be writing concurrently.
//!
//! Software stores a word of a work request or of a doorbell record with a single instruction and relies on the device
//! reading it as a whole. For example, the word with the valid bit of an E810 request also contains the R_Key. The same
//! applies to a counter that peers READ. `VolatileSlice` would read a word in several parts if the destination were not
//! aligned.

use std::sync::atomic::Ordering;

use vm_memory::{AtomicAccess, Bytes as _, VolatileSlice, WriteVolatile as _};

/// Fills `out` from the beginning of `from`. Reads an aligned word of 2, 4 or 8 bytes with a single load. Returns
/// whether `from` is long enough.
#[inline]
pub(super) fn take(from: &VolatileSlice<'_>, out: &mut [u8]) -> bool {
    let loaded = match out.len() {
        2 => take_word::<u16>(from, out),
        4 => take_word::<u32>(from, out),
        8 => take_word::<u64>(from, out),
        _ => false,
    };
    loaded || from.copy_to(out) == out.len()
}

/// Appends all bytes of `from` to `out`. Reads an aligned word of 2, 4 or 8 bytes with a single load. Returns whether
/// all bytes have been appended.
#[inline]
pub(super) fn append(from: &VolatileSlice<'_>, out: &mut Vec<u8>) -> bool {
    if !matches!(from.len(), 2 | 4 | 8) {
        return out.write_all_volatile(from).is_ok();
    }
    let mut word = [0; 8];
    let (word, _) = word.split_at_mut(from.len());
    let is_read = take(from, word);
    out.extend_from_slice(word);
    is_read
}

/// Fills `out`, which has the size of a word, with a single load. Fails if the word is not aligned or does not fit in
/// `from`.
#[inline]
fn take_word<T: AtomicAccess>(from: &VolatileSlice<'_>, out: &mut [u8]) -> bool {
    from.load::<T>(0, Ordering::Acquire).is_ok_and(|word| {
        out.copy_from_slice(word.as_slice());
        true
    })
}
