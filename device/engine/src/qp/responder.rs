//! The responder of a reliable connection: executes requests in PSN order, each once, and answers.
//!
//! | packet's PSN | what happens |
//! |---|---|
//! | expected | executed; ACK if asked for, RNR NAK without a receive request, fatal NAK if it is refused |
//! | ahead | dropped; one sequence NAK per gap |
//! | behind (duplicate) | SEND, WRITE: acknowledged with the newest PSN; READ: answered again; atomic: saved result |
//!
//! A fatal NAK takes the QP to ERR; the answers that were due before it, and the NAK, still go out.
//!
//! # Spec
//! IBTA volume 1, sections 9.7.1, 9.7.4 and 9.9.3; JingZhao interface, sections 9.5 and 11.3.

use std::collections::VecDeque;

use protocol::Psn;
use protocol::ids::{Lkey, Msn, Rkey, Va};
use protocol::roce::{AtomicEth, Bth, Ext, Imm, Kind, NakCode, Operation, Packet, Reth, Syndrome};

use super::reply::Replies;
use super::{Core, Ctx, Failure, Step};
use crate::gather::{capacity, scatter};
use crate::segment::packet_count;
use crate::{
    Access, AsyncEvent, AtomicOp, Fetch, Host, Queue, RecvDone, RecvRequest, Status, Success, limits,
};

/// Message whose first packet was accepted and whose last was not yet.
#[derive(Debug)]
enum Inbound {
    Send { recv: RecvRequest, received: u64 },
    Write { rkey: Rkey, va: Va, len: u32, received: u32 },
}

/// A request that is not executed.
#[derive(Debug)]
enum Refusal {
    NotReady,
    /// Too many requests are being answered: as if it had been lost.
    Overflow,
    /// The WQE it was meant for completes with `recv`, if one was taken.
    Fatal {
        nak: NakCode,
        event: Option<AsyncEvent>,
        recv: Option<(u64, Status)>,
    },
    Broken,
}

const INVALID: Refusal =
    Refusal::Fatal { nak: NakCode::InvalidRequest, event: Some(AsyncEvent::InvalidRequest), recv: None };
const NO_ACCESS: Refusal =
    Refusal::Fatal { nak: NakCode::RemoteAccess, event: Some(AsyncEvent::AccessError), recv: None };

#[derive(Debug)]
pub(crate) struct Responder {
    expected: Psn,
    msn: Msn,
    /// The peer was told what is missing, or to come back; silence until the expected packet comes.
    told: bool,
    inbound: Option<Inbound>,
    replies: Replies,
    /// Results of the newest atomics.
    atomics: VecDeque<(Psn, u64)>,
}

impl Responder {
    pub(crate) fn new(psn: Psn) -> Self {
        Self {
            expected: psn,
            msn: Msn::default(),
            told: false,
            inbound: None,
            replies: Replies::default(),
            atomics: VecDeque::new(),
        }
    }

    pub(crate) fn set_psn(&mut self, psn: Psn) {
        self.expected = psn;
    }

    pub(crate) fn recv_psn(&self) -> Psn {
        self.expected
    }

    pub(crate) fn msn(&self) -> Msn {
        self.msn
    }

    /// Slots for answers beyond those a QP keeps.
    pub(crate) fn held(&self) -> usize {
        self.replies.held()
    }

    pub(crate) fn wants_turn(&self) -> bool {
        !self.replies.is_empty()
    }

