//! UD datagrams: addressing, payload, and the conditions under which they are dropped. Section numbers and J-46 refer
//! to the JingZhao interface.

use agent::wire::{
    Changes, Cqe, CreateCq, CreateQp, Datagram, Hex, Path, Peek, Poll, PostRecv, SendOp, SendRequest,
    Service, Transition,
};
use anyhow::{Context as _, Result, ensure};

use super::message::Buffers;
use super::{FIRST_IMM, Growth, SOON_MS};
use crate::report::Report;
use crate::scenario::codes::{state, syndrome};
use crate::scenario::connection::{Attributes, Connection, End};
use crate::scenario::pair::{Direction, Pair};

const QKEY: u32 = 0x1111_2222;
/// Payload of a full packet, in bytes.
const CAPACITY: u32 = 4096;
/// Length of the network header that precedes a received datagram, in bytes.
const GRH: u32 = 40;
/// How long to wait for a datagram that must not arrive.
const NEVER_MS: u32 = 200;

pub(super) async fn run(pair: &mut Pair, report: &mut Report, hint: &str) -> Result<()> {
    for (header, direction) in
        [("with the 40-byte GRH", Direction::AToB), ("without the GRH", Direction::BToA)]
    {
        for (name, op) in [("SEND", SendOp::Send), ("SEND_IMM", SendOp::SendImm)] {
            let name = format!("UD {name} of 0 to 4096 bytes {header}");
            report.case(&name, hint, sizes(pair, op, direction)).await?;
        }
    }
    report.case("UD: peer addressed by LID, MAC and IPv4 address", hint, addresses(pair)).await?;
    report.case("UD: one QP, several destinations and sources", hint, several(pair)).await?;
    report.case("UD: wrong Q_Key is counted and dropped", hint, wrong_qkey(pair)).await?;
    report
        .case("UD: the Q_Key of the QP is used for 0 and for controlled Q_Keys", hint, own_qkey(pair))
        .await?;
    report.case("UD: Q_Key changed in RTS and in SQD", hint, changed_qkey(pair)).await?;
    report.case("UD: unknown destination", hint, unknown_destination(pair)).await?;
    report.case("UD: receive request missing or too small", hint, no_room(pair)).await?;
    report.case("UD: message longer than the path MTU", hint, oversize(pair)).await?;
    report.case("UD: anything but SEND stops the send queue", hint, unsupported(pair)).await
}

/// Two UD queue pairs with the same Q_Key, and buffers for one direction.
struct Link {
    connection: Connection,
    direction: Direction,
    buffers: Buffers,
}

impl Link {
    async fn create(pair: &mut Pair, direction: Direction) -> Result<Self> {
        let connection = Connection::create_as(pair, &attributes(), [shape(); 2]).await?;
        let buffers = Buffers::create(pair, direction, u64::from(CAPACITY + GRH)).await?;
        Ok(Self { connection, direction, buffers })
    }

    fn ends(&self) -> (End, End) {
        let (sender, receiver) = self.connection.towards(self.direction);
        (*sender, *receiver)
    }

    /// Returns the number of bytes that the receiver's device writes before the payload.
    fn header(&self) -> u32 {
        if self.direction == Direction::AToB { GRH } else { 0 }
    }

    fn request(&self, op: SendOp, len: u32, to: Datagram) -> SendRequest {
        SendRequest {
            op,
            data: self.buffers.gather(len),
            imm: FIRST_IMM,
            datagram: Some(to),
            ..SendRequest::default()
        }
    }

    /// Returns the address of the receiving queue pair. Its path is empty, which selects the sender's default peer.
    fn peer(&self) -> Datagram {
        Datagram { qpn: self.ends().1.qp.qpn, qkey: QKEY, path: Path::default() }
    }

    async fn receive(&self, pair: &mut Pair, room: u32) -> Result<()> {
        let (_, receiver) = pair.towards(self.direction);
        let list = self.buffers.scatter(room);
        receiver.call(PostRecv { qp: self.ends().1.qp.id, requests: vec![list] }).await.map(drop)
    }

