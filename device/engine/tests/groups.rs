//! Tests datagrams to multicast groups.
//!
//! # Spec
//! IBTA volume 1, section 10.5.2; annex A17, section A17.3.2 (MGIDs are IP group addresses).

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::common::*;
use engine::*;
use protocol::Psn;
use protocol::ids::{MacAddr, Pkey, Qkey, Qpn};
use protocol::roce::*;

const GROUP: Ipv6Addr = Ipv6Addr::new(0xff12, 0x401b, 0xffff, 0, 0, 0, 0xffff, 0xffff);
const GROUP_QPN: Qpn = Qpn::new(0xff_ffff);
const QKEY: u32 = 0x1111_1111;

fn member(nth: u32) -> Qpn {
    Qpn::new(0x40 + nth)
}

fn encap(group: Ipv6Addr) -> Encap {
    let ip = IpAddrs::V6 { src: Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0xff, 0xfe00, 1), dst: group };
    Encap { dst_mac: MacAddr([0x33, 0x33, 0xff, 0xff, 0xff, 0xff]), ip, ..A.path() }
}

fn ud() -> QpAttrs {
    QpAttrs { service: Service::Ud, grh_area: GrhArea::InfiniBand, ..attrs(B) }
}

/// Returns a pair in which B has `count` UD QPs, numbered from 0x40, with attributes modified by `tune`. Each QP is
/// attached to the group and has one receive request.
fn members(count: u32, tune: impl Fn(u32, &mut QpAttrs)) -> Pair {
    let mut pair = Pair::new();
    for nth in 0..count {
        let mut attrs = ud();
        tune(nth, &mut attrs);
        pair.add(B, member(nth), attrs);
        pair.b.host.post_recv(member(nth), nth.into(), &[sge(0x1000 + u64::from(nth) * 0x80, 0x80)]);
    }
    pair.b.host.groups.insert(GROUP.octets(), (0..count).map(member).collect());
    pair
}

fn arrive(pair: &mut Pair, encap: &Encap, tune: impl FnOnce(&mut Bth)) {
    let mut bth = Bth {
        opcode: Opcode::ud(Operation::SendOnly),
        solicited: false,
        mig_req: true,
        pkey: Pkey::DEFAULT,
        fecn: false,
        becn: false,
        dest_qp: GROUP_QPN,
        ack_req: false,
        psn: Psn::new(1),
    };
    tune(&mut bth);
    let ext = Ext::Deth(Deth { qkey: Qkey::new(QKEY), src_qp: A.qpn() });
    pair.deliver_packet(B, encap, &Packet { bth, srqn: None, ext, payload: b"to all of you" });
}

fn receivers(pair: &mut Pair) -> Vec<u32> {
    pair.b.completions.drain(..).map(|done| done.qpn.get() - member(0).get()).collect()
}

#[test]
fn every_attached_qp_receives_a_copy() {
    let mut pair = members(3, |_, _| {});
    arrive(&mut pair, &encap(GROUP), |_| {});
    for nth in 0..3usize {
        let Ok(Success::Recv(done)) = pair.b.completions[nth].result else { panic!() };
        assert_eq!((done.byte_len, done.remote_qpn, done.grh), (40 + 13, A.qpn(), true));
        assert_eq!(pair.bytes(B, 0x1000 + nth * 0x80 + 40, 13), b"to all of you");
    }
    assert_eq!(receivers(&mut pair), [0, 1, 2]);
    assert_eq!(pair.b.engine.stats().received_packets, 1);
}

#[test]
fn each_group_member_checks_pkey_and_qkey() {
    let mut pair = members(5, |nth, attrs| match nth {
        0 => attrs.qkey = Qkey::new(0x2222),
        1 => attrs.pkey_index = 1,
        // Only datagrams can be multicast, so a UC QP does not receive a copy.
        2 => attrs.service = Service::Uc,
        _ => {}
    });
    pair.b.host.next_recv(RecvSource::Qp(member(3)));
    arrive(&mut pair, &encap(GROUP), |_| {});
    assert_eq!(receivers(&mut pair), [4]);
    let drops = pair.b.engine.stats().drops;
    assert_eq!((drops.wrong_qkey, drops.wrong_pkey, drops.no_receive), (1, 1, 1));
    assert_eq!((drops.wrong_service, drops.unknown_group), (0, 0));
}

#[test]
fn multicast_without_receiver_is_dropped() {
    let mut pair = members(1, |_, _| {});
    arrive(&mut pair, &encap("ff12::1".parse().unwrap()), |_| {});
    arrive(&mut pair, &encap(GROUP), |bth| bth.dest_qp = member(0));
    assert_eq!(pair.b.engine.stats().drops.unknown_group, 2);
    arrive(&mut pair, &A.path(), |_| {});
    assert_eq!(pair.b.engine.stats().drops.unknown_qp, 1);
    assert!(receivers(&mut pair).is_empty());
}

#[test]
fn ipv4_group_is_looked_up_by_ipv4_mapped_gid() {
    let mut pair = members(1, |_, _| {});
    let group = Ipv4Addr::new(239, 1, 2, 3);
    pair.b.host.groups.insert(group.to_ipv6_mapped().octets(), vec![member(0)]);
    let encap = Encap { ip: IpAddrs::V4 { src: Ipv4Addr::new(10, 77, 0, 1), dst: group }, ..encap(GROUP) };
    arrive(&mut pair, &encap, |_| {});
    let Ok(Success::Recv(done)) = pair.b.completions[0].result else { panic!() };
    assert!(!done.grh);
}

#[test]
fn multicast_datagram_reaches_at_most_64_members() {
    let mut pair = members(80, |_, _| {});
    arrive(&mut pair, &encap(GROUP), |_| {});
    assert_eq!(receivers(&mut pair), (0..64).collect::<Vec<_>>());
}

#[test]
fn multicast_send_completes_when_sent() {
    let mut pair = Pair::with(|_, attrs| attrs.service = Service::Ud);
    let to = UdDestination { path: encap(GROUP), qpn: GROUP_QPN, qkey: Qkey::new(QKEY), header: None };
    pair.post(A, SendRequest { ud: Some(to), ..send(1, 13) });
    let frames = pair.frames(A);
    let frame = RoceFrame::parse(&frames[0]).unwrap();
    assert_eq!((frame.encap, frame.packet.bth.dest_qp), (encap(GROUP), GROUP_QPN));
    assert_eq!(pair.a.sends(), ok([1]));
}
