//! Tests for frames that an RQ receives (mlx5 interface, sections 9.3, 16.2, 16.3 and 16.5).

use card::frontend::testing::pattern;
use card::net::PortStats;
use protocol::hca::mlx5::device::{Teardown, TeardownProfile};
use protocol::hca::mlx5::frame_cqe::{L3Type, L4Type};
use protocol::hca::mlx5::port_register::{CounterGroup, IeeeCounters};
use protocol::hca::mlx5::rq::rq_fields;
use protocol::hca::mlx5::tir::HashFields;
use protocol::net::checksum::Checksum;

use super::bench::UP;
use super::*;
use crate::netdev::steer::Link;

const LOCAL_PROTECTION: u8 = 4;
const FLUSHED: u8 = 5;
const TOEPLITZ: TirContext = TirContext {
    dispatch: 1,
    hash_function: 2,
    fields: HashFields {
        ipv6: false,
        udp: false,
        spi: false,
        destination_port: true,
        source_port: true,
        destination_ip: true,
        source_ip: true,
    },
    lro: 0,
    rqn: Rqn::new(0),
    symmetric: true,
    rqtn: Rqtn::new(0),
    multicast_loopback: false,
    unicast_loopback: false,
    domain: TransportDomain::new(0),
    key: [0x6d; 40],
};