    /// Sends a datagram. The send request succeeds even if the datagram is dropped.
    async fn send(&self, pair: &mut Pair, op: SendOp, len: u32, to: Datagram) -> Result<Cqe> {
        let (sender, _) = pair.towards(self.direction);
        let at_sender = self.ends().0;
        at_sender.post(sender, vec![self.request(op, len, to)]).await?;
        let mut cqes = at_sender.expect_completions(sender, &[None], SOON_MS).await?;
        cqes.pop().context("a completion is missing")
    }

    /// Sends a datagram and checks that it arrives intact.
    async fn deliver(&mut self, pair: &mut Pair, op: SendOp, len: u32, to: Datagram) -> Result<()> {
        let header = self.header();
        self.buffers.prepare(pair, len + header).await?;
        self.receive(pair, len + header).await?;
        let sent = self.send(pair, op, len, to).await?;
        let (at_sender, at_receiver) = self.ends();
        let opcode = if op == SendOp::SendImm { 0x0b } else { 0x0a };
        // The CQE contains the destination given in the request (section 7.1).
        let lid = to.path.dlid.unwrap_or(0);
        let seen = (sent.opcode, sent.byte_count, sent.qpn, sent.remote_qpn);
        let expected = (opcode, len, at_sender.qp.qpn, to.qpn);
        ensure!(
            seen == expected && sent.is_send && sent.remote_lid == lid,
            "{sent:?}\nexpected {expected:x?}"
        );
        self.expect_arrival(pair, op, len, at_receiver).await
    }

    /// Checks that the next completion of `end` is for the most recently prepared datagram.
    async fn expect_arrival(&self, pair: &mut Pair, op: SendOp, len: u32, end: End) -> Result<()> {
        const UD: u8 = 0x60;
        let (_, receiver) = pair.towards(self.direction);
        let cqe = end.expect_completions(receiver, &[None], SOON_MS).await?;
        let cqe = cqe.first().context("a completion is missing")?;
        let (opcode, imm) = if op == SendOp::SendImm { (0x05, FIRST_IMM) } else { (0x04, [0; 4]) };
        let lid = if self.direction == Direction::AToB { 1 } else { 2 };
        let seen = (cqe.opcode, cqe.byte_count, cqe.qpn, cqe.remote_qpn, cqe.remote_lid, cqe.imm);
        let source = self.ends().0.qp.qpn;
        let expected = (UD | opcode, self.header() + len, end.qp.qpn, source, lid, imm);
        ensure!(seen == expected && !cqe.is_send, "{cqe:?}\nexpected {expected:x?}");
        self.buffers.expect_arrived(pair, self.header().into(), len).await?;
        if self.header() > 0 { self.expect_header(pair, len).await } else { Ok(()) }
    }

    /// Checks the header area of a datagram: 20 undefined bytes, then the IPv4 header.
    async fn expect_header(&self, pair: &mut Pair, len: u32) -> Result<()> {
        let (_, receiver) = pair.towards(self.direction);
        let (mr, off) = (self.buffers.sink.id, self.buffers.remote().va - self.buffers.sink.addr);
        let Hex(area) = receiver.call(Peek { mr, off, len: GRH }).await?;
        let header = area.get(20..40).context("the reply is too short")?;
        // The IPv4 header, UDP header, BTH, DETH and immediate data precede the payload; padding and ICRC follow it.
        let longest = 20 + 8 + 12 + 8 + 4 + len.next_multiple_of(4) + 4;
        let total = u32::from(u16::from_be_bytes([header[2], header[3]]));
        let fits = (longest - 4..=longest).contains(&total);
        let seen = (header[0], header[9], &header[12..16], &header[16..20]);
        let expected = (0x45, 17, &[10, 77, 0, 1][..], &[10, 77, 0, 2][..]);
        ensure!(seen == expected && fits, "header {header:02x?} of a datagram of {len} bytes");
        let sum: u32 = header.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
        ensure!((sum & 0xffff) + (sum >> 16) == 0xffff, "checksum of header {header:02x?}");
        Ok(())
    }

