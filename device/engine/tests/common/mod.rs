//! Two engines, connected by a wire whose losses the test controls, and a clock that the test advances.
#![allow(clippy::unwrap_used, reason = "test code")]
#![allow(dead_code, unreachable_pub, reason = "each test file uses only part of this module")]

use std::net::Ipv4Addr;
use std::time::Duration;

use engine::*;
use protocol::Psn;
use protocol::ids::*;
use protocol::net::ipv4::Fragmentation;
use protocol::roce::*;
use sim::host::SimHost;

/// One of the two engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Node {
    /// The requester in most tests.
    A,
    /// The responder in most tests.
    B,
}
pub use Node::{A, B};

impl Node {
    pub fn peer(self) -> Self {
        match self {
            A => B,
            B => A,
        }
    }

    fn mac(self) -> MacAddr {
        MacAddr([2, 0, 0, 0, 0, 1 + self as u8])
    }

    fn ip(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 77, 0, 1 + self as u8)
    }

    /// Returns the QPN of the node's first QP.
    pub fn qpn(self) -> Qpn {
        Qpn::new(0x10 + self as u32)
    }

    pub fn path(self) -> Encap {
        Encap {
            src_mac: self.mac(),
            dst_mac: self.peer().mac(),
            ip: IpAddrs::V4 { src: self.ip(), dst: self.peer().ip() },
            traffic_class: 0,
            flow_label: FlowLabel::default(),
            hop_limit: 64,
            fragment: Fragmentation::default(),
            tag: None,
            src_port: 49152,
        }
    }
}

pub const PD: u32 = 3;
/// Key of a 64 KiB region at [`VA`] on both sides, with all permissions.
pub const KEY: u32 = 0x21;
pub const VA: u64 = 0x10_0000;
pub const REGION: usize = 65536;
/// Key of a region on both sides, with local read permission only.
pub const LOCKED: u32 = 0x22;
/// The ACK timeout (code 14).
pub const TIMEOUT: Duration = Duration::from_nanos(4096 << 14);

pub fn psn_a() -> Psn {
    Psn::new(0x100)
}

pub fn psn_b() -> Psn {
    Psn::new(0x900)
}

pub struct Side {
    pub engine: Engine,
    pub host: SimHost,
    pub completions: Vec<Completion>,
    pub asyncs: Vec<AsyncEvent>,
    /// Completions and asynchronous events, in order.
    pub events: Vec<Event>,
}

pub struct Pair {
    pub now: Instant,
    pub a: Side,
    pub b: Side,
}

pub fn attrs(node: Node) -> QpAttrs {
    QpAttrs {
        service: Service::Rc,
        pd: Pdn::new(PD),
        mtu: Mtu::Mtu256,
        alias: None,
        max_message_len: 1 << 31,
        remote_qpn: node.peer().qpn(),
        path: node.path(),
        own_address: false,
        pkey_index: 0,
        qkey: Qkey::new(0x1111_1111),
        any_qkey: false,
        ack_timeout: Some(AckTimeout::constant(TIMEOUT)),
        retry_count: 7,
        rnr_retry: RnrRetry::Limited(6),
        min_rnr_timer: RnrTimer::new(12),
        max_rnr_timer: RnrTimer::new(12),
        max_rd_atomic: 4,
        max_dest_rd_atomic: 4,
        remote: RemoteAccess::ALL,
        grh_area: GrhArea::None,
        srq: false,
        reserved_lkey: false,
        flush: Flush::Each,
    }
}

impl Pair {
    pub fn new() -> Self {
        Self::with(|_, _| {})
    }

    /// Creates two engines whose QPs are connected and in RTS. `tune` can modify the QPs' attributes.
    pub fn with(tune: impl Fn(Node, &mut QpAttrs)) -> Self {
        Self::build(tune, psn_a(), psn_b(), Config::default())
    }

    pub fn with_psns(psn_a: Psn, psn_b: Psn) -> Self {
        Self::build(|_, _| {}, psn_a, psn_b, Config::default())
    }

    pub fn with_window(window_packets: u32) -> Self {
        Self::build(|_, _| {}, psn_a(), psn_b(), Config { window_packets, ..Config::default() })
    }

    fn build(tune: impl Fn(Node, &mut QpAttrs), psn_a: Psn, psn_b: Psn, config: Config) -> Self {
        let side = |node: Node| {
            let mut attrs = attrs(node);
            tune(node, &mut attrs);
            let mut engine = Engine::new(config);
            let mut host = SimHost::default();
            host.add_region(KEY, PD, VA, REGION, Rights::all());
            host.add_region(LOCKED, PD, VA, REGION, Rights::empty());
            let bytes = host.bytes(KEY);
            for (index, byte) in bytes.iter_mut().enumerate() {
                *byte = u8::try_from((index * 7 + index / 256 + node as usize * 101) % 256).unwrap();
            }
            let psns = if node == A { (psn_a, psn_b) } else { (psn_b, psn_a) };
            bring_up(&mut engine, &mut host, node.qpn(), attrs, psns);
            Side { engine, host, completions: Vec::new(), asyncs: Vec::new(), events: Vec::new() }
        };
        Self { now: Instant::from_nanos(1_000_000), a: side(A), b: side(B) }
    }

