use engine::Sge;
use protocol::hca::jingzhao::wqe::DataSegment;
use protocol::ids::{Lkey, Pdn, Va};
use smallvec::smallvec;

use super::*;
use crate::memory::queue::testing::Region;

/// A queue of four slots of 64 bytes.
fn rst() -> RdQpRst {
    RdQpRst { pd: Pdn::new(3), rq_lkey: Lkey::new(0x21), rq_len: 256, log_rq_slot: 6, ..RdQpRst::default() }
}

fn queue(options: QueueOptions) -> (Region, RecvQueue) {
    let mem = Region::new(256);
    let mut queue = RecvQueue::new(options);
    queue.configure(&rst(), &mem);
    (mem, queue)
}

fn unit(len: u32) -> DataSegment {
    DataSegment { len, lkey: Lkey::new(0x2_0005), va: Va::new(0x7f00_1234_6000) }
}

/// A slot as the user library posts it.
fn library(len: u32) -> Vec<u8> {
    RecvWqe { data: smallvec![unit(len)] }.emit(64)
}

/// A slot as the kernel driver posts it: linked for good, no valid bit, terminator with its invalid key.
fn kernel(len: u32) -> Vec<u8> {
    let mut slot = vec![0x80, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    slot.extend_from_slice(&unit(len).emit_le());
    slot.extend_from_slice(&TERMINATOR);
    slot.resize(64, 0);
    slot
}

fn lens(fetch: Fetch<RecvRequest>) -> (u64, Vec<u32>) {
    match fetch {
        Fetch::Ready(RecvRequest { wr_id, sges }) => (wr_id, sges.iter().map(|sge| sge.len).collect()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn slots_are_taken_in_order_and_round_the_end() {
    let (mem, mut queue) = queue(QueueOptions::default());
    for count in 0..10 {
        let at = count as usize % 4 * 64;
        assert_eq!(queue.next(&mem), Fetch::Empty);
        mem.put(at, &library(100 + count));
        assert_eq!(lens(queue.next(&mem)), (at as u64, vec![100 + count]));
    }
}

#[test]
fn a_request_has_the_slots_scatter_list() {
    let (mem, mut queue) = queue(QueueOptions::default());
    mem.put(0, &library(4096));
    let sge = Sge { va: Va::new(0x7f00_1234_6000), lkey: Lkey::new(0x2_0005), len: 4096 };
    let sges: SmallVec<[Sge; 4]> = smallvec![sge];
    assert_eq!(queue.next(&mem), Fetch::Ready(RecvRequest { wr_id: 0, sges }));
}

#[test]
fn a_slot_filled_to_its_end_needs_no_terminator() {
    let (mem, mut queue) = queue(QueueOptions::default());
    mem.put(0, &RecvWqe { data: smallvec![unit(1), unit(2), unit(3)] }.emit(64));
    mem.put(64, &library(9));
    assert_eq!(lens(queue.next(&mem)), (0, vec![1, 2, 3]));
}

#[test]
fn a_marked_slot_is_taken_once_even_before_software_reaps_it() {
    let (mem, mut queue) = queue(QueueOptions::default());
    for slot in 0..4 {
        mem.put(slot * 64, &library(1));
    }
    for _ in 0..4 {
        assert!(matches!(queue.next(&mem), Fetch::Ready(_)));
    }
    assert_eq!(queue.next(&mem), Fetch::Empty);
    assert_eq!(mem.get::<16>(0), [0; 16]);
}

#[test]
fn a_linked_slot_is_taken_once_and_again_when_it_is_filled_again() {
    let (mem, mut queue) = queue(QueueOptions::default());
    for slot in 0..4 {
        mem.put(slot * 64, &kernel(1));
    }
    for _ in 0..4 {
        assert!(matches!(queue.next(&mem), Fetch::Ready(_)));
    }
    assert_eq!(queue.next(&mem), Fetch::Empty);
    mem.put(16, &unit(77).emit_le());
    assert_eq!(lens(queue.next(&mem)), (0, vec![77]));
}

#[test]
fn slots_that_cannot_be_released_are_given_once_round() {
    let keep = QueueOptions { rq_clear: false, ..QueueOptions::default() };
    let (mem, mut queue) = queue(keep);
    for slot in 0..4 {
        mem.put(slot * 64, &kernel(1));
    }
    for lap in 0..3 {
        for _ in 0..4 {
            assert!(matches!(queue.next(&mem), Fetch::Ready(_)), "lap {lap}");
        }
        assert_eq!(queue.next(&mem), Fetch::Empty, "lap {lap}");
    }
    let (mem, mut queue) = self::queue(QueueOptions::default());
    mem.read_only.set(true);
    (0..4).for_each(|slot| mem.put(slot * 64, &library(1)));
    let given = std::iter::from_fn(|| matches!(queue.next(&mem), Fetch::Ready(_)).then_some(())).count();
    assert_eq!(given, 4);
}

#[test]
fn an_unmarked_slot_with_data_is_posted_on_the_first_pass_only() {
    let keep = QueueOptions { rq_clear: false, ..QueueOptions::default() };
    let (mem, mut queue) = queue(keep);
    let mut slot = library(5);
    slot[..16].fill(0);
    (0..4).for_each(|index| mem.put(index * 64, &slot));
    for index in 0..4 {
        assert_eq!(lens(queue.next(&mem)), (index * 64, vec![5]));
    }
    assert_eq!(queue.next(&mem), Fetch::Empty);
    queue.reset();
    queue.configure(&rst(), &mem);
    assert_eq!(lens(queue.next(&mem)), (0, vec![5]), "RESET begins a first pass");
}

#[test]
fn a_slot_that_is_being_filled_is_read_until_it_is() {
    let (mem, mut queue) = queue(QueueOptions::default());
    mem.put(0, &[RECV_VALID]);
    let fill = |bytes: &mut [u8]| bytes[16..32].copy_from_slice(&unit(8).emit_le());
    *mem.later.borrow_mut() = Some((3, Box::new(fill)));
    assert_eq!(lens(queue.next(&mem)), (0, vec![8]));
}

#[test]
fn a_marked_slot_that_stays_empty_is_a_receive_without_buffers() {
    let (mem, mut queue) = queue(QueueOptions::default());
    mem.put(0, &[RECV_VALID]);
    assert_eq!(lens(queue.next(&mem)), (0, vec![]));
}

#[test]
fn inline_data_in_a_receive_is_refused() {
    let (mem, mut queue) = queue(QueueOptions::default());
    mem.put(0, &library(1));
    mem.put(19, &[0x80]);
    assert_eq!(queue.next(&mem), Fetch::Refused { wr_id: 0, status: Status::LocalQpOperation });
    assert_eq!(queue.next(&mem), Fetch::Empty);
}

#[test]
fn a_queue_that_cannot_be_read_is_broken_and_none_is_empty() {
    let (mut mem, mut queue) = queue(QueueOptions::default());
    mem.pd = Pdn::new(4);
    assert_eq!(queue.next(&mem), Fetch::Broken);
    assert_eq!(RecvQueue::new(QueueOptions::default()).next(&mem), Fetch::Empty);
}

#[test]
fn where_the_valid_bit_decides_a_users_old_slots_are_not_posted() {
    let options = QueueOptions { rq_valid_bit: true, ..QueueOptions::default() };
    for (usr_page, posted) in [(1, false), (0, true)] {
        let (mem, mut queue) = queue(options);
        queue.configure(&RdQpRst { usr_page, ..rst() }, &mem);
        for slot in [kernel(64), [&[0; 16], &library(64)[16..]].concat()] {
            mem.put(0, &slot);
            queue.reset();
            queue.configure(&RdQpRst { usr_page, ..rst() }, &mem);
            assert_eq!(matches!(queue.next(&mem), Fetch::Ready(_)), posted, "UAR page {usr_page}");
        }
        mem.put(0, &library(64));
        queue.reset();
        queue.configure(&RdQpRst { usr_page, ..rst() }, &mem);
        assert_eq!(lens(queue.next(&mem)), (0, vec![64]));
    }
}
