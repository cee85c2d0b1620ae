use card::memory::queue::testing::Region;
use engine::Sge;
use protocol::hca::jingzhao::wqe::{DataSegment, RECV_VALID, TERMINATOR};
use protocol::ids::{Lkey, Pdn, Va};
use smallvec::smallvec;

use super::*;

const NOW: Instant = Instant::ZERO;

/// Returns the key data of a QP whose receive queue has four 64-byte slots.
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

/// Returns a slot as posted by the user library.
fn library(len: u32) -> Vec<u8> {
    RecvWqe { data: smallvec![unit(len)] }.emit(64)
}

/// Returns a slot as posted by the kernel driver: permanently linked, without the valid bit, and with a terminator that
/// contains the invalid key.
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
fn slots_are_fetched_in_order_and_wrap() {
    let (mem, mut queue) = queue(QueueOptions::default());
    for count in 0..10 {
        let at = count as usize % 4 * 64;
        assert_eq!(queue.next(NOW, &mem), Fetch::Empty);
        mem.put(at, &library(100 + count));
        assert_eq!(lens(queue.next(NOW, &mem)), (at as u64, vec![100 + count]));
    }
}

#[test]
fn request_contains_scatter_list_from_slot() {
    let (mem, mut queue) = queue(QueueOptions::default());
    mem.put(0, &library(4096));
    let sge = Sge { va: Va::new(0x7f00_1234_6000), lkey: Lkey::new(0x2_0005), len: 4096 };
    let sges: SmallVec<[Sge; 4]> = smallvec![sge];
    assert_eq!(queue.next(NOW, &mem), Fetch::Ready(RecvRequest { wr_id: 0, sges }));
}

#[test]
fn full_slot_does_not_need_terminator() {
    let (mem, mut queue) = queue(QueueOptions::default());
    mem.put(0, &RecvWqe { data: smallvec![unit(1), unit(2), unit(3)] }.emit(64));
    mem.put(64, &library(9));
    assert_eq!(lens(queue.next(NOW, &mem)), (0, vec![1, 2, 3]));
}

#[test]
fn slot_with_valid_bit_is_fetched_only_once() {
    let (mem, mut queue) = queue(QueueOptions::default());
    for slot in 0..4 {
        mem.put(slot * 64, &library(1));
    }
    for _ in 0..4 {
        assert!(matches!(queue.next(NOW, &mem), Fetch::Ready(_)));
    }
    assert_eq!(queue.next(NOW, &mem), Fetch::Empty);
    assert_eq!(mem.get::<16>(0), [0; 16]);
}

#[test]
fn kernel_slot_is_not_fetched_again_until_refilled() {
    let (mem, mut queue) = queue(QueueOptions::default());
    for slot in 0..4 {
        mem.put(slot * 64, &kernel(1));
    }
    for _ in 0..4 {
        assert!(matches!(queue.next(NOW, &mem), Fetch::Ready(_)));
    }
    assert_eq!(queue.next(NOW, &mem), Fetch::Empty);
    mem.put(16, &unit(77).emit_le());
    assert_eq!(lens(queue.next(NOW, &mem)), (0, vec![77]));
}

#[test]
fn uncleared_slots_are_fetched_once_per_lap() {
    let keep = QueueOptions { rq_clear: false, ..QueueOptions::default() };
    let (mem, mut queue) = queue(keep);
    for slot in 0..4 {
        mem.put(slot * 64, &kernel(1));
    }
    for lap in 0..3 {
        for _ in 0..4 {
            assert!(matches!(queue.next(NOW, &mem), Fetch::Ready(_)), "lap {lap}");
        }
        assert_eq!(queue.next(NOW, &mem), Fetch::Empty, "lap {lap}");
    }
    let (mem, mut queue) = self::queue(QueueOptions::default());
    mem.read_only.set(true);
    (0..4).for_each(|slot| mem.put(slot * 64, &library(1)));
    let given = std::iter::from_fn(|| matches!(queue.next(NOW, &mem), Fetch::Ready(_)).then_some(())).count();
    assert_eq!(given, 4);
}

