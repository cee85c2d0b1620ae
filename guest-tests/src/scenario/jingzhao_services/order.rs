//! Ordering: fences and the limit on outstanding READs and atomics.

use agent::wire::{Data, Fill, MrInfo, PostRecv, SendOp, SendRequest, Verify};
use anyhow::{Result, ensure};

use super::SOON_MS;
use super::atomics::Counter;
use crate::report::Report;
use crate::scenario::connection::{Attributes, Connection, destroy_region, expect_stream, region};
use crate::scenario::impairments::Impairments;
use crate::scenario::pair::{Direction, Pair};

/// Maximum number of outstanding READs and atomics per queue pair (JingZhao interface, section 10.4).
const LIMIT: u64 = 16;

pub(super) async fn run(pair: &mut Pair, report: &mut Report, hint: &str) -> Result<()> {
    for (name, op) in [("SEND", SendOp::Send), ("WRITE", SendOp::Write), ("READ", SendOp::Read)] {
        let name = format!("fence: {name} of data returned by a READ");
        report.case(&name, hint, fenced(pair, op)).await?;
    }
    report.case("fence: SEND of an atomic's result", hint, fenced_result(pair)).await?;
    report.case("many READs and atomics complete in order", hint, many(pair)).await?;
    let (read, add) = (SendOp::Read, SendOp::FetchAdd { add: 1 });
    for (name, ops) in [("READs", [read, read]), ("atomics", [add, add]), ("both together", [read, add])] {
        let name = format!("at most {LIMIT} outstanding: {name}");
        report.case(&name, hint, limited(pair, ops)).await?;
    }
    Ok(())
}

/// Checks the fence (section 6.7). Without it, the second request would read memory that the READ response has not yet
/// filled.
async fn fenced(pair: &mut Pair, op: SendOp) -> Result<()> {
    const LEN: u32 = 400_000;
    let connection = Connection::create(pair, &Attributes::default()).await?;
    let (at_a, at_b) = connection.towards(Direction::AToB);
    let source = region(&mut pair.b.vm, LEN.into(), 5).await?;
    let between = region(&mut pair.a.vm, LEN.into(), 77).await?;
    let sink = region(&mut pair.b.vm, LEN.into(), 1234).await?;
    for seed in 1..6 {
        let fill = |mr: &MrInfo, seed| Fill { mr: mr.id, len: mr.len, seed, ..Fill::default() };
        pair.b.vm.call(fill(&source, seed)).await?;
        pair.a.vm.call(fill(&between, 100 + seed)).await?;
        pair.b.vm.call(fill(&sink, 200 + seed)).await?;
        if op == SendOp::Send {
            let receive = PostRecv { qp: at_b.qp.id, requests: vec![vec![sink.sge(0, LEN)]] };
            pair.b.vm.call(receive).await?;
        }
        let first = SendRequest { remote: Some(source.remote(0)), ..request(SendOp::Read, &between, LEN) };
        // If the second request is a READ, it reads the same source again.
        let remote = match op {
            SendOp::Send => None,
            SendOp::Write => Some(sink.remote(0)),
            _ => Some(source.remote(0)),
        };
        let second = SendRequest { remote, fence: true, ..request(op, &between, LEN) };
        at_a.post(&mut pair.a.vm, vec![first, second]).await?;
        at_a.expect_completions(&mut pair.a.vm, &[None; 2], SOON_MS).await?;
        if op == SendOp::Send {
            at_b.expect_completions(&mut pair.b.vm, &[None], SOON_MS).await?;
        }
        let (vm, target) =
            if op == SendOp::Read { (&mut pair.a.vm, &between) } else { (&mut pair.b.vm, &sink) };
        let whole = Verify { mr: target.id, len: target.len, seed, ..Verify::default() };
        expect_stream(vm, whole, "data returned by the READ").await?;
    }
    connection.destroy(pair).await?;
    destroy_region(&mut pair.a.vm, &between).await?;
    destroy_region(&mut pair.b.vm, &source).await?;
    destroy_region(&mut pair.b.vm, &sink).await
}

