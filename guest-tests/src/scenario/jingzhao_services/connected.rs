//! UC messages, which are not retransmitted, and the conditions under which they are dropped. Section numbers and J-46
//! refer to the JingZhao interface.

use agent::wire::{
    Changes, Cqe, CreateQp, Data, Poll, PostRecv, Remote, SendOp, SendRequest, Service, Sge, Transition,
};
use anyhow::{Context as _, Result, bail, ensure};

use super::message::Buffers;
use super::{FIRST_IMM, Growth, SOON_MS};
use crate::report::Report;
use crate::scenario::codes::{state, syndrome};
use crate::scenario::connection::{Attributes, Connection, End};
use crate::scenario::pair::{Direction, Pair};

/// Operations and their printed names.
const OPS: [(&str, SendOp); 4] = [
    ("SEND", SendOp::Send),
    ("SEND_IMM", SendOp::SendImm),
    ("WRITE", SendOp::Write),
    ("WRITE_IMM", SendOp::WriteImm),
];
const CAPACITY: u32 = 1 << 20;
/// Maximum number of attempts to send a message. A busy host's sockets can lose packets.
const ATTEMPTS: u32 = 20;
/// How long the receiver's completion may take to follow the sender's.
const ARRIVAL_MS: u32 = 3_000;

pub(super) async fn run(pair: &mut Pair, report: &mut Report, hint: &str) -> Result<()> {
    for mtu in [256, 512, 1024, 2048, 4096] {
        for (name, op) in OPS {
            let name = format!("UC {name} of 0 bytes to 1 MiB, path MTU {mtu}");
            report.case(&name, hint, sizes(pair, op, mtu, Direction::AToB)).await?;
        }
    }
    for (name, op) in OPS {
        let name = format!("UC {name}, reverse");
        report.case(&name, hint, sizes(pair, op, 1024, Direction::BToA)).await?;
    }
    report.case("UC: no receive request posted", hint, no_receive(pair)).await?;
    report.case("UC: receive request too small", hint, too_small(pair)).await?;
    report.case("UC: WRITE that is not allowed", hint, refused_write(pair)).await?;
    for op in [SendOp::Read, SendOp::FetchAdd { add: 1 }, SendOp::CmpSwap { compare: 0, swap: 1 }] {
        report.case(&format!("UC: {op:?} stops the send queue"), hint, unsupported(pair, op)).await?;
    }
    report.case("UC: an unreadable gather list stops the send queue", hint, bad_gather(pair)).await?;
    report.case("UC: a receive buffer that cannot be written is an error", hint, bad_scatter(pair)).await
}

/// A UC connection under test.
pub(super) struct Link {
    connection: Connection,
    direction: Direction,
    mtu: u32,
    pub(super) buffers: Buffers,
}

impl Link {
    pub(super) async fn create(pair: &mut Pair, mtu: u16, direction: Direction) -> Result<Self> {
        let shape = CreateQp { service: Service::Uc, high_bits: 3, ..CreateQp::default() };
        let attributes = Attributes { mtu, ..Attributes::default() };
        let connection = Connection::create_as(pair, &attributes, [shape; 2]).await?;
        let buffers = Buffers::create(pair, direction, CAPACITY.into()).await?;
        Ok(Self { connection, direction, mtu: mtu.into(), buffers })
    }

    pub(super) fn ends(&self) -> (End, End) {
        let (sender, receiver) = self.connection.towards(self.direction);
        (*sender, *receiver)
    }

    /// Returns the request that sends a message from the buffers.
    pub(super) fn request(&self, op: SendOp, len: u32) -> SendRequest {
        let remote = matches!(op, SendOp::Write | SendOp::WriteImm).then(|| self.buffers.remote());
        SendRequest { op, data: self.buffers.gather(len), remote, imm: FIRST_IMM, ..SendRequest::default() }
    }

    pub(super) async fn receive(&self, pair: &mut Pair, list: Vec<Sge>) -> Result<()> {
        let (_, receiver) = pair.towards(self.direction);
        receiver.call(PostRecv { qp: self.ends().1.qp.id, requests: vec![list] }).await.map(drop)
    }

