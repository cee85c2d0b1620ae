//! Tests the HCA as a requester. The peer responds, sends NAKs or stays silent.

pub(super) mod answers;
pub(super) mod limits;
pub(super) mod reads;
pub(super) mod recovery;

use std::time::{Duration, Instant};

use agent::wire::SendOp;
use anyhow::{Result, ensure};

use super::link::{Attributes, Link, content, message, state, syndrome};
use super::{Case, ack_timeout};
use crate::packet_peer::Packet;

/// Completion syndromes of the send queue (JingZhao interface, section 7.4).
mod completion {
    pub(super) const FLUSHED: u8 = 0x05;
    pub(super) const BAD_RESPONSE: u8 = 0x10;
    pub(super) const REMOTE_INVALID_REQUEST: u8 = 0x12;
    pub(super) const REMOTE_ACCESS: u8 = 0x13;
    pub(super) const REMOTE_OPERATION: u8 = 0x14;
    pub(super) const RETRY_EXCEEDED: u8 = 0x15;
    pub(super) const RNR_RETRY_EXCEEDED: u8 = 0x16;
    pub(super) const REMOTE_INVALID_RD_REQUEST: u8 = 0x21;
}

/// Attributes with a timeout of 8.6 s, long enough that delays on a busy host do not trigger retransmissions.
const LONG_TIMEOUT: Attributes = Attributes { timeout: 21, ..Attributes::DEFAULT };
/// Length of a message that takes three packets.
const THREE: u32 = 700;

const fn case(name: &'static str, attributes: Attributes, run: fn(&mut Link<'_>) -> Result<()>) -> Case {
    Case { name, attributes, run }
}

pub(super) const CASES: &[Case] = &[
    case("a SEND of three packets is sent as FIRST, MIDDLE, LAST with AckReq", LONG_TIMEOUT, send_shape),
    case("a WRITE carries its address, key and length only in the first packet", LONG_TIMEOUT, write_shape),
    case(
        "lost ACK: all packets are retransmitted after the timeout, one completion",
        Attributes::DEFAULT,
        lost_ack,
    ),
    case("NAK for the first packet: all packets are retransmitted", LONG_TIMEOUT, |link| {
        sequence_nak(link, 0)
    }),
    case("NAK for the middle packet: that packet and the last are retransmitted", LONG_TIMEOUT, |link| {
        sequence_nak(link, 1)
    }),
    case("NAK for the last packet: only that packet is retransmitted", LONG_TIMEOUT, |link| {
        sequence_nak(link, 2)
    }),
    case("a duplicate ACK is ignored", LONG_TIMEOUT, duplicate_ack),
    case("one ACK completes all earlier requests", LONG_TIMEOUT, coalesced_ack),
    case("an ACK for a PSN that was never sent is dropped", LONG_TIMEOUT, ghost_ack),
    case("an ACK for an earlier QP with the same index is dropped", LONG_TIMEOUT, stale_ack),
    case("a NAK for a PSN that was never sent is dropped", LONG_TIMEOUT, ghost_nak),
    case("an ACK with a wrong ICRC or P_Key is dropped", LONG_TIMEOUT, corrupt_ack),
    case("NAK invalid request: syndrome 12h, ERR, no more packets", LONG_TIMEOUT, |link| {
        nak(link, syndrome::NAK_INVALID_REQUEST, completion::REMOTE_INVALID_REQUEST)
    }),
    case("NAK remote access error: syndrome 13h, ERR, no more packets", LONG_TIMEOUT, |link| {
        nak(link, syndrome::NAK_REMOTE_ACCESS, completion::REMOTE_ACCESS)
    }),
    case("NAK remote operational error: syndrome 14h, ERR, no more packets", LONG_TIMEOUT, |link| {
        nak(link, syndrome::NAK_REMOTE_OPERATIONAL, completion::REMOTE_OPERATION)
    }),
    case("NAK invalid RD request: syndrome 21h, ERR, no more packets", LONG_TIMEOUT, |link| {
        nak(link, syndrome::NAK_INVALID_RD, completion::REMOTE_INVALID_RD_REQUEST)
    }),
    case("a NAK completes earlier requests successfully", LONG_TIMEOUT, nak_of_second),
    case("RNR NAK: retransmission after the RNR timer, then success", LONG_TIMEOUT, rnr_then_success),
    case("an RNR NAK for a READ delays its retransmission", LONG_TIMEOUT, rnr_of_read),
    case(
        "rnr_retry 2: three transmissions, then syndrome 16h",
        Attributes { rnr_retry: 2, ..LONG_TIMEOUT },
        rnr_exhausted,
    ),
    case(
        "retry 2: three transmissions, then syndrome 15h",
        Attributes { retry: 2, ..Attributes::DEFAULT },
        retry_exhausted,
    ),
    case(
        "a sequence NAK consumes a retry, like a timeout",
        Attributes { retry: 2, ..Attributes::DEFAULT },
        nak_retries_exhausted,
    ),
    case(
        "duplicates of a sequence NAK consume no retry",
        Attributes { retry: 1, ..LONG_TIMEOUT },
        nak_copies,
    ),
    case("progress resets the retry counter", Attributes { retry: 1, ..Attributes::DEFAULT }, retries_reload),
    case(
        "retry 7: eight transmissions, then syndrome 15h",
        Attributes { timeout: 10, ..LONG_TIMEOUT },
        all_retries_exhausted,
    ),
    case("rnr_retry 7 is unlimited", LONG_TIMEOUT, rnr_without_end),
    case("a sequence NAK during an RNR wait does not shorten it", LONG_TIMEOUT, nak_during_rnr_wait),
    case("a NAK for an acknowledged PSN is dropped", LONG_TIMEOUT, stale_nak),
    case("a reserved AETH syndrome: bad response", LONG_TIMEOUT, reserved_syndrome),
    case("a READ response to a SEND: bad response", LONG_TIMEOUT, response_to_send),
    case(
        "an ACK within a message is progress: retransmission starts after it",
        Attributes::DEFAULT,
        ack_in_the_middle,
    ),
];

