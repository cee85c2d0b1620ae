//! Copies parts of a message from or to a scatter/gather list.

use std::iter::repeat_n;
use std::ops::Range;

use protocol::ids::{Lkey, Va};
use protocol::roce::PacketPayload as _;

use crate::{Access, AccessError, Host, Initiator, Payload, PayloadRef, Piece, Sge};

/// Payload of a frame to be sent.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FramePayload<'a> {
    /// The given number of zeros.
    Zeros(usize),
    /// Part of the message of a work request.
    Message { initiator: Initiator, payload: &'a Payload, offset: usize, len: usize },
    /// Part of a region that the peer reads.
    Region { initiator: Initiator, key: Lkey, va: Va, len: usize },
}

impl FramePayload<'_> {
    pub(crate) const EMPTY: Self = Self::Zeros(0);

    pub(crate) const fn len(&self) -> usize {
        match *self {
            Self::Zeros(len) | Self::Message { len, .. } | Self::Region { len, .. } => len,
        }
    }

    /// Appends the payload to `out`.
    ///
    /// # Errors
    /// Returns errors from [`Host::read`], or [`AccessError::Bounds`] if the list of a message is too short.
    pub(crate) fn append(&self, host: &impl Host, out: &mut Vec<u8>) -> Result<(), AccessError> {
        match *self {
            Self::Zeros(len) => {
                out.extend(repeat_n(0, len));
                Ok(())
            }
            Self::Message { initiator, payload, offset, len } => {
                gather(host, initiator, payload, offset, len, out)
            }
            Self::Region { initiator, key, va, len } => {
                host.read(initiator, key, va, len, out, Access::RemoteRead)
            }
        }
    }

    /// Appends the ranges that contain the payload to `ranges`. Returns whether all of the payload can be detached; see
    /// [`DetachedPayload`](crate::DetachedPayload). If not, some ranges may have been appended.
    ///
    /// # Errors
    /// Fails as [`FramePayload::append`] does.
    pub(crate) fn locate<H: Host>(&self, host: &H, ranges: &mut Vec<H::Range>) -> Result<bool, AccessError> {
        match *self {
            Self::Message { initiator, payload: Payload::Sges(sges), offset, len } => {
                let mut left = len;
                for (sge, part) in parts(sges, offset, len) {
                    if !host.locate(initiator, sge.lkey, part.va, part.len, ranges, Access::LocalRead)? {
                        return Ok(false);
                    }
                    left -= part.len;
                }
                if left == 0 { Ok(true) } else { Err(AccessError::Bounds) }
            }
            Self::Region { initiator, key, va, len } => {
                host.locate(initiator, key, va, len, ranges, Access::RemoteRead)
            }
            Self::Zeros(_) | Self::Message { .. } => Ok(false),
        }
    }
}

/// Appends `len` bytes of the message, starting at `offset`, to `out`.
///
/// # Errors
/// Returns errors from [`Host::read`], or [`AccessError::Bounds`] if the list is too short.
fn gather(
    host: &impl Host,
    initiator: Initiator,
    payload: &Payload,
    offset: usize,
    len: usize,
    out: &mut Vec<u8>,
) -> Result<(), AccessError> {
    match payload {
        Payload::Inline(bytes) => {
            let from = bytes.get(offset..).and_then(|rest| rest.get(..len)).ok_or(AccessError::Bounds)?;
            out.extend_from_slice(from);
            Ok(())
        }
        Payload::Sges(sges) => {
            if let Some((lkey, va)) = in_only_sge(sges, offset, len) {
                return host.read(initiator, lkey, va, len, out, Access::LocalRead);
            }
            let mut left = len;
            for (sge, part) in parts(sges, offset, len) {
                host.read(initiator, sge.lkey, part.va, part.len, out, Access::LocalRead)?;
                left -= part.len;
            }
            if left == 0 { Ok(()) } else { Err(AccessError::Bounds) }
        }
        Payload::Mixed(pieces) => {
            let mut left = len;
            for (piece, range) in cut(pieces, Piece::len, offset, len) {
                left -= range.len();
                match piece {
                    Piece::Sge(sge) => {
                        let (va, len) = (address(sge, range.start), range.len());
                        host.read(initiator, sge.lkey, va, len, out, Access::LocalRead)?;
                    }
                    Piece::Inline(bytes) => out.extend(bytes.get(range).unwrap_or_default()),
                }
            }
            if left == 0 { Ok(()) } else { Err(AccessError::Bounds) }
        }
    }
}

