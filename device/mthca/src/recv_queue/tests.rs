use card::memory::queue::testing::Region;
use protocol::hca::mthca::qpc::Geometry;
use protocol::ids::{Lkey, Va};
use smallvec::smallvec;

use super::*;

/// Creates a queue of four 64-byte slots.
fn queue(mem: &Region) -> RecvQueue {
    let geometry = Geometry { log_slots: 2, log_slot: 6 };
    RecvQueue::new(WorkQueue { pd: mem.pd, lkey: mem.key, base: 0, geometry })
}

fn slot(len: u32) -> Vec<u8> {
    let data = smallvec![DataSegment { len, lkey: Lkey::new(0x1800), va: Va::new(0x7f00) }];
    RecvWqe { successor: 0, data }.emit(64)
}

fn offset(fetch: &Fetch<RecvRequest>) -> Option<u64> {
    match fetch {
        Fetch::Ready(request) => Some(request.wr_id),
        _ => None,
    }
}

#[test]
fn doorbell_record_posts_requests() {
    let mem = Region::new(256);
    (0..4u8).for_each(|n| mem.put(usize::from(n) * 64, &slot(100 + u32::from(n))));
    let mut queue = queue(&mem);
    assert_eq!(queue.take(&mem, || Some(0)), Fetch::Empty);
    let Fetch::Ready(first) = queue.take(&mem, || Some(3)) else { panic!("a request") };
    let sge = Sge { va: Va::new(0x7f00), lkey: Lkey::new(0x1800), len: 100 };
    assert_eq!((first.wr_id, &first.sges[..]), (0, &[sge][..]));
    // Requests that the record already covers are fetched without reading it again.
    for expected in [64, 128] {
        assert_eq!(offset(&queue.take(&mem, || panic!("read"))), Some(expected));
    }
    assert_eq!(queue.take(&mem, || Some(3)), Fetch::Empty);
    assert_eq!(offset(&queue.take(&mem, || Some(5))), Some(192));
    assert_eq!(offset(&queue.take(&mem, || panic!("read"))), Some(0));
}

#[test]
fn producer_counter_wraps_at_16_bits() {
    let mem = Region::new(256);
    (0..4).for_each(|n| mem.put(n * 64, &slot(1)));
    let mut queue = queue(&mem);
    for count in 1..=0x1_0005u32 {
        assert_eq!(offset(&queue.take(&mem, || Some(count & 0xffff))), Some(u64::from((count - 1) & 3) * 64));
    }
    assert_eq!(queue.taken(), 5);
}

#[test]
fn invalid_record_is_ignored() {
    let mem = Region::new(256);
    let mut queue = queue(&mem);
    for record in [None, Some(5), Some(0xffff)] {
        assert_eq!(queue.take(&mem, || record), Fetch::Empty);
    }
}

#[test]
fn inline_receive_fails_and_unreadable_queue_is_broken() {
    let mem = Region::new(256);
    let mut bytes = slot(1);
    bytes[16] = 0x80;
    mem.put(0, &bytes);
    let refused = Fetch::Refused { wr_id: 0, status: Status::LocalQpOperation };
    assert_eq!(queue(&mem).take(&mem, || Some(1)), refused);
    assert_eq!(queue(&mem).take(&Region::new(32), || Some(1)), Fetch::Broken);
}
