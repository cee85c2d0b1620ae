//! Events raised by queue pairs and by their completion queues. Section numbers refer to the JingZhao interface.

use std::time::Duration;

use agent::wire::{
    Changes, ContextTable, CreateCq, CreateQp, Poll, PostRecv, QpAttributes, ReadContext, Remote, SendOp,
    SendRequest, Service, Sge, Transition,
};
use anyhow::{Result, ensure};
use tokio::time::Instant;

use super::send;
use super::watch::{Event, Watch, kind};
use crate::report::Report;
use crate::scenario::codes::{state, syndrome};
use crate::scenario::connection::{Attributes, Connection, End, destroy_region, region};
use crate::scenario::pair::{Direction, Pair};
use crate::vm::Vm;

/// Timeout for completions that are expected immediately.
const SOON_MS: u32 = 10_000;
/// How long to wait for completions that must not arrive.
const NEVER_MS: u32 = 200;
/// A protection domain that no other object uses.
const OTHER_PD: u32 = 77;

pub(super) async fn run(pair: &mut Pair, report: &mut Report, hint: &str) -> Result<()> {
    report
        .case("communication established: once, for the first packet in RTR", hint, established(pair))
        .await?;
    report.case("SQ drained: after the message in progress", hint, drained(pair)).await?;
    for service in [Service::Rc, Service::Uc, Service::Ud] {
        let name = format!("SQ drained: an idle {service:?} QP, if requested");
        report.case(&name, hint, drained_idle(pair, service)).await?;
    }
    report.case("CQ error: overrun", hint, cq_overrun(pair)).await?;
    report.case("CQ error: the buffer cannot be written", hint, cq_unreachable(pair)).await?;
    report.case("WQ catastrophic: the send queue cannot be read", hint, sq_unreachable(pair)).await?;
    report.case("WQ catastrophic: the receive queue cannot be read", hint, rq_unreachable(pair)).await?;
    report.case("invalid request: SEND longer than the receive request", hint, invalid_request(pair)).await?;
    report.case("access error: WRITE with a wrong R_Key", hint, access_error(pair)).await
}

/// Returns parameters for a queue pair whose number has bits set above the table's index mask.
fn high() -> CreateQp {
    CreateQp { high_bits: 5, ..CreateQp::default() }
}

/// Checks that the communication-established event occurs and that the queue pair stays in RTR (sections 8.3 and 10.5).
async fn established(pair: &mut Pair) -> Result<()> {
    let eq = Watch::create(&mut pair.b.vm, 1, &[kind::COMMUNICATION_ESTABLISHED]).await?;
    let attributes = Attributes::default();
    let connection = Connection::create_unwired(pair, [high(); 2], [CreateCq::default(); 2]).await?;
    let (at_a, at_b) = connection.towards(Direction::AToB);
    at_a.ready_to_receive(&mut pair.a.vm, at_b, &attributes, 0).await?;
    at_a.ready_to_send(&mut pair.a.vm, &attributes, 0).await?;
    at_b.ready_to_receive(&mut pair.b.vm, at_a, &attributes, 1).await?;
    pair.b.vm.call(PostRecv { qp: at_b.qp.id, requests: vec![Vec::new(); 2] }).await?;
    eq.expect_entries(&mut pair.b.vm, &[]).await?;

    at_a.post(&mut pair.a.vm, vec![SendRequest::default()]).await?;
    eq.expect(&mut pair.b.vm, Event::of(kind::COMMUNICATION_ESTABLISHED, at_b.qp.qpn)).await?;
    at_a.post(&mut pair.a.vm, vec![SendRequest::default()]).await?;
    for (vm, end) in [(&mut pair.a.vm, at_a), (&mut pair.b.vm, at_b)] {
        let cqes = end.poll(vm, 2, SOON_MS).await?;
        ensure!(cqes.iter().all(|cqe| cqe.syndrome.is_none()), "{cqes:?}");
    }
    at_b.expect_state(&mut pair.b.vm, state::RTR).await?;
    connection.destroy(pair).await?;
    eq.destroy(&mut pair.b.vm).await
}

