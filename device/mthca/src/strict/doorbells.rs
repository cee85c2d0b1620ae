//! Checks doorbells for QPs and CQs.

use card::frontend::strict::Findings;
use engine::State;
use protocol::hca::mthca::doorbell::{ArmCq, Record, RecordKind, SendDoorbell};
use protocol::hca::mthca::wqe::Link;

use super::rules::{
    ARM_COMMAND, ARM_NO_CQ, ARM_RECORD, ARM_SEQUENCE, CQ_CONSUMER, DOORBELL_EMPTY, DOORBELL_LINK,
    DOORBELL_NO_QP, DOORBELL_ORDER, DOORBELL_PAGE, DOORBELL_RECORD, DOORBELL_STATE, RECORD_TAG, SQ_OVERRUN,
};
use crate::completion_queue::CompletionQueue;
use crate::event_queue::EventQueues;
use crate::qp::QueuePair;
use crate::regions::DeviceMemory;

/// A 16-bit counter `a` is older than `b` if `a - b`, modulo 2^16, is at least this value.
const OLDER: u16 = 1 << 15;
/// A 32-bit counter `a` is older than `b` if `a - b`, modulo 2^32, is at least this value.
const LONG_OLDER: u32 = 1 << 31;

/// Checks a send doorbell before it takes effect. `qp` is the QP named by the doorbell, and `state` is the QP's current
/// state.
pub(in super::super) fn send(
    qp: Option<&QueuePair>,
    state: Option<State>,
    page: u32,
    doorbell: &SendDoorbell,
    memory: DeviceMemory<'_>,
) -> Findings {
    let mut found = Findings::default();
    let qpn = doorbell.qpn;
    let Some(qp) = qp else {
        found.add(&DOORBELL_NO_QP, format!("doorbell for QP {qpn}, which does not exist or is in RESET"));
        return found;
    };
    if qp.qpc.page != page {
        found.add(
            &DOORBELL_PAGE,
            format!("doorbell for QP {qpn} in UAR page {page:#x}, expected page {:#x}", qp.qpc.page),
        );
        return found;
    }
    if let None | Some(State::Reset | State::Init | State::Rtr) = state {
        found.add(
            &DOORBELL_STATE,
            format!("doorbell for QP {qpn}, which is in {}", state.unwrap_or(State::Reset)),
        );
        return found;
    }
    if doorbell.count == 0 {
        found.add(&DOORBELL_EMPTY, format!("doorbell for QP {qpn} announces no request"));
        return found;
    }
    let (first, producer) = (doorbell.first, doorbell.producer());
    if first != qp.announced {
        found.add(
            &DOORBELL_ORDER,
            format!(
                "QP {qpn}: doorbell starts at WQE {first:#x}, but the previous one ended at {:#x}",
                qp.announced
            ),
        );
    }
    let record = memory.whole_record(page, qp.qpc.sq_record);
    if let Some(record) = record {
        send_record(qp, producer, record, &mut found);
    }
    let said = Link {
        address: qp.send.offset(first),
        opcode: doorbell.opcode,
        size: doorbell.size,
        fence: doorbell.fence,
    };
    // Check the link only if this WQE is the next to be fetched. Otherwise, the preceding slot may have been reused.
    if qp.send.waiting() == 0
        && first == qp.send.taken()
        && let Ok(link) = qp.send.read_link(first, &memory.access())
        && link != said
    {
        found.add(
            &DOORBELL_LINK,
            format!(
                "QP {qpn}: doorbell describes WQE {first:#x} as ({}), but the preceding slot links to ({})",
                link_text(said),
                link_text(link)
            ),
        );
    }
    overrun(qp, [Some(producer), record.map(|record| record.posted())], &mut found);
    found
}

/// Checks a send queue whose record has advanced while doorbells are mapped. There may be no doorbell to check, since
/// the device can miss doorbells in mapped pages.
pub(in super::super) fn sends(qp: &QueuePair, record: Record) -> Findings {
    let mut found = Findings::default();
    tag(record, RecordKind::Send, qp.qpn.get(), qp.qpc.sq_record, &mut found);
    overrun(qp, [Some(record.posted()), None], &mut found);
    found
}

/// Checks whether a counter in a doorbell or record covers more requests than the queue has slots.
fn overrun(qp: &QueuePair, counts: [Option<u16>; 2], found: &mut Findings) {
    let ahead = |count: u16| count.wrapping_sub(qp.send.taken());
    let waiting = counts.into_iter().flatten().map(ahead).filter(|ahead| *ahead < OLDER).max();
    let posted = qp.counters.sends_outstanding() + u64::from(waiting.unwrap_or(0));
    if posted > u64::from(qp.send.slots()) {
        let (qpn, slots) = (qp.qpn, qp.send.slots());
        found.add(
            &SQ_OVERRUN,
            format!("send queue of QP {qpn} has {slots} slots, but {posted} posted requests"),
        );
    }
}

