//! Tests requests that are rejected locally or by the peer, and invalid responses.

use crate::common::*;
use engine::{AccessError, AsyncEvent, Fetch, Rights, SendOp, Sge, State, Status};
use protocol::Psn;
use protocol::ids::{Lkey, Rkey, Va};
use protocol::roce::{Aeth, AtomicEth, Ext, Imm, NakCode, Operation, Reth, Syndrome};

fn p(psn: u32) -> Psn {
    Psn::new(psn)
}

fn reth(offset: u64, dma_len: u32) -> Reth {
    Reth { va: Va::new(VA + offset), rkey: Rkey::new(KEY), dma_len }
}

/// Checks both ends after a rejected request. The requester reports the status, the responder reports the event, both
/// are in ERR, and neither sends any more packets.
fn assert_refused(pair: &mut Pair, status: Status, events: &[AsyncEvent]) {
    assert_eq!(pair.a.sends(), [(1, Err(status))]);
    assert_eq!(pair.b.asyncs, events);
    assert_eq!((pair.snapshot(A).state, pair.snapshot(B).state), (State::Err, State::Err));
    pair.inject(B, Operation::SendOnly, p(0x100), Ext::None, b"");
    assert_eq!(pair.flow(), Vec::<String>::new());
}

#[test]
fn wrong_rkey_rejects_write_at_first_packet() {
    let mut pair = Pair::new();
    let bad = engine::Remote { rkey: Rkey::new(0x999), ..remote(0x8000) };
    pair.post(A, request(1, SendOp::Write { remote: bad, imm: None }, &[sge(0, 300)]));
    let trace = pair.flow();
    assert_eq!(trace[2..], ["B Acknowledge 0x100 RemoteAccess msn0"]);
    assert_refused(&mut pair, Status::RemoteAccess, &[AsyncEvent::AccessError(AccessError::Key)]);
}

#[test]
fn write_beyond_region_does_not_change_memory() {
    let mut pair = Pair::new();
    let before = pair.bytes(B, 0, REGION);
    // Only the last byte is out of bounds.
    pair.post(A, write(1, REGION as u64 - 511, 512));
    pair.flow();
    assert_refused(&mut pair, Status::RemoteAccess, &[AsyncEvent::AccessError(AccessError::Bounds)]);
    assert_eq!(pair.bytes(B, 0, REGION), before);
}

#[test]
fn rejects_write_wrapping_address_space() {
    let mut pair = Pair::new();
    let wrapping = engine::Remote { va: Va::new(u64::MAX - 10), rkey: Rkey::new(KEY) };
    pair.post(A, request(1, SendOp::Write { remote: wrapping, imm: None }, &[sge(0, 512)]));
    pair.flow();
    assert_refused(&mut pair, Status::RemoteAccess, &[AsyncEvent::AccessError(AccessError::Bounds)]);
}

#[test]
fn destroying_region_during_write_fails_write() {
    let mut pair = Pair::new();
    pair.post(A, write(1, 0x8000, 700));
    let frames = pair.frames(A);
    pair.deliver(B, &frames[0]);
    pair.b.host.regions.remove(&KEY);
    pair.deliver(B, &frames[1]);
    assert_eq!(pair.flow(), ["B Acknowledge 0x101 RemoteAccess msn0"]);
    assert_refused(&mut pair, Status::RemoteAccess, &[AsyncEvent::AccessError(AccessError::Key)]);
}

#[test]
fn rejects_read_without_permission() {
    let mut pair = Pair::new();
    let locked = engine::Remote { rkey: Rkey::new(LOCKED), ..remote(0) };
    pair.post(A, request(1, SendOp::Read { remote: locked, invalidate: None }, &[sge(0x8000, 10)]));
    assert_eq!(pair.flow(), ["A ReadRequest 0x100 va+0x0 10?", "B Acknowledge 0x100 RemoteAccess msn0"]);
    assert_refused(&mut pair, Status::RemoteAccess, &[AsyncEvent::AccessError(AccessError::Right)]);
}

