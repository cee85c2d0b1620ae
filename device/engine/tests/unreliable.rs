//! Tests the behaviour of UC and UD queue pairs.

use std::net::Ipv4Addr;

use crate::common::*;
use engine::{GrhArea, SendOp, SendRequest, Service, Status, Success, UdDestination};
use protocol::Psn;
use protocol::ids::Qkey;
use protocol::roce::{Ext, Imm, Operation};

fn uc() -> Pair {
    Pair::with(|_, attrs| attrs.service = Service::Uc)
}

fn ud(grh_area: GrhArea) -> Pair {
    Pair::with(|_, attrs| (attrs.service, attrs.grh_area) = (Service::Ud, grh_area))
}

fn datagram(wr_id: u64, len: u32, qkey: u32) -> SendRequest {
    let to = UdDestination { path: A.path(), qpn: B.qpn(), qkey: Qkey::new(qkey), header: None };
    SendRequest { ud: Some(to), ..send(wr_id, len) }
}

#[test]
fn uc_send_completes_after_last_packet() {
    let mut pair = uc();
    pair.post_recv(B, 7, 0x8000, 300);
    pair.post(A, send(1, 300));
    pair.post(A, write(2, 0x9000, 10));
    assert_eq!(
        pair.flow(),
        ["A SendFirst 0x100 256B", "A SendLast 0x101 44B", "A WriteOnly 0x102 10B va+0x9000 10"]
    );
    assert_eq!(pair.a.sends(), ok([1, 2]));
    assert_eq!(pair.b.recvs(), ok([7]));
    assert_eq!(pair.bytes(B, 0x8000, 300), pair.bytes(A, 0, 300));
    assert_eq!(pair.bytes(B, 0x9000, 10), pair.bytes(A, 0, 10));
}

#[test]
fn next_uc_message_reuses_receive_of_incomplete_message() {
    for lost in 0..3 {
        let mut pair = uc();
        pair.post_recv(B, 7, 0x8000, 1000);
        pair.post(A, send(1, 700));
        pair.lose(A, lost);
        assert_eq!(pair.b.recvs(), [], "packet {lost} is lost");
        pair.post(A, send(2, 5));
        pair.flow();
        assert_eq!(pair.b.recvs(), ok([7]), "packet {lost} is lost");
        assert_eq!(pair.bytes(B, 0x8000, 5), pair.bytes(A, 0, 5));
    }
}

#[test]
fn uc_drops_undeliverable_messages_silently() {
    let mut pair = uc();
    pair.post(A, send(1, 300));
    assert_eq!(pair.flow().len(), 2);
    pair.post_recv(B, 7, 0x8000, 299);
    pair.post(A, send(2, 300));
    pair.flow();
    let bad = engine::Remote { rkey: protocol::ids::Rkey::new(0x999), ..remote(0) };
    pair.post(A, request(3, SendOp::Write { remote: bad, imm: None }, &[sge(0, 10)]));
    pair.flow();
    let drops = pair.b.engine.stats().drops;
    assert_eq!((drops.no_receive, drops.too_long, drops.no_access), (1, 1, 1));
    assert_eq!((pair.a.sends(), pair.b.recvs()), (ok([1, 2, 3]), vec![]));
    assert_eq!(pair.b.asyncs, []);
}

#[test]
fn read_on_uc_is_local_operation_error() {
    let mut pair = uc();
    pair.post(A, read(1, 0, 10));
    pair.frames(A);
    assert_eq!(pair.a.sends(), [(1, Err(Status::LocalQpOperation))]);
}

#[test]
fn datagram_completion_reports_source_qpn_mac_and_immediate() {
    let mut pair = ud(GrhArea::None);
    pair.post_recv(B, 7, 0x8000, 100);
    let mut wr = datagram(1, 17, 0x1111_1111);
    wr.op = SendOp::Send { imm: Some(Imm([1, 2, 3, 4])) };
    pair.post(A, wr);
    assert_eq!(pair.flow(), ["A SendOnlyImm 0x100 17B"]);
    assert_eq!(pair.a.sends(), ok([1]));
    let Ok(Success::Recv(done)) = pair.b.completions[0].result else { panic!() };
    assert_eq!((done.byte_len, done.remote_qpn, done.imm), (17, A.qpn(), Some(Imm([1, 2, 3, 4]))));
    assert_eq!(done.remote_mac, A.path().src_mac);
    assert_eq!(pair.bytes(B, 0x8000, 17), pair.bytes(A, 0, 17));
}

#[test]
fn grh_area_holds_ipv4_header_in_last_20_bytes() {
    let mut pair = ud(GrhArea::Roce);
    pair.post_recv(B, 7, 0x8000, 100);
    pair.post(A, datagram(1, 17, 0x1111_1111));
    pair.flow();
    let Ok(Success::Recv(done)) = pair.b.completions[0].result else { panic!() };
    assert_eq!(done.byte_len, 57);
    let head = pair.bytes(B, 0x8000, 40);
    assert_eq!((head[20], head[29]), (0x45, 17));
    // The IP length is the sum of 20 (IP), 8 (UDP), 12 (BTH), 8 (DETH), 17 (payload), 3 (padding) and 4 (ICRC) bytes.
    assert_eq!(u16::from_be_bytes([head[22], head[23]]), 72);
    assert_eq!(head[32..36], Ipv4Addr::new(10, 77, 0, 1).octets());
    assert_eq!(pair.bytes(B, 0x8028, 17), pair.bytes(A, 0, 17));
}

#[test]
fn datagram_with_wrong_qkey_is_dropped() {
    let mut pair = ud(GrhArea::None);
    pair.post_recv(B, 7, 0x8000, 100);
    pair.post(A, datagram(1, 17, 0x2222));
    pair.flow();
    assert_eq!(pair.b.recvs(), []);
    assert_eq!(pair.b.engine.stats().drops.wrong_qkey, 1);
    // Bit 31 is set, so the Q_Key of the sending QP is used.
    pair.post(A, datagram(2, 17, 0x8000_0000));
    pair.flow();
    assert_eq!(pair.b.recvs(), ok([7]));
}

#[test]
fn oversized_datagrams_are_dropped() {
    let mut pair = ud(GrhArea::None);
    pair.post(A, datagram(1, 17, 0x1111_1111));
    pair.flow();
    assert_eq!(pair.b.engine.stats().drops.no_receive, 1);
    pair.post_recv(B, 7, 0x8000, 16);
    pair.post(A, datagram(2, 17, 0x1111_1111));
    pair.flow();
    assert_eq!(pair.b.engine.stats().drops.too_long, 1);
    pair.inject_with(B, Operation::SendFirst, Psn::new(5), Ext::None, &[0; 256], |bth| {
        bth.opcode = protocol::roce::Opcode::ud(Operation::SendFirst);
    });
    assert_eq!(pair.b.engine.stats().drops.malformed, 1);
    // This datagram is longer than the path MTU.
    pair.post(A, datagram(3, 257, 0x1111_1111));
    pair.frames(A);
    assert_eq!(pair.a.sends(), [(1, Ok(())), (2, Ok(())), (3, Err(Status::LocalLength))]);
    assert_eq!(pair.b.recvs(), []);
}
