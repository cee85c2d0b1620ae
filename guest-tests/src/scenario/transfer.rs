//! Transfers messages over connections and checks every byte at both ends.

use std::time::Duration;

use agent::wire::{Fill, Flow, FlowReport, MrInfo, ReceiveFlow, Scatter, SendFlow, SendOp, Traffic, Verify};
use anyhow::{Result, ensure};

use super::connection::{Connection, destroy_region, expect_stream, region};
use super::pair::{Direction, Pair};

/// Number of guard bytes before the first slot and after the last. Guard bytes must stay unchanged.
const GUARD: u64 = 64;
const GUARD_SEED: u64 = 0x6775_6172_6400;
/// Timeout for all flows together. On an idle machine, transferring 16 MiB takes a second or two.
const TRAFFIC_TIMEOUT: Duration = Duration::from_secs(90);

/// Messages of one kind on one connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) op: SendOp,
    /// Length of a message in bytes.
    pub(super) len: u32,
    /// Number of messages, each in its own slot.
    pub(super) count: u32,
    /// Number of work requests per doorbell.
    pub(super) batch: u32,
    /// Whether the payload is inline in the WQE.
    pub(super) inline: bool,
    /// Number of scatter/gather elements at the requester and, for SEND, at the responder.
    pub(super) pieces: u32,
    /// Offset of each region's start within its page.
    pub(super) page_offset: u32,
    pub(super) seed: u64,
}

impl Plan {
    /// Creates a plan with a few unaligned messages of `len` bytes.
    pub(super) fn new(op: SendOp, len: u32) -> Self {
        let count = match len {
            0..=4096 => 24,
            4097..=65536 => 8,
            65537..=1_048_576 => 2,
            _ => 1,
        };
        Self {
            op,
            len,
            count,
            batch: 1,
            inline: false,
            pieces: 1,
            page_offset: 3001,
            seed: u64::from(len) << 16,
        }
    }

    fn scatter(&self) -> Scatter {
        // The gap is odd and does not divide the page size, so elements cross page boundaries at varying offsets.
        Scatter { pieces: self.pieces, gap: if self.pieces > 1 { 1501 } else { 0 } }
    }

    /// Returns the distance between slots in scattered memory.
    fn stride(&self) -> u64 {
        self.scatter().span(self.len).max(1)
    }

    /// Returns the distance between slots in the peer's contiguous memory.
    fn flat_stride(&self) -> u64 {
        u64::from(self.len).max(1)
    }

    fn is_read(&self) -> bool {
        self.op == SendOp::Read
    }

    /// Returns whether receive requests determine where the responder stores the message.
    fn is_send(&self) -> bool {
        matches!(self.op, SendOp::Send | SendOp::SendImm)
    }

    fn responder_stride(&self) -> u64 {
        if self.is_send() { self.stride() } else { self.flat_stride() }
    }
}

/// A plan and the connection to execute it on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Planned<'a> {
    pub(super) connection: &'a Connection,
    pub(super) direction: Direction,
    pub(super) plan: Plan,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Transfer {
    pub(super) messages: u64,
    pub(super) bytes: u64,
    /// Time from the first post to the last completion, excluding the time spent filling and checking the buffers.
    pub(super) time: Duration,
}

/// Executes one plan from guest `a` to guest `b`.
pub(super) async fn transfer(pair: &mut Pair, connection: &Connection, plan: Plan) -> Result<Transfer> {
    let planned = Planned { connection, direction: Direction::AToB, plan };
    let mut transfers = exchange(pair, &[planned]).await?;
    transfers.pop().ok_or_else(|| anyhow::anyhow!("no transfer was run"))
}

