//! Knows the plan and what software did, watches memory, completions and frames, and shares no code with the engines.
//!
//! | what must hold | where |
//! |---|---|
//! | every request completes once, in posting order, as it must; flushed after a failure; never after RESET | `side` |
//! | RC executes every request once, in order, with the right bytes, and touches no other byte | `execution` |
//! | RC asks, asks again, waits and gives up when the specification says | `flight` |
//! | a READ is answered with its bytes, and none that was never executed | `reads` |
//! | nobody hears or is heard outside of the partition | `partition` |
//! | answers are no more than what is asked for | `amplification` |
//! | a request of a shared queue belongs to one QP, and the last one is told of | `shared` |
//! | congestion is told of and obeyed, and not without reason | `congestion` |
//! | UC and UD deliver messages whole or not at all, and nothing that the keys forbid | `unreliable` |
//!
//! Memory is judged access by access, at the moment the engine makes it: so a byte written twice, early or late is
//! noticed even if its value is right.

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
use super::host::{SimHost, Touch};
use super::plan::{GROUP_QPN, Op, Pair, Plan};
use crate::{Event, Instant, Queue, Service, State, Transmit};

/// What is wrong.
pub type Violation = String;

macro_rules! demand {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err(format!($($message)+));
        }
    };
}
use demand;

/// A side of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    pair: usize,
    side: usize,
}

/// See the [module](self).
#[derive(Debug)]
pub struct Checker<'a> {
    plan: &'a Plan,
    now: Instant,
    sides: Vec<[Side; 2]>,
    /// The datagrams that are being handed in, one for each receiver, until they are received.
    arrivals: Vec<Arrival>,
    /// Shared receive queues.
    queues: BTreeMap<usize, SharedQueue>,
    /// P_Keys as they are now, of each side.
    pkeys: Vec<[Pkey; 2]>,
    /// The packet that is being handed in is of another partition: of this one.
    outsider: Option<Pkey>,
    /// From when on the net neither loses, repeats nor reorders anything.
    clean_from: Instant,
}

