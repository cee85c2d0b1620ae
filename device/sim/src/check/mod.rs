//! Checks a simulation run against the plan. The checker observes software actions, memory accesses, completions and
//! frames, and does not share protocol code with the engines. See [`plan`](crate::plan) for the terms *pair* and
//! *life*.
//!
//! | invariant | module |
//! |---|---|
//! | every request completes once, in posting order, with the expected status; requests are flushed after a failure, and none completes after RESET | `side` |
//! | RC and XRC execute every request once, in order, with the right bytes, and access no other byte | `execution` |
//! | RC and XRC send, retry, wait and give up as specified | `flight` |
//! | READ responses carry the right bytes, and are sent only for executed READs | `reads` |
//! | no packet from another partition is accepted | `partition` |
//! | no request causes more replies than permitted | `amplification` |
//! | each request of a shared queue is fetched by exactly one QP, and an XRC message uses the SRQ that it names | `shared` |
//! | Last WQE Reached is raised | `side` |
//! | congestion notifications are sent only for ECN-marked data, and not too often | `congestion` |
//! | UC and UD deliver messages completely or not at all, and only if the keys permit the access | `unreliable` |
//!
//! Every memory access is checked when the engine makes it. The checker therefore detects a byte that is written twice,
//! too early or too late, even if the final value is right.

mod amplification;
mod congestion;
mod execution;
mod flight;
mod partition;
mod reads;
mod shared;
mod side;
mod unreliable;

use std::collections::BTreeMap;

use protocol::ids::{Pkey, Qpn};
use protocol::roce::RoceFrame;

use self::shared::SharedQueue;
use self::side::Side;
use self::unreliable::Arrival;
use super::host::{HostEvent, SimHost};
use super::plan::{GROUP_QPN, Op, Pair, Plan};
use engine::{Event, Instant, Queue, Service, State, Transmit};

pub type Violation = String;

macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err(format!($($message)+));
        }
    };
}
use ensure;

/// Returns the number of packets in a message or READ response, at least 1.
fn packet_count(len: u32, mtu: usize) -> u32 {
    u32::try_from((len as usize).div_ceil(mtu).max(1)).expect("a packet has at least one byte")
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SideId {
    pair: usize,
    side: usize,
}

#[derive(Debug)]
pub struct Checker<'a> {
    plan: &'a Plan,
    now: Instant,
    sides: Vec<[Side; 2]>,
    /// Datagrams being delivered, one entry per receiver. An entry is removed once its receiver has reported the
    /// datagram.
    arrivals: Vec<Arrival>,
    queues: BTreeMap<usize, SharedQueue>,
    /// Current P_Keys of both sides of each pair.
    pkeys: Vec<[Pkey; 2]>,
    /// P_Key of the packet being delivered, if the packet belongs to another partition.
    foreign_pkey: Option<Pkey>,
    /// Time from which the network no longer loses, duplicates or reorders packets.
    clean_from: Instant,
}

impl<'a> Checker<'a> {
    pub fn new(plan: &'a Plan) -> Self {
        let side = |pair: &Pair, side| Side::new(pair, side, 0);
        let sides = plan.pairs.iter().map(|pair| [side(pair, 0), side(pair, 1)]).collect();
        let quiet = plan.faults.is_quiet();
        let clean_from = if quiet { Instant::ZERO } else { plan.heal_at + plan.faults.detour };
        let pkeys = plan.pairs.iter().map(|pair| [pair.ends[0].pkey, pair.ends[1].pkey]).collect();
        Self {
            plan,
            now: Instant::ZERO,
            sides,
            arrivals: Vec::new(),
            queues: BTreeMap::new(),
            pkeys,
            foreign_pkey: None,
            clean_from,
        }
    }

    pub fn at(&mut self, now: Instant) {
        self.now = now;
    }

    /// Records that software connected both sides of a pair for `life`.
    pub fn on_connect(&mut self, pair: usize, life: usize) {
        let plan = &self.plan.pairs[pair];
        self.sides[pair] = [Side::new(plan, 0, life), Side::new(plan, 1, life)];
        self.pkeys[pair] = [plan.ends[0].pkey, plan.ends[1].pkey];
        let late = plan.lives[life].late_ns > 0;
        let states = [State::Rts, if late { State::Rtr } else { State::Rts }];
        self.sides[pair].iter_mut().zip(states).for_each(|(side, state)| side.state = state);
    }

