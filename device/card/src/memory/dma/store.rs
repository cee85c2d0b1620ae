//! Stores to guest memory that software polls.
//!
//! Some software polls its memory instead of waiting for the completion of a WRITE. It polls the last byte of a
//! message, or all bytes of a short message, and may modify the memory as soon as it has seen the data. Each write
//! therefore stores its last bytes after all other bytes and after all earlier writes, and stores each byte only once.
//! `memcpy` is unsuitable because it may store bytes in any order, or store a byte twice and thereby overwrite a
//! modification by software.
//!
//! Other software polls an aligned word, such as a counter, and must not see part of an update. On hardware, updates of
//! aligned words of four bytes are visible as a whole (PCI Express Base Specification 3.0, section 2.4.3).

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

/// Stores the last bytes of a write, which begin at offset `at` of `to`. The last unit of up to eight bytes becomes
/// visible after all earlier stores. It is an aligned word if the write begins at a multiple of eight bytes.
#[inline(always)]
fn put_end(to: &VolatileSlice<'_>, at: usize, end: &[u8]) {
    let last_len = match end.len() % 8 {
        0 => end.len().min(8),
        part => 1 << part.trailing_zeros(),
    };
    let (body, last) = end.split_at(end.len() - last_len);
    put_units(to, at, body);
    // x86 keeps stores in order, but other CPUs do not.
    fence(Ordering::Release);
    put_units(to, at + body.len(), last);
}

/// Stores the bytes in order, in units of decreasing length. Each unit of at most eight bytes is written with a single
/// store, even if its source is not aligned. With items of type `u8`, `copy_from` would divide such a unit.
#[inline(always)]
fn put_units(to: &VolatileSlice<'_>, at: usize, bytes: &[u8]) {
    let mut rest = store::<16>(to, (at, bytes));
    if !rest.1.is_empty() {
        rest = store::<8>(to, rest);
        rest = store::<4>(to, rest);
        rest = store::<2>(to, rest);
        store::<1>(to, rest);
    }
}

/// Stores the whole units of `LEN` bytes at the beginning of `bytes` to offset `at` of `to`. Returns the offset of the
/// remaining bytes, and these bytes.
#[inline(always)]
fn store<'a, const LEN: usize>(to: &VolatileSlice<'_>, (at, bytes): (usize, &'a [u8])) -> (usize, &'a [u8])
where
    [u8; LEN]: ByteValued,
{
    let (units, rest) = bytes.as_chunks::<LEN>();
    if !units.is_empty()
        && let Ok(to) = to.offset(at)
    {
        to.copy_from(units);
    }
    (at + bytes.len() - rest.len(), rest)
}
