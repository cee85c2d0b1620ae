//! How bytes come to guest memory while software looks at it.
//!
//! Some software does not wait for the completion of a WRITE but looks at its memory: at the last byte of a message, or at
//! all of a short one. What it has seen it takes for its own, and changes. So the end of each write is stored in order,
//! behind the rest, and nothing of it twice, as `memcpy` does where its stores overlap: for 16 bytes it stores all of them
//! twice, and the second time may be after the software's change.

use std::sync::atomic::{Ordering, fence};

use vm_memory::{ByteValued, VolatileSlice};

/// Bytes at the end of a write that software may be looking at: more than the messages have that programs pass to each other
/// so, such as the credits of rsockets.
const WATCHED: usize = 256;

/// Copies `data` to the beginning of `to`, which is as long at least.
pub(super) fn put(to: &VolatileSlice<'_>, data: &[u8]) {
    let (body, end) = data.split_at(data.len().saturating_sub(WATCHED));
    if !body.is_empty() {
        to.copy_from(body);
        // Nothing else keeps the compiler, or another processor than x86, from storing the end first.
        fence(Ordering::Release);
    }
    let (pairs, rest) = end.as_chunks::<16>();
    store(to, body.len(), pairs);
    let (words, bytes) = rest.as_chunks::<8>();
    store(to, data.len() - rest.len(), words);
    // So few are never copied by `memcpy`.
    store(to, data.len() - bytes.len(), bytes);
}

/// Each item is one store or more, which do not overlap.
fn store<T: ByteValued>(to: &VolatileSlice<'_>, at: usize, items: &[T]) {
    if !items.is_empty()
        && let Ok(to) = to.offset(at)
    {
        to.copy_from(items);
    }
}
