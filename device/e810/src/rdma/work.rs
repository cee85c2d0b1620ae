//! Converts send WQEs into engine requests.
//!
//! # Spec
//! E810 interface, sections 13.4 and 13.7.

use card::memory::key_op::{Bind, FastRegister, KeyOp, Pages, WindowKind};
use card::memory::region::PageShift;
use engine::{Fence, Payload, Remote, Rights, SendOp};
use protocol::hca::e810::rdma::event_queue::EventCode;
use protocol::hca::e810::rdma::send_wqe::{self, Control, Data, FastPages, Operation};
use protocol::roce::Imm;

use super::queue_pair::sge;

/// Returns a WQE's fence. A local fence implies a read fence.
pub(super) const fn fence(control: &Control) -> Fence {
    match (control.local_fence, control.read_fence) {
        (true, _) => Fence::All,
        (false, true) => Fence::Reads,
        (false, false) => Fence::None,
    }
}

/// Converts a parsed WQE into an operation, its payload and the solicited-event flag.
///
/// # Errors
/// `FastRegisterLength` for a fast register WQE with an invalid page size.
pub(super) fn request(operation: Operation) -> Result<(SendOp, Payload, bool), EventCode> {
    let nothing = || Payload::Sges(engine::SgeList::new());
    let local = |op: KeyOp| (SendOp::Local(op.into()), nothing(), false);
    Ok(match operation {
        Operation::Write { remote: to, imm: with, solicited, data } => {
            (SendOp::Write { remote: remote(to), imm: with.map(imm) }, payload(data), solicited)
        }
        Operation::Read { remote: from, to, invalidate } => {
            (SendOp::Read { remote: remote(from), invalidate }, payload(Data::Fragments(to)), false)
        }
        Operation::Send { invalidate: Some(rkey), solicited, data, .. } => {
            (SendOp::SendInvalidate { rkey }, payload(data), solicited)
        }
        Operation::Send { imm: with, solicited, data, .. }
        | Operation::Datagram { imm: with, solicited, data, .. } => {
            (SendOp::Send { imm: with.map(imm) }, payload(data), solicited)
        }
        Operation::Bind(bind) => local(KeyOp::Bind(Bind {
            window: bind.window.as_rkey(),
            parent: bind.parent,
            va: bind.va,
            len: bind.len,
            rights: rights(bind.rights),
            zero_based: !bind.virtual_addresses,
            kind: if bind.type1 { WindowKind::Type1 } else { WindowKind::Type2B },
        })),
        Operation::FastRegister(region) => local(KeyOp::FastRegister(FastRegister {
            key: region.key,
            start: region.va,
            len: region.len,
            rights: rights(region.rights),
            zero_based: !region.virtual_addresses,
            pages: pages(region.pages, region.page_size).ok_or(EventCode::FastRegisterLength)?,
        })),
        Operation::LocalInvalidate(key) => local(KeyOp::Invalidate(key)),
        Operation::Nop => (SendOp::Nop, nothing(), false),
    })
}

/// Converts immediate data from a number in the WQE to the big-endian bytes carried in packets.
const fn imm(number: u32) -> Imm {
    Imm(number.to_be_bytes())
}

const fn remote(to: send_wqe::Remote) -> Remote {
    Remote { va: to.va, rkey: to.key }
}

fn payload(data: Data) -> Payload {
    match data {
        Data::Fragments(list) => Payload::Sges(list.iter().map(sge).collect()),
        Data::Inline(bytes) => Payload::Inline(bytes),
    }
}

/// Converts the access rights of a region or window. Local read is always granted.
pub(super) fn rights(bits: u8) -> Rights {
    let all = [
        (1 << 1, Rights::LOCAL_WRITE),
        (1 << 2, Rights::REMOTE_READ),
        (1 << 3, Rights::REMOTE_WRITE),
        (1 << 4, Rights::BIND),
    ];
    all.into_iter().filter(|(bit, _)| bits & bit != 0).map(|(_, right)| right).collect()
}

/// Converts the page location of a fast register WQE. Returns `None` for an invalid page size code.
fn pages(pages: FastPages, size: u8) -> Option<Pages> {
    let page_shift = page_shift(size)?;
    Some(match pages {
        FastPages::Contiguous(base) => Pages::Contiguous { base, page_shift },
        FastPages::List(first) => Pages::List { first: first.get().into(), page_shift },
        FastPages::Lists(first) => Pages::TwoLevel { first: first.get().into(), page_shift },
    })
}

/// Converts a page size code: 0 is 4 KiB, 1 is 2 MiB, and 2 is 1 GiB.
pub(super) const fn page_shift(code: u8) -> Option<PageShift> {
    match code {
        0 => PageShift::new(12),
        1 => PageShift::new(21),
        2 => PageShift::new(30),
        _ => None,
    }
}
