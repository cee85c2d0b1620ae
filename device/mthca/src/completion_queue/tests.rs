use card::frontend::snapshot::Fault;
use card::memory::queue::testing::Region;
use protocol::hca::mthca::cqe::{LEN, Outcome};
use protocol::hca::syndrome::Syndrome;
use protocol::ids::{Eqn, Lkey, Qpn};

use super::*;

const CQN: Cqn = Cqn::new(0x1_0011);
const YES: Notify = Notify::Yes(Eqn::new(1));

fn queue(mem: &Region) -> CompletionQueue {
    queue_at(mem, 0)
}

/// Creates a four-entry queue at offset `start` of the region.
fn queue_at(mem: &Region, start: u64) -> CompletionQueue {
    let cqc = Cqc {
        start,
        log_entries: 2,
        page: 2,
        comp_eqn: Eqn::new(1),
        pd: mem.pd,
        lkey: mem.key,
        cqn: CQN,
        consumer_record: 32767,
        arm_record: 0,
    };
    CompletionQueue::new(CQN, &cqc)
}

fn memory() -> Region {
    let mem = Region::new(8 * LEN);
    (0..8).for_each(|slot| mem.put(slot * LEN + LEN - 1, &[0x80]));
    mem
}

fn cqe(wqe: u32) -> Cqe {
    Cqe { qpn: Qpn::new(0x14), wqe, outcome: Outcome::Sent { opcode: 0x0a, byte_len: 0 } }
}

fn push(queue: &mut CompletionQueue, mem: &Region, wqe: u32, consumer: u32) -> Result<Notify, CqError> {
    queue.push(&cqe(wqe), false, mem, || Some(consumer))
}

fn arm(arm_for: ArmFor, consumer: u32) -> ArmCq {
    ArmCq { arm_for: Some(arm_for), cqn: CQN, consumer, sequence: 1 }
}

#[test]
fn entries_wrap_while_software_reads_them() {
    let mem = memory();
    let mut queue = queue(&mem);
    for count in 0..10u32 {
        assert_eq!(push(&mut queue, &mem, count << 6, count), Ok(Notify::No));
        assert_eq!(mem.get::<LEN>((count as usize & 3) * LEN), cqe(count << 6).emit());
    }
    assert_eq!(mem.get::<1>(5 * LEN - 1), [0x80], "bytes after the buffer are unchanged");
}

#[test]
fn first_entry_is_at_start_address() {
    let mem = memory();
    let mut queue = queue_at(&mem, 3 * LEN as u64);
    assert_eq!(push(&mut queue, &mem, 1 << 6, 0), Ok(Notify::No));
    assert_eq!(mem.get::<LEN>(3 * LEN), cqe(1 << 6).emit());
    assert_eq!(mem.get::<1>(LEN - 1), [0x80], "bytes before the start address are unchanged");
}

#[test]
fn consumer_index_is_fetched_only_when_queue_is_full() {
    let mem = memory();
    let mut queue = queue(&mem);
    for count in 0..4 {
        assert_eq!(queue.push(&cqe(count), false, &mem, || panic!("read")), Ok(Notify::No));
    }
    assert_eq!(push(&mut queue, &mem, 4, 2), Ok(Notify::No));
}

#[test]
fn overrun_is_permanent() {
    let mem = memory();
    let mut queue = queue(&mem);
    (0..4).for_each(|count| assert_eq!(push(&mut queue, &mem, count, 0), Ok(Notify::No)));
    let lost = |first| Err(CqError { fault: Fault::Overrun, first });
    assert_eq!(push(&mut queue, &mem, 4, 0), lost(true));
    assert_eq!(push(&mut queue, &mem, 5, 4), lost(false));
    assert_eq!(mem.get::<LEN>(0), cqe(0).emit());
}

#[test]
fn unwritable_cq_buffer_is_access_fault() {
    let mem = memory();
    let mut queue = queue(&mem);
    mem.read_only.set(true);
    let lost = Err(CqError { fault: Fault::Access, first: true });
    assert_eq!(push(&mut queue, &mem, 0, 0), lost);
}

#[test]
fn armed_queue_raises_one_event() {
    let mem = memory();
    let mut queue = queue(&mem);
    assert_eq!(queue.arm(&arm(ArmFor::Any, 0)), Notify::No);
    assert_eq!(push(&mut queue, &mem, 0, 0), Ok(YES));
    assert_eq!(push(&mut queue, &mem, 1, 0), Ok(Notify::No));
}

#[test]
fn arming_with_unread_entry_raises_event_immediately() {
    let mem = memory();
    let mut queue = queue(&mem);
    push(&mut queue, &mem, 0, 0).unwrap();
    assert_eq!(queue.arm(&arm(ArmFor::Any, 0)), YES);
    assert_eq!(push(&mut queue, &mem, 1, 0), Ok(Notify::No), "the event has disarmed the queue");
    assert_eq!(queue.arm(&arm(ArmFor::Any, 2)), Notify::No);
    assert_eq!(push(&mut queue, &mem, 2, 0), Ok(YES));
}

