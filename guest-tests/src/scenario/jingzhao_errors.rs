//! Error cases: invalid keys, missing receives, a silent peer, invalid commands, and a killed guest.

mod commands;

use std::time::Duration;

use agent::wire::{
    Access, Cqe, CreateMr, CreateQp, Data, Fill, Flow, MrInfo, Poll, PostRecv, RecvStyle, Remote, SendFlow,
    SendOp, SendRequest, Traffic, Transition, Verify,
};
use anyhow::{Context, Result, bail, ensure};
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::codes::{state, syndrome};
use super::connection::{Attributes, Connection, End, destroy_region, expect_stream, region};
use super::pair::{Direction, Pair};
use super::transfer::{Plan, transfer};
use crate::lab::Lab;
use crate::report::Report;
use crate::vm::Vm;

/// Opcode field in the error completions of a send queue (JingZhao interface, section 7.2).
const OPCODE_SEND_ERROR: u8 = 0xff;
/// Timeout for completions that are expected immediately.
const SOON_MS: u32 = 10_000;
/// Path of the counter for received RNR NAKs.
const RNR_NAKS: &str = "/engine/naks_received/rnr";
/// Path of the counter for expired ACK timers.
const TIMEOUTS: &str = "/engine/recovery/timeouts";

pub(super) async fn run(lab: &Lab, report: &mut Report) -> Result<()> {
    // The public user library needs `rq_valid_bit`, since it sets a WQE's valid bit before it writes the scatter list.
    let options = [json!({}), json!({ "queues": { "rq_valid_bit": true } })];
    let mut pair = Pair::start_open_as(lab, "jingzhao-errors", options).await?;
    let hint = pair.hint();
    for (op_name, op) in [("WRITE", SendOp::Write), ("READ", SendOp::Read)] {
        for fault in Fault::ALL {
            for len in [1, 10_000] {
                let name = format!("{op_name} of {len} bytes {}: remote access error", fault.name());
                report.case(&name, &hint, access_error(&mut pair, op, fault, len)).await?;
            }
        }
    }
    report
        .case(
            "SEND without a receive request is delivered when one is posted",
            &hint,
            rnr_recovers(&mut pair),
        )
        .await?;
    report
        .case("SEND without a receive request: RNR retries exhausted", &hint, rnr_exhausted(&mut pair))
        .await?;
    report
        .case(
            "receive lists without a terminator: no RNR retry count is exceeded",
            &hint,
            unterminated_receives(&mut pair),
        )
        .await?;
    for retry in [1, 3] {
        let name = format!("silent peer: retry count of {retry} exceeded");
        report.case(&name, &hint, peer_gone(&mut pair, retry)).await?;
    }
    commands::run(&mut pair, report, &hint).await?;
    report
        .case(
            "guest killed during a transfer: its daemon serves the next guest",
            &hint,
            killed(&mut pair, lab),
        )
        .await?;
    report.case("daemons exit cleanly on SIGTERM", &hint, pair.stop()).await
}

/// What is wrong with a remote address or key.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Key,
    /// The last byte accessed lies just past the end of the region.
    Bounds,
    /// The region does not permit the operation.
    Right,
}

impl Fault {
    const ALL: [Self; 3] = [Self::Key, Self::Bounds, Self::Right];

    fn name(self) -> &'static str {
        match self {
            Self::Key => "with a wrong R_Key",
            Self::Bounds => "beyond the region",
            Self::Right => "without the access right",
        }
    }

    /// Returns the region's access rights. For [`Fault::Right`], the right required by `op` is missing.
    fn access(self, op: SendOp) -> Access {
        match (self, op) {
            (Self::Right, SendOp::Read) => Access { remote_read: false, ..Access::ALL },
            (Self::Right, _) => Access { remote_write: false, ..Access::ALL },
            _ => Access::ALL,
        }
    }

    fn remote(self, target: &MrInfo, len: u32) -> Remote {
        match self {
            // This key differs from the valid one in its index into the key table and in its upper bits.
            Self::Key => Remote { rkey: target.key ^ 0x8000_0101, ..target.remote(0) },
            Self::Bounds => target.remote(target.len + 1 - u64::from(len)),
            Self::Right => target.remote(0),
        }
    }
}

