//! Frames sent by an SQ (mlx5 interface, sections 16.1 and 16.5).

use card::fabric::TxBatch;
use card::frontend::testing::pattern;
use card::nic::receive::{self, ChecksumStatus};
use protocol::hca::mlx5::sq::QueriedSq;
use protocol::net::layers::Layers;

use super::bench::UP;
use super::*;
use crate::limits::netdev::MAX_FRAME;
use crate::netdev::steer::Link;

const LOCAL_QP_OPERATION: u8 = 2;
const LOCAL_PROTECTION: u8 = 4;
const FLUSHED: u8 = 5;
const BOTH: EthernetSegment = EthernetSegment {
    l4_checksum: true,
    l3_checksum: true,
    mss: 0,
    metadata: 0,
    insert_vlan: false,
    inline_len: 0,
    vlan_tag: 0,
};

/// Returns packet headers with wrong checksums and zero lengths.
fn headers(is_v6: bool, protocol: u8) -> Vec<u8> {
    let mut headers = plain(2, 14);
    if is_v6 {
        headers[12..].copy_from_slice(&[0x86, 0xdd]);
        headers.extend([0x60, 0, 0, 0, 0, 0, protocol, 64]);
        headers.extend([1; 32]);
    } else {
        headers[12..].copy_from_slice(&[8, 0]);
        headers
            .extend([0x45, 0, 0, 0, 0xff, 0xff, 0x40, 0, 64, protocol, 0xde, 0xad, 10, 0, 0, 1, 10, 0, 0, 2]);
    }
    headers.extend([0x12, 0x34, 0x56, 0x78]);
    match protocol {
        // All flags are set.
        6 => headers.extend([0xff, 0xff, 0xff, 0xf0, 0, 0, 0, 9, 0x50, 0xff, 1, 0, 0xbe, 0xef, 0, 0]),
        _ => headers.extend([0, 0, 0xbe, 0xef]),
    }
    headers
}

/// Sets the length fields of a frame.
fn with_lengths(mut frame: Vec<u8>) -> Vec<u8> {
    let total = u16::try_from(frame.len() - 14).unwrap();
    let (field, len, udp) = if frame[12] == 8 { (16, total, 34) } else { (18, total - 40, 54) };
    frame[field..field + 2].copy_from_slice(&len.to_be_bytes());
    let is_udp = [frame[23], frame[20]].contains(&17);
    if is_udp {
        let len = u16::try_from(frame.len() - udp).unwrap();
        frame[udp + 4..udp + 6].copy_from_slice(&len.to_be_bytes());
    }
    frame
}

fn is_valid(frame: &[u8]) -> bool {
    let checksums = receive::verify(frame, &Layers::parse(frame).unwrap());
    (checksums.ip, checksums.l4) == (ChecksumStatus::Valid, ChecksumStatus::Valid)
}

#[test]
fn frame_combines_inline_header_and_data() {
    let mut net = Net::new();
    let frame = plain(2, 200);
    for split in [0, 1, 2, 3, 18, 60] {
        net.driver.poke(DATA, &frame[split..]);
        net.post(&net.wqe(EthernetSegment::default(), &frame[..split], 200 - split));
        assert_eq!(net.driver.frames(), [frame.as_slice()], "{split} inline bytes");
    }
    let done = results(&net.send_cqes());
    assert_eq!(done.iter().map(|(_, syndrome)| *syndrome).collect::<Vec<_>>(), [0; 6]);
}

#[test]
fn short_frames_are_padded() {
    let mut net = Net::new();
    net.post(&net.wqe(EthernetSegment::default(), &plain(2, 20), 0));
    let [frame] = <[_; 1]>::try_from(net.driver.frames()).unwrap();
    assert_eq!((frame.len(), &frame[..20]), (60, &plain(2, 20)[..]));
    assert!(frame[20..].iter().all(|byte| *byte == 0));
}