#[test]
fn destroying_region_during_read_fails_read() {
    let mut pair = Pair::new();
    pair.post(A, read(1, 0x8000, 5000));
    let request = pair.frames(A).remove(0);
    pair.deliver(B, &request);
    let mut frame = Vec::new();
    let side = &mut pair.b;
    assert!(side.engine.poll_transmit(pair.now, &mut side.host, &mut frame).is_some());
    side.host.regions.remove(&KEY);
    pair.deliver(A, &frame);
    assert_eq!(pair.flow(), ["B Acknowledge 0x101 RemoteAccess msn1"]);
    assert_refused(&mut pair, Status::RemoteAccess, &[AsyncEvent::AccessError(AccessError::Key)]);
}

#[test]
fn pending_replies_precede_fatal_nak() {
    let mut pair = Pair::new();
    pair.post(A, read(7, 0x8000, 300));
    let bad = engine::Remote { rkey: Rkey::new(0x999), ..remote(0) };
    pair.post(A, request(1, SendOp::Write { remote: bad, imm: None }, &[sge(0, 1)]));
    let trace = pair.flow();
    assert_eq!(
        trace[2..],
        [
            "B ReadResponseFirst 0x100 256B msn1",
            "B ReadResponseLast 0x101 44B msn1",
            "B Acknowledge 0x102 RemoteAccess msn1"
        ]
    );
    assert_eq!(pair.a.sends(), [(7, Ok(())), (1, Err(Status::RemoteAccess))]);
}

#[test]
fn rejects_unaligned_or_unpermitted_atomic() {
    let mut pair = Pair::new();
    let locked = engine::Remote { rkey: Rkey::new(LOCKED), ..remote(0) };
    pair.post(A, request(1, SendOp::FetchAdd { remote: locked, add: 1 }, &[sge(0x8000, 8)]));
    pair.flow();
    assert_refused(&mut pair, Status::RemoteAccess, &[AsyncEvent::AccessError(AccessError::Right)]);

    let mut pair = Pair::new();
    pair.post(A, request(1, SendOp::FetchAdd { remote: remote(4), add: 1 }, &[sge(0x8000, 8)]));
    pair.flow();
    assert_refused(&mut pair, Status::RemoteInvalidRequest, &[AsyncEvent::InvalidRequest]);
}

#[test]
fn oversized_send_triggers_invalid_request_nak() {
    let mut pair = Pair::new();
    pair.post_recv(B, 7, 0x8000, 299);
    pair.post_recv(B, 8, 0x9000, 299);
    pair.post(A, send(1, 300));
    let trace = pair.flow();
    assert_eq!(trace[2..], ["B Acknowledge 0x101 InvalidRequest msn0"]);
    assert_eq!(pair.b.recvs(), [(7, Err(Status::LocalLength)), (8, Err(Status::Flushed))]);
    assert_refused(&mut pair, Status::RemoteInvalidRequest, &[AsyncEvent::InvalidRequest]);
}

#[test]
fn unwritable_receive_buffer_triggers_remote_operational_nak() {
    let mut pair = Pair::new();
    let bad = Sge { lkey: Lkey::new(LOCKED), ..sge(0, 100) };
    pair.b.host.post_recv(B.qpn(), 7, &[bad]);
    pair.post(A, send(1, 10));
    let trace = pair.flow();
    assert_eq!(trace[1..], ["B Acknowledge 0x100 RemoteOperational msn0"]);
    assert_eq!(pair.b.recvs(), [(7, Err(Status::LocalProtection(AccessError::Right)))]);
    assert_refused(&mut pair, Status::RemoteOperational, &[]);
}

