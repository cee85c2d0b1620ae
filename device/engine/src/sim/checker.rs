//! Knows the plan, watches memory, completions and frames, and shares no code with the engines.
//!
//! For each connection and direction: requests complete once each, in posting order, with the planned outcome, and the
//! bytes are in place at that moment; after a request that must fail everything is flushed; in the end every byte of
//! every region is what the requests that succeeded make it, executed once each in order.

use protocol::roce::{Kind, RoceFrame};

use super::host::SimHost;
use super::workload::{
    Area, Connection, HOT, HOT_BYTES, Op, PRIVATE, PRIVATE_BYTES, Plan, SOURCE, TARGET, WORDS, WORDS_BYTES,
};
use crate::{AsyncEvent, Completion, Event, Queue, RecvDone, SendDone, SendOp, Status, Success};

/// What was seen of one side of a connection.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    sends: usize,
    recvs: usize,
    /// The send queue had its failure.
    failed: bool,
}

/// The expected bytes of one side.
#[derive(Clone, Debug)]
struct Image {
    target: Vec<u8>,
    hot: Vec<u8>,
    words: Vec<u8>,
    /// Ranges of `target` that a failing request may have written.
    spoilt: Vec<Area>,
}

/// See the [module](self).
#[derive(Debug)]
pub struct Checker<'a> {
    plan: &'a Plan,
    seen: Vec<[Seen; 2]>,
    images: Vec<[Image; 2]>,
    /// Of each side's requests: the original value an atomic must return.
    originals: Vec<[Vec<u64>; 2]>,
}

/// What is wrong.
pub type Violation = String;

macro_rules! demand {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err(format!($($message)+));
        }
    };
}

impl<'a> Checker<'a> {
    /// A checker of a run of `plan`.
    pub fn new(plan: &'a Plan) -> Self {
        let image = |connection: &Connection, side: usize| Image {
            target: vec![0; connection.sides[side].target_len],
            hot: vec![0; HOT_BYTES],
            words: vec![0; WORDS_BYTES],
            spoilt: Vec::new(),
        };
        let images = plan.connections.iter().map(|connection| [image(connection, 0), image(connection, 1)]);
        let mut checker = Self {
            plan,
            seen: vec![[Seen::default(); 2]; plan.connections.len()],
            images: images.collect(),
            originals: vec![Default::default(); plan.connections.len()],
        };
        for (index, connection) in plan.connections.iter().enumerate() {
            for side in 0..2 {
                checker.predict(index, connection, side);
            }
        }
        checker
    }

    /// Executes a side's requests on the images, in order, up to the one that must fail.
    fn predict(&mut self, index: usize, connection: &Connection, side: usize) {
        for op in &connection.sides[side].ops {
            let mut original = 0;
            if !op.fails.is_empty() {
                self.images[index][1 - side].spoilt.extend(&op.to);
                break;
            }
            match op.request.op {
                SendOp::CompareSwap { remote, .. } | SendOp::FetchAdd { remote, .. } => {
                    let words = &mut self.images[index][1 - side].words;
                    let offset = usize::try_from(remote.va.get() - Connection::va(WORDS));
                    let offset = offset.expect("the plan's words are in WORDS");
                    let word = words[offset..].first_chunk_mut::<8>().expect("words are whole");
                    original = u64::from_le_bytes(*word);
                    let new = match op.request.op {
                        SendOp::CompareSwap { compare, swap, .. } if compare == original => swap,
                        SendOp::FetchAdd { add, .. } => original.wrapping_add(add),
                        _ => original,
                    };
                    *word = new.to_le_bytes();
                }
                // What comes back to the requester counts when the request completes.
                SendOp::Read { .. } => {}
                _ => {
                    let bytes = source_bytes(connection, side, &op.from);
                    self.images[index][1 - side].put(&op.to, &bytes);
                }
            }
            self.originals[index][side].push(original);
        }
    }

