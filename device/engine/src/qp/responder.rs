//! The responder of a reliable connection: executes requests in PSN order, each once, and answers.
//!
//! | packet's PSN | what happens |
//! |---|---|
//! | expected | executed; ACK if asked for, RNR NAK without a receive request, fatal NAK if it is refused |
//! | ahead | dropped; one sequence NAK per gap |
//! | behind, executed (duplicate) | SEND, WRITE: acknowledged with the newest PSN; READ: answered again; atomic: saved result |
//! | behind, never executed | dropped |
//!
//! A fatal NAK takes the QP to ERR; the answers that were due before it, and the NAK, still go out. Only the packet with
//! the expected PSN can draw one: a duplicate READ whose key is not valid (any more) draws silence, whoever sent it.
//!
//! # Spec
//! IBTA volume 1, sections 9.7.1, 9.7.4 and 9.9.3; JingZhao interface, sections 9.5 and 11.3.

use protocol::Psn;
use protocol::ids::{Lkey, Msn};
use protocol::roce::{AtomicEth, Bth, Ext, Kind, NakCode, Operation, Packet, Reth, Syndrome};

use super::executed::Executed;
use super::inbound::{Fault, Inbound, has_right_length};
use super::reply::{Occasion, Replies};
use super::{Core, Ctx, Failure, Step};
use crate::segment::packet_count;
use crate::{
    Access, AccessError, AsyncEvent, AtomicOp, DropReason, Dropped, Expecting, Host, Queue, Status, limits,
};

/// A request that is not executed.
enum Refusal {
    Fault(Fault),
    /// Too many requests are being answered: as if it had been lost.
    Overflow,
}

impl From<Fault> for Refusal {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

const INVALID: Refusal = Refusal::Fault(Fault::Invalid);

#[derive(Debug)]
pub(crate) struct Responder {
    expected: Psn,
    msn: Msn,
    /// The peer was told what is missing, or to come back; silence until the expected packet comes.
    told: bool,
    /// RNR NAKs for the expected packet.
    rnr_naks: u8,
    inbound: Inbound,
    replies: Replies,
    executed: Executed,
}

impl Responder {
    pub(crate) fn new(psn: Psn) -> Self {
        Self {
            expected: psn,
            msn: Msn::default(),
            told: false,
            rnr_naks: 0,
            inbound: Inbound::default(),
            replies: Replies::default(),
            executed: Executed::default(),
        }
    }

    pub(crate) fn set_psn(&mut self, psn: Psn) {
        self.expected = psn;
        self.executed = Executed::default();
    }

    pub(crate) fn recv_psn(&self) -> Psn {
        self.expected
    }

    /// What it takes next.
    pub(crate) fn expecting(&self) -> Expecting {
        let psn = self.expected.get();
        match self.rnr_naks {
            0 if self.told => Expecting::Missing { psn },
            0 => Expecting::message(self.expected, self.inbound.received()),
            refusals => Expecting::ReceiveRequest { psn, refusals },
        }
    }

    /// Answers that are due.
    pub(crate) fn answers(&self) -> usize {
        self.replies.len()
    }

    pub(crate) fn msn(&self) -> Msn {
        self.msn
    }

    /// Slots for answers beyond those a QP keeps.
    pub(crate) fn held(&self) -> usize {
        self.replies.held()
    }

    /// Whether an answer is due; one with data is not while data has to wait.
    pub(crate) fn wants_turn(&self, data_waits: bool) -> bool {
        !self.replies.is_empty() && (!data_waits || !self.replies.has_data_next())
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
        self.inbound.abandon();
        self.inbound.fail_receive(core, ctx, Status::Flushed);
    }