/// Checks that an access error leaves the memory at both ends unchanged and does not affect other queue pairs (JingZhao
/// interface, sections 7.4, 9.5 and 10.5).
async fn access_error(pair: &mut Pair, op: SendOp, fault: Fault, len: u32) -> Result<()> {
    const SEED: u64 = 5;
    let other = Connection::create(pair, &Attributes::default()).await?;
    let connection = Connection::create(pair, &Attributes::default()).await?;
    let (at_a, at_b) = connection.towards(Direction::AToB);

    let target = CreateMr { len: 20_000, access: fault.access(op), page_offset: 100, ..CreateMr::default() };
    let target = pair.b.vm.call(target).await?;
    fill(&mut pair.b.vm, &target, SEED).await?;
    let local = region(&mut pair.a.vm, 20_000, 0).await?;
    fill(&mut pair.a.vm, &local, SEED + 1).await?;

    let bad = SendRequest {
        op,
        data: Data::Sges(vec![local.sge(0, len)]),
        remote: Some(fault.remote(&target, len)),
        ..SendRequest::default()
    };
    let good = SendRequest { remote: Some(target.remote(0)), ..bad.clone() };
    let posted = at_a.post(&mut pair.a.vm, vec![bad, good]).await?;
    let cqes = at_a.poll(&mut pair.a.vm, 2, SOON_MS).await?;
    expect_error(cqes.first(), syndrome::REMOTE_ACCESS, posted.first().copied())?;
    expect_error(cqes.get(1), syndrome::FLUSHED, posted.get(1).copied())?;

    for (vm, end) in [(&mut pair.a.vm, at_a), (&mut pair.b.vm, at_b)] {
        let state = end.query(vm).await?.state;
        ensure!(state == state::ERR, "the QP of guest {} is in state {state}", vm.name());
    }
    expect_filled(&mut pair.b.vm, &target, SEED, "the responder's memory").await?;
    expect_filled(&mut pair.a.vm, &local, SEED + 1, "the requester's memory").await?;
    transfer(pair, &other, Plan::new(op, 5000)).await.context("a different QP")?;

    destroy_region(&mut pair.a.vm, &local).await?;
    destroy_region(&mut pair.b.vm, &target).await?;
    connection.destroy(pair).await?;
    other.destroy(pair).await
}

/// Checks that an `rnr_retry` of 7 means unlimited retries (JingZhao interface, section 10.6).
async fn rnr_recovers(pair: &mut Pair) -> Result<()> {
    const SEED: u64 = 9;
    const LEN: u32 = 5000;
    let connection = Connection::create(pair, &Attributes::default()).await?;
    let (at_a, at_b) = connection.towards(Direction::AToB);
    let source = region(&mut pair.a.vm, LEN.into(), 7).await?;
    fill(&mut pair.a.vm, &source, SEED).await?;
    let sink = region(&mut pair.b.vm, LEN.into(), 11).await?;

    at_a.post(&mut pair.a.vm, vec![send(&source, LEN)]).await?;
    let early = pair.a.vm.call(Poll { cq: at_a.cq.id, count: 1, timeout_ms: 300 }).await?.cqes;
    ensure!(early.is_empty(), "completed without a receive request: {early:?}");
    pair.b.vm.call(PostRecv { qp: at_b.qp.id, requests: vec![vec![sink.sge(0, LEN)]] }).await?;
    for (vm, end) in [(&mut pair.a.vm, at_a), (&mut pair.b.vm, at_b)] {
        let cqes = end.poll(vm, 1, SOON_MS).await?;
        ensure!(cqes[0].syndrome.is_none() && cqes[0].byte_count == LEN, "completed with {:?}", cqes[0]);
    }
    expect_filled(&mut pair.b.vm, &sink, SEED, "received data").await?;

    destroy_region(&mut pair.a.vm, &source).await?;
    destroy_region(&mut pair.b.vm, &sink).await?;
    connection.destroy(pair).await
}