/// Checks that the drained event occurs only after the message in progress has completed (section 10.5). The message
/// waits for a receive. Until it completes, QUERY_QP reports state 7 (draining), although the context in memory already
/// contains state 5 (SQD).
async fn drained(pair: &mut Pair) -> Result<()> {
    let eq = Watch::create(&mut pair.a.vm, 2, &[kind::SQ_DRAINED]).await?;
    let attributes = Attributes::default();
    let connection = Connection::create_as(pair, &attributes, [high(); 2]).await?;
    let (at_a, at_b) = connection.towards(Direction::AToB);
    at_a.post(&mut pair.a.vm, vec![SendRequest::default()]).await?;
    let started = |qp: &QpAttributes| qp.next_send_psn == (attributes.psn[0] + 1) & 0xff_ffff;
    await_qp(&mut pair.a.vm, at_a, "the message has started", started).await?;

    at_a.to(&mut pair.a.vm, Transition::ToSqd { notify: true }).await?;
    at_a.expect_state(&mut pair.a.vm, state::DRAINING).await?;
    let context = pair.a.vm.call(ReadContext { table: ContextTable::Qpc, index: at_a.qp.qpn }).await?.bytes;
    ensure!(context.get(0x08).map(|flags| flags >> 4) == Some(state::SQD), "context in memory {context}");
    // In SQD, the device does not start new messages. The second message, posted here, waits until the QP returns to
    // RTS, even after a receive is posted for it.
    at_a.post(&mut pair.a.vm, vec![SendRequest::default()]).await?;
    eq.expect_entries(&mut pair.a.vm, &[]).await?;

    pair.b.vm.call(PostRecv { qp: at_b.qp.id, requests: vec![Vec::new(); 2] }).await?;
    eq.expect(&mut pair.a.vm, Event::of(kind::SQ_DRAINED, at_a.qp.qpn)).await?;
    at_a.expect_state(&mut pair.a.vm, state::SQD).await?;
    at_a.poll(&mut pair.a.vm, 1, SOON_MS).await?;
    let early = pair.a.vm.call(Poll { cq: at_a.cq.id, count: 1, timeout_ms: NEVER_MS }).await?;
    ensure!(early.cqes.is_empty(), "a message that had not started completed in SQD: {early:?}");

    at_a.to(&mut pair.a.vm, Transition::SqdToRts(Changes::default())).await?;
    at_a.poll(&mut pair.a.vm, 1, SOON_MS).await?;
    at_b.poll(&mut pair.b.vm, 2, SOON_MS).await?;
    connection.destroy(pair).await?;
    eq.destroy(&mut pair.a.vm).await
}

async fn drained_idle(pair: &mut Pair, service: Service) -> Result<()> {
    let eq = Watch::create(&mut pair.a.vm, 2, &[kind::SQ_DRAINED]).await?;
    let shape = CreateQp { service, ..high() };
    let connection = Connection::create_as(pair, &Attributes::default(), [shape; 2]).await?;
    let (at_a, _) = connection.towards(Direction::AToB);
    for notify in [false, true] {
        at_a.to(&mut pair.a.vm, Transition::ToSqd { notify }).await?;
        at_a.expect_state(&mut pair.a.vm, state::SQD).await?;
        if notify {
            // If the first transition to SQD had raised an event, two events would arrive.
            eq.expect(&mut pair.a.vm, Event::of(kind::SQ_DRAINED, at_a.qp.qpn)).await?;
        }
        at_a.to(&mut pair.a.vm, Transition::SqdToRts(Changes::default())).await?;
        at_a.expect_state(&mut pair.a.vm, state::RTS).await?;
    }
    connection.destroy(pair).await?;
    eq.destroy(&mut pair.a.vm).await
}

