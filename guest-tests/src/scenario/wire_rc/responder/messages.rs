//! Tests requests of various kinds and lengths. Each SEND, WRITE and atomic must be executed only once, even if
//! duplicates arrive. A duplicate READ is executed again.

use agent::wire::Hex;
use anyhow::{Result, ensure};

use super::{case, expect_original, fetch_add, responses, write_only};
use crate::packet_peer::{Packet, Reth};
use crate::scenario::wire_rc::Case;
use crate::scenario::wire_rc::link::{Attributes, Link, content, message, state, syndrome};

pub(in crate::scenario::wire_rc) const CASES: &[Case] = &[
    case("a zero-length SEND consumes a receive request", empty_send),
    case("payloads of 1 to 7 bytes arrive without pad bytes", odd_lengths),
    case("a WRITE of three packets is stored correctly at an unaligned address", write_three),
    case("a zero-length WRITE with immediate consumes a receive request", empty_write_imm),
    case("a SEND of three packets with immediate is delivered", send_imm_three),
    case("a SEND without AckReq is executed and acknowledged with the next one", without_ack_req),
    case("a burst of 32 SENDs is executed in order, and the last is acknowledged", burst),
    case("the farthest PSN that counts as ahead triggers a NAK", farthest_psn),
    case("a duplicate is acknowledged while no receive request is posted", duplicate_while_not_ready),
    with_rnr_timer(0),
    with_rnr_timer(1),
    with_rnr_timer(31),
    case("each attempt without a receive request triggers an RNR NAK", rnr_again),
    case("a duplicate READ with a wrong R_Key gets no response", duplicate_read_wrong_key),
    case("a duplicate atomic older than the saved results gets no response", forgotten_atomic),
    case("a duplicate atomic with different operands returns the first result", altered_atomic),
    case("duplicates from the middle of a WRITE do not change memory", duplicate_write_middle),
    case("a READ of three bytes at an odd address returns them", odd_read),
    case("a READ that follows an unacknowledged SEND: both are executed in order", read_after_send),
];

const fn with_rnr_timer(code: u8) -> Case {
    let attributes = Attributes { rnr_timer: code, ..Attributes::DEFAULT };
    match code {
        0 => Case { name: "RNR NAK with timer code 0", attributes, run: |link| rnr_code(link, 0) },
        1 => Case { name: "RNR NAK with timer code 1", attributes, run: |link| rnr_code(link, 1) },
        _ => Case { name: "RNR NAK with timer code 31", attributes, run: |link| rnr_code(link, 31) },
    }
}

fn empty_send(link: &mut Link<'_>) -> Result<()> {
    link.post_receive(0, 64)?;
    let packet = Packet { ack_req: true, ..link.packet("RC_SEND_ONLY", 0, &[]) };
    link.send(&packet)?;
    link.expect_acknowledge(0, syndrome::ACK, 1)?;
    let cqe = link.expect_success()?;
    ensure!(cqe.byte_count == 0, "completed with {cqe:?}");
    link.expect_memory(0, &content(0, 64))?;
    link.expect_receives(1, 2)
}

fn odd_lengths(link: &mut Link<'_>) -> Result<()> {
    for len in 1..=7_u8 {
        link.post_receive(64 * u64::from(len), 16)?;
    }
    for len in 1..=7_u8 {
        let (n, off, size) = (u32::from(len) - 1, 64 * usize::from(len), usize::from(len));
        let packets = link.send_message(n, &message(size));
        link.send_all(&packets)?;
        link.expect_acknowledge(n, syndrome::ACK, n + 1)?;
        let cqe = link.expect_success()?;
        ensure!(cqe.byte_count == u32::from(len), "{len} bytes completed with {cqe:?}");
        link.expect_memory(off as u64, &[message(size), content(off + size, 16)].concat())?;
    }
    Ok(())
}

fn write_three(link: &mut Link<'_>) -> Result<()> {
    let payload = message(2 * link.mtu + 3);
    let packets = write_packets(link, link.reth(1001, u32::try_from(payload.len())?), &payload);
    link.send_all(&packets)?;
    link.expect_acknowledge(2, syndrome::ACK, 1)?;
    link.expect_memory(0, &content(0, 1001))?;
    link.expect_memory(1001, &payload)?;
    let end = 1001 + payload.len();
    link.expect_memory(end as u64, &content(end, 64))?;
    link.expect_no_completion()
}

