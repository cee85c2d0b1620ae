//! Transport part of a RoCE packet: everything between the UDP header and the ICRC.

use std::ops::Range;

use super::bth::RawBth;
use super::ext::{RawXrceth, XRCETH_LEN};
use super::icrc::ICRC_LEN;
use super::{Bth, Ext, ExtKind, Kind, Mtu, Opcode, Position, Transport};
use crate::WireError;
use crate::ids::Srqn;

/// Parsed packet whose payload is a slice.
pub type Packet<'a> = PacketWith<&'a [u8]>;

/// Payload of a packet, or a description of it.
pub trait PacketPayload: Copy {
    /// Returns the length in bytes.
    fn len(&self) -> usize;

    /// Returns whether the payload is empty.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns part of the payload. `range` must lie inside the payload.
    #[must_use]
    fn slice(&self, range: Range<usize>) -> Self;
}

impl PacketPayload for &[u8] {
    fn len(&self) -> usize {
        <[u8]>::len(self)
    }

    fn slice(&self, range: Range<usize>) -> Self {
        self.get(range).unwrap_or_default()
    }
}

/// Length in bytes of a payload whose contents do not matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PayloadLen(pub usize);

impl PacketPayload for PayloadLen {
    fn len(&self) -> usize {
        self.0
    }

    fn slice(&self, range: Range<usize>) -> Self {
        Self(range.len())
    }
}

/// Parsed transport headers, with a payload of type `P`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketWith<P> {
    /// The base transport header (BTH).
    pub bth: Bth,
    /// SRQ number in the XRCETH, present if and only if [`Opcode::has_xrceth`](super::Opcode::has_xrceth) is true.
    pub srqn: Option<Srqn>,
    /// Extension headers, which are always the variant that `bth.opcode` requires.
    pub ext: Ext,
    /// Payload without pad bytes.
    pub payload: P,
}

impl<'a> PacketWith<&'a [u8]> {
    /// Parses a packet. Reserved operations parse with [`Ext::None`], so that a responder can NAK them. Pad bytes can
    /// have any value.
    ///
    /// # Errors
    /// Fails in the same cases as [`Bth::parse`]. Also returns [`WireError::Short`] if the extension headers or the pad
    /// bytes are truncated, and [`WireError::Invalid`] if the padded payload length is not a multiple of four.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, WireError> {
        let (headers, pad, padded) = parse_headers(bytes)?;
        let len = unpadded_len(padded.len(), pad)?;
        Ok(headers.with_payload(padded.get(..len).unwrap_or_default()))
    }
}

impl PacketWith<PayloadLen> {
    /// Parses a packet of `len` bytes, of which `bytes` holds at least the headers. Returns the packet and the length
    /// of its headers.
    ///
    /// # Errors
    /// Fails in the same cases as [`Packet::parse`], and if `bytes` does not hold all headers.
    #[inline]
    pub fn parse_headers(bytes: &[u8], len: usize) -> Result<(Self, usize), WireError> {
        let bytes = bytes.get(..len).unwrap_or(bytes);
        let (headers, pad, rest) = parse_headers(bytes)?;
        let headers_len = bytes.len() - rest.len();
        let payload = PayloadLen(unpadded_len(len - headers_len, pad)?);
        Ok((headers.with_payload(payload), headers_len))
    }
}

/// Parses the headers. Returns them with the number of pad bytes and the bytes that follow.
// Always inlined, since otherwise the result would be copied once more for every packet.
#[inline(always)]
fn parse_headers(bytes: &[u8]) -> Result<(PacketWith<()>, usize, &[u8]), WireError> {
    let (bth, pad, rest) = Bth::parse(bytes)?;
    let (srqn, rest) = if bth.opcode.has_xrceth() {
        let (srqn, rest) = RawXrceth::parse(rest)?;
        (Some(srqn), rest)
    } else {
        (None, rest)
    };
    let (ext, rest) = Ext::parse(bth.opcode.ext_kind(), rest)?;
    Ok((PacketWith { bth, srqn, ext, payload: () }, pad, rest))
}

/// Returns the unpadded length of a payload. `padded` is its length including padding, and `pad` is the length of the
/// padding.
fn unpadded_len(padded: usize, pad: usize) -> Result<usize, WireError> {
    let Some(len) = padded.checked_sub(pad) else {
        return Err(WireError::Short { what: "pad", need: pad, have: padded });
    };
    if !padded.is_multiple_of(4) {
        let value = u64::try_from(padded).unwrap_or(u64::MAX);
        return Err(WireError::Invalid { what: "padded payload length", value });
    }
    Ok(len)
}