    async fn expect_no_arrival(&self, pair: &mut Pair) -> Result<()> {
        let (_, receiver) = pair.towards(self.direction);
        let poll = Poll { cq: self.ends().1.cq.id, count: 1, timeout_ms: NEVER_MS };
        let cqes = receiver.call(poll).await?.cqes;
        ensure!(cqes.is_empty(), "{cqes:?}");
        Ok(())
    }

    async fn destroy(self, pair: &mut Pair) -> Result<()> {
        self.buffers.destroy(pair).await?;
        self.connection.destroy(pair).await
    }
}

fn shape() -> CreateQp {
    CreateQp { service: Service::Ud, high_bits: 6, ..CreateQp::default() }
}

fn attributes() -> Attributes {
    Attributes { qkey: QKEY, ..Attributes::default() }
}

async fn sizes(pair: &mut Pair, op: SendOp, direction: Direction) -> Result<()> {
    let mut link = Link::create(pair, direction).await?;
    for len in [0, 1, 2, 3, 17, 256, 1023, 4095, CAPACITY] {
        link.deliver(pair, op, len, link.peer()).await.with_context(|| format!("{len} bytes"))?;
    }
    link.destroy(pair).await
}

/// Checks each form of destination address (sections 6.5 and 11.4).
async fn addresses(pair: &mut Pair) -> Result<()> {
    for (direction, peer) in [(Direction::AToB, 2), (Direction::BToA, 1)] {
        let mut link = Link::create(pair, direction).await?;
        for path in [
            Path { dlid: Some(peer.into()), ..Path::default() },
            Path { dmac: Some([2, 0, 0, 0, 0, peer]), ..Path::default() },
            Path { dip: Some([10, 77, 0, peer].into()), ..Path::default() },
        ] {
            // In a send CQE, the last two bytes of a MAC address take the place of the LID.
            let lid = path.dlid.or(path.dmac.map(|mac| u16::from_be_bytes([mac[4], mac[5]])));
            let to = Datagram { path, ..link.peer() };
            link.buffers.prepare(pair, 100 + link.header()).await?;
            link.receive(pair, 100 + link.header()).await?;
            let sent = link.send(pair, SendOp::Send, 100, to).await?;
            ensure!(sent.remote_lid == lid.unwrap_or(0), "{sent:?}");
            link.expect_arrival(pair, SendOp::Send, 100, link.ends().1).await?;
        }
        link.destroy(pair).await?;
    }
    Ok(())
}

/// Checks that one UD queue pair can send to several destinations. Each request contains its destination's address.
async fn several(pair: &mut Pair) -> Result<()> {
    let mut link = Link::create(pair, Direction::AToB).await?;
    let mut others = Vec::new();
    for _ in 0..2 {
        let end = End::create(&mut pair.b.vm, shape(), CreateCq::default()).await?;
        end.ready_to_receive(&mut pair.b.vm, &link.ends().0, &attributes(), 1).await?;
        others.push(end);
    }
    for end in others.iter().chain([&link.ends().1]).cycle().take(7) {
        link.buffers.prepare(pair, 500 + GRH).await?;
        let list = link.buffers.scatter(500 + GRH);
        pair.b.vm.call(PostRecv { qp: end.qp.id, requests: vec![list] }).await?;
        let to = Datagram { qpn: end.qp.qpn, ..link.peer() };
        link.send(pair, SendOp::SendImm, 500, to).await?;
        link.expect_arrival(pair, SendOp::SendImm, 500, *end).await?;
    }
    // A QP can also send to another QP of the same HCA, using the HCA's own LID.
    let own = Path { dlid: Some(2), ..Path::default() };
    let [first, second] = others[..] else { anyhow::bail!("expected two queue pairs") };
    first.ready_to_send(&mut pair.b.vm, &attributes(), 1).await?;
    pair.b.vm.call(PostRecv { qp: second.qp.id, requests: vec![link.buffers.scatter(GRH)] }).await?;
    let to = Datagram { qpn: second.qp.qpn, qkey: QKEY, path: own };
    let empty = SendRequest { datagram: Some(to), ..SendRequest::default() };
    first.post(&mut pair.b.vm, vec![empty]).await?;
    first.expect_completions(&mut pair.b.vm, &[None], SOON_MS).await?;
    let arrived = second.expect_completions(&mut pair.b.vm, &[None], SOON_MS).await?;
    let seen: Vec<_> = arrived.iter().map(|cqe| (cqe.remote_qpn, cqe.remote_lid, cqe.byte_count)).collect();
    ensure!(seen == [(first.qp.qpn, 2, GRH)], "{arrived:?}");
    for end in others {
        end.destroy(&mut pair.b.vm).await?;
    }
    link.destroy(pair).await
}

