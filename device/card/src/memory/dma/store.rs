//! Stores to guest memory polled by software.
//!
//! Some software does not wait for the completion of a WRITE. Instead, it polls its memory: the last byte of a message,
//! or all bytes of a short message. Once the software has seen the data, it owns the memory and may modify it. The last
//! bytes of each write are therefore stored after all others and in order, and no byte is stored twice. `memcpy`
//! guarantees neither. Its stores may overlap, and a second store of the same bytes could overwrite a modification by
//! software.

use std::sync::atomic::{Ordering, fence};

use vm_memory::{ByteValued, VolatileSlice};

/// Number of bytes, at the end of a write, that software may poll. Messages that programs poll, such as the
/// credits of rsockets, are shorter than this.
const POLLED_LEN: usize = 256;

/// Copies `data` to the beginning of `to`, which must be at least as long.
pub(super) fn put(to: &VolatileSlice<'_>, data: &[u8]) {
    let (body, end) = data.split_at(data.len().saturating_sub(POLLED_LEN));
    if !body.is_empty() {
        to.copy_from(body);
        // Nothing else keeps the compiler, or a CPU other than x86, from storing the end first.
        fence(Ordering::Release);
    }
    let (pairs, rest) = end.as_chunks::<16>();
    store(to, body.len(), pairs);
    let (words, bytes) = rest.as_chunks::<8>();
    store(to, data.len() - rest.len(), words);
    // For so few bytes, `copy_from` does not use `memcpy`.
    store(to, data.len() - bytes.len(), bytes);
}

/// Stores each item with one or more non-overlapping stores.
fn store<T: ByteValued>(to: &VolatileSlice<'_>, at: usize, items: &[T]) {
    if !items.is_empty()
        && let Ok(to) = to.offset(at)
    {
        to.copy_from(items);
    }
}