fn send(link: &mut Link<'_>, len: u32) -> Result<()> {
    let request = link.request(SendOp::Send, 0, len);
    link.post(vec![request])
}

const SEND: [&str; 3] = ["RC_SEND_FIRST", "RC_SEND_MIDDLE", "RC_SEND_LAST"];

/// Expects the packets of a SEND of [`THREE`] bytes, starting with packet `from`.
fn expect_send(link: &mut Link<'_>, from: u32) -> Result<()> {
    for (n, name) in (0..).zip(SEND).skip(from as usize) {
        let packet = link.expect(name, n)?;
        let start = n as usize * link.mtu;
        let end = (start + link.mtu).min(THREE as usize);
        ensure!(
            *packet.payload == content(start, end - start),
            "packet {n} has unexpected content: {packet:?}"
        );
        ensure!(n < 2 || packet.ack_req, "the last packet does not request an acknowledgement");
    }
    Ok(())
}

fn acknowledge(link: &mut Link<'_>, n: u32, msn: u32) -> Result<()> {
    let ack = link.ack(n, syndrome::ACK, msn);
    link.send(&ack)
}

fn send_shape(link: &mut Link<'_>) -> Result<()> {
    send(link, THREE)?;
    expect_send(link, 0)?;
    expect_ignored(link, 2, 1)
}

fn write_shape(link: &mut Link<'_>) -> Result<()> {
    let request = link.request(SendOp::Write, 0, THREE);
    link.post(vec![request])?;
    for (n, name) in (0..).zip(["RC_RDMA_WRITE_FIRST", "RC_RDMA_WRITE_MIDDLE", "RC_RDMA_WRITE_LAST"]) {
        let packet = link.expect(name, n)?;
        let reth = packet.reth.map(|reth| (reth.va, reth.rkey, reth.len));
        ensure!(reth == (n == 0).then_some((0x1000, 0x77, THREE)), "RETH of packet {n}: {packet:?}");
    }
    acknowledge(link, 2, 1)?;
    link.expect_success().map(drop)
}