    pub fn check_state(&self, pair: usize, side: usize, state: State) -> Result<(), Violation> {
        let known = self.sides[pair][side].state;
        ensure!(
            known == state,
            "pair {pair} side {side} is in state {state:?}, but software expects {known:?}"
        );
        Ok(())
    }

    /// Records that software moves a QP to another state. A move to SQD also requests the drained event.
    pub fn on_move(&mut self, pair: usize, side: usize, to: State) -> Result<(), Violation> {
        let now = self.now;
        let of = &mut self.sides[pair][side];
        ensure!(
            !of.missing_drained_event(),
            "pair {pair} side {side} drained its send queue but did not raise an SQ-drained event"
        );
        ensure!(
            !of.missing_established_event(),
            "pair {pair} side {side} received a message in RTR but did not raise a communication-established event"
        );
        of.on_move(to, now);
        Ok(())
    }

    /// Records that the network has stopped delivering packets to a side.
    pub fn on_blackhole(&mut self, pair: usize, side: usize) {
        let now = self.now;
        // The side's requests reach the peer, but the responses and the peer's requests are lost.
        for side in [side, 1 - side] {
            self.sides[pair][side].unreachable_since.get_or_insert(now);
        }
    }

    pub fn on_post(&mut self, pair: usize, side: usize, queue: Queue, count: usize) {
        let now = self.now;
        self.sides[pair][side].on_post(queue, count, now);
    }

    /// Checks an event on the host of `node`. `cause` is the QP of the packet being handled, if any.
    pub fn on_host_event(
        &mut self,
        node: usize,
        cause: Option<Qpn>,
        event: &HostEvent,
    ) -> Result<(), Violation> {
        if let HostEvent::NoRecv { qpn } = event {
            let SideId { pair, side } = self.find(node, *qpn)?;
            self.sides[pair][side].missed_receive = true;
            return Ok(());
        }
        if let HostEvent::Took { qpn, srqn, wr_id } = event {
            return self.on_shared_fetch(node, *qpn, *srqn, *wr_id);
        }
        if let HostEvent::Local { qpn, op } = event {
            let id = self.find(node, *qpn)?;
            return self.on_key_access(id, op).map_err(|problem| format!("{id:?}: {event:x?}: {problem}"));
        }
        let cause =
            cause.ok_or_else(|| format!("node {node} accessed memory without a packet: {event:x?}"))?;
        ensure!(
            self.foreign_pkey.is_none(),
            "node {node}: a packet with mismatched P_Key {:?} caused {event:x?}",
            self.foreign_pkey
        );
        let id = if cause == GROUP_QPN { self.member_of(event)? } else { self.find(node, cause)? };
        let outcome = match self.plan.pairs[id.pair].service {
            Service::Rc | Service::XrcIni => self.on_reliable_access(id, event),
            Service::Uc => self.on_connected_access(id, event),
            _ => self.on_datagram_access(id, event),
        };
        outcome.map_err(|problem| format!("{id:?}: {event:x?}: {problem}"))
    }

    /// Checks an event reported by a node. `host` holds the node's memory at the time of the event.
    pub fn on_event(&mut self, node: usize, event: &Event, host: &SimHost) -> Result<(), Violation> {
        let outcome = match event {
            Event::Completion(completion) => {
                let id = self.find(node, completion.qpn)?;
                match completion.queue {
                    Queue::Send => self.complete_send(id, completion),
                    Queue::Recv => self.complete_recv(id, completion, host),
                }
                .map_err(|problem| (id, problem))
            }
            Event::Async { qpn, event } => {
                let id = self.find(node, *qpn)?;
                self.on_async(id, *event).map_err(|problem| (id, problem))
            }
        };
        outcome.map_err(|(id, problem)| format!("{id:?}: {event:?}: {problem}"))
    }

