//! Tests which packets are retransmitted, when, and how often.

use std::time::{Duration, Instant};

use agent::wire::SendOp;
use anyhow::{Result, ensure};

use super::{LONG_TIMEOUT, RNR_CODE, RNR_TIME, acknowledge, case, completion, expect_ignored, send};
use crate::scenario::wire_rc::link::{Attributes, Link, content, message, syndrome};
use crate::scenario::wire_rc::{Case, ack_timeout};

/// Attributes with a short (4 ms) timeout.
const SHORT_TIMEOUT: Attributes = Attributes { timeout: 10, ..LONG_TIMEOUT };

pub(in crate::scenario::wire_rc) const CASES: &[Case] = &[
    case(
        "RNR NAK for the second of four SENDs: one completes, three are retransmitted",
        LONG_TIMEOUT,
        rnr_of_second,
    ),
    case("an ACK during the RNR wait ends it", LONG_TIMEOUT, acknowledged_while_waiting),
    case("each RNR NAK restarts the wait, regardless of its timer code", LONG_TIMEOUT, rnr_codes),
    case("a sequence NAK for the PSN after the last one is dropped", LONG_TIMEOUT, nak_of_next),
    case("a sequence NAK acknowledges all earlier PSNs", LONG_TIMEOUT, nak_acknowledges),
    case("each retransmission is sent after one to four timeouts", Attributes::DEFAULT, on_time),
    case("a READ of sixteen packets without a response is retried unchanged", SHORT_TIMEOUT, unanswered_read),
    case(
        "a SEND of eight packets without an ACK is retransmitted completely",
        Attributes { retry: 3, ..SHORT_TIMEOUT },
        unanswered_send,
    ),
    case("a retried READ answered by LAST in its middle: bad response", Attributes::DEFAULT, |link| {
        repeated_read(link, "RC_RDMA_READ_RESPONSE_LAST")
    }),
    case("a retried READ answered by ONLY in its middle: bad response", Attributes::DEFAULT, |link| {
        repeated_read(link, "RC_RDMA_READ_RESPONSE_ONLY")
    }),
    case(
        "the first READ response lost: the READ is retried once from the start",
        LONG_TIMEOUT,
        first_response_lost,
    ),
];

fn rnr_of_second(link: &mut Link<'_>) -> Result<()> {
    let request = link.request(SendOp::Send, 0, 8);
    link.post(vec![request; 4])?;
    for n in 0..4 {
        link.expect("RC_SEND_ONLY", n)?;
    }
    let begun = Instant::now();
    let nak = link.ack(1, syndrome::RNR | RNR_CODE, 1);
    link.send(&nak)?;
    link.expect_success()?;
    for n in 1..4 {
        link.expect("RC_SEND_ONLY", n)?;
    }
    ensure!(begun.elapsed() >= RNR_TIME, "retransmitted after {:?}", begun.elapsed());
    acknowledge(link, 3, 4)?;
    for _ in 1..4 {
        link.expect_success()?;
    }
    link.expect_silence()
}

/// Checks that an ACK ends an RNR wait. Such an ACK means that the receiver has become ready and has received a
/// duplicate of the request.
fn acknowledged_while_waiting(link: &mut Link<'_>) -> Result<()> {
    send(link, 8)?;
    link.expect("RC_SEND_ONLY", 0)?;
    let answers = [link.ack(0, syndrome::RNR | RNR_CODE, 0), link.ack(0, syndrome::ACK, 1)];
    link.send_all(&answers)?;
    link.expect_success()?;
    send(link, 8)?;
    link.expect("RC_SEND_ONLY", 1)?;
    acknowledge(link, 1, 2)?;
    link.expect_success()?;
    link.expect_silence()
}

/// Checks the RNR timer codes whose delays are long enough to measure (JingZhao interface, section 10.6).
fn rnr_codes(link: &mut Link<'_>) -> Result<()> {
    send(link, 8)?;
    link.expect("RC_SEND_ONLY", 0)?;
    for (code, micros) in [
        (18, 5120),
        (19, 7680),
        (20, 10_240),
        (21, 15_360),
        (22, 20_480),
        (23, 30_720),
        (25, 61_440),
        (26, 81_920),
    ] {
        let begun = Instant::now();
        let nak = link.ack(0, syndrome::RNR | code, 0);
        link.send(&nak)?;
        link.expect("RC_SEND_ONLY", 0)?;
        let (wait, waited) = (Duration::from_micros(micros), begun.elapsed());
        ensure!(waited >= wait, "code {code}: retransmitted after {waited:?}");
    }
    acknowledge(link, 0, 1)?;
    link.expect_success().map(drop)
}