fn lost_ack(link: &mut Link<'_>) -> Result<()> {
    send(link, THREE)?;
    expect_send(link, 0)?;
    let begun = Instant::now();
    expect_send(link, 0)?;
    // The timer started when the packets were sent, slightly before they arrived.
    let least = ack_timeout(Attributes::DEFAULT.timeout) * 9 / 10;
    ensure!(begun.elapsed() >= least, "retransmitted after {:?}", begun.elapsed());
    acknowledge(link, 2, 1)?;
    link.expect_success()?;
    link.expect_silence()?;
    link.expect_no_completion()
}

fn sequence_nak(link: &mut Link<'_>, n: u32) -> Result<()> {
    send(link, THREE)?;
    expect_send(link, 0)?;
    let nak = link.ack(n, syndrome::NAK_SEQUENCE, 0);
    link.send(&nak)?;
    expect_send(link, n)?;
    acknowledge(link, 2, 1)?;
    link.expect_success()?;
    link.expect_silence()
}

fn duplicate_ack(link: &mut Link<'_>) -> Result<()> {
    for n in 0..2 {
        send(link, 8)?;
        link.expect("RC_SEND_ONLY", n)?;
        acknowledge(link, n, n + 1)?;
        acknowledge(link, n, n + 1)?;
        acknowledge(link, 0, 1)?;
        link.expect_success()?;
        link.expect_silence()?;
        link.expect_no_completion()?;
    }
    Ok(())
}

fn coalesced_ack(link: &mut Link<'_>) -> Result<()> {
    let request = link.request(SendOp::Send, 0, 8);
    link.post(vec![request; 5])?;
    for n in 0..5 {
        link.expect("RC_SEND_ONLY", n)?;
    }
    acknowledge(link, 3, 4)?;
    for _ in 0..4 {
        link.expect_success()?;
    }
    expect_ignored(link, 4, 5)
}

/// Checks that the previous packets had no effect and that an ACK for packet `psn` then completes the request.
fn expect_ignored(link: &mut Link<'_>, psn: u32, msn: u32) -> Result<()> {
    link.expect_silence()?;
    link.expect_no_completion()?;
    link.expect_state(state::RTS)?;
    acknowledge(link, psn, msn)?;
    link.expect_success().map(drop)
}

fn ghost_ack(link: &mut Link<'_>) -> Result<()> {
    send(link, 8)?;
    link.expect("RC_SEND_ONLY", 0)?;
    for n in [1, 2, 1000, 0x7f_ffff] {
        acknowledge(link, n, 1)?;
    }
    expect_ignored(link, 0, 1)
}

fn stale_ack(link: &mut Link<'_>) -> Result<()> {
    send(link, 8)?;
    link.expect("RC_SEND_ONLY", 0)?;
    let mut ack = link.ack(0, syndrome::ACK, 1);
    ack.qpn ^= 0x1d_0000;
    link.send(&ack)?;
    expect_ignored(link, 0, 1)
}

fn ghost_nak(link: &mut Link<'_>) -> Result<()> {
    send(link, 8)?;
    link.expect("RC_SEND_ONLY", 0)?;
    for code in
        [syndrome::NAK_SEQUENCE, syndrome::NAK_INVALID_REQUEST, syndrome::NAK_REMOTE_ACCESS, syndrome::RNR]
    {
        let nak = link.ack(5, code, 0);
        link.send(&nak)?;
    }
    expect_ignored(link, 0, 1)
}

fn corrupt_ack(link: &mut Link<'_>) -> Result<()> {
    send(link, 8)?;
    link.expect("RC_SEND_ONLY", 0)?;
    let ack = link.ack(0, syndrome::ACK, 1);
    link.expect_drops("/port/dropped/icrc", &[Packet { bad_icrc: true, ..ack.clone() }])?;
    link.expect_drops("/engine/drops/wrong_pkey", &[Packet { pkey: 0x8123, ..ack.clone() }])?;
    link.send(&ack)?;
    link.expect_success().map(drop)
}

