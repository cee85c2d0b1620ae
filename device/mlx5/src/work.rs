//! Converts send WQEs to engine requests.
//!
//! # Spec
//! mlx5 interface, section 11.

use engine::{
    AccessError, Fence, Fetch, LocalOp, LocalToken, Payload, Piece, Remote, SendOp, SendRequest, SgeList,
    Status, UdDestination,
};
use protocol::hca::mlx5::qp::Service;
use protocol::hca::mlx5::wqe::{
    ControlSegment, DataItem, DatagramSegment, Fence as WqeFence, Opcode, Operation, RemoteSegment, SendWqe,
};
use protocol::ids::{Qpn, Rkey};
use protocol::roce::Imm;
use smallvec::{SmallVec, smallvec};

use super::address::Resolver;
use super::recv_queue::sge;
use super::send_queue::FetchedWqe;

/// Converts a send WQE to an engine request or rejects it if it is malformed.
///
/// Returns a [`Fetch`] rather than a `Result`, since converting one to the other would copy the request.
pub fn request(
    taken: &FetchedWqe<'_>,
    service: Service,
    qpn: Qpn,
    resolver: Resolver<'_>,
) -> Fetch<SendRequest> {
    let wr_id = taken.tag.into_bits();
    let parsed = SendWqe::parse(taken.bytes, service, qpn);
    let wqe = match &parsed {
        Ok(wqe) => wqe,
        Err(_) => return Fetch::Refused { wr_id, status: malformed(taken) },
    };
    let (control, imm) = (&wqe.control, Imm(wqe.control.immediate));
    let remote = |of: &RemoteSegment| Remote { va: of.va, rkey: of.rkey };
    let op = match (&wqe.operation, wqe.opcode) {
        (Operation::Nop, _) => SendOp::Nop,
        (Operation::Send | Operation::Datagram(_), Opcode::SendImm) => SendOp::Send { imm: Some(imm) },
        (Operation::Send, Opcode::SendInvalidate) => {
            SendOp::SendInvalidate { rkey: Rkey::new(control.key()) }
        }
        (Operation::Send | Operation::Datagram(_), _) => SendOp::Send { imm: None },
        (Operation::Write(to), opcode) => {
            SendOp::Write { remote: remote(to), imm: (opcode == Opcode::WriteImm).then_some(imm) }
        }
        (Operation::Read(from), _) => SendOp::Read { remote: remote(from), invalidate: None },
        (Operation::Atomic(at, operands), Opcode::CompareSwap) => {
            SendOp::CompareSwap { remote: remote(at), compare: operands.compare, swap: operands.swap_or_add }
        }
        (Operation::Atomic(at, operands), _) => {
            SendOp::FetchAdd { remote: remote(at), add: operands.swap_or_add }
        }
        (Operation::Umr(umr), _) => SendOp::Local(LocalOp {
            // A UMR that requires the key to be free need not wait, as no earlier request can be using the key.
            wait_for_older: !umr.control.check_free,
            token: token(taken.tag.index()),
        }),
    };
    let ud = match &wqe.operation {
        Operation::Datagram(to) => Some(destination(to, qpn, resolver)),
        _ => None,
    };
    Fetch::Ready(SendRequest {
        wr_id,
        op,
        payload: payload(&wqe.data),
        fence: fence(control),
        solicited: control.solicited,
        ud,
        remote_srq: wqe.xrc_srqn,
    })
}

/// Returns the completion status for a WQE that cannot be parsed. Section 9.4: every failed UMR has the same syndrome.
fn malformed(taken: &FetchedWqe<'_>) -> Status {
    if taken.tag.opcode() == Opcode::Umr.code() {
        Status::MemoryManagement(AccessError::Kind)
    } else {
        Status::LocalQpOperation
    }
}

/// Returns the token of a UMR, which is the index of its WQE's first block. When the UMR executes, the device uses the
/// token to read the WQE again.
pub const fn token(index: u16) -> LocalToken {
    LocalToken([index as u64, 0, 0, 0])
}

pub fn index_of(token: &LocalToken) -> Option<u16> {
    let LocalToken([index, ..]) = *token;
    u16::try_from(index).ok()
}

/// Returns the fence of a request. A small fence, which waits for earlier UMRs, needs no action because the engine
/// always executes UMRs in order and before later requests.
const fn fence(control: &ControlSegment) -> Fence {
    match WqeFence::from_code(control.fence) {
        Some(WqeFence::None | WqeFence::Small) => Fence::None,
        Some(WqeFence::Fence | WqeFence::Both) => Fence::Reads,
        Some(WqeFence::StrongOrdering) | None => Fence::All,
    }
}

/// Converts a WQE's data, which may mix inline data and data segments. UCX, for example, puts its headers inline and
/// its data in a segment.
fn payload(data: &[DataItem<'_>]) -> Payload {
    // Most messages have a single data segment.
    if let [DataItem::Pointer(segment)] = data {
        return Payload::Sges(smallvec![sge(segment)]);
    }
    let mut sges = SgeList::new();
    let mut inline: SmallVec<[u8; 64]> = SmallVec::new();
    for item in data {
        match item {
            DataItem::Pointer(segment) => sges.push(sge(segment)),
            DataItem::Inline(bytes) => inline.extend_from_slice(bytes),
        }
    }
    match (sges.is_empty(), inline.is_empty()) {
        (_, true) => Payload::Sges(sges),
        (true, false) => Payload::Inline(inline),
        (false, false) => Payload::Mixed(data.iter().map(piece).collect()),
    }
}

fn piece(item: &DataItem<'_>) -> Piece {
    match item {
        DataItem::Pointer(segment) => Piece::Sge(sge(segment)),
        DataItem::Inline(bytes) => Piece::Inline((*bytes).into()),
    }
}

fn destination(to: &DatagramSegment, qpn: Qpn, resolver: Resolver<'_>) -> UdDestination {
    UdDestination { path: resolver.datagram(to, qpn), qpn: to.qpn, qkey: to.qkey, header: None }
}
