//! Tests READ and atomic requests, and the handling of their responses.

use agent::wire::SendOp;
use anyhow::{Result, ensure};

use super::{LONG_TIMEOUT, THREE, acknowledge, case, completion, send};
use crate::packet_peer::{Aeth, Packet};
use crate::scenario::wire_rc::Case;
use crate::scenario::wire_rc::link::{Attributes, Link, content, message, syndrome};

pub(in crate::scenario::wire_rc) const CASES: &[Case] = &[
    case("a READ sends one request for its whole length and accepts all responses", LONG_TIMEOUT, read),
    case(
        "a lost MIDDLE READ response: the READ is retried from there",
        Attributes::DEFAULT,
        read_response_lost,
    ),
    case("a READ response with a wrong ICRC is requested again", Attributes::DEFAULT, read_response_corrupt),
    case(
        "a retried READ accepts a response that starts with MIDDLE",
        Attributes::DEFAULT,
        read_tail_as_middle,
    ),
    case("a duplicate READ response is ignored", LONG_TIMEOUT, duplicate_read_response),
    case("an ACK does not complete a READ", Attributes::DEFAULT, read_acknowledged),
    case("an ACK for a later request causes the READ to be retried", Attributes::DEFAULT, implied_nak),
    case("a READ response LAST that is too short: bad response", LONG_TIMEOUT, |link| read_length(link, 100)),
    case(
        "a READ response LAST that is too long: bad response, no write beyond the buffer",
        LONG_TIMEOUT,
        |link| read_length(link, 252),
    ),
    case(
        "lost atomic response: the request is retransmitted, and its result is delivered",
        Attributes::DEFAULT,
        lost_atomic_response,
    ),
    case("a READ response MIDDLE that is too short: bad response", LONG_TIMEOUT, |link| {
        bad_response(link, |link| {
            let [first, ..] = read_responses(link);
            vec![first, link.response("RC_RDMA_READ_RESPONSE_MIDDLE", 1, &message(link.mtu - 4))]
        })
    }),
    case("a READ response FIRST in place of MIDDLE: bad response", LONG_TIMEOUT, |link| {
        bad_response(link, |link| {
            let [first, middle, _] = read_responses(link);
            let again = Packet { op: first.op.clone(), aeth: first.aeth, ..middle };
            vec![first, again]
        })
    }),
    case("a READ response acknowledges earlier SENDs", LONG_TIMEOUT, read_acknowledges),
];

/// Posts a READ of [`THREE`] bytes and expects its request packet.
fn post_read(link: &mut Link<'_>) -> Result<()> {
    let request = link.request(SendOp::Read, 0, THREE);
    link.post(vec![request])?;
    expect_read(link, 0)
}

/// Expects a READ request for the data of response `n` and all later responses.
fn expect_read(link: &mut Link<'_>, n: u32) -> Result<()> {
    let packet = link.expect("RC_RDMA_READ_REQUEST", n)?;
    let done = n * u32::try_from(link.mtu)?;
    let expected = Some((0x1000 + u64::from(done), 0x77, THREE - done));
    let reth = packet.reth.map(|reth| (reth.va, reth.rkey, reth.len));
    ensure!(reth == expected, "RETH is {reth:x?}, expected {expected:x?}");
    Ok(())
}

/// Returns the responses to a READ of [`THREE`] bytes.
fn read_responses(link: &Link<'_>) -> [Packet; 3] {
    let bytes = message(THREE as usize);
    let (mtu, two) = (link.mtu, 2 * link.mtu);
    [
        link.response("RC_RDMA_READ_RESPONSE_FIRST", 0, &bytes[..mtu]),
        link.response("RC_RDMA_READ_RESPONSE_MIDDLE", 1, &bytes[mtu..two]),
        link.response("RC_RDMA_READ_RESPONSE_LAST", 2, &bytes[two..]),
    ]
}

fn expect_read_done(link: &mut Link<'_>) -> Result<()> {
    let cqe = link.expect_success()?;
    ensure!(cqe.byte_count == THREE, "the READ completed with {} bytes", cqe.byte_count);
    link.expect_memory(0, &message(THREE as usize))?;
    link.expect_memory(THREE.into(), &content(THREE as usize, 256))?;
    send(link, 8)?;
    link.expect("RC_SEND_ONLY", 3)?;
    acknowledge(link, 3, 2)?;
    link.expect_success().map(drop)
}

fn read(link: &mut Link<'_>) -> Result<()> {
    post_read(link)?;
    let responses = read_responses(link);
    link.send_all(&responses)?;
    expect_read_done(link)
}

fn read_response_lost(link: &mut Link<'_>) -> Result<()> {
    post_read(link)?;
    let [first, _, last] = read_responses(link);
    link.send_all(&[first, last])?;
    expect_read(link, 1)?;
    link.expect_no_completion()?;
    let bytes = message(THREE as usize);
    let (mtu, two) = (link.mtu, 2 * link.mtu);
    let again = [
        link.response("RC_RDMA_READ_RESPONSE_FIRST", 1, &bytes[mtu..two]),
        link.response("RC_RDMA_READ_RESPONSE_LAST", 2, &bytes[two..]),
    ];
    link.send_all(&again)?;
    expect_read_done(link)
}

