//! Checks doorbells before they take effect.

use card::frontend::strict::Findings;
use card::memory::GuestMemory;
use protocol::hca::mlx5::doorbell::{ArmCq, CqRecord, EqDoorbell, QueueRecord};
use protocol::hca::mlx5::qp::QpState;
use protocol::hca::mlx5::sq::WorkQueueState;
use protocol::hca::mlx5::wqe::ControlSegment;
use protocol::ids::{Qpn, Sqn, UarIndex};

use super::rules::{
    ARM_RECORD, ARM_SEQUENCE, CQ_CONSUMER, DOORBELL_NOTHING, DOORBELL_RECORD, DOORBELL_STATE, DOORBELL_WQE,
    EQ_CONSUMER, RECORD_BACK, SQ_OVERRUN,
};
use super::{has_moved_back, is_past};
use crate::buffer::QueueBuffer;
use crate::completion_queue::CompletionQueue;
use crate::doorbell::WqeHead;
use crate::event_queue::EventQueue;
use crate::netdev::Netdev;
use crate::netdev::sq::Sq;
use crate::numbered::Numbered;
use crate::queue_pair::QueuePair;
use crate::resources::Resources;
use crate::send_queue::{SendQueue, blocks};

/// Checks that the UAR page of a write is allocated. `resources` is `None` if the device is not initialised.
pub(in super::super) fn uar_write(resources: Option<&Resources>, page: UarIndex) -> Findings {
    let mut found = Findings::default();
    if resources.is_none_or(|all| !all.uars.contains(page.get())) {
        found.add(&DOORBELL_NOTHING, format!("write to UAR page {page}, which the device has not allocated"));
    }
    found
}

/// Checks that a queue exists and that the doorbell is in its UAR page. `own` is that page, or `None` if the queue does
/// not exist.
fn reaches(queue: &str, own: Option<UarIndex>, page: UarIndex, found: &mut Findings) -> bool {
    match own {
        None => found.add(&DOORBELL_NOTHING, format!("doorbell for {queue}, which does not exist")),
        Some(own) if own != page => found
            .add(&DOORBELL_NOTHING, format!("doorbell for {queue} in UAR page {page}, expected page {own}")),
        Some(_) => return true,
    }
    false
}

pub(in super::super) fn eq_doorbell(
    eqs: &Numbered<EventQueue>,
    page: UarIndex,
    doorbell: &EqDoorbell,
) -> Findings {
    let mut found = Findings::default();
    let EqDoorbell { eqn, consumer } = *doorbell;
    let context = eqs.get(eqn.get()).map(EventQueue::context);
    if !reaches(&format!("EQ {eqn}"), context.map(|context| context.uar), page, &mut found) {
        return found;
    }
    let Some(context) = context else { return found };
    let (producer, old) = (context.producer, context.consumer);
    if is_past(consumer, producer) {
        found.add(
            &EQ_CONSUMER,
            format!("EQ {eqn}: consumer index {consumer:#x} is past producer index {producer:#x}"),
        );
    } else if is_past(old, consumer) {
        found
            .add(&EQ_CONSUMER, format!("EQ {eqn}: consumer index moved back from {old:#x} to {consumer:#x}"));
    }
    found
}

pub(in super::super) fn arm_doorbell(
    resources: &mut Resources,
    page: UarIndex,
    arm: &ArmCq,
    dma: &GuestMemory,
) -> Findings {
    let mut found = Findings::default();
    let ArmCq { cqn, consumer, sequence, .. } = *arm;
    let Resources { cqs, eqs, .. } = resources;
    let cq = cqs.get_mut(cqn.get());
    let own = cq.as_ref().map(|cq| cq.uar());
    if !reaches(&format!("CQ {cqn}"), own, page, &mut found) {
        return found;
    }
    let Some(cq) = cq else { return found };
    armed_at(cq, arm, dma, &mut found);
    if let Some(record) = cq.read_record(dma).filter(|record| is_older(record, arm)) {
        let CqRecord { armed_at, sequence: recorded, .. } = record;
        found.add(
            &ARM_RECORD,
            format!(
                "CQ {cqn} armed with sequence number {sequence} at consumer index {consumer:#x}, but its doorbell record has {recorded} at {armed_at:#x}"
            ),
        );
    }
    arm_sequence(cq, eqs, arm, &mut found);
    found
}

