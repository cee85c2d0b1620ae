//! Tests the HCA as a responder.

pub(super) mod headers;
pub(super) mod messages;
pub(super) mod order;
pub(super) mod refusals;
pub(super) mod states;

use anyhow::{Result, ensure};

use super::Case;
use super::link::{Attributes, Link, content, message, state, syndrome};
use crate::packet_peer::{Atomic, Packet, Reth};

const fn case(name: &'static str, run: fn(&mut Link<'_>) -> Result<()>) -> Case {
    Case { name, attributes: Attributes::DEFAULT, run }
}

pub(super) const CASES: &[Case] = &[
    case("the first packet of a SEND lost: one NAK, then the message", |link| lost(link, 0)),
    case("a middle packet of a SEND lost: one NAK, then the message", |link| lost(link, 1)),
    case("the last packet of a SEND lost: no NAK, then the message", |link| lost(link, 2)),
    case("the first PSN ahead of the expected one triggers a NAK, later ones do not", psn_ahead),
    case("a duplicate SEND is acknowledged again and executed once", duplicate_send),
    case("a duplicate of part of an unfinished message is acknowledged with the newest PSN", duplicate_part),
    case("a duplicate WRITE does not write again", duplicate_write),
    case("a duplicate READ is answered again", duplicate_read),
    case("a duplicate READ of the tail returns the tail", duplicate_read_tail),
    case("a duplicate FETCH_ADD returns the first result and adds once", duplicate_atomic),
    case("COMPARE_SWAP swaps only if the values are equal", compare_swap),
    case("a request half the PSN space away is a duplicate or dropped, never executed", far_psn),
    case("RNR NAK with the RNR timer of the QP, then success", rnr_then_success),
    case("RNR NAK of a WRITE with immediate, then success", rnr_write_imm),
    case("an unexpected ACK is dropped", ghost_response),
    case("a packet of a different service is dropped", wrong_service),
    case("a wrong P_Key is dropped", wrong_pkey),
    case("a wrong ICRC is dropped", bad_icrc),
    case("an ECN mark does not change the execution of a request", ecn_marked),
    case("MigReq clear is accepted", mig_req_clear),
    case("a wrong R_Key in a zero-length WRITE is ignored", zero_length_write),
    case("READ responses are split at the path MTU and carry the MSN", read_shape),
    case("every packet with AckReq within a message is acknowledged with an unchanged MSN", ack_req_within),
    case("responses are sent in request order", order_of_answers),
    case("the results of sixteen FETCH_ADDs are kept", remembered_atomics),
    case("a duplicate READ beyond the original range gets no response", duplicate_read_beyond),
    case("a duplicate READ with an invalid key gets no response", duplicate_read_of_wrong_key),
    case("a duplicate READ that was never executed gets no response", read_never_executed),
    case("a packet from a limited partition member is accepted", limited_member),
    case("a solicited SEND with immediate is delivered", send_imm),
];

fn write_only(link: &Link<'_>, reth: Reth, payload: &[u8]) -> Packet {
    Packet { reth: Some(reth), ack_req: true, ..link.packet("RC_RDMA_WRITE_ONLY", 0, payload) }
}

fn fetch_add(link: &Link<'_>, n: u32, off: u64, add: u64) -> Packet {
    let Reth { va, rkey, .. } = link.reth(off, 8);
    let atomic = Some(Atomic { va, rkey, swap_add: add, compare: 0 });
    Packet { atomic, ack_req: true, ..link.packet("RC_FETCH_ADD", n, &[]) }
}

/// Checks that a gap in the PSNs triggers one NAK with the missing PSN (IBTA 9.7.4).
fn lost(link: &mut Link<'_>, missing: u32) -> Result<()> {
    let payload = message(3 * link.mtu);
    link.post_receive(0, 4096)?;
    let packets = link.send_message(0, &payload);
    for (n, packet) in (0..).zip(&packets) {
        if n != missing {
            link.send(packet)?;
        }
    }
    if missing < 2 {
        link.expect_acknowledge(missing, syndrome::NAK_SEQUENCE, 0)?;
    }
    link.expect_silence()?;
    link.expect_no_completion()?;
    for packet in (0..).zip(&packets).filter_map(|(n, packet)| (n >= missing).then_some(packet)) {
        link.send(packet)?;
    }
    link.expect_acknowledge(2, syndrome::ACK, 1)?;
    link.expect_success()?;
    link.expect_memory(0, &payload)?;
    link.expect_receives(3, 2)
}