/// Each case is a series of packets. The responder of an RC QP rejects the last packet as an invalid request.
#[test]
fn malformed_requests_trigger_invalid_request_nak() {
    use Operation as O;
    let full = [0u8; 256];
    let two = Ext::Reth(reth(0x8000, 512));
    type Bad<'a> = (&'a str, &'a [(O, Ext, usize)]);
    let cases: &[Bad<'_>] = &[
        ("MIDDLE without FIRST", &[(O::SendMiddle, Ext::None, 256)]),
        ("LAST without FIRST", &[(O::WriteLast, Ext::None, 10)]),
        ("FIRST inside a message", &[(O::SendFirst, Ext::None, 256), (O::SendFirst, Ext::None, 256)]),
        ("ONLY inside a message", &[(O::WriteFirst, two, 256), (O::SendOnly, Ext::None, 1)]),
        ("SEND continued as WRITE", &[(O::SendFirst, Ext::None, 256), (O::WriteLast, Ext::None, 1)]),
        ("READ inside a message", &[(O::SendFirst, Ext::None, 256), (O::ReadRequest, two, 0)]),
        ("FIRST shorter than the MTU", &[(O::SendFirst, Ext::None, 255)]),
        ("MIDDLE shorter than the MTU", &[(O::SendFirst, Ext::None, 256), (O::SendMiddle, Ext::None, 255)]),
        ("LAST without payload", &[(O::SendFirst, Ext::None, 256), (O::SendLast, Ext::None, 0)]),
        ("WRITE Only shorter than its DMA length", &[(O::WriteOnly, two, 100)]),
        ("WRITE Only longer than its DMA length", &[(O::WriteOnly, Ext::Reth(reth(0x8000, 99)), 100)]),
        (
            "WRITE that ends before its DMA length",
            &[(O::WriteFirst, two, 256), (O::WriteLast, Ext::None, 255)],
        ),
        ("FIRST longer than the DMA length", &[(O::WriteFirst, Ext::Reth(reth(0x8000, 255)), 256)]),
        (
            "MIDDLE past the DMA length",
            &[(O::WriteFirst, Ext::Reth(reth(0x8000, 300)), 256), (O::WriteMiddle, Ext::None, 256)],
        ),
        ("WRITE longer than 2^31", &[(O::WriteFirst, Ext::Reth(reth(0, (1 << 31) + 1)), 256)]),
        ("READ longer than 2^31", &[(O::ReadRequest, Ext::Reth(reth(0, (1 << 31) + 1)), 0)]),
        ("READ request with a payload", &[(O::ReadRequest, two, 4)]),
        ("reserved opcode", &[(O::Reserved(0x18), Ext::None, 0)]),
    ];
    for (name, packets) in cases {
        let mut pair = Pair::new();
        pair.post_recv(B, 7, 0x8000, 4096);
        for (index, &(operation, ext, len)) in packets.iter().enumerate() {
            let psn = p(0x100 + u32::try_from(index).unwrap());
            pair.inject_with(B, operation, psn, ext, &full[..len], |bth| bth.ack_req = false);
        }
        let nak = format!("B Acknowledge {:#x} InvalidRequest msn0", 0xff + packets.len());
        assert_eq!(pair.flow(), [nak], "{name}");
        assert_eq!(pair.b.asyncs, [AsyncEvent::InvalidRequest], "{name}");
        assert_eq!(pair.b.recvs(), [(7, Err(Status::Flushed))], "{name}");
        assert_eq!(pair.snapshot(B).state, State::Err, "{name}");
    }
}

#[test]
fn rejects_payload_over_path_mtu() {
    let mut pair = Pair::new();
    pair.post_recv(B, 7, 0x8000, 4096);
    pair.inject(B, Operation::SendOnly, p(0x100), Ext::None, &[0; 257]);
    assert_eq!(pair.flow(), ["B Acknowledge 0x100 InvalidRequest msn0"]);
}

#[test]
fn each_nak_code_maps_to_its_status() {
    for (code, status) in [
        (NakCode::InvalidRequest, Status::RemoteInvalidRequest),
        (NakCode::RemoteAccess, Status::RemoteAccess),
        (NakCode::RemoteOperational, Status::RemoteOperational),
        (NakCode::InvalidRdRequest, Status::RemoteInvalidRdRequest),
        (NakCode::Reserved(9), Status::BadResponse),
    ] {
        let mut pair = Pair::new();
        for id in 1..=4 {
            pair.post(A, write(id, 0x8000, 10));
        }
        pair.frames(A);
        pair.inject(A, Operation::Acknowledge, p(0x102), aeth(Syndrome::Nak(code)), b"");
        // Earlier requests succeed; later ones are flushed.
        let flushed = Err(Status::Flushed);
        assert_eq!(pair.a.sends(), [(1, Ok(())), (2, Ok(())), (3, Err(status)), (4, flushed)], "{code:?}");
        assert_eq!(pair.snapshot(A).state, State::Err);
        pair.advance(TIMEOUT);
        assert_eq!(pair.frames(A).len(), 0);
    }
}