fn read_response_corrupt(link: &mut Link<'_>) -> Result<()> {
    post_read(link)?;
    let [first, middle, last] = read_responses(link);
    link.send_all(&[first, middle, Packet { bad_icrc: true, ..last }])?;
    expect_read(link, 2)?;
    let rest = link.response("RC_RDMA_READ_RESPONSE_ONLY", 2, &message(THREE as usize)[2 * link.mtu..]);
    link.send(&rest)?;
    expect_read_done(link)
}

/// Checks a retried READ whose responses start with MIDDLE, as soft-RoCE sends them.
fn read_tail_as_middle(link: &mut Link<'_>) -> Result<()> {
    post_read(link)?;
    let [first, middle, last] = read_responses(link);
    link.send(&first)?;
    expect_read(link, 1)?;
    link.send_all(&[middle, last])?;
    expect_read_done(link)
}

fn duplicate_read_response(link: &mut Link<'_>) -> Result<()> {
    post_read(link)?;
    let [first, middle, last] = read_responses(link);
    link.send_all(&[first.clone(), first, middle.clone(), middle, last.clone(), last])?;
    expect_read_done(link)
}

fn read_acknowledged(link: &mut Link<'_>) -> Result<()> {
    post_read(link)?;
    acknowledge(link, 2, 1)?;
    expect_read(link, 0)?;
    link.expect_no_completion()?;
    let responses = read_responses(link);
    link.send_all(&responses)?;
    expect_read_done(link)
}

/// Checks that an ACK for a later request is an implied NAK for the missing READ response (IBTA 9.7.5.1.3).
fn implied_nak(link: &mut Link<'_>) -> Result<()> {
    let requests = vec![link.request(SendOp::Read, 0, THREE), link.request(SendOp::Send, 4096, 8)];
    link.post(requests)?;
    expect_read(link, 0)?;
    link.expect("RC_SEND_ONLY", 3)?;
    acknowledge(link, 3, 2)?;
    expect_read(link, 0)?;
    link.expect_no_completion()?;
    link.expect("RC_SEND_ONLY", 3)?;
    let responses = read_responses(link);
    link.send_all(&responses)?;
    acknowledge(link, 3, 2)?;
    link.expect_success()?;
    link.expect_success()?;
    link.expect_memory(0, &message(THREE as usize))
}

fn read_length(link: &mut Link<'_>, last: usize) -> Result<()> {
    post_read(link)?;
    let [first, middle, _] = read_responses(link);
    let wrong = link.response("RC_RDMA_READ_RESPONSE_LAST", 2, &message(last));
    link.send_all(&[first, middle, wrong])?;
    link.expect_error(completion::BAD_RESPONSE)?;
    link.expect_memory(THREE.into(), &content(THREE as usize, 256))
}

fn bad_response(link: &mut Link<'_>, responses: fn(&Link<'_>) -> Vec<Packet>) -> Result<()> {
    post_read(link)?;
    let responses = responses(link);
    link.send_all(&responses)?;
    link.expect_error(completion::BAD_RESPONSE)?;
    link.expect_silence()
}

fn read_acknowledges(link: &mut Link<'_>) -> Result<()> {
    let requests = vec![link.request(SendOp::Send, 0, 8), link.request(SendOp::Read, 4096, 8)];
    link.post(requests)?;
    link.expect("RC_SEND_ONLY", 0)?;
    link.expect("RC_RDMA_READ_REQUEST", 1)?;
    let response = link.response("RC_RDMA_READ_RESPONSE_ONLY", 1, &message(8));
    link.send(&response)?;
    link.expect_success()?;
    link.expect_success()?;
    link.expect_memory(4096, &message(8))
}

fn lost_atomic_response(link: &mut Link<'_>) -> Result<()> {
    let request = link.request(SendOp::FetchAdd { add: 3 }, 0, 8);
    link.post(vec![request])?;
    for _ in 0..2 {
        let packet = link.expect("RC_FETCH_ADD", 0)?;
        let atomic = packet.atomic.map(|a| (a.va, a.rkey, a.swap_add));
        ensure!(atomic == Some((0x1000, 0x77, 3)), "AtomicETH {packet:?}");
    }
    let response = Packet {
        op: "RC_ATOMIC_ACKNOWLEDGE".into(),
        original: Some(0x1122_3344_5566_7788),
        aeth: Some(Aeth { syndrome: syndrome::ACK, msn: 1 }),
        ..link.response("RC_ATOMIC_ACKNOWLEDGE", 0, &[])
    };
    link.send(&response)?;
    link.expect_success()?;
    link.expect_memory(0, &0x1122_3344_5566_7788_u64.to_le_bytes())
}