fn psn_ahead(link: &mut Link<'_>) -> Result<()> {
    link.post_receive(0, 4096)?;
    for n in [5, 6, 9, 5] {
        let packet = Packet { ack_req: true, ..link.packet("RC_SEND_ONLY", n, &message(8)) };
        link.send(&packet)?;
    }
    link.expect_acknowledge(0, syndrome::NAK_SEQUENCE, 0)?;
    link.expect_silence()?;
    link.expect_no_completion()?;
    let packets = link.send_message(0, &message(8));
    link.send_all(&packets)?;
    link.expect_acknowledge(0, syndrome::ACK, 1)?;
    link.expect_success()?;
    // Now that the first gap is closed, a second gap triggers a new NAK.
    let packets = link.send_message(3, &message(8));
    link.send_all(&packets)?;
    link.expect_acknowledge(1, syndrome::NAK_SEQUENCE, 1)
}

fn duplicate_send(link: &mut Link<'_>) -> Result<()> {
    link.post_receive(0, 64)?;
    link.post_receive(64, 64)?;
    let packets = link.send_message(0, &message(64));
    link.send_all(&packets)?;
    link.expect_acknowledge(0, syndrome::ACK, 1)?;
    link.expect_success()?;
    link.send_all(&packets)?;
    link.expect_acknowledge(0, syndrome::ACK, 1)?;
    link.expect_no_completion()?;
    link.expect_memory(64, &content(64, 64))
}

fn duplicate_part(link: &mut Link<'_>) -> Result<()> {
    let payload = message(3 * link.mtu);
    link.post_receive(0, 4096)?;
    let packets = link.send_message(0, &payload);
    link.send_all(&packets[..2])?;
    link.expect_silence()?;
    let again = Packet { ack_req: true, ..packets[0].clone() };
    link.send(&again)?;
    link.expect_acknowledge(1, syndrome::ACK, 0)?;
    link.send(&packets[2])?;
    link.expect_acknowledge(2, syndrome::ACK, 1)?;
    link.expect_success()?;
    link.expect_memory(0, &payload)
}

fn duplicate_write(link: &mut Link<'_>) -> Result<()> {
    let packet = write_only(link, link.reth(0, 64), &message(64));
    link.send(&packet)?;
    link.expect_acknowledge(0, syndrome::ACK, 1)?;
    link.expect_memory(0, &message(64))?;
    // Software may reuse the memory once the message is complete. The duplicate must not overwrite it.
    link.store(0, &[0x5a; 64])?;
    link.send(&packet)?;
    link.expect_acknowledge(0, syndrome::ACK, 1)?;
    link.expect_memory(0, &[0x5a; 64])
}

/// Receives the responses to a READ that starts at the peer's packet `n`. Returns their concatenated payload.
fn responses(link: &mut Link<'_>, n: u32, names: &[&str], msn: u32) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    for (i, name) in (0..).zip(names) {
        let packet = link.next()?;
        ensure!(
            packet.is(name) && packet.psn == Link::peer_psn(n + i),
            "expected response {i}, {name}: {packet:?}"
        );
        let aeth = packet.aeth.map(|aeth| (aeth.syndrome & 0xe0, aeth.msn));
        let expected = (!name.ends_with("MIDDLE")).then_some((0, msn));
        ensure!(aeth == expected, "AETH {:x?} in {packet:?}", packet.aeth);
        bytes.extend_from_slice(&packet.payload);
    }
    Ok(bytes)
}

const THREE: [&str; 3] =
    ["RC_RDMA_READ_RESPONSE_FIRST", "RC_RDMA_READ_RESPONSE_MIDDLE", "RC_RDMA_READ_RESPONSE_LAST"];

fn read_shape(link: &mut Link<'_>) -> Result<()> {
    let mtu = u32::try_from(link.mtu)?;
    let request = link.read_request(0, link.reth(3, 2 * mtu + 1));
    link.send(&request)?;
    let bytes = responses(link, 0, &THREE, 1)?;
    ensure!(bytes == content(3, 2 * link.mtu + 1), "content differs");
    let request = link.read_request(3, link.reth(0, mtu));
    link.send(&request)?;
    ensure!(
        responses(link, 3, &["RC_RDMA_READ_RESPONSE_ONLY"], 2)? == content(0, link.mtu),
        "content differs"
    );
    let request = link.read_request(4, Reth { va: 0, rkey: 0, len: 0 });
    link.send(&request)?;
    ensure!(
        responses(link, 4, &["RC_RDMA_READ_RESPONSE_ONLY"], 3)?.is_empty(),
        "a zero-length READ response has content"
    );
    link.expect_receives(5, 4)
}