#[test]
fn only_signalled_wqes_generate_cqes() {
    let mut net = Net::new();
    let control = net.control(Opcode::Nop);
    for completion in [0, 1, 2, 3] {
        net.post(&FrameWqe {
            control: ControlSegment { completion, ..control },
            operation: FrameOperation::Nop,
        });
    }
    assert!(net.driver.frames().is_empty());
    assert_eq!(results(&net.send_cqes()), [(2, 0), (3, 0)]);
}

#[test]
fn checksums_are_computed_from_scratch() {
    let mut net = Net::new();
    for (is_v6, protocol) in [(false, 6), (false, 17), (true, 6), (true, 17)] {
        let frame = with_lengths([headers(is_v6, protocol), pattern(101, 7)].concat());
        net.post(&net.wqe(BOTH, &frame, 0));
        let [sent] = <[_; 1]>::try_from(net.driver.frames()).unwrap();
        assert!(is_valid(&sent), "{is_v6} {protocol}");
        net.post(&net.wqe(EthernetSegment::default(), &frame, 0));
        assert_eq!(net.driver.frames(), [frame]);
    }
}

#[test]
fn lso_segments_tcp_with_valid_headers() {
    for is_v6 in [false, true] {
        let mut net = Net::new();
        let (header, payload) = (headers(is_v6, 6), pattern(2500, 1));
        net.driver.poke(DATA, &payload);
        net.post(&net.wqe(EthernetSegment { mss: 1000, ..BOTH }, &header, 2500));
        let frames = net.driver.frames();
        let tcp = header.len() - 20;
        assert_eq!(
            frames.iter().map(|frame| frame.len() - header.len()).collect::<Vec<_>>(),
            [1000, 1000, 500]
        );
        assert_eq!(
            frames.iter().flat_map(|frame| &frame[header.len()..]).copied().collect::<Vec<_>>(),
            payload
        );
        assert!(frames.iter().all(|frame| is_valid(frame)));
        let sequences = frames.iter().map(|frame| u32::from_be_bytes(output(&frame[tcp + 4..])));
        assert_eq!(sequences.collect::<Vec<_>>(), [0xffff_fff0, 0x3d8, 0x7c0]);
        // FIN and PSH are set only in the last segment, and CWR is set only in the first.
        assert_eq!(frames.iter().map(|frame| frame[tcp + 13]).collect::<Vec<_>>(), [0xf6, 0x76, 0x7f]);
        if !is_v6 {
            let ids = frames.iter().map(|frame| u16::from_be_bytes(output(&frame[18..])));
            assert_eq!(ids.collect::<Vec<_>>(), [0xffff, 0, 1]);
        }
        assert_eq!(results(&net.send_cqes()), [(0, 0)]);
    }
}

#[test]
fn lso_segments_udp_with_valid_lengths() {
    let mut net = Net::new();
    net.driver.poke(DATA, &pattern(10_240, 1));
    net.post(&net.wqe(EthernetSegment { mss: 1000, ..BOTH }, &headers(false, 17), 10_240));
    let frames = net.driver.frames();
    assert_eq!(frames.len(), 11);
    assert!(frames.iter().all(|frame| is_valid(frame)));
}

/// Inserts a label stack with the given number of labels in front of the IP header.
fn with_labels(frame: &[u8], labels: usize) -> Vec<u8> {
    let stack = (1..=labels).flat_map(|label| [0x45, 0x60, u8::from(label == labels), 64]);
    frame[..12].iter().copied().chain([0x88, 0x47]).chain(stack).chain(frame[14..].iter().copied()).collect()
}

/// Returns the frame without its `labels` labels.
fn without_labels(frame: &[u8], labels: usize, is_v6: bool) -> Vec<u8> {
    let ether_type = if is_v6 { [0x86, 0xdd] } else { [8, 0] };
    [&frame[..12], &ether_type, &frame[14 + 4 * labels..]].concat()
}

