//! The simulated world: two nodes, the network between them, software, and time.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use protocol::ids::{Lkey, Pkey, Qpn, Srqn, Va};
use protocol::roce::{Offload, Packet, RoceFrame, for_each_frame, seal};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use vm_memory::VolatileSlice;

use super::check::{Checker, Violation};
use super::host::SimHost;
use super::merge::{Merged, merge, mergeable};
use super::net::{Net, NetStats};
use super::plan::draw::NODES;
use super::plan::{
    Action, CELLS_BYTES, End, Group, HOT, HOT_BYTES, PDS, PRIVATE, PRIVATE_BYTES, Pair, Plan, SHARED, SLOTS,
    SOURCE, TARGET, XRC_SRQS, XrcSrqId, cells_key, draw, node_of_srq, nodes_of, pd_of_srq, pkey_index,
    slots_key, va,
};
use super::stale;
use super::trace::describe;
use engine::{
    Completion, Config, Engine, Event, Flush, Instant, Modify, PayloadRef, Queue, Rights, Room, Service, Sge,
    State, Stats, Transmit, TxOffloads, WaitReason,
};

/// Maximum simulated time to finish all work after the network has healed and software has taken its last action.
const DRAIN_BOUND: Duration = Duration::from_secs(1);
/// Flag in `wr_id` that marks requests on shared queues.
const SHARED_ID: u64 = 1 << 63;
/// Maximum number of steps in a run. Reaching it indicates a livelock.
const STEPS: u64 = 2_000_000;
/// Time until a slow link accepts the next frames.
const LINK_STEP: Duration = Duration::from_micros(1);
/// Maximum number of frames that an engine can send in one step. Reaching it indicates an endless loop.
const FRAMES_PER_PUMP: u32 = 100_000;

struct Node {
    engine: Engine,
    host: SimHost,
}

/// Index of a pair's current [`Connection`](crate::plan::Connection), and the number of requests that software has
/// posted on each side of it.
#[derive(Clone, Copy, Debug, Default)]
struct Posted {
    life: usize,
    sends: [usize; 2],
    recvs: [usize; 2],
}

struct World<'a> {
    plan: &'a Plan,
    checker: Checker<'a>,
    nodes: [Node; NODES],
    net: Net,
    now: Instant,
    trace: bool,
    next_action: usize,
    posted: Vec<Posted>,
    pkeys: [Vec<Pkey>; NODES],
    srqs: BTreeMap<usize, Slots>,
    /// Whether software posts a new request to a shared queue as soon as one completes.
    reposts_immediately: bool,
    /// Random source for injected READs and merged packets. A separate source keeps them from changing a seed's plan
    /// and network faults.
    stale: ChaCha8Rng,
    /// Whether one frame can carry several packets.
    merges: bool,
    /// Whether the world, rather than the engine, inserts payload into frames.
    inserts_payload: bool,
    /// Limit on the frames that one call of an engine may append.
    room: Room,
    merged: u64,
}

/// Software's view of a shared receive queue.
#[derive(Debug)]
struct Slots {
    free: VecDeque<usize>,
    /// Slot of each outstanding request, by `wr_id`.
    used: BTreeMap<u64, usize>,
    posted: u64,
}

/// Summary of a successful run.
#[derive(Clone, Copy, Debug)]
pub struct Report {
    pub time: Duration,
    pub net: NetStats,
    pub engines: [Stats; NODES],
    /// Number of send requests posted.
    pub requests: usize,
    /// Number of frames received that carried several packets.
    pub merged: u64,
}

/// Runs the simulation for `seed`. With `trace`, prints every packet, event and fault.
///
/// # Errors
/// Fails if the checker finds a violation, the run does not finish, or the simulation panics. The message includes the
/// command that replays the run.
pub fn run(seed: u64, trace: bool) -> Result<Report, Violation> {
    let outcome = std::panic::catch_unwind(|| {
        let plan = draw(seed);
        let mut world = World::new(seed, &plan, trace);
        match world.run() {
            Ok(()) => Ok(world.report()),
            Err(violation) => Err(format!("at {:?}: {violation}", world.now)),
        }
    });
    outcome.unwrap_or_else(|_| Err("panicked, see above".to_owned())).map_err(|violation| {
        format!(
            "seed {seed}, {violation}\nreplay: cargo run -p sim --release -- \
             --seed {seed} --trace"
        )
    })
}

