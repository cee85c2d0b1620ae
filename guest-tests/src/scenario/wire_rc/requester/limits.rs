//! Tests limits on outstanding requests and retries, and the effects of QP states and fences.

use std::time::{Duration, Instant};

use agent::wire::{Changes, SendOp, SendRequest, Transition};
use anyhow::{Result, ensure};

use super::{LONG_TIMEOUT, acknowledge, case, completion, send};
use crate::packet_peer::Packet;
use crate::scenario::wire_rc::Case;
use crate::scenario::wire_rc::link::{Attributes, Link, content, message, state, syndrome};

pub(in crate::scenario::wire_rc) const CASES: &[Case] = &[
    case(
        "rnr_retry 0: one transmission, then syndrome 16h",
        Attributes { rnr_retry: 0, ..LONG_TIMEOUT },
        no_rnr_retry,
    ),
    case("RNR timer code 0 is 655 ms", LONG_TIMEOUT, longest_rnr_wait),
    case("without credits, one SEND at a time is sent", LONG_TIMEOUT, credits),
    case("at most sixteen READs are outstanding", LONG_TIMEOUT, sixteen_reads),
    case("a message longer than the window continues as ACKs arrive", LONG_TIMEOUT, window),
    case("a fenced SEND waits for the preceding READ", LONG_TIMEOUT, fence),
    case("a SEND posted in SQD waits for RTS", LONG_TIMEOUT, in_sqd),
    case(
        "ERR by software: outstanding requests are flushed, and late ACKs are ignored",
        LONG_TIMEOUT,
        to_err,
    ),
    case("zero-length SEND and WRITE are one packet without payload", LONG_TIMEOUT, empty),
    case("a SEND of five bytes has three pad bytes", LONG_TIMEOUT, odd),
    case("immediate and solicited event are in the last packet only", LONG_TIMEOUT, last_packet),
];

fn no_rnr_retry(link: &mut Link<'_>) -> Result<()> {
    send(link, 8)?;
    link.expect("RC_SEND_ONLY", 0)?;
    let nak = link.ack(0, syndrome::RNR | 1, 0);
    link.send(&nak)?;
    link.expect_error(completion::RNR_RETRY_EXCEEDED)?;
    link.expect_silence()
}

/// Checks the wait after an RNR NAK with the longest timer (JingZhao interface, section 10.6).
fn longest_rnr_wait(link: &mut Link<'_>) -> Result<()> {
    send(link, 8)?;
    link.expect("RC_SEND_ONLY", 0)?;
    let begun = Instant::now();
    let nak = link.ack(0, syndrome::RNR, 0);
    link.send(&nak)?;
    link.expect("RC_SEND_ONLY", 0)?;
    ensure!(begun.elapsed() >= Duration::from_micros(655_360), "retransmitted after {:?}", begun.elapsed());
    acknowledge(link, 0, 1)?;
    link.expect_success().map(drop)
}

/// Checks that a requester without credits sends only one message, with AckReq set, to obtain new credits (IBTA
/// 9.7.7.2).
fn credits(link: &mut Link<'_>) -> Result<()> {
    const NO_CREDIT: u8 = 0;
    const TWO_CREDITS: u8 = 2;
    send(link, 8)?;
    link.expect("RC_SEND_ONLY", 0)?;
    let ack = link.ack(0, NO_CREDIT, 1);
    link.send(&ack)?;
    link.expect_success()?;
    let request = link.request(SendOp::Send, 0, 8);
    link.post(vec![request; 4])?;
    let only = link.expect("RC_SEND_ONLY", 1)?;
    ensure!(only.ack_req, "{only:?} does not request an acknowledgement");
    link.expect_silence()?;
    let ack = link.ack(1, TWO_CREDITS, 2);
    link.send(&ack)?;
    link.expect_success()?;
    for n in 2..4 {
        link.expect("RC_SEND_ONLY", n)?;
    }
    let ack = link.ack(3, syndrome::ACK, 4);
    link.send(&ack)?;
    link.expect_success()?;
    link.expect_success()?;
    link.expect("RC_SEND_ONLY", 4)?;
    acknowledge(link, 4, 5)?;
    link.expect_success().map(drop)
}

/// Checks that at most sixteen READs are outstanding (JingZhao interface, section 10.4).
fn sixteen_reads(link: &mut Link<'_>) -> Result<()> {
    const ALL: u32 = 20;
    let requests = (0..ALL).map(|n| link.request(SendOp::Read, u64::from(n) * 64, 8)).collect();
    link.post(requests)?;
    for n in 0..16 {
        link.expect("RC_RDMA_READ_REQUEST", n)?;
    }
    link.expect_silence()?;
    for n in 0..ALL {
        let answer = link.response("RC_RDMA_READ_RESPONSE_ONLY", n, &message(8));
        link.send(&answer)?;
        if n + 16 < ALL {
            link.expect("RC_RDMA_READ_REQUEST", n + 16)?;
        }
        link.expect_success()?;
        link.expect_memory(u64::from(n) * 64, &message(8))?;
    }
    link.expect_silence()
}

