//! Stores to guest memory that software polls.
//!
//! Some software polls its memory instead of waiting for the completion of a WRITE. It polls the last byte of a
//! message, or all bytes of a short message, and may modify the memory as soon as it has seen the data. Each write
//! therefore stores its last bytes in order, after all other bytes, and stores each byte only once. `memcpy` is
//! unsuitable because it may store bytes in any order, or store a byte twice and thereby overwrite a modification by
//! software.

use std::sync::atomic::{Ordering, fence};

use vm_memory::{ByteValued, VolatileSlice};

/// Number of bytes at the end of a write that are stored in order. Messages that software polls, such as rsockets
/// credits, are shorter than this.
const POLLED_LEN: usize = 256;

/// Copies `data` to the beginning of `to`, which must be at least as long.
#[inline]
pub(super) fn put(to: &VolatileSlice<'_>, data: &[u8]) {
    if data.len() > POLLED_LEN {
        return put_long(to, data);
    }
    put_end(to, 0, data);
}

// Not inlined, because inlining it would slow down short writes.
#[inline(never)]
fn put_long(to: &VolatileSlice<'_>, data: &[u8]) {
    let (body, end) = data.split_at(data.len() - POLLED_LEN);
    to.copy_from(body);
    // Without this fence, the compiler or a non-x86 CPU could store the end first.
    fence(Ordering::Release);
    put_end(to, body.len(), end);
}

/// Copies `from` to the beginning of `to`, which must be at least as long.
pub(super) fn put_shared(to: &VolatileSlice<'_>, from: VolatileSlice<'_>) {
    let body_len = from.len().saturating_sub(POLLED_LEN);
    let mut end = [0; POLLED_LEN];
    let (Ok(body), Ok(rest)) = (from.subslice(0, body_len), from.offset(body_len)) else { return };
    let end_len = rest.copy_to(&mut end[..]);
    if body_len > 0 {
        body.copy_to_volatile_slice(*to);
        fence(Ordering::Release);
    }
    put_end(to, body_len, end.get(..end_len).unwrap_or_default());
}

/// Stores the last bytes of a write, which begin at offset `at` of `to`, in order.
#[inline(always)]
fn put_end(to: &VolatileSlice<'_>, at: usize, end: &[u8]) {
    let (pairs, rest) = end.as_chunks::<16>();
    store(to, at, pairs);
    if rest.is_empty() {
        return;
    }
    let (words, bytes) = rest.as_chunks::<8>();
    store(to, at + end.len() - rest.len(), words);
    // `copy_from` does not use `memcpy` for fewer than 8 bytes.
    store(to, at + end.len() - bytes.len(), bytes);
}

/// Stores each item with one or more non-overlapping stores.
#[inline]
fn store<T: ByteValued>(to: &VolatileSlice<'_>, at: usize, items: &[T]) {
    if !items.is_empty()
        && let Ok(to) = to.offset(at)
    {
        to.copy_from(items);
    }
}