impl<'a> World<'a> {
    fn new(seed: u64, plan: &'a Plan, trace: bool) -> Self {
        let config = Config { qp_index_bits: 8, window_packets: plan.window_packets };
        let merges = seed.is_multiple_of(2);
        let node = || {
            let mut engine = Engine::new(config);
            engine.set_offloads(if merges { TxOffloads::Segmentation } else { TxOffloads::None });
            Node { engine, host: host(plan.credits) }
        };
        let mut world = Self {
            plan,
            checker: Checker::new(plan),
            nodes: [node(), node()],
            net: Net::new(seed, plan.faults),
            now: Instant::ZERO,
            trace,
            next_action: 0,
            posted: vec![Posted::default(); plan.pairs.len()],
            srqs: BTreeMap::new(),
            reposts_immediately: false,
            stale: ChaCha8Rng::seed_from_u64(!seed),
            merges,
            inserts_payload: (seed / 2).is_multiple_of(2),
            room: Room { frames: if (seed / 4).is_multiple_of(2) { 1 } else { 8 }, bytes: 1 << 14 },
            merged: 0,
            pkeys: [(); NODES].map(|()| vec![Pkey::DEFAULT; 1 + plan.pairs.len() * 2]),
        };
        world.make_shared();
        for pair in &plan.pairs {
            for side in 0..2 {
                world.create(pair, side);
            }
            world.connect(pair.index, 0);
        }
        world
    }

    fn create(&mut self, pair: &Pair, side: usize) {
        let end = &pair.ends[side];
        let Node { engine, host } = &mut self.nodes[end.node];
        let readable = Rights::REMOTE_READ;
        for (region, len, rights) in [
            (SOURCE, end.source.len(), readable),
            (TARGET, end.target_len, Rights::all()),
            (HOT, HOT_BYTES, Rights::all()),
            (PRIVATE, PRIVATE_BYTES, Rights::empty()),
        ] {
            host.add_region(pair.key(side, region), pair.pd, va(region), len, rights);
        }
        host.bytes(pair.key(side, SOURCE)).copy_from_slice(&end.source);
        let keys = pair.keys.iter().filter(|(of, _)| *of == side);
        host.keys.extend(keys.map(|&(_, key)| (key.key >> 8, key)));
        if let Some(srq) = end.srq {
            host.shares.insert(end.qpn.get(), u32::try_from(srq).expect("there are few queues"));
        }
        if pair.service_of(side) == Service::XrcTgt {
            host.xrc_domains.insert(end.qpn.get(), pair.xrc_domain);
        }
        engine.create_qp(end.qpn, pair.attrs(side, 0)).expect("QP numbers differ in their low bits");
    }

    /// Moves both sides from RESET to RTS. If the plan moves side 1 to RTS later, side 1 stays in RTR for now.
    fn connect(&mut self, index: usize, life: usize) {
        let pair = &self.plan.pairs[index];
        self.posted[index].life = life;
        self.checker.on_connect(index, life);
        for side in 0..2 {
            self.set_pkey(index, side, pair.ends[side].pkey);
            let (mine, theirs) = (&pair.lives[life].sides[side], &pair.lives[life].sides[1 - side]);
            self.net.silence(pair.ends[side].node, pair.ends[side].qpn, false);
            let states = [State::Init, State::Rtr, State::Rts];
            let waits = side == 1 && pair.lives[life].late_ns > 0;
            for to in states.into_iter().take(if waits { 2 } else { 3 }) {
                let modify = Modify {
                    to,
                    attrs: pair.attrs(side, life),
                    send_psn: (to == State::Rts).then_some(mine.psn),
                    recv_psn: (to == State::Rtr).then_some(theirs.psn),
                    notify_drained: false,
                };
                self.modify(index, side, &modify);
            }
        }
    }