#[test]
fn malformed_response_fails_with_bad_response() {
    use Operation as O;
    let ack = aeth(ACK);
    let atomic_ack = |syndrome| Ext::AtomicAck(Aeth { syndrome, msn: Default::default() }, 0);
    type Case<'a> = (&'a str, engine::SendRequest, &'a [(O, Ext, usize)]);
    let fetch_add = || request(1, SendOp::FetchAdd { remote: remote(0), add: 1 }, &[sge(0, 8)]);
    let cases: &[Case<'_>] = &[
        ("READ response to a WRITE", write(1, 0, 10), &[(O::ReadResponseOnly, ack, 10)]),
        ("ATOMIC Acknowledge for a WRITE", write(1, 0, 10), &[(O::AtomicAcknowledge, atomic_ack(ACK), 0)]),
        ("ATOMIC Acknowledge for a READ", read(1, 0, 10), &[(O::AtomicAcknowledge, atomic_ack(ACK), 0)]),
        ("READ response to an atomic", fetch_add(), &[(O::ReadResponseOnly, ack, 8)]),
        (
            "FIRST instead of MIDDLE",
            read(1, 0, 600),
            &[(O::ReadResponseFirst, ack, 256), (O::ReadResponseFirst, ack, 256)],
        ),
        ("MIDDLE instead of FIRST", read(1, 0, 600), &[(O::ReadResponseMiddle, Ext::None, 256)]),
        (
            "LAST before the last packet",
            read(1, 0, 600),
            &[(O::ReadResponseFirst, ack, 256), (O::ReadResponseLast, ack, 256)],
        ),
        (
            "MIDDLE that is too short",
            read(1, 0, 600),
            &[(O::ReadResponseFirst, ack, 256), (O::ReadResponseMiddle, Ext::None, 255)],
        ),
        (
            "LAST that is too short",
            read(1, 0, 300),
            &[(O::ReadResponseFirst, ack, 256), (O::ReadResponseLast, ack, 43)],
        ),
        (
            "LAST that is too long",
            read(1, 0, 300),
            &[(O::ReadResponseFirst, ack, 256), (O::ReadResponseLast, ack, 45)],
        ),
        ("ONLY that is too short", read(1, 0, 10), &[(O::ReadResponseOnly, ack, 9)]),
        ("reserved syndrome", write(1, 0, 10), &[(O::Acknowledge, aeth(Syndrome::Reserved(0x40)), 0)]),
        (
            "reserved syndrome in a READ response",
            read(1, 0, 10),
            &[(O::ReadResponseOnly, aeth(Syndrome::Reserved(0x40)), 10)],
        ),
    ];
    for (name, wr, packets) in cases {
        let mut pair = Pair::new();
        pair.post(A, wr.clone());
        pair.post(A, send(2, 0));
        pair.frames(A);
        for (index, &(operation, ext, len)) in packets.iter().enumerate() {
            let psn = p(0x100 + u32::try_from(index).unwrap());
            pair.inject(A, operation, psn, ext, &[0x5a; 256][..len]);
        }
        assert_eq!(pair.a.sends(), [(1, Err(Status::BadResponse)), (2, Err(Status::Flushed))], "{name}");
    }
}

#[test]
fn request_with_gather_error_completes_in_order() {
    let mut pair = Pair::new();
    pair.post(A, write(1, 0x8000, 10));
    let bad = Sge { lkey: Lkey::new(0x999), ..sge(0, 300) };
    pair.post(A, request(2, SendOp::Send { imm: None }, &[bad]));
    pair.post(A, write(3, 0x8000, 10));
    let trace = pair.flow();
    assert_eq!(trace, ["A WriteOnly 0x100 10B va+0x8000 10?", "B Acknowledge 0x100 msn1"]);
    let failed = Err(Status::LocalProtection(AccessError::Key));
    assert_eq!(pair.a.sends(), [(1, Ok(())), (2, failed), (3, Err(Status::Flushed))]);
    assert_eq!(pair.snapshot(A).state, State::Err);
    assert_eq!(pair.snapshot(B).state, State::Rts);
}

#[test]
fn read_into_unwritable_buffer_fails_locally() {
    let mut pair = Pair::new();
    pair.a.host.add_region(0x30, PD, VA, 100, Rights::empty());
    let bad = Sge { lkey: Lkey::new(0x30), ..sge(0, 10) };
    pair.post(A, request(1, SendOp::Read { remote: remote(0), invalidate: None }, &[bad]));
    pair.flow();
    assert_eq!(pair.a.sends(), [(1, Err(Status::LocalProtection(AccessError::Right)))]);
}

