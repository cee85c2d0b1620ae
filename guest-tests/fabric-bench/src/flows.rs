//! Creates and runs the flows for a measurement.

use std::time::Duration;

use agent::wire::{Flow, MrInfo, PingPong, ReceiveFlow, SendFlow, SendOp, TrafficReport};
use anyhow::Result;

use crate::endpoint::Spent;
use crate::node::{Node, Qp};
use crate::pair;
use crate::runs::{micros, nanos_each, rate};
use crate::yardstick::PINGS;

/// Messages of one kind, sent on one or more queue pairs.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) op: SendOp,
    pub(crate) len: u32,
    /// Number of messages across all queue pairs.
    pub(crate) count: u32,
    /// Number of outstanding messages per queue pair. The sender posts half of them at a time.
    pub(crate) depth: u32,
    pub(crate) buffers: Buffers,
}

/// Placement of a flow's messages in the region.
#[derive(Clone, Copy)]
pub(crate) enum Buffers {
    /// All messages use the same memory, as in perftest and in the reference measurement.
    One,
    /// Messages are spread over the region, so that the CPU caches contain few of them.
    All,
}

impl Buffers {
    const fn stride(self, len: u32) -> u64 {
        match self {
            Self::One => 0,
            Self::All => len as u64,
        }
    }
}

/// Elapsed time and CPU time of a run.
#[derive(Clone, Copy)]
pub(crate) struct RunResult {
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
    /// Time from the first post to the last completion.
    pub(crate) elapsed_ns: u64,
    /// CPU time of the sender, followed by that of the receiver.
    pub(crate) spent: [Spent; 2],
}

impl RunResult {
    fn new(report: &TrafficReport, spent: [Spent; 2]) -> Self {
        Self {
            messages: report.flows.iter().map(|flow| flow.messages).sum(),
            bytes: report.flows.iter().map(|flow| flow.bytes).sum(),
            elapsed_ns: report.elapsed_ns,
            spent,
        }
    }

    /// Returns the bandwidth in MB/s.
    pub(crate) fn bandwidth(&self) -> f64 {
        rate(self.bytes, self.elapsed_ns) / 1e6
    }

    /// Returns the number of messages per second, followed by four CPU times per message in nanoseconds: sender's
    /// device, sender's driver, receiver's device and receiver's driver.
    pub(crate) fn rate_and_costs(&self) -> [f64; 5] {
        let each = |time| nanos_each(time, self.messages);
        let [near, far] = self.spent;
        [
            rate(self.messages, self.elapsed_ns),
            each(near.device),
            each(near.driver),
            each(far.device),
            each(far.driver),
        ]
    }
}

/// Names of the CPU times returned by [`RunResult::rate_and_costs`].
pub(crate) const COSTS: [&str; 4] =
    ["sender_device_ns", "sender_driver_ns", "receiver_device_ns", "receiver_driver_ns"];

pub(crate) fn write(
    nodes: &mut [Node; 2],
    qps: &[[Qp; 2]],
    regions: [MrInfo; 2],
    plan: Plan,
) -> Result<RunResult> {
    let mut run = sends(qps, regions[0], plan);
    for flow in &mut run {
        flow.remote = Some(regions[1].remote(0));
        flow.remote_stride = plan.buffers.stride(plan.len);
    }
    run_sends(nodes, run)
}

/// Runs flows that generate no completions at the receiver.
pub(crate) fn run_sends(nodes: &mut [Node; 2], flows: Vec<SendFlow>) -> Result<RunResult> {
    let flows = flows.into_iter().map(Flow::Send).collect();
    let (report, spent) = pair::measured(nodes, |nodes| nodes[0].run(flows))?;
    Ok(RunResult::new(&report, spent))
}

pub(crate) fn send(
    nodes: &mut [Node; 2],
    qps: &[[Qp; 2]],
    regions: [MrInfo; 2],
    plan: Plan,
) -> Result<RunResult> {
    let sends = sends(qps, regions[0], plan);
    let receives = qps.iter().zip(&sends).map(|(qp, send)| receive(qp[1], regions[1], send)).collect();
    let sends = sends.into_iter().map(Flow::Send).collect();
    let (reports, spent) = pair::measured(nodes, |nodes| {
        pair::run_both(nodes, |near| near.run(sends), |far| far.run(receives))
    })?;
    Ok(RunResult::new(&reports[0], spent))
}

/// Distributes a plan's messages among the queue pairs.
pub(crate) fn sends(qps: &[[Qp; 2]], region: MrInfo, plan: Plan) -> Vec<SendFlow> {
    let share = plan.count / u32::try_from(qps.len()).unwrap_or(u32::MAX).max(1);
    qps.iter().map(|qp| send_flow(qp[0], region, Plan { count: share, ..plan })).collect()
}

pub(crate) fn send_flow(qp: Qp, region: MrInfo, plan: Plan) -> SendFlow {
    // If messages are spread over the region, each outstanding message needs its own slot.
    let room = u32::try_from(region.len / u64::from(plan.len)).unwrap_or(u32::MAX);
    let slots = room.min(plan.depth);
    SendFlow {
        qp: qp.id,
        op: plan.op,
        count: plan.count,
        len: plan.len,
        depth: slots,
        slots,
        stride: plan.buffers.stride(plan.len),
        batch: (slots / 2).max(1),
        mr: region.id,
        verify: false,
        ..SendFlow::default()
    }
}

/// Returns the receive flow that matches a flow of SENDs. It keeps two receives posted per outstanding message, since
/// the sender may continue before the receiver has reposted its buffers.
pub(crate) fn receive(qp: Qp, region: MrInfo, send: &SendFlow) -> Flow {
    Flow::Receive(ReceiveFlow {
        qp: qp.id,
        count: send.count,
        len: send.len,
        depth: 2 * send.depth,
        slots: 2 * send.slots,
        // All messages are received into the same memory.
        stride: 0,
        mr: region.id,
        verify: false,
        ..ReceiveFlow::default()
    })
}

/// Measures the latency of a 64-byte WRITE, from doorbell to visibility in the peer's memory, as half the round-trip
/// time. Returns the median and the 99th percentile in microseconds.
pub(crate) fn write_latency(nodes: &mut [Node; 2], qps: [Qp; 2], regions: [MrInfo; 2]) -> Result<[f64; 2]> {
    let ping = |own: usize| PingPong {
        qp: qps[own].id,
        mr: regions[own].id,
        remote: regions[1 - own].remote(0),
        rounds: PINGS,
        first: own == 0,
        ..PingPong::default()
    };
    let [round_trips, _] = pair::both(nodes, [ping(0), ping(1)], Node::ping_pong)?;
    Ok([round_trips.median_ns, round_trips.p99_ns].map(|nanos| micros(Duration::from_nanos(nanos)) / 2.0))
}
