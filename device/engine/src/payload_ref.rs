//! Bytes of a packet, in private memory or in memory shared with another process.

use std::ops::Range;

use protocol::roce::{PacketPayload, PacketWith};
use vm_memory::{VolatileSlice, WriteVolatile as _};

/// A received packet, whose payload is copied but never examined.
pub type ReceivedPacket<'a> = PacketWith<PayloadRef<'a>>;

/// Payload of a packet, or any part of a packet.
#[derive(Clone, Copy, Debug)]
pub enum PayloadRef<'a> {
    /// Memory that only this process can change.
    Private(&'a [u8]),
    /// Memory that another process may change at any time. Two reads can return different bytes.
    Shared(VolatileSlice<'a>),
}

impl PayloadRef<'_> {
    /// Divides the payload at `mid`, which must not exceed its length.
    #[must_use]
    pub fn split_at(self, mid: usize) -> (Self, Self) {
        (self.slice(0..mid), self.slice(mid..self.len()))
    }

    /// Copies the payload to the end of `out`.
    pub fn append_to(self, out: &mut Vec<u8>) {
        match self {
            Self::Private(bytes) => out.extend_from_slice(bytes),
            // This cannot fail, since a vector accepts any number of bytes.
            Self::Shared(bytes) => drop(out.write_all_volatile(&bytes)),
        }
    }

    /// Copies the payload into a new buffer.
    pub fn to_vec(self) -> Vec<u8> {
        let mut copy = Vec::with_capacity(self.len());
        self.append_to(&mut copy);
        copy
    }
}

impl PacketPayload for PayloadRef<'_> {
    #[inline]
    fn len(&self) -> usize {
        match self {
            Self::Private(bytes) => bytes.len(),
            Self::Shared(bytes) => bytes.len(),
        }
    }

    #[inline]
    fn slice(&self, range: Range<usize>) -> Self {
        match self {
            Self::Private(bytes) => Self::Private(bytes.slice(range)),
            Self::Shared(bytes) => match bytes.subslice(range.start, range.len()) {
                Ok(part) => Self::Shared(part),
                Err(_) => Self::Private(&[]),
            },
        }
    }
}

impl<'a> From<&'a [u8]> for PayloadRef<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self::Private(bytes)
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for PayloadRef<'a> {
    fn from(bytes: &'a [u8; N]) -> Self {
        Self::Private(bytes)
    }
}