    /// A node reported `event`; `hosts` is memory at that moment.
    pub fn on_event(&mut self, node: usize, event: &Event, hosts: [&SimHost; 2]) -> Result<(), Violation> {
        match event {
            Event::Completion(completion) => {
                let found = self.find(node, completion.qpn);
                let (index, side) = found.ok_or_else(|| format!("completion of no QP: {completion:?}"))?;
                match completion.queue {
                    Queue::Send => self.on_send(index, side, completion, hosts),
                    Queue::Recv => self.on_recv(index, side, completion, hosts),
                }
            }
            Event::Async { qpn, event } => {
                let found = self.find(node, *qpn);
                let (index, side) = found.ok_or_else(|| format!("event of no QP: {event:?}"))?;
                let fits = match event {
                    AsyncEvent::CommunicationEstablished => true,
                    AsyncEvent::AccessError | AsyncEvent::InvalidRequest => {
                        self.plan.connections[index].poisoned && side == 1
                    }
                    AsyncEvent::SqDrained | AsyncEvent::WqCatastrophic => false,
                };
                demand!(fits, "connection {index} side {side}: unexpected {event:?}");
                Ok(())
            }
        }
    }

    /// A node sent `frame`.
    pub fn on_frame(&self, node: usize, frame: &[u8]) -> Result<(), Violation> {
        let parsed =
            RoceFrame::parse(frame).map_err(|error| format!("node {node} sent a bad frame: {error}"))?;
        let (index, side) = self
            .find(1 - node, parsed.packet.bth.dest_qp)
            .ok_or_else(|| format!("frame for no QP: {:?}", parsed.packet.bth))?;
        let connection = &self.plan.connections[index];
        let longest = connection.mtu.bytes();
        demand!(parsed.packet.payload.len() <= longest, "a payload of more than {longest} bytes");
        demand!(parsed.packet.bth.mig_req, "MigReq is 0");
        let silent = connection.poisoned && side == 1 && self.seen[index][0].failed;
        let request = !parsed.packet.bth.opcode.is_response();
        demand!(!(silent && request), "connection {index}: a request after the QP failed");
        Ok(())
    }

    /// Whether every request has completed that is going to.
    pub fn is_finished(&self) -> bool {
        self.plan.connections.iter().zip(&self.seen).all(|(connection, seen)| {
            (0..2).all(|side| {
                seen[side].sends == connection.sides[side].ops.len()
                    && seen[side].recvs == expected_recvs(connection, side)
            })
        })
    }

    /// What is missing, for the report of a run that does not end.
    pub fn progress(&self) -> String {
        let parts = self.plan.connections.iter().zip(&self.seen).flat_map(|(connection, seen)| {
            (0..2).map(move |side| {
                format!(
                    "connection {} side {side}: {}/{} sends, {}/{} receives",
                    connection.index,
                    seen[side].sends,
                    connection.sides[side].ops.len(),
                    seen[side].recvs,
                    expected_recvs(connection, side)
                )
            })
        });
        parts.collect::<Vec<_>>().join("; ")
    }

    /// The run is over: all memory must be as predicted.
    pub fn at_end(&self, hosts: [&SimHost; 2]) -> Result<(), Violation> {
        demand!(self.is_finished(), "not finished: {}", self.progress());
        for (index, connection) in self.plan.connections.iter().enumerate() {
            for side in 0..2 {
                let host = hosts[connection.sides[side].node];
                let image = &self.images[index][side];
                let mut target = region(host, connection, TARGET).to_vec();
                for area in &image.spoilt {
                    target[area.offset..area.offset + area.len].fill(0);
                }
                let zeros = vec![0; PRIVATE_BYTES];
                for (name, found, expected) in [
                    (SOURCE, region(host, connection, SOURCE), &connection.sides[side].source),
                    (TARGET, target.as_slice(), &image.target),
                    (HOT, region(host, connection, HOT), &image.hot),
                    (WORDS, region(host, connection, WORDS), &image.words),
                    (PRIVATE, region(host, connection, PRIVATE), &zeros),
                ] {
                    if let Some(at) = (0..expected.len()).find(|&at| found[at] != expected[at]) {
                        let (found, expected) = (found[at], expected[at]);
                        return Err(format!(
                            "connection {index} side {side}: byte {at:#x} of region {name} is {found:#x}, not {expected:#x}"
                        ));
                    }
                }
            }
        }
        Ok(())
    }

