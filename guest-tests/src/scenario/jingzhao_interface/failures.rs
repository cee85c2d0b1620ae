//! Errors caused by one end of a connection, and the state of that end's queues afterwards.

use agent::wire::{Access, Cqe, CreateMr, PostRecv, SendOp, SendRequest, Sge, Transition};
use anyhow::{Context, Result, ensure};

use super::{SOON_MS, request};
use crate::report::Report;
use crate::scenario::connection::{Attributes, Connection, End, destroy_region, region};
use crate::scenario::pair::{Direction, Pair};
use crate::scenario::transfer::{Plan, transfer};
use crate::vm::Vm;

/// Error completion syndromes (JingZhao interface, section 7.4).
mod syndrome {
    pub(super) const LOCAL_LENGTH: u8 = 0x01;
    pub(super) const LOCAL_PROTECTION: u8 = 0x04;
    pub(super) const FLUSHED: u8 = 0x05;
    pub(super) const REMOTE_INVALID_REQUEST: u8 = 0x12;
    pub(super) const REMOTE_OPERATION: u8 = 0x14;
}

/// Opcodes in error completions (JingZhao interface, section 7.2).
const SQ_ERROR: u8 = 0xff;
const RQ_ERROR: u8 = 0xfe;
/// QP state codes (JingZhao interface, section 10.1).
const RESET: u8 = 0;
const RTS: u8 = 3;
const ERR: u8 = 6;
/// A scatter/gather element with an unknown key.
const NOWHERE: Sge = Sge { lkey: 0xfff, addr: 0, len: 200 };

pub(super) async fn run(pair: &mut Pair, report: &mut Report, hint: &str) -> Result<()> {
    report.case("SEND with an unknown L_Key", hint, bad_gather(pair, SendOp::Send)).await?;
    report.case("WRITE with an unknown L_Key", hint, bad_gather(pair, SendOp::Write)).await?;
    report.case("READ into a region without the local write right", hint, read_into_read_only(pair)).await?;
    report.case("SEND longer than the receive", hint, receive_too_small(pair)).await?;
    report.case("SEND into a receive request with a wrong L_Key", hint, receive_bad_key(pair)).await?;
    report.case("flush in ERR, then RESET and reuse", hint, flush_and_reset(pair)).await
}

/// Checks that a send request with an unknown L_Key fails (section 9.5).
async fn bad_gather(pair: &mut Pair, op: SendOp) -> Result<()> {
    let connection = Connection::create(pair, &Attributes::default()).await?;
    let (at_a, _) = connection.towards(Direction::AToB);
    let sink = region(&mut pair.b.vm, 4096, 0).await?;
    let remote = (op != SendOp::Send).then(|| sink.remote(0));
    at_a.post(&mut pair.a.vm, vec![SendRequest { remote, ..request(op, NOWHERE) }]).await?;
    let cqes = at_a.poll(&mut pair.a.vm, 1, SOON_MS).await?;
    expect_errors(&cqes, SQ_ERROR, &[(syndrome::LOCAL_PROTECTION, 0)])?;
    expect_states(pair, &connection, [ERR, RTS]).await?;
    destroy_region(&mut pair.b.vm, &sink).await?;
    connection.destroy(pair).await
}

/// Checks that a READ into read-only local memory fails (section 9.5).
async fn read_into_read_only(pair: &mut Pair) -> Result<()> {
    let connection = Connection::create(pair, &Attributes::default()).await?;
    let (at_a, _) = connection.towards(Direction::AToB);
    let target = region(&mut pair.b.vm, 4096, 0).await?;
    let access = Access { local_write: false, ..Access::ALL };
    let sink = pair.a.vm.call(CreateMr { access, ..CreateMr::default() }).await?;
    let read = SendRequest { remote: Some(target.remote(0)), ..request(SendOp::Read, sink.sge(0, 100)) };
    at_a.post(&mut pair.a.vm, vec![read]).await?;
    let cqes = at_a.poll(&mut pair.a.vm, 1, SOON_MS).await?;
    expect_errors(&cqes, SQ_ERROR, &[(syndrome::LOCAL_PROTECTION, 0)])?;
    expect_states(pair, &connection, [ERR, RTS]).await?;
    destroy_region(&mut pair.a.vm, &sink).await?;
    destroy_region(&mut pair.b.vm, &target).await?;
    connection.destroy(pair).await
}

/// Checks that a message longer than its receive request fails, that the next receive request is flushed, and that the
/// sender gets an error (section 9.5).
async fn receive_too_small(pair: &mut Pair) -> Result<()> {
    let connection = Connection::create(pair, &Attributes::default()).await?;
    let (at_a, at_b) = connection.towards(Direction::AToB);
    let source = region(&mut pair.a.vm, 4096, 0).await?;
    let sink = region(&mut pair.b.vm, 4096, 0).await?;
    post_recv(&mut pair.b.vm, at_b, &[sink.sge(0, 100), sink.sge(1000, 100)]).await?;
    at_a.post(&mut pair.a.vm, vec![request(SendOp::Send, source.sge(0, 101))]).await?;
    let sent = at_a.poll(&mut pair.a.vm, 1, SOON_MS).await?;
    expect_errors(&sent, SQ_ERROR, &[(syndrome::REMOTE_INVALID_REQUEST, 0)])?;
    let received = at_b.poll(&mut pair.b.vm, 2, SOON_MS).await?;
    expect_errors(&received, RQ_ERROR, &[(syndrome::LOCAL_LENGTH, 0), (syndrome::FLUSHED, 512)])?;
    expect_states(pair, &connection, [ERR, ERR]).await?;
    destroy_region(&mut pair.a.vm, &source).await?;
    destroy_region(&mut pair.b.vm, &sink).await?;
    connection.destroy(pair).await
}