fn duplicate_read(link: &mut Link<'_>) -> Result<()> {
    let request = link.read_request(0, link.reth(0, 3 * u32::try_from(link.mtu)?));
    for _ in 0..2 {
        link.send(&request)?;
        ensure!(responses(link, 0, &THREE, 1)? == content(0, 3 * link.mtu), "content differs");
    }
    link.expect_receives(3, 2)
}

/// Checks the responses to the READ that a requester sends after losing a response packet in the middle. This READ
/// requests only the remaining data, with the PSN, address and length of the remainder (IBTA 9.7.5.1).
fn duplicate_read_tail(link: &mut Link<'_>) -> Result<()> {
    let mtu = u32::try_from(link.mtu)?;
    let request = link.read_request(0, link.reth(0, 3 * mtu));
    link.send(&request)?;
    responses(link, 0, &THREE, 1)?;
    let rest = link.read_request(1, link.reth(mtu.into(), 2 * mtu));
    link.send(&rest)?;
    let names = [THREE[0], THREE[2]];
    ensure!(responses(link, 1, &names, 1)? == content(link.mtu, 2 * link.mtu), "content differs");
    link.expect_receives(3, 2)
}

fn expect_original(link: &mut Link<'_>, n: u32, original: u64, msn: u32) -> Result<()> {
    let packet = link.next()?;
    ensure!(
        packet.is("RC_ATOMIC_ACKNOWLEDGE")
            && packet.psn == Link::peer_psn(n)
            && packet.original == Some(original)
            && packet.aeth.is_some_and(|aeth| aeth.msn == msn),
        "expected the result {original:#x} for packet {n} with MSN {msn}: {packet:?}"
    );
    Ok(())
}

fn duplicate_atomic(link: &mut Link<'_>) -> Result<()> {
    link.store(8, &5u64.to_le_bytes())?;
    let (first, second) = (fetch_add(link, 0, 8, 3), fetch_add(link, 1, 8, 10));
    link.send(&first)?;
    expect_original(link, 0, 5, 1)?;
    link.send(&second)?;
    expect_original(link, 1, 8, 2)?;
    for _ in 0..2 {
        link.send(&first)?;
        expect_original(link, 0, 5, 2)?;
    }
    link.expect_memory(8, &18u64.to_le_bytes())?;
    link.expect_receives(2, 3)
}

fn compare_swap(link: &mut Link<'_>) -> Result<()> {
    link.store(16, &5u64.to_le_bytes())?;
    for (n, compare, swap, original, after) in [(0, 4, 9, 5, 5), (1, 5, 9, 5, 9u64)] {
        let Reth { va, rkey, .. } = link.reth(16, 8);
        let atomic = Some(Atomic { va, rkey, swap_add: swap, compare });
        let packet = Packet { atomic, ack_req: true, ..link.packet("RC_COMPARE_SWAP", n, &[]) };
        link.send(&packet)?;
        expect_original(link, n, original, n + 1)?;
        link.expect_memory(16, &after.to_le_bytes())?;
    }
    Ok(())
}

fn far_psn(link: &mut Link<'_>) -> Result<()> {
    link.post_receive(0, 64)?;
    let packet = Packet { ack_req: true, ..link.packet("RC_SEND_ONLY", 0x80_0000, &message(64)) };
    link.send(&packet)?;
    // The HCA may treat the packet as a duplicate and acknowledge the latest PSN, but must not send any other response.
    for answer in link.rest()? {
        ensure!(answer.psn == Link::peer_psn(0xff_ffff), "answered {answer:?}");
    }
    link.expect_no_completion()?;
    link.expect_memory(0, &content(0, 64))?;
    let packets = link.send_message(0, &message(64));
    link.send_all(&packets)?;
    link.expect_acknowledge(0, syndrome::ACK, 1)
}

fn rnr_then_success(link: &mut Link<'_>) -> Result<()> {
    let timer = Attributes::DEFAULT.rnr_timer;
    let payload = message(3 * link.mtu);
    let packets = link.send_message(0, &payload);
    link.send_all(&packets)?;
    link.expect_acknowledge(0, syndrome::RNR | timer, 0)?;
    // The packets after the rejected one are out of sequence, but must not trigger another NAK while the RNR NAK is
    // outstanding.
    link.expect_silence()?;
    link.post_receive(0, 4096)?;
    link.send_all(&packets)?;
    link.expect_acknowledge(2, syndrome::ACK, 1)?;
    link.expect_success()?;
    link.expect_memory(0, &payload)
}

