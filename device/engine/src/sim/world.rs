//! Two nodes, the net between them, and time.

use std::net::Ipv4Addr;
use std::time::Duration;

use protocol::ids::{MacAddr, Pdn, Pkey, Qkey};
use protocol::roce::{IpAddrs, RoceFrame, Shell};

use super::checker::{Checker, Violation};
use super::host::{Rights, SimHost};
use super::net::{Net, NetStats};
use super::trace::describe;
use super::workload::{
    Action, Connection, HOT, HOT_BYTES, PRIVATE, PRIVATE_BYTES, Plan, SOURCE, TARGET, WORDS, WORDS_BYTES,
    draw,
};
use crate::{Config, Engine, Instant, Modify, QpAttrs, RnrRetry, RnrTimer, Service, State, Stats};

/// Simulated time in which everything must be done after the net is healed and the last request is posted.
const DRAIN_BOUND: Duration = Duration::from_secs(1);
/// Inputs of one run; more is a livelock.
const STEPS: u64 = 2_000_000;
/// Frames one engine may send in one go; more is a loop.
const FRAMES_PER_PUMP: u32 = 100_000;

struct Node {
    engine: Engine,
    host: SimHost,
}

struct World<'a> {
    plan: &'a Plan,
    checker: Checker<'a>,
    nodes: [Node; 2],
    net: Net,
    now: Instant,
    trace: bool,
    next_action: usize,
    /// Requests posted so far, by connection and side.
    sends: Vec<[usize; 2]>,
    recvs: Vec<[usize; 2]>,
}

/// A run that went well.
#[derive(Clone, Copy, Debug)]
pub struct Report {
    /// Simulated time it took.
    pub time: Duration,
    /// What the net did.
    pub net: NetStats,
    /// What the engines counted.
    pub engines: [Stats; 2],
    /// Requests that completed.
    pub requests: usize,
}

/// Runs the world of `seed`; `trace` prints every packet, event and fault.
///
/// # Errors
/// What the checker found, or that the run does not end.
pub fn run(seed: u64, trace: bool) -> Result<Report, Violation> {
    let plan = draw(seed);
    let mut world = World::new(seed, &plan, trace);
    world.run().map_err(|violation| {
        format!(
            "seed {seed}, at {:?}: {violation}\nreplay: cargo run -p engine --features sim --release --bin sim -- \
             --seed {seed} --trace",
            world.now
        )
    })?;
    Ok(Report {
        time: world.now.saturating_since(Instant::ZERO),
        net: world.net.stats(),
        engines: [*world.nodes[0].engine.stats(), *world.nodes[1].engine.stats()],
        requests: plan.connections.iter().flat_map(|c| &c.sides).map(|side| side.ops.len()).sum(),
    })
}

impl<'a> World<'a> {
    fn new(seed: u64, plan: &'a Plan, trace: bool) -> Self {
        let config = Config { qp_index_bits: 8, window_packets: plan.window_packets };
        let node = || Node { engine: Engine::new(config), host: SimHost::default() };
        let mut world = Self {
            plan,
            checker: Checker::new(plan),
            nodes: [node(), node()],
            net: Net::new(seed, plan.faults),
            now: Instant::ZERO,
            trace,
            next_action: 0,
            sends: vec![[0; 2]; plan.connections.len()],
            recvs: vec![[0; 2]; plan.connections.len()],
        };
        for connection in &plan.connections {
            for side in 0..2 {
                world.connect(connection, side);
            }
        }
        world
    }

    fn connect(&mut self, connection: &Connection, side: usize) {
        let (mine, theirs) = (&connection.sides[side], &connection.sides[1 - side]);
        let Node { engine, host } = &mut self.nodes[mine.node];
        let pd = connection.index + 1;
        let rights = Rights::ALL;
        let readable = Rights { remote_read: true, ..Rights::NONE };
        for (region, len, rights) in [
            (SOURCE, mine.source.len(), readable),
            (TARGET, mine.target_len, rights),
            (HOT, HOT_BYTES, rights),
            (WORDS, WORDS_BYTES, rights),
            (PRIVATE, PRIVATE_BYTES, Rights::NONE),
        ] {
            host.add_region(connection.key(region), pd, Connection::va(region), len, rights);
        }
        host.bytes(connection.key(SOURCE)).copy_from_slice(&mine.source);
        let attrs = QpAttrs {
            service: Service::Rc,
            pd: Pdn::new(pd),
            mtu: connection.mtu,
            max_message_len: 1 << 31,
            remote_qpn: theirs.qpn,
            path: path(mine.node, theirs.node),
            pkey: Pkey::DEFAULT,
            qkey: Qkey::new(0),
            ack_timeout: Some(connection.ack_timeout),
            retry_count: 7,
            rnr_retry: RnrRetry::Infinite,
            min_rnr_timer: RnrTimer::new(connection.rnr_timer),
            max_rd_atomic: connection.rd_atomic,
            max_dest_rd_atomic: connection.rd_atomic,
            ud_grh: false,
        };
        engine.create_qp(mine.qpn, attrs).expect("QP numbers differ in their low bits");
        for to in [State::Init, State::Rtr, State::Rts] {
            let modify = Modify {
                to,
                attrs,
                send_psn: (to == State::Rts).then_some(mine.psn),
                recv_psn: (to == State::Rtr).then_some(theirs.psn),
                notify_drained: false,
            };
            engine.modify_qp(self.now, mine.qpn, &modify, host).expect("the QP exists");
        }
    }