/// Checks that a receive request with an unknown L_Key causes an error at both ends (section 9.5).
async fn receive_bad_key(pair: &mut Pair) -> Result<()> {
    let connection = Connection::create(pair, &Attributes::default()).await?;
    let (at_a, at_b) = connection.towards(Direction::AToB);
    let source = region(&mut pair.a.vm, 4096, 0).await?;
    post_recv(&mut pair.b.vm, at_b, &[NOWHERE]).await?;
    at_a.post(&mut pair.a.vm, vec![request(SendOp::Send, source.sge(0, 101))]).await?;
    let sent = at_a.poll(&mut pair.a.vm, 1, SOON_MS).await?;
    expect_errors(&sent, SQ_ERROR, &[(syndrome::REMOTE_OPERATION, 0)])?;
    let received = at_b.poll(&mut pair.b.vm, 1, SOON_MS).await?;
    expect_errors(&received, RQ_ERROR, &[(syndrome::LOCAL_PROTECTION, 0)])?;
    expect_states(pair, &connection, [ERR, ERR]).await?;
    destroy_region(&mut pair.a.vm, &source).await?;
    connection.destroy(pair).await
}

/// Checks that requests posted in ERR are also flushed, including receive requests, which have no doorbell. After
/// RESET, both queues must start at their first slot (section 10.5).
async fn flush_and_reset(pair: &mut Pair) -> Result<()> {
    let connection = Connection::create(pair, &Attributes::default()).await?;
    let (at_a, at_b) = connection.towards(Direction::AToB);
    let memory = region(&mut pair.b.vm, 4096, 0).await?;
    let receive = memory.sge(0, 100);
    let flushed = |wqe| (syndrome::FLUSHED, wqe);

    post_recv(&mut pair.b.vm, at_b, &[receive; 3]).await?;
    at_b.to(&mut pair.b.vm, Transition::ToErr).await?;
    let cqes = at_b.poll(&mut pair.b.vm, 3, SOON_MS).await?;
    expect_errors(&cqes, RQ_ERROR, &[flushed(0), flushed(512), flushed(1024)])?;
    post_recv(&mut pair.b.vm, at_b, &[receive]).await?;
    expect_errors(&at_b.poll(&mut pair.b.vm, 1, SOON_MS).await?, RQ_ERROR, &[flushed(1536)])?;
    at_b.post(&mut pair.b.vm, vec![request(SendOp::Send, receive); 2]).await?;
    expect_errors(&at_b.poll(&mut pair.b.vm, 2, SOON_MS).await?, SQ_ERROR, &[flushed(0), flushed(512)])?;

    at_a.to(&mut pair.a.vm, Transition::ToReset).await?;
    at_b.to(&mut pair.b.vm, Transition::ToReset).await?;
    expect_states(pair, &connection, [RESET, RESET]).await?;
    connection.wire(pair, &Attributes::default()).await?;
    for op in [SendOp::Send, SendOp::Write, SendOp::Read] {
        transfer(pair, &connection, Plan::new(op, 5000)).await.context("after RESET")?;
    }
    destroy_region(&mut pair.b.vm, &memory).await?;
    connection.destroy(pair).await
}

async fn post_recv(vm: &mut Vm, end: &End, receives: &[Sge]) -> Result<()> {
    let requests = receives.iter().map(|&sge| vec![sge]).collect();
    vm.call(PostRecv { qp: end.qp.id, requests }).await.map(drop)
}

/// Checks that all error CQEs have the given opcode and that their syndromes and WQE offsets match `expected`.
fn expect_errors(cqes: &[Cqe], opcode: u8, expected: &[(u8, u32)]) -> Result<()> {
    let seen: Vec<_> = cqes.iter().map(|cqe| (cqe.opcode, cqe.syndrome, cqe.wqe)).collect();
    let expected: Vec<_> = expected.iter().map(|&(syndrome, wqe)| (opcode, Some(syndrome), wqe)).collect();
    ensure!(seen == expected, "opcode, syndrome and WQE are {seen:x?}, expected {expected:x?}");
    Ok(())
}

async fn expect_states(pair: &mut Pair, connection: &Connection, expected: [u8; 2]) -> Result<()> {
    let (at_a, at_b) = connection.towards(Direction::AToB);
    let states = [at_a.query(&mut pair.a.vm).await?.state, at_b.query(&mut pair.b.vm).await?.state];
    ensure!(states == expected, "states are {states:?}, expected {expected:?}");
    Ok(())
}