    fn on_send(
        &mut self,
        index: usize,
        side: usize,
        completion: &Completion,
        hosts: [&SimHost; 2],
    ) -> Result<(), Violation> {
        let connection = &self.plan.connections[index];
        let seen = &mut self.seen[index][side];
        let nth = seen.sends;
        let op = connection.sides[side].ops.get(nth);
        let op = op.filter(|op| op.request.wr_id == completion.wr_id);
        let op = op.ok_or_else(|| format!("request {nth} should complete, not {completion:?}"))?;
        seen.sends += 1;
        let fate = match completion.result {
            Ok(Success::Send(done)) => {
                demand!(!seen.failed && op.fails.is_empty(), "{completion:?} succeeded, with {:?}", op.fails);
                let remote_qpn = connection.sides[1 - side].qpn;
                let SendDone { op: done_op, byte_len, remote_qpn: done_qpn, .. } = done;
                demand!(
                    done_op == op.request.op && byte_len == op.len && done_qpn == remote_qpn,
                    "{completion:?} of {op:?}"
                );
                if let Some(bytes) = self.returned(index, side, nth, op) {
                    self.images[index][side].put(&op.to, &bytes);
                }
                return self.check_bytes(index, side, nth, op, hosts);
            }
            Ok(Success::Recv(_)) => return Err(format!("a receive in the send queue: {completion:?}")),
            Err(status) => status,
        };
        if matches!(op.request.op, SendOp::Read { .. }) {
            self.images[index][side].spoilt.extend(&op.to);
        }
        let seen = &mut self.seen[index][side];
        if seen.failed {
            demand!(fate == Status::Flushed, "{completion:?} after a failure");
            return Ok(());
        }
        seen.failed = true;
        // The responder that refused a request is silent, also about earlier ones whose acknowledges were lost.
        let silenced = connection.poisoned && fate == Status::RetryExceeded;
        let legal = if op.fails.is_empty() { silenced } else { op.fails.contains(&fate) };
        demand!(legal, "request {nth} of connection {index} side {side}: {fate:?}, expected {:?}", op.fails);
        Ok(())
    }

    fn on_recv(
        &mut self,
        index: usize,
        side: usize,
        completion: &Completion,
        hosts: [&SimHost; 2],
    ) -> Result<(), Violation> {
        let connection = &self.plan.connections[index];
        let nth = self.seen[index][side].recvs;
        self.seen[index][side].recvs += 1;
        demand!(
            completion.wr_id == nth as u64,
            "receive {nth} of connection {index} side {side} should complete, not {completion:?}"
        );
        let ops = &connection.sides[1 - side].ops;
        let (at, op) = ops
            .iter()
            .enumerate()
            .filter(|(_, op)| op.recv.is_some())
            .nth(nth)
            .ok_or_else(|| format!("no request for {completion:?}"))?;
        let poison = ops.iter().position(|op| !op.fails.is_empty());
        match completion.result {
            Ok(Success::Recv(done)) => {
                demand!(poison.is_none_or(|poison| at < poison), "{completion:?} after the failing request");
                let RecvDone { opcode, byte_len, imm, solicited, remote_qpn, .. } = done;
                let (kind, op_imm) = match op.request.op {
                    SendOp::Send { imm } => (Kind::Send, imm),
                    SendOp::Write { imm, .. } => (Kind::Write, imm),
                    _ => return Err(format!("{op:?} consumed a receive")),
                };
                demand!(
                    opcode.operation.kind() == kind
                        && opcode.operation.position().ends()
                        && (byte_len, imm, solicited) == (op.len, op_imm, op.request.solicited)
                        && remote_qpn == connection.sides[1 - side].qpn,
                    "{completion:?} of {op:?}"
                );
                self.check_bytes(index, 1 - side, at, op, hosts)
            }
            Ok(Success::Send(_)) => Err(format!("a send in the receive queue: {completion:?}")),
            Err(status) => {
                let expected = if Some(at) == poison {
                    op.recv.as_ref().and_then(|recv| recv.fails)
                } else {
                    poison.filter(|&poison| at > poison).map(|_| Status::Flushed)
                };
                demand!(Some(status) == expected, "receive {nth}: {status:?}, expected {expected:?}");
                Ok(())
            }
        }
    }

