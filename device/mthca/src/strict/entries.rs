//! Checks the CQ and EQ slots that the device is about to write.

use card::frontend::strict::Findings;
use card::memory::queue::QueueMemory;
use hcr::entry_ring::{EntryRing, HARDWARE_OWNED};
use protocol::hca::mthca::doorbell::RecordKind;
use protocol::ids::Eqn;

use super::doorbells::tag;
use super::rules::{CQ_CONSUMER, CQE_OWNER, EQE_OWNER};
use crate::completion_queue::CompletionQueue;
use crate::event_queue::EventQueue;
use crate::regions::DeviceMemory;

/// Checks a CQ's next slot and its doorbell record.
pub(in super::super) fn cqe(cq: &CompletionQueue, memory: DeviceMemory<'_>) -> Findings {
    const AHEAD: u32 = 1 << 31;
    let mut found = Findings::default();
    let (cqn, (page, index)) = (cq.cqn(), cq.record());
    let Some(record) = memory.whole_record(page, index).filter(|_| !cq.is_broken()) else { return found };
    tag(record, RecordKind::Consumer, cqn.get(), index, &mut found);
    let ring = cq.ring();
    let (producer, consumer) = (ring.producer(), record.counter);
    let unread = producer.wrapping_sub(consumer);
    if unread >= AHEAD {
        found.add(
            &CQ_CONSUMER,
            format!(
                "CQ {cqn}: consumer index {consumer:#x} in doorbell record {index} is past producer index {producer:#x}"
            ),
        );
    } else if u64::from(unread) < ring.entries() && !is_given(ring, &memory.access()) {
        found.add(
            &CQE_OWNER,
            format!("CQ {cqn}: entry {producer:#x} is not in hardware ownership, but the consumer index is {consumer:#x}"),
        );
    }
    found
}

pub(in super::super) fn eqe(eqn: Eqn, queue: &EventQueue, memory: &impl QueueMemory) -> Findings {
    let mut found = Findings::default();
    let ring = queue.ring();
    let (producer, consumer) = (ring.producer(), queue.consumer());
    if u64::from(producer.wrapping_sub(consumer)) < ring.entries() && !is_given(ring, memory) {
        found.add(
            &EQE_OWNER,
            format!("EQ {eqn}: entry {producer:#x} is not in hardware ownership, but the consumer index is {consumer:#x}"),
        );
    }
    found
}

/// Returns whether hardware owns the next slot. An unreadable slot counts as owned by hardware.
fn is_given(ring: &EntryRing, memory: &impl QueueMemory) -> bool {
    ring.owner(memory).is_none_or(|owner| owner & HARDWARE_OWNED != 0)
}
