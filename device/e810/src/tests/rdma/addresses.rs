//! Tests of the address checks on frames from the wire.

use std::net::{Ipv4Addr, Ipv6Addr};

use card::net::DropReason;
use card::vfio::server::{Device as _, Region};
use drivers::e810::queue_pair::{gather, inline};
use protocol::hca::e810::admin::Opcode;
use protocol::net::checksum::Checksum;
use protocol::roce::{Encap, FrameWriter, IpAddrs, Packet, RoceFrame, seal};

use super::super::AdminCommand;
use super::*;

const GROUP: Ipv4Addr = Ipv4Addr::new(239, 1, 2, 3);
const GROUP_MAC: MacAddr = MacAddr([0x01, 0x00, 0x5e, 1, 2, 3]);

fn written(encap: &Encap, packet: &Packet<'_>) -> Vec<u8> {
    let Packet { bth, ext, payload, .. } = packet;
    let mut frame = Vec::new();
    let mut writer = FrameWriter::new(&mut frame, encap, bth, ext, payload.len());
    writer.extend(payload);
    writer.finish();
    frame
}

/// Returns a copy of the frame, with its encapsulation modified by `change`.
fn rewrapped(frame: &[u8], change: impl FnOnce(&mut Encap)) -> Vec<u8> {
    let RoceFrame { mut encap, packet } = RoceFrame::parse(frame).unwrap();
    change(&mut encap);
    written(&encap, &packet)
}

fn between(src: IpAddr, dst: IpAddr) -> IpAddrs {
    match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => IpAddrs::V4 { src, dst },
        (IpAddr::V6(src), IpAddr::V6(dst)) => IpAddrs::V6 { src, dst },
        _ => panic!("{src} to {dst}"),
    }
}

/// Returns a pair of devices with UD queue pairs, and a frame from device `a` to device `b`.
fn datagram() -> (Pair, Vec<u8>) {
    let mut pair = Pair::new(QpKind::Ud, |_| {});
    pair.a.perform_well(&Operation::CreateAddressHandle(handle(1)));
    let to = u64::from(QPN.get()) << 32 | 0x1111_1111;
    pair.a.post_send(QPN, &gather(SIGNALED | SEND | 1, to, None, &[fragment(SOURCE, 0, 8)]));
    let frame = pair.a.bus.settle().remove(0);
    pair.b.post_receive(QPN, &[fragment(TARGET, 0, 2000)]);
    (pair, frame)
}

#[track_caller]
fn dropped(driver: &mut Driver, frame: &[u8], reason: DropReason) {
    let count = |driver: &Driver| driver.bus.hca.port_stats().dropped(reason);
    let before = count(driver);
    driver.bus.hca.handle_frame(frame);
    driver.bus.settle();
    assert_eq!(count(driver), before + 1);
    nothing(driver);
}

/// IBTA volume 1, section 9.6.1.2: packets to other addresses are dropped.
#[test]
fn connection_drops_packets_to_other_addresses() {
    let mut pair = Pair::connected();
    pair.b.post_receive(QPN, &[fragment(TARGET, 0, 64)]);
    pair.a.post_send(QPN, &inline(SIGNALED | SEND, 0, None, &[9; 8]));
    let frame = pair.a.bus.settle().remove(0);
    let to = |dst: [u8; 4]| rewrapped(&frame, |encap| encap.ip = between([10, 81, 0, 1].into(), dst.into()));
    pair.b.bus.hca.handle_frame(&to([10, 81, 0, 3]));
    assert!(pair.b.bus.settle().is_empty());
    nothing(&mut pair.b);
    assert_eq!(pair.b.bus.hca.engine_stats().drops.wrong_destination, 1);
    for dst in [[255; 4], [127, 0, 0, 1], [0; 4], GROUP.octets()] {
        dropped(&mut pair.b, &to(dst), DropReason::OtherIp);
    }
    dropped(
        &mut pair.b,
        &rewrapped(&frame, |encap| encap.dst_mac = MacAddr::BROADCAST),
        DropReason::OtherMac,
    );
    pair.b.bus.hca.handle_frame(&frame);
    pair.settle();
    assert_eq!((pair.sent().error, pair.received().cqe.len), (false, 8));
}