/// Checks that a datagram with a wrong Q_Key neither causes an error at the sender nor consumes a receive request
/// (section 11.3).
async fn wrong_qkey(pair: &mut Pair) -> Result<()> {
    let link = Link::create(pair, Direction::AToB).await?;
    let mut link = link;
    link.buffers.prepare(pair, 100 + GRH).await?;
    link.receive(pair, 100 + GRH).await?;
    let dropped = Growth::of(&pair.b, "/engine/drops/wrong_qkey").await?;
    for (count, qkey) in (1..).zip([QKEY ^ 1, QKEY ^ 1 << 30, 1]) {
        link.send(pair, SendOp::Send, 100, Datagram { qkey, ..link.peer() }).await?;
        dropped.await_growth(&pair.b, count).await?;
    }
    link.expect_no_arrival(pair).await?;
    link.buffers.expect_nothing(pair, 100 + GRH).await?;
    link.send(pair, SendOp::Send, 100, link.peer()).await?;
    link.expect_arrival(pair, SendOp::Send, 100, link.ends().1).await?;
    dropped.await_growth(&pair.b, 3).await?;
    link.destroy(pair).await
}

/// Checks that a request whose Q_Key is 0 or has its high bit set is sent with the sender's own Q_Key (section 11.1).
async fn own_qkey(pair: &mut Pair) -> Result<()> {
    let mut link = Link::create(pair, Direction::AToB).await?;
    for qkey in [0, 1 << 31, 0xffff_ffff] {
        link.deliver(pair, SendOp::Send, 64, Datagram { qkey, ..link.peer() }).await?;
    }
    link.destroy(pair).await
}

/// Checks that RTS2RTS, SQD2SQD and SQD2RTS can change the Q_Key (section 10.2).
async fn changed_qkey(pair: &mut Pair) -> Result<()> {
    let mut link = Link::create(pair, Direction::AToB).await?;
    let at_b = link.ends().1;
    let to = |qkey| Changes { qkey: Some(qkey), ..Changes::default() };
    let steps = [
        vec![Transition::RtsToRts(to(QKEY + 1))],
        vec![
            Transition::ToSqd { notify: false },
            Transition::SqdToSqd(to(QKEY + 2)),
            Transition::SqdToRts(Changes::default()),
        ],
        vec![Transition::ToSqd { notify: false }, Transition::SqdToRts(to(QKEY + 3))],
    ];
    for (old, transitions) in (QKEY..).zip(steps) {
        let dropped = Growth::of(&pair.b, "/engine/drops/wrong_qkey").await?;
        for transition in transitions {
            at_b.to(&mut pair.b.vm, transition).await?;
        }
        link.send(pair, SendOp::Send, 64, Datagram { qkey: old, ..link.peer() }).await?;
        dropped.await_growth(&pair.b, 1).await?;
        link.deliver(pair, SendOp::Send, 64, Datagram { qkey: old + 1, ..link.peer() }).await?;
    }
    link.destroy(pair).await
}