/// Returns the packets of a WRITE, numbered from the peer's initial PSN. The last packet has AckReq set.
pub(super) fn write_packets(link: &Link<'_>, reth: Reth, payload: &[u8]) -> Vec<Packet> {
    let names = ["RC_RDMA_WRITE_FIRST", "RC_RDMA_WRITE_MIDDLE", "RC_RDMA_WRITE_LAST"];
    let chunks: Vec<_> = payload.chunks(link.mtu).collect();
    let last = chunks.len().saturating_sub(1);
    let packet = |(i, chunk): (usize, &&[u8])| {
        let name = if i == last { names[2] } else { names[i.min(1)] };
        let n = u32::try_from(i).unwrap_or(u32::MAX);
        Packet { reth: (i == 0).then_some(reth), ack_req: i == last, ..link.packet(name, n, chunk) }
    };
    chunks.iter().enumerate().map(packet).collect()
}

fn empty_write_imm(link: &mut Link<'_>) -> Result<()> {
    link.post_receive(4096, 64)?;
    let packet = Packet {
        op: "RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE".into(),
        imm: Some(Hex(vec![1, 2, 3, 4])),
        ..write_only(link, Reth { va: 0, rkey: 0, len: 0 }, &[])
    };
    link.send(&packet)?;
    link.expect_acknowledge(0, syndrome::ACK, 1)?;
    let cqe = link.expect_success()?;
    ensure!(cqe.imm == [1, 2, 3, 4] && cqe.byte_count == 0, "completed with {cqe:?}");
    link.expect_memory(4096, &content(4096, 64))
}

fn send_imm_three(link: &mut Link<'_>) -> Result<()> {
    let payload = message(2 * link.mtu + 1);
    link.post_receive(0, 4096)?;
    let mut packets = link.send_message(0, &payload);
    packets[2].op = "RC_SEND_LAST_WITH_IMMEDIATE".into();
    packets[2].imm = Some(Hex(vec![9, 8, 7, 6]));
    link.send_all(&packets)?;
    link.expect_acknowledge(2, syndrome::ACK, 1)?;
    let cqe = link.expect_success()?;
    ensure!(cqe.imm == [9, 8, 7, 6] && cqe.byte_count as usize == payload.len(), "completed with {cqe:?}");
    link.expect_memory(0, &payload)
}

fn without_ack_req(link: &mut Link<'_>) -> Result<()> {
    link.post_receive(0, 64)?;
    link.post_receive(64, 64)?;
    let silent = link.packet("RC_SEND_ONLY", 0, &message(64));
    link.send(&silent)?;
    link.expect_silence()?;
    link.expect_success()?;
    let packets = link.send_message(1, &message(64));
    link.send_all(&packets)?;
    link.expect_acknowledge(1, syndrome::ACK, 2)?;
    link.expect_success().map(drop)
}

fn burst(link: &mut Link<'_>) -> Result<()> {
    const COUNT: u32 = 32;
    for n in 0..COUNT {
        link.post_receive(u64::from(n) * 64, 64)?;
    }
    let sends: Vec<_> = (0..COUNT).flat_map(|n| link.send_message(n, &message(1 + n as usize))).collect();
    link.send_all(&sends)?;
    let answers = link.rest()?;
    // Each ACK carries the number of completed messages and acknowledges all of them.
    let mut done = 0;
    for answer in &answers {
        let msn = answer.aeth.map_or(0, |aeth| aeth.msn);
        ensure!(
            answer.is("RC_ACKNOWLEDGE") && msn > done && answer.psn == Link::peer_psn(msn - 1),
            "{answer:?} after {done}"
        );
        done = msn;
    }
    ensure!(done == COUNT, "acknowledged up to {done}");
    for n in 0..COUNT {
        let cqe = link.expect_success()?;
        ensure!(cqe.byte_count == n + 1, "SEND {n} completed with {cqe:?}");
        link.expect_memory(u64::from(n) * 64, &message(1 + n as usize))?;
    }
    Ok(())
}

/// Checks the farthest PSN that counts as ahead of the expected PSN. It is just under half the PSN space away
/// (IBTA 9.7.1).
fn farthest_psn(link: &mut Link<'_>) -> Result<()> {
    let packet = Packet { ack_req: true, ..link.packet("RC_SEND_ONLY", 0x7f_ffff, &message(8)) };
    link.send(&packet)?;
    link.expect_acknowledge(0, syndrome::NAK_SEQUENCE, 0)?;
    link.expect_receives(0, 1)
}

fn duplicate_while_not_ready(link: &mut Link<'_>) -> Result<()> {
    link.post_receive(0, 64)?;
    let (first, second) = (link.send_message(0, &message(8)), link.send_message(1, &message(9)));
    link.send_all(&first)?;
    link.expect_acknowledge(0, syndrome::ACK, 1)?;
    link.expect_success()?;
    let rnr = syndrome::RNR | Attributes::DEFAULT.rnr_timer;
    link.send_all(&second)?;
    link.expect_acknowledge(1, rnr, 1)?;
    link.send_all(&first)?;
    link.expect_acknowledge(0, syndrome::ACK, 1)?;
    link.post_receive(64, 64)?;
    link.send_all(&second)?;
    link.expect_acknowledge(1, syndrome::ACK, 2)?;
    link.expect_success()?;
    link.expect_memory(64, &message(9))
}