    pub(crate) fn transmit<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        out: &mut Vec<u8>,
    ) -> Result<Step, Failure> {
        self.replies.transmit(core, ctx, out)
    }

    /// Drops the answers that are due.
    pub(crate) fn silence(&mut self) {
        self.replies.clear();
    }

    /// Completes the receive request of a message under way as flushed. Those not taken yet are the caller's.
    pub(crate) fn flush<H: Host>(&mut self, core: &Core, ctx: &mut Ctx<'_, H>) {
        if let Some(Inbound::Send { recv, .. }) = self.inbound.take() {
            ctx.complete(core, Queue::Recv, recv.wr_id, Err(Status::Flushed));
        }
    }

    /// A packet with a request opcode arrived. Whether it was executed.
    pub(crate) fn handle_request<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        packet: &Packet<'_>,
    ) -> Result<bool, Failure> {
        self.replies.restrict(ctx.held.no_replies_left());
        match packet.bth.psn.since(self.expected) {
            0 => self.on_expected(core, ctx, packet),
            1.. => {
                ctx.stats.drops.out_of_sequence += 1;
                if !self.told {
                    self.told = true;
                    self.replies.refuse(self.expected, self.msn, Syndrome::Nak(NakCode::PsnSequence));
                }
                Ok(false)
            }
            _ => {
                self.on_duplicate(core, ctx, packet);
                Ok(false)
            }
        }
    }

    fn on_expected<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        packet: &Packet<'_>,
    ) -> Result<bool, Failure> {
        let bth = &packet.bth;
        match self.execute(core, ctx, packet) {
            Ok(psns) => {
                self.expected = self.expected.advance(psns);
                self.told = false;
                if bth.ack_req && matches!(bth.opcode.operation.kind(), Kind::Send | Kind::Write) {
                    self.replies.acknowledge(bth.psn, self.msn);
                }
                Ok(true)
            }
            Err(Refusal::NotReady) => {
                self.told = true;
                let timer = core.attrs.min_rnr_timer.code();
                self.replies.refuse(self.expected, self.msn, Syndrome::RnrNak { timer });
                Ok(false)
            }
            Err(Refusal::Overflow) => {
                ctx.stats.drops.reply_overflow += 1;
                Ok(false)
            }
            Err(Refusal::Fatal { nak, event, recv }) => {
                let taken = match self.inbound.take() {
                    Some(Inbound::Send { recv, .. }) => Some((recv.wr_id, Status::Flushed)),
                    _ => None,
                };
                if let Some((wr_id, status)) = recv.or(taken) {
                    ctx.complete(core, Queue::Recv, wr_id, Err(status));
                }
                if let Some(event) = event {
                    ctx.raise(core, event);
                }
                self.replies.refuse(self.expected, self.msn, Syndrome::Nak(nak));
                Err(Failure::Recv)
            }
            Err(Refusal::Broken) => {
                self.replies.refuse(self.expected, self.msn, Syndrome::Nak(NakCode::RemoteOperational));
                Err(Failure::Queue(Queue::Recv))
            }
        }
    }

    /// Executes the packet with the expected PSN; returns how many PSNs it stands for.
    fn execute<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        packet: &Packet<'_>,
    ) -> Result<u32, Refusal> {
        let operation = packet.bth.opcode.operation;
        check_order(self.inbound.as_ref(), operation)?;
        check_payload(operation, packet.payload.len(), core.mtu())?;
        match (operation.kind(), packet.ext) {
            (Kind::Send, _) => self.on_send(core, ctx, packet),
            (Kind::Write, _) => self.on_write(core, ctx, packet),
            (Kind::Read, Ext::Reth(reth)) => self.on_read(core, ctx, packet.bth.psn, &reth),
            (Kind::Atomic, Ext::Atomic(atomic)) => self.on_atomic(core, ctx, &packet.bth, &atomic),
            _ => Err(INVALID),
        }
    }

    fn on_send<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        packet: &Packet<'_>,
    ) -> Result<u32, Refusal> {
        let operation = packet.bth.opcode.operation;
        if let Operation::SendLastInvalidate | Operation::SendOnlyInvalidate = operation {
            return Err(INVALID);
        }
        if operation.position().begins() {
            let recv = take_recv(core, ctx)?;
            self.inbound = Some(Inbound::Send { recv, received: 0 });
        }
        let Some(Inbound::Send { recv, received }) = &mut self.inbound else { return Err(INVALID) };
        let (offset, wr_id) = (*received, recv.wr_id);
        let fatal = |nak, event, status| Refusal::Fatal { nak, event, recv: Some((wr_id, status)) };
        *received += packet.payload.len() as u64;
        if *received > capacity(&recv.sges).min(u64::from(limits::MAX_RDMA_LEN)) {
            let event = Some(AsyncEvent::InvalidRequest);
            return Err(fatal(NakCode::InvalidRequest, event, Status::LocalLength));
        }
        let offset = usize::try_from(offset).map_err(|_| INVALID)?;
        scatter(ctx.host, core.attrs.pd, &recv.sges, offset, packet.payload)
            .map_err(|_| fatal(NakCode::RemoteOperational, None, Status::LocalProtection))?;
        if operation.position().ends() {
            let byte_len = u32::try_from(*received).map_err(|_| INVALID)?;
            self.inbound = None;
            self.msn = self.msn.next();
            complete_recv(core, ctx, packet, wr_id, byte_len);
        }
        Ok(1)
    }

    fn on_write<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        packet: &Packet<'_>,
    ) -> Result<u32, Refusal> {
        let operation = packet.bth.opcode.operation;
        let (begins, ends) = (operation.position().begins(), operation.position().ends());
        let (rkey, va, len, before) = match (begins, packet.ext, &self.inbound) {
            (true, Ext::Reth(reth) | Ext::RethImm(reth, _), _) => (reth.rkey, reth.va, reth.dma_len, 0),
            (false, _, Some(Inbound::Write { rkey, va, len, received })) => (*rkey, *va, *len, *received),
            _ => return Err(INVALID),
        };
        let here = u32::try_from(packet.payload.len()).map_err(|_| INVALID)?;
        let fits = if ends { here == len - before } else { here <= len - before };
        if len > limits::MAX_RDMA_LEN || !fits {
            return Err(INVALID);
        }
        if begins && len > 0 {
            // The whole range, once; the host checks each packet's part again.
            ctx.host
                .check(core.attrs.pd, rkey.as_lkey(), va, u64::from(len), Access::RemoteWrite)
                .map_err(|_| NO_ACCESS)?;
        }
        // Before the data, so that a packet the receiver is not ready for has no effect.
        let recv = if operation.has_imm() { Some(take_recv(core, ctx)?) } else { None };
        if here > 0 {
            let at = Va::new(va.get().wrapping_add(u64::from(before)));
            let written =
                ctx.host.write(core.attrs.pd, rkey.as_lkey(), at, packet.payload, Access::RemoteWrite);
            if written.is_err() {
                let recv = recv.map(|recv| (recv.wr_id, Status::Flushed));
                let event = Some(AsyncEvent::AccessError);
                return Err(Refusal::Fatal { nak: NakCode::RemoteAccess, event, recv });
            }
        }
        if ends {
            self.inbound = None;
            self.msn = self.msn.next();
            if let Some(recv) = recv {
                complete_recv(core, ctx, packet, recv.wr_id, len);
            }
        } else {
            self.inbound = Some(Inbound::Write { rkey, va, len, received: before + here });
        }
        Ok(1)
    }

    fn on_read<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        psn: Psn,
        reth: &Reth,
    ) -> Result<u32, Refusal> {
        if reth.dma_len > limits::MAX_RDMA_LEN {
            return Err(INVALID);
        }
        check_read(core, ctx, reth).map_err(|()| NO_ACCESS)?;
        if !self.replies.has_room() {
            return Err(Refusal::Overflow);
        }
        self.msn = self.msn.next();
        self.replies.read(psn, self.msn, reth, core.mtu());
        Ok(packet_count(reth.dma_len, core.mtu()))
    }

    fn on_atomic<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        bth: &Bth,
        atomic: &AtomicEth,
    ) -> Result<u32, Refusal> {
        if !atomic.va.get().is_multiple_of(8) {
            return Err(INVALID);
        }
        if !self.replies.has_room() {
            return Err(Refusal::Overflow);
        }
        let op = match bth.opcode.operation {
            Operation::CompareSwap => {
                AtomicOp::CompareSwap { compare: atomic.compare, swap: atomic.swap_add }
            }
            _ => AtomicOp::FetchAdd { add: atomic.swap_add },
        };
        let original =
            ctx.host.atomic(core.attrs.pd, atomic.rkey.as_lkey(), atomic.va, op).map_err(|_| NO_ACCESS)?;
        // Bound: as many as the peer may have unanswered, at most 255.
        while self.atomics.len() >= usize::from(core.attrs.max_dest_rd_atomic.max(1)) {
            self.atomics.pop_front();
        }
        self.atomics.push_back((bth.psn, original));
        self.msn = self.msn.next();
        self.replies.atomic(bth.psn, self.msn, original);
        Ok(1)
    }

    fn on_duplicate<H: Host>(&mut self, core: &Core, ctx: &mut Ctx<'_, H>, packet: &Packet<'_>) {
        let psn = packet.bth.psn;
        let answered = match (packet.bth.opcode.operation.kind(), packet.ext) {
            (Kind::Send | Kind::Write, _) => {
                self.replies.acknowledge(self.expected.retreat(1), self.msn);
                true
            }
            (Kind::Read, Ext::Reth(reth)) => self.replay_read(core, ctx, psn, &reth),
            (Kind::Atomic, Ext::Atomic(_)) => self.replay_atomic(psn),
            _ => false,
        };
        if answered {
            ctx.stats.recovery.duplicates += 1;
        } else {
            ctx.stats.drops.stale_duplicate += 1;
        }
    }

    fn replay_read<H: Host>(&mut self, core: &Core, ctx: &mut Ctx<'_, H>, psn: Psn, reth: &Reth) -> bool {
        if reth.dma_len > limits::MAX_RDMA_LEN {
            return false;
        }
        // It must lie in what was executed: a READ that reaches beyond the expected PSN was never accepted.
        let behind = i64::from(self.expected.since(psn));
        if i64::from(packet_count(reth.dma_len, core.mtu())) > behind {
            return false;
        }
        if self.replies.rewind_read(psn) {
            return true;
        }
        if check_read(core, ctx, reth).is_err() || !self.replies.has_room() {
            return false;
        }
        self.replies.read(psn, self.msn, reth, core.mtu());
        true
    }

    fn replay_atomic(&mut self, psn: Psn) -> bool {
        let Some(&(_, original)) = self.atomics.iter().find(|(saved, _)| *saved == psn) else { return false };
        if !self.replies.has_atomic(psn) {
            if !self.replies.has_room() {
                return false;
            }
            self.replies.atomic(psn, self.msn, original);
        }
        true
    }
}