fn nak_of_next(link: &mut Link<'_>) -> Result<()> {
    send(link, 8)?;
    link.expect("RC_SEND_ONLY", 0)?;
    let nak = link.ack(1, syndrome::NAK_SEQUENCE, 1);
    link.send(&nak)?;
    expect_ignored(link, 0, 1)
}

fn nak_acknowledges(link: &mut Link<'_>) -> Result<()> {
    let request = link.request(SendOp::Send, 0, 8);
    link.post(vec![request; 4])?;
    for n in 0..4 {
        link.expect("RC_SEND_ONLY", n)?;
    }
    let nak = link.ack(2, syndrome::NAK_SEQUENCE, 2);
    link.send(&nak)?;
    link.expect_success()?;
    link.expect_success()?;
    link.expect("RC_SEND_ONLY", 2)?;
    link.expect("RC_SEND_ONLY", 3)?;
    link.expect_no_completion()?;
    acknowledge(link, 3, 4)?;
    link.expect_success()?;
    link.expect_success().map(drop)
}

/// Checks that each retransmission is sent between one and four ACK timeouts after the previous transmission (IBTA
/// 9.7.6.1.3).
fn on_time(link: &mut Link<'_>) -> Result<()> {
    let timeout = ack_timeout(Attributes::DEFAULT.timeout);
    send(link, 8)?;
    link.expect("RC_SEND_ONLY", 0)?;
    for _ in 0..3 {
        let seen = Instant::now();
        link.expect("RC_SEND_ONLY", 0)?;
        let waited = seen.elapsed();
        // The timer started when the packet was sent, slightly before it arrived.
        ensure!(waited >= timeout * 9 / 10 && waited <= 4 * timeout, "retransmitted after {waited:?}");
    }
    acknowledge(link, 0, 1)?;
    link.expect_success().map(drop)
}

fn unanswered_read(link: &mut Link<'_>) -> Result<()> {
    let request = link.request(SendOp::Read, 0, 4096);
    link.post(vec![request])?;
    for attempt in 0..8 {
        let packet = link.expect("RC_RDMA_READ_REQUEST", 0)?;
        let len = packet.reth.map(|reth| reth.len);
        ensure!(len == Some(4096), "attempt {attempt} retried with {packet:?}");
    }
    link.expect_error(completion::RETRY_EXCEEDED)?;
    link.expect_silence()
}

fn unanswered_send(link: &mut Link<'_>) -> Result<()> {
    const PACKETS: u32 = 8;
    send(link, PACKETS * 256)?;
    for _ in 0..4 {
        for n in 0..PACKETS {
            let name = match n {
                0 => "RC_SEND_FIRST",
                n if n + 1 == PACKETS => "RC_SEND_LAST",
                _ => "RC_SEND_MIDDLE",
            };
            let packet = link.expect(name, n)?;
            ensure!(*packet.payload == content(n as usize * 256, 256), "packet {n} has unexpected content");
        }
    }
    link.expect_error(completion::RETRY_EXCEEDED)?;
    link.expect_silence()
}

/// Sends only the first of three responses, which makes the HCA request the other two again. Checks that a response
/// with opcode `op` is then rejected.
fn repeated_read(link: &mut Link<'_>, op: &str) -> Result<()> {
    let request = link.request(SendOp::Read, 0, 700);
    link.post(vec![request])?;
    link.expect("RC_RDMA_READ_REQUEST", 0)?;
    let first = link.response("RC_RDMA_READ_RESPONSE_FIRST", 0, &message(256));
    link.send(&first)?;
    link.expect("RC_RDMA_READ_REQUEST", 1)?;
    let wrong = link.response(op, 1, &message(256));
    link.send(&wrong)?;
    link.expect_error(completion::BAD_RESPONSE)
}

/// Checks that the loss of the first response is detected when the other responses arrive, and that the READ is retried
/// only once (IBTA 9.7.5.1.3).
fn first_response_lost(link: &mut Link<'_>) -> Result<()> {
    let request = link.request(SendOp::Read, 0, 700);
    link.post(vec![request])?;
    link.expect("RC_RDMA_READ_REQUEST", 0)?;
    let bytes = message(700);
    let responses = [
        link.response("RC_RDMA_READ_RESPONSE_FIRST", 0, &bytes[..256]),
        link.response("RC_RDMA_READ_RESPONSE_MIDDLE", 1, &bytes[256..512]),
        link.response("RC_RDMA_READ_RESPONSE_LAST", 2, &bytes[512..]),
    ];
    link.send_all(&responses[1..])?;
    link.expect("RC_RDMA_READ_REQUEST", 0)?;
    link.expect_silence()?;
    link.expect_no_completion()?;
    link.send_all(&responses)?;
    link.expect_success()?;
    link.expect_memory(0, &bytes)
}