    pub fn on_frame(&mut self, node: usize, sent: &Transmit, frame: &[u8]) -> Result<(), Violation> {
        let parsed =
            RoceFrame::parse(frame).map_err(|error| format!("node {node}: invalid frame: {error}"))?;
        let id = self.find(node, sent.qpn)?;
        self.check_frame(id, sent, &parsed).map_err(|problem| format!("{id:?} sent a frame: {problem}"))
    }

    /// Records a frame that is about to be delivered to a node.
    pub fn on_arrival(&mut self, node: usize, frame: &RoceFrame<'_>) -> Result<(), Violation> {
        if frame.packet.bth.dest_qp == GROUP_QPN {
            self.expect_multicast_copies(node, frame);
            return Ok(());
        }
        let id = self.find(node, frame.packet.bth.dest_qp)?;
        if !self.is_member(id, frame.packet.bth.pkey) {
            self.foreign_pkey = Some(frame.packet.bth.pkey);
            return Ok(());
        }
        self.record_congestion(id, frame);
        let response = frame.packet.bth.opcode.is_response();
        match self.plan.pairs[id.pair].service_of(id.side) {
            Service::Rc | Service::XrcIni if response => self.on_response(id, &frame.packet),
            Service::Rc | Service::XrcTgt if !response => self.on_request(id, &frame.packet),
            // An initiator drops requests, and a target drops responses.
            Service::Rc | Service::XrcIni | Service::XrcTgt => {}
            Service::Uc => {}
            _ => self.arrivals.extend(self.expect_datagram(id, frame, 0)),
        }
        Ok(())
    }

    /// Checks the state after a frame was handled and its events were reported.
    pub fn after_arrival(&mut self) -> Result<(), Violation> {
        self.foreign_pkey = None;
        match self.arrivals.pop() {
            None => Ok(()),
            Some(arrival) => Err(format!("a datagram was not received: {arrival:?}")),
        }
    }

    /// Returns whether every request that should complete has completed.
    pub fn is_finished(&self) -> bool {
        self.sides.iter().flatten().all(Side::is_finished)
    }

    /// Describes how far a stuck run has progressed.
    pub fn progress(&self) -> String {
        let parts = self.sides.iter().enumerate().flat_map(|(pair, sides)| {
            sides.iter().enumerate().map(move |(side, of)| format!("pair {pair} side {side}: {of}"))
        });
        parts.collect::<Vec<_>>().join("; ")
    }

    pub fn at_end(&self) -> Result<(), Violation> {
        ensure!(self.is_finished(), "the run ended before all requests completed: {}", self.progress());
        for pair in &self.plan.pairs {
            for side in 0..2 {
                let id = SideId { pair: pair.index, side };
                self.check_nothing_lost(id).map_err(|problem| format!("{id:?}: {problem}"))?;
            }
        }
        Ok(())
    }

    /// Checks a QP at the end of the run. If the QP is in ERR and its requests are flushed by the engine's owner, the
    /// engine must not have fetched more requests than necessary.
    pub fn check_unfetched(&self, pair: usize, side: usize, host: &SimHost) -> Result<(), Violation> {
        let id = SideId { pair, side };
        self.check_unfetched_requests(id, host).map_err(|problem| format!("{id:?}: {problem}"))
    }

    fn find(&self, node: usize, qpn: Qpn) -> Result<SideId, Violation> {
        let side = |pair: &Pair| pair.ends.iter().position(|end| end.node == node && end.qpn == qpn);
        let mut ids =
            self.plan.pairs.iter().filter_map(|pair| Some(SideId { pair: pair.index, side: side(pair)? }));
        ids.next().ok_or_else(|| format!("node {node} has no {qpn:?}"))
    }

    fn pair(&self, id: SideId) -> &'a Pair {
        &self.plan.pairs[id.pair]
    }

    fn ops(&self, id: SideId) -> &'a [Op] {
        &self.pair(id).lives[self.side(id).life].sides[id.side].ops
    }

    fn side(&self, id: SideId) -> &Side {
        &self.sides[id.pair][id.side]
    }

    fn side_mut(&mut self, id: SideId) -> &mut Side {
        &mut self.sides[id.pair][id.side]
    }
}

impl SideId {
    fn peer(self) -> Self {
        Self { side: 1 - self.side, ..self }
    }
}