    /// A packet with a request opcode arrived. Whether it was executed.
    pub(crate) fn handle_request<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        packet: &Packet<'_>,
    ) -> Result<bool, Failure> {
        self.replies.restrict(ctx.held.no_replies_left());
        let distance = packet.bth.psn.since(self.expected);
        match distance {
            0 => self.on_expected(core, ctx, packet),
            1.. => {
                ctx.drop(&Dropped::new(core.qpn, packet, DropReason::OutOfSequence));
                if !self.told {
                    self.told = true;
                    self.replies.refuse(self.expected, self.msn, Syndrome::Nak(NakCode::PsnSequence));
                }
                Ok(false)
            }
            _ => {
                self.on_behind(core, ctx, packet, distance.unsigned_abs());
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
                self.executed.advance(psns);
                self.told = false;
                self.rnr_naks = 0;
                if bth.ack_req && matches!(bth.opcode.operation.kind(), Kind::Send | Kind::Write) {
                    self.replies.acknowledge(bth.psn, self.msn);
                }
                Ok(true)
            }
            Err(Refusal::Fault(Fault::NotReady)) => {
                ctx.drop(&Dropped::new(core.qpn, packet, DropReason::NoReceive));
                self.told = true;
                let timer = core.attrs.min_rnr_timer.after(self.rnr_naks, core.attrs.max_rnr_timer);
                self.rnr_naks = self.rnr_naks.saturating_add(1);
                self.replies.refuse(self.expected, self.msn, Syndrome::RnrNak { timer: timer.code() });
                Ok(false)
            }
            Err(Refusal::Overflow) => {
                ctx.drop(&Dropped::new(core.qpn, packet, DropReason::ReplyOverflow));
                Ok(false)
            }
            Err(Refusal::Fault(fault)) => Err(self.refuse(core, ctx, packet, fault)),
        }
    }