    /// Creates the shared queues and their memory, and the multicast groups.
    fn make_shared(&mut self) {
        for (&srq, &len) in &self.plan.slots {
            let (node, pd) = (node_of_srq(srq), pd_of_srq(srq));
            let rights = Rights::LOCAL_WRITE;
            self.nodes[node].host.add_region(slots_key(srq), pd, va(SHARED), SLOTS * len, rights);
            let slots = Slots { free: (0..SLOTS).collect(), used: BTreeMap::new(), posted: 0 };
            self.srqs.insert(srq, slots);
        }
        for (node, Node { host, .. }) in self.nodes.iter_mut().enumerate() {
            let ids = (0..XRC_SRQS).map(|index| XrcSrqId { node, index });
            host.xrc_srqs.extend(ids.map(|id| (id.srqn().get(), id.properties())));
        }
        for Group { gid, members } in &self.plan.groups {
            for &(pair, side) in members {
                let End { node, qpn, .. } = self.plan.pairs[pair].ends[side];
                self.nodes[node].host.groups.entry(gid.octets()).or_default().push(qpn);
            }
        }
    }

    /// Posts up to `count` requests to a shared queue.
    fn share(&mut self, srq: usize, count: usize) {
        let (host, len) = (&mut self.nodes[node_of_srq(srq)].host, self.plan.slots[&srq]);
        let Some(slots) = self.srqs.get_mut(&srq) else { return };
        for slot in slots.free.drain(..count.min(slots.free.len())) {
            let wr_id = SHARED_ID | (srq as u64) << 32 | slots.posted;
            slots.posted += 1;
            slots.used.insert(wr_id, slot);
            let sge = Sge {
                va: Va::new(va(SHARED) + (slot * len) as u64),
                lkey: Lkey::new(slots_key(srq)),
                len: u32::try_from(len).expect("slots are small"),
            };
            let number = u32::try_from(srq).expect("there are few queues");
            host.post_shared(number, wr_id, &[sge]);
            self.checker.on_post_shared(srq, wr_id, slot);
        }
    }

    /// Frees the slot of a completed request if the request came from a shared queue.
    fn release_slot(&mut self, wr_id: u64) {
        let Some((&srq, slots)) = self.srqs.iter_mut().find(|(_, slots)| slots.used.contains_key(&wr_id))
        else {
            return;
        };
        slots.free.extend(slots.used.remove(&wr_id));
        if self.reposts_immediately {
            self.share(srq, SLOTS);
        }
    }

    fn set_pkey(&mut self, pair: usize, side: usize, pkey: Pkey) {
        let node = self.plan.pairs[pair].ends[side].node;
        self.pkeys[node][usize::from(pkey_index(pair, side))] = pkey;
        self.nodes[node].engine.set_pkeys(&self.pkeys[node]);
    }

    fn modify(&mut self, pair: usize, side: usize, modify: &Modify) {
        let end = &self.plan.pairs[pair].ends[side];
        let Node { engine, host } = &mut self.nodes[end.node];
        engine.modify_qp(self.now, end.qpn, modify, host).expect("the QP exists");
    }

    fn run(&mut self) -> Result<(), Violation> {
        if self.trace {
            self.log_plan();
        }
        let last_action = self.plan.actions.last().map_or(Instant::ZERO, |&(at, _)| at);
        let bound = last_action.max(self.plan.heal_at) + DRAIN_BOUND;
        let mut healed = false;
        for _ in 0..STEPS {
            if !healed && self.now >= self.plan.heal_at {
                healed = true;
                self.net.heal();
                self.reposts_immediately = true;
                self.plan.slots.keys().for_each(|&srq| self.share(srq, SLOTS));
                if self.trace {
                    self.log("healed");
                }
            }
            self.checker.at(self.now);
            self.input()?;
            let mut more = false;
            for node in 0..NODES {
                more |= self.pump(node)?;
            }
            if self.now > bound {
                return Err(format!(
                    "the run did not finish within {DRAIN_BOUND:?} of the last fault or action: {}",
                    self.checker.progress()
                ));
            }
            let action = self.plan.actions.get(self.next_action).map(|&(at, _)| at);
            let arrival = self.net.next_arrival();
            // The network must be empty at the end, so that late packets are checked too.
            if !more && self.checker.is_finished() && arrival.is_none() && action.is_none() {
                self.nodes.iter().try_for_each(|node| check_no_pooled_slots(&node.engine))?;
                for pair in &self.plan.pairs {
                    for (side, end) in pair.ends.iter().enumerate() {
                        self.checker.check_unfetched(pair.index, side, &self.nodes[end.node].host)?;
                    }
                }
                return self.checker.at_end();
            }
            let timeouts = self.nodes.iter().filter_map(|node| node.engine.poll_timeout());
            let link = more.then(|| self.now + LINK_STEP);
            let next = timeouts.chain(action).chain(arrival).chain(link).min();
            let next = next.ok_or_else(|| {
                format!("no input, deadline or action is pending: {}", self.checker.progress())
            })?;
            self.now = self.now.max(next);
        }
        Err(format!("not finished after {STEPS} steps: {}", self.checker.progress()))
    }