/// Section 6.8 (J-08): the length of a user queue's region determines the number of slots, and the region can become
/// shorter while the queue is in use.
#[test]
fn uncleared_slots_of_shortened_queue_are_flushed() {
    let (mem, mut queue) = self::queue(QueueOptions::default());
    (0..4).for_each(|slot| mem.put(slot * 64, &library(1)));
    mem.read_only.set(true);
    (0..3).for_each(|_| assert!(matches!(queue.next(NOW, &mem), Fetch::Ready(_))));
    queue.configure(&RdQpRst { rq_len: 128, ..rst() }, &mem);
    let flushed =
        std::iter::from_fn(|| matches!(queue.next_flushed(NOW, &mem), Fetch::Ready(_)).then_some(()));
    assert!(flushed.take(100).count() <= 2, "the flush must end after one pass around the ring");
}

#[test]
fn slot_without_valid_bit_is_fetched_on_first_pass() {
    let keep = QueueOptions { rq_clear: false, ..QueueOptions::default() };
    let (mem, mut queue) = queue(keep);
    let mut slot = library(5);
    slot[..16].fill(0);
    (0..4).for_each(|index| mem.put(index * 64, &slot));
    for index in 0..4 {
        assert_eq!(lens(queue.next(NOW, &mem)), (index * 64, vec![5]));
    }
    assert_eq!(queue.next(NOW, &mem), Fetch::Empty);
    queue.reset();
    queue.configure(&rst(), &mem);
    assert_eq!(lens(queue.next(NOW, &mem)), (0, vec![5]), "RESET starts a new first pass");
}

#[test]
fn slot_being_written_is_read_again() {
    let (mem, mut queue) = queue(QueueOptions::default());
    mem.put(0, &[RECV_VALID]);
    let fill = |bytes: &mut [u8]| bytes[16..32].copy_from_slice(&unit(8).emit_le());
    *mem.later.borrow_mut() = Some((3, Box::new(fill)));
    assert_eq!(lens(queue.next(NOW, &mem)), (0, vec![8]));
}

#[test]
fn bare_valid_bit_posts_empty_receive() {
    let (mem, mut queue) = queue(QueueOptions::default());
    mem.put(0, &[RECV_VALID]);
    assert_eq!(lens(queue.next(NOW, &mem)), (0, vec![]));
}

#[test]
fn inline_data_in_receive_is_rejected() {
    let (mem, mut queue) = queue(QueueOptions::default());
    mem.put(0, &library(1));
    mem.put(19, &[0x80]);
    assert_eq!(queue.next(NOW, &mem), Fetch::Refused { wr_id: 0, status: Status::LocalQpOperation });
    assert_eq!(queue.next(NOW, &mem), Fetch::Empty);
}

#[test]
fn unreadable_queue_is_broken_but_missing_queue_is_empty() {
    let (mut mem, mut queue) = queue(QueueOptions::default());
    mem.pd = Pdn::new(4);
    assert_eq!(queue.next(NOW, &mem), Fetch::Broken);
    assert_eq!(RecvQueue::new(QueueOptions::default()).next(NOW, &mem), Fetch::Empty);
}

#[test]
fn stale_slots_are_skipped_if_valid_bit_is_required() {
    let options = QueueOptions { rq_valid_bit: true, ..QueueOptions::default() };
    for (usr_page, posted) in [(1, false), (0, true)] {
        let (mem, mut queue) = queue(options);
        queue.configure(&RdQpRst { usr_page, ..rst() }, &mem);
        for slot in [kernel(64), [&[0; 16], &library(64)[16..]].concat()] {
            mem.put(0, &slot);
            queue.reset();
            queue.configure(&RdQpRst { usr_page, ..rst() }, &mem);
            assert_eq!(matches!(queue.next(NOW, &mem), Fetch::Ready(_)), posted, "UAR page {usr_page}");
        }
        mem.put(0, &library(64));
        queue.reset();
        queue.configure(&RdQpRst { usr_page, ..rst() }, &mem);
        assert_eq!(lens(queue.next(NOW, &mem)), (0, vec![64]));
    }
}