#[test]
fn oversized_message_fails_with_local_length_error() {
    let mut pair = Pair::with(|_, attrs| attrs.max_message_len = 1000);
    pair.post(A, write(1, 0, 1000));
    pair.post(A, write(2, 0, 1001));
    pair.flow();
    assert_eq!(pair.a.sends(), [(1, Ok(())), (2, Err(Status::LocalLength))]);
    assert_eq!(pair.snapshot(A).state, State::Err);
}

#[test]
fn invalid_wqe_completes_in_queue_order() {
    let mut pair = Pair::new();
    pair.post(A, write(1, 0x8000, 10));
    let refused = Fetch::Refused { wr_id: 2, status: Status::LocalQpOperation };
    pair.a.host.queues.get_mut(&A.qpn().get()).unwrap().send.push_back(refused);
    pair.flow();
    assert_eq!(pair.a.sends(), [(1, Ok(())), (2, Err(Status::LocalQpOperation))]);
}

#[test]
fn unreadable_work_queue_raises_wq_catastrophic_event() {
    let mut pair = Pair::new();
    pair.post(A, write(1, 0x8000, 10));
    pair.a.host.queues.get_mut(&A.qpn().get()).unwrap().send.push_back(Fetch::Broken);
    pair.frames(A);
    assert_eq!(pair.a.asyncs, [AsyncEvent::WqCatastrophic]);
    assert_eq!(pair.a.sends(), [(1, Err(Status::Flushed))]);

    let mut pair = Pair::new();
    pair.b.host.queues.entry(B.qpn().get()).or_default().recv.push_back(Fetch::Broken);
    pair.post(A, send(1, 10));
    let trace = pair.flow();
    assert_eq!(trace[1..], ["B Acknowledge 0x100 RemoteOperational msn0"]);
    assert_eq!(pair.b.asyncs, [AsyncEvent::WqCatastrophic]);
    assert_eq!(pair.a.sends(), [(1, Err(Status::RemoteOperational))]);
}

#[test]
fn packet_with_mismatched_headers_is_dropped() {
    let mut pair = Pair::new();
    pair.post_recv(B, 7, 0x8000, 100);
    let send = |pair: &mut Pair, tune: fn(&mut protocol::roce::Bth)| {
        pair.inject_with(B, Operation::SendOnly, p(0x100), Ext::None, b"x", tune);
    };
    send(&mut pair, |bth| bth.pkey = protocol::ids::Pkey::new(0x8001));
    send(&mut pair, |bth| bth.dest_qp = protocol::ids::Qpn::new(0x55));
    send(&mut pair, |bth| bth.opcode = protocol::roce::Opcode::uc(Operation::SendOnly));
    let bth = {
        let mut found = None;
        pair.inject_with(B, Operation::SendOnly, p(0x200), Ext::None, b"", |bth| found = Some(*bth));
        found.unwrap()
    };
    assert_eq!(pair.flow(), ["B Acknowledge 0x100 PsnSequence msn0"]);
    let stranger = A.path();
    let mut encap = stranger;
    encap.ip = protocol::roce::IpAddrs::V4 { src: [10, 0, 0, 9].into(), dst: [10, 77, 0, 2].into() };
    let packet = protocol::roce::Packet {
        bth: protocol::roce::Bth { psn: p(0x100), ..bth },
        srqn: None,
        ext: Ext::None,
        payload: b"x",
    };
    pair.deliver_packet(B, &encap, &packet);
    let drops = pair.b.engine.stats().drops;
    assert_eq!((drops.wrong_pkey, drops.unknown_qp, drops.wrong_service, drops.wrong_source), (1, 1, 1, 1));
    assert_eq!(pair.b.recvs(), []);
    // A limited member of a partition can communicate with a full member, and MigReq, FECN and BECN are ignored, so
    // this packet is delivered.
    send(&mut pair, |bth| {
        (bth.pkey, bth.mig_req, bth.fecn, bth.becn) = (protocol::ids::Pkey::new(0x7fff), false, true, true);
    });
    assert_eq!(pair.b.recvs(), ok([7]));
}