async fn fenced_result(pair: &mut Pair) -> Result<()> {
    let counter = Counter::create(pair, &Attributes::default()).await?;
    let at_b = *counter.connection.towards(Direction::AToB).1;
    // The SEND overwrites the word after the atomic has read it.
    for round in 0..20 {
        counter.set(pair, 1000 + round).await?;
        let receive = PostRecv { qp: at_b.qp.id, requests: vec![vec![counter.word.sge(8, 8)]] };
        pair.b.vm.call(receive).await?;
        let add = counter.request(SendOp::FetchAdd { add: 500 }, 0);
        let send = SendRequest { fence: true, ..request(SendOp::Send, &counter.results, 8) };
        counter.execute(pair, vec![add, send]).await?;
        at_b.expect_completions(&mut pair.b.vm, &[None], SOON_MS).await?;
        let value = counter.value(pair).await?;
        ensure!(value == 1000 + round, "the message contains {value}, expected the result {}", 1000 + round);
    }
    counter.destroy(pair).await
}

async fn many(pair: &mut Pair) -> Result<()> {
    const COUNT: u32 = 60;
    const LEN: u32 = 3000;
    let counter = Counter::create(pair, &Attributes { mtu: 256, ..Attributes::default() }).await?;
    let source = region(&mut pair.b.vm, LEN.into(), 5).await?;
    let sink = region(&mut pair.a.vm, u64::from(COUNT * LEN), 9).await?;
    pair.b.vm.call(Fill { mr: source.id, len: source.len, seed: 3, ..Fill::default() }).await?;
    let at_a = *counter.connection.towards(Direction::AToB).0;
    let requests: Vec<_> = (0..COUNT)
        .map(|i| {
            if i % 3 == 2 {
                return counter.request(SendOp::FetchAdd { add: 1 }, i);
            }
            let data = Data::Sges(vec![sink.sge(u64::from(i * LEN), LEN)]);
            SendRequest { op: SendOp::Read, data, remote: Some(source.remote(0)), ..SendRequest::default() }
        })
        .collect();
    let posted = at_a.post(&mut pair.a.vm, requests).await?;
    let cqes = at_a.expect_completions(&mut pair.a.vm, &[None; COUNT as usize], SOON_MS).await?;
    ensure!(cqes.iter().map(|cqe| cqe.wqe).eq(posted), "completions out of order: {cqes:?}");
    for i in 0..COUNT {
        if i % 3 == 2 {
            let result = counter.result(pair, i).await?;
            ensure!(result == u64::from(i / 3), "atomic {i} returned {result}");
        } else {
            let off = u64::from(i * LEN);
            let part = Verify { mr: sink.id, off, len: LEN.into(), seed: 3, position: 0 };
            expect_stream(&mut pair.a.vm, part, &format!("READ {i}")).await?;
        }
    }
    destroy_region(&mut pair.a.vm, &sink).await?;
    destroy_region(&mut pair.b.vm, &source).await?;
    counter.destroy(pair).await
}

/// Checks the limit on outstanding READs and atomics. With responses dropped and timeouts disabled, the device sends
/// only as many requests as the limit permits.
async fn limited(pair: &mut Pair, ops: [SendOp; 2]) -> Result<()> {
    const READ: &str = "RC RDMA READ Request";
    const ADD: &str = "RC FetchAdd";
    let attributes = Attributes { timeout: 0, ..Attributes::default() };
    let counter = Counter::create(pair, &attributes).await?;
    let mut at_b = Impairments::default();
    for response in ["RC RDMA READ response Only", "RC ATOMIC Acknowledge"] {
        at_b.add(&pair.b.daemon, &["tx", "--opcode", response, "drop"]).await?;
    }
    // These rules drop only the millionth matching frame. Far fewer are sent, so the rules merely count them.
    let mut at_a = Impairments::default();
    for request in [READ, ADD] {
        at_a.add(&pair.a.daemon, &["tx", "--opcode", request, "--nth", "1000000", "drop"]).await?;
    }
    let requests = ops.into_iter().cycle().take(40).enumerate().map(|(i, op)| {
        let slot = u32::try_from(i).unwrap_or_default();
        counter.request(op, slot)
    });
    let end = *counter.connection.towards(Direction::AToB).0;
    end.post(&mut pair.a.vm, requests.collect()).await?;
    at_a.await_matches(&pair.a.daemon, LIMIT).await?;
    // If the device exceeded the limit, it would send the next packets long before it completed this command.
    end.query(&mut pair.a.vm).await?;
    let left = at_a.matched(&pair.a.daemon).await?;
    ensure!(left == LIMIT, "{left} requests were sent without a response");
    at_a.clear(&pair.a.daemon).await?;
    at_b.clear(&pair.b.daemon).await?;
    counter.destroy(pair).await
}

fn request(op: SendOp, local: &MrInfo, len: u32) -> SendRequest {
    SendRequest { op, data: Data::Sges(vec![local.sge(0, len)]), ..SendRequest::default() }
}