    /// The bytes of a request of `side` that succeeded are where they belong.
    fn check_bytes(
        &self,
        index: usize,
        side: usize,
        nth: usize,
        op: &Op,
        hosts: [&SimHost; 2],
    ) -> Result<(), Violation> {
        let connection = &self.plan.connections[index];
        let (expected, to) = match self.returned(index, side, nth, op) {
            Some(bytes) => (bytes, side),
            None => (source_bytes(connection, side, &op.from), 1 - side),
        };
        if op.to.iter().any(|area| area.region == HOT) {
            // Later requests may have written there already; the end will tell.
            return Ok(());
        }
        let host = hosts[connection.sides[to].node];
        let found: Vec<u8> = op
            .to
            .iter()
            .flat_map(|area| &region(host, connection, area.region)[area.offset..area.offset + area.len])
            .copied()
            .take(expected.len())
            .collect();
        demand!(found == expected, "request {nth} of connection {index} side {side}: wrong bytes, {op:?}");
        Ok(())
    }

    /// What a READ or atomic brings back.
    fn returned(&self, index: usize, side: usize, nth: usize, op: &Op) -> Option<Vec<u8>> {
        match op.request.op {
            SendOp::Read { .. } => Some(source_bytes(&self.plan.connections[index], 1 - side, &op.from)),
            SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } => {
                Some(self.originals[index][side][nth].to_le_bytes().to_vec())
            }
            _ => None,
        }
    }

    fn find(&self, node: usize, qpn: protocol::ids::Qpn) -> Option<(usize, usize)> {
        let side = |connection: &Connection| {
            connection.sides.iter().position(|side| side.node == node && side.qpn == qpn)
        };
        self.plan.connections.iter().enumerate().find_map(|(index, c)| Some((index, side(c)?)))
    }
}

impl Image {
    fn put(&mut self, to: &[Area], bytes: &[u8]) {
        let mut bytes = bytes;
        for area in to {
            let region = if area.region == HOT { &mut self.hot } else { &mut self.target };
            let (here, rest) = bytes.split_at(area.len.min(bytes.len()));
            region[area.offset..area.offset + here.len()].copy_from_slice(here);
            bytes = rest;
        }
        assert!(bytes.is_empty(), "the plan gives every message room");
    }
}

/// Receives of `side` that complete: all, but for a QP that never hears of its peer's failure.
fn expected_recvs(connection: &Connection, side: usize) -> usize {
    let ops = &connection.sides[1 - side].ops;
    let local =
        |op: &Op| op.fails.iter().any(|fate| matches!(fate, Status::LocalProtection | Status::LocalLength));
    let end = ops.iter().position(local).unwrap_or(ops.len());
    ops[..end].iter().filter(|op| op.recv.is_some()).count()
}

fn source_bytes(connection: &Connection, side: usize, areas: &[Area]) -> Vec<u8> {
    let source = &connection.sides[side].source;
    areas.iter().flat_map(|area| &source[area.offset..area.offset + area.len]).copied().collect()
}

fn region<'h>(host: &'h SimHost, connection: &Connection, region: u32) -> &'h [u8] {
    &host.regions[&connection.key(region)].bytes
}
