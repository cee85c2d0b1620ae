use std::net::Ipv4Addr;

use card::identity::Identity;
use card::memory::queue::testing::Region;
use engine::{Fence, Remote, SendOp};
use protocol::hca::jingzhao::qpc::ServiceType;
use protocol::hca::jingzhao::wqe::{DataSegments, Link};
use protocol::ids::{Lkey, MacAddr, Pdn, Rkey, Va};
use protocol::roce::{Imm, IpAddrs};
use smallvec::smallvec;

use super::*;

const QPN: Qpn = Qpn::new(0x7_0005);
const SEND: u8 = 0x0a;
const WRITE_IMM: u8 = 0x09;

fn addresses() -> Addresses {
    Addresses { own: Identity::from_lid(Lid::new(1)), peers: Vec::new(), default_peer: None }
}

/// Returns the key data of a kernel QP whose send queue has eight 128-byte slots.
fn sst() -> RdQpSst {
    RdQpSst {
        pd: Pdn::new(3),
        sq_lkey: Lkey::new(0x21),
        sq_len: 1024,
        log_sq_slot: 7,
        service: Some(ServiceType::Rc),
        qkey: Qkey::new(0x55),
        ..RdQpSst::default()
    }
}

fn user() -> RdQpSst {
    RdQpSst { usr_page: 1, ..sst() }
}

struct Bench {
    mem: Region,
    queue: SendQueue,
    sst: RdQpSst,
}

impl Bench {
    fn new(sst: RdQpSst, options: QueueOptions) -> Self {
        let mem = Region::new(sst.sq_len as usize);
        let mut queue = SendQueue::new(options);
        queue.configure(&sst, &mem);
        Self { mem, queue, sst }
    }

    fn kernel() -> Self {
        Self::new(sst(), QueueOptions::default())
    }

    fn ring_doorbell(&mut self, head: u32, opcode: u8, size: u8) {
        self.queue
            .queue_doorbell(
                SendDoorbell { head, fence: false, opcode, qpn: QPN, size },
                &DoorbellPool::default(),
            )
            .unwrap();
    }

    fn next(&mut self) -> Fetch<SendRequest> {
        let sender = Sender { qpn: QPN, sst: self.sst, rlid: Lid::new(2) };
        self.queue.next(&sender, RdEncap::default, &self.mem, &addresses(), |_| {})
    }

    /// Fetches the next WQE, which must be valid, and returns its offset.
    fn next_offset(&mut self) -> u32 {
        match self.next() {
            Fetch::Ready(request) => WorkTag::from_bits(request.wr_id).wqe(),
            other => panic!("{other:?}"),
        }
    }

    /// Writes a one-byte SEND at `offset`. If `link` is given, the SEND is linked to another WQE.
    fn send_at(&self, offset: usize, link: Option<Link>) {
        let wqe = SendWqe {
            next: NextUnit { link, ..NextUnit::default() },
            operation: Operation::Send { imm: None },
            data: WqeData::Segments(smallvec![unit(1)]),
        };
        self.mem.put(offset, &wqe.emit());
    }
}

fn unit(len: u32) -> DataSegment {
    DataSegment { len, lkey: Lkey::new(0x2_0005), va: Va::new(0x7f00_1234_6000) }
}

fn link(address: u32) -> Option<Link> {
    Some(Link { address, opcode: SEND, size: 2, fence: false, dbd: true })
}