/// Copies `data` to the scatter list, starting at byte `offset` of the message.
///
/// # Errors
/// Returns errors from [`Host::write`], or [`AccessError::Bounds`] if the list is too short.
#[inline]
pub(crate) fn scatter(
    host: &mut impl Host,
    initiator: Initiator,
    sges: &[Sge],
    offset: usize,
    data: PayloadRef<'_>,
) -> Result<(), AccessError> {
    if let Some((lkey, va)) = in_only_sge(sges, offset, data.len()) {
        return host.write(initiator, lkey, va, data, Access::LocalWrite);
    }
    scatter_parts(host, initiator, sges, offset, data)
}

// Not inlined, because inlining it would slow down lists with a single element.
#[inline(never)]
fn scatter_parts(
    host: &mut impl Host,
    initiator: Initiator,
    sges: &[Sge],
    offset: usize,
    data: PayloadRef<'_>,
) -> Result<(), AccessError> {
    let mut data = data;
    for (sge, part) in parts(sges, offset, data.len()) {
        let (here, rest) = data.split_at(part.len);
        host.write(initiator, sge.lkey, part.va, here, Access::LocalWrite)?;
        data = rest;
    }
    if data.is_empty() { Ok(()) } else { Err(AccessError::Bounds) }
}

pub(crate) fn capacity(sges: &[Sge]) -> u64 {
    sges.iter().map(|sge| u64::from(sge.len)).sum()
}

/// Returns the key and the address of a non-empty range if the list has a single element, as most lists do. Returns
/// `None` for a longer list, or if the element does not contain the whole range.
fn in_only_sge(sges: &[Sge], offset: usize, len: usize) -> Option<(Lkey, Va)> {
    let [sge] = sges else { return None };
    let end = offset.checked_add(len)?;
    (len > 0 && end <= sge.len as usize).then(|| (sge.lkey, address(sge, offset)))
}

struct Part {
    va: Va,
    len: usize,
}

/// Returns the non-empty parts of `sges` that cover `len` bytes, starting at `offset`.
fn parts(sges: &[Sge], offset: usize, len: usize) -> impl Iterator<Item = (&Sge, Part)> {
    cut(sges, |sge| sge.len as usize, offset, len)
        .map(|(sge, range)| (sge, Part { va: address(sge, range.start), len: range.len() }))
}

/// Returns the non-empty ranges of `items` that cover `len` bytes of their concatenation, starting at `offset`.
fn cut<T>(
    items: &[T],
    len_of: impl Fn(&T) -> usize,
    offset: usize,
    len: usize,
) -> impl Iterator<Item = (&T, Range<usize>)> {
    let (mut skip, mut left) = (offset, len);
    items.iter().filter_map(move |item| {
        let item_len = len_of(item);
        let from = skip.min(item_len);
        skip -= from;
        let len = left.min(item_len - from);
        left -= len;
        (len > 0).then(|| (item, from..from + len))
    })
}

/// Returns the address of byte `offset` of an element. Wraps around instead of panicking, because the guest can supply
/// any address. The host checks the range.
fn address(sge: &Sge, offset: usize) -> Va {
    Va::new(sge.va.get().wrapping_add(offset as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts_of(offset: usize, len: usize) -> Vec<(u64, usize)> {
        let sge = |va, len| Sge { va: Va::new(va), lkey: Lkey::new(1), len };
        let sges = [sge(100, 4), sge(0, 0), sge(200, 1), sge(300, 10)];
        parts(&sges, offset, len).map(|(_, part)| (part.va.get(), part.len)).collect()
    }

    #[test]
    fn payload_range_is_split_at_sge_boundaries() {
        assert_eq!(parts_of(0, 15), [(100, 4), (200, 1), (300, 10)]);
        assert_eq!(parts_of(2, 4), [(102, 2), (200, 1), (300, 1)]);
        assert_eq!(parts_of(5, 3), [(300, 3)]);
        assert_eq!(parts_of(14, 9), [(309, 1)]);
        assert_eq!(parts_of(3, 0), []);
    }
}