/// A message goes on with its own kind, and nothing else comes in between.
fn check_order(inbound: Option<&Inbound>, operation: Operation) -> Result<(), Refusal> {
    let expected = match inbound {
        None => operation.position().begins(),
        Some(Inbound::Send { .. }) => operation.kind() == Kind::Send && !operation.position().begins(),
        Some(Inbound::Write { .. }) => operation.kind() == Kind::Write && !operation.position().begins(),
    };
    if expected { Ok(()) } else { Err(INVALID) }
}

/// FIRST and MIDDLE are full, LAST is not empty, ONLY may be; nothing exceeds the path MTU.
fn check_payload(operation: Operation, len: usize, mtu: usize) -> Result<(), Refusal> {
    let position = operation.position();
    let right = match (position.begins(), position.ends()) {
        (_, false) => len == mtu,
        (false, true) => (1..=mtu).contains(&len),
        (true, true) => len <= mtu,
    };
    let bare = matches!(operation.kind(), Kind::Read | Kind::Atomic);
    if right && !(bare && len > 0) { Ok(()) } else { Err(INVALID) }
}

fn check_read<H: Host>(core: &Core, ctx: &Ctx<'_, H>, reth: &Reth) -> Result<(), ()> {
    if reth.dma_len == 0 {
        return Ok(());
    }
    let (key, len): (Lkey, _) = (reth.rkey.as_lkey(), u64::from(reth.dma_len));
    ctx.host.check(core.attrs.pd, key, reth.va, len, Access::RemoteRead).map_err(|_| ())
}

fn take_recv<H: Host>(core: &Core, ctx: &mut Ctx<'_, H>) -> Result<RecvRequest, Refusal> {
    match ctx.host.next_recv(core.qpn) {
        Fetch::Ready(recv) => Ok(recv),
        Fetch::Empty => Err(Refusal::NotReady),
        Fetch::Refused { wr_id, status } => {
            Err(Refusal::Fatal { nak: NakCode::RemoteOperational, event: None, recv: Some((wr_id, status)) })
        }
        Fetch::Broken => Err(Refusal::Broken),
    }
}

fn complete_recv<H: Host>(core: &Core, ctx: &mut Ctx<'_, H>, packet: &Packet<'_>, wr_id: u64, byte_len: u32) {
    let imm: Option<Imm> = packet.ext.imm();
    let done = RecvDone {
        opcode: packet.bth.opcode,
        byte_len,
        imm,
        remote_qpn: core.attrs.remote_qpn,
        remote_mac: core.attrs.path.dst_mac,
        solicited: packet.bth.solicited,
    };
    ctx.complete(core, Queue::Recv, wr_id, Ok(Success::Recv(done)));
}
