//! Tests how the requester handles ACKs with unusual fields, reserved NAK codes, responses that do not match the
//! request, and out-of-order responses.

use std::time::Instant;

use agent::wire::SendOp;
use anyhow::{Result, ensure};

use super::{LONG_TIMEOUT, RNR_CODE, RNR_TIME, THREE, acknowledge, case, completion, send};
use crate::packet_peer::{Aeth, Op, Packet};
use crate::scenario::wire_rc::Case;
use crate::scenario::wire_rc::link::{Attributes, Link, content, message, syndrome};

pub(in crate::scenario::wire_rc) const CASES: &[Case] = &[
    case("an ACK is matched by its PSN, regardless of its MSN", LONG_TIMEOUT, any_msn),
    case("AckReq, SE and reserved bits of an ACK are ignored", LONG_TIMEOUT, odd_bits),
    case("an ACK from a different address is dropped", LONG_TIMEOUT, forged_ack),
    case("a reserved NAK code: bad response", LONG_TIMEOUT, |link| reserved_nak(link, 0x65)),
    case("the last reserved NAK code: bad response", LONG_TIMEOUT, |link| reserved_nak(link, 0x7f)),
    case("a READ response that carries a NAK: bad response", LONG_TIMEOUT, |link| {
        unfitting(link, SendOp::Read, |link| {
            let aeth = Some(Aeth { syndrome: syndrome::NAK_REMOTE_ACCESS, msn: 1 });
            Packet { aeth, ..link.response("RC_RDMA_READ_RESPONSE_ONLY", 0, &message(8)) }
        })
    }),
    case("an atomic response to a READ: bad response", LONG_TIMEOUT, |link| {
        unfitting(link, SendOp::Read, |link| original(link, 0, 7))
    }),
    case("a READ response to an atomic: bad response", LONG_TIMEOUT, |link| {
        unfitting(link, SendOp::FetchAdd { add: 1 }, |link| {
            link.response("RC_RDMA_READ_RESPONSE_ONLY", 0, &message(8))
        })
    }),
    case("an atomic response to a SEND: bad response", LONG_TIMEOUT, |link| {
        unfitting(link, SendOp::Send, |link| original(link, 0, 7))
    }),
    case("a READ response longer than requested: bad response", LONG_TIMEOUT, |link| {
        unfitting(link, SendOp::Read, |link| link.response("RC_RDMA_READ_RESPONSE_ONLY", 0, &message(12)))
    }),
    case("a duplicate atomic response is ignored", LONG_TIMEOUT, duplicate_atomic_response),
    case("an ACK does not complete an atomic", Attributes::DEFAULT, atomic_acknowledged),
    case("NAK remote access error within a READ: syndrome 13h", LONG_TIMEOUT, nak_within_read),
    case(
        "the response to a second READ without that to the first: both are retried",
        LONG_TIMEOUT,
        second_read_first,
    ),
    case(
        "RNR NAK for the last packet of a WRITE with immediate: only that packet is retransmitted",
        LONG_TIMEOUT,
        rnr_of_last,
    ),
    case("a CNP slows the sender but does not stop it", LONG_TIMEOUT, notified),
    case("a zero-length READ is requested and answered without payload", LONG_TIMEOUT, empty_read),
];

fn any_msn(link: &mut Link<'_>) -> Result<()> {
    for (n, msn) in [(0, 0), (1, 0xff_ffff), (2, 77)] {
        send(link, 8)?;
        link.expect("RC_SEND_ONLY", n)?;
        acknowledge(link, n, msn)?;
        link.expect_success()?;
    }
    Ok(())
}

fn odd_bits(link: &mut Link<'_>) -> Result<()> {
    send(link, 8)?;
    link.expect("RC_SEND_ONLY", 0)?;
    let ack = Packet {
        ack_req: true,
        solicited: true,
        reserved: true,
        fecn: true,
        mig_req: false,
        ..link.ack(0, syndrome::ACK, 1)
    };
    link.send(&ack)?;
    link.expect_success()?;
    link.expect_silence()
}

fn forged_ack(link: &mut Link<'_>) -> Result<()> {
    send(link, 8)?;
    link.expect("RC_SEND_ONLY", 0)?;
    let forged = Packet { source: Some([10, 77, 0, 99].into()), ..link.ack(0, syndrome::ACK, 1) };
    link.expect_drops("/engine/drops/wrong_source", &[forged])?;
    acknowledge(link, 0, 1)?;
    link.expect_success().map(drop)
}

fn reserved_nak(link: &mut Link<'_>, code: u8) -> Result<()> {
    send(link, 8)?;
    link.expect("RC_SEND_ONLY", 0)?;
    let nak = link.ack(0, code, 1);
    link.send(&nak)?;
    link.expect_error(completion::BAD_RESPONSE)
}

/// Posts a request for eight bytes, sends a response that does not match it, and checks that the request fails.
fn unfitting(link: &mut Link<'_>, op: SendOp, answer: fn(&Link<'_>) -> Packet) -> Result<()> {
    let request = link.request(op, 0, 8);
    link.post(vec![request])?;
    link.next()?;
    let answer = answer(link);
    link.send(&answer)?;
    link.expect_error(completion::BAD_RESPONSE)?;
    link.expect_memory(0, &content(0, 64))?;
    link.expect_silence()
}