    fn run(&mut self) -> Result<(), Violation> {
        if self.trace {
            self.say(&format!("{:?}, window {}", self.plan.faults, self.plan.window_packets));
            for connection in &self.plan.connections {
                for (side, of) in connection.sides.iter().enumerate() {
                    for (nth, op) in of.ops.iter().enumerate() {
                        let (qpn, what) = (of.qpn, &op.request);
                        self.say(&format!("{side}: {qpn} request {nth}: {} bytes, {what:?}", op.len));
                    }
                }
            }
        }
        let last_action = self.plan.actions.last().map_or(Instant::ZERO, |&(at, _)| at);
        let bound = last_action.max(self.plan.heal_at) + DRAIN_BOUND;
        let mut healed = false;
        for _ in 0..STEPS {
            if !healed && self.now >= self.plan.heal_at {
                healed = true;
                self.net.heal();
                if self.trace {
                    self.say("healed");
                }
            }
            self.input()?;
            for node in 0..2 {
                self.pump(node)?;
            }
            if self.now > bound {
                return Err(format!(
                    "not done after {DRAIN_BOUND:?} without faults: {}",
                    self.checker.progress()
                ));
            }
            let action = self.plan.actions.get(self.next_action).map(|&(at, _)| at);
            let arrival = self.net.next_arrival();
            // Late packets must do no harm: the net runs dry before the end.
            if self.checker.is_finished() && arrival.is_none() && action.is_none() {
                return self.checker.at_end([&self.nodes[0].host, &self.nodes[1].host]);
            }
            let timeouts = self.nodes.iter().filter_map(|node| node.engine.poll_timeout());
            let next = timeouts.chain(action).chain(arrival).min();
            let next = next.ok_or_else(|| format!("everybody sleeps: {}", self.checker.progress()))?;
            self.now = self.now.max(next);
        }
        Err(format!("no end after {STEPS} steps: {}", self.checker.progress()))
    }

    /// Everything that is due now.
    fn input(&mut self) -> Result<(), Violation> {
        while let Some(&(at, action)) = self.plan.actions.get(self.next_action)
            && at <= self.now
        {
            self.next_action += 1;
            self.act(action);
        }
        while let Some((to, frame)) = self.net.receive(self.now) {
            let Ok(RoceFrame { shell, packet }) = RoceFrame::parse(&frame) else { continue };
            let Node { engine, host } = &mut self.nodes[to];
            engine.handle_packet(self.now, &shell, &packet, host);
            // Completions are checked against memory as it was then.
            self.drain_events(to)?;
        }
        for node in 0..2 {
            let Node { engine, host } = &mut self.nodes[node];
            engine.handle_timeout(self.now, host);
            self.drain_events(node)?;
        }
        Ok(())
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Send { connection, side, count } => {
                let posted = &mut self.sends[connection][side];
                let side = &self.plan.connections[connection].sides[side];
                let Node { engine, host } = &mut self.nodes[side.node];
                for op in &side.ops[*posted..*posted + count] {
                    host.post_send(side.qpn, op.request.clone());
                }
                *posted += count;
                engine.ring(self.now, side.qpn, host);
            }
            Action::Recv { connection, side, count } => {
                let posted = &mut self.recvs[connection][side];
                let sides = &self.plan.connections[connection].sides;
                let recvs = sides[1 - side].ops.iter().filter_map(|op| op.recv.as_ref());
                for (wr_id, recv) in recvs.enumerate().skip(*posted).take(count) {
                    self.nodes[sides[side].node].host.post_recv(sides[side].qpn, wr_id as u64, &recv.sges);
                }
                *posted += count;
            }
        }
    }

    /// Lets a node send all it has.
    fn pump(&mut self, node: usize) -> Result<(), Violation> {
        for _ in 0..FRAMES_PER_PUMP {
            self.drain_events(node)?;
            let Node { engine, host } = &mut self.nodes[node];
            let mut frame = Vec::new();
            if engine.poll_transmit(self.now, host, &mut frame).is_none() {
                self.drain_events(node)?;
                while self.nodes[node].engine.poll_dirty().is_some() {}
                return Ok(());
            }
            self.checker.on_frame(node, &frame)?;
            let text = if self.trace {
                let packet = RoceFrame::parse(&frame).map(|frame| {
                    let packet = frame.packet;
                    format!("qp {:#x} {}", packet.bth.dest_qp.get(), describe(&packet, 0))
                });
                packet.unwrap_or_default()
            } else {
                String::new()
            };
            let fate = self.net.send(self.now, node, 1 - node, frame);
            if self.trace {
                self.say(&format!("{node}> {text} {fate}"));
            }
        }
        Err(format!("node {node} never stops sending"))
    }

    fn drain_events(&mut self, node: usize) -> Result<(), Violation> {
        while let Some(event) = self.nodes[node].engine.poll_event() {
            if self.trace {
                self.say(&format!("{node}: {event:?}"));
            }
            let [a, b] = &self.nodes;
            self.checker.on_event(node, &event, [&a.host, &b.host])?;
        }
        Ok(())
    }

    #[expect(clippy::print_stdout, reason = "the trace is what the user asked for")]
    fn say(&self, text: &str) {
        println!("{:>12} {text}", self.now.as_nanos());
    }
}

fn path(from: usize, to: usize) -> Shell {
    let octet = |node: usize| u8::try_from(node + 1).expect("there are two nodes");
    let mac = |node| MacAddr([2, 0, 0, 0, 0, octet(node)]);
    let ip = |node| Ipv4Addr::new(10, 77, 0, octet(node));
    Shell {
        src_mac: mac(from),
        dst_mac: mac(to),
        ip: IpAddrs::V4 { src: ip(from), dst: ip(to) },
        traffic_class: 0,
        hop_limit: 64,
        src_port: 49152,
    }
}
