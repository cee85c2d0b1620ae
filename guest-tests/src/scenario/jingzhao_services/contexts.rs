//! QP contexts in guest memory, which the device updates while it processes requests.
//!
//! # Spec
//! JingZhao interface, section 4.3: the device writes back the state, the next PSN to send, the oldest unacknowledged
//! PSN and the next expected PSN. This may happen shortly after a completion, so the cases wait for the expected
//! values.

use std::time::Duration;

use agent::wire::{
    Changes, ContextTable, CreateCq, CreateQp, Data, Datagram, PostRecv, ReadContext, SendOp, SendRequest,
    Service, Transition,
};
use anyhow::{Context as _, Result, ensure};
use tokio::time::Instant;

use super::SOON_MS;
use crate::report::Report;
use crate::scenario::codes::state;
use crate::scenario::connection::{Attributes, Connection, End, destroy_region, region};
use crate::scenario::pair::{Direction, Pair};
use crate::vm::Vm;

pub(super) async fn run(pair: &mut Pair, report: &mut Report, hint: &str) -> Result<()> {
    for service in [Service::Rc, Service::Uc, Service::Ud] {
        let name = format!("contexts in memory: a {service:?} QP from RESET to RESET");
        report.case(&name, hint, life(pair, service)).await?;
    }
    report.case("contexts in memory: PSNs advance during a message", hint, moving(pair)).await?;
    report.case("contexts in memory: transitions to SQE and ERR by the device", hint, failing(pair)).await
}

/// The fields that the device writes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Live {
    state: u8,
    next_send: u32,
    unacked: u32,
    expected: u32,
}

async fn read(vm: &mut Vm, end: &End) -> Result<Live> {
    let bytes = vm.call(ReadContext { table: ContextTable::Qpc, index: end.qp.qpn }).await?.bytes;
    let word =
        |at: usize| bytes.get(at..at + 4).and_then(|word| word.try_into().ok()).map(u32::from_be_bytes);
    let psn = |at| word(at).map(|word| word & 0xff_ffff);
    let live = || {
        Some(Live {
            state: u8::try_from(word(0x08)? >> 28).ok()?,
            next_send: psn(0x6c)?,
            unacked: psn(0x7c)?,
            expected: psn(0x84)?,
        })
    };
    live().with_context(|| format!("a context of {} bytes", bytes.len()))
}

/// Polls the context until it has the expected content.
async fn expect(vm: &mut Vm, end: &End, wanted: Live) -> Result<()> {
    let deadline = Instant::now() + Duration::from_millis(SOON_MS.into());
    loop {
        let live = read(vm, end).await?;
        if live == wanted {
            return Ok(());
        }
        ensure!(
            Instant::now() < deadline,
            "the context in the memory of guest {} did not become {wanted:x?} within {SOON_MS} ms; it is {live:x?}",
            vm.name()
        );
    }
}

/// Moves two connected QPs through the states that a driver can request, with traffic in between. Checks their contexts
/// in each state.
async fn life(pair: &mut Pair, service: Service) -> Result<()> {
    const MESSAGES: u32 = 5;
    let attributes = Attributes { psn: [0xff_fffe, 0x10], qkey: 7, ..Attributes::default() };
    let shape = CreateQp { service, ..CreateQp::default() };
    let connection = Connection::create_unwired(pair, [shape; 2], [CreateCq::default(); 2]).await?;
    let (at_a, at_b) = connection.towards(Direction::AToB);
    let [a, b] = [&mut pair.a.vm, &mut pair.b.vm];

    at_a.to(a, Transition::ToInit { pkey_index: 0, qkey: attributes.qkey }).await?;
    expect(a, at_a, Live { state: state::INIT, next_send: 0, unacked: 0, expected: 0 }).await?;
    at_a.to(a, Transition::ToReset).await?;
    expect(a, at_a, Live { state: state::RESET, next_send: 0, unacked: 0, expected: 0 }).await?;
    for (vm, own, peer, side) in [(&mut *a, at_a, at_b, 0), (&mut *b, at_b, at_a, 1)] {
        own.ready_to_receive(vm, peer, &attributes, side).await?;
        let expected = attributes.psn[1 - side];
        expect(vm, own, Live { state: state::RTR, next_send: 0, unacked: 0, expected }).await?;
        own.ready_to_send(vm, &attributes, side).await?;
        let psn = attributes.psn[side];
        expect(vm, own, Live { state: state::RTS, next_send: psn, unacked: psn, expected }).await?;
    }

    let datagram = (service == Service::Ud).then(|| Datagram { qpn: at_b.qp.qpn, ..Datagram::default() });
    let room = region(b, 40, 0).await?;
    // The messages are empty. The one scatter element is for the network header of a datagram.
    let receives = vec![vec![room.sge(0, 40)]; MESSAGES as usize];
    b.call(PostRecv { qp: at_b.qp.id, requests: receives }).await?;
    let requests = vec![SendRequest { datagram, ..SendRequest::default() }; MESSAGES as usize];
    at_a.post(a, requests).await?;
    at_a.expect_completions(a, &[None; MESSAGES as usize], SOON_MS).await?;
    at_b.expect_completions(b, &[None; MESSAGES as usize], SOON_MS).await?;
    let next = (attributes.psn[0] + MESSAGES) & 0xff_ffff;
    let sender = Live { state: state::RTS, next_send: next, unacked: next, expected: attributes.psn[1] };
    let receiver =
        Live { state: state::RTS, next_send: attributes.psn[1], unacked: attributes.psn[1], expected: next };
    expect(a, at_a, sender).await?;
    expect(b, at_b, receiver).await?;

    at_a.to(a, Transition::ToSqd { notify: false }).await?;
    expect(a, at_a, Live { state: state::SQD, ..sender }).await?;
    at_a.to(a, Transition::SqdToRts(Changes::default())).await?;
    expect(a, at_a, sender).await?;
    at_b.to(b, Transition::ToErr).await?;
    expect(b, at_b, Live { state: state::ERR, ..receiver }).await?;
    for (vm, end, last) in [(&mut *a, at_a, sender), (&mut *b, at_b, receiver)] {
        end.to(vm, Transition::ToReset).await?;
        expect(vm, end, Live { state: state::RESET, ..last }).await?;
    }
    destroy_region(b, &room).await?;
    connection.destroy(pair).await
}