/// Executes all plans concurrently.
pub(super) async fn exchange(pair: &mut Pair, plans: &[Planned<'_>]) -> Result<Vec<Transfer>> {
    let mut memory = Vec::new();
    for planned in plans {
        memory.push(prepare(pair, planned).await?);
    }

    // Each plan's requester flow runs in one guest, and its responder flow runs in the other.
    let (mut to_a, mut to_b) = (Vec::new(), Vec::new());
    let mut places = Vec::new();
    for (planned, memory) in plans.iter().zip(&memory) {
        let (requesters, responders) = match planned.direction {
            Direction::AToB => (&mut to_a, &mut to_b),
            Direction::BToA => (&mut to_b, &mut to_a),
        };
        let place = requesters.len();
        requesters.push(send_flow(planned, memory));
        let receive = receive_flow(planned, memory).map(|flow| {
            responders.push(flow);
            responders.len() - 1
        });
        places.push((place, receive));
    }
    let timeout_ms = u32::try_from(TRAFFIC_TIMEOUT.as_millis())?;
    let limit = TRAFFIC_TIMEOUT + Duration::from_secs(30);
    let (from_a, from_b) = tokio::try_join!(
        pair.a.vm.call_within(limit, Traffic { flows: to_a, timeout_ms }),
        pair.b.vm.call_within(limit, Traffic { flows: to_b, timeout_ms }),
    )?;

    let mut transfers = Vec::new();
    for ((planned, memory), (send, receive)) in plans.iter().zip(&memory).zip(places) {
        let (at_requester, at_responder) = match planned.direction {
            Direction::AToB => (&from_a, &from_b),
            Direction::BToA => (&from_b, &from_a),
        };
        let sent = at_requester.flows.get(send).copied().unwrap_or_default();
        let received = receive.map(|at| at_responder.flows.get(at).copied().unwrap_or_default());
        check_reports(&planned.plan, sent, received)?;
        check_memory(pair, planned, memory).await?;
        transfers.push(Transfer {
            messages: sent.messages,
            bytes: sent.bytes,
            time: Duration::from_nanos(sent.elapsed_ns.saturating_sub(sent.content_ns)),
        });
    }
    Ok(transfers)
}

#[derive(Debug)]
struct Memory {
    requester: MrInfo,
    responder: MrInfo,
}

async fn prepare(pair: &mut Pair, planned: &Planned<'_>) -> Result<Memory> {
    let plan = &planned.plan;
    let (requester_vm, responder_vm) = pair.towards(planned.direction);
    let len = |stride: u64| 2 * GUARD + stride * u64::from(plan.count);
    let (requester, responder) = tokio::try_join!(
        region(requester_vm, len(plan.stride()), plan.page_offset),
        region(responder_vm, len(plan.responder_stride()), plan.page_offset),
    )?;
    for (vm, mr) in [(&mut *requester_vm, &requester), (&mut *responder_vm, &responder)] {
        for off in [0, mr.len - GUARD] {
            vm.call(Fill { mr: mr.id, off, len: GUARD, seed: GUARD_SEED, position: 0 }).await?;
        }
    }
    if plan.is_read() {
        for i in 0..u64::from(plan.count) {
            let off = GUARD + i * plan.flat_stride();
            let fill =
                Fill { mr: responder.id, off, len: u64::from(plan.len), seed: plan.seed + i, position: 0 };
            responder_vm.call(fill).await?;
        }
    }
    Ok(Memory { requester, responder })
}

fn send_flow(planned: &Planned<'_>, memory: &Memory) -> Flow {
    let plan = &planned.plan;
    Flow::Send(SendFlow {
        qp: planned.connection.towards(planned.direction).0.qp.id,
        op: plan.op,
        count: plan.count,
        len: plan.len,
        depth: 16,
        batch: plan.batch,
        inline: plan.inline,
        mr: memory.requester.id,
        off: GUARD,
        stride: plan.stride(),
        slots: plan.count,
        scatter: plan.scatter(),
        remote: (!plan.is_send()).then(|| memory.responder.remote(GUARD)),
        remote_stride: plan.flat_stride(),
        mrs: Vec::new(),
        remotes: Vec::new(),
        imm: FIRST_IMM,
        seed: plan.seed,
        fresh: false,
        verify: true,
    })
}

/// Immediate data of the first message. None of its bytes is zero. The value increases by one with each message.
const FIRST_IMM: u32 = 0x8142_c3e1;

fn receive_flow(planned: &Planned<'_>, memory: &Memory) -> Option<Flow> {
    let plan = &planned.plan;
    let consumes_receive = plan.is_send() || plan.op == SendOp::WriteImm;
    consumes_receive.then(|| {
        Flow::Receive(ReceiveFlow {
            qp: planned.connection.towards(planned.direction).1.qp.id,
            op: plan.op,
            count: plan.count,
            len: plan.len,
            depth: plan.count.min(16),
            mr: memory.responder.id,
            off: GUARD,
            stride: plan.responder_stride(),
            slots: plan.count,
            scatter: if plan.is_send() { plan.scatter() } else { Scatter::default() },
            imm: FIRST_IMM,
            seed: plan.seed,
            fresh: false,
            verify: true,
        })
    })
}

fn check_reports(plan: &Plan, sent: FlowReport, received: Option<FlowReport>) -> Result<()> {
    let count = u64::from(plan.count);
    let moved = (count, count * u64::from(plan.len));
    // An empty message has no content to compare.
    let compared = |verified| plan.len == 0 || verified == count;
    ensure!((sent.messages, sent.bytes) == moved, "requester moved {sent:?}, expected {moved:?}");
    if plan.is_read() {
        ensure!(compared(sent.verified), "requester compared {} of {count}", sent.verified);
    }
    if let Some(received) = received {
        ensure!(
            (received.messages, received.bytes) == moved,
            "responder moved {received:?}, expected {moved:?}"
        );
        ensure!(compared(received.verified), "responder compared {} of {count}", received.verified);
    }
    Ok(())
}

/// Checks the messages in memory and the guard bytes at both ends. Received SENDs are not checked again, since the
/// flows have already compared them.
async fn check_memory(pair: &mut Pair, planned: &Planned<'_>, memory: &Memory) -> Result<()> {
    let plan = &planned.plan;
    let (requester_vm, responder_vm) = pair.towards(planned.direction);
    let (requester, responder) = (&memory.requester, &memory.responder);
    for i in 0..plan.count {
        let slot = |stride: u64| GUARD + u64::from(i) * stride;
        let seed = plan.seed + u64::from(i);
        let mut position = 0;
        for (at, len) in plan.scatter().layout(plan.len) {
            let off = slot(plan.stride()) + at;
            let part = Verify { mr: requester.id, off, len: len.into(), seed, position };
            expect_stream(requester_vm, part, &format!("message {i} at the requester")).await?;
            position += u64::from(len);
        }
        if !plan.is_send() {
            let off = slot(plan.flat_stride());
            let part = Verify { mr: responder.id, off, len: plan.len.into(), seed, position: 0 };
            expect_stream(responder_vm, part, &format!("message {i} at the responder")).await?;
        }
    }
    for (vm, mr) in [(requester_vm, requester), (responder_vm, responder)] {
        for off in [0, mr.len - GUARD] {
            let guard = Verify { mr: mr.id, off, len: GUARD, seed: GUARD_SEED, position: 0 };
            expect_stream(vm, guard, "the guard around the messages").await?;
        }
        destroy_region(vm, mr).await?;
    }
    Ok(())
}