fn nak(link: &mut Link<'_>, code: u8, expected: u8) -> Result<()> {
    let request = link.request(SendOp::Write, 0, 64);
    link.post(vec![request])?;
    link.expect("RC_RDMA_WRITE_ONLY", 0)?;
    let nak = link.ack(0, code, 0);
    link.send(&nak)?;
    link.expect_error(expected)?;
    link.expect_silence()
}

fn nak_of_second(link: &mut Link<'_>) -> Result<()> {
    let request = link.request(SendOp::Send, 0, 8);
    link.post(vec![request; 3])?;
    for n in 0..3 {
        link.expect("RC_SEND_ONLY", n)?;
    }
    let nak = link.ack(1, syndrome::NAK_REMOTE_OPERATIONAL, 1);
    link.send(&nak)?;
    link.expect_success()?;
    link.expect_error(completion::REMOTE_OPERATION)?;
    let flushed = link.completion()?;
    ensure!(flushed.syndrome == Some(completion::FLUSHED), "the third request completed with {flushed:?}");
    Ok(())
}

/// RNR timer code for 40.96 ms (JingZhao interface, section 10.6).
const RNR_CODE: u8 = 24;
const RNR_TIME: Duration = Duration::from_micros(40_960);

fn rnr_then_success(link: &mut Link<'_>) -> Result<()> {
    send(link, THREE)?;
    expect_send(link, 0)?;
    for _ in 0..3 {
        let begun = Instant::now();
        let nak = link.ack(0, syndrome::RNR | RNR_CODE, 0);
        link.send(&nak)?;
        expect_send(link, 0)?;
        ensure!(begun.elapsed() >= RNR_TIME, "retransmitted after {:?}", begun.elapsed());
    }
    acknowledge(link, 2, 1)?;
    link.expect_success().map(drop)
}

fn rnr_of_read(link: &mut Link<'_>) -> Result<()> {
    let request = link.request(SendOp::Read, 0, 8);
    link.post(vec![request])?;
    link.expect("RC_RDMA_READ_REQUEST", 0)?;
    let nak = link.ack(0, syndrome::RNR | RNR_CODE, 0);
    link.send(&nak)?;
    link.expect("RC_RDMA_READ_REQUEST", 0)?;
    let response = link.response("RC_RDMA_READ_RESPONSE_ONLY", 0, &message(8));
    link.send(&response)?;
    link.expect_success()?;
    link.expect_memory(0, &message(8))
}

fn rnr_exhausted(link: &mut Link<'_>) -> Result<()> {
    send(link, 8)?;
    for _ in 0..3 {
        link.expect("RC_SEND_ONLY", 0)?;
        let nak = link.ack(0, syndrome::RNR | 1, 0);
        link.send(&nak)?;
    }
    link.expect_error(completion::RNR_RETRY_EXCEEDED)?;
    link.expect_silence()
}

fn retry_exhausted(link: &mut Link<'_>) -> Result<()> {
    send(link, 8)?;
    let begun = Instant::now();
    for _ in 0..3 {
        link.expect("RC_SEND_ONLY", 0)?;
    }
    link.expect_error(completion::RETRY_EXCEEDED)?;
    let least = ack_timeout(Attributes::DEFAULT.timeout) * 3 * 9 / 10;
    ensure!(begun.elapsed() >= least, "gave up after {:?}", begun.elapsed());
    link.expect_silence()
}

fn nak_retries_exhausted(link: &mut Link<'_>) -> Result<()> {
    send(link, 8)?;
    link.expect("RC_SEND_ONLY", 0)?;
    let begun = Instant::now();
    let nak = link.ack(0, syndrome::NAK_SEQUENCE, 0);
    link.send(&nak)?;
    for _ in 0..2 {
        link.expect("RC_SEND_ONLY", 0)?;
    }
    link.expect_error(completion::RETRY_EXCEEDED)?;
    let least = ack_timeout(Attributes::DEFAULT.timeout) * 2 * 9 / 10;
    ensure!(begun.elapsed() >= least, "gave up after {:?}", begun.elapsed());
    link.expect_silence()
}