#[test]
fn qp_connected_to_itself_receives_its_own_send() {
    let mut driver = opened(1);
    let context = QpContext { destination_ip: ip(1), send_psn: Psn::new(0x2000), ..context(1) };
    driver.set_neighbour(2, mac(1));
    start(&mut driver, QPN, QpKind::Rc, &context);
    driver.post_receive(QPN, &[fragment(TARGET, 0, 64)]);
    driver.post_send(QPN, &inline(SIGNALED | SEND, 0, None, &[9; 8]));
    assert!(driver.bus.settle().is_empty());
    assert_eq!((only(&mut driver, SEND_CQ).cqe.error, only(&mut driver, RECV_CQ).cqe.len), (false, 8));
}

/// Section 1.2: when `ice` recovers from a reset, it neither reads nor writes the MAC.
#[test]
fn written_mac_receives_packets_after_recovery() {
    let written = mac(9);
    let mut parameters = [0; 16];
    parameters[2..8].copy_from_slice(&written.0);
    for is_function_level in [false, true] {
        let [mut a, mut b] = [opened(1), opened(2)];
        a.succeed(&AdminCommand::direct(Opcode::WriteMac, parameters));
        if is_function_level {
            a.bus.hca.region_write(Region::Config, 0x68, &[0x10, 0xa8]);
        }
        a.bring_up(written);
        open_rdma(&mut a, 1, written);
        assert_eq!(a.bus.hca.mac(), written);
        start(&mut a, QPN, QpKind::Rc, &QpContext { source_mac: MacNumber(written), ..context(1) });
        b.set_neighbour(2, written);
        start(&mut b, QPN, QpKind::Rc, &context(2));
        let mut pair = Pair { a, b };
        pair.b.post_receive(QPN, &[fragment(TARGET, 0, 64)]);
        pair.a.post_send(QPN, &inline(SIGNALED | SEND, 0, None, &[9; 8]));
        pair.settle();
        assert_eq!((pair.sent().error, pair.received().cqe.len), (false, 8));

        let read = AdminCommand::with_output(Opcode::ReadMac, [0; 16], 16);
        assert_eq!(pair.a.succeed(&read).buffer[2..], mac(1).0, "a probe must find the permanent MAC");
        assert_eq!(pair.a.bus.hca.mac(), mac(1));
    }
}

/// RFC 1122, section 3.2.1.3, and RFC 4291, sections 2.5 and 2.7, define which addresses are invalid as sources.
#[test]
fn datagram_from_invalid_source_is_dropped() {
    let (mut pair, frame) = datagram();
    let v4 = IpAddr::from([10, 81, 0, 2]);
    let v6 = IpAddr::from(Ipv6Addr::new(0xfd81, 0, 0, 0, 0, 0, 0, 2));
    for src in ["224.0.0.1", "255.255.255.255", "127.0.0.1", "0.0.0.0", "10.81.0.2"] {
        let from = rewrapped(&frame, |encap| encap.ip = between(src.parse().unwrap(), v4));
        dropped(&mut pair.b, &from, DropReason::BadSource);
    }
    for src in ["ff02::1", "::1", "::", "fd81::2"] {
        let from = rewrapped(&frame, |encap| encap.ip = between(src.parse().unwrap(), v6));
        dropped(&mut pair.b, &from, DropReason::BadSource);
    }
    pair.b.bus.hca.handle_frame(&frame);
    assert_eq!(pair.received().cqe.len, 48);
}

#[test]
fn datagram_to_invalid_destination_is_dropped() {
    let (mut pair, frame) = datagram();
    let (v4, v6) = (IpAddr::from([10, 81, 0, 1]), IpAddr::from(Ipv6Addr::new(0xfd81, 0, 0, 0, 0, 0, 0, 1)));
    for (src, dsts) in [(v4, &["255.255.255.255", "127.0.0.1", "0.0.0.0"][..]), (v6, &["::1", "::"])] {
        for dst in dsts {
            let to = rewrapped(&frame, |encap| encap.ip = between(src, dst.parse().unwrap()));
            dropped(&mut pair.b, &to, DropReason::OtherIp);
        }
    }
}

