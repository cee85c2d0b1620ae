use card::memory::queue::testing::Region;
use protocol::hca::mthca::qpc::Geometry;
use protocol::hca::mthca::wqe::{DataSegment, Operation, WqeData};
use protocol::hca::operation::RemoteAddress;
use protocol::hca::qp::ServiceType;
use protocol::ids::{Lkey, Qpn, Rkey, Va};
use smallvec::smallvec;

use super::*;

const BASE: u32 = 0x400;
const SEND: u8 = 0x0a;
const WRITE: u8 = 0x08;

/// Creates a send queue with four 128-byte slots, located after a receive queue.
fn queue(mem: &Region, signal_all: bool) -> SendQueue {
    let geometry = Geometry { log_slots: 2, log_slot: 7 };
    let queue = WorkQueue { pd: mem.pd, lkey: mem.key, base: BASE, geometry };
    SendQueue::new(queue, QpKind::Service(ServiceType::Rc), signal_all)
}

fn memory() -> Region {
    Region::new(0x600)
}

fn wqe(operation: Operation, signalled: bool) -> Vec<u8> {
    let data = smallvec![DataSegment { len: 64, lkey: Lkey::new(0x1800), va: Va::new(0x7f00) }];
    let next = NextSegment { signalled, ..NextSegment::default() };
    SendWqe { next, operation, data: WqeData::Segments(data) }.emit()
}

fn send(signalled: bool) -> Vec<u8> {
    wqe(Operation::Send { imm: None }, signalled)
}

fn write() -> Vec<u8> {
    wqe(Operation::Write { remote: RemoteAddress { va: Va::new(8), rkey: Rkey::new(9) }, imm: None }, false)
}

/// Writes the WQE with index `count` to its slot and links it from the preceding slot, as software does.
fn post(mem: &Region, count: u16, opcode: u8, wqe: &[u8]) {
    let slot = |count: u16| BASE + u32::from(count & 3) * 128;
    // Rewriting a slot leaves its link, which describes the next WQE, unchanged.
    let (link, rest) = wqe.split_at(8);
    assert_eq!(link[..4], [0; 4]);
    mem.put(slot(count) as usize + 8, rest);
    let size = u8::try_from(wqe.len() / GRANULE).unwrap();
    let link = Link { address: slot(count), opcode, size, fence: false };
    let segment = NextSegment { link, ..NextSegment::default() }.emit();
    mem.put(slot(count.wrapping_sub(1)) as usize, &segment[..8]);
}

fn doorbell(first: u16, count: u8, opcode: u8, len: usize) -> SendDoorbell {
    let size = u8::try_from(len / GRANULE).unwrap();
    SendDoorbell { count, first, fence: false, opcode, qpn: Qpn::new(0x14), size }
}

/// Fetches WQEs until the queue is empty and returns the offset and opcode of each.
fn drain(queue: &mut SendQueue, mem: &Region) -> Vec<(u32, u8)> {
    std::iter::from_fn(|| match queue.take(mem) {
        Fetch::Ready(taken) => Some((taken.tag.wqe(), taken.tag.opcode())),
        Fetch::Empty => None,
        other => panic!("{other:?}"),
    })
    .collect()
}

#[test]
fn documented_doorbells_start_posted_wqes() {
    let mem = memory();
    let mut queue = queue(&mem, false);
    post(&mem, 0, SEND, &send(true));
    let accepted =
        queue.accept_doorbell(&SendDoorbell::parse([0x01, 0x00, 0x00, 0x0a, 0x00, 0x00, 0x14, 0x02]), None);
    assert_eq!(accepted, Ok(true));
    assert_eq!(drain(&mut queue, &mem), [(BASE, SEND)]);
    // One doorbell posts three WQEs. It describes the first, a WRITE; links describe the two SENDs that follow.
    post(&mem, 1, WRITE, &write());
    post(&mem, 2, SEND, &send(true));
    post(&mem, 3, SEND, &send(true));
    let bytes = [0x03, 0x00, 0x01, 0x08, 0x00, 0x00, 0x14, 0x03];
    assert_eq!(queue.accept_doorbell(&SendDoorbell::parse(bytes), None), Ok(true));
    assert_eq!(drain(&mut queue, &mem), [(BASE + 128, WRITE), (BASE + 256, SEND), (BASE + 384, SEND)]);
}