/// Returns a TCP/IPv4 segment with valid checksums, followed by Ethernet padding.
fn segment(source_port: u16, payload: &[u8], padding: &[u8]) -> Vec<u8> {
    let mut frame = plain(2, 14);
    frame[12..].copy_from_slice(&[8, 0]);
    let len = u16::try_from(40 + payload.len()).unwrap();
    frame.extend([0x45, 0]);
    frame.extend(len.to_be_bytes());
    frame.extend([0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    frame.extend(source_port.to_be_bytes());
    frame.extend([0x13, 0x89, 0, 0, 0, 1, 0, 0, 0, 9, 0x50, 0x10, 1, 0, 0, 0, 0, 0]);
    frame.extend(payload);
    let header = Checksum::new().with(&frame[14..34]).value();
    frame[24..26].copy_from_slice(&header.to_be_bytes());
    let tcp = Checksum::new().with(&frame[26..34]).with_u16(6).with_u16(len - 20).with(&frame[34..]);
    frame[50..52].copy_from_slice(&tcp.value().to_be_bytes());
    frame.extend(padding);
    frame
}

#[test]
fn frame_is_scattered_across_data_segments() {
    let mut net = Net::with_data_segments(4);
    net.create_direct_tir();
    let frame = [plain(2, 14), pattern(8900, 5)].concat();
    let lens = [1664, 2048, 2048, 3262];
    let places = net.post_receive(&lens);
    net.driver.receive(&frame);
    let [cqe] = <[_; 1]>::try_from(net.received()).unwrap();
    assert_eq!((cqe.byte_count, cqe.wqe_counter, cqe.flow_tag), (8914, 0, 0x12_3456));
    let mut received = Vec::new();
    for (place, len) in places.iter().zip(lens) {
        received.extend(net.driver.peek(*place, len as usize));
    }
    assert_eq!(received[..8914], frame);
    // Bytes after the frame are unchanged.
    assert!(received[8914..].iter().all(|byte| *byte == 0));
}

#[test]
fn cqe_describes_tcp_segment() {
    let mut net = Net::new();
    net.create_direct_tir();
    for (payload, padding, l4_type) in
        [(&[][..], &[0xee; 6][..], L4Type::TcpEmptyAck), (&[1, 2, 3], &[], L4Type::TcpAckWithData)]
    {
        net.post_receive(&[1522]);
        let frame = segment(1, payload, padding);
        net.driver.receive(&frame);
        let [cqe] = <[_; 1]>::try_from(net.received()).unwrap();
        // The checksum does not cover padding.
        let sum = !Checksum::new().with(&frame[14..frame.len() - padding.len()]).value();
        assert_eq!((cqe.checksum, cqe.byte_count as usize), (sum, frame.len()));
        assert!(cqe.l2_ok && cqe.l3_ok && cqe.l4_ok && !cqe.vlan_stripped);
        assert_eq!((cqe.l3_type, cqe.l4_type), (L3Type::Ipv4.code(), l4_type.code()));
        assert_eq!((cqe.hashed_addresses, cqe.hashed_ports, cqe.rss_hash), (0, 0, 0));
    }
    for broken in [25, 51] {
        net.post_receive(&[1522]);
        let mut frame = segment(1, &[], &[]);
        frame[broken] ^= 1;
        net.driver.receive(&frame);
        let [cqe] = <[_; 1]>::try_from(net.received()).unwrap();
        assert_eq!((cqe.l3_ok, cqe.l4_ok), (broken != 25, broken != 51));
    }
}

#[test]
fn vlan_tag_is_stripped_unless_disabled() {
    let mut net = Net::new();
    net.create_direct_tir();
    let frame = segment(1, &[9; 60], &[]);
    let tagged = [&frame[..12], &[0x81, 0, 0x60, 5], &frame[12..]].concat();
    let [place] = net.post_receive(&[1522])[..] else { panic!() };
    net.driver.receive(&tagged);
    let [cqe] = <[_; 1]>::try_from(net.received()).unwrap();
    assert_eq!((cqe.vlan_stripped, cqe.vlan_tag, cqe.byte_count as usize), (true, 0x6005, frame.len()));
    assert!(cqe.l3_ok && cqe.l4_ok);
    assert_eq!(net.driver.peek(place, frame.len()), frame);

    let context = RqContext { keep_vlan: true, state: 1, ..RqContext::default() };
    let modify = ModifyRq { rqn: net.rqn, fields: rq_fields::VLAN_STRIP, context, ..ModifyRq::default() };
    net.driver.ok(&Command::ModifyRq(modify));
    let [place] = net.post_receive(&[1522])[..] else { panic!() };
    net.driver.receive(&tagged);
    let [kept] = <[_; 1]>::try_from(net.received()).unwrap();
    assert_eq!((kept.vlan_stripped, kept.byte_count as usize), (false, tagged.len()));
    assert_eq!(kept.checksum, cqe.checksum, "the checksum does not cover the tag");
    assert_eq!(net.driver.peek(place, tagged.len()), tagged);
}

#[test]
fn service_tag_is_not_stripped() {
    let mut net = Net::new();
    net.create_direct_tir();
    net.post_receive(&[1522]);
    let frame = plain(2, 60);
    net.driver.receive(&[&frame[..12], &[0x88, 0xa8, 0, 5], &frame[12..]].concat());
    let [cqe] = <[_; 1]>::try_from(net.received()).unwrap();
    assert_eq!((cqe.vlan_stripped, cqe.byte_count), (false, 64));
}

/// Section 18.2: once the driver has read the failure, it frees queues and buffers without destroying them.
#[test]
fn failed_device_neither_receives_nor_sends_frames() {
    let mut net = Net::new();
    let tirn = net.create_direct_tir();
    net.create_flow_table(0, 0x88b5, Destination::Tir(tirn));
    let frame = plain(2, 60);
    for has_failed in [false, false, true] {
        if has_failed {
            net.driver.fail();
            assert_eq!(net.driver.read(driver::QUEUE_LOW) >> 8 & 7, 1);
        }
        net.post_receive(&[1522]);
        net.driver.receive_from_wire(&frame);
        net.post(&net.wqe(EthernetSegment::default(), &frame[..14], 46));
        let sent = net.driver.poll_frame();
        let counts = (net.received().len(), sent.is_some(), net.send_cqes().len());
        assert_eq!(counts, if has_failed { (0, false, 0) } else { (1, true, 1) });
    }
}

#[test]
fn frames_without_posted_receive_are_dropped_and_counted() {
    let mut net = Net::new();
    net.create_direct_tir();
    net.driver.receive(&plain(2, 60));
    assert_eq!((net.received(), net.out_of_buffer()), (vec![], 1));
    net.post_receive(&[1522]);
    net.driver.receive(&plain(2, 60));
    assert_eq!((net.received().len(), net.out_of_buffer()), (1, 1));
    let clear = Command::QueryQCounter(QueryQCounter { clear: true, set: net.set });
    net.driver.ok(&clear);
    assert_eq!(net.out_of_buffer(), 0);
}

#[test]
fn frame_longer_than_receive_buffer_is_dropped() {
    let mut net = Net::new();
    net.create_direct_tir();
    net.post_receive(&[1000]);
    net.driver.receive(&plain(2, 1001));
    assert!(net.received().is_empty());
    // The receive is still posted.
    net.driver.receive(&plain(2, 1000));
    assert_eq!(net.received()[0].wqe_counter, 0);
    assert_eq!(net.driver.monitor.ignored_counts().collect::<Vec<_>>(), [("longer_than_receive", 1)]);
}

#[test]
fn undeliverable_frames_are_dropped_and_counted() {
    let mut net = Net::new();
    net.create_direct_tir();
    net.post_receive(&[9000]);
    net.driver.link = Link { max_frame: 1518, ..UP };
    net.driver.receive(&plain(2, 1519));
    net.driver.receive(&[0; 13]);
    net.driver.link.is_up = false;
    net.driver.receive(&plain(2, 60));
    net.driver.link = UP;
    net.driver.tirs.clear();
    net.driver.receive(&plain(2, 60));
    assert!(net.received().is_empty());
    let frames = &net.driver.resources().port.ethernet().unwrap().frames;
    assert_eq!((frames.oversize, frames.received.unicast.packets), (1, 0));
    // Only the frame without a TIR arrived intact.
    let group = frames.group(CounterGroup::Ieee, 0, &PortStats::default());
    assert_eq!(IeeeCounters::parse(&group).rx_packets, 1);
    let counts: Vec<_> = net.driver.monitor.ignored_counts().collect();
    assert_eq!(counts, [("link_down", 1), ("no_tir", 1), ("oversize", 1), ("unparsed", 1)]);
}

/// Section 17.1: a reload of the driver and a recovery from a failure keep the counters.
#[test]
fn port_counters_survive_restart_of_function() {
    let mut net = Net::new();
    net.driver.receive(&plain(2, 60));
    let teardown = Command::TeardownHca(Teardown { profile: TeardownProfile::Graceful.code() });
    for stop in [vec![teardown, Command::DisableHca(Function { function: 0 })], vec![]] {
        for command in &stop {
            net.driver.ok(command);
        }
        net.driver.ok(&Command::EnableHca(Function { function: 0 }));
        net.driver.ok(&Command::InitHca(InitHca::default()));
        let frames = &net.driver.resources().port.ethernet().unwrap().frames;
        let group = frames.group(CounterGroup::Ieee, 0, &PortStats::default());
        assert_eq!(IeeeCounters::parse(&group).rx_packets, 1);
    }
}

#[test]
fn inaccessible_buffer_moves_rq_to_error() {
    let mut net = Net::new();
    net.create_direct_tir();
    let flushing = RqContext { flush_in_error: true, ..net.rq_context(4) };
    net.driver.tirs.clear();
    net.rqn = net.create_rq(flushing);
    net.create_direct_tir();
    net.modify_rq(WorkQueueState::Ready);
    let key = std::mem::replace(&mut net.key, Lkey::new(0x100));
    net.post_receive(&[1522]);
    net.key = key;
    net.post_receive(&[1522]);
    net.driver.receive(&plain(2, 60));
    assert_eq!(net.rq_state(), Some(WorkQueueState::Error));
    net.driver.frames();
    assert_eq!(net.receive_errors(), [(0, LOCAL_PROTECTION), (1, FLUSHED)]);
    net.driver.receive(&plain(2, 60));
    assert!(net.received().is_empty());
}

#[test]
fn receives_of_unreadable_rq_are_flushed() {
    let mut net = Net::new();
    let context = RqContext { flush_in_error: true, ..net.rq_context(4) };
    let list = pages(0x8000_0000, 4);
    let command = Command::CreateRq(CreateRq { context }, Pages::parse(&list));
    net.rqn = RqNumber::parse(&output(&net.driver.ok(&command))).rqn;
    net.modify_rq(WorkQueueState::Ready);
    net.create_direct_tir();
    net.driver.poke(RQ_RECORD + 2, &2_u16.to_be_bytes());
    net.driver.receive(&plain(2, 60));
    assert_eq!(net.rq_state(), Some(WorkQueueState::Error));
    net.driver.frames();
    assert_eq!(net.receive_errors(), [(0, FLUSHED), (1, FLUSHED)]);
}

/// Section 20, M-12: the device polls a failed RQ's doorbell record, because receives are posted without a doorbell.
#[test]
fn receives_posted_to_failed_rq_are_flushed() {
    let mut net = Net::new();
    net.rqn = net.create_rq(RqContext { flush_in_error: true, ..net.rq_context(4) });
    net.modify_rq(WorkQueueState::Ready);
    assert_eq!(net.driver.next_deadline(), None);
    net.modify_rq(WorkQueueState::Error);
    net.driver.frames();
    for round in 0..3 {
        net.post_receive(&[1522]);
        net.post_receive(&[1522]);
        net.driver.expire();
        net.driver.frames();
        assert_eq!(net.receive_errors(), [(2 * round, FLUSHED), (2 * round + 1, FLUSHED)]);
    }
    net.modify_rq(WorkQueueState::Reset);
    net.driver.expire();
    assert_eq!(net.driver.next_deadline(), None);
}

#[test]
fn rq_in_reset_does_not_receive_frames() {
    let mut net = Net::new();
    net.create_direct_tir();
    net.modify_rq(WorkQueueState::Reset);
    net.post_receive(&[1522]);
    net.driver.receive(&plain(2, 60));
    assert!(net.received().is_empty());
    net.modify_rq(WorkQueueState::Ready);
    net.driver.receive(&plain(2, 60));
    assert_eq!(net.received().len(), 1);
}

#[test]
fn hash_spreads_flows_across_queues() {
    let mut net = Net::new();
    let other = net.create_rq(RqContext { cqn: net.cqs[0], ..net.rq_context(4) });
    let rqtn = net.create_rqt(&[net.rqn, other]);
    net.create_tir(TirContext { rqtn, ..TOEPLITZ });
    for port in 0..16 {
        net.post_receive(&[1522]);
        net.driver.receive(&segment(port, &[], &[]));
    }
    let received = net.received();
    assert!(!received.is_empty() && received.len() < 16, "{}", received.len());
    for cqe in received {
        assert_eq!((cqe.hashed_ports, cqe.hashed_addresses, cqe.rss_hash % 2), (1, 1, 0));
    }
}

#[test]
fn rq_receives_edited_frame_instead_of_original() {
    use crate::netdev::steer::Delivery;
    let mut net = Net::new();
    let tirn = net.create_direct_tir();
    let [place] = net.post_receive(&[1522])[..] else { panic!() };
    let edited = plain(6, 70);
    net.driver.receive_as(&plain(2, 60), &Delivery { tirn, tag: 1, edited: Some(edited.clone()) });
    assert_eq!(net.received()[0].byte_count, 70);
    assert_eq!(net.driver.peek(place, 70), edited);
}