/// E810 interface, section 13.9: the driver does not report the port's IP addresses to the device, so the device
/// accepts datagrams to any unicast address.
#[test]
fn datagram_to_other_unicast_address_is_delivered() {
    let (mut pair, frame) = datagram();
    for (src, dst) in [("10.81.0.1", "10.81.0.3"), ("fd81::1", "fd81::3")] {
        let ip = between(src.parse().unwrap(), dst.parse().unwrap());
        pair.b.bus.hca.handle_frame(&rewrapped(&frame, |encap| encap.ip = ip));
        assert_eq!(pair.received().cqe.len, 48, "{dst}");
        pair.b.post_receive(QPN, &[fragment(TARGET, 0, 2000)]);
    }
}

#[test]
fn group_accepts_frames_to_its_mac() {
    let (mut pair, frame) = datagram();
    let group = IpAddr::from([0xff15, 0x401b, 0xffff, 0, 0, 0, 0x1234, 0x5678]);
    let mac_of_driver = MacAddr([0x33, 0x33, 0xff, 0x15, 0x40, 0x1b]);
    let by_rule = MacAddr([0x33, 0x33, 0x12, 0x34, 0x56, 0x78]);
    join(&mut pair.b, group, mac_of_driver, &[QPN]);
    let source = IpAddr::from(Ipv6Addr::new(0xfd81, 0, 0, 0, 0, 0, 0, 1));
    let mut to_group = to_members(&frame, between(source, group));
    let mut to = |mac: MacAddr| {
        to_group[..6].copy_from_slice(&mac.0);
        to_group.clone()
    };
    dropped(&mut pair.b, &to(mac(2)), DropReason::OtherIp);
    for other in [MacAddr([0x33, 0x33, 0, 0, 0, 1]), MacAddr::BROADCAST] {
        pair.b.bus.hca.handle_frame(&to(other));
        nothing(&mut pair.b);
    }
    assert_eq!(pair.b.bus.hca.engine_stats().drops.unknown_group, 2);
    for own in [mac_of_driver, by_rule] {
        pair.b.bus.hca.handle_frame(&to(own));
        assert_eq!(pair.received().cqe.len, 48, "{own}");
        pair.b.post_receive(QPN, &[fragment(TARGET, 0, 2000)]);
    }
}

#[test]
fn group_datagram_with_unicast_mac_is_dropped() {
    let (mut pair, frame) = datagram();
    join(&mut pair.b, GROUP.into(), GROUP_MAC, &[QPN]);
    let mut to_group = to_members(&frame, between([10, 81, 0, 1].into(), GROUP.into()));
    dropped(&mut pair.b, &to_group, DropReason::OtherIp);
    to_group[..6].copy_from_slice(&GROUP_MAC.0);
    pair.b.bus.hca.handle_frame(&to_group);
    assert_eq!(pair.received().cqe.len, 48);
}

/// Returns a copy of the frame with IP addresses `ip` and the multicast QP number as its destination QP.
fn to_members(frame: &[u8], ip: IpAddrs) -> Vec<u8> {
    const MEMBERS: Qpn = Qpn::new(0xff_ffff);
    let RoceFrame { encap, mut packet } = RoceFrame::parse(frame).unwrap();
    packet.bth.dest_qp = MEMBERS;
    written(&Encap { ip, ..encap }, &packet)
}

/// IBTA annex A17, section A17.4.5.1: the GRH area contains the received IPv4 header.
#[test]
fn grh_area_keeps_ipv4_identification_and_flags() {
    for (id, flags) in [(0xbeef_u16, 0x0000_u16), (0x1234, 0x4000)] {
        let (mut pair, mut frame) = datagram();
        frame[18..20].copy_from_slice(&id.to_be_bytes());
        frame[20..22].copy_from_slice(&flags.to_be_bytes());
        frame[24..26].fill(0);
        let sum = Checksum::new().with(&frame[14..34]).value();
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
        seal(&mut frame).unwrap();
        pair.b.bus.hca.handle_frame(&frame);
        assert_eq!(pair.received().cqe.len, 48);
        assert_eq!(pair.b.peek(TARGET + 20, 20), frame[14..34]);
    }
}