/// Checks that the device does not write to a full CQ and that the queue pair fails (section 7).
async fn cq_overrun(pair: &mut Pair) -> Result<()> {
    let small = CreateCq { log_entries: 1, high_bits: 3, ..CreateCq::default() };
    let at_a = cq_failure(pair, small, 1, 0x9).await?;
    let cqes = at_a.poll(&mut pair.a.vm, 2, SOON_MS).await?;
    ensure!(
        cqes.iter().all(|cqe| cqe.syndrome.is_none()),
        "entries before the overflow were overwritten: {cqes:?}"
    );
    at_a.destroy(&mut pair.a.vm).await
}

async fn cq_unreachable(pair: &mut Pair) -> Result<()> {
    let unreachable = CreateCq { buffer_pd: Some(OTHER_PD), high_bits: 3, ..CreateCq::default() };
    cq_failure(pair, unreachable, 2, 0xa).await?.destroy(&mut pair.a.vm).await
}

/// Generates three completions for a CQ in guest `a` and checks that the CQ and the queue pair fail.
async fn cq_failure(pair: &mut Pair, cq: CreateCq, reason: u32, status: u8) -> Result<End> {
    const NOP: SendOp = SendOp::Raw(0);
    let eq = Watch::create(&mut pair.a.vm, 4, &[kind::CQ_ERROR]).await?;
    let attributes = Attributes::default();
    let connection =
        Connection::create_unwired(pair, [CreateQp::default(); 2], [cq, CreateCq::default()]).await?;
    connection.wire(pair, &attributes).await?;
    let (at_a, at_b) = connection.towards(Direction::AToB);
    at_a.post(&mut pair.a.vm, vec![SendRequest { op: NOP, ..SendRequest::default() }; 3]).await?;
    let event = Event { detail: reason, ..Event::of(kind::CQ_ERROR, at_a.cq.cqn) };
    eq.expect(&mut pair.a.vm, event).await?;
    at_a.expect_state(&mut pair.a.vm, state::ERR).await?;
    let context = pair.a.vm.call(ReadContext { table: ContextTable::Cqc, index: at_a.cq.cqn }).await?.bytes;
    ensure!(context.first().map(|flags| flags >> 4) == Some(status), "context in memory {context}");
    // The flush that follows also fails, but must not raise another event.
    eq.destroy(&mut pair.a.vm).await?;
    at_b.destroy(&mut pair.b.vm).await?;
    Ok(*at_a)
}

/// Checks that a request that the device cannot read does not generate a completion (section 9.5).
async fn sq_unreachable(pair: &mut Pair) -> Result<()> {
    let eq = Watch::create(&mut pair.a.vm, 5, &[kind::WQ_CATASTROPHIC]).await?;
    let broken = CreateQp { buffer_pd: Some(OTHER_PD), ..high() };
    let connection = Connection::create_as(pair, &Attributes::default(), [broken, high()]).await?;
    let (at_a, _) = connection.towards(Direction::AToB);
    at_a.post(&mut pair.a.vm, vec![SendRequest::default()]).await?;
    eq.expect(&mut pair.a.vm, Event::of(kind::WQ_CATASTROPHIC, at_a.qp.qpn)).await?;
    at_a.expect_state(&mut pair.a.vm, state::ERR).await?;
    at_a.expect_completions(&mut pair.a.vm, &[], SOON_MS).await?;
    connection.destroy(pair).await?;
    eq.destroy(&mut pair.a.vm).await
}