/// Checks the handling of four destinations: an unknown QP number, a QP of a different service, an unknown LID, and an
/// unreachable MAC address (sections 11.3 and 11.4).
async fn unknown_destination(pair: &mut Pair) -> Result<()> {
    let mut link = Link::create(pair, Direction::AToB).await?;
    let reliable = Connection::create(pair, &Attributes::default()).await?;
    let rc_qpn = reliable.towards(Direction::AToB).1.qp.qpn;
    for (place, qpn) in
        [("/engine/drops/unknown_qp", link.peer().qpn ^ 0x200), ("/engine/drops/wrong_service", rc_qpn)]
    {
        let dropped = Growth::of(&pair.b, place).await?;
        link.send(pair, SendOp::Send, 64, Datagram { qpn, ..link.peer() }).await?;
        dropped.await_growth(&pair.b, 1).await?;
    }
    let nobody = Path { dlid: Some(77), ..Path::default() };
    let elsewhere = Growth::of(&pair.b, "/port/dropped/other_mac").await?;
    link.send(pair, SendOp::Send, 64, Datagram { path: nobody, ..link.peer() }).await?;
    elsewhere.await_growth(&pair.b, 1).await?;
    link.deliver(pair, SendOp::Send, 64, link.peer()).await?;

    let nowhere = Path { dmac: Some([0x52, 0x54, 0, 1, 2, 3]), ..Path::default() };
    let bad = link.request(SendOp::Send, 64, Datagram { path: nowhere, ..link.peer() });
    stopped(pair, &mut link, bad, syndrome::LOCAL_QP_OPERATION).await?;
    reliable.destroy(pair).await?;
    link.destroy(pair).await
}

/// Checks that a datagram is dropped if no receive request is posted, or if the posted one is too small (section 11.3
/// and J-46).
async fn no_room(pair: &mut Pair) -> Result<()> {
    let mut link = Link::create(pair, Direction::AToB).await?;
    let dropped = Growth::of(&pair.b, "/engine/drops/no_receive").await?;
    link.send(pair, SendOp::Send, 64, link.peer()).await?;
    dropped.await_growth(&pair.b, 1).await?;

    link.buffers.prepare(pair, 200 + GRH).await?;
    link.receive(pair, 100 + GRH).await?;
    let dropped = Growth::of(&pair.b, "/engine/drops/too_long").await?;
    link.send(pair, SendOp::Send, 101, link.peer()).await?;
    dropped.await_growth(&pair.b, 1).await?;
    link.buffers.expect_nothing(pair, 200 + GRH).await?;
    link.send(pair, SendOp::Send, 100, link.peer()).await?;
    link.expect_arrival(pair, SendOp::Send, 100, link.ends().1).await?;
    link.destroy(pair).await
}

/// Checks that a message larger than the MTU fails (section 6.7).
async fn oversize(pair: &mut Pair) -> Result<()> {
    let mut link = Link::create(pair, Direction::AToB).await?;
    let bad = link.request(SendOp::Send, CAPACITY + 1, link.peer());
    stopped(pair, &mut link, bad, syndrome::LOCAL_LENGTH).await?;
    link.deliver(pair, SendOp::Send, CAPACITY, link.peer()).await?;
    link.destroy(pair).await
}

async fn unsupported(pair: &mut Pair) -> Result<()> {
    for op in [SendOp::Write, SendOp::Read, SendOp::FetchAdd { add: 1 }] {
        let mut link = Link::create(pair, Direction::AToB).await?;
        let remote = Some(link.buffers.remote());
        let bad = SendRequest { remote, ..link.request(op, 8, link.peer()) };
        stopped(pair, &mut link, bad, syndrome::LOCAL_QP_OPERATION)
            .await
            .with_context(|| format!("{op:?}"))?;
        link.destroy(pair).await?;
    }
    Ok(())
}

/// Checks that the request `bad` fails, that the next request is flushed, and that software can restart the queue
/// (section 10.5).
async fn stopped(pair: &mut Pair, link: &mut Link, bad: SendRequest, cause: u8) -> Result<()> {
    let at_a = link.ends().0;
    let good = link.request(SendOp::Send, 64, link.peer());
    at_a.post(&mut pair.a.vm, vec![bad, good]).await?;
    let expected = [Some(cause), Some(syndrome::FLUSHED)];
    at_a.expect_completions(&mut pair.a.vm, &expected, SOON_MS).await?;
    at_a.expect_state(&mut pair.a.vm, state::SQE).await?;
    at_a.to(&mut pair.a.vm, Transition::SqeToRts(Changes::default())).await?;
    link.deliver(pair, SendOp::Send, 64, link.peer()).await
}