    /// Sends requests and waits for them to complete. UC has no acknowledgements, so all must succeed even if packets
    /// are lost.
    pub(super) async fn send(&self, pair: &mut Pair, requests: Vec<SendRequest>) -> Result<Vec<Cqe>> {
        let (sender, _) = pair.towards(self.direction);
        let at_sender = self.ends().0;
        let expected = vec![None; requests.len()];
        at_sender.post(sender, requests).await?;
        at_sender.expect_completions(sender, &expected, SOON_MS).await
    }

    /// Returns the next completion at the receiver, if one arrives.
    pub(super) async fn arrival(&self, pair: &mut Pair, timeout_ms: u32) -> Result<Option<Cqe>> {
        let (_, receiver) = pair.towards(self.direction);
        let poll = Poll { cq: self.ends().1.cq.id, count: 1, timeout_ms };
        Ok(receiver.call(poll).await?.cqes.pop())
    }

    /// Sends one message repeatedly until it arrives.
    ///
    /// # Errors
    /// Fails if the message does not arrive although no packet was lost, or if every one of the [`ATTEMPTS`] attempts
    /// loses packets.
    async fn deliver(&mut self, pair: &mut Pair, op: SendOp, len: u32) -> Result<()> {
        let is_send = matches!(op, SendOp::Send | SendOp::SendImm);
        // A WRITE does not generate a completion at the receiver. It is followed by an empty message, whose completion
        // shows that the WRITE has been processed.
        let marker = (op == SendOp::Write).then(|| self.request(SendOp::SendImm, 0));
        for _ in 0..ATTEMPTS {
            self.buffers.prepare(pair, len).await?;
            let list = if is_send { self.buffers.scatter(len) } else { Vec::new() };
            // If the message is dropped, the next message uses this receive request.
            self.receive(pair, list).await?;
            let before = self.sequence_gaps(pair).await?;
            let mut requests = vec![self.request(op, len)];
            requests.extend(marker.clone());
            let sent = self.send(pair, requests).await?;
            self.check_sent(&sent[0], op, len)?;
            if let Some(arrived) = self.arrival(pair, ARRIVAL_MS).await? {
                let seen = if marker.is_some() { (SendOp::SendImm, 0) } else { (op, len) };
                self.check_arrived(&arrived, seen)?;
                if marker.is_none() || self.buffers.first_difference(pair, 0, len).await?.is_none() {
                    return self.buffers.expect_arrived(pair, 0, len).await;
                }
            }
            if !self.has_lost_packets(pair, before).await? {
                bail!("a message of {len} bytes did not arrive, although all its packets did");
            }
            self.renew(pair).await?;
        }
        bail!("{ATTEMPTS} attempts in a row to send {len} bytes lost packets")
    }

    /// Checks the fields of a send CQE (section 7.1).
    fn check_sent(&self, cqe: &Cqe, op: SendOp, len: u32) -> Result<()> {
        let (at_sender, at_receiver) = self.ends();
        let opcode = match op {
            SendOp::Write => 0x08,
            SendOp::WriteImm => 0x09,
            SendOp::SendImm => 0x0b,
            _ => 0x0a,
        };
        let seen = (cqe.opcode, cqe.byte_count, cqe.qpn, cqe.remote_qpn, cqe.imm);
        let expected = (opcode, len, at_sender.qp.qpn, at_receiver.qp.qpn, [0; 4]);
        ensure!(seen == expected && cqe.is_send, "{cqe:?}");
        Ok(())
    }

    /// Checks the fields of a receive CQE (section 7.1). The opcode in the CQE is that of the message's last packet.
    fn check_arrived(&self, cqe: &Cqe, (op, len): (SendOp, u32)) -> Result<()> {
        const UC: u8 = 0x20;
        let (at_sender, at_receiver) = self.ends();
        let one = len <= self.mtu;
        let (opcode, imm) = match (op, one) {
            (SendOp::Send, true) => (0x04, [0; 4]),
            (SendOp::Send, false) => (0x02, [0; 4]),
            (SendOp::SendImm, true) => (0x05, FIRST_IMM),
            (SendOp::SendImm, false) => (0x03, FIRST_IMM),
            (_, true) => (0x0b, FIRST_IMM),
            (_, false) => (0x09, FIRST_IMM),
        };
        let lid = if self.direction == Direction::AToB { 1 } else { 2 };
        let seen =
            (cqe.syndrome, cqe.opcode, cqe.byte_count, cqe.qpn, cqe.remote_qpn, cqe.remote_lid, cqe.imm);
        let expected = (None, UC | opcode, len, at_receiver.qp.qpn, at_sender.qp.qpn, lid, imm);
        ensure!(seen == expected && !cqe.is_send, "{cqe:?}\nexpected {expected:x?}");
        Ok(())
    }