/// Checks an arm request found in a doorbell record. In a mapped UAR page, another doorbell may have overwritten the
/// one for this request, so only the record is checked.
pub(in super::super) fn arm_record(resources: &mut Resources, arm: &ArmCq, dma: &GuestMemory) -> Findings {
    let mut found = Findings::default();
    let Resources { cqs, eqs, .. } = resources;
    if let Some(cq) = cqs.get_mut(arm.cqn.get()) {
        armed_at(cq, arm, dma, &mut found);
        arm_sequence(cq, eqs, arm, &mut found);
    }
    found
}

fn armed_at(cq: &CompletionQueue, arm: &ArmCq, dma: &GuestMemory, found: &mut Findings) {
    let (ArmCq { cqn, consumer, .. }, producer) = (*arm, cq.context(dma).producer);
    if is_past(consumer, producer) {
        found.add(
            &CQ_CONSUMER,
            format!("CQ {cqn} armed at consumer index {consumer:#x}, past producer index {producer:#x}"),
        );
    }
}

fn arm_sequence(cq: &mut CompletionQueue, eqs: &Numbered<EventQueue>, arm: &ArmCq, found: &mut Findings) {
    let ArmCq { cqn, sequence, .. } = *arm;
    // The EQ's consumer index shows which events the driver has read. It is used only for the driver's own CQs, which
    // share a UAR page with its EQs. For other CQs, the driver may have read an event that the user program has not
    // received yet.
    if let Some(eq) = eqs.get(cq.eqn().get())
        && eq.context().uar == cq.uar()
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

/// Returns whether the arm request in a doorbell record is older than the one in the doorbell.
fn is_older(record: &CqRecord, arm: &ArmCq) -> bool {
    match record.armed_at == arm.consumer {
        true => arm.sequence.wrapping_sub(record.sequence) & 3 == 1,
        false => is_past(arm.consumer, record.armed_at),
    }
}

/// Checks a send doorbell. `head` contains the first bytes of the last WQE, or `None` if software rang the doorbell
/// with two 4-byte stores.
pub(in super::super) fn send_doorbell(
    qps: &Numbered<Box<QueuePair>>,
    page: UarIndex,
    qpn: Qpn,
    head: Option<WqeHead>,
    dma: &GuestMemory,
) -> Findings {
    let mut found = Findings::default();
    let qp = qps.get(qpn.get());
    if !reaches(&format!("QP {qpn}"), qp.map(|qp| qp.context.uar), page, &mut found) {
        return found;
    }
    let Some(qp) = qp else { return found };
    if let Some(state @ (QpState::Reset | QpState::Init | QpState::Rtr)) = qp.context.state() {
        found.add(&DOORBELL_STATE, format!("doorbell for QP {qpn}, which is in {}", state.name()));
        return found;
    }
    let Some(record) = qp.record(dma) else { return found };
    let posted = Posted { queue: qp.send_queue(), buffer: &qp.buffer, sent: record.sent };
    if let Some(head) = head {
        posted.announced(&format!("QP {qpn}"), head, dma, &mut found);
    }
    posted.overrun(&format!("the send queue of QP {qpn}"), &mut found);
    found
}

/// Checks a send counter found in a doorbell record. In a mapped UAR page, another doorbell may have overwritten the
/// one for this counter, so only the record is checked.
pub(in super::super) fn send_record(qp: &QueuePair, record: QueueRecord) -> Findings {
    let mut found = Findings::default();
    let posted = Posted { queue: qp.send_queue(), buffer: &qp.buffer, sent: record.sent };
    posted.overrun(&format!("the send queue of QP {}", qp.qpn), &mut found);
    found
}

/// Checks an SQ's doorbell. `head` contains the first bytes of the last WQE, or `None` if software rang the doorbell
/// with two 4-byte stores.
pub(in super::super) fn sq_doorbell(
    netdev: &Netdev,
    page: UarIndex,
    sqn: Sqn,
    head: Option<WqeHead>,
    dma: &GuestMemory,
) -> Findings {
    let mut found = Findings::default();
    let (sq, name) = (netdev.sq(sqn), format!("SQ {sqn}"));
    if !reaches(&name, sq.map(Sq::uar), page, &mut found) {
        return found;
    }
    let Some(sq) = sq else { return found };
    if sq.state() == WorkQueueState::Reset {
        found.add(&DOORBELL_STATE, format!("doorbell for {name}, which is in reset"));
        return found;
    }
    let Some(record) = sq.record(dma) else { return found };
    let posted = Posted { queue: sq.queue(), buffer: sq.buffer(), sent: record.sent };
    if posted.moved_back(&name, &mut found) {
        return found;
    }
    if let Some(head) = head {
        posted.announced(&name, head, dma, &mut found);
    }
    posted.overrun(&name, &mut found);
    found
}

/// Checks a send counter found in the doorbell record of an SQ; see [`send_record`].
pub(in super::super) fn sq_record(sq: &Sq, record: QueueRecord) -> Findings {
    let mut found = Findings::default();
    let (name, posted) =
        (format!("SQ {}", sq.sqn()), Posted { queue: sq.queue(), buffer: sq.buffer(), sent: record.sent });
    if !posted.moved_back(&name, &mut found) {
        posted.overrun(&name, &mut found);
    }
    found
}

/// A send queue and the send counter from its doorbell record.
struct Posted<'a> {
    queue: &'a SendQueue,
    buffer: &'a QueueBuffer,
    /// Send counter in the doorbell record.
    sent: u16,
}