    /// Answers a request that cannot be executed, and completes the receive request it took.
    fn refuse<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        packet: &Packet<'_>,
        fault: Fault,
    ) -> Failure {
        let (reason, cause) = fault.reason(core.attrs.service);
        ctx.drop(&Dropped { cause, ..Dropped::new(core.qpn, packet, reason) });
        let (nak, event, status) = match fault {
            Fault::Invalid | Fault::NotReady => {
                (NakCode::InvalidRequest, Some(AsyncEvent::InvalidRequest), Status::Flushed)
            }
            Fault::TooLong => {
                (NakCode::InvalidRequest, Some(AsyncEvent::InvalidRequest), Status::LocalLength)
            }
            Fault::NoAccess(refused) => {
                (NakCode::RemoteAccess, Some(AsyncEvent::AccessError(refused)), Status::Flushed)
            }
            Fault::Invalidate(refused) => {
                (NakCode::RemoteAccess, Some(AsyncEvent::AccessError(refused)), Status::RemoteInvalidRequest)
            }
            Fault::Scatter(refused) => (NakCode::RemoteOperational, None, Status::LocalProtection(refused)),
            Fault::BadReceive | Fault::Broken => (NakCode::RemoteOperational, None, Status::Flushed),
        };
        self.inbound.abandon();
        self.inbound.fail_receive(core, ctx, status);
        if let Some(event) = event {
            ctx.raise(core, event);
        }
        self.replies.refuse(self.expected, self.msn, Syndrome::Nak(nak));
        if fault == Fault::Broken { Failure::Queue(Queue::Recv) } else { Failure::Recv(reason, cause) }
    }

    /// Executes the packet with the expected PSN; returns how many PSNs it stands for.
    fn execute<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        packet: &Packet<'_>,
    ) -> Result<u32, Refusal> {
        let operation = packet.bth.opcode.operation;
        let right_length = has_right_length(operation, packet.payload.len(), core.mtu());
        // IBTA volume 1, section 9.7.4.1.5: an operation that the QP does not support.
        let enabled = core.attrs.remote.allows(operation.kind());
        if self.inbound.is_misplaced(operation) || !right_length || !enabled {
            return Err(INVALID);
        }
        match (operation.kind(), packet.ext) {
            (Kind::Send | Kind::Write, _) => {
                if self.inbound.accept(core, ctx, packet)? {
                    self.msn = self.msn.next();
                    ctx.stats.executed.count(operation.kind());
                }
                Ok(1)
            }
            (Kind::Read, Ext::Reth(reth)) => self.on_read(core, ctx, packet.bth.psn, &reth),
            (Kind::Atomic, Ext::Atomic(atomic)) => self.on_atomic(core, ctx, &packet.bth, &atomic),
            _ => Err(INVALID),
        }
    }

    /// Whether the peer waits for as many READs and atomics as it may, so that another one is an invalid request.
    ///
    /// The specification lets a responder answer all the same, as soft-RoCE does. Adapters refuse, so software that works
    /// here works on them.
    ///
    /// # Spec
    /// IBTA volume 1, sections 9.7.4.1 (validation of requests) and 9.9.3 (responder errors: too many READs or atomics).
    fn is_at_limit(&self, core: &Core) -> bool {
        self.replies.unanswered() >= usize::from(core.attrs.max_dest_rd_atomic)
    }

    fn on_read<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        psn: Psn,
        reth: &Reth,
    ) -> Result<u32, Refusal> {
        if reth.dma_len > limits::MAX_RDMA_LEN || self.is_at_limit(core) {
            return Err(INVALID);
        }
        check_read(core, ctx, reth).map_err(Fault::NoAccess)?;
        if !self.replies.has_room() {
            return Err(Refusal::Overflow);
        }
        self.msn = self.msn.next();
        ctx.stats.executed.count(Kind::Read);
        self.executed.remember_read(*reth, core.attrs.max_dest_rd_atomic);
        self.replies.read(psn, self.msn, reth, core.mtu(), Occasion::First);
        Ok(packet_count(reth.dma_len, core.mtu()))
    }

    fn on_atomic<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        bth: &Bth,
        atomic: &AtomicEth,
    ) -> Result<u32, Refusal> {
        if !atomic.va.get().is_multiple_of(8) || self.is_at_limit(core) {
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
        let original = ctx
            .host
            .atomic(core.accessor(), atomic.rkey.as_lkey(), atomic.va, op)
            .map_err(Fault::NoAccess)?;
        self.executed.remember_atomic(original, core.attrs.max_dest_rd_atomic);
        self.msn = self.msn.next();
        ctx.stats.executed.count(Kind::Atomic);
        self.replies.atomic(bth.psn, self.msn, original, Occasion::First);
        Ok(1)
    }

    /// A request whose PSN is `behind` the expected one.
    fn on_behind<H: Host>(&mut self, core: &Core, ctx: &mut Ctx<'_, H>, packet: &Packet<'_>, behind: u32) {
        let psn = packet.bth.psn;
        let answered = match (self.executed.packet(behind), packet.bth.opcode.operation.kind(), packet.ext) {
            (Some(_), Kind::Send | Kind::Write, _) => {
                self.replies.acknowledge(self.expected.retreat(1), self.msn);
                true
            }
            (Some(at), Kind::Read, Ext::Reth(reth)) if self.executed.covers_read(at, &reth, core.mtu()) => {
                self.replay_read(core, ctx, psn, &reth)
            }
            (Some(at), Kind::Atomic, Ext::Atomic(_)) => {
                self.executed.atomic_result(at).is_some_and(|original| self.replay_atomic(psn, original))
            }
            _ => false,
        };
        if answered {
            ctx.stats.recovery.duplicates += 1;
        } else {
            ctx.drop(&Dropped::new(core.qpn, packet, DropReason::StaleDuplicate));
        }
    }

    fn replay_read<H: Host>(&mut self, core: &Core, ctx: &mut Ctx<'_, H>, psn: Psn, reth: &Reth) -> bool {
        if self.replies.rewind_read(psn) {
            return true;
        }
        // Its key may have become invalid since.
        if check_read(core, ctx, reth).is_err() || !self.replies.has_room() {
            return false;
        }
        self.replies.read(psn, self.msn, reth, core.mtu(), Occasion::Again);
        true
    }

    fn replay_atomic(&mut self, psn: Psn, original: u64) -> bool {
        if !self.replies.has_atomic(psn) {
            if !self.replies.has_room() {
                return false;
            }
            self.replies.atomic(psn, self.msn, original, Occasion::Again);
        }
        true
    }
}

fn check_read<H: Host>(core: &Core, ctx: &Ctx<'_, H>, reth: &Reth) -> Result<(), AccessError> {
    if reth.dma_len == 0 {
        return Ok(());
    }
    let (key, len): (Lkey, _) = (reth.rkey.as_lkey(), u64::from(reth.dma_len));
    ctx.host.check(core.accessor(), key, reth.va, len, Access::RemoteRead)
}