    async fn sequence_gaps(&self, pair: &Pair) -> Result<u64> {
        let receiver = if self.direction == Direction::AToB { &pair.b } else { &pair.a };
        receiver.daemon.counter("/engine/drops/out_of_sequence").await
    }

    /// Returns whether packets were lost in the middle or at the end of a message.
    async fn has_lost_packets(&self, pair: &mut Pair, gaps_before: u64) -> Result<bool> {
        let (at_sender, at_receiver) = self.ends();
        let (sender, receiver) = pair.towards(self.direction);
        let sent = at_sender.query(sender).await?.next_send_psn;
        let expected = at_receiver.query(receiver).await?.expected_psn;
        Ok(sent != expected || self.sequence_gaps(pair).await? != gaps_before)
    }

    /// Resets both queue pairs, which discards all posted requests, and connects them again.
    async fn renew(&self, pair: &mut Pair) -> Result<()> {
        for (vm, end) in [(&mut pair.a.vm, Direction::AToB), (&mut pair.b.vm, Direction::BToA)] {
            self.connection.towards(end).0.to(vm, Transition::ToReset).await?;
        }
        let mtu = u16::try_from(self.mtu)?;
        self.connection.wire(pair, &Attributes { mtu, ..Attributes::default() }).await
    }

    pub(super) async fn destroy(self, pair: &mut Pair) -> Result<()> {
        self.buffers.destroy(pair).await?;
        self.connection.destroy(pair).await
    }
}

async fn sizes(pair: &mut Pair, op: SendOp, mtu: u16, direction: Direction) -> Result<()> {
    let mut link = Link::create(pair, mtu, direction).await?;
    let mtu = u32::from(mtu);
    for len in [0, 1, 17, mtu - 1, mtu, mtu + 1, 3 * mtu, 65_537, CAPACITY] {
        link.deliver(pair, op, len).await.with_context(|| format!("{len} bytes"))?;
    }
    link.destroy(pair).await
}

/// Checks that a message is dropped if no receive request is posted, and that the next message arrives (section 11.3).
async fn no_receive(pair: &mut Pair) -> Result<()> {
    let mut link = Link::create(pair, 1024, Direction::AToB).await?;
    let dropped = Growth::of(&pair.b, "/engine/drops/no_receive").await?;
    link.send(pair, vec![link.request(SendOp::Send, 1000)]).await?;
    dropped.await_growth(&pair.b, 1).await?;
    link.deliver(pair, SendOp::Send, 5000).await?;
    link.destroy(pair).await
}

/// Checks that a receive request that is too small for a message does not complete and is used for the next message
/// instead (J-46).
async fn too_small(pair: &mut Pair) -> Result<()> {
    let mut link = Link::create(pair, 1024, Direction::AToB).await?;
    link.buffers.prepare(pair, 5000).await?;
    link.receive(pair, link.buffers.scatter(1000)).await?;
    let dropped = Growth::of(&pair.b, "/engine/drops/too_long").await?;
    link.send(pair, vec![link.request(SendOp::Send, 1001)]).await?;
    dropped.await_growth(&pair.b, 1).await?;
    link.send(pair, vec![link.request(SendOp::SendImm, 1000)]).await?;
    let arrived =
        link.arrival(pair, SOON_MS).await?.context("a message of the maximum size did not arrive")?;
    link.check_arrived(&arrived, (SendOp::SendImm, 1000))?;
    link.buffers.expect_arrived(pair, 0, 1000).await?;
    link.ends().1.expect_state(&mut pair.b.vm, state::RTS).await?;
    link.destroy(pair).await
}