fn refused(fetch: Fetch<SendRequest>) -> u32 {
    match fetch {
        Fetch::Refused { wr_id, status: Status::LocalQpOperation } => WorkTag::from_bits(wr_id).wqe(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn documented_write_wqe_links_to_next_send() {
    let mut bench = Bench::kernel();
    // Example WQE from section 14.8.
    bench.mem.put(
        0,
        &[
            0x0a, 0x02, 0x00, 0x00, 0x82, 0x00, 0x00, 0x00, 0x08, 0x00, 0x00, 0x00, 0x11, 0x22, 0x33,
            0x44, //
            0x00, 0x00, 0xbb, 0xaa, 0x00, 0x7f, 0x00, 0x00, 0x77, 0x07, 0x00, 0x00, 0x00, 0x00, 0x00,
            0x00, //
            0x00, 0x10, 0x00, 0x00, 0x05, 0x00, 0x02, 0x00, 0x00, 0x60, 0x34, 0x12, 0x00, 0x7f, 0x00, 0x00,
        ],
    );
    bench.send_at(128, None);
    bench.ring_doorbell(0, WRITE_IMM, 3);
    let Fetch::Ready(request) = bench.next() else { panic!() };
    let remote = Remote { va: Va::new(0x7f00_aabb_0000), rkey: Rkey::new(0x777) };
    assert_eq!(request.op, SendOp::Write { remote, imm: Some(Imm([0x11, 0x22, 0x33, 0x44])) });
    let data = Sge { va: Va::new(0x7f00_1234_6000), lkey: Lkey::new(0x2_0005), len: 4096 };
    assert_eq!(request.payload, Payload::Sges(smallvec![data]));
    assert!(request.fence == Fence::None && !request.solicited && request.ud.is_none());
    let tag = WorkTag::from_bits(request.wr_id);
    assert_eq!((tag.wqe(), tag.opcode(), tag.signalled(), tag.remote_lid()), (0, 0x09, true, Lid::new(2)));

    assert_eq!(bench.next_offset(), 128);
    assert_eq!(bench.next(), Fetch::Empty);
}

#[test]
fn free_running_head_selects_slot_on_every_lap() {
    let mut bench = Bench::kernel();
    for slot in 0..8 {
        bench.send_at(slot * 128, None);
    }
    for count in 0..100 {
        bench.ring_doorbell(count * 8, SEND, 2);
        assert_eq!(bench.next_offset(), count % 8 * 128);
    }
}

#[test]
fn doorbells_stay_in_arrival_order() {
    let mut bench = Bench::kernel();
    for slot in [0, 1, 2] {
        bench.send_at(slot * 128, None);
    }
    bench.send_at(0, link(24));
    bench.send_at(384, None);
    bench.ring_doorbell(0, SEND, 2);
    bench.ring_doorbell(8, SEND, 2);
    assert_eq!([bench.next_offset(), bench.next_offset(), bench.next_offset()], [0, 384, 128]);
    assert!(!bench.queue.has_work());
}

#[test]
fn wqe_wraps_around_queue_end() {
    let mut bench = Bench::kernel();
    let wqe = SendWqe {
        next: NextUnit::default(),
        operation: Operation::Send { imm: None },
        data: WqeData::Segments((1..=15).map(unit).collect::<DataSegments>()),
    }
    .emit();
    bench.mem.put(896, &wqe[..128]);
    bench.mem.put(0, &wqe[128..]);
    bench.ring_doorbell(56, SEND, 16);
    let Fetch::Ready(request) = bench.next() else { panic!() };
    assert_eq!(request.payload.len(), (1..=15).sum::<u64>());
}

#[test]
fn inline_data_is_copied_from_wqe() {
    let mut bench = Bench::kernel();
    let payload: Vec<u8> = (0..40).collect();
    let wqe = SendWqe {
        next: NextUnit { solicited: true, ..NextUnit::default() },
        operation: Operation::Send { imm: None },
        data: WqeData::Inline(&payload),
    };
    bench.mem.put(0, &wqe.emit());
    bench.ring_doorbell(0, SEND, 4);
    let Fetch::Ready(request) = bench.next() else { panic!() };
    assert_eq!(request.payload, Payload::Inline(SmallVec::from_slice(&payload)));
    assert!(request.solicited);
}

#[test]
fn fence_comes_from_doorbell_or_link() {
    let mut bench = Bench::kernel();
    bench.send_at(0, link(8).map(|link| Link { fence: true, ..link }));
    bench.send_at(128, None);
    bench.ring_doorbell(0, SEND, 2);
    let fences: Vec<_> = std::iter::from_fn(|| match bench.next() {
        Fetch::Ready(request) => Some(request.fence),
        _ => None,
    })
    .collect();
    assert_eq!(fences, [Fence::None, Fence::Reads]);
}

#[test]
fn user_link_is_followed_only_once() {
    let mut bench = Bench::new(user(), QueueOptions::default());
    bench.send_at(0, link(8));
    bench.send_at(128, None);
    bench.ring_doorbell(0, SEND, 2);
    assert_eq!([bench.next_offset(), bench.next_offset()], [0, 128]);
    assert_eq!(bench.mem.get::<8>(0), [0; 8]);
    // The library reuses the slot for a WQE that ends a batch. It does not rewrite the slot's first eight bytes, which
    // held the link.
    bench.ring_doorbell(64, SEND, 2);
    assert_eq!(bench.next_offset(), 0);
    assert_eq!(bench.next(), Fetch::Empty);
}

#[test]
fn links_are_not_cleared_in_kernel_queue_or_without_option() {
    let keep = QueueOptions { clear_links: false, ..QueueOptions::default() };
    for (sst, options) in [(sst(), QueueOptions::default()), (user(), keep)] {
        let mut bench = Bench::new(sst, options);
        bench.send_at(0, link(8));
        bench.ring_doorbell(0, SEND, 2);
        assert_eq!(bench.next_offset(), 0);
        assert_ne!(bench.mem.get::<8>(0), [0; 8]);
    }
}

#[test]
fn wqes_are_fetched_from_read_only_queue() {
    let mut bench = Bench::new(user(), QueueOptions::default());
    bench.mem.read_only.set(true);
    bench.send_at(0, link(8));
    bench.send_at(128, None);
    bench.ring_doorbell(0, SEND, 2);
    assert_eq!([bench.next_offset(), bench.next_offset()], [0, 128]);
}

#[test]
fn circular_chain_yields_one_wqe_per_call() {
    let mut bench = Bench::kernel();
    bench.send_at(0, link(0));
    bench.ring_doorbell(0, SEND, 2);
    for _ in 0..1000 {
        assert_eq!(bench.next_offset(), 0);
    }
    assert!(bench.queue.has_work());
}

#[test]
fn wqe_with_invalid_size_fails_and_chain_continues() {
    for size in [0, 65, 255] {
        let mut bench = Bench::kernel();
        bench.send_at(0, link(8));
        bench.send_at(128, None);
        bench.ring_doorbell(0, SEND, size);
        assert_eq!(refused(bench.next()), 0);
        assert_eq!(bench.next_offset(), 128);
    }
}

#[test]
fn wqe_of_up_to_64_granules_can_be_posted() {
    let mut bench = Bench::kernel();
    let wqe = SendWqe {
        next: NextUnit::default(),
        operation: Operation::Send { imm: None },
        data: WqeData::Segments((1..64).map(unit).collect()),
    };
    bench.mem.put(0, &wqe.emit());
    for size in [63, 64] {
        bench.ring_doorbell(0, SEND, size);
        let Fetch::Ready(request) = bench.next() else { panic!("size {size} was refused") };
        let Payload::Sges(sges) = request.payload else { panic!("no gather list") };
        assert_eq!(sges.len(), usize::from(size) - 1, "every granule after the next unit is an element");
    }
}

#[test]
fn unsupported_operation_fails_and_chain_continues() {
    let mut bench = Bench::new(RdQpSst { service: Some(ServiceType::Uc), ..sst() }, QueueOptions::default());
    bench.send_at(0, link(8));
    bench.send_at(128, None);
    bench.ring_doorbell(0, 0x10, 3);
    assert_eq!(refused(bench.next()), 0);
    assert_eq!(bench.next_offset(), 128);
}

#[test]
fn fetch_from_unreadable_queue_returns_broken() {
    let mut bench = Bench::kernel();
    bench.ring_doorbell(0, SEND, 2);
    bench.mem.key = Lkey::new(0x22);
    assert_eq!(bench.next(), Fetch::Broken);
    assert_eq!(bench.next(), Fetch::Empty);
}

#[test]
fn pending_doorbells_are_limited_by_slots() {
    let mut bench = Bench::kernel();
    for slot in 0..8 {
        bench.ring_doorbell(slot * 8, SEND, 2);
    }
    let pool = DoorbellPool::default();
    let more = SendDoorbell { head: 64, fence: false, opcode: SEND, qpn: QPN, size: 2 };
    assert_eq!(bench.queue.queue_doorbell(more, &pool), Err(DoorbellOverflowError::Queue { slots: 8 }));
    bench.send_at(0, None);
    bench.next_offset();
    assert_eq!(bench.queue.queue_doorbell(more, &pool), Ok(()));
    assert!(
        SendQueue::new(QueueOptions::default()).queue_doorbell(more, &pool).is_err(),
        "a QP without a send queue accepts no doorbell"
    );
}

#[test]
fn reset_discards_doorbells_and_links() {
    let mut bench = Bench::kernel();
    bench.send_at(0, link(8));
    bench.ring_doorbell(0, SEND, 2);
    bench.ring_doorbell(8, SEND, 2);
    bench.next_offset();
    bench.queue.reset();
    assert!(!bench.queue.has_work());
    assert_eq!(bench.next(), Fetch::Empty);
}

#[test]
fn sq_addr_index_counts_positions_in_slots() {
    let index = QueueOptions { sq_addr: SqAddr::Index, ..QueueOptions::default() };
    let mut bench = Bench::new(sst(), index);
    bench.send_at(128, link(4));
    bench.send_at(256, None);
    bench.ring_doorbell(1, SEND, 2);
    assert_eq!([bench.next_offset(), bench.next_offset()], [128, 256]);
}

#[test]
fn sq_addr_auto_detects_doorbell_unit() {
    let auto = QueueOptions { sq_addr: SqAddr::Auto, ..QueueOptions::default() };
    for heads in [[0, 1, 2, 3], [0, 8, 16, 24]] {
        let mut bench = Bench::new(sst(), auto);
        let offsets = heads.map(|head| {
            (0..4).for_each(|slot| bench.send_at(slot * 128, None));
            bench.ring_doorbell(head, SEND, 2);
            bench.next_offset()
        });
        assert_eq!(offsets, [0, 128, 256, 384]);
    }
}

/// Creates a queue that the kernel driver has filled. Slots 0 to 3 and slots 4 to 7 each contain a chain of linked
/// WQEs, although the driver also rings a doorbell for each WQE.
fn linked_late(late_link: bool) -> Bench {
    let options = QueueOptions { sq_addr: SqAddr::Index, late_link, ..QueueOptions::default() };
    let bench = Bench::new(sst(), options);
    for slot in 0..8 {
        let next = (slot + 1) % 8;
        bench.send_at(slot * 128, if next == 0 { None } else { link(u32::try_from(next * 2).unwrap()) });
    }
    bench.send_at(3 * 128, None);
    bench
}

#[test]
fn late_link_option_prevents_repeated_execution() {
    for (late_link, expected) in
        [(false, vec![0, 128, 256, 384, 128, 256, 384, 256, 384, 384]), (true, vec![0, 128, 256, 384])]
    {
        let mut bench = linked_late(late_link);
        (0..4).for_each(|head| bench.ring_doorbell(head, SEND, 2));
        let offsets: Vec<u32> = std::iter::from_fn(|| match bench.next() {
            Fetch::Ready(request) => Some(WorkTag::from_bits(request.wr_id).wqe()),
            _ => None,
        })
        .collect();
        assert_eq!(offsets, expected, "late_link {late_link}");
    }
}

#[test]
fn skipped_slots_are_executed_on_next_lap() {
    let mut bench = linked_late(true);
    bench.ring_doorbell(0, SEND, 2);
    assert_eq!([bench.next_offset(), bench.next_offset()], [0, 128]);
    // The doorbell for slot 1 arrives while the chain is still being executed.
    bench.ring_doorbell(1, SEND, 2);
    assert_eq!([bench.next_offset(), bench.next_offset()], [256, 384]);
    // The doorbells for slots 2 and 3 arrive after the chain has ended.
    bench.ring_doorbell(2, SEND, 2);
    bench.ring_doorbell(3, SEND, 2);
    assert_eq!(bench.next(), Fetch::Empty);
    (0..8).for_each(|slot| bench.send_at(slot * 128, None));
    for head in [4, 5, 6, 7, 0, 1, 2, 3] {
        bench.ring_doorbell(head, SEND, 2);
        assert_eq!(bench.next_offset(), head * 128);
    }
}

#[test]
fn doorbell_after_linked_batch_is_not_skipped() {
    let options = QueueOptions { late_link: true, ..QueueOptions::default() };
    let mut bench = Bench::new(sst(), options);
    // The user library rings one doorbell per batch and does not link batches to each other. Each lap fills the ring.
    for lap in 0..3 {
        for first in [0, 4] {
            for slot in first..first + 4 {
                let next = u32::try_from(slot + 1).unwrap() * 8;
                bench.send_at(slot * 128, if slot % 4 == 3 { None } else { link(next) });
            }
            let head = u32::try_from(first).unwrap();
            bench.ring_doorbell(lap * 64 + head * 8, SEND, 2);
            assert_eq!([(); 4].map(|()| bench.next_offset()), [0, 1, 2, 3].map(|slot| (head + slot) * 128));
        }
    }
    assert_eq!(bench.next(), Fetch::Empty);
}

#[test]
fn datagram_goes_to_ud_unit_destination() {
    let mut bench = Bench::new(RdQpSst { service: Some(ServiceType::Ud), ..sst() }, QueueOptions::default());
    let to =
        UdUnit { dlid: Lid::new(7), dqpn: Qpn::new(0x12), qkey: Qkey::new(0x1111_1111), ..UdUnit::default() };
    for (to, qkey) in [(to, Qkey::new(0x1111_1111)), (UdUnit { qkey: Qkey::new(0), ..to }, Qkey::new(0x55))] {
        let wqe = SendWqe {
            next: NextUnit::default(),
            operation: Operation::Datagram { imm: None, to },
            data: WqeData::Segments(smallvec![unit(64)]),
        };
        bench.mem.put(0, &wqe.emit());
        bench.ring_doorbell(0, SEND, 5);
        let Fetch::Ready(request) = bench.next() else { panic!() };
        let ud = request.ud.unwrap();
        assert_eq!((ud.qpn, ud.qkey), (Qpn::new(0x12), qkey));
        assert_eq!(ud.path.dst_mac, MacAddr::from_lid(Lid::new(7)));
        let (src, dst) = (Ipv4Addr::new(10, 77, 0, 1), Ipv4Addr::new(10, 77, 0, 7));
        assert_eq!(ud.path.ip, IpAddrs::V4 { src, dst });
        assert_eq!(WorkTag::from_bits(request.wr_id).remote_lid(), Lid::new(7));
    }
}

#[test]
fn datagram_without_destination_is_rejected() {
    let mut bench = Bench::new(RdQpSst { service: Some(ServiceType::Ud), ..sst() }, QueueOptions::default());
    let wqe = SendWqe {
        next: NextUnit::default(),
        operation: Operation::Datagram { imm: None, to: UdUnit::default() },
        data: WqeData::Inline(b""),
    };
    bench.mem.put(0, &wqe.emit());
    bench.ring_doorbell(0, SEND, 5);
    assert_eq!(refused(bench.next()), 0);
}

#[test]
fn exhausted_pool_leaves_reserved_doorbell_slots() {
    let sst = RdQpSst { sq_len: 1 << 18, ..sst() };
    let mut bench = Bench::new(sst, QueueOptions::default());
    let doorbell = SendDoorbell { head: 0, fence: false, opcode: SEND, qpn: QPN, size: 2 };
    bench.send_at(0, None);
    let mut pool = DoorbellPool::default();
    pool.update(0, POOLED_DOORBELLS);
    for _ in 0..RESERVED_DOORBELLS {
        bench.queue.queue_doorbell(doorbell, &pool).unwrap();
    }
    assert_eq!(bench.queue.queue_doorbell(doorbell, &pool), Err(DoorbellOverflowError::Device));
    assert_eq!(bench.queue.pooled_doorbells(), 0, "reserved slots are not in the pool");

    pool.update(1024, 0);
    let before = bench.queue.pooled_doorbells();
    (RESERVED_DOORBELLS..1024).for_each(|_| bench.queue.queue_doorbell(doorbell, &pool).unwrap());
    pool.update(before, bench.queue.pooled_doorbells());
    assert_eq!(bench.queue.queue_doorbell(doorbell, &pool), Ok(()), "16 of the 1024 slots are reserved");
    let before = bench.queue.pooled_doorbells();
    (0..=1024).for_each(|_| assert_eq!(bench.next_offset(), 0));
    assert_eq!(bench.queue.pooled_doorbells(), 0, "a drained queue returns its slots");
    pool.update(before, 0);
    assert!(!pool.is_exhausted());
}
