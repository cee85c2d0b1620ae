use card::memory::queue::testing::Region;
use protocol::hca::mthca::wqe::DataSegment;
use protocol::ids::{Lkey, Va};
use smallvec::smallvec;

use super::*;

const SLOT: u32 = 64;

fn context(mem: &Region) -> Srqc {
    Srqc {
        log_slots: 2,
        srqn: Srqn::new(0x11),
        lkey: mem.key,
        page: 3,
        record: 32764,
        log_slot: 6,
        pd: mem.pd,
        limit: 0,
    }
}

/// Creates a queue with four slots, which are chained in the order 0, 2, 1, 3.
fn chain() -> (Region, SharedReceiveQueue) {
    let mem = Region::new(4 * SLOT as usize);
    for (slot, successor) in [(0, 2), (2, 1), (1, 3), (3, 0)] {
        let data = smallvec![DataSegment { len: 10 + slot, lkey: Lkey::new(0x1800), va: Va::new(0x7f00) }];
        let wqe = RecvWqe { successor: successor * SLOT, data };
        mem.put((slot * SLOT) as usize, &wqe.emit(SLOT as usize));
    }
    let queue = SharedReceiveQueue::new(context(&mem));
    (mem, queue)
}

fn taken(fetch: Fetch<RecvRequest>) -> Option<(u64, u32)> {
    match fetch {
        Fetch::Ready(request) => Some((request.wr_id, request.sges[0].len)),
        Fetch::Empty => None,
        other => panic!("{other:?}"),
    }
}

#[test]
fn requests_are_fetched_in_link_order() {
    let (mem, mut queue) = chain();
    assert_eq!(queue.take(&mem, || Some(0)), Fetch::Empty);
    for expected in [(0, 10), (128, 12), (64, 11)] {
        assert_eq!(taken(queue.take(&mem, || Some(3))), Some(expected));
    }
    assert_eq!(queue.take(&mem, || Some(3)), Fetch::Empty);
    assert_eq!(taken(queue.take(&mem, || Some(4))), Some((192, 13)));
    assert_eq!(queue.query(Some(5))[0x1e..0x24], [0, 1, 0, 0, 0, 4]);
}

#[test]
fn limit_event_is_raised_only_once() {
    let (mem, mut queue) = chain();
    queue.arm(2);
    // This call is the first to read the record, which covers three requests.
    assert!(!queue.passes_limit(|| Some(3)));
    assert!(taken(queue.take(&mem, || Some(3))).is_some());
    assert!(!queue.passes_limit(|| Some(3)), "two requests are pending");
    assert!(taken(queue.take(&mem, || Some(3))).is_some());
    // A fourth request has been posted.
    assert!(!queue.passes_limit(|| Some(4)));
    assert!(taken(queue.take(&mem, || Some(4))).is_some());
    assert!(queue.passes_limit(|| Some(4)), "one request is pending");
    assert!(taken(queue.take(&mem, || Some(4))).is_some());
    assert!(!queue.passes_limit(|| Some(4)), "the limit is disarmed");
}

#[test]
fn srq_fails_after_link_outside_queue() {
    let (mem, mut queue) = chain();
    let wqe = RecvWqe { successor: 4 * SLOT, data: smallvec![] };
    mem.put(0, &wqe.emit(SLOT as usize));
    assert!(matches!(queue.take(&mem, || Some(2)), Fetch::Ready(_)));
    assert_eq!(queue.take(&mem, || Some(2)), Fetch::Broken);
}

#[test]
fn rejected_request_is_consumed() {
    const INLINE: [u8; 4] = [0x80, 0, 0, 4];
    let (mem, mut queue) = chain();
    mem.put(16, &INLINE);
    assert!(matches!(queue.take(&mem, || Some(2)), Fetch::Refused { wr_id: 0, .. }));
    assert_eq!(taken(queue.take(&mem, || Some(2))), Some((128, 12)));
}