    fn report(&self) -> Report {
        Report {
            time: self.now.saturating_since(Instant::ZERO),
            net: self.net.stats(),
            engines: [*self.nodes[0].engine.stats(), *self.nodes[1].engine.stats()],
            merged: self.merged,
            requests: self.posted.iter().flat_map(|posted| posted.sends).sum(),
        }
    }

    /// Handles all actions, frames and timeouts that are due.
    fn input(&mut self) -> Result<(), Violation> {
        while let Some(&(at, action)) = self.plan.actions.get(self.next_action)
            && at <= self.now
        {
            self.next_action += 1;
            self.act(action)?;
        }
        let received: Vec<_> = std::iter::from_fn(|| self.net.receive(self.now)).collect();
        let mut frames = Vec::new();
        for (to, frame) in &received {
            let Ok(mut frame) = RoceFrame::parse(frame) else { continue };
            frame.packet.srqn = self.srqn_on_arrival(*to, &frame.packet);
            frames.push((*to, frame));
        }
        let mut left = frames.as_slice();
        while let Some(&(to, frame)) = left.first() {
            let count = self.packets_in_arrival(left);
            let (together, rest) = left.split_at(count);
            left = rest;
            match merge(together) {
                Some(merged) => self.arrive_merged(to, together, &merged)?,
                None => together.iter().try_for_each(|(to, frame)| self.arrive(*to, frame))?,
            }
            self.arrive_stale(to, frame.packet.bth.dest_qp)?;
        }
        for node in 0..NODES {
            let Node { engine, host } = &mut self.nodes[node];
            engine.handle_timeout(self.now, host);
            self.check(node, None)?;
        }
        Ok(())
    }

    fn arrive(&mut self, to: usize, frame: &RoceFrame<'_>) -> Result<(), Violation> {
        self.checker.on_arrival(to, frame)?;
        let Node { engine, host } = &mut self.nodes[to];
        engine.handle_packet(self.now, &frame.encap, &frame.packet.convert(), host);
        self.check(to, Some(frame.packet.bth.dest_qp))?;
        self.checker.after_arrival()
    }