#[test]
fn record_may_be_ahead_of_doorbells() {
    let mem = memory();
    let mut queue = queue(&mem, false);
    for count in 0..3 {
        post(&mem, count, SEND, &send(false));
    }
    assert_eq!(queue.accept_doorbell(&doorbell(0, 1, SEND, 32), Some(3)), Ok(true));
    assert_eq!(drain(&mut queue, &mem).len(), 3);
    // The doorbells for the second and third WQEs arrive only now. They have no effect, even if the record that is read
    // along with them is outdated.
    assert_eq!(queue.accept_doorbell(&doorbell(1, 1, SEND, 32), Some(3)), Ok(false));
    assert_eq!(queue.accept_doorbell(&doorbell(2, 1, SEND, 32), Some(1)), Ok(false));
    assert_eq!(queue.take(&mem), Fetch::Empty);
    // A doorbell for a new WQE takes effect, even with an outdated record.
    post(&mem, 3, WRITE, &write());
    assert_eq!(queue.accept_doorbell(&doorbell(3, 1, WRITE, 48), Some(2)), Ok(true));
    assert_eq!(drain(&mut queue, &mem), [(BASE + 384, WRITE)]);
}

#[test]
fn doorbell_covers_earlier_lost_doorbells() {
    let mem = memory();
    let mut queue = queue(&mem, false);
    for count in 0..3 {
        post(&mem, count, SEND, &send(false));
    }
    assert_eq!(queue.accept_doorbell(&doorbell(2, 1, SEND, 32), None), Ok(true));
    assert_eq!(drain(&mut queue, &mem).len(), 3);
}

#[test]
fn ring_and_counters_wrap() {
    let mem = memory();
    let mut queue = queue(&mem, false);
    for count in 0..=u16::MAX {
        post(&mem, count, SEND, &send(false));
        assert_eq!(
            queue.accept_doorbell(
                &doorbell(count, 1, SEND, 32),
                Some(0xabcd_0000 | u32::from(count.wrapping_add(1)))
            ),
            Ok(true),
            "{count}"
        );
        assert_eq!(drain(&mut queue, &mem), [(BASE + u32::from(count & 3) * 128, SEND)]);
    }
    post(&mem, 0, WRITE, &write());
    assert_eq!(queue.accept_doorbell(&doorbell(0, 1, WRITE, 48), None), Ok(true));
    assert_eq!(drain(&mut queue, &mem), [(BASE, WRITE)]);
}

#[test]
fn doorbell_exceeding_queue_size_is_rejected() {
    let mem = memory();
    let mut queue = queue(&mem, false);
    assert_eq!(queue.accept_doorbell(&doorbell(0, 5, SEND, 32), Some(100)), Err(SqOverflowError(4)));
    assert_eq!(queue.take(&mem), Fetch::Empty);
}

#[test]
fn queue_or_wqe_can_request_completion() {
    let mem = memory();
    for (signal_all, signalled) in [(false, false), (false, true), (true, false)] {
        let mut queue = queue(&mem, signal_all);
        post(&mem, 0, SEND, &send(signalled));
        queue.accept_doorbell(&doorbell(0, 1, SEND, 32), None).unwrap();
        let Fetch::Ready(taken) = queue.take(&mem) else { panic!("expected a WQE") };
        assert_eq!(taken.tag.signalled(), signal_all || signalled);
    }
}

#[test]
fn invalid_wqes_fail_and_queue_continues() {
    let refused = |opcode: u8, len: usize| {
        let mem = memory();
        let mut queue = queue(&mem, false);
        post(&mem, 0, opcode, &send(false));
        post(&mem, 1, SEND, &send(false));
        queue.accept_doorbell(&doorbell(0, 2, opcode, len), None).unwrap();
        let Fetch::Refused { wr_id, status: Status::LocalQpOperation } = queue.take(&mem) else {
            panic!("expected the WQE to be refused");
        };
        assert_eq!(WorkTag::from_bits(wr_id).wqe(), BASE);
        assert_eq!(drain(&mut queue, &mem), [(BASE + 128, SEND)]);
    };
    // In order: an unknown opcode, a size of 0, a WQE larger than the slot, and a WQE too small for the operation.
    refused(0x1f, 32);
    refused(SEND, 0);
    refused(SEND, 144);
    refused(WRITE, 16);
}

#[test]
fn fetch_from_unreadable_queue_returns_broken() {
    let mem = memory();
    let mut queue = queue(&mem, false);
    queue.accept_doorbell(&doorbell(0, 1, SEND, 32), None).unwrap();
    assert_eq!(queue.take(&Region::new(0)), Fetch::Broken);
}