/// Checks that no PSN ever decreases and that the oldest unacknowledged PSN is never ahead of the next PSN to send.
async fn moving(pair: &mut Pair) -> Result<()> {
    const LEN: u32 = 8 << 20;
    const MESSAGES: u32 = 8;
    let attributes = Attributes { mtu: 256, psn: [0, 0], ..Attributes::default() };
    let connection = Connection::create(pair, &attributes).await?;
    let (at_a, at_b) = connection.towards(Direction::AToB);
    let source = region(&mut pair.a.vm, LEN.into(), 0).await?;
    let sink = region(&mut pair.b.vm, LEN.into(), 0).await?;
    let write = SendRequest {
        op: SendOp::Write,
        data: Data::Sges(vec![source.sge(0, LEN)]),
        remote: Some(sink.remote(0)),
        ..SendRequest::default()
    };
    at_a.post(&mut pair.a.vm, vec![write; MESSAGES as usize]).await?;

    let last = MESSAGES * LEN / 256;
    let deadline = Instant::now() + Duration::from_secs(60);
    let (mut sent, mut received) = (read(&mut pair.a.vm, at_a).await?, read(&mut pair.b.vm, at_b).await?);
    let (mut steps, mut arrivals) = (0, 0);
    while sent.unacked != last {
        ensure!(Instant::now() < deadline, "{sent:x?} and {received:x?} after 60 s");
        let (now_sent, now_received) = (read(&mut pair.a.vm, at_a).await?, read(&mut pair.b.vm, at_b).await?);
        ensure!(
            now_sent.next_send >= sent.next_send
                && now_sent.unacked >= sent.unacked
                && now_sent.unacked <= now_sent.next_send
                && now_received.expected >= received.expected,
            "{now_sent:x?} and {now_received:x?} after {sent:x?} and {received:x?}"
        );
        steps += u32::from(now_sent.unacked > sent.unacked && now_sent.unacked < last);
        arrivals += u32::from(now_received.expected > received.expected && now_received.expected < last);
        (sent, received) = (now_sent, now_received);
    }
    ensure!(
        steps > 1 && arrivals > 1,
        "the counters moved only {steps} and {arrivals} times before they reached {last:#x}"
    );
    at_a.expect_completions(&mut pair.a.vm, &[None; MESSAGES as usize], SOON_MS).await?;
    expect(&mut pair.b.vm, at_b, Live { expected: last, ..received }).await?;
    destroy_region(&mut pair.a.vm, &source).await?;
    destroy_region(&mut pair.b.vm, &sink).await?;
    connection.destroy(pair).await
}

/// Checks the states that the device enters without a command when a request fails (section 10.5).
async fn failing(pair: &mut Pair) -> Result<()> {
    for (service, fails_to) in [(Service::Uc, state::SQE), (Service::Rc, state::ERR)] {
        let shape = CreateQp { service, ..CreateQp::default() };
        let connection = Connection::create_as(pair, &Attributes::default(), [shape; 2]).await?;
        let at_a = connection.towards(Direction::AToB).0;
        let before = read(&mut pair.a.vm, at_a).await?;
        ensure!(before.state == state::RTS, "{before:x?}");
        // This opcode is undefined.
        let bad = SendRequest { op: SendOp::Raw(0x1f), ..SendRequest::default() };
        at_a.post(&mut pair.a.vm, vec![bad]).await?;
        expect(&mut pair.a.vm, at_a, Live { state: fails_to, ..before }).await?;
        connection.destroy(pair).await?;
    }
    Ok(())
}
