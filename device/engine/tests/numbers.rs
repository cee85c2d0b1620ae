//! Tests QP numbers. When a driver reuses a table entry, it increments the generation in the high bits, so that late
//! packets for a destroyed QP never reach its successor (IBTA volume 1, section 9.6.1.1).

use crate::common::*;
use engine::{Modify, QpAttrs, QpError, Service, State};
use protocol::Psn;
use protocol::ids::{Qkey, Qpn};
use protocol::roce::{Bth, Deth, Ext, Opcode, Operation};

/// Numbers of two QPs that use the same table entry one after the other. The table has 2^16 entries, so the two numbers
/// differ only in the generation.
const DESTROYED: Qpn = Qpn::new(0x1d_0017);
const SUCCESSOR: Qpn = Qpn::new(0x1e_0017);

/// Returns a pair in which one of B's QPs has been destroyed and replaced by a QP with the same peer and PSNs.
fn with_successor(tune: impl Fn(&mut QpAttrs)) -> Pair {
    let mut pair = Pair::new();
    let mut attrs = attrs(B);
    tune(&mut attrs);
    pair.add(B, DESTROYED, attrs);
    pair.b.engine.destroy_qp(DESTROYED);
    pair.add(B, SUCCESSOR, attrs);
    pair
}

fn inject(pair: &mut Pair, to: Qpn, opcode: Opcode, psn: Psn, ext: Ext) {
    let tune = |bth: &mut Bth| (bth.dest_qp, bth.opcode) = (to, opcode);
    pair.inject_with(B, opcode.operation, psn, ext, b"", tune);
}

fn unknown(pair: &Pair) -> u64 {
    pair.b.engine.stats().drops.unknown_qp
}

#[test]
fn request_for_destroyed_qp_does_not_reach_its_successor() {
    for service in [Service::Rc, Service::Uc] {
        let mut pair = with_successor(|attrs| attrs.service = service);
        pair.b.host.post_recv(SUCCESSOR, 7, &[sge(0, 10)]);
        let send = if service == Service::Rc { Opcode::rc } else { Opcode::uc }(Operation::SendOnly);
        inject(&mut pair, DESTROYED, send, psn_a(), Ext::None);
        assert_eq!((pair.b.recvs(), unknown(&pair)), (vec![], 1));
        assert_eq!(pair.flow(), [""; 0], "the packet must not cause a reply");
        inject(&mut pair, SUCCESSOR, send, psn_a(), Ext::None);
        assert_eq!((pair.b.recvs(), unknown(&pair)), (ok([7]), 1));
    }
}

#[test]
fn ack_for_destroyed_qp_does_not_reach_its_successor() {
    let mut pair = with_successor(|_| {});
    pair.post_on(B, SUCCESSOR, send(1, 10));
    assert_eq!(pair.frames(B).len(), 1);
    let ack = Opcode::rc(Operation::Acknowledge);
    inject(&mut pair, DESTROYED, ack, psn_b(), aeth(ACK));
    assert_eq!((pair.b.sends(), unknown(&pair)), (vec![], 1));
    inject(&mut pair, SUCCESSOR, ack, psn_b(), aeth(ACK));
    assert_eq!(pair.b.sends(), ok([1]));
}

#[test]
fn datagram_with_wrong_qpn_generation_is_dropped() {
    let mut pair = with_successor(|attrs| attrs.service = Service::Ud);
    let deth = Ext::Deth(Deth { qkey: Qkey::new(0x1111_1111), src_qp: A.qpn() });
    let send = Opcode::ud(Operation::SendOnly);
    pair.b.host.post_recv(SUCCESSOR, 7, &[sge(0, 10)]);
    for number in [0x17, 0x1_0017, DESTROYED.get(), 0xff_0017] {
        inject(&mut pair, Qpn::new(number), send, psn_a(), deth);
    }
    assert_eq!((pair.b.recvs(), unknown(&pair)), (vec![], 4));
    inject(&mut pair, SUCCESSOR, send, psn_a(), deth);
    assert_eq!(pair.b.recvs(), ok([7]));
}

/// A multicast group may still list a destroyed QP.
#[test]
fn successor_of_group_member_does_not_receive_multicast() {
    let mut pair = with_successor(|attrs| attrs.service = Service::Ud);
    let group: std::net::Ipv6Addr = "ff12::1".parse().unwrap();
    pair.b.host.groups.insert(group.octets(), vec![DESTROYED]);
    pair.b.host.post_recv(SUCCESSOR, 7, &[sge(0, 10)]);
    let ip = protocol::roce::IpAddrs::V6 { src: "fe80::1".parse().unwrap(), dst: group };
    let encap = protocol::roce::Encap { ip, ..A.path() };
    let mut bth = None;
    pair.inject_with(B, Operation::SendOnly, psn_a(), Ext::None, b"", |made| bth = Some(*made));
    let (opcode, dest_qp) = (Opcode::ud(Operation::SendOnly), Qpn::new(0xff_ffff));
    let ext = Ext::Deth(Deth { qkey: Qkey::new(0x1111_1111), src_qp: A.qpn() });
    let bth = Bth { opcode, dest_qp, ..bth.unwrap() };
    pair.deliver_packet(B, &encap, &protocol::roce::Packet { bth, srqn: None, ext, payload: b"" });
    assert_eq!((pair.b.recvs(), pair.b.engine.stats().drops.unknown_group), (vec![], 1));
}

/// Some software omits the high bits of QP numbers in packets, so a connected QP can have an alias without them.
#[test]
fn qp_accepts_packets_to_its_number_and_alias() {
    let mut pair = with_successor(|attrs| attrs.alias = Some(Qpn::new(0x17)));
    (7..9).for_each(|wr| pair.b.host.post_recv(SUCCESSOR, wr, &[sge(0, 10)]));
    let send = Opcode::rc(Operation::SendOnly);
    inject(&mut pair, Qpn::new(0x17), send, psn_a(), Ext::None);
    inject(&mut pair, SUCCESSOR, send, psn_a().advance(1), Ext::None);
    inject(&mut pair, DESTROYED, send, psn_a().advance(2), Ext::None);
    assert_eq!((pair.b.recvs(), unknown(&pair)), (ok([7, 8]), 1));
}

#[test]
fn qp_lookup_compares_all_24_bits_of_qpn() {
    let mut pair = with_successor(|_| {});
    let now = pair.now;
    let side = &mut pair.b;
    let modify =
        Modify { to: State::Err, attrs: attrs(B), send_psn: None, recv_psn: None, notify_drained: false };
    let outcome = side.engine.modify_qp(now, DESTROYED, &modify, &mut side.host);
    assert_eq!(outcome, Err(QpError::Unknown));
    assert_eq!(side.engine.query_qp(DESTROYED), None);
    side.engine.destroy_qp(DESTROYED);
    assert_eq!(side.engine.query_qp(SUCCESSOR).map(|live| live.state), Some(State::Rts));
    assert_eq!(
        side.engine.create_qp(DESTROYED, attrs(B)),
        Err(QpError::Exists),
        "the table entry is in use by the successor"
    );
}