    /// Adds a QP in RTS.
    pub fn add(&mut self, node: Node, qpn: Qpn, attrs: QpAttrs) {
        let psns = if node == A { (psn_a(), psn_b()) } else { (psn_b(), psn_a()) };
        let Side { engine, host, .. } = self.side(node);
        bring_up(engine, host, qpn, attrs, psns);
    }

    /// Posts a send request to QP `qpn` on a node.
    pub fn post_on(&mut self, node: Node, qpn: Qpn, wr: SendRequest) {
        let now = self.now;
        let side = self.side(node);
        side.host.post_send(qpn, wr);
        side.engine.notify_send(now, qpn, &mut side.host);
        side.collect();
    }

    pub fn side(&mut self, node: Node) -> &mut Side {
        match node {
            A => &mut self.a,
            B => &mut self.b,
        }
    }

    pub fn post(&mut self, node: Node, wr: SendRequest) {
        self.post_on(node, node.qpn(), wr);
    }

    pub fn post_recv(&mut self, node: Node, wr_id: u64, offset: u64, len: u32) {
        self.side(node).host.post_recv(node.qpn(), wr_id, &[sge(offset, len)]);
    }

    /// Returns the frames that `node` can send now.
    pub fn frames(&mut self, node: Node) -> Vec<Vec<u8>> {
        let now = self.now;
        let side = self.side(node);
        let mut frames = Vec::new();
        loop {
            side.collect();
            let mut frame = Vec::new();
            let Some(transmit) = side.engine.poll_transmit(now, &mut side.host, &mut frame) else { break };
            assert_eq!(transmit.len, frame.len());
            frames.push(frame);
            assert!(frames.len() < 10_000, "the engine sends too many frames");
        }
        side.collect();
        frames
    }

    pub fn deliver(&mut self, node: Node, frame: &[u8]) {
        let frame = RoceFrame::parse(frame).expect("engine frames are valid");
        self.deliver_packet(node, &frame.encap, &frame.packet);
    }

    pub fn deliver_packet(&mut self, node: Node, encap: &Encap, packet: &Packet<'_>) {
        let now = self.now;
        let side = self.side(node);
        side.engine.handle_packet(now, encap, &packet.convert(), &mut side.host);
        side.collect();
    }

    /// Delivers a forged packet that appears to come from the peer.
    pub fn inject(&mut self, to: Node, operation: Operation, psn: Psn, ext: Ext, payload: &[u8]) {
        self.inject_with(to, operation, psn, ext, payload, |_| {});
    }

    pub fn inject_with(
        &mut self,
        to: Node,
        operation: Operation,
        psn: Psn,
        ext: Ext,
        payload: &[u8],
        tune: impl FnOnce(&mut Bth),
    ) {
        let mut bth = Bth {
            opcode: Opcode::rc(operation),
            solicited: false,
            mig_req: true,
            pkey: Pkey::DEFAULT,
            fecn: false,
            becn: false,
            dest_qp: to.qpn(),
            ack_req: true,
            psn,
        };
        tune(&mut bth);
        self.deliver_packet(to, &to.peer().path(), &Packet { bth, srqn: None, ext, payload });
    }

    /// Exchanges packets until both nodes are idle, without advancing time. `keep` decides which packets arrive.
    /// Returns all packets sent, in order, as text.
    pub fn run(&mut self, mut keep: impl FnMut(Node, &str) -> bool) -> Vec<String> {
        let mut trace = Vec::new();
        loop {
            let before = trace.len();
            for node in [A, B] {
                for frame in self.frames(node) {
                    let text = format!("{node:?} {}", describe(&frame));
                    let kept = keep(node, &text);
                    trace.push(if kept { text } else { format!("{text} LOST") });
                    if kept {
                        self.deliver(node.peer(), &frame);
                    }
                }
            }
            if trace.len() == before {
                return trace;
            }
            assert!(trace.len() < 100_000, "the engines exchange too many frames");
        }
    }

    /// Exchanges packets without loss.
    pub fn flow(&mut self) -> Vec<String> {
        self.run(|_, _| true)
    }

    /// Exchanges packets, dropping the `n`-th packet (counting from 0) that `node` sends.
    pub fn lose(&mut self, node: Node, n: usize) -> Vec<String> {
        let mut count = 0;
        self.run(|from, _| {
            if from != node {
                return true;
            }
            count += 1;
            count != n + 1
        })
    }

