//! Checks work queue entries (WQEs).

use card::frontend::strict::Findings;
use card::memory::translate::{AccessTarget, RegionAccess};
use engine::{Access, Fetch, Initiator, RecvRequest};
use hcr::mtt::Mtt;
use protocol::hca::mthca::doorbell::{Record, RecordKind};
use protocol::hca::mthca::qpc::QpKind;
use protocol::hca::mthca::wqe::{
    DataSegment, DataSegments, GRANULE, MAX_SIZE, MlxWqe, Operation, SendWqe, WqeData,
};
use protocol::ids::{Pdn, Qpn};

use super::doorbells::tag;
use super::rules::{
    RQ_OVERRUN, SRQ_LINK, WQE_CONSTANT, WQE_KEY, WQE_MALFORMED, WQE_RESERVED, WQE_SIZE, WQE_VECTOR,
};
use crate::qp::QueuePair;
use crate::regions::DeviceMemory;
use crate::srq::SharedReceiveQueue;

type Memory<'a> = RegionAccess<'a, &'a Mtt>;

const PORT: u8 = 1;

/// Checks the next WQE of a QP's send queue.
pub(in super::super) fn send_wqe(qp: &QueuePair, memory: &Memory<'_>) -> Findings {
    let mut found = Findings::default();
    let Some((offset, link)) = qp.send.upcoming(memory) else { return found };
    let place = format!("the WQE at {offset:#x} of QP {}", qp.qpn);
    let len = usize::from(link.size) * GRANULE;
    let slot = qp.send.slot_len();
    if link.size == 0 || link.size > MAX_SIZE || len > slot {
        found.add(&WQE_SIZE, format!("{place} has {len} bytes, but the slot size is {slot} bytes"));
        return found;
    }
    let mut copy = [0; MAX_SIZE as usize * GRANULE];
    let (bytes, _) = copy.split_at_mut(len);
    if qp.send.read(offset, bytes, memory).is_err() {
        return found;
    }
    match qp.send.kind() {
        QpKind::Mlx => match MlxWqe::parse(bytes) {
            Ok(wqe) => keys(qp, &wqe.data, Access::LocalRead, &place, memory, &mut found),
            Err(error) => found.add(&WQE_MALFORMED, format!("{place}: {error}")),
        },
        QpKind::Service(service) => match SendWqe::parse(bytes, link.opcode, service) {
            Ok(wqe) => ordinary(qp, bytes, &wqe, &place, memory, &mut found),
            Err(error) => found.add(&WQE_MALFORMED, format!("{place}: {error}")),
        },
    }
    found
}

fn ordinary(
    qp: &QueuePair,
    bytes: &[u8],
    wqe: &SendWqe,
    place: &str,
    memory: &Memory<'_>,
    found: &mut Findings,
) {
    /// Length of the link to the next WQE. The link may be stale and is not checked.
    const LINK_LEN: usize = 8;
    /// Offset of the flags that request checksums and events. These flags are not reserved, although the device
    /// supports neither.
    const FLAGS: usize = 11;
    const KNOWN_FLAGS: u8 = 0x3f;
    /// Offset of the rate in an address vector. The rate is not checked, as libmthca may write any value here (section
    /// 12, T45).
    const RATE: usize = GRANULE + 0x0a;
    if bytes.get(FLAGS).is_some_and(|flags| flags & 1 == 0) {
        found.add(&WQE_CONSTANT, format!("bit 0 of the flags of {place} must be set"));
    }
    let datagram = matches!(wqe.operation, Operation::Datagram { .. });
    let nothing = matches!(wqe.operation, Operation::Nop);
    // Encode the parsed WQE again, which clears its reserved bits, and compare the result with the original. Check only
    // the segments before the data, since data segments have no reserved bits and the bytes after inline data are
    // undefined.
    let head = SendWqe { data: WqeData::Segments(DataSegments::new()), ..wqe.clone() }.emit();
    let ignored = bytes.iter().zip(&head).enumerate().skip(LINK_LEN).map(|(at, (given, kept))| {
        let ignored = given & !kept;
        match at {
            FLAGS => (at, ignored & !KNOWN_FLAGS),
            RATE if datagram => (at, 0),
            _ => (at, ignored),
        }
    });
    if let Some((at, bits)) = ignored.into_iter().find(|(_, bits)| *bits != 0) {
        found.add(&WQE_RESERVED, format!("reserved bits {bits:#04x} set in byte {at:#x} of {place}"));
    }
    if let Operation::Datagram { to, .. } = &wqe.operation
        && (to.vector.pd != qp.qpc.pd || to.vector.port != PORT)
    {
        let (pd, port, own) = (to.vector.pd, to.vector.port, qp.qpc.pd);
        found.add(
            &WQE_VECTOR,
            format!(
                "address vector of {place} has PD {pd} and port {port}, expected PD {own} and port {PORT}"
            ),
        );
    }
    let access = match wqe.operation {
        Operation::Read { .. } | Operation::CompareSwap { .. } | Operation::FetchAdd { .. } => {
            Access::LocalWrite
        }
        _ => Access::LocalRead,
    };
    if let WqeData::Segments(list) = &wqe.data
        && !nothing
    {
        keys(qp, list, access, place, memory, found);
    }
}