/// Checks that a rejected WRITE is dropped without an error (section 9.5).
async fn refused_write(pair: &mut Pair) -> Result<()> {
    let mut link = Link::create(pair, 1024, Direction::AToB).await?;
    link.buffers.prepare(pair, 5000).await?;
    let wrong_key = Remote { rkey: link.buffers.sink.key ^ 0x8000_0101, ..link.buffers.remote() };
    let beyond = link.buffers.sink.remote(link.buffers.sink.len - 4999);
    for remote in [wrong_key, beyond] {
        let dropped = Growth::of(&pair.b, "/engine/drops/no_access").await?;
        let write = SendRequest { remote: Some(remote), ..link.request(SendOp::Write, 5000) };
        link.send(pair, vec![write]).await?;
        dropped.await_growth(&pair.b, 1).await?;
        link.buffers.expect_nothing(pair, 5000).await?;
    }
    link.ends().1.expect_state(&mut pair.b.vm, state::RTS).await?;
    link.deliver(pair, SendOp::WriteImm, 5000).await?;
    link.destroy(pair).await
}

/// Checks that the request `bad` moves the QP to SQE, that the receive queue keeps working, and that software can
/// return the QP to RTS (sections 6.7 and 10.5).
async fn stopped(pair: &mut Pair, link: &mut Link, bad: SendRequest, cause: u8) -> Result<()> {
    let (at_a, at_b) = link.ends();
    link.buffers.prepare(pair, 100).await?;
    let good = link.request(SendOp::Send, 100);
    at_a.post(&mut pair.a.vm, vec![bad, good.clone()]).await?;
    let expected = [Some(cause), Some(syndrome::FLUSHED)];
    at_a.expect_completions(&mut pair.a.vm, &expected, SOON_MS).await?;
    at_a.expect_state(&mut pair.a.vm, state::SQE).await?;
    at_a.post(&mut pair.a.vm, vec![good]).await?;
    at_a.expect_completions(&mut pair.a.vm, &[Some(syndrome::FLUSHED)], SOON_MS).await?;

    pair.a.vm.call(PostRecv { qp: at_a.qp.id, requests: vec![Vec::new()] }).await?;
    at_b.post(&mut pair.b.vm, vec![SendRequest::default()]).await?;
    at_a.expect_completions(&mut pair.a.vm, &[None], SOON_MS).await?;
    at_b.expect_completions(&mut pair.b.vm, &[None], SOON_MS).await?;

    at_a.to(&mut pair.a.vm, Transition::SqeToRts(Changes::default())).await?;
    at_a.expect_state(&mut pair.a.vm, state::RTS).await?;
    link.deliver(pair, SendOp::Send, 5000).await
}

async fn unsupported(pair: &mut Pair, op: SendOp) -> Result<()> {
    let mut link = Link::create(pair, 1024, Direction::AToB).await?;
    let remote = Some(link.buffers.remote());
    let bad = SendRequest { op, remote, ..link.request(SendOp::Send, 8) };
    stopped(pair, &mut link, bad, syndrome::LOCAL_QP_OPERATION).await?;
    link.destroy(pair).await
}

/// Checks that a request fails if its gather list extends beyond its region (section 9.5).
async fn bad_gather(pair: &mut Pair) -> Result<()> {
    let mut link = Link::create(pair, 1024, Direction::AToB).await?;
    let beyond = link.buffers.source.sge(link.buffers.source.len - 99, 100);
    let bad = SendRequest { data: Data::Sges(vec![beyond]), ..SendRequest::default() };
    stopped(pair, &mut link, bad, syndrome::LOCAL_PROTECTION).await?;
    link.destroy(pair).await
}

async fn bad_scatter(pair: &mut Pair) -> Result<()> {
    let mut link = Link::create(pair, 1024, Direction::AToB).await?;
    link.buffers.prepare(pair, 100).await?;
    let at_b = link.ends().1;
    let wrong = Sge { lkey: link.buffers.sink.key ^ 0x8000_0101, ..link.buffers.sink.sge(0, 100) };
    for list in [vec![wrong], Vec::new()] {
        link.receive(pair, list).await?;
    }
    link.send(pair, vec![link.request(SendOp::Send, 100)]).await?;
    let expected = [Some(syndrome::LOCAL_PROTECTION), Some(syndrome::FLUSHED)];
    at_b.expect_completions(&mut pair.b.vm, &expected, SOON_MS).await?;
    at_b.expect_state(&mut pair.b.vm, state::ERR).await?;
    link.buffers.expect_nothing(pair, 100).await?;
    link.destroy(pair).await
}