fn rnr_write_imm(link: &mut Link<'_>) -> Result<()> {
    let imm = Some(agent::wire::Hex(vec![1, 2, 3, 4]));
    let packet = Packet {
        op: "RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE".into(),
        imm,
        ..write_only(link, link.reth(0, 64), &message(64))
    };
    link.send(&packet)?;
    link.expect_acknowledge(0, syndrome::RNR | Attributes::DEFAULT.rnr_timer, 0)?;
    link.expect_no_completion()?;
    link.post_receive(4096, 0)?;
    link.send(&packet)?;
    link.expect_acknowledge(0, syndrome::ACK, 1)?;
    let cqe = link.expect_success()?;
    ensure!(cqe.imm == [1, 2, 3, 4] && cqe.byte_count == 64, "completed with {cqe:?}");
    link.expect_memory(0, &message(64))
}

fn ghost_response(link: &mut Link<'_>) -> Result<()> {
    for packet in [
        link.ack(0, syndrome::ACK, 1),
        link.ack(5, syndrome::NAK_REMOTE_ACCESS, 1),
        link.response("RC_RDMA_READ_RESPONSE_ONLY", 0, &message(8)),
        Packet { original: Some(1), ..link.response("RC_ATOMIC_ACKNOWLEDGE", 0, &[]) },
    ] {
        link.send(&packet)?;
    }
    link.expect_silence()?;
    link.expect_no_completion()?;
    link.expect_state(state::RTS)?;
    link.expect_receives(0, 1)
}

fn wrong_service(link: &mut Link<'_>) -> Result<()> {
    link.post_receive(0, 64)?;
    let uc = |op| Packet { ack_req: true, ..link.packet(op, 0, &message(link.mtu)) };
    let mut packets = vec![uc("UC_SEND_ONLY"), uc("UC_SEND_FIRST")];
    // A UD packet has a DETH after the BTH. The first eight bytes of this payload serve as the DETH.
    packets.push(link.packet("UD_SEND_ONLY", 0, &message(72)));
    link.expect_drops("/engine/drops/wrong_service", &packets)?;
    link.expect_state(state::RTS)
}

/// Checks that a packet modified by `change` is dropped and counted in the counter `path`, and that the unmodified
/// packet is executed.
fn dropped(link: &mut Link<'_>, path: &str, change: fn(&mut Packet)) -> Result<()> {
    link.post_receive(0, 64)?;
    let good = link.send_message(0, &message(64));
    let mut bad = good[0].clone();
    change(&mut bad);
    link.expect_drops(path, &[bad])?;
    link.send_all(&good)?;
    link.expect_acknowledge(0, syndrome::ACK, 1)?;
    link.expect_success()?;
    link.expect_memory(0, &message(64))
}

fn wrong_pkey(link: &mut Link<'_>) -> Result<()> {
    dropped(link, "/engine/drops/wrong_pkey", |packet| packet.pkey = 0x8123)
}

fn bad_icrc(link: &mut Link<'_>) -> Result<()> {
    dropped(link, "/port/dropped/icrc", |packet| packet.bad_icrc = true)
}

fn accepted(link: &mut Link<'_>, change: fn(&mut Packet)) -> Result<()> {
    link.post_receive(0, 64)?;
    let mut packets = link.send_message(0, &message(64));
    packets.iter_mut().for_each(change);
    link.send_all(&packets)?;
    let answers = link.rest()?;
    let acks = answers.iter().filter(|answer| answer.is("RC_ACKNOWLEDGE")).count();
    ensure!(acks == 1, "answered {answers:?}");
    link.expect_success()?;
    link.expect_memory(0, &message(64))
}

fn ecn_marked(link: &mut Link<'_>) -> Result<()> {
    accepted(link, |packet| packet.ecn = 3)
}

fn mig_req_clear(link: &mut Link<'_>) -> Result<()> {
    accepted(link, |packet| packet.mig_req = false)
}

fn zero_length_write(link: &mut Link<'_>) -> Result<()> {
    let packet = write_only(link, Reth { va: 1, rkey: 0xdead_beef, len: 0 }, &[]);
    link.send(&packet)?;
    link.expect_acknowledge(0, syndrome::ACK, 1)?;
    link.expect_receives(1, 2)
}

fn ack_req_within(link: &mut Link<'_>) -> Result<()> {
    link.post_receive(0, 4096)?;
    let packets = link.send_message(0, &message(3 * link.mtu));
    for (n, packet) in (0..).zip(packets) {
        link.send(&Packet { ack_req: true, ..packet })?;
        link.expect_acknowledge(n, syndrome::ACK, u32::from(n == 2))?;
    }
    Ok(())
}