#[test]
fn checksums_are_computed_behind_mpls_labels() {
    let mut net = Net::new();
    for (is_v6, protocol, labels) in [(false, 6, 1), (false, 17, 2), (true, 6, 3), (true, 17, 30)] {
        let frame = with_lengths([headers(is_v6, protocol), pattern(101, 7)].concat());
        net.post(&net.wqe(BOTH, &with_labels(&frame, labels), 0));
        let [sent] = <[_; 1]>::try_from(net.driver.frames()).unwrap();
        assert!(is_valid(&without_labels(&sent, labels, is_v6)), "{is_v6} {protocol}");
    }
    // Without a last label, the frame is sent unchanged.
    let endless = [&plain(2, 14)[..12], &[0x88, 0x47], &[0x45, 0, 0, 64].repeat(50)].concat();
    net.post(&net.wqe(BOTH, &endless, 0));
    assert_eq!(net.driver.frames(), [endless]);
}

#[test]
fn lso_segments_tcp_behind_mpls_labels() {
    for is_v6 in [false, true] {
        let mut net = Net::new();
        let header = with_labels(&headers(is_v6, 6), 2);
        net.driver.poke(DATA, &pattern(2500, 1));
        net.post(&net.wqe(EthernetSegment { mss: 1000, ..BOTH }, &header, 2500));
        let frames = net.driver.frames();
        assert_eq!(frames.len(), 3);
        assert!(frames.iter().all(|frame| is_valid(&without_labels(frame, 2, is_v6))));
        assert_eq!(results(&net.send_cqes()), [(0, 0)]);
    }
}

/// Inserts a routing header whose first address is the final destination. The packet visits `fd00::7` first.
fn with_route(frame: &[u8], routing_type: u8) -> Vec<u8> {
    let (ether, [flow @ .., protocol, hops]) = (&frame[..14], *frame[14..22].first_chunk::<8>().unwrap());
    let (source, destination, rest) = (&frame[22..38], &frame[38..54], &frame[54..]);
    let next = [&[0xfd][..], &[0; 14], &[7]].concat();
    let len = u16::from_be_bytes([flow[4], flow[5]]);
    let len = if len == 0 { 0 } else { len + 40 };
    let flow = [&flow[..4], &len.to_be_bytes()].concat();
    let routing = [&[protocol, 4, routing_type, 1, 1, 0, 0, 0][..], destination, &next].concat();
    [ether, &flow, &[43, hops], source, &next, &routing, rest].concat()
}

/// Returns the frame as its final destination receives it, without the routing header.
fn without_route(frame: &[u8]) -> Vec<u8> {
    let len = u16::from_be_bytes(output(&frame[18..])) - 40;
    let (source, destination) = (&frame[22..38], &frame[62..78]);
    [&frame[..18], &len.to_be_bytes(), &[frame[54], frame[21]], source, destination, &frame[94..]].concat()
}

/// RFC 8200, section 8.1: the pseudo-header contains the final destination.
#[test]
fn checksums_cover_final_destination_of_route() {
    let mut net = Net::new();
    for (protocol, routing_type) in [(6, 2), (6, 4), (17, 2), (17, 4)] {
        let frame = with_lengths([headers(true, protocol), pattern(101, 7)].concat());
        let routed = with_route(&frame, routing_type);
        net.post(&net.wqe(BOTH, &routed, 0));
        let [sent] = <[_; 1]>::try_from(net.driver.frames()).unwrap();
        assert!(is_valid(&without_route(&sent)), "{protocol} {routing_type}");
        assert_eq!(sent[..94], routed[..94], "the headers before the transport header are unchanged");
    }
    // The final destination of other types is not known, so the checksum is left as it is.
    let frame = with_route(&with_lengths([headers(true, 6), pattern(101, 7)].concat()), 3);
    net.post(&net.wqe(BOTH, &frame, 0));
    assert_eq!(net.driver.frames(), [frame]);
}

