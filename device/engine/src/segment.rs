//! Segmentation of SEND and WRITE messages into packets of one path MTU, or into frames of several packets.

use std::ops::Range;

use protocol::roce::{Ext, MAX_OFFLOADED_PAYLOAD, Operation, Position, Reth};

use crate::gather::FramePayload;
use crate::{Initiator, Payload, SendOp};

/// One or more consecutive packets of a SEND or WRITE message, sent in one frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    pub(crate) operation: Operation,
    pub(crate) ext: Ext,
    /// Offset of the payload in the message.
    pub(crate) offset: usize,
    /// Payload length in bytes.
    pub(crate) len: usize,
}

impl Segment {
    /// Returns the payload of the segment. `message` is the payload of the work request.
    pub(crate) fn payload<'a>(&self, initiator: Initiator, message: &'a Payload) -> FramePayload<'a> {
        FramePayload::Message { initiator, payload: message, offset: self.offset, len: self.len }
    }
}

/// Returns the maximum number of packets in a frame that begins with packet `index` of its message and uses
/// segmentation offload. Full frames end at fixed offsets in the message, so most retransmissions resend whole frames.
pub(crate) fn packets_in_frame(mtu: usize, index: u32) -> u32 {
    let most = u32::try_from(MAX_OFFLOADED_PAYLOAD / mtu).unwrap_or(u32::MAX);
    most - index % most
}

/// Returns the number of packets in a message or READ response, which is at least 1.
pub(crate) fn packet_count(len: u32, mtu: usize) -> u32 {
    u32::try_from((len as usize).div_ceil(mtu).max(1))
        .expect("a 32-bit length in packets of at least one byte")
}

/// Returns the total payload length of consecutive packets of a message.
pub(crate) fn payload_len(len: u32, mtu: usize, packets: Range<u32>) -> usize {
    (len as usize).saturating_sub(packets.start as usize * mtu).min(packets.len() * mtu)
}

/// Returns consecutive packets of a SEND or WRITE of `len` bytes as one segment, or `None` for any other operation.
pub(crate) fn segment(op: &SendOp, len: u32, mtu: usize, packets: Range<u32>) -> Option<Segment> {
    let index = packets.start;
    let position = Position::of(index == 0, packets.end == packet_count(len, mtu));
    let (operation, ext) = packet_headers(op, len, position)?;
    let offset = index as usize * mtu;
    Some(Segment { operation, ext, offset, len: payload_len(len, mtu, packets) })
}

/// Returns the operation and the extension headers of the packet at `position` of a SEND or WRITE of `len` bytes, or
/// `None` for any other operation.
pub(crate) fn packet_headers(op: &SendOp, len: u32, position: Position) -> Option<(Operation, Ext)> {
    let last = position.ends();
    Some(match *op {
        SendOp::Send { imm } => {
            let ext = imm.filter(|_| last).map_or(Ext::None, Ext::Imm);
            (Operation::send(position, imm.is_some()), ext)
        }
        SendOp::SendInvalidate { rkey } => match position {
            Position::Last => (Operation::SendLastInvalidate, Ext::Invalidate(rkey)),
            Position::Only => (Operation::SendOnlyInvalidate, Ext::Invalidate(rkey)),
            Position::First | Position::Middle => (Operation::send(position, false), Ext::None),
        },
        SendOp::Write { remote, imm } => {
            let reth = Reth { va: remote.va, rkey: remote.rkey, dma_len: len };
            let ext = match (position.begins(), imm.filter(|_| last)) {
                (true, Some(imm)) => Ext::RethImm(reth, imm),
                (true, None) => Ext::Reth(reth),
                (false, Some(imm)) => Ext::Imm(imm),
                (false, None) => Ext::None,
            };
            (Operation::write(position, imm.is_some()), ext)
        }
        SendOp::Read { .. }
        | SendOp::CompareSwap { .. }
        | SendOp::FetchAdd { .. }
        | SendOp::Local(_)
        | SendOp::Nop => return None,
    })
}