fn order_of_answers(link: &mut Link<'_>) -> Result<()> {
    link.post_receive(4096, 64)?;
    let send = link.send_message(1, &message(8)).remove(0);
    let requests = [
        link.read_request(0, link.reth(0, 8)),
        send,
        fetch_add(link, 2, 0, 0),
        link.read_request(3, link.reth(8, 8)),
    ];
    link.send_all(&requests)?;
    ensure!(responses(link, 0, &["RC_RDMA_READ_RESPONSE_ONLY"], 1)? == content(0, 8), "content differs");
    let next = link.next()?;
    // The response to the atomic also acknowledges the SEND. A separate ACK is optional.
    if next.is("RC_ACKNOWLEDGE") {
        ensure!(next.psn == Link::peer_psn(1), "acknowledges {next:?}");
        link.next()?;
    } else {
        ensure!(next.is("RC_ATOMIC_ACKNOWLEDGE") && next.psn == Link::peer_psn(2), "answers {next:?}");
    }
    ensure!(responses(link, 3, &["RC_RDMA_READ_RESPONSE_ONLY"], 4)? == content(8, 8), "content differs");
    Ok(())
}

/// Checks that the results of sixteen atomics, as many as may be outstanding, are kept for duplicates (JingZhao
/// interface, section 10.4).
fn remembered_atomics(link: &mut Link<'_>) -> Result<()> {
    link.store(0, &[0; 8])?;
    let requests: Vec<_> = (0..16).map(|n| fetch_add(link, n, 0, 1)).collect();
    link.send_all(&requests)?;
    for n in 0..16 {
        expect_original(link, n, n.into(), n + 1)?;
    }
    for n in [0, 7, 15, 0] {
        link.send(&requests[n as usize])?;
        expect_original(link, n, n.into(), 16)?;
    }
    link.expect_memory(0, &16u64.to_le_bytes())
}

/// Checks that a duplicate READ with a wrong key is not answered. Only a packet with the expected PSN may trigger a NAK
/// (IBTA 9.7.5).
fn duplicate_read_of_wrong_key(link: &mut Link<'_>) -> Result<()> {
    let request = link.read_request(0, link.reth(0, 8));
    link.send(&request)?;
    responses(link, 0, &["RC_RDMA_READ_RESPONSE_ONLY"], 1)?;
    let Reth { va, rkey, len } = link.reth(0, 8);
    let wrong = link.read_request(0, Reth { va, rkey: rkey ^ 0x5a5a, len });
    link.send(&wrong)?;
    link.expect_silence()?;
    link.expect_receives(1, 2)
}

fn duplicate_read_beyond(link: &mut Link<'_>) -> Result<()> {
    let request = link.read_request(0, link.reth(0, 8));
    link.send(&request)?;
    responses(link, 0, &["RC_RDMA_READ_RESPONSE_ONLY"], 1)?;
    let wider = link.read_request(0, link.reth(0, 3 * u32::try_from(link.mtu)?));
    link.send(&wider)?;
    for answer in link.rest()? {
        ensure!(answer.payload.len() <= 8, "answered {answer:?}");
    }
    Ok(())
}

/// Checks that a READ with the PSN of a duplicate is not answered if it was never executed. Such a READ may come from
/// an earlier connection between the same queue pairs, and its key may be valid.
fn read_never_executed(link: &mut Link<'_>) -> Result<()> {
    let write = write_only(link, link.reth(0, 64), &message(64));
    link.send(&write)?;
    link.expect_acknowledge(0, syndrome::ACK, 1)?;
    for n in [0, 0xff_ffff, 0xff_0000, 0x80_0001] {
        let stale = link.read_request(n, link.reth(0, 8));
        link.send(&stale)?;
        link.expect_silence()?;
    }
    link.expect_state(state::RTS)
}

fn limited_member(link: &mut Link<'_>) -> Result<()> {
    accepted(link, |packet| packet.pkey = 0x7fff)
}

fn send_imm(link: &mut Link<'_>) -> Result<()> {
    link.post_receive(0, 64)?;
    let packet = Packet {
        imm: Some(agent::wire::Hex(vec![9, 8, 7, 6])),
        solicited: true,
        ack_req: true,
        ..link.packet("RC_SEND_ONLY_WITH_IMMEDIATE", 0, &message(33))
    };
    link.send(&packet)?;
    link.expect_acknowledge(0, syndrome::ACK, 1)?;
    let cqe = link.expect_success()?;
    ensure!(cqe.imm == [9, 8, 7, 6] && cqe.byte_count == 33, "completed with {cqe:?}");
    link.expect_memory(0, &message(33))
}