/// RFC 8200, section 4.5: a routing header precedes the fragment header.
#[test]
fn checksum_of_fragment_behind_routing_header_is_unchanged() {
    let mut net = Net::new();
    let whole = with_lengths([headers(true, 6), pattern(101, 7)].concat());
    let first_of_many = [6, 0, 0, 1, 0, 0, 0, 9];
    let mut fragment = [&whole[..54], &first_of_many, &whole[54..]].concat();
    fragment[19] += 8;
    fragment[20] = 44;
    let frame = with_route(&fragment, 4);
    net.post(&net.wqe(BOTH, &frame, 0));
    assert_eq!(net.driver.frames(), [frame]);
}

#[test]
fn lso_segments_tcp_behind_routing_header() {
    let mut net = Net::new();
    let header = with_route(&headers(true, 6), 4);
    net.driver.poke(DATA, &pattern(2500, 1));
    net.post(&net.wqe(EthernetSegment { mss: 1000, ..BOTH }, &header, 2500));
    let frames = net.driver.frames();
    assert_eq!(frames.len(), 3);
    for frame in &frames {
        assert!(is_valid(&without_route(frame)));
        assert_eq!(frame[22..94], header[22..94]);
    }
    assert_eq!(results(&net.send_cqes()), [(0, 0)]);
}

#[test]
fn vlan_tag_is_inserted_after_addresses() {
    let mut net = Net::new();
    let frame = plain(2, 100);
    net.driver.poke(DATA, &frame);
    let segment = EthernetSegment { insert_vlan: true, vlan_tag: 0x6005, ..EthernetSegment::default() };
    net.post(&net.wqe(segment, &[], 100));
    assert_eq!(net.driver.frames(), [[&frame[..12], &[0x81, 0, 0x60, 5], &frame[12..]].concat()]);
}

#[test]
fn failed_wqe_moves_sq_to_error() {
    let mut net = Net::new();
    let frame = plain(2, 60);
    let bad_key =
        DataItem::Pointer(DataSegment { byte_count: 60, lkey: Lkey::new(0x100), va: Va::new(DATA) });
    let segment = EthernetSegment::default();
    let send = |data| FrameOperation::Send { segment, mss: None, header: &[], data };
    let lso = |header, data| FrameOperation::Send { segment, mss: NonZeroU16::new(100), header, data };
    let good = net.data(DATA, 60);
    let cases = [
        (Opcode::Send, send([bad_key].into_iter().collect()), LOCAL_PROTECTION),
        (Opcode::Send, send([net.data(DATA, 13)].into_iter().collect()), LOCAL_QP_OPERATION),
        (Opcode::Write, FrameOperation::Nop, LOCAL_QP_OPERATION),
        (Opcode::Lso, lso(&frame[..], [good].into_iter().collect()), LOCAL_QP_OPERATION),
        (Opcode::Lso, lso(&[], [good].into_iter().collect()), LOCAL_QP_OPERATION),
    ];
    for (opcode, operation, syndrome) in cases {
        net.post(&FrameWqe { control: net.control(opcode), operation });
        assert!(net.driver.frames().is_empty());
        assert_eq!(results(&net.send_cqes()), [(0, syndrome)], "{}", opcode.name());
        assert_eq!(net.sq_state(), Some(WorkQueueState::Error));
        // Later WQEs are flushed.
        net.post(&net.wqe(segment, &frame, 0));
        assert!(net.driver.frames().is_empty());
        assert_eq!(results(&net.send_cqes())[0].1, FLUSHED);
        let query = net.driver.ok(&Command::QuerySq(SqNumber { sqn: net.sqn }));
        assert_eq!(QueriedSq::parse(&output(&query)).context.state, 3);
        net.restart_sq();
        net.post(&net.wqe(segment, &frame, 0));
        assert_eq!(net.driver.frames(), [frame.as_slice()]);
        assert_eq!(results(&net.send_cqes()), [(0, 0)]);
        net.restart_sq();
    }
}