/// Checks that copies of a NAK do not trigger further retransmissions. A responder sends only one NAK per gap, so
/// copies can only come from the network (IBTA 9.7.5.2).
fn nak_copies(link: &mut Link<'_>) -> Result<()> {
    send(link, 8)?;
    link.expect("RC_SEND_ONLY", 0)?;
    let nak = link.ack(0, syndrome::NAK_SEQUENCE, 0);
    link.send(&nak)?;
    link.expect("RC_SEND_ONLY", 0)?;
    link.send(&nak)?;
    link.send(&nak)?;
    link.expect_silence()?;
    acknowledge(link, 0, 1)?;
    link.expect_success().map(drop)
}

fn retries_reload(link: &mut Link<'_>) -> Result<()> {
    for n in 0..3 {
        send(link, 8)?;
        link.expect("RC_SEND_ONLY", n)?;
        link.expect("RC_SEND_ONLY", n)?;
        acknowledge(link, n, n + 1)?;
        link.expect_success()?;
    }
    Ok(())
}

fn all_retries_exhausted(link: &mut Link<'_>) -> Result<()> {
    send(link, 8)?;
    for _ in 0..8 {
        link.expect("RC_SEND_ONLY", 0)?;
    }
    link.expect_error(completion::RETRY_EXCEEDED)?;
    link.expect_silence()
}

fn rnr_without_end(link: &mut Link<'_>) -> Result<()> {
    send(link, 8)?;
    for _ in 0..20 {
        link.expect("RC_SEND_ONLY", 0)?;
        let nak = link.ack(0, syndrome::RNR | 1, 0);
        link.send(&nak)?;
    }
    link.expect("RC_SEND_ONLY", 0)?;
    acknowledge(link, 0, 1)?;
    link.expect_success().map(drop)
}

/// Checks a sequence NAK that arrives during an RNR wait. Soft-RoCE sends both an RNR NAK and a sequence NAK if a
/// packet has no receive request and more packets follow it.
fn nak_during_rnr_wait(link: &mut Link<'_>) -> Result<()> {
    send(link, THREE)?;
    expect_send(link, 0)?;
    let begun = Instant::now();
    let naks = [link.ack(0, syndrome::RNR | RNR_CODE, 0), link.ack(0, syndrome::NAK_SEQUENCE, 0)];
    link.send_all(&naks)?;
    expect_send(link, 0)?;
    ensure!(begun.elapsed() >= RNR_TIME, "retransmitted after {:?}", begun.elapsed());
    acknowledge(link, 2, 1)?;
    link.expect_success().map(drop)
}

fn stale_nak(link: &mut Link<'_>) -> Result<()> {
    for n in 0..2 {
        send(link, 8)?;
        link.expect("RC_SEND_ONLY", n)?;
        if n == 0 {
            acknowledge(link, 0, 1)?;
            link.expect_success()?;
        }
    }
    for code in [syndrome::NAK_SEQUENCE, syndrome::NAK_REMOTE_ACCESS, syndrome::RNR | 1] {
        let nak = link.ack(0, code, 1);
        link.send(&nak)?;
    }
    expect_ignored(link, 1, 2)
}

fn reserved_syndrome(link: &mut Link<'_>) -> Result<()> {
    send(link, 8)?;
    link.expect("RC_SEND_ONLY", 0)?;
    let odd = link.ack(0, 0x40, 1);
    link.send(&odd)?;
    link.expect_error(completion::BAD_RESPONSE)
}

fn response_to_send(link: &mut Link<'_>) -> Result<()> {
    send(link, 8)?;
    link.expect("RC_SEND_ONLY", 0)?;
    let response = link.response("RC_RDMA_READ_RESPONSE_ONLY", 0, &message(8));
    link.send(&response)?;
    link.expect_error(completion::BAD_RESPONSE)
}

fn ack_in_the_middle(link: &mut Link<'_>) -> Result<()> {
    send(link, THREE)?;
    expect_send(link, 0)?;
    acknowledge(link, 0, 0)?;
    expect_send(link, 1)?;
    acknowledge(link, 2, 1)?;
    link.expect_success().map(drop)
}