impl<P> PacketWith<P> {
    /// Returns the same headers with another payload.
    #[inline]
    #[must_use]
    pub fn with_payload<Q>(&self, payload: Q) -> PacketWith<Q> {
        PacketWith { bth: self.bth, srqn: self.srqn, ext: self.ext, payload }
    }
}

impl<P: Copy> PacketWith<P> {
    /// Returns the packet with its payload converted to another type.
    #[inline]
    #[must_use]
    pub fn convert<Q: From<P>>(&self) -> PacketWith<Q> {
        self.with_payload(self.payload.into())
    }
}

impl<P: PacketPayload> PacketWith<P> {
    /// Returns the length of the packet in bytes, from the BTH to the ICRC.
    pub fn wire_len(&self) -> usize {
        let xrceth = self.srqn.map_or(0, |_| XRCETH_LEN);
        let padded = self.payload.len() + pad_count(self.payload.len());
        size_of::<RawBth>() + xrceth + self.ext.kind().len_bytes() + padded + ICRC_LEN
    }

    /// Divides a packet whose frame has the offload [`Segmentation`](super::Offload::Segmentation). Returns the
    /// resulting packets in PSN order. Only SENDs, WRITEs and READ responses of connected services are divided.
    pub fn segments(self, mtu: Mtu) -> impl Iterator<Item = Self> {
        let count = self.segment_count(mtu);
        (0..count).map(move |index| self.segment(mtu, index, count))
    }

    /// Returns the packets that [`Packet::segments`] returns, as runs of packets that differ only in PSN and payload.
    /// Each item contains the first packet of a run and the number of packets in the run. All packets in a run have the
    /// same length.
    pub fn segment_runs(self, mtu: Mtu) -> impl Iterator<Item = (Self, u32)> {
        let count = self.segment_count(mtu);
        // Only the first and the last packet can have extension headers or be shorter than the path MTU.
        let runs = [(0, 1), (1, count.saturating_sub(2)), (count - 1, u32::from(count > 1))];
        let runs = runs.into_iter().filter(|&(_, packets)| packets > 0);
        runs.map(move |(index, packets)| (self.segment(mtu, index, count), packets))
    }

    /// Returns the total length, in bytes, of the packets that [`Packet::segments`] returns. Each packet is counted
    /// from the BTH to the ICRC.
    pub fn segmented_wire_len(self, mtu: Mtu) -> u64 {
        self.segment_runs(mtu).map(|(packet, count)| u64::from(count) * packet.wire_len() as u64).sum()
    }

    /// Returns the number of packets that [`Packet::segments`] returns, which is at least 1.
    pub fn segment_count(&self, mtu: Mtu) -> u32 {
        let Opcode { transport, operation } = self.bth.opcode;
        let is_divided = matches!(operation.kind(), Kind::Send | Kind::Write | Kind::ReadResponse)
            && transport != Transport::Ud;
        let count = if is_divided { self.payload.len().div_ceil(mtu.bytes()).max(1) } else { 1 };
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    fn segment(&self, mtu: Mtu, index: u32, count: u32) -> Self {
        if count == 1 {
            return *self;
        }
        let position = self.bth.opcode.operation.position();
        let is_last = index + 1 == count;
        let position = Position::of(index == 0 && position.begins(), is_last && position.ends());
        let opcode = Opcode { operation: self.bth.opcode.operation.at(position), ..self.bth.opcode };
        let ext = match (opcode.ext_kind(), self.ext) {
            (ExtKind::None, _) => Ext::None,
            (ExtKind::Reth, Ext::RethImm(reth, _)) => Ext::Reth(reth),
            (ExtKind::Imm, Ext::RethImm(_, imm)) => Ext::Imm(imm),
            (_, ext) => ext,
        };
        let bth = Bth {
            opcode,
            psn: self.bth.psn.advance(index),
            // The requester needs an acknowledgement only for the last packet.
            ack_req: self.bth.ack_req && is_last,
            solicited: self.bth.solicited && is_last,
            ..self.bth
        };
        let start = index as usize * mtu.bytes();
        let end = self.payload.len().min(start + mtu.bytes());
        Self { bth, ext, payload: self.payload.slice(start..end), ..*self }
    }
}

/// Returns the number of pad bytes (0 to 3) that align a payload to four bytes.
pub const fn pad_count(payload_len: usize) -> usize {
    payload_len.wrapping_neg() & 3
}