#[test]
fn lso_failure_in_later_segment_stops_sq() {
    let mut net = Net::new();
    let header = headers(false, 6);
    let mut wqe = net.wqe(EthernetSegment { mss: 100, ..BOTH }, &header, 150);
    if let FrameOperation::Send { data, .. } = &mut wqe.operation {
        data.push(DataItem::Pointer(DataSegment { byte_count: 60, lkey: Lkey::new(0x100), va: Va::new(0) }));
    }
    net.post(&wqe);
    assert_eq!(net.driver.frames().len(), 1);
    assert_eq!(results(&net.send_cqes()), [(0, LOCAL_PROTECTION)]);
}

/// Posts an LSO with three segments and sends the first.
fn start_lso(net: &mut Net) {
    net.post(&net.wqe(EthernetSegment { mss: 100, ..BOTH }, &headers(false, 6), 300));
    assert!(net.driver.next_frame().is_some());
}

/// Section 18.1: the driver waits until all posted WQEs have completed.
#[test]
fn lso_interrupted_by_error_state_is_flushed() {
    let mut net = Net::new();
    start_lso(&mut net);
    net.modify_sq(WorkQueueState::Error);
    assert!(net.driver.frames().is_empty());
    assert_eq!(results(&net.send_cqes()), [(0, FLUSHED)]);
    net.restart_sq();
    start_lso(&mut net);
    net.restart_sq();
    assert!(net.driver.frames().is_empty());
    assert!(net.send_cqes().is_empty(), "a reset drops WQEs without completing them");
}

#[test]
fn ready_to_ready_transition_continues_lso() {
    let mut net = Net::new();
    start_lso(&mut net);
    net.modify_sq(WorkQueueState::Ready);
    assert_eq!(net.driver.frames().len(), 2);
    assert_eq!(results(&net.send_cqes()), [(0, 0)]);
}

#[test]
fn sq_without_tis_does_not_send_frames() {
    let mut net = Net::new();
    net.sqn = net.create_sq(SqContext { tis_count: 0, ..net.sq_context() });
    net.modify_sq(WorkQueueState::Ready);
    net.post(&FrameWqe { control: net.control(Opcode::Nop), operation: FrameOperation::Nop });
    net.post(&net.wqe(EthernetSegment::default(), &plain(2, 60), 0));
    assert!(net.driver.frames().is_empty());
    assert_eq!(results(&net.send_cqes()), [(0, 0), (1, LOCAL_QP_OPERATION)]);
}

#[test]
fn oversized_frames_are_dropped_and_counted() {
    let mut net = Net::new();
    net.driver.link = Link { max_frame: 1518, ..UP };
    net.post(&net.wqe(EthernetSegment::default(), &plain(2, 14), 1504));
    net.post(&net.wqe(EthernetSegment::default(), &plain(2, 14), 1505));
    net.post(&net.wqe(EthernetSegment { mss: 1500, ..BOTH }, &headers(false, 6), 3000));
    assert_eq!(net.driver.frames().len(), 1);
    assert_eq!(results(&net.send_cqes()).iter().map(|done| done.1).collect::<Vec<_>>(), [0; 3]);
    let resources = net.driver.resources();
    let sent = resources.port.ethernet().unwrap().frames.sent;
    assert_eq!((resources.netdev.counters.tx_oversize, sent.unicast.packets), (2, 1));
}

/// Section 15.4: the driver accepts every MTU up to the largest in the PMTU register.
#[test]
fn fabrics_carry_frames_of_largest_mtu() {
    let mut net = Net::new();
    net.driver.link = Link { max_frame: MAX_FRAME, ..UP };
    net.post(&net.wqe(EthernetSegment::default(), &plain(2, 14), MAX_FRAME - 14));
    let frames = net.driver.frames();
    let mut batch = TxBatch::default();
    batch.buffer().extend_from_slice(&frames[0]);
    assert!(batch.commit_nic());
    assert_eq!(batch.bytes(), MAX_FRAME);
}