    /// Chooses how many packets, taken from the start of `frames`, arrive merged in a single frame. The number is
    /// random, as a requester may divide a message into frames differently when it retries.
    fn packets_in_arrival(&mut self, frames: &[(usize, RoceFrame<'_>)]) -> usize {
        match mergeable(frames) {
            most if most > 1 && self.merges => self.stale.random_range(1..=most),
            _ => 1,
        }
    }

    /// Handles packets that arrive in one frame.
    fn arrive_merged(
        &mut self,
        to: usize,
        frames: &[(usize, RoceFrame<'_>)],
        merged: &Merged,
    ) -> Result<(), Violation> {
        frames.iter().try_for_each(|(_, frame)| self.checker.on_arrival(to, frame))?;
        let packet = merged.packet();
        self.merged += 1;
        if self.trace {
            self.log(&format!("the next {} packets arrive in one frame", frames.len()));
        }
        let Node { engine, host } = &mut self.nodes[to];
        // Pass alternate frames as shared memory, as if their payload were still in the sender's memory.
        let mut memory = packet.payload.to_vec();
        let payload = match self.merged % 2 {
            0 => PayloadRef::Private(packet.payload),
            _ => PayloadRef::Shared(VolatileSlice::from(&mut memory[..])),
        };
        engine.handle_segments(self.now, merged.encap(), &packet.with_payload(payload), merged.mtu, host);
        self.check(to, Some(packet.bth.dest_qp))?;
        self.checker.after_arrival()
    }

    /// Returns the SRQ number that a packet carries on arrival. This is the number that was sent, unless the plan
    /// replaces the number in the middle of a message.
    fn srqn_on_arrival(&self, to: usize, packet: &Packet<'_>) -> Option<Srqn> {
        let is_target =
            |pair: &&Pair| pair.is_xrc() && (pair.ends[1].node, pair.ends[1].qpn) == (to, packet.bth.dest_qp);
        let named = packet.srqn?;
        let Some(pair) = self.plan.pairs.iter().find(is_target) else { return Some(named) };
        let work = &pair.lives[self.posted[pair.index].life].sides[0];
        let at = packet.bth.psn.get().wrapping_sub(work.psn.get()) & 0xff_ffff;
        let mut first = 0;
        for op in &work.ops {
            let end = first + op.packets(pair.mtu);
            if (first + 1..end).contains(&at) {
                return op.changes_srq.or(Some(named));
            }
            first = end;
        }
        Some(named)
    }

    /// Occasionally injects a stale READ. The READ bypasses the network, where a delay could turn it into a valid
    /// request that arrives on a later connection with the expected PSN.
    fn arrive_stale(&mut self, to: usize, qpn: Qpn) -> Result<(), Violation> {
        const ONE_IN: u32 = 8;
        let mut ends = self
            .plan
            .pairs
            .iter()
            .filter(|pair| pair.is_reliable())
            .flat_map(|pair| pair.ends.iter().enumerate().map(move |(side, end)| (pair, side, end)));
        let Some((pair, side, _)) = ends.find(|(.., end)| (end.node, end.qpn) == (to, qpn)) else {
            return Ok(());
        };
        if !self.stale.random_ratio(1, ONE_IN) {
            return Ok(());
        }
        let Some(live) = self.nodes[to].engine.query_qp(qpn).filter(|live| live.state.receives()) else {
            return Ok(());
        };
        let frame = stale::draw_read(&mut self.stale, pair, side, live.recv_psn);
        // The request is not stale if it happens to repeat a READ that the peer has sent.
        if self.checker.repeats_read(to, &frame.packet) {
            return Ok(());
        }
        if self.trace {
            self.log(&format!("stale> qp {:#x} {}", qpn.get(), describe(&frame.packet, 0)));
        }
        self.arrive(to, &frame)
    }

    fn act(&mut self, action: Action) -> Result<(), Violation> {
        if self.trace {
            self.log(&format!("{action:?}"));
        }
        match action {
            Action::Send { pair, side, count } => {
                let Posted { life, sends, .. } = &mut self.posted[pair];
                let Pair { ends, lives, .. } = &self.plan.pairs[pair];
                let Node { engine, host } = &mut self.nodes[ends[side].node];
                let from = sends[side];
                for op in &lives[*life].sides[side].ops[from..from + count] {
                    host.post_send(ends[side].qpn, op.request.clone());
                }
                sends[side] += count;
                self.checker.on_post(pair, side, Queue::Send, count);
                engine.notify_send(self.now, ends[side].qpn, host);
                self.check(ends[side].node, None)
            }
            Action::Recv { pair, side, count } => {
                let Posted { life, recvs, .. } = &mut self.posted[pair];
                let plan = &self.plan.pairs[pair];
                let end = &plan.ends[side];
                let from = recvs[side];
                for (nth, recv) in
                    plan.lives[*life].sides[side].recvs.iter().enumerate().skip(from).take(count)
                {
                    let wr_id = draw::wr_id(*life as u64, nth);
                    self.nodes[end.node].host.post_recv(end.qpn, wr_id, &plan.sges(side, &recv.areas));
                }
                recvs[side] += count;
                self.checker.on_post(pair, side, Queue::Recv, count);
                Ok(())
            }
            Action::Share { srq, count } => {
                self.share(srq, count);
                Ok(())
            }
            Action::Move { pair, side, to } => self.go(pair, side, to),
            Action::Connect { pair } => {
                let life = self.posted[pair].life + 1;
                self.posted[pair] = Posted::default();
                self.connect(pair, life);
                Ok(())
            }
            Action::Partition { pair, side, pkey } => {
                self.set_pkey(pair, side, pkey);
                self.checker.on_partition(pair, side, pkey);
                Ok(())
            }
            Action::Silence { pair, side } => {
                let end = &self.plan.pairs[pair].ends[side];
                self.net.silence(end.node, end.qpn, true);
                self.checker.on_blackhole(pair, side);
                Ok(())
            }
        }
    }

    /// Moves a QP to another state if the transition is legal.
    fn go(&mut self, index: usize, side: usize, to: State) -> Result<(), Violation> {
        let pair = &self.plan.pairs[index];
        let Posted { life, .. } = self.posted[index];
        let end = &pair.ends[side];
        let Node { engine, host } = &mut self.nodes[end.node];
        let state = engine.query_qp(end.qpn).expect("the QP exists").state;
        self.checker.check_state(index, side, state)?;
        if !State::may_move(pair.service_of(side), state, to) || state == State::Reset {
            return Ok(());
        }
        self.checker.on_move(index, side, to)?;
        if to == State::Reset {
            // Software discards the work queues.
            host.queues.remove(&end.qpn.get());
        }
        let attrs = pair.attrs(side, life);
        let send_psn = (state == State::Rtr).then_some(pair.lives[life].sides[side].psn);
        let modify = Modify { to, attrs, send_psn, recv_psn: None, notify_drained: to == State::Sqd };
        self.modify(index, side, &modify);
        if (state, end.flush) == (State::Sqe, Flush::Owner) {
            // The requests left in the queue are executed only after another doorbell.
            let Node { engine, host } = &mut self.nodes[end.node];
            engine.notify_send(self.now, end.qpn, host);
        }
        self.check(end.node, None)
    }

    /// Sends the frames that the node's link accepts. Returns whether more frames may follow.
    fn pump(&mut self, node: usize) -> Result<bool, Violation> {
        for _ in 0..FRAMES_PER_PUMP.min(self.plan.frames_per_step) {
            let Node { engine, host } = &mut self.nodes[node];
            let mut frame = Vec::new();
            let statuses: Vec<_> =
                qpns_of(self.plan, node).map(|qpn| (qpn, engine.explain(self.now, qpn))).collect();
            // The caller must copy detached payload into the frame.
            let mut ranges = Vec::new();
            let detached = self.inserts_payload.then_some(&mut ranges);
            let sent = engine.poll_burst(self.now, host, &mut frame, detached, self.room);
            if let Some(payload) = sent.and_then(|sent| sent.detached) {
                host.insert(&mut frame, payload, &ranges);
            }
            if let Some(Transmit { qpn, wr_id: Some(_), .. }) = sent
                && let Some((_, Some(before))) = statuses.iter().find(|(of, _)| *of == qpn)
                && before.send != WaitReason::Turn
            {
                return Err(format!("node {node}: QP {qpn} sent a frame in status {:?}", before.send));
            }
            let Some(sent) = sent else {
                check_wait_reasons(engine, self.now, qpns_of(self.plan, node))?;
                self.check(node, None)?;
                while self.nodes[node].engine.poll_dirty().is_some() {}
                return Ok(false);
            };
            // The key operations in `poll_burst` took effect before it produced the frame, so check their events first.
            self.check_host_events(node, None)?;
            let mut checked = Ok(());
            let frames = frame.chunks_exact(frame.len() / sent.frames as usize);
            // The frames of a burst belong to requests with consecutive `wr_id`s.
            let frames = (0..).zip(frames).flat_map(|(nth, frame)| {
                packets_of(frame, sent.offload).into_iter().map(move |frame| (nth, frame))
            });
            for (nth, frame) in frames {
                let sent = Transmit {
                    frames: 1,
                    len: frame.len(),
                    packets: 1,
                    wr_id: sent.wr_id.map(|first| first + nth),
                    offload: Offload::None,
                    detached: None,
                    ..sent
                };
                checked = checked.and(self.checker.on_frame(node, &sent, &frame));
                for to in nodes_of(sent.dst_mac) {
                    let fate = self.net.send(self.now, node, to, frame.clone());
                    if self.trace {
                        self.log(&format!("{node}> {} {fate}", packet_text(&frame)));
                    }
                }
            }
            checked?;
            self.check(node, None)?;
        }
        let endless = self.plan.frames_per_step > FRAMES_PER_PUMP;
        if endless { Err(format!("node {node} never stops sending")) } else { Ok(true) }
    }

    /// Passes a node's memory accesses and events to the checker. `cause` is the destination QP of the packet that the
    /// node has just received, if any.
    fn check(&mut self, node: usize, cause: Option<Qpn>) -> Result<(), Violation> {
        self.check_host_events(node, cause)?;
        let Node { engine, host } = &mut self.nodes[node];
        let mut completed = Vec::new();
        while let Some(event) = engine.poll_event() {
            if self.trace {
                log(self.now, &format!("{node}: {event:?}"));
            }
            self.checker.on_event(node, &event, host)?;
            if let Event::Completion(Completion { queue: Queue::Recv, wr_id, .. }) = event {
                completed.push(wr_id);
            }
        }
        completed.into_iter().for_each(|wr_id| self.release_slot(wr_id));
        Ok(())
    }

    fn check_host_events(&mut self, node: usize, cause: Option<Qpn>) -> Result<(), Violation> {
        let host = &mut self.nodes[node].host;
        for event in host.host_events.iter_mut().flat_map(|host_events| host_events.drain(..)) {
            self.checker.on_host_event(node, cause, &event)?;
        }
        Ok(())
    }

    fn log_plan(&self) {
        self.log(&format!("{:?}, window {}", self.plan.faults, self.plan.window_packets));
        for pair in &self.plan.pairs {
            let (service, nodes) = (pair.service, [pair.ends[0].node, pair.ends[1].node]);
            self.log(&format!("pair {}: {service:?} between nodes {nodes:?}", pair.index));
            for (life, of) in pair.lives.iter().enumerate() {
                for (side, work) in of.sides.iter().enumerate() {
                    let qpn = pair.ends[side].qpn;
                    self.log(&format!("pair {} side {side}: {qpn}, life {life}", pair.index));
                    for (nth, op) in work.ops.iter().enumerate() {
                        self.log(&format!("  request {nth}: {} bytes, {:?}", op.len, op.request));
                    }
                }
            }
        }
    }

    fn log(&self, text: &str) {
        log(self.now, text);
    }
}

/// Creates a node's host, whose memory initially holds only the atomic cells.
fn host(counts_receives: bool) -> SimHost {
    let host_events = Some(Vec::new());
    let mut host = SimHost { host_events, counts_receives, ..SimHost::default() };
    for pd in 1..=PDS {
        host.add_region(cells_key(pd), pd, va(super::plan::CELLS), CELLS_BYTES, Rights::all());
    }
    host
}

/// Splits a frame into one frame per packet, in wire format.
fn packets_of(frame: &[u8], offload: Offload) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    match offload {
        Offload::Segmentation(mtu) => {
            for_each_frame(frame, mtu, |frame| frames.push(frame.to_vec())).expect("engine frames are valid");
        }
        Offload::None | Offload::Icrc => {
            let mut frame = frame.to_vec();
            seal(&mut frame).expect("engine frames are valid");
            frames.push(frame);
        }
    }
    frames
}

fn packet_text(frame: &[u8]) -> String {
    let text = |frame: RoceFrame<'_>| {
        format!("qp {:#x} {}", frame.packet.bth.dest_qp.get(), describe(&frame.packet, 0))
    };
    RoceFrame::parse(frame).map(text).unwrap_or_default()
}

fn qpns_of(plan: &Plan, node: usize) -> impl Iterator<Item = Qpn> {
    plan.pairs.iter().flat_map(|pair| &pair.ends).filter(move |end| end.node == node).map(|end| end.qpn)
}

/// Checks that an idle engine does not report any QP as waiting for its turn to send.
fn check_wait_reasons(
    engine: &Engine,
    now: Instant,
    mut qpns: impl Iterator<Item = Qpn>,
) -> Result<(), Violation> {
    if engine.poll_timeout() == Some(Instant::ZERO) {
        return Ok(());
    }
    match qpns.find(|qpn| engine.explain(now, *qpn).is_some_and(|status| status.send == WaitReason::Turn)) {
        Some(qpn) => Err(format!("QP {qpn} sends nothing in status Turn")),
        None => Ok(()),
    }
}

/// Checks that an idle engine has returned all slots to the shared pool.
fn check_no_pooled_slots(engine: &Engine) -> Result<(), Violation> {
    match engine.pooled_slots() {
        slots if slots == engine::PooledSlots::default() => Ok(()),
        slots => Err(format!("all QPs are idle, but the pool still counts {slots:?}")),
    }
}

#[expect(clippy::print_stdout, reason = "the trace is what the user asked for")]
fn log(now: Instant, text: &str) {
    println!("{:>12} {text}", now.as_nanos());
}