/// Checks that the requester waits for one interval of the RNR timer before each retry (JingZhao interface, sections
/// 7.4 and 10.6).
async fn rnr_exhausted(pair: &mut Pair) -> Result<()> {
    // The interval is 122.88 ms.
    let attributes = Attributes { rnr_retry: 3, rnr_timer: 27, ..Attributes::default() };
    let interval = Duration::from_micros(122_880);
    let before = pair.a.daemon.counter(RNR_NAKS).await?;
    let took = fails_with(pair, &attributes, syndrome::RNR_RETRY_EXCEEDED, async |_, _| Ok(())).await?;
    let naks = pair.a.daemon.counter(RNR_NAKS).await? - before;
    ensure!(naks == 4, "{naks} RNR NAKs, expected one for the message and one for each of 3 retries");
    expect_duration(took, 3 * interval)
}

/// Checks that a receive with an unterminated list triggers at most one RNR NAK, and none if it was posted well before
/// the message (JingZhao interface, J-50).
async fn unterminated_receives(pair: &mut Pair) -> Result<()> {
    const LEN: u32 = 5000;
    let shape = CreateQp { recv_style: RecvStyle::Unterminated, ..CreateQp::default() };
    // A receive posted 300 ms before its message does not trigger an RNR NAK. Three seconds leave enough margin for a
    // busy host.
    for (rnr_retry, wait) in [(1, Duration::ZERO), (0, Duration::from_secs(3))] {
        let attributes = Attributes { rnr_retry, ..Attributes::default() };
        let connection = Connection::create_as(pair, &attributes, [CreateQp::default(), shape]).await?;
        let (at_a, at_b) = connection.towards(Direction::AToB);
        let source = region(&mut pair.a.vm, LEN.into(), 7).await?;
        let sink = region(&mut pair.b.vm, LEN.into(), 11).await?;
        // Send two messages, since the device learns the length of unterminated lists from the first one.
        for seed in [21, 22] {
            fill(&mut pair.a.vm, &source, seed).await?;
            pair.b.vm.call(PostRecv { qp: at_b.qp.id, requests: vec![vec![sink.sge(0, LEN)]] }).await?;
            sleep(wait).await;
            at_a.post(&mut pair.a.vm, vec![send(&source, LEN)]).await?;
            for (vm, end) in [(&mut pair.a.vm, at_a), (&mut pair.b.vm, at_b)] {
                let cqes = end.poll(vm, 1, SOON_MS).await?;
                ensure!(
                    cqes[0].syndrome.is_none() && cqes[0].byte_count == LEN,
                    "rnr_retry {rnr_retry}, posted {wait:?} before the message: completed with {:?}",
                    cqes[0]
                );
            }
            expect_filled(&mut pair.b.vm, &sink, seed, "received data").await?;
        }
        destroy_region(&mut pair.a.vm, &source).await?;
        destroy_region(&mut pair.b.vm, &sink).await?;
        connection.destroy(pair).await?;
    }
    Ok(())
}

/// Checks that the requester waits 4.096 us x 2^code for a response after the first transmission and after each retry
/// (JingZhao interface, section 10.6).
async fn peer_gone(pair: &mut Pair, retry: u8) -> Result<()> {
    // The timeout is 268.4 ms.
    let attributes = Attributes { timeout: 16, retry, ..Attributes::default() };
    let interval = Duration::from_nanos(4096) * (1 << 16);
    let before = pair.a.daemon.counter(TIMEOUTS).await?;
    let took = fails_with(pair, &attributes, syndrome::RETRY_EXCEEDED, async |vm, end| {
        // A queue pair in RESET drops packets without replying.
        end.to(vm, Transition::ToReset).await
    });
    let took = took.await?;
    let timeouts = pair.a.daemon.counter(TIMEOUTS).await? - before;
    ensure!(
        timeouts == u64::from(retry) + 1,
        "{timeouts} timeouts, expected 1 and one for each of {retry} retries"
    );
    expect_duration(took, interval * (u32::from(retry) + 1))
}