async fn rq_unreachable(pair: &mut Pair) -> Result<()> {
    let eq = Watch::create(&mut pair.b.vm, 5, &[kind::WQ_CATASTROPHIC]).await?;
    let broken = CreateQp { buffer_pd: Some(OTHER_PD), ..high() };
    let connection = Connection::create_as(pair, &Attributes::default(), [high(), broken]).await?;
    let (at_a, at_b) = connection.towards(Direction::AToB);
    pair.b.vm.call(PostRecv { qp: at_b.qp.id, requests: vec![Vec::new()] }).await?;
    at_a.post(&mut pair.a.vm, vec![SendRequest::default()]).await?;
    eq.expect(&mut pair.b.vm, Event::of(kind::WQ_CATASTROPHIC, at_b.qp.qpn)).await?;
    at_a.expect_completions(&mut pair.a.vm, &[Some(syndrome::REMOTE_OPERATION)], SOON_MS).await?;
    for (vm, end) in [(&mut pair.a.vm, at_a), (&mut pair.b.vm, at_b)] {
        end.expect_state(vm, state::ERR).await?;
    }
    at_b.expect_completions(&mut pair.b.vm, &[], SOON_MS).await?;
    connection.destroy(pair).await?;
    eq.destroy(&mut pair.b.vm).await
}

async fn invalid_request(pair: &mut Pair) -> Result<()> {
    let sink = region(&mut pair.b.vm, 64, 0).await?;
    let source = region(&mut pair.a.vm, 64, 0).await?;
    let failed = Refused {
        event: kind::INVALID_REQUEST,
        at_requester: syndrome::REMOTE_INVALID_REQUEST,
        at_responder: Some(syndrome::LOCAL_LENGTH),
    };
    refused(pair, send(&source, 64), vec![vec![sink.sge(0, 63)]], failed).await?;
    destroy_region(&mut pair.a.vm, &source).await?;
    destroy_region(&mut pair.b.vm, &sink).await
}

async fn access_error(pair: &mut Pair) -> Result<()> {
    let source = region(&mut pair.a.vm, 64, 0).await?;
    let remote = Some(Remote { va: 0x1000, rkey: 0x7777_7777 });
    let failed =
        Refused { event: kind::ACCESS_ERROR, at_requester: syndrome::REMOTE_ACCESS, at_responder: None };
    let write = SendRequest { op: SendOp::Write, remote, ..send(&source, 64) };
    refused(pair, write, Vec::new(), failed).await?;
    destroy_region(&mut pair.a.vm, &source).await
}

/// The event and the syndromes caused by a rejected request.
struct Refused {
    event: u8,
    at_requester: u8,
    /// Syndrome at the responder, if the request consumed a receive.
    at_responder: Option<u8>,
}

/// Checks that the responder's guest is notified by an event and that both queue pairs fail (section 9.5).
async fn refused(
    pair: &mut Pair,
    request: SendRequest,
    receives: Vec<Vec<Sge>>,
    failed: Refused,
) -> Result<()> {
    let eq = Watch::create(&mut pair.b.vm, 6, &[failed.event]).await?;
    let connection = Connection::create_as(pair, &Attributes::default(), [high(); 2]).await?;
    let (at_a, at_b) = connection.towards(Direction::AToB);
    pair.b.vm.call(PostRecv { qp: at_b.qp.id, requests: receives }).await?;
    at_a.post(&mut pair.a.vm, vec![request]).await?;
    eq.expect(&mut pair.b.vm, Event::of(failed.event, at_b.qp.qpn)).await?;
    at_a.expect_completions(&mut pair.a.vm, &[Some(failed.at_requester)], SOON_MS).await?;
    let at_responder: Vec<_> = failed.at_responder.into_iter().map(Some).collect();
    at_b.expect_completions(&mut pair.b.vm, &at_responder, SOON_MS).await?;
    for (vm, end) in [(&mut pair.a.vm, at_a), (&mut pair.b.vm, at_b)] {
        end.expect_state(vm, state::ERR).await?;
    }
    connection.destroy(pair).await?;
    eq.destroy(&mut pair.b.vm).await
}

/// Repeats QUERY_QP until it returns the expected attributes.
async fn await_qp(vm: &mut Vm, end: &End, what: &str, wanted: impl Fn(&QpAttributes) -> bool) -> Result<()> {
    let deadline = Instant::now() + Duration::from_millis(SOON_MS.into());
    loop {
        let qp = end.query(vm).await?;
        if wanted(&qp) {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "waited {SOON_MS} ms for: {what}; {qp:?}");
    }
}