/// Checks that at most 256 packets are unacknowledged and that the last of them requests an acknowledgement. As the
/// region is too small for a message of more than 256 packets, two messages of 200 packets are sent.
fn window(link: &mut Link<'_>) -> Result<()> {
    const WINDOW: usize = 256;
    const EACH: usize = 200;
    const ALL: usize = 2 * EACH;
    let message = link.request(SendOp::Send, 0, u32::try_from(EACH * link.mtu)?);
    link.post(vec![message; 2])?;
    let mut seen = 0;
    for (acknowledged, msn) in [(128, 0), (384, 1), (ALL, 2)] {
        let packets = link.rest()?;
        for packet in &packets {
            let start = seen % EACH * link.mtu;
            ensure!(
                packet.psn == Link::own_psn(u32::try_from(seen)?)
                    && *packet.payload == content(start, link.mtu),
                "packet {seen} is {packet:?}"
            );
            seen += 1;
        }
        let last = packets.last().is_some_and(|packet| packet.ack_req);
        ensure!(last, "the last of {} packets does not request an acknowledgement", packets.len());
        let before = match acknowledged {
            128 => 0,
            384 => 128,
            _ => 384,
        };
        ensure!(seen == ALL.min(before + WINDOW), "{seen} packets sent with {before} acknowledged");
        acknowledge(link, u32::try_from(acknowledged.min(seen) - 1)?, msn)?;
    }
    link.expect_success()?;
    link.expect_success().map(drop)
}

fn fence(link: &mut Link<'_>) -> Result<()> {
    let read = link.request(SendOp::Read, 0, 8);
    let fenced = SendRequest { fence: true, ..link.request(SendOp::Send, 4096, 8) };
    link.post(vec![read, fenced])?;
    link.expect("RC_RDMA_READ_REQUEST", 0)?;
    link.expect_silence()?;
    let answer = link.response("RC_RDMA_READ_RESPONSE_ONLY", 0, &message(8));
    link.send(&answer)?;
    link.expect("RC_SEND_ONLY", 1)?;
    acknowledge(link, 1, 2)?;
    link.expect_success()?;
    link.expect_success().map(drop)
}

fn in_sqd(link: &mut Link<'_>) -> Result<()> {
    link.modify(Transition::ToSqd { notify: false })?;
    send(link, 8)?;
    link.expect_silence()?;
    link.modify(Transition::SqdToRts(Changes::default()))?;
    link.expect("RC_SEND_ONLY", 0)?;
    acknowledge(link, 0, 1)?;
    link.expect_success().map(drop)
}

fn to_err(link: &mut Link<'_>) -> Result<()> {
    send(link, 8)?;
    link.expect("RC_SEND_ONLY", 0)?;
    link.modify(Transition::ToErr)?;
    link.expect_error(completion::FLUSHED)?;
    let late = link.ack(0, syndrome::ACK, 1);
    link.expect_drops("/engine/drops/wrong_state", &[late])?;
    link.expect_state(state::ERR)
}

fn empty(link: &mut Link<'_>) -> Result<()> {
    let requests = [SendOp::Send, SendOp::Write].map(|op| link.request(op, 0, 0)).to_vec();
    link.post(requests)?;
    let sent: [Packet; 2] = [link.expect("RC_SEND_ONLY", 0)?, link.expect("RC_RDMA_WRITE_ONLY", 1)?];
    ensure!(sent.iter().all(|packet| packet.payload.is_empty() && packet.ack_req), "sent {sent:?}");
    ensure!(sent[1].reth.is_some_and(|reth| reth.len == 0), "RETH of {:?}", sent[1]);
    acknowledge(link, 1, 2)?;
    link.expect_success()?;
    link.expect_success().map(drop)
}

/// Checks payloads whose lengths are not multiples of four. The peer strips pad bytes according to the pad count.
fn odd(link: &mut Link<'_>) -> Result<()> {
    for (n, len) in (0..).zip([5, 6, 7]) {
        send(link, len)?;
        let packet = link.expect("RC_SEND_ONLY", n)?;
        ensure!(*packet.payload == content(0, len as usize), "{packet:?}");
        acknowledge(link, n, n + 1)?;
        link.expect_success()?;
    }
    Ok(())
}

fn last_packet(link: &mut Link<'_>) -> Result<()> {
    let request = link.request(SendOp::SendImm, 0, super::THREE);
    link.post(vec![SendRequest { imm: [1, 2, 3, 4], solicited: true, remote: None, ..request }])?;
    for (n, name) in (0..).zip(["RC_SEND_FIRST", "RC_SEND_MIDDLE", "RC_SEND_LAST_WITH_IMMEDIATE"]) {
        let packet = link.expect(name, n)?;
        let last = n == 2;
        let imm = packet.imm.as_ref().map(|imm| imm.0.as_slice());
        ensure!(
            packet.solicited == last && imm == last.then_some(&[1, 2, 3, 4][..]),
            "packet {n} is {packet:?}"
        );
    }
    acknowledge(link, 2, 1)?;
    link.expect_success().map(drop)
}