/// Sends one message from guest `a` after calling `prepare_b`. Returns the time until the message failed with syndrome
/// `expected`.
async fn fails_with(
    pair: &mut Pair,
    attributes: &Attributes,
    expected: u8,
    prepare_b: impl AsyncFnOnce(&mut Vm, &End) -> Result<()>,
) -> Result<Duration> {
    let connection = Connection::create(pair, attributes).await?;
    let (at_a, at_b) = connection.towards(Direction::AToB);
    prepare_b(&mut pair.b.vm, at_b).await?;
    let source = region(&mut pair.a.vm, 64, 0).await?;
    let begun = Instant::now();
    let posted = at_a.post(&mut pair.a.vm, vec![send(&source, 64)]).await?;
    let cqes = at_a.poll(&mut pair.a.vm, 1, 60_000).await?;
    let took = begun.elapsed();
    expect_error(cqes.first(), expected, posted.first().copied())?;
    let state = at_a.query(&mut pair.a.vm).await?.state;
    ensure!(state == state::ERR, "the requester's QP is in state {state}");
    destroy_region(&mut pair.a.vm, &source).await?;
    connection.destroy(pair).await?;
    Ok(took)
}

/// Checks that the duration is at least `computed`. There is no upper bound, since a busy host can delay any timer.
fn expect_duration(took: Duration, computed: Duration) -> Result<()> {
    ensure!(took >= computed, "failed after {took:?}, expected at least {computed:?}");
    Ok(())
}

/// Checks that the daemon detects that its guest was killed and then accepts another guest on the same socket.
async fn killed(pair: &mut Pair, lab: &Lab) -> Result<()> {
    const LEN: u32 = 65536;
    let connection = Connection::create(pair, &Attributes::default()).await?;
    let (at_a, at_b) = connection.towards(Direction::AToB);
    let source = region(&mut pair.a.vm, LEN.into(), 0).await?;
    let sink = region(&mut pair.b.vm, LEN.into(), 0).await?;
    let receives = vec![Vec::new(); 8];
    pair.b.vm.call(PostRecv { qp: at_b.qp.id, requests: receives }).await?;
    // More messages than can be sent before the guest is killed.
    let endless = Flow::Send(SendFlow {
        qp: at_a.qp.id,
        op: SendOp::WriteImm,
        count: u32::MAX,
        len: LEN,
        depth: 8,
        mr: source.id,
        remote: Some(sink.remote(0)),
        ..SendFlow::default()
    });
    let limit = Duration::from_secs(60);
    let traffic = Traffic { flows: vec![endless], timeout_ms: 60_000 };
    tokio::select! {
        ended = pair.a.vm.call_within(limit, traffic) => bail!("the transfer ended early: {ended:?}"),
        arrived = at_b.poll(&mut pair.b.vm, 3, SOON_MS) => drop(arrived?),
    }
    pair.replace_a(lab).await?;

    let fresh = Connection::create(pair, &Attributes::default()).await?;
    for (op, len) in [(SendOp::Send, 10_000), (SendOp::Write, 10_000), (SendOp::Read, 10_000)] {
        transfer(pair, &fresh, Plan::new(op, len)).await.context("traffic with the new guest")?;
    }
    fresh.destroy(pair).await
}

fn send(from: &MrInfo, len: u32) -> SendRequest {
    SendRequest { data: Data::Sges(vec![from.sge(0, len)]), ..SendRequest::default() }
}

/// Checks the fields of an error CQE (JingZhao interface, section 7.2).
fn expect_error(cqe: Option<&Cqe>, syndrome: u8, wqe: Option<u32>) -> Result<()> {
    let cqe = cqe.context("a completion is missing")?;
    let seen = (cqe.syndrome, cqe.opcode, Some(cqe.wqe));
    let expected = (Some(syndrome), OPCODE_SEND_ERROR, wqe);
    ensure!(seen == expected, "syndrome, opcode and WQE are {seen:x?}, expected {expected:x?}: {cqe:?}");
    Ok(())
}

async fn fill(vm: &mut Vm, mr: &MrInfo, seed: u64) -> Result<()> {
    vm.call(Fill { mr: mr.id, off: 0, len: mr.len, seed, position: 0 }).await.map(drop)
}

async fn expect_filled(vm: &mut Vm, mr: &MrInfo, seed: u64, what: &str) -> Result<()> {
    expect_stream(vm, Verify { mr: mr.id, off: 0, len: mr.len, seed, position: 0 }, what).await
}
