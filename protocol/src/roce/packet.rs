//! Transport part of a RoCE packet: everything between the UDP header and the ICRC.

use super::bth::RawBth;
use super::ext::{RawXrceth, XRCETH_LEN};
use super::icrc::ICRC_LEN;
use super::{Bth, Ext, ExtKind, Kind, Mtu, Opcode, Position, Transport};
use crate::WireError;
use crate::ids::Srqn;

/// Parsed transport headers and payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// The base transport header (BTH).
    pub bth: Bth,
    /// SRQ number in the XRCETH, present if and only if [`Opcode::has_xrceth`](super::Opcode::has_xrceth) is true.
    pub srqn: Option<Srqn>,
    /// Extension headers, which are always the variant that `bth.opcode` requires.
    pub ext: Ext,
    /// Payload without pad bytes.
    pub payload: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Parses a packet. Reserved operations parse with [`Ext::None`], so that a responder can NAK them. Pad bytes can
    /// have any value.
    ///
    /// # Errors
    /// Fails in the same cases as [`Bth::parse`]. Also returns [`WireError::Short`] if the extension headers or the pad
    /// bytes are truncated, and [`WireError::Invalid`] if the padded payload length is not a multiple of four.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, WireError> {
        let (bth, pad, rest) = Bth::parse(bytes)?;
        let (srqn, rest) = if bth.opcode.has_xrceth() {
            let (srqn, rest) = RawXrceth::parse(rest)?;
            (Some(srqn), rest)
        } else {
            (None, rest)
        };
        let (ext, padded) = Ext::parse(bth.opcode.ext_kind(), rest)?;
        let Some(len) = padded.len().checked_sub(pad) else {
            return Err(WireError::Short { what: "pad", need: pad, have: padded.len() });
        };
        if padded.len() % 4 != 0 {
            let value = u64::try_from(padded.len()).unwrap_or(u64::MAX);
            return Err(WireError::Invalid { what: "padded payload length", value });
        }
        let payload = padded.get(..len).unwrap_or_default();
        Ok(Self { bth, srqn, ext, payload })
    }

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
            // The requester needs only the last packet acknowledged.
            ack_req: self.bth.ack_req && is_last,
            solicited: self.bth.solicited && is_last,
            ..self.bth
        };
        let start = index as usize * mtu.bytes();
        let end = self.payload.len().min(start + mtu.bytes());
        Self { bth, ext, payload: self.payload.get(start..end).unwrap_or_default(), ..*self }
    }
}

/// Returns the number of pad bytes (0 to 3) that align a payload to four bytes.
pub const fn pad_count(payload_len: usize) -> usize {
    payload_len.wrapping_neg() & 3
}