fn original(link: &Link<'_>, n: u32, value: u64) -> Packet {
    Packet { original: Some(value), ..link.response("RC_ATOMIC_ACKNOWLEDGE", n, &[]) }
}

fn duplicate_atomic_response(link: &mut Link<'_>) -> Result<()> {
    for n in 0..2 {
        let request = link.request(SendOp::FetchAdd { add: 1 }, 64 * u64::from(n), 8);
        link.post(vec![request])?;
        link.expect("RC_FETCH_ADD", n)?;
        let answer = original(link, n, 40 + u64::from(n));
        link.send_all(&[answer.clone(), answer])?;
        link.expect_success()?;
        link.expect_silence()?;
        link.expect_no_completion()?;
    }
    link.expect_memory(0, &40u64.to_le_bytes())?;
    link.expect_memory(64, &41u64.to_le_bytes())
}

fn atomic_acknowledged(link: &mut Link<'_>) -> Result<()> {
    let request = link.request(SendOp::FetchAdd { add: 1 }, 0, 8);
    link.post(vec![request])?;
    link.expect("RC_FETCH_ADD", 0)?;
    acknowledge(link, 0, 1)?;
    link.expect("RC_FETCH_ADD", 0)?;
    link.expect_no_completion()?;
    let answer = original(link, 0, 40);
    link.send(&answer)?;
    link.expect_success()?;
    link.expect_memory(0, &40u64.to_le_bytes())
}

fn nak_within_read(link: &mut Link<'_>) -> Result<()> {
    let request = link.request(SendOp::Read, 0, THREE);
    link.post(vec![request])?;
    link.expect("RC_RDMA_READ_REQUEST", 0)?;
    let first = link.response("RC_RDMA_READ_RESPONSE_FIRST", 0, &message(link.mtu));
    let nak = link.ack(1, syndrome::NAK_REMOTE_ACCESS, 0);
    link.send_all(&[first, nak])?;
    link.expect_error(completion::REMOTE_ACCESS)?;
    link.expect_silence()
}

/// Checks that a response to the second of two READs is an implied NAK for the first one (IBTA 9.7.5.1.3).
fn second_read_first(link: &mut Link<'_>) -> Result<()> {
    let requests = [0, 64].map(|off| link.request(SendOp::Read, off, 8)).to_vec();
    link.post(requests)?;
    let answers: Vec<_> =
        (0..2).map(|n| link.response("RC_RDMA_READ_RESPONSE_ONLY", n, &message(8))).collect();
    link.expect("RC_RDMA_READ_REQUEST", 0)?;
    link.expect("RC_RDMA_READ_REQUEST", 1)?;
    link.send(&answers[1])?;
    link.expect("RC_RDMA_READ_REQUEST", 0)?;
    link.expect("RC_RDMA_READ_REQUEST", 1)?;
    link.expect_no_completion()?;
    link.send_all(&answers)?;
    link.expect_success()?;
    link.expect_success()?;
    link.expect_memory(64, &message(8))
}

fn rnr_of_last(link: &mut Link<'_>) -> Result<()> {
    let request = link.request(SendOp::WriteImm, 0, THREE);
    link.post(vec![request])?;
    for (n, name) in
        (0..).zip(["RC_RDMA_WRITE_FIRST", "RC_RDMA_WRITE_MIDDLE", "RC_RDMA_WRITE_LAST_WITH_IMMEDIATE"])
    {
        link.expect(name, n)?;
    }
    let begun = Instant::now();
    let nak = link.ack(2, syndrome::RNR | RNR_CODE, 0);
    link.send(&nak)?;
    link.expect("RC_RDMA_WRITE_LAST_WITH_IMMEDIATE", 2)?;
    ensure!(begun.elapsed() >= RNR_TIME, "retransmitted after {:?}", begun.elapsed());
    acknowledge(link, 2, 1)?;
    link.expect_success().map(drop)
}

fn notified(link: &mut Link<'_>) -> Result<()> {
    let before = link.counter("/engine/congestion/received_cnps")?;
    send(link, THREE)?;
    let notice = Packet { becn: true, ..link.packet(Op::Code(0x81), 0, &[0; 16]) };
    link.send(&notice)?;
    super::expect_send(link, 0)?;
    send(link, 8)?;
    link.expect("RC_SEND_ONLY", 3)?;
    acknowledge(link, 3, 2)?;
    link.expect_success()?;
    link.expect_success()?;
    let received = link.counter("/engine/congestion/received_cnps")? - before;
    ensure!(received == 1, "{received} CNPs received");
    Ok(())
}

fn empty_read(link: &mut Link<'_>) -> Result<()> {
    let request = link.request(SendOp::Read, 0, 0);
    link.post(vec![request])?;
    let packet = link.expect("RC_RDMA_READ_REQUEST", 0)?;
    ensure!(packet.reth.is_some_and(|reth| reth.len == 0), "retried with {packet:?}");
    let answer = link.response("RC_RDMA_READ_RESPONSE_ONLY", 0, &[]);
    link.send(&answer)?;
    link.expect_success()?;
    link.expect_memory(0, &content(0, 64))
}
