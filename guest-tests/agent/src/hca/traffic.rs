//! Flows: long sequences of messages on a queue pair. The agent posts, completes and checks the messages without
//! involving the host.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use super::mr::Region;
use super::open::Hca;
use super::wqe::{self, SendWqe};
use crate::error::{bad_step, mismatch, timeout};
use crate::idle::Idle;
use crate::vfio::Arena;
use crate::wire::{
    CqId, Cqe, Data, Failure, FailureKind, Flow, FlowReport, Hex, MrId, QpId, ReceiveFlow, Remote, Ring,
    Scatter, SendFlow, SendOp, SendRequest, Sge, Traffic, TrafficReport,
};

/// Default timeout for a step's flows.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);
/// Fill byte for a slot before a message arrives. The gaps between segments must still contain it afterwards.
const UNTOUCHED: u8 = 0xee;
/// Number of bytes after a message that are checked for stray writes, if the slot has room for them.
const TAIL: u64 = 64;

struct Running<'a> {
    flow: &'a Flow,
    qpn: u32,
    slots: Slots,
    /// One WQE per slot, if all messages in a slot use the same WQE. Reusing WQEs keeps the driver's overhead as low as
    /// that of real libraries.
    prepared: Prepared,
    posted: u32,
    completed: u32,
    /// Byte offsets of the WQEs of outstanding messages.
    wqes: VecDeque<u32>,
    started: Option<Instant>,
    report: FlowReport,
}

/// WQEs that are built once and posted repeatedly.
enum Prepared {
    /// Every message needs its own WQE, which is built when the message is posted.
    Nothing,
    Sends(Vec<SendWqe>),
    Receives(Vec<Vec<u8>>),
}

#[derive(Clone, Copy)]
struct Slots {
    mr: MrId,
    off: u64,
    stride: u64,
    count: u32,
    scatter: Scatter,
    len: u32,
    seed: u64,
    fresh: bool,
}

impl Slots {
    const fn start(&self, message: u32) -> u64 {
        self.off + self.stride * (message % self.count) as u64
    }

    const fn seed(&self, message: u32) -> u64 {
        self.seed.wrapping_add(if self.fresh { message } else { message % self.count } as u64)
    }

    /// Yields each segment of a message: its offset in the region, its length and its position in the message.
    fn pieces(self, message: u32) -> impl Iterator<Item = (u64, u32, u64)> {
        let start = self.start(message);
        let mut position = 0;
        self.scatter.layout(self.len).map(move |(at, len)| {
            let piece = (start + at, len, position);
            position += u64::from(len);
            piece
        })
    }

    fn sges(self, region: &Region, message: u32) -> Vec<Sge> {
        // An empty message has an empty scatter/gather list.
        self.pieces(message)
            .filter(|_| self.len > 0)
            .map(|(at, len, _)| Sge { lkey: region.key, addr: region.addr(at), len })
            .collect()
    }

    fn fill(self, arena: &Arena, region: &Region, message: u32) -> Result<()> {
        for (at, len, position) in self.pieces(message) {
            region.fill(arena, region.range(at, len.into())?, self.seed(message), position);
        }
        Ok(())
    }

    /// Returns the number of bytes checked in a slot: the message, the gaps between its segments, and the tail.
    fn watched(self) -> u64 {
        (self.scatter.span(self.len) + TAIL).min(self.stride)
    }

    fn wipe(self, arena: &Arena, region: &Region, message: u32) -> Result<()> {
        region.set(arena, region.range(self.start(message), self.watched())?, UNTOUCHED);
        Ok(())
    }

    /// Checks the content of a message. If `around` is set, also checks that the rest of the slot is unchanged.
    fn check(self, arena: &Arena, region: &Region, message: u32, around: bool) -> Result<()> {
        let seed = self.seed(message);
        let mut untouched_from = self.start(message);
        let gap = |from: u64, to: u64| -> Result<()> {
            if !around || from >= to {
                return Ok(());
            }
            match region.first_other(arena, region.range(from, to - from)?, UNTOUCHED) {
                None => Ok(()),
                Some(at) => Err(mismatch(format!(
                    "message {message}: byte {:#x} of the region was written, but is not in its scatter list",
                    from + at as u64
                ))),
            }
        };
        for (at, len, position) in self.pieces(message) {
            gap(untouched_from, at)?;
            untouched_from = at + u64::from(len);
            if let Some(wrong) = region.first_difference(arena, region.range(at, len.into())?, seed, position)
            {
                return Err(mismatch(format!(
                    "message {message} of {} bytes: byte {} is wrong (seed {seed:#x}, byte {:#x} of the region)",
                    self.len,
                    position + wrong as u64,
                    at + wrong as u64
                )));
            }
        }
        gap(untouched_from, self.start(message) + self.watched())
    }
}