/// Returns the key data of an RC QP that belongs to the user library.
fn library_rst() -> RdQpRst {
    RdQpRst { usr_page: 1, service: Some(ServiceType::Rc), state: Some(QpState::Init), ..rst() }
}

/// Creates a user-library queue in INIT. The valid bit is required, and no slot has been used.
fn of_library() -> (Region, RecvQueue) {
    let options = QueueOptions { rq_valid_bit: true, ..QueueOptions::default() };
    let (mem, mut queue) = queue(options);
    queue.configure(&library_rst(), &mem);
    queue.prepare(&mem);
    (mem, queue)
}

/// Returns the stores with which the library posts a receive, in program order. Each store is an offset in the slot and
/// the bytes to write. If `data` has fewer than `longest` elements, a terminator follows them.
fn stores(data: &[DataSegment], longest: usize) -> Vec<(usize, Vec<u8>)> {
    let mut stores = vec![(0, vec![RECV_VALID, 0, 0, 0]), (4, vec![0; 4]), (8, vec![0; 4])];
    let units = data.iter().map(DataSegment::emit_le).chain((data.len() < longest).then_some([0; 16]));
    for (at, unit) in (16..).step_by(16).zip(units) {
        for word in [0..4, 4..8, 8..16] {
            stores.push((at + word.start, unit[word].to_vec()));
        }
    }
    stores
}

fn post(mem: &Region, slot: usize, data: &[DataSegment], longest: usize) {
    for (at, bytes) in stores(data, longest) {
        mem.put(slot * 64 + at, &bytes);
    }
}

/// Updates a slot as the library does when it polls the completion.
fn reap_recv(mem: &Region, slot: usize) {
    mem.put(slot * 64, &[0; 16]);
}

#[test]
fn receive_is_posted_by_its_last_store() {
    for longest in 1..=3 {
        for len in 1..=longest {
            let (mem, mut queue) = of_library();
            // Two consecutive receives with lists of maximum length reveal the maximum list length.
            let full: Vec<_> = (1..).take(longest).map(unit).collect();
            (0..2).for_each(|slot| post(&mem, slot, &full, longest));
            for slot in 0..2 {
                assert_eq!(lens(queue.next(NOW, &mem)).1.len(), longest);
                reap_recv(&mem, slot);
            }
            for count in 2..10u32 {
                let slot = count as usize % 4;
                let data: Vec<_> = (100 * count..).take(len).map(unit).collect();
                for (at, bytes) in stores(&data, longest) {
                    assert_eq!(queue.next(NOW, &mem), Fetch::Empty, "{len} of {longest}, up to byte {at:#x}");
                    mem.put(slot * 64 + at, &bytes);
                }
                let expected = data.iter().map(|unit| unit.len).collect();
                assert_eq!(lens(queue.next(NOW, &mem)), (slot as u64 * 64, expected), "{len} of {longest}");
                reap_recv(&mem, slot);
            }
        }
    }
}

#[test]
fn empty_receive_and_address_zero_are_posted() {
    let (mem, mut queue) = of_library();
    let zero = DataSegment { va: Va::new(0), ..unit(7) };
    for lap in 0..3 {
        for (slot, data) in [(0, &[][..]), (1, &[zero]), (2, &[]), (3, &[zero, zero])] {
            post(&mem, slot, data, 3);
            assert_eq!(lens(queue.next(NOW, &mem)).1.len(), data.len(), "slot {slot} of lap {lap}");
            reap_recv(&mem, slot);
        }
    }
}

/// Lists of maximum length have no terminator, but a receive posted before RTR is known to be complete.
#[test]
fn receive_posted_before_rtr_determines_list_length() {
    for longest in 0..=3usize {
        let (mem, mut queue) = of_library();
        let data: Vec<_> = (1..).take(longest).map(unit).collect();
        post(&mem, 0, &data, longest);
        queue.configure(&RdQpRst { state: Some(QpState::Rtr), ..library_rst() }, &mem);
        for count in 0..9 {
            assert_eq!(lens(queue.next(NOW, &mem)).1.len(), longest, "receive {count}");
            reap_recv(&mem, count % 4);
            assert_eq!(queue.next(NOW, &mem), Fetch::Empty);
            post(&mem, (count + 1) % 4, &data, longest);
        }
    }
}