#[test]
fn frames_are_dropped_while_link_is_down() {
    let mut net = Net::new();
    net.driver.link.is_up = false;
    net.post(&net.wqe(EthernetSegment::default(), &plain(2, 60), 0));
    net.post(&FrameWqe { control: net.control(Opcode::Nop), operation: FrameOperation::Nop });
    assert!(net.driver.frames().is_empty());
    assert_eq!(net.send_cqes().len(), 2);
    assert_eq!(net.driver.resources().netdev.counters.tx_link_down, 1);
}

#[test]
fn sqs_send_in_turn() {
    let mut net = Net::new();
    let first = net.sqn;
    let segment = EthernetSegment { mss: 100, ..BOTH };
    net.post(&net.wqe(segment, &headers(false, 6), 300));
    let record = Iova::new(0x31_0080);
    let context = net.sq_context();
    let list = pages(SQ + 0x1000, 1);
    let queue = WorkQueue { record, ..context.queue };
    let create = CreateSq { context: SqContext { queue, ..context } };
    let made = net.driver.ok(&Command::CreateSq(create, Pages::parse(&list)));
    net.sqn = SqNumber::parse(&output(&made)).sqn;
    net.modify_sq(WorkQueueState::Ready);
    let wqe = net.wqe(EthernetSegment::default(), &plain(2, 70), 0).emit();
    net.driver.poke(SQ + 0x1000, &wqe);
    net.driver.poke(record.get() + 6, &2_u16.to_be_bytes());
    net.ring();
    assert_ne!(first, net.sqn);
    let lens: Vec<_> = net.driver.frames().iter().map(Vec::len).collect();
    assert_eq!(lens, [154, 70, 154, 154]);
}

/// Section 20, M-1: an SQ full of WQEs that do not send frames does not block the device.
#[test]
fn poll_executes_bounded_number_of_wqes() {
    let mut net = Net::new();
    let context = net.sq_context();
    let queue = WorkQueue { log_entries: 7, ..context.queue };
    let create = CreateSq { context: SqContext { queue, ..context } };
    let list = pages(SQ, 2);
    let created = net.driver.ok(&Command::CreateSq(create, Pages::parse(&list)));
    net.sqn = SqNumber::parse(&output(&created)).sqn;
    net.modify_sq(WorkQueueState::Ready);
    let nop = ControlSegment { completion: 0, size: 1, ..net.control(Opcode::Nop) };
    for slot in 0..128 {
        net.driver.poke(SQ + slot * 64, &nop.emit());
    }
    net.driver.poke(SQ_RECORD + 6, &128_u16.to_be_bytes());
    net.ring();
    for has_more in [true, false] {
        assert_eq!(net.driver.next_frame(), None);
        assert_eq!(net.driver.resources().netdev.has_more(), has_more);
    }
}

#[test]
fn doorbells_for_stopped_sqs_are_ignored() {
    let mut net = Net::new();
    let foreign = net.driver.alloc_uar();
    let doorbell = u64::from(net.sqn.get()) << 8;
    net.driver.ring(foreign, driver::SEND, &doorbell.to_be_bytes());
    net.driver.poke(SQ_RECORD + 6, &65_u16.to_be_bytes());
    net.ring();
    net.modify_sq(WorkQueueState::Reset);
    net.ring();
    let counts: Vec<_> = net.driver.monitor.ignored_counts().collect();
    assert_eq!(counts, [("foreign_page", 1), ("overflow", 1), ("sq_state", 1)]);
}