    pub fn advance(&mut self, by: Duration) {
        self.now = self.now + by;
        let now = self.now;
        for side in [&mut self.a, &mut self.b] {
            side.engine.handle_timeout(now, &mut side.host);
            side.collect();
        }
    }

    pub fn modify(&mut self, node: Node, to: State) {
        self.modify_with(node, to, |_| {});
    }

    pub fn modify_with(&mut self, node: Node, to: State, tune: impl FnOnce(&mut Modify)) {
        let mut modify =
            Modify { to, attrs: attrs(node), send_psn: None, recv_psn: None, notify_drained: false };
        tune(&mut modify);
        let now = self.now;
        let side = self.side(node);
        side.engine.modify_qp(now, node.qpn(), &modify, &mut side.host).unwrap();
        side.collect();
    }

    pub fn snapshot(&mut self, node: Node) -> QpSnapshot {
        self.side(node).engine.query_qp(node.qpn()).unwrap()
    }

    pub fn bytes(&mut self, node: Node, offset: usize, len: usize) -> Vec<u8> {
        self.side(node).host.bytes(KEY)[offset..offset + len].to_vec()
    }
}

/// Creates a QP and moves it to RTS. `mine` is the first PSN to send, and `theirs` is the first PSN to expect.
fn bring_up(engine: &mut Engine, host: &mut SimHost, qpn: Qpn, attrs: QpAttrs, (mine, theirs): (Psn, Psn)) {
    engine.create_qp(qpn, attrs).unwrap();
    for to in [State::Init, State::Rtr, State::Rts] {
        let modify = Modify {
            to,
            attrs,
            send_psn: (to == State::Rts).then_some(mine),
            recv_psn: (to == State::Rtr).then_some(theirs),
            notify_drained: false,
        };
        engine.modify_qp(Instant::ZERO, qpn, &modify, host).unwrap();
    }
}

impl Side {
    pub fn collect(&mut self) {
        while let Some(event) = self.engine.poll_event() {
            self.events.push(event);
            match event {
                Event::Completion(completion) => self.completions.push(completion),
                Event::Async { event, .. } => self.asyncs.push(event),
            }
        }
    }

    /// Returns the work request ID and result of each completion reported for a queue since the last call.
    pub fn take(&mut self, queue: Queue) -> Vec<(u64, Result<(), Status>)> {
        let (taken, rest) = self.completions.drain(..).partition(|completion| completion.queue == queue);
        self.completions = rest;
        let taken: Vec<Completion> = taken;
        taken.iter().map(|completion| (completion.wr_id, completion.result.map(|_| ()))).collect()
    }

    pub fn sends(&mut self) -> Vec<(u64, Result<(), Status>)> {
        self.take(Queue::Send)
    }

    pub fn recvs(&mut self) -> Vec<(u64, Result<(), Status>)> {
        self.take(Queue::Recv)
    }
}

pub fn sge(offset: u64, len: u32) -> Sge {
    Sge { va: Va::new(VA + offset), lkey: Lkey::new(KEY), len }
}

pub fn request(wr_id: u64, op: SendOp, sges: &[Sge]) -> SendRequest {
    SendRequest {
        wr_id,
        op,
        payload: Payload::Sges(sges.into()),
        fence: Fence::None,
        solicited: false,
        ud: None,
        remote_srq: None,
    }
}

pub fn remote(offset: u64) -> Remote {
    Remote { va: Va::new(VA + offset), rkey: Rkey::new(KEY) }
}

/// Returns a SEND of `len` bytes from the start of the region.
pub fn send(wr_id: u64, len: u32) -> SendRequest {
    request(wr_id, SendOp::Send { imm: None }, &[sge(0, len)])
}

/// Returns a WRITE of `len` bytes from the start of the region to offset `to` at the peer.
pub fn write(wr_id: u64, to: u64, len: u32) -> SendRequest {
    request(wr_id, SendOp::Write { remote: remote(to), imm: None }, &[sge(0, len)])
}

/// Returns a READ of `len` bytes from the start of the peer's region to offset `to`.
pub fn read(wr_id: u64, to: u64, len: u32) -> SendRequest {
    request(wr_id, SendOp::Read { remote: remote(0), invalidate: None }, &[sge(to, len)])
}

pub fn ok(ids: impl IntoIterator<Item = u64>) -> Vec<(u64, Result<(), Status>)> {
    ids.into_iter().map(|id| (id, Ok(()))).collect()
}

pub fn aeth(syndrome: Syndrome) -> Ext {
    Ext::Aeth(Aeth { syndrome, msn: Msn::new(0) })
}

pub const ACK: Syndrome = Syndrome::Ack { credits: 31 };

/// Formats a frame; see [`sim::trace::describe`].
pub fn describe(frame: &[u8]) -> String {
    let frame = RoceFrame::parse(frame).expect("engine frames are valid");
    sim::trace::describe(&frame.packet, VA)
}