#[test]
fn cq_armed_for_solicited_ignores_unsolicited_entries() {
    let mem = memory();
    let mut queue = queue(&mem);
    push(&mut queue, &mem, 0, 0).unwrap();
    assert_eq!(queue.arm(&arm(ArmFor::Solicited, 0)), Notify::No, "the unread entry is not solicited");
    assert_eq!(push(&mut queue, &mem, 1, 0), Ok(Notify::No));
    assert_eq!(queue.push(&cqe(2), true, &mem, || Some(0)), Ok(YES));
    assert_eq!(queue.arm(&arm(ArmFor::Solicited, 3)), Notify::No, "software has read entry 2");
    assert_eq!(queue.arm(&arm(ArmFor::Solicited, 2)), YES, "software has not read entry 2");
}

#[test]
fn solicited_arm_does_not_downgrade_armed_cq() {
    let mem = memory();
    let mut queue = queue(&mem);
    assert_eq!(queue.arm(&arm(ArmFor::Any, 0)), Notify::No);
    assert_eq!(queue.arm(&arm(ArmFor::Solicited, 0)), Notify::No);
    assert_eq!(push(&mut queue, &mem, 0, 0), Ok(YES));
    assert_eq!(queue.arm(&arm(ArmFor::Solicited, 1)), Notify::No);
    assert_eq!(queue.arm(&arm(ArmFor::Any, 1)), Notify::No);
    assert_eq!(push(&mut queue, &mem, 1, 0), Ok(YES));
}

/// Section 7.6: the sequence number counts the events that software has received.
#[test]
fn rearming_with_used_sequence_number_has_no_effect() {
    let mem = memory();
    let mut queue = queue(&mem);
    let numbered = |sequence, consumer| ArmCq { sequence, ..arm(ArmFor::Any, consumer) };
    assert_eq!(queue.arm(&numbered(1, 0)), Notify::No);
    assert_eq!(push(&mut queue, &mem, 0, 0), Ok(YES));
    queue.event_written(0);
    assert_eq!(queue.arm(&numbered(1, 0)), Notify::No, "software has not received the event yet");
    assert_eq!(push(&mut queue, &mem, 1, 0), Ok(Notify::No));
    assert_eq!(queue.arm(&numbered(2, 0)), YES, "software has received the event");
    queue.event_written(1);
    assert_eq!(queue.arm(&numbered(2, 1)), Notify::No);
    assert_eq!(queue.arm(&numbered(1, 1)), YES, "the number has wrapped");
}

#[test]
fn arming_after_lost_event_raises_event() {
    let mem = memory();
    let mut queue = queue(&mem);
    assert_eq!(queue.arm(&arm(ArmFor::Any, 0)), Notify::No);
    assert_eq!(push(&mut queue, &mem, 0, 0), Ok(YES));
    assert_eq!(queue.arm(&arm(ArmFor::Any, 0)), YES, "the event was not written");
}

#[test]
fn error_cqe_counts_as_solicited() {
    let mem = memory();
    let mut queue = queue(&mem);
    queue.arm(&arm(ArmFor::Solicited, 0));
    let outcome = Outcome::Failed { send: true, syndrome: Syndrome::Flushed, vendor: 0 };
    let entry = Cqe { outcome, ..cqe(0) };
    assert_eq!(queue.push(&entry, true, &mem, || Some(0)), Ok(YES));
}

#[test]
fn overwritten_solicited_entry_counts_as_read() {
    const ENTRIES: u64 = 4;
    let is_unread = |entry, consumer, producer| is_unread(entry, consumer, producer, ENTRIES);
    assert!(is_unread(7, 7, 9) && is_unread(7, 7, 11) && !is_unread(7, 8, 9));
    assert!(is_unread(u32::MAX, u32::MAX, 3) && !is_unread(u32::MAX, 0, 3), "the indices wrap");
    for later in [1 << 31, 3 << 30, u32::MAX] {
        assert!(!is_unread(7, later, later), "software has read all {later:#x} entries");
    }
}

#[test]
fn resizing_keeps_producer_index() {
    let mem = memory();
    let mut queue = queue(&mem);
    (0..6).for_each(|count| assert!(push(&mut queue, &mem, count, count).is_ok()));
    let mut larger = memory();
    larger.key = Lkey::new(0x22);
    queue.arm(&arm(ArmFor::Any, 6));
    queue.resize(&ResizeCq { start: 0, log_entries: 3, lkey: larger.key }, Some(3)).unwrap();
    assert_eq!(push(&mut queue, &larger, 6, 3), Ok(YES), "the queue is still armed");
    assert_eq!(larger.get::<LEN>(6 * LEN), cqe(6).emit());
}

#[test]
fn rejects_resize_if_unread_entries_do_not_fit() {
    let mem = memory();
    let mut queue = queue(&mem);
    (0..3).for_each(|count| assert!(push(&mut queue, &mem, count, 0).is_ok()));
    let resize = ResizeCq { start: 0, log_entries: 1, lkey: mem.key };
    assert_eq!(queue.resize(&resize, Some(0)).unwrap_err().status, CmdStatus::BadSize);
    assert_eq!(queue.row().entries, 4);
    assert!(queue.resize(&resize, Some(1)).is_ok());
}