/// Section 7.4: a doorbell in a mapped page may have overwritten another queue's doorbell. The device must therefore
/// poll the records of all SQs that use the page.
#[test]
fn doorbell_for_unknown_queue_polls_sq_record() {
    let mut net = Net::of(Bench::mapped(), 1);
    assert!(net.driver.resources().uars.is_mapped(net.uar));
    let (sqn, frame) = (net.sqn, plain(2, 64));
    for number in 0..200 {
        let wqe = net.wqe(EthernetSegment::default(), &frame, 0);
        // `post` rings the doorbell of `net.sqn`. Use a number that no queue has.
        net.sqn = Sqn::new(0x77);
        net.post(&wqe);
        net.sqn = sqn;
        // Each WQE has two blocks.
        assert_eq!((net.driver.frames().len(), results(&net.send_cqes())), (1, vec![(2 * number, 0)]));
    }
    net.ring();
    assert_eq!(net.driver.frames().len(), 0, "the record is unchanged");
    net.modify_sq(WorkQueueState::Reset);
    net.ring();
    assert_eq!(net.driver.frames().len(), 0, "the record is older than the reset");
    assert_eq!(net.driver.monitor.doorbells().get("send"), Some(&200));
    assert_eq!(net.driver.monitor.ignored_counts().count(), 0);
    let destroyed = SqNumber { sqn };
    net.driver.ok(&Command::DestroySq(destroyed));
    net.ring();
    assert_eq!(net.driver.frames().len(), 0);
}

/// Section 16.1: without "flush in error", WQEs do not complete in the error state.
#[test]
fn sq_without_flush_in_error_completes_nothing() {
    for bench in [Bench::new(), Bench::mapped()] {
        let mut net = Net::of(bench, 1);
        let sqn = net.sqn;
        net.driver.ok(&Command::DestroySq(SqNumber { sqn }));
        net.sqn = net.create_sq(SqContext { flush_in_error: false, ..net.sq_context() });
        net.modify_sq(WorkQueueState::Ready);
        start_lso(&mut net);
        net.modify_sq(WorkQueueState::Error);
        net.post(&net.wqe(EthernetSegment::default(), &plain(2, 60), 0));
        assert!(net.driver.frames().is_empty());
        assert!(net.send_cqes().is_empty());
    }
}

/// Section 7.4: the driver resets a failed SQ without clearing its record. A doorbell of another queue on the page then
/// makes the device poll the record before the driver has posted a WQE.
#[test]
fn reset_sq_ignores_old_mapped_record() {
    let mut net = Net::of(Bench::mapped(), 1);
    let (sqn, frame) = (net.sqn, plain(2, 60));
    net.post(&net.wqe(EthernetSegment::default(), &frame, 0));
    assert_eq!((net.driver.frames().len(), net.send_cqes().len()), (1, 1));
    for state in [WorkQueueState::Error, WorkQueueState::Reset, WorkQueueState::Ready] {
        net.modify_sq(state);
    }
    net.sent = 0;
    net.sqn = Sqn::new(0x77);
    net.ring();
    assert_eq!((net.driver.frames().len(), net.send_cqes().len()), (0, 0));
    net.sqn = sqn;
    net.post(&net.wqe(EthernetSegment::default(), &frame, 0));
    assert_eq!((net.driver.frames(), results(&net.send_cqes())), (vec![frame], vec![(0, 0)]));
}

#[test]
fn unreadable_sq_moves_to_error() {
    let mut net = Net::new();
    let list = pages(0x8000_0000, 1);
    let command = Command::CreateSq(CreateSq { context: net.sq_context() }, Pages::parse(&list));
    net.sqn = SqNumber::parse(&output(&net.driver.ok(&command))).sqn;
    net.modify_sq(WorkQueueState::Ready);
    net.driver.poke(SQ_RECORD + 6, &1_u16.to_be_bytes());
    net.ring();
    assert!(net.driver.frames().is_empty());
    assert_eq!(net.sq_state(), Some(WorkQueueState::Error));
    assert!(net.send_cqes().is_empty());
}

#[test]
fn full_cq_moves_its_queues_to_error() {
    let mut net = Net::new();
    let nop = FrameWqe { control: net.control(Opcode::Nop), operation: FrameOperation::Nop };
    for _ in 0..65 {
        net.post(&nop);
        net.driver.frames();
    }
    assert_eq!(net.sq_state(), Some(WorkQueueState::Error));
    assert_eq!(net.rq_state(), Some(WorkQueueState::Ready), "the RQ uses another CQ");
}
