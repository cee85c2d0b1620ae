//! Tests QPs that are connected to QPs of the same engine or to themselves.

use crate::common::*;
use engine::*;
use protocol::ids::Qkey;
use protocol::roce::Encap;

/// Returns a path from B's IP address to A's IP address, with A's MAC address at both ends.
fn to_self() -> Encap {
    Encap { dst_mac: A.path().src_mac, ip: B.path().ip, ..A.path() }
}

/// Returns a pair in which A's QP is its own peer.
fn self_connected(service: Service) -> Pair {
    let mut pair = Pair::with(|_, attrs| {
        (attrs.service, attrs.remote_qpn, attrs.path) = (service, A.qpn(), loop_path());
    });
    // Both directions start at the same PSN.
    pair.modify_with(A, State::Reset, |modify| modify.attrs.service = service);
    for to in [State::Init, State::Rtr, State::Rts] {
        pair.modify_with(A, to, |modify| {
            let attrs = &mut modify.attrs;
            (attrs.service, attrs.remote_qpn, attrs.path) = (service, A.qpn(), loop_path());
            (modify.send_psn, modify.recv_psn) = (Some(psn_a()), Some(psn_a()));
        });
    }
    pair
}

fn loop_path() -> Encap {
    let src = match A.path().ip {
        protocol::roce::IpAddrs::V4 { src, .. } => src,
        protocol::roce::IpAddrs::V6 { .. } => panic!("not IPv4"),
    };
    Encap { ip: protocol::roce::IpAddrs::V4 { src, dst: src }, ..to_self() }
}

/// Delivers A's frames to A until A sends no more.
fn loop_frames(pair: &mut Pair) -> usize {
    let mut count = 0;
    loop {
        let frames = pair.frames(A);
        if frames.is_empty() {
            return count;
        }
        for frame in frames {
            count += 1;
            pair.deliver(A, &frame);
        }
    }
}

#[test]
fn rc_loopback_supports_every_operation() {
    let mut pair = self_connected(Service::Rc);
    pair.post_recv(A, 7, 0x8000, 1000);
    pair.a.host.bytes(KEY)[0x9000..0x9008].copy_from_slice(&41u64.to_le_bytes());
    pair.post(A, send(1, 1000));
    pair.post(A, write(2, 0xa000, 1000));
    pair.post(A, read(3, 0xb000, 1000));
    let add = SendOp::FetchAdd { remote: remote(0x9000), add: 1 };
    pair.post(A, request(4, add, &[sge(0xc000, 8)]));
    loop_frames(&mut pair);
    assert_eq!((pair.a.recvs(), pair.a.sends()), (ok([7]), ok([1, 2, 3, 4])));
    let sent = pair.bytes(A, 0, 1000);
    for offset in [0x8000, 0xa000, 0xb000] {
        assert_eq!(pair.bytes(A, offset, 1000), sent, "{offset:#x}");
    }
    assert_eq!(pair.bytes(A, 0x9000, 8), 42u64.to_le_bytes());
    assert_eq!(pair.bytes(A, 0xc000, 8), 41u64.to_le_bytes());
    let stats = pair.a.engine.stats();
    assert_eq!((stats.recovery.retransmitted_packets, stats.drops), (0, Drops::default()));
}

#[test]
fn rc_loopback_responder_error_fails_requester() {
    let mut pair = self_connected(Service::Rc);
    let bad = Remote { rkey: protocol::ids::Rkey::new(0x999), ..remote(0) };
    pair.post(A, request(1, SendOp::Write { remote: bad, imm: None }, &[sge(0, 1)]));
    pair.post(A, send(2, 1));
    loop_frames(&mut pair);
    // The responder error flushes both queues before the responder's NAK arrives.
    assert_eq!(pair.a.sends(), [(1, Err(Status::Flushed)), (2, Err(Status::Flushed))]);
    assert_eq!(pair.a.asyncs, [AsyncEvent::AccessError(AccessError::Key)]);
    assert_eq!(pair.snapshot(A).state, State::Err);
}

#[test]
fn unreliable_loopback_delivers_messages() {
    for service in [Service::Uc, Service::Ud] {
        let mut pair = self_connected(service);
        pair.post_recv(A, 7, 0x8000, 200);
        let to =
            UdDestination { path: loop_path(), qpn: A.qpn(), qkey: Qkey::new(0x1111_1111), header: None };
        let ud = (service == Service::Ud).then_some(to);
        pair.post(A, SendRequest { ud, ..send(1, 200) });
        assert_eq!(loop_frames(&mut pair), 1);
        assert_eq!((pair.a.sends(), pair.a.recvs()), (ok([1]), ok([7])), "{service:?}");
        assert_eq!(pair.bytes(A, 0x8000, 200), pair.bytes(A, 0, 200));
    }
}