/// IBTA volume 1, section 9.6.1.2: the destination address must be that of the local port.
#[test]
fn own_address_check_drops_packets_to_other_addresses() {
    use protocol::roce::{Encap, IpAddrs, Packet};
    for own_address in [false, true] {
        let mut pair = Pair::with(|_, attrs| attrs.own_address = own_address);
        pair.post_recv(B, 7, 0x8000, 100);
        let mut bth = None;
        pair.inject_with(B, Operation::SendOnly, p(0x200), Ext::None, b"", |sent| bth = Some(*sent));
        let packet = Packet {
            bth: protocol::roce::Bth { psn: p(0x100), ..bth.unwrap() },
            srqn: None,
            ext: Ext::None,
            payload: b"x",
        };
        let to = |dst: [u8; 4]| {
            let ip = IpAddrs::V4 { src: [10, 77, 0, 1].into(), dst: dst.into() };
            Encap { ip, ..A.path() }
        };
        pair.deliver_packet(B, &to([10, 77, 0, 3]), &packet);
        assert_eq!(pair.b.engine.stats().drops.wrong_destination, u64::from(own_address));
        pair.deliver_packet(B, &to([10, 77, 0, 2]), &packet);
        assert_eq!(pair.b.recvs(), ok([7]), "only the packet to the QP's own address is accepted");
    }
}

/// A peer may send a GRH even if this end does not. Its packets then use IPv6 while the path uses IPv4, so the source
/// is checked by MAC address.
#[test]
fn unexpected_grh_requires_source_mac_of_peer() {
    use protocol::ids::MacAddr;
    let mut pair = Pair::new();
    (7..9).for_each(|wr| pair.post_recv(B, wr, 0x8000, 100));
    let bth = {
        let mut found = None;
        pair.inject_with(B, Operation::SendOnly, p(0x200), Ext::None, b"", |bth| found = Some(*bth));
        found.unwrap()
    };
    let mut wrong = 0;
    let mut arrive = |pair: &mut Pair, psn, src_mac, src: &str, accepted: bool| {
        let dst = "fe80::ff:fe00:2".parse().unwrap();
        let ip = protocol::roce::IpAddrs::V6 { src: src.parse().unwrap(), dst };
        let encap = protocol::roce::Encap { src_mac, ip, ..A.path() };
        let bth = protocol::roce::Bth { psn: p(psn), ..bth };
        pair.deliver_packet(
            B,
            &encap,
            &protocol::roce::Packet { bth, srqn: None, ext: Ext::None, payload: b"x" },
        );
        wrong += u64::from(!accepted);
        assert_eq!(pair.b.engine.stats().drops.wrong_source, wrong, "{src_mac} {src}");
        assert_eq!(pair.b.recvs().len(), usize::from(accepted), "{src_mac} {src}");
    };
    let peer = A.path().src_mac;
    let stranger = MacAddr([2, 0, 0, 0, 0, 9]);
    arrive(&mut pair, 0x100, stranger, "fe80::ff:fe00:1", false);
    arrive(&mut pair, 0x100, MacAddr::default(), "fe80::ff:fe00:1", false);
    arrive(&mut pair, 0x100, peer, "fe80::ff:fe00:1", true);

    // The path's MAC address is not resolved yet, so packets of the other IP version are rejected.
    pair.modify_with(B, State::Rts, |modify| modify.attrs.path.dst_mac = MacAddr::default());
    arrive(&mut pair, 0x101, MacAddr::default(), "fe80::ff:fe00:1", false);
    arrive(&mut pair, 0x101, peer, "fe80::ff:fe00:1", false);
}