fn send_record(qp: &QueuePair, producer: u16, record: Record, found: &mut Findings) {
    let qpn = qp.qpn;
    let counter = record.posted();
    if (1..OLDER).contains(&producer.wrapping_sub(counter)) {
        found.add(
            &DOORBELL_RECORD,
            format!(
                "QP {qpn}: doorbell announces WQE count {producer:#x}, doorbell record {} has {counter:#x}",
                qp.qpc.sq_record
            ),
        );
    }
    tag(record, RecordKind::Send, qpn.get(), qp.qpc.sq_record, found);
}

/// Checks the type and the QP, CQ or SRQ number in a doorbell record.
pub(super) fn tag(record: Record, kind: RecordKind, number: u32, index: u32, found: &mut Findings) {
    if record.kind != Some(kind) || record.number != number & 0xff_ffff {
        let (said, of) = (kind_name(record.kind), record.number);
        found.add(
            &RECORD_TAG,
            format!("doorbell record {index} has type {said} and number {of:#x}, expected type {} and number {number:#x}", kind.name()),
        );
    }
}

fn link_text(link: Link) -> String {
    let Link { address, opcode, size, fence } = link;
    format!("offset {address:#x}, opcode {opcode:#x}, size {size}, fence {fence}")
}

fn kind_name(kind: Option<RecordKind>) -> &'static str {
    kind.map_or("none", RecordKind::name)
}

/// Checks an arm doorbell before it takes effect. `cq` is the CQ named by the doorbell.
pub(in super::super) fn arm_cq(
    cq: Option<&mut CompletionQueue>,
    eqs: &EventQueues,
    page: u32,
    arm: &ArmCq,
    memory: DeviceMemory<'_>,
) -> Findings {
    let mut found = Findings::default();
    let ArmCq { cqn, consumer, .. } = *arm;
    let Some(cq) = cq else {
        found.add(&ARM_NO_CQ, format!("CQ {cqn} armed, but it is not valid"));
        return found;
    };
    if cq.page() != page {
        found.add(
            &DOORBELL_PAGE,
            format!("arm doorbell for CQ {cqn} in UAR page {page:#x}, expected page {:#x}", cq.page()),
        );
        return found;
    }
    if arm.arm_for.is_none() {
        found.add(&ARM_COMMAND, format!("CQ {cqn} armed with an undefined command"));
        return found;
    }
    let index = cq.arm_record();
    if let Some(record) = memory.whole_record(page, index) {
        let Record { counter, kind, number } = record;
        if (kind, number) != (Some(RecordKind::Arm), cqn.get() & 0xff_ffff)
            || counter.wrapping_sub(consumer) >= LONG_OLDER
        {
            found.add(
                &ARM_RECORD,
                format!(
                    "CQ {cqn} armed at consumer index {consumer:#x}, but doorbell record {index} has type {}, number {number:#x} and counter {counter:#x}",
                    kind_name(kind)
                ),
            );
        }
    }
    armed(cq, eqs, arm, &mut found);
    found
}

pub(in super::super) fn arms(cq: &mut CompletionQueue, eqs: &EventQueues, arm: &ArmCq) -> Findings {
    let mut found = Findings::default();
    armed(cq, eqs, arm, &mut found);
    found
}

fn armed(cq: &mut CompletionQueue, eqs: &EventQueues, arm: &ArmCq, found: &mut Findings) {
    let ArmCq { cqn, consumer, sequence, .. } = *arm;
    let producer = cq.row().producer;
    if producer.wrapping_sub(consumer) >= LONG_OLDER {
        found.add(
            &CQ_CONSUMER,
            format!("CQ {cqn}: consumer index {consumer:#x} is past producer index {producer:#x}"),
        );
    }
    // The EQ's consumer index shows which events the driver has read. It is used only for the driver's own CQs, which
    // share a protection domain with its EQs. For other CQs, the driver may have read an event that the user program
    // has not received yet (section 11).
    if let Some(eq) = eqs.get(cq.eqn())
        && eq.ring().buffer().pd == cq.ring().buffer().pd
    {
        cq.sequence.mark_read(eq.consumer());
    }
    if !cq.sequence.arm(sequence) {
        let (first, more) = cq.sequence.valid_range();
        let unseen = if more == 0 { String::new() } else { format!(" or up to {more} higher") };
        found.add(
            &ARM_SEQUENCE,
            format!("CQ {cqn} armed with sequence number {sequence}, expected {first}{unseen}"),
        );
    }
}