impl<'a> Running<'a> {
    fn new(hca: &Hca, flow: &'a Flow) -> Result<Self> {
        let verifies = match flow {
            Flow::Send(flow) => flow.verify,
            Flow::Receive(flow) => flow.verify,
        };
        let (qp, slots) = match flow {
            Flow::Send(SendFlow { qp, mr, off, stride, slots, scatter, len, seed, fresh, .. })
            | Flow::Receive(ReceiveFlow { qp, mr, off, stride, slots, scatter, len, seed, fresh, .. }) => (
                *qp,
                Slots {
                    mr: *mr,
                    off: *off,
                    stride: *stride,
                    count: *slots,
                    scatter: *scatter,
                    len: *len,
                    seed: *seed,
                    fresh: *fresh,
                },
            ),
        };
        ensure!(slots.count > 0, bad_step("a flow requires a slot"));
        ensure!(
            slots.count == 1 || scatter_fits(&slots) || slots.stride == 0 && !verifies,
            bad_step(format!(
                "messages of {} bytes do not fit into slots of {} bytes",
                slots.len, slots.stride
            ))
        );
        if slots.len > 0 {
            let end = slots.start(slots.count - 1) - slots.off + slots.scatter.span(slots.len);
            hca.mr(slots.mr)?.range(slots.off, end)?;
        }
        let qpn = hca.qp(qp)?.qpn();
        Ok(Self {
            flow,
            qpn,
            slots,
            prepared: Prepared::Nothing,
            posted: 0,
            completed: 0,
            wqes: VecDeque::new(),
            started: None,
            report: FlowReport::default(),
        })
    }

    const fn is_send(&self) -> bool {
        matches!(self.flow, Flow::Send(_))
    }

    const fn qp(&self) -> QpId {
        match self.flow {
            Flow::Send(flow) => flow.qp,
            Flow::Receive(flow) => flow.qp,
        }
    }

    const fn count(&self) -> u32 {
        match self.flow {
            Flow::Send(flow) => flow.count,
            Flow::Receive(flow) => flow.count,
        }
    }

    const fn outstanding(&self) -> usize {
        (self.posted - self.completed) as usize
    }

    const fn done(&self) -> bool {
        self.completed == self.count()
    }

    /// Builds the WQEs in advance, outside the measured time.
    fn prepare(&mut self, hca: &Hca) -> Result<()> {
        let used = self.slots.count.min(self.count());
        if self.slots.len > 0 {
            self.prepare_buffer(hca, used)?;
        }
        self.prepared = match self.flow {
            Flow::Send(flow) if flow.fresh || !(flow.mrs.is_empty() && flow.remotes.is_empty()) => {
                Prepared::Nothing
            }
            Flow::Send(flow) => {
                let wqe = |message| hca.qp(flow.qp)?.send_wqe(&self.request(hca, flow, message)?);
                Prepared::Sends((0..used).map(wqe).collect::<Result<_>>()?)
            }
            Flow::Receive(flow) => {
                let list = |message| hca.qp(flow.qp)?.receive_list(&self.elements(hca, flow, message)?);
                Prepared::Receives((0..used).map(list).collect::<Result<_>>()?)
            }
        };
        Ok(())
    }

