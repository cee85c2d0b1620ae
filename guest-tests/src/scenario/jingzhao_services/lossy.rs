//! Packet loss: atomics execute exactly once, and UC messages arrive whole or not at all.

use agent::wire::{Data, Fill, PostRecv, SendOp, SendRequest, Verify};
use anyhow::{Context as _, Result, bail, ensure};

use super::atomics::Counter;
use super::connected::Link;
use super::{Growth, SOON_MS};
use crate::report::Report;
use crate::scenario::connection::{Attributes, destroy_region, expect_stream, region};
use crate::scenario::impairments::Impairments;
use crate::scenario::pair::{Direction, Pair};

pub(super) async fn run(pair: &mut Pair, report: &mut Report, hint: &str) -> Result<()> {
    for op in [SendOp::FetchAdd { add: 1 }, SendOp::CmpSwap { compare: 0, swap: 1 }] {
        let name = format!("{op:?} executes once if its response is lost");
        report.case(&name, hint, lost_response(pair, op)).await?;
        let name = format!("{op:?} executes once if it arrives twice");
        report.case(&name, hint, doubled_request(pair, op)).await?;
    }
    report.case("atomics under heavy loss each execute once", hint, lossy_atomics(pair)).await?;
    for part in ["First", "Middle", "Last"] {
        for (name, op) in [("SEND", SendOp::SendImm), ("RDMA WRITE", SendOp::WriteImm)] {
            let name_ = format!("UC {name} is dropped as a whole if its {part} packet is lost");
            report.case(&name_, hint, broken(pair, op, name, part)).await?;
        }
    }
    report.case("UC under loss: messages arrive complete and in order", hint, lossy_messages(pair)).await
}

/// Returns attributes with a short timeout, which speeds up retransmission.
fn impatient() -> Attributes {
    // The timeout is 4.2 ms. Seven retries are enough for the expected losses.
    Attributes { timeout: 10, retry: 7, ..Attributes::default() }
}

/// Checks that a duplicate request receives the original result (JingZhao interface, section 11.3).
async fn lost_response(pair: &mut Pair, op: SendOp) -> Result<()> {
    let counter = Counter::create(pair, &impatient()).await?;
    let mut loss = Impairments::default();
    loss.add(
        &pair.b.daemon,
        &["tx", "--opcode", "RC ATOMIC Acknowledge", "--nth", "1", "--count", "2", "drop"],
    )
    .await?;
    executes_once(pair, &counter, op).await?;
    let hits = loss.hits(&pair.b.daemon).await?;
    ensure!(hits == 2, "{hits} replies were lost, expected two");
    loss.clear(&pair.b.daemon).await?;
    counter.destroy(pair).await
}

async fn doubled_request(pair: &mut Pair, op: SendOp) -> Result<()> {
    let counter = Counter::create(pair, &impatient()).await?;
    let name = if matches!(op, SendOp::FetchAdd { .. }) { "RC FetchAdd" } else { "RC CmpSwap" };
    let mut double = Impairments::default();
    double.add(&pair.b.daemon, &["rx", "--opcode", name, "duplicate"]).await?;
    executes_once(pair, &counter, op).await?;
    let hits = double.hits(&pair.b.daemon).await?;
    ensure!(hits > 0, "no request arrived twice");
    double.clear(&pair.b.daemon).await?;
    counter.destroy(pair).await
}

/// Executes one atomic and checks that it took effect only once. If executed twice, a CMP_SWAP would return the value
/// that it stored the first time, and a FETCH_ADD would add twice.
async fn executes_once(pair: &mut Pair, counter: &Counter, op: SendOp) -> Result<()> {
    let duplicates = Growth::of(&pair.b, "/engine/recovery/duplicates").await?;
    counter.execute(pair, vec![counter.request(op, 0)]).await?;
    let (value, result) = (counter.value(pair).await?, counter.result(pair, 0).await?);
    ensure!((value, result) == (1, 0), "{op:?} left {value}, and its result is {result}");
    ensure!(duplicates.so_far(&pair.b).await? > 0, "no duplicate received a response");
    Ok(())
}

/// Checks that each FETCH_ADD returns the next count and that the word ends up equal to the number of additions.
async fn lossy_atomics(pair: &mut Pair) -> Result<()> {
    const ROUNDS: u64 = 5;
    const EACH: u32 = 60;
    let counter = Counter::create(pair, &impatient()).await?;
    let duplicates = Growth::of(&pair.b, "/engine/recovery/duplicates").await?;
    let mut at_a = Impairments::default();
    at_a.add(
        &pair.a.daemon,
        &["tx", "--opcode", "RC FetchAdd", "--probability", "0.1", "--seed", "1", "drop"],
    )
    .await?;
    let mut at_b = Impairments::default();
    for (seed, action) in [("2", "drop"), ("3", "duplicate")] {
        let rule =
            ["tx", "--opcode", "RC ATOMIC Acknowledge", "--probability", "0.1", "--seed", seed, action];
        at_b.add(&pair.b.daemon, &rule).await?;
    }
    for round in 0..ROUNDS {
        let add = |i| counter.request(SendOp::FetchAdd { add: 1 }, i);
        counter.execute(pair, (0..EACH).map(add).collect()).await?;
        for i in 0..EACH {
            let result = counter.result(pair, i).await?;
            let expected = round * u64::from(EACH) + u64::from(i);
            ensure!(
                result == expected,
                "addition {i} of round {round} returned {result}, expected {expected}"
            );
        }
    }
    let value = counter.value(pair).await?;
    ensure!(value == ROUNDS * u64::from(EACH), "counted to {value}");
    ensure!(duplicates.so_far(&pair.b).await? > 0, "no duplicate received a response");
    at_a.clear(&pair.a.daemon).await?;
    at_b.clear(&pair.b.daemon).await?;
    counter.destroy(pair).await
}