#[test]
fn disabled_remote_operation_is_rejected() {
    use engine::RemoteAccess;
    let posted = |allowed: RemoteAccess, wr: engine::SendRequest| {
        let mut pair = Pair::with(|node, attrs| {
            if node == B {
                attrs.remote = allowed;
            }
        });
        pair.post(A, wr);
        pair.flow();
        (pair.a.sends()[0].1, pair.b.asyncs.clone())
    };
    let add = request(1, SendOp::FetchAdd { remote: remote(0), add: 1 }, &[sge(0, 8)]);
    let all = RemoteAccess::ALL;
    for (without, wr) in [
        (RemoteAccess { read: false, ..all }, read(1, 0, 10)),
        (RemoteAccess { write: false, ..all }, write(1, 0, 10)),
        (RemoteAccess { write: false, ..all }, write(1, 0, 0)),
        (RemoteAccess { atomic: false, ..all }, add),
    ] {
        let refused = (Err(Status::RemoteInvalidRequest), vec![AsyncEvent::InvalidRequest]);
        assert_eq!(posted(without, wr.clone()), refused, "{without:?}");
        assert_eq!(posted(all, wr), (Ok(()), vec![]));
    }
    let mut pair = Pair::with(|_, attrs| attrs.remote = RemoteAccess { invalidate: false, ..all });
    pair.post_recv(B, 7, 0x8000, 10);
    pair.post(A, request(1, SendOp::SendInvalidate { rkey: Rkey::new(KEY) }, &[sge(0, 10)]));
    let trace = pair.flow();
    assert_eq!(trace[1..], ["B Acknowledge 0x100 InvalidRequest msn0"]);
    assert_eq!(pair.b.recvs(), [(7, Err(Status::Flushed))]);
    let mut pair = Pair::with(|_, attrs| {
        (attrs.service, attrs.remote) = (engine::Service::Uc, RemoteAccess { write: false, ..all });
    });
    pair.post(A, write(1, 0, 10));
    pair.flow();
    assert_eq!((pair.b.engine.stats().drops.no_access, pair.b.asyncs.len()), (1, 0));
}

#[test]
fn all_permitted_reads_can_be_pending() {
    let mut pair = Pair::with(|_, attrs| attrs.max_dest_rd_atomic = 255);
    for psn in 0x100..0x100 + 255 {
        pair.inject(B, Operation::ReadRequest, p(psn), Ext::Reth(reth(0, 1)), b"");
    }
    assert_eq!(pair.snapshot(B).recv_psn, p(0x100 + 255));
    assert_eq!(pair.frames(B).len(), 255);
    assert_eq!(pair.b.engine.stats().drops.reply_overflow, 0);
}

#[test]
fn reads_past_255_pending_replies_are_dropped() {
    let mut pair = Pair::with(|_, attrs| attrs.max_dest_rd_atomic = 255);
    let read = |pair: &mut Pair, psn| {
        pair.inject(B, Operation::ReadRequest, p(psn), Ext::Reth(reth(0, 1)), b"");
    };
    (0x100..0x100 + 200).for_each(|psn| read(&mut pair, psn));
    assert_eq!(pair.frames(B).len(), 200);
    (0x100 + 200..0x100 + 300).for_each(|psn| read(&mut pair, psn));
    // The history contains the last 255 READs.
    (0x100 + 45..0x100 + 200).for_each(|psn| read(&mut pair, psn));
    read(&mut pair, 0x100 + 300);
    (0x100 + 46..0x100 + 200).for_each(|psn| read(&mut pair, psn));
    assert_eq!(pair.frames(B).len(), 255);
}

#[test]
fn compare_swap_swaps_only_on_match() {
    let mut pair = Pair::new();
    pair.b.host.bytes(KEY)[..8].copy_from_slice(&1u64.to_le_bytes());
    let cas = |compare, swap_add| {
        Ext::Atomic(AtomicEth { va: Va::new(VA), rkey: Rkey::new(KEY), swap_add, compare })
    };
    pair.inject(B, Operation::CompareSwap, p(0x100), cas(2, 9), b"");
    assert_eq!(pair.bytes(B, 0, 8), 1u64.to_le_bytes());
    pair.inject(B, Operation::CompareSwap, p(0x101), cas(1, 9), b"");
    assert_eq!(pair.bytes(B, 0, 8), 9u64.to_le_bytes());
}

#[test]
fn rejected_write_imm_does_not_consume_receive() {
    let mut pair = Pair::new();
    pair.post_recv(B, 7, 0, 0);
    let bad = engine::Remote { rkey: Rkey::new(0x999), ..remote(0) };
    pair.post(A, request(1, SendOp::Write { remote: bad, imm: Some(Imm([0; 4])) }, &[sge(0, 1)]));
    pair.flow();
    assert_eq!(pair.b.recvs(), [(7, Err(Status::Flushed))]);
}