    fn prepare_buffer(&self, hca: &Hca, used: u32) -> Result<()> {
        let slots = self.slots;
        let region = hca.mr(slots.mr)?;
        match self.flow {
            Flow::Send(flow) if flow.op == SendOp::Read => {
                for message in 0..if flow.verify { used } else { 0 } {
                    slots.wipe(hca.arena(), region, message)?;
                }
            }
            Flow::Send(flow) if !flow.fresh => {
                for message in 0..used {
                    slots.fill(hca.arena(), region, message)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Posts as many messages as the flow's depth permits.
    fn pump(&mut self, hca: &mut Hca) -> Result<()> {
        let flow = self.flow;
        match flow {
            Flow::Send(flow) => self.pump_sends(hca, flow),
            Flow::Receive(flow) => self.pump_receives(hca, flow),
        }
    }

    fn pump_sends(&mut self, hca: &mut Hca, flow: &SendFlow) -> Result<()> {
        loop {
            let outstanding = self.posted - self.completed;
            let room = flow.depth.max(1).min(flow.slots).saturating_sub(outstanding);
            let room = room.min(hca.qp(flow.qp)?.free_sends());
            let batch = flow.batch.max(1).min(flow.count - self.posted);
            // Post only full batches, since a smaller batch would change what is measured.
            if batch == 0 || room < batch.min(flow.depth.max(1)) {
                return Ok(());
            }
            let batch = batch.min(room);
            self.started.get_or_insert_with(Instant::now);
            let messages = self.posted..self.posted + batch;
            for message in messages.clone() {
                self.renew(hca, flow, message)?;
            }
            let made;
            let wqes: Vec<&SendWqe> = if let Prepared::Sends(prepared) = &mut self.prepared {
                let slot = |message| (message % self.slots.count) as usize;
                for message in messages.clone() {
                    prepared[slot(message)].set_imm(imm(flow.imm, message));
                }
                let prepared = &*prepared;
                messages.map(|message| &prepared[slot(message)]).collect()
            } else {
                let qp = hca.qp(flow.qp)?;
                let wqe = |message| qp.send_wqe(&self.request(hca, flow, message)?);
                made = messages.map(wqe).collect::<Result<Vec<_>>>()?;
                made.iter().collect()
            };
            let (qp, arena, device) = hca.qp_mut(flow.qp)?;
            self.wqes.extend(qp.post_wqes(arena, device, &wqes, Ring::Once)?);
            self.posted += batch;
        }
    }

    /// Prepares the message's slot if the flow requires it: fills the slot for a send or overwrites it for a READ.
    fn renew(&mut self, hca: &Hca, flow: &SendFlow, message: u32) -> Result<()> {
        let slots = self.slots;
        let fills = flow.op != SendOp::Read && flow.fresh;
        // Overwrite the data of the previous READ, so that it cannot be mistaken for new data.
        let wipes = flow.op == SendOp::Read && flow.verify && message >= slots.count;
        if slots.len == 0 || !(fills || wipes) {
            return Ok(());
        }
        let started = Instant::now();
        let region = hca.mr(slots.mr)?;
        match fills {
            true => slots.fill(hca.arena(), region, message)?,
            false => slots.wipe(hca.arena(), region, message)?,
        }
        self.report.content_ns += elapsed_ns(started);
        Ok(())
    }

    fn request(&self, hca: &Hca, flow: &SendFlow, message: u32) -> Result<SendRequest> {
        let slots = self.slots;
        let region = hca.mr(in_turn(&flow.mrs, message).unwrap_or(slots.mr))?;
        let data = if flow.inline {
            let mut payload = Vec::with_capacity(slots.len as usize);
            for (at, len, _) in slots.pieces(message) {
                let range = region.range(at, len.into())?;
                let mut piece = vec![0; range.len()];
                region.read(hca.arena(), range.start, &mut piece);
                payload.extend(piece);
            }
            Data::Inline(Hex(payload))
        } else {
            Data::Sges(slots.sges(region, message))
        };
        let remote = in_turn(&flow.remotes, message).or(flow.remote).map(|remote| Remote {
            va: remote.va.wrapping_add(flow.remote_stride * u64::from(message % flow.slots)),
            ..remote
        });
        Ok(SendRequest { op: flow.op, data, remote, imm: imm(flow.imm, message), ..SendRequest::default() })
    }

    fn pump_receives(&mut self, hca: &mut Hca, flow: &ReceiveFlow) -> Result<()> {
        let depth = flow.depth.max(1).min(flow.slots).min(hca.qp(flow.qp)?.recv_slots());
        while self.posted < flow.count && self.posted - self.completed < depth {
            let slots = self.slots;
            self.started.get_or_insert_with(Instant::now);
            if flow.verify && has_elements(flow) {
                let started = Instant::now();
                slots.wipe(hca.arena(), hca.mr(slots.mr)?, self.posted)?;
                self.report.content_ns += elapsed_ns(started);
            }
            let Prepared::Receives(lists) = &self.prepared else { return Ok(()) };
            let list = &lists[(self.posted % slots.count) as usize];
            let (qp, arena, _) = hca.qp_mut(flow.qp)?;
            self.wqes.push_back(qp.post_list(arena, list)?);
            self.posted += 1;
        }
        Ok(())
    }

    fn elements(&self, hca: &Hca, flow: &ReceiveFlow, message: u32) -> Result<Vec<Sge>> {
        if has_elements(flow) { Ok(self.slots.sges(hca.mr(self.slots.mr)?, message)) } else { Ok(Vec::new()) }
    }

    fn complete(&mut self, hca: &Hca, cqe: &Cqe, in_order: bool) -> Result<()> {
        if let Some(syndrome) = cqe.syndrome {
            let kind = FailureKind::Completion { syndrome };
            let message =
                format!("message {} completed with syndrome {syndrome:#04x}: {}", self.completed, cqe.raw);
            return Err(Failure::new(kind, message).into());
        }
        let message = self.completed;
        let expected_wqe = self.wqes.pop_front();
        ensure!(
            in_order && expected_wqe == Some(cqe.wqe),
            mismatch(format!(
                "message {message}: completion of the WQE at {:#x} instead of {expected_wqe:x?}",
                cqe.wqe
            ))
        );
        self.check_fields(cqe, message)?;
        let (len, verify, around) = match self.flow {
            Flow::Send(flow) => (flow.len, flow.verify && flow.op == SendOp::Read, true),
            Flow::Receive(flow) => (flow.len, flow.verify, flow.op != SendOp::WriteImm),
        };
        if verify && len > 0 {
            let started = Instant::now();
            let region = hca.mr(self.slots.mr)?;
            self.slots.check(hca.arena(), region, message, around)?;
            self.report.content_ns += elapsed_ns(started);
            self.report.verified += 1;
        }
        self.completed += 1;
        self.report.messages += 1;
        self.report.bytes += u64::from(len);
        if self.done() {
            self.report.elapsed_ns = self.started.map_or(0, elapsed_ns);
        }
        Ok(())
    }

    fn check_fields(&self, cqe: &Cqe, message: u32) -> Result<()> {
        let (len, first_imm, op) = match self.flow {
            Flow::Send(flow) => (flow.len, flow.imm, flow.op),
            Flow::Receive(flow) => (flow.len, flow.imm, flow.op),
        };
        let (what, opcode_fits) = if self.is_send() {
            ("send", cqe.opcode == wqe::opcode(op))
        } else {
            // The CQE contains the transport opcode of the last packet, which is the LAST or ONLY packet of a SEND or a
            // WRITE.
            let last = cqe.opcode & 0x1f;
            let fits = match op {
                SendOp::Send => matches!(last, 0x02 | 0x04),
                SendOp::SendImm => matches!(last, 0x03 | 0x05),
                SendOp::WriteImm => matches!(last, 0x09 | 0x0b),
                _ => false,
            };
            ("receive", fits)
        };
        let expected_imm = match (self.is_send(), op) {
            (false, SendOp::SendImm | SendOp::WriteImm) => imm(first_imm, message),
            _ => [0; 4],
        };
        ensure!(
            opcode_fits && cqe.byte_count == len && cqe.imm == expected_imm,
            mismatch(format!(
                "{what} completion of message {message}: opcode {:#x}, {} bytes, immediate {:02x?}; expected {op:?}, \
                 {len} bytes, {expected_imm:02x?}",
                cqe.opcode, cqe.byte_count, cqe.imm
            ))
        );
        Ok(())
    }
}

impl Hca {
    /// Registers a channel to notify when the next traffic step has posted its first requests. If the step fails before
    /// then, the channel is closed.
    pub(crate) fn announce(&mut self, posted: Sender<()>) {
        self.posted = Some(posted);
    }

    pub(crate) fn traffic(&mut self, step: &Traffic) -> Result<TrafficReport> {
        let posted = self.posted.take();
        let mut running =
            step.flows.iter().map(|flow| Running::new(self, flow)).collect::<Result<Vec<_>>>()?;
        let mut cqs = BTreeSet::<CqId>::new();
        let mut sides = BTreeSet::new();
        for flow in &running {
            cqs.extend(self.qp(flow.qp())?.cqs);
            ensure!(sides.insert((flow.qpn, flow.is_send())), bad_step("two flows on the same side of a QP"));
        }
        for (i, flow) in running.iter_mut().enumerate() {
            flow.prepare(self).with_context(|| format!("flow {i}"))?;
        }
        let patience = match step.timeout_ms {
            0 => DEFAULT_TIMEOUT,
            ms => Duration::from_millis(ms.into()),
        };
        let started = Instant::now();
        let mut idle = Idle::new();
        // The peer's first message may already be in flight, so post receives before sends.
        running.sort_by_key(Running::is_send);
        for flow in &mut running {
            flow.pump(self)?;
        }
        if let Some(posted) = posted {
            // An error means that nothing waits for this notification any more, which is harmless.
            let _ = posted.send(());
        }
        // With thousands of flows, look-ups and counts must take constant time per completion.
        let places: HashMap<_, _> =
            running.iter().enumerate().map(|(i, flow)| ((flow.qpn, flow.is_send()), i)).collect();
        let mut left = running.iter().filter(|flow| !flow.done()).count();
        let mut outstanding: usize = running.iter().map(Running::outstanding).sum();
        while left > 0 {
            let mut progress = false;
            for &cq in &cqs {
                // Consume one entry per queue in each round, so that checking the messages of one flow does not delay
                // the other flows.
                let Some((cqe, in_order)) = self.take_completion(cq)? else { continue };
                progress = true;
                idle.found();
                let flow = places.get(&(cqe.qpn, cqe.is_send)).and_then(|&i| running.get_mut(i)).ok_or_else(
                    || mismatch(format!("completion does not belong to any flow: {}", cqe.raw)),
                )?;
                outstanding -= flow.outstanding();
                flow.complete(self, &cqe, in_order)
                    .and_then(|()| flow.pump(self))
                    .with_context(|| format!("{} flow of QP {:#x}", side(flow.is_send()), flow.qpn))?;
                outstanding += flow.outstanding();
                left -= usize::from(flow.done());
            }
            if progress {
                continue;
            }
            if started.elapsed() > patience {
                let states: Vec<String> = running
                    .iter()
                    .map(|f| {
                        format!("{} on QP {:#x} {} of {}", side(f.is_send()), f.qpn, f.completed, f.count())
                    })
                    .collect();
                return Err(timeout(format!(
                    "flows did not finish within {patience:?}: {}",
                    states.join(", ")
                )));
            }
            idle.pause(outstanding);
        }
        let elapsed_ns = elapsed_ns(started);
        // Report the flows in the step's order, which can differ from the execution order.
        let flows = step
            .flows
            .iter()
            .filter_map(|flow| running.iter().find(|r| std::ptr::eq(r.flow, flow)).map(|r| r.report))
            .collect();
        Ok(TrafficReport { flows, elapsed_ns })
    }
}

/// Returns whether a receive flow has scatter elements. An RDMA WRITE with immediate consumes a receive request but
/// does not use its scatter list.
fn has_elements(flow: &ReceiveFlow) -> bool {
    flow.op != SendOp::WriteImm && flow.len > 0
}

fn scatter_fits(slots: &Slots) -> bool {
    slots.scatter.span(slots.len) <= slots.stride
}

/// Returns the element for a message, chosen round-robin by message number.
fn in_turn<T: Copy>(all: &[T], message: u32) -> Option<T> {
    all.get(message as usize % all.len().max(1)).copied()
}

const fn side(is_send: bool) -> &'static str {
    if is_send { "send" } else { "receive" }
}

fn imm(first: u32, message: u32) -> [u8; 4] {
    first.wrapping_add(message).to_le_bytes()
}

fn elapsed_ns(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOTS: Slots = Slots {
        mr: MrId(1),
        off: 10,
        stride: 1000,
        count: 4,
        scatter: Scatter { pieces: 3, gap: 50 },
        len: 100,
        seed: 7,
        fresh: false,
    };

    #[test]
    fn scatter_list_leaves_gaps_between_segments() {
        let pieces: Vec<_> = SLOTS.pieces(5).collect();
        assert_eq!(pieces, [(1010, 33, 0), (1093, 33, 33), (1176, 34, 66)]);
        assert_eq!(SLOTS.watched(), 264);
    }

    #[test]
    fn elements_are_used_round_robin() {
        assert_eq!([0, 1, 2, 3].map(|message| in_turn(&[7, 8, 9], message)), [7, 8, 9, 7].map(Some));
        assert_eq!(in_turn::<u8>(&[], 1), None);
    }

    #[test]
    fn slots_repeat_content_unless_fresh_is_set() {
        assert_eq!((SLOTS.seed(1), SLOTS.seed(5)), (8, 8));
        let fresh = Slots { fresh: true, ..SLOTS };
        assert_eq!((fresh.seed(1), fresh.seed(5)), (8, 12));
    }
}