fn keys(
    qp: &QueuePair,
    list: &[DataSegment],
    access: Access,
    place: &str,
    memory: &Memory<'_>,
    found: &mut Findings,
) {
    for (n, data) in list.iter().enumerate() {
        let DataSegment { len, lkey, va } = *data;
        let who = Initiator { pd: qp.qpc.pd, qpn: qp.qpn, reserved_lkey: false };
        if let Err(error) = memory.check(AccessTarget::address(who, lkey, va), len.into(), access) {
            let pd = qp.qpc.pd;
            found.add(
                &WQE_KEY,
                format!("element {n} of {place}: {access} of {len} bytes at {va} with key {lkey} in PD {pd}: {error}"),
            );
            return;
        }
    }
}

/// Checks a WQE fetched from a QP's own receive queue, and the queue's doorbell record.
pub(in super::super) fn recv_wqe(
    qp: &QueuePair,
    fetch: &Fetch<RecvRequest>,
    memory: DeviceMemory<'_>,
) -> Findings {
    let mut found = Findings::default();
    let queue = format!("the receive queue of QP {}", qp.qpn);
    if let Some(record) = memory.whole_record(qp.qpc.page, qp.qpc.rq_record) {
        tag(record, RecordKind::Receive, qp.qpn.get(), qp.qpc.rq_record, &mut found);
        let outstanding = qp.counters.receives.saturating_sub(qp.counters.receives_completed);
        overrun(record, qp.recv.taken(), outstanding, qp.recv.slots(), &queue, &mut found);
    }
    receive(fetch, &queue, (qp.qpn, qp.qpc.pd), &memory.access(), &mut found);
    found
}

/// Checks a WQE fetched by a QP from an SRQ, and the SRQ's doorbell record.
pub(in super::super) fn shared_wqe(
    qp: &QueuePair,
    srq: &SharedReceiveQueue,
    fetch: &Fetch<RecvRequest>,
    memory: DeviceMemory<'_>,
) -> Findings {
    let mut found = Findings::default();
    let queue = format!("SRQ {}", srq.srqn());
    let taken = matches!(fetch, Fetch::Ready(_) | Fetch::Refused { .. });
    let (page, index) = srq.record();
    if let Some(record) = memory.whole_record(page, index) {
        tag(record, RecordKind::Shared, srq.srqn().get(), index, &mut found);
        overrun(record, srq.taken(), 1 + u64::from(taken), srq.slots(), &queue, &mut found);
    }
    receive(fetch, &queue, (qp.qpn, qp.qpc.pd), &memory.access(), &mut found);
    let (next, slot) = (srq.next_offset(), srq.slot_len());
    if taken && (!next.is_multiple_of(slot) || next / slot >= u32::from(srq.slots())) {
        found.add(
            &SRQ_LINK,
            format!(
                "WQE of {queue} links to offset {next:#x}, which is not one of the {} slots of {slot} bytes",
                srq.slots()
            ),
        );
    }
    found
}

/// Reports an overrun if more requests are posted than the queue has room for. `others` is the number of unavailable
/// slots: those still occupied by fetched requests and, in an SRQ, the one that must remain unused.
fn overrun(record: Record, taken: u16, others: u64, slots: u16, queue: &str, found: &mut Findings) {
    const OLDER: u16 = 1 << 15;
    let waiting = record.posted().wrapping_sub(taken);
    if waiting < OLDER && u64::from(waiting) + others > u64::from(slots) {
        found.add(
            &RQ_OVERRUN,
            format!("{queue} has {slots} slots, of which {others} are in use, but {waiting} more requests are posted"),
        );
    }
}

fn receive(
    fetch: &Fetch<RecvRequest>,
    queue: &str,
    (qpn, pd): (Qpn, Pdn),
    memory: &Memory<'_>,
    found: &mut Findings,
) {
    match fetch {
        Fetch::Refused { wr_id, .. } => {
            found.add(
                &WQE_MALFORMED,
                format!(
                    "the WQE at {wr_id:#x} of {queue} has inline data, which receive WQEs do not support"
                ),
            );
        }
        Fetch::Ready(request) => {
            let who = Initiator { pd, qpn, reserved_lkey: false };
            let wrong = request.sges.iter().enumerate().find_map(|(n, sge)| {
                let place = AccessTarget::address(who, sge.lkey, sge.va);
                Some((n, sge, memory.check(place, sge.len.into(), Access::LocalWrite).err()?))
            });
            if let Some((n, sge, error)) = wrong {
                let (at, len, va, lkey) = (request.wr_id, sge.len, sge.va, sge.lkey);
                found.add(
                    &WQE_KEY,
                    format!("element {n} of the WQE at {at:#x} of {queue}: local write of {len} bytes at {va} with key {lkey} in PD {pd}: {error}"),
                );
            }
        }
        Fetch::Empty | Fetch::Broken => {}
    }
}