fn rnr_code(link: &mut Link<'_>, code: u8) -> Result<()> {
    let packets = link.send_message(0, &message(8));
    link.send_all(&packets)?;
    link.expect_acknowledge(0, syndrome::RNR | code, 0)
}

fn rnr_again(link: &mut Link<'_>) -> Result<()> {
    let packets = link.send_message(0, &message(8));
    for _ in 0..4 {
        link.send_all(&packets)?;
        link.expect_acknowledge(0, syndrome::RNR | Attributes::DEFAULT.rnr_timer, 0)?;
    }
    link.expect_receives(0, 1)
}

fn duplicate_read_wrong_key(link: &mut Link<'_>) -> Result<()> {
    let reth = link.reth(0, 8);
    let request = link.read_request(0, reth);
    link.send(&request)?;
    responses(link, 0, &["RC_RDMA_READ_RESPONSE_ONLY"], 1)?;
    let forged = link.read_request(0, Reth { rkey: reth.rkey ^ 0x101, ..reth });
    link.send(&forged)?;
    for answer in link.rest()? {
        ensure!(answer.payload.is_empty(), "the response contains data: {answer:?}");
    }
    link.expect_state(state::RTS)
}

/// Checks that a duplicate atomic is not answered once its result has been discarded. Only sixteen results are kept
/// (JingZhao interface, section 10.4).
fn forgotten_atomic(link: &mut Link<'_>) -> Result<()> {
    link.store(0, &[0; 8])?;
    let requests: Vec<_> = (0..17).map(|n| fetch_add(link, n, 0, 1)).collect();
    for (n, request) in (0..).zip(&requests) {
        link.send(request)?;
        expect_original(link, n, n.into(), n + 1)?;
    }
    link.send(&requests[0])?;
    link.expect_silence()?;
    link.send(&requests[1])?;
    expect_original(link, 1, 1, 17)?;
    link.expect_memory(0, &17u64.to_le_bytes())
}

fn altered_atomic(link: &mut Link<'_>) -> Result<()> {
    link.store(8, &5u64.to_le_bytes())?;
    let (first, other) = (fetch_add(link, 0, 8, 3), fetch_add(link, 0, 8, 100));
    for request in [first, other] {
        link.send(&request)?;
        expect_original(link, 0, 5, 1)?;
    }
    link.expect_memory(8, &8u64.to_le_bytes())
}

fn duplicate_write_middle(link: &mut Link<'_>) -> Result<()> {
    let payload = message(3 * link.mtu);
    let packets = write_packets(link, link.reth(0, u32::try_from(payload.len())?), &payload);
    link.send_all(&packets)?;
    link.expect_acknowledge(2, syndrome::ACK, 1)?;
    link.store(0, &vec![0x5a; payload.len()])?;
    for n in [1, 2] {
        let again = Packet { ack_req: true, ..packets[n].clone() };
        link.send(&again)?;
        link.expect_acknowledge(2, syndrome::ACK, 1)?;
    }
    link.expect_memory(0, &vec![0x5a; payload.len()])?;
    link.expect_receives(3, 2)
}

fn odd_read(link: &mut Link<'_>) -> Result<()> {
    let request = link.read_request(0, link.reth(333, 3));
    link.send(&request)?;
    ensure!(
        responses(link, 0, &["RC_RDMA_READ_RESPONSE_ONLY"], 1)? == content(333, 3),
        "the response contains unexpected data"
    );
    Ok(())
}

fn read_after_send(link: &mut Link<'_>) -> Result<()> {
    link.post_receive(4096, 64)?;
    let send = link.packet("RC_SEND_ONLY", 0, &message(8));
    let read = link.read_request(1, link.reth(0, 8));
    link.send_all(&[send.clone(), read.clone()])?;
    ensure!(responses(link, 1, &["RC_RDMA_READ_RESPONSE_ONLY"], 2)? == content(0, 8), "unexpected data");
    link.expect_success()?;
    // Repeat both requests, as a peer does if the response is lost.
    link.send_all(&[send, read])?;
    let next = link.next()?;
    let response = if next.is("RC_ACKNOWLEDGE") { link.next()? } else { next };
    ensure!(
        response.is("RC_RDMA_READ_RESPONSE_ONLY") && *response.payload == content(0, 8),
        "unexpected response {response:?}"
    );
    link.expect_no_completion()
}
