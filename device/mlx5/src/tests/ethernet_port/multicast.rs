//! Multicast delivery and loopback blocking (mlx5 interface, sections 5.4 and 10.1).

use super::*;

const GROUP: Ipv4Addr = Ipv4Addr::new(239, 1, 2, 3);

fn to_group() -> DatagramSegment {
    DatagramSegment {
        qkey: QKEY,
        long: true,
        qpn: Qpn::new(0xff_ffff),
        mac: MacAddr([1, 0, 0x5e, 1, 2, 3]),
        gid_index: 3,
        gid: GROUP.to_ipv6_mapped().octets(),
        ..DatagramSegment::default()
    }
}

/// Creates a device whose QP is a member of the group. `block` sets "block multicast loopback".
fn member(lid: u16, block: bool) -> User {
    let mut user = user(lid, None);
    let context = QpContext { block_multicast_loopback: block, ..user.context(Service::Ud) };
    user.connect(&context, 0);
    let (qpn, gid) = (user.qpn, GROUP.to_ipv6_mapped().octets());
    user.ok(&Command::AttachToMcg(Multicast { qpn, gid }));
    user.post_recv(0x400, 140);
    user
}

fn received(user: &mut User) -> usize {
    user.reap().iter().filter(|entry| matches!(entry, Cqe::Received(_))).count()
}

#[test]
fn blocked_loopback_excludes_own_datagrams() {
    for block in [false, true] {
        let (mut a, mut b) = (member(1, block), member(2, true));
        a.post(&request(WqeOpcode::Send, Operation::Datagram(to_group()), a.data(0, 100)));
        exchange(&mut *a, &mut *b);
        assert_eq!((received(&mut a), received(&mut b)), (usize::from(!block), 1), "block: {block}");
    }
}

/// The MAC of a GID can differ from the port's MAC.
#[test]
fn loopback_blocking_recognises_sender_by_gid_mac() {
    let mut a = member(1, true);
    let other = RoceEntry { mac: MacAddr([2, 0, 0, 0x77, 0, 1]), ..entry(1, None) };
    a.ok(&Command::SetRoceAddress(SetRoceAddress { index: INDEX, entry: other }));
    let mut b = member(2, true);
    a.post(&request(WqeOpcode::Send, Operation::Datagram(to_group()), a.data(0, 100)));
    exchange(&mut *a, &mut *b);
    assert_eq!((received(&mut a), received(&mut b)), (0, 1));
}

/// Only the sending QP is excluded, even if another device's QP has the same number.
#[test]
fn loopback_blocking_excludes_only_sending_qp() {
    let (mut a, mut b) = (member(1, false), member(2, true));
    assert_eq!(a.qpn, b.qpn);
    b.post(&request(WqeOpcode::Send, Operation::Datagram(to_group()), b.data(0, 100)));
    exchange(&mut *a, &mut *b);
    assert_eq!((received(&mut a), received(&mut b)), (1, 0));
}