/// Checks that an incomplete message does not generate a completion and that the next message uses the same receive
/// request (section 11.3).
async fn broken(pair: &mut Pair, op: SendOp, name: &str, part: &str) -> Result<()> {
    const LEN: u32 = 5000;
    let mut link = Link::create(pair, 1024, Direction::AToB).await?;
    let mut loss = Impairments::default();
    // Only the last packet's opcode shows whether the message has immediate data.
    let with = if part == "Last" { " with Immediate" } else { "" };
    let opcode = format!("UC {name} {part}{with}");
    loss.add(&pair.b.daemon, &["rx", "--opcode", &opcode, "--nth", "1", "drop"]).await?;
    link.buffers.prepare(pair, LEN).await?;
    let list = if op == SendOp::SendImm { link.buffers.scatter(LEN) } else { Vec::new() };
    link.receive(pair, list).await?;
    link.send(pair, vec![link.request(op, LEN)]).await?;
    // The second message differs from the first in every byte.
    link.buffers.prepare(pair, LEN).await?;
    link.send(pair, vec![SendRequest { imm: [9; 4], ..link.request(op, LEN) }]).await?;
    let arrived =
        link.arrival(pair, SOON_MS).await?.context("the message after the lost one did not arrive")?;
    ensure!((arrived.syndrome, arrived.byte_count, arrived.imm) == (None, LEN, [9; 4]), "{arrived:?}");
    link.buffers.expect_arrived(pair, 0, LEN).await?;
    let more = link.arrival(pair, 0).await?;
    ensure!(more.is_none(), "{more:?}");
    let hits = loss.hits(&pair.b.daemon).await?;
    ensure!(hits == 1, "{hits} packets were dropped, expected one");
    loss.clear(&pair.b.daemon).await?;
    link.destroy(pair).await
}

/// Sends numbered messages of five packets each under loss and checks those that arrive. The immediate data holds the
/// message number.
async fn lossy_messages(pair: &mut Pair) -> Result<()> {
    const LEN: u32 = 5000;
    const MESSAGES: u32 = 60;
    let link = Link::create(pair, 1024, Direction::AToB).await?;
    let (at_a, at_b) = link.ends();
    let all = u64::from(MESSAGES * LEN);
    let source = region(&mut pair.a.vm, all, 13).await?;
    let sink = region(&mut pair.b.vm, all, 99).await?;
    let slot = |i: u32| u64::from(i * LEN);
    let fill = Fill { mr: source.id, len: all, seed: 11, ..Fill::default() };
    pair.a.vm.call(fill).await?;
    let receives = (0..MESSAGES).map(|i| vec![sink.sge(slot(i), LEN)]).collect();
    pair.b.vm.call(PostRecv { qp: at_b.qp.id, requests: receives }).await?;

    let mut loss = Impairments::default();
    loss.add(&pair.b.daemon, &["rx", "--probability", "0.05", "--seed", "4", "drop"]).await?;
    let requests = (0..MESSAGES)
        .map(|i| SendRequest {
            op: SendOp::SendImm,
            data: Data::Sges(vec![source.sge(slot(i), LEN)]),
            imm: i.to_le_bytes(),
            ..SendRequest::default()
        })
        .collect();
    at_a.post(&mut pair.a.vm, requests).await?;
    at_a.expect_completions(&mut pair.a.vm, &[None; MESSAGES as usize], SOON_MS).await?;
    // Wait until the rule has matched every packet of every message, that is, until the daemon of guest `b` has dropped
    // or accepted each of them.
    loss.await_matches(&pair.b.daemon, u64::from(MESSAGES * LEN.div_ceil(1024))).await?;
    let lost = loss.hits(&pair.b.daemon).await?;
    loss.clear(&pair.b.daemon).await?;
    let mut last = None;
    for arrived in 0.. {
        let Some(cqe) = link.arrival(pair, 100).await? else {
            ensure!(arrived > 0 && arrived < MESSAGES, "{arrived} of {MESSAGES} messages arrived");
            // A message is lost only if at least one of its packets is lost.
            ensure!(
                u64::from(MESSAGES - arrived) <= lost,
                "{} messages did not arrive, but only {lost} packets were lost",
                MESSAGES - arrived
            );
            break;
        };
        let number = u32::from_le_bytes(cqe.imm);
        ensure!(
            (cqe.syndrome, cqe.byte_count) == (None, LEN) && last < Some(number),
            "{cqe:?} after {last:?}"
        );
        if number >= MESSAGES {
            bail!("message {number} was never sent");
        }
        last = Some(number);
        let (off, position) = (slot(arrived), slot(number));
        let part = Verify { mr: sink.id, off, len: LEN.into(), seed: 11, position };
        expect_stream(&mut pair.b.vm, part, &format!("message {number}")).await?;
    }
    for (vm, mr) in [(&mut pair.a.vm, &source), (&mut pair.b.vm, &sink)] {
        destroy_region(vm, mr).await?;
    }
    link.destroy(pair).await
}