impl Posted<'_> {
    fn moved_back(&self, queue: &str, found: &mut Findings) -> bool {
        let (sent, taken) = (self.sent, self.queue.taken());
        let moved_back = has_moved_back(sent, taken);
        if moved_back {
            found.add(
                &RECORD_BACK,
                format!(
                    "{queue}: the send counter in its doorbell record is {sent:#x}, but {taken:#x} blocks are consumed"
                ),
            );
        }
        moved_back
    }

    fn overrun(&self, queue: &str, found: &mut Findings) {
        let (posted, blocks) = (self.sent.wrapping_sub(self.queue.completed()), self.queue.blocks());
        if u32::from(posted) > blocks {
            found.add(
                &SQ_OVERRUN,
                format!("{queue} has {blocks} blocks, but {posted} are posted and not completed"),
            );
        }
    }

    /// Checks a doorbell's WQE.
    fn announced(&self, name: &str, head: WqeHead, dma: &GuestMemory, found: &mut Findings) {
        const BEHIND: u16 = 1 << 15;
        let Self { queue, buffer, sent } = *self;
        let mut control = [0; ControlSegment::LEN];
        control.iter_mut().zip(head).for_each(|(to, from)| *to = from);
        let ControlSegment { index, size, .. } = ControlSegment::parse(&control);
        let end = index.wrapping_add(blocks(size));
        if (1..BEHIND).contains(&end.wrapping_sub(sent)) {
            found.add(
                &DOORBELL_RECORD,
                format!("{name}: doorbell announces {end:#x} blocks, but the doorbell record has {sent:#x}"),
            );
            return;
        }
        let (ahead, waiting) = (index.wrapping_sub(queue.taken()), sent.wrapping_sub(queue.taken()));
        // Compare only if the device has not fetched the WQE yet, since the blocks may hold another WQE afterwards.
        if ahead < waiting
            && u32::from(waiting) <= queue.blocks()
            && let Ok(stored) = queue.head::<{ size_of::<WqeHead>() }>(index, buffer, dma)
            && stored != head
        {
            let [said, stored] = [head, stored].map(u64::from_be_bytes);
            found.add(
                &DOORBELL_WQE,
                format!(
                    "{name}: the doorbell for block {index:#x} is {said:#018x}, but the WQE there starts with {stored:#018x}"
                ),
            );
        }
    }
}