#[test]
fn only_rc_receives_wait_for_settle_time() {
    for longest in 1..=2usize {
        let data: Vec<_> = (1..).take(longest).map(unit).collect();
        let (mem, mut queue) = of_library();
        // Write all elements except the last.
        post(&mem, 0, &data[..longest - 1], longest - 1);
        assert_eq!(queue.next(NOW, &mem), Fetch::Empty);
        post(&mem, 0, &data, longest);
        let at = |time: Duration| NOW + time;
        let tick = Duration::from_nanos(1);
        assert_eq!(queue.next(at(tick), &mem), Fetch::Empty);
        assert_eq!(queue.next(at(SETTLE_TIME), &mem), Fetch::Empty, "the change restarted the settle time");
        assert_eq!(lens(queue.next(at(SETTLE_TIME + tick), &mem)).1.len(), longest);
        post(&mem, 1, &data, longest);
        assert_eq!(
            lens(queue.next(at(SETTLE_TIME + tick), &mem)).1.len(),
            longest,
            "the first list determined the length"
        );

        let (mem, mut queue) = of_library();
        queue.configure(&RdQpRst { service: Some(ServiceType::Uc), ..library_rst() }, &mem);
        for slot in 0..3 {
            post(&mem, slot, &data, longest);
            assert_eq!(lens(queue.next(NOW, &mem)).1.len(), longest);
        }
    }
}

#[test]
fn settle_time_starts_at_first_poll() {
    let at = |time: Duration| NOW + time;
    for longest in 1..=2usize {
        let data: Vec<_> = (1..).take(longest).map(unit).collect();
        let (mem, mut queue) = of_library();
        assert!(queue.watch(NOW, &mem), "the list length is still unknown");
        post(&mem, 0, &data, longest);
        assert!(queue.watch(NOW, &mem));
        assert_eq!(lens(queue.next(at(SETTLE_TIME), &mem)).1.len(), longest);
        assert!(!queue.watch(at(SETTLE_TIME), &mem), "the list length is known");
        for slot in 1..4 {
            post(&mem, slot, &data, longest);
            assert_eq!(lens(queue.next(at(SETTLE_TIME), &mem)).1.len(), longest, "slot {slot}");
        }
    }
}

/// The virtual CPU is preempted after software has written only some elements of the list.
#[test]
fn growing_list_is_not_fetched() {
    let (mem, mut queue) = of_library();
    let data = [unit(1), unit(2)];
    post(&mem, 0, &data[..1], 1);
    queue.watch(NOW, &mem);
    post(&mem, 0, &data, 2);
    queue.watch(NOW + SETTLE_TIME, &mem);
    assert_eq!(queue.next(NOW + SETTLE_TIME, &mem), Fetch::Empty);
    assert_eq!(lens(queue.next(NOW + 2 * SETTLE_TIME, &mem)).1, [1, 2]);
}

#[test]
fn flushed_receive_is_fetched_immediately() {
    let (mem, mut queue) = of_library();
    post(&mem, 0, &[unit(1)], 1);
    assert_eq!(queue.next(NOW, &mem), Fetch::Empty);
    assert_eq!(lens(queue.next_flushed(NOW, &mem)), (0, vec![1]));
    assert_eq!(queue.next_flushed(NOW, &mem), Fetch::Empty);
}

#[test]
fn only_rc_queues_with_valid_bits_are_watched() {
    let (mem, mut queue) = of_library();
    queue.configure(&RdQpRst { service: Some(ServiceType::Ud), ..library_rst() }, &mem);
    assert!(!queue.watch(NOW, &mem), "UD does not wait for the settle time");
    let (mem, mut queue) = self::queue(QueueOptions::default());
    assert!(!queue.watch(NOW, &mem), "the queue does not require the valid bit");
    assert!(!RecvQueue::new(QueueOptions::default()).watch(NOW, &mem), "the QP has no receive queue");
}