impl<'a> Checker<'a> {
    /// A checker of a run of `plan`.
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
            outsider: None,
            clean_from,
        }
    }

    /// It is `now`, for everything until the next call.
    pub fn at(&mut self, now: Instant) {
        self.now = now;
    }

    /// Software connected both sides of a pair, for the life that is given.
    pub fn on_connect(&mut self, pair: usize, life: usize) {
        let plan = &self.plan.pairs[pair];
        self.sides[pair] = [Side::new(plan, 0, life), Side::new(plan, 1, life)];
        self.pkeys[pair] = [plan.ends[0].pkey, plan.ends[1].pkey];
        let late = plan.lives[life].late_ns > 0;
        let states = [State::Rts, if late { State::Rtr } else { State::Rts }];
        self.sides[pair].iter_mut().zip(states).for_each(|(side, state)| side.state = state);
    }

    /// The engine says that a QP is in `state`.
    pub fn is_in(&self, pair: usize, side: usize, state: State) -> Result<(), Violation> {
        let known = self.sides[pair][side].state;
        demand!(known == state, "pair {pair} side {side} is in {state:?}, software knows of {known:?}");
        Ok(())
    }

    /// Software is about to move a QP; to SQD with the wish to hear when it is drained.
    pub fn on_move(&mut self, pair: usize, side: usize, to: State) -> Result<(), Violation> {
        let now = self.now;
        let of = &mut self.sides[pair][side];
        demand!(!of.owes_drained(), "pair {pair} side {side} is drained, and nobody was told");
        demand!(!of.owes_established(), "pair {pair} side {side} received in RTR, and nobody was told");
        of.on_move(to, now);
        Ok(())
    }

    /// The net delivers nothing to a side any more.
    pub fn on_silence(&mut self, pair: usize, side: usize) {
        let now = self.now;
        // It hears no answers, and its own requests are all that its peer hears, whose answers it would not hear.
        for side in [side, 1 - side] {
            self.sides[pair][side].silent_since.get_or_insert(now);
        }
    }

    /// Software posted `count` more requests.
    pub fn on_post(&mut self, pair: usize, side: usize, queue: Queue, count: usize) {
        let now = self.now;
        self.sides[pair][side].on_post(queue, count, now);
    }

    /// `node` touched its memory while it took the packet for `cause`, or without a packet.
    pub fn on_touch(&mut self, node: usize, cause: Option<Qpn>, touch: &Touch) -> Result<(), Violation> {
        if let Touch::NoRecv { qpn } = touch {
            let Place { pair, side } = self.find(node, *qpn)?;
            self.sides[pair][side].missed_receive = true;
            return Ok(());
        }
        if let Touch::Took { qpn, wr_id } = touch {
            return self.on_taken(node, *qpn, *wr_id);
        }
        if let Touch::Local { qpn, op } = touch {
            let place = self.find(node, *qpn)?;
            return self.touch_key(place, op).map_err(|problem| format!("{place:?}: {touch:x?}: {problem}"));
        }
        let cause = cause.ok_or_else(|| format!("node {node}, without a packet: {touch:x?}"))?;
        demand!(self.outsider.is_none(), "node {node}, by a packet of {:?}: {touch:x?}", self.outsider);
        let place = if cause == GROUP_QPN { self.member_of(touch)? } else { self.find(node, cause)? };
        let outcome = match self.plan.pairs[place.pair].service {
            Service::Rc => self.touch_reliable(place, touch),
            Service::Uc => self.touch_connected(place, touch),
            _ => self.touch_datagram(place, touch),
        };
        outcome.map_err(|problem| format!("{place:?}: {touch:x?}: {problem}"))
    }

    /// A node reported `event`; `host` is its memory at that moment.
    pub fn on_event(&mut self, node: usize, event: &Event, host: &SimHost) -> Result<(), Violation> {
        let outcome = match event {
            Event::Completion(completion) => {
                let place = self.find(node, completion.qpn)?;
                match completion.queue {
                    Queue::Send => self.complete_send(place, completion),
                    Queue::Recv => self.complete_recv(place, completion, host),
                }
                .map_err(|problem| (place, problem))
            }
            Event::Async { qpn, event } => {
                let place = self.find(node, *qpn)?;
                self.on_async(place, *event).map_err(|problem| (place, problem))
            }
        };
        outcome.map_err(|(place, problem)| format!("{place:?}: {event:?}: {problem}"))
    }

    /// A node sent `frame`.
    pub fn on_frame(&mut self, node: usize, sent: &Transmit, frame: &[u8]) -> Result<(), Violation> {
        let parsed = RoceFrame::parse(frame).map_err(|error| format!("node {node}: bad frame: {error}"))?;
        let place = self.find(node, sent.qpn)?;
        self.judge_frame(place, sent, &parsed).map_err(|problem| format!("{place:?} sent a frame: {problem}"))
    }

    /// The net is about to hand `frame` to a node.
    pub fn on_arrival(&mut self, node: usize, frame: &RoceFrame<'_>) -> Result<(), Violation> {
        if frame.packet.bth.dest_qp == GROUP_QPN {
            self.expect_copies(node, frame);
            return Ok(());
        }
        let place = self.find(node, frame.packet.bth.dest_qp)?;
        if !self.is_member(place, frame.packet.bth.pkey) {
            self.outsider = Some(frame.packet.bth.pkey);
            return Ok(());
        }
        self.hear_congestion(place, frame);
        match self.plan.pairs[place.pair].service {
            Service::Rc if frame.packet.bth.opcode.is_response() => self.hear_response(place, &frame.packet),
            Service::Rc => self.owe(place, &frame.packet),
            Service::Uc => {}
            _ => self.arrivals.extend(self.expect_datagram(place, frame, 0)),
        }
        Ok(())
    }

    /// The node has taken the frame, and its events were reported.
    pub fn after_arrival(&mut self) -> Result<(), Violation> {
        self.outsider = None;
        match self.arrivals.pop() {
            None => Ok(()),
            Some(arrival) => Err(format!("a datagram was not received: {arrival:?}")),
        }
    }

    /// Whether every request has completed that is going to.
    pub fn is_finished(&self) -> bool {
        self.sides.iter().flatten().all(Side::is_finished)
    }

    /// What is missing, for the report of a run that does not end.
    pub fn progress(&self) -> String {
        let parts = self.sides.iter().enumerate().flat_map(|(pair, sides)| {
            sides.iter().enumerate().map(move |(side, of)| format!("pair {pair} side {side}: {of}"))
        });
        parts.collect::<Vec<_>>().join("; ")
    }

    /// The run is over.
    pub fn at_end(&self) -> Result<(), Violation> {
        demand!(self.is_finished(), "not finished: {}", self.progress());
        for pair in &self.plan.pairs {
            for side in 0..2 {
                let place = Place { pair: pair.index, side };
                self.nothing_lost(place).map_err(|problem| format!("{place:?}: {problem}"))?;
            }
        }
        Ok(())
    }

    /// The run is over, and `host` is the memory of a side's node.
    pub fn left_alone(&self, pair: usize, side: usize, host: &SimHost) -> Result<(), Violation> {
        let place = Place { pair, side };
        self.left_requests(place, host).map_err(|problem| format!("{place:?}: {problem}"))
    }

    fn find(&self, node: usize, qpn: Qpn) -> Result<Place, Violation> {
        let side = |pair: &Pair| pair.ends.iter().position(|end| end.node == node && end.qpn == qpn);
        let mut places =
            self.plan.pairs.iter().filter_map(|pair| Some(Place { pair: pair.index, side: side(pair)? }));
        places.next().ok_or_else(|| format!("node {node} has no {qpn:?}"))
    }

    fn pair(&self, place: Place) -> &'a Pair {
        &self.plan.pairs[place.pair]
    }

    /// Send requests of a side in its present life.
    fn ops(&self, place: Place) -> &'a [Op] {
        &self.pair(place).lives[self.side(place).life].sides[place.side].ops
    }

    fn side(&self, place: Place) -> &Side {
        &self.sides[place.pair][place.side]
    }

    fn side_mut(&mut self, place: Place) -> &mut Side {
        &mut self.sides[place.pair][place.side]
    }
}

impl Place {
    fn peer(self) -> Self {
        Self { side: 1 - self.side, ..self }
    }
}