/// When the library links a slot to the next receive, it sets the slot's valid bit again, even if the slot has been
/// consumed.
#[test]
fn linking_consumed_slot_does_not_repost_it() {
    let (mem, mut queue) = of_library();
    post(&mem, 0, &[unit(1)], 1);
    queue.configure(&RdQpRst { state: Some(QpState::Rtr), ..library_rst() }, &mem);
    for slot in 0..4 {
        post(&mem, slot, &[unit(1)], 1);
        assert_eq!(lens(queue.next(NOW, &mem)).1, [1]);
        mem.put(slot * 64, &[RECV_VALID, 1, 0, 0, 2]);
    }
    (0..9).for_each(|_| assert_eq!(queue.next(NOW, &mem), Fetch::Empty));
    (0..4).for_each(|slot| reap_recv(&mem, slot));
    post(&mem, 0, &[unit(5)], 1);
    assert_eq!(lens(queue.next(NOW, &mem)), (0, vec![5]));
}

#[test]
fn stale_receives_are_ignored_after_reset() {
    let (mem, mut queue) = of_library();
    (0..4).for_each(|slot| post(&mem, slot, &[unit(1)], 3));
    assert!(matches!(queue.next(NOW, &mem), Fetch::Ready(_)));
    queue.reset();
    queue.configure(&library_rst(), &mem);
    queue.prepare(&mem);
    assert_eq!(queue.next(NOW, &mem), Fetch::Empty);
}

#[test]
fn unprepared_large_queue_accepts_receives() {
    let options = QueueOptions { rq_valid_bit: true, ..QueueOptions::default() };
    let mut queue = RecvQueue::new(options);
    let mem = Region::new(32 << 20);
    queue.configure(&RdQpRst { usr_page: 1, rq_len: 32 << 20, ..rst() }, &mem);
    queue.prepare(&mem);
    assert_eq!(mem.get::<16>(16), [0; 16]);
    post(&mem, 0, &[unit(3)], 1);
    assert_eq!(lens(queue.next(NOW, &mem)), (0, vec![3]));
}

/// Returns an RC queue on its first pass, and its memory. The queue's key is the only one that exists.
fn rc_queue() -> (Region, RecvQueue) {
    let (mem, mut queue) = queue(QueueOptions::default());
    queue.configure(&RdQpRst { service: Some(ServiceType::Rc), ..rst() }, &mem);
    (mem, queue)
}

fn with_key(key: u32) -> DataSegment {
    DataSegment { lkey: Lkey::new(key), ..unit(100) }
}

/// Software stores an element's length, key and address in this order. In this test, it then sets the valid bit.
#[test]
fn list_being_written_is_not_fetched() {
    let (mem, mut queue) = rc_queue();
    let element = with_key(0x21).emit_le();
    for written in [4, 8] {
        mem.put(16, &element[..written]);
        assert_eq!(queue.next(NOW, &mem), Fetch::Empty, "{written} bytes are written");
    }
    mem.put(16, &element);
    mem.put(0, &[RECV_VALID]);
    assert_eq!(lens(queue.next(NOW, &mem)), (0, vec![100]));
}

#[test]
fn list_without_valid_bit_is_fetched_at_once_if_key_exists() {
    let (mem, mut queue) = rc_queue();
    mem.put(16, &with_key(0x21).emit_le());
    assert_eq!(lens(queue.next(NOW, &mem)), (0, vec![100]));
}

#[test]
fn list_without_valid_bit_must_settle_if_key_is_unknown() {
    let (mem, mut queue) = rc_queue();
    mem.put(16, &with_key(0x55).emit_le());
    assert_eq!(queue.next(NOW, &mem), Fetch::Empty);
    assert_eq!(queue.next_due(), Some(NOW + SETTLE_TIME));
    assert_eq!(lens(queue.next(NOW + SETTLE_TIME, &mem)), (0, vec![100]));
}
