//! Responder of a reliable connection (RC, XRC target): executes each request once, in PSN order, and returns
//! acknowledgements, READ responses and atomic results.
//!
//! | PSN of the request | action |
//! |---|---|
//! | expected | execute; ACK if AckReq is set, RNR NAK if no receive request is posted, fatal NAK if the request is invalid |
//! | ahead | drop; send one sequence NAK per gap |
//! | duplicate of an executed request | SEND, WRITE: ACK the newest PSN; READ: read memory again; atomic: return the saved result |
//! | behind, but not a duplicate | drop |
//!
//! A fatal NAK moves the QP to ERR. Pending responses and the NAK itself are still sent. Only a packet with the
//! expected PSN can trigger a fatal NAK. A duplicate READ whose key is no longer valid is dropped, so a forged
//! duplicate cannot tear down the connection.
//!
//! Every XRC request specifies an SRQ, even if it does not consume a receive request. The target rejects a request for
//! an SRQ that does not exist, is not an XRC SRQ or belongs to another XRC domain. It also rejects a message whose
//! packets specify different SRQs. In all these cases, it sends a NAK with the code Invalid Request, because the
//! specification defines local events but no NAK codes for them. Memory accesses by an accepted request are checked
//! against the SRQ's protection domain.
//!
//! # Spec
//! IBTA volume 1, sections 9.7.1, 9.7.4 and 9.9.3, annex A14 (XRC); JingZhao interface, sections 9.5 and 11.3.

use protocol::Psn;
use protocol::ids::{Lkey, Msn, Pdn};
use protocol::roce::{AtomicEth, Bth, Ext, Kind, NakCode, Operation, PacketPayload as _, Reth, Syndrome};

use super::attr::Service;
use super::history::RequestHistory;
use super::inbound::{Inbound, RequestError, has_valid_length};
use super::reply::{Replies, ReplyKind};
use super::{Core, Ctx, FatalError, RequestContext, Step};
use crate::segment::packet_count;
use crate::{
    Access, AccessError, AsyncEvent, AtomicOp, DropReason, Dropped, Expecting, Host, Initiator, Instant,
    PeerRequest, Queue, ReceivedPacket, RecvSource, Status, XrcError, limits,
};

enum ExecuteError {
    Request(RequestError),
    /// The reply queue is full. The request is dropped as if it had been lost on the wire.
    Overflow,
}

impl From<RequestError> for ExecuteError {
    fn from(error: RequestError) -> Self {
        Self::Request(error)
    }
}

const INVALID: ExecuteError = ExecuteError::Request(RequestError::Invalid);

/// RNR NAKs sent for one packet.
#[derive(Clone, Copy, Debug)]
struct RnrNaks {
    count: u32,
    first: Instant,
}

#[derive(Debug)]
pub(crate) struct Responder {
    expected: Psn,
    msn: Msn,
    /// Whether a NAK for `expected` is outstanding. If so, no more NAKs are sent until the packet with that PSN arrives.
    nak_sent: bool,
    /// RNR NAKs sent for the packet with the expected PSN.
    rnr: Option<RnrNaks>,
    inbound: Inbound,
    replies: Replies,
    history: RequestHistory,
}

impl Responder {
    pub(crate) fn new(psn: Psn) -> Self {
        Self {
            expected: psn,
            msn: Msn::default(),
            nak_sent: false,
            rnr: None,
            inbound: Inbound::default(),
            replies: Replies::default(),
            history: RequestHistory::default(),
        }
    }

    pub(crate) fn set_psn(&mut self, psn: Psn) {
        self.expected = psn;
        self.history = RequestHistory::default();
    }

    pub(crate) fn recv_psn(&self) -> Psn {
        self.expected
    }

    pub(crate) fn expecting(&self, now: Instant) -> Expecting {
        let psn = self.expected.get();
        match self.rnr {
            None if self.nak_sent => Expecting::Missing { psn },
            None => Expecting::message(self.expected, self.inbound.received()),
            Some(RnrNaks { count, first }) => {
                Expecting::ReceiveRequest { psn, refusals: count, waiting: now.saturating_since(first) }
            }
        }
    }

    pub(crate) fn pending_replies(&self) -> usize {
        self.replies.len()
    }

    pub(crate) fn msn(&self) -> Msn {
        self.msn
    }

    pub(crate) fn pooled_slots(&self) -> usize {
        self.replies.pooled_slots()
    }

    /// Returns whether a reply can be sent. While congestion control pauses data, only replies without data can be
    /// sent.
    pub(crate) fn has_work(&self, data_waits: bool) -> bool {
        !self.replies.is_empty() && (!data_waits || !self.replies.has_data_next())
    }

    pub(crate) fn transmit<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        out: &mut Vec<u8>,
    ) -> Result<Step, FatalError> {
        self.replies.transmit(core, ctx, out)
    }

    pub(crate) fn drop_pending_replies(&mut self) {
        self.replies.clear();
    }

    /// Completes the current message's receive request as flushed. The caller flushes the requests still in the receive
    /// queue.
    pub(crate) fn flush<H: Host>(&mut self, core: &Core, ctx: &mut Ctx<'_, H>) {
        self.inbound.abandon();
        self.inbound.fail_receive(core, ctx, Status::Flushed);
    }

    /// Handles a packet with a request opcode. If `packets` is greater than 1, `packet` holds the combined payload of
    /// that many consecutive packets, and the first of them must have the expected PSN. Returns whether the request was
    /// executed.
    pub(crate) fn handle_request<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        packet: &ReceivedPacket<'_>,
        packets: u32,
    ) -> Result<bool, FatalError> {
        self.replies.set_pool_exhausted(ctx.pooled.no_replies_left());
        let distance = packet.bth.psn.since(self.expected);
        match distance {
            0 => self.on_expected(core, ctx, packet, packets),
            1.. => {
                ctx.drop_packet(&Dropped::new(core.qpn, packet, DropReason::OutOfSequence));
                // IBTA 9.7.5.2: one sequence NAK per gap. Later packets after the same gap are dropped silently.
                if !self.nak_sent {
                    self.nak_sent = true;
                    self.replies.push_nak(self.expected, self.msn, Syndrome::Nak(NakCode::PsnSequence));
                }
                Ok(false)
            }
            _ => {
                self.on_past_psn(core, ctx, packet, distance.unsigned_abs());
                Ok(false)
            }
        }
    }

    fn on_expected<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        packet: &ReceivedPacket<'_>,
        packets: u32,
    ) -> Result<bool, FatalError> {
        let bth = &packet.bth;
        match self.execute(core, ctx, packet, packets) {
            Ok(psns) => {
                self.expected = self.expected.advance(psns);
                self.history.advance(psns);
                self.nak_sent = false;
                self.rnr = None;
                // READs and atomics are acknowledged by their response, so only SENDs and WRITEs need an ACK.
                if bth.ack_req && matches!(bth.opcode.operation.kind(), Kind::Send | Kind::Write) {
                    self.replies.push_ack(self.expected.retreat(1), self.msn);
                }
                Ok(true)
            }
            Err(ExecuteError::Request(RequestError::NotReady)) => {
                ctx.drop_packet(&Dropped::new(core.qpn, packet, DropReason::NoReceive));
                self.nak_sent = true;
                // IBTA 9.7.5.2 (RNR NAK): the requester retries this packet when the timer expires. The refused packet
                // had no effect.
                let rnr = self.rnr.get_or_insert(RnrNaks { count: 0, first: ctx.now });
                let timer = core.attrs.min_rnr_timer.after(rnr.count, core.attrs.max_rnr_timer);
                rnr.count = rnr.count.saturating_add(1);
                let due = ctx.host.next_recv_due(core.qpn);
                let timer = due.map_or(timer, |due| timer.at_least(due.saturating_since(ctx.now)));
                self.replies.push_nak(self.expected, self.msn, Syndrome::RnrNak { timer: timer.code() });
                Ok(false)
            }
            Err(ExecuteError::Overflow) => {
                // Send no response. The requester times out and retries.
                ctx.drop_packet(&Dropped::new(core.qpn, packet, DropReason::ReplyOverflow));
                Ok(false)
            }
            Err(ExecuteError::Request(error)) => Err(self.reject(core, ctx, packet, error)),
        }
    }

    /// Rejects the request with the expected PSN by sending a fatal NAK. Also completes the receive request that the
    /// request has consumed, if any.
    fn reject<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        packet: &ReceivedPacket<'_>,
        error: RequestError,
    ) -> FatalError {
        let (reason, cause) = error.reason(core.attrs.service);
        ctx.drop_packet(&Dropped { cause, ..Dropped::new(core.qpn, packet, reason) });
        // IBTA 9.9.3: NAK code, affiliated event and status of the consumed receive request, per error class.
        let (nak, event, status) = match error {
            RequestError::Invalid | RequestError::NotReady => {
                (NakCode::InvalidRequest, Some(AsyncEvent::InvalidRequest), Status::Flushed)
            }
            RequestError::Xrceth(srqn, error) => {
                let event = match error {
                    XrcError::InvalidXrceth => AsyncEvent::InvalidXrceth(srqn),
                    XrcError::DomainViolation => AsyncEvent::XrcDomainViolation(srqn),
                };
                (NakCode::InvalidRequest, Some(event), Status::Flushed)
            }
            RequestError::TooLong => {
                (NakCode::InvalidRequest, Some(AsyncEvent::InvalidRequest), Status::LocalLength)
            }
            RequestError::NoAccess(cause) => {
                (NakCode::RemoteAccess, Some(AsyncEvent::AccessError(cause)), Status::Flushed)
            }
            RequestError::Invalidate(cause) => {
                (NakCode::RemoteAccess, Some(AsyncEvent::AccessError(cause)), Status::RemoteInvalidRequest)
            }
            RequestError::Scatter(cause) => {
                (NakCode::RemoteOperational, None, Status::LocalProtection(cause))
            }
            RequestError::BadReceive | RequestError::Broken => {
                (NakCode::RemoteOperational, None, Status::Flushed)
            }
        };
        self.inbound.abandon();
        self.inbound.fail_receive(core, ctx, status);
        if let Some(event) = event {
            ctx.raise(core, event);
        }
        self.replies.push_nak(self.expected, self.msn, Syndrome::Nak(nak));
        match (error, packet.srqn) {
            (RequestError::Broken, Some(srqn)) => FatalError::XrcSrq(srqn),
            (RequestError::Broken, None) => FatalError::Queue(Queue::Recv),
            _ => FatalError::Recv(reason, cause),
        }
    }

    /// Executes the packet with the expected PSN. Returns the number of PSNs that it consumes, which for a READ is one
    /// per response packet.
    fn execute<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        packet: &ReceivedPacket<'_>,
        packets: u32,
    ) -> Result<u32, ExecuteError> {
        let operation = packet.bth.opcode.operation;
        let valid_length = has_valid_length(operation, packet.payload.len(), core.mtu(), packets);
        // IBTA 9.7.4.1.5: an operation that is not enabled on the QP is an invalid request.
        let enabled = core.attrs.remote.allows(operation.kind());
        if self.inbound.breaks_opcode_sequence(operation) || !valid_length || !enabled {
            return Err(INVALID);
        }
        if self.inbound.is_for_other_srq(packet.srqn) {
            return Err(INVALID);
        }
        let on = request_context(core, ctx, packet)?;
        match (operation.kind(), packet.ext) {
            (Kind::Send | Kind::Write, _) => {
                if self.inbound.accept(core, ctx, on, packet, packets)? {
                    self.msn = self.msn.next();
                    ctx.count_executed(core, operation.kind());
                }
                Ok(packets)
            }
            (Kind::Read, Ext::Reth(reth)) => self.on_read(core, ctx, on, packet.bth.psn, &reth),
            (Kind::Atomic, Ext::Atomic(atomic)) => self.on_atomic(core, ctx, on, &packet.bth, &atomic),
            _ => Err(INVALID),
        }
    }

    /// Returns whether the peer has reached `max_dest_rd_atomic`. If so, another READ or atomic is an invalid request.
    ///
    /// The specification also allows the responder to execute such a request, as soft-RoCE does. Hardware adapters
    /// reject it. This device does the same, so that software tested on it also works on hardware.
    ///
    /// # Spec
    /// IBTA volume 1, sections 9.7.4.1 (validation of requests) and 9.9.3 (responder errors: too many READs or
    /// atomics).
    fn at_rd_atomic_limit(&self, core: &Core) -> bool {
        self.replies.unanswered() >= usize::from(core.attrs.max_dest_rd_atomic)
    }

    fn on_read<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        on: RequestContext,
        psn: Psn,
        reth: &Reth,
    ) -> Result<u32, ExecuteError> {
        // IBTA 9.7.4.1: the DMA length is at most 2^31.
        if reth.dma_len > limits::MAX_RDMA_LEN || self.at_rd_atomic_limit(core) {
            return Err(INVALID);
        }
        // Check the whole range now, so that an invalid READ fails before its first response. Each response checks its
        // part again.
        check_read(on.initiator, ctx, reth).map_err(RequestError::NoAccess)?;
        if !self.replies.has_room() {
            return Err(ExecuteError::Overflow);
        }
        self.msn = self.msn.next();
        ctx.count_executed(core, Kind::Read);
        self.history.save_read(*reth, core.attrs.max_dest_rd_atomic);
        self.replies.push_read(psn, self.msn, reth, core.mtu(), on.srq_pd(), ReplyKind::Original);
        Ok(packet_count(reth.dma_len, core.mtu()))
    }

    fn on_atomic<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        on: RequestContext,
        bth: &Bth,
        atomic: &AtomicEth,
    ) -> Result<u32, ExecuteError> {
        // An atomic's virtual address must be aligned to 8 bytes.
        if !atomic.va.get().is_multiple_of(8) || self.at_rd_atomic_limit(core) {
            return Err(INVALID);
        }
        if !self.replies.has_room() {
            return Err(ExecuteError::Overflow);
        }
        let op = match bth.opcode.operation {
            Operation::CompareSwap => {
                AtomicOp::CompareSwap { compare: atomic.compare, swap: atomic.swap_add }
            }
            _ => AtomicOp::FetchAdd { add: atomic.swap_add },
        };
        let original = ctx
            .host
            .atomic(on.initiator, atomic.rkey.as_lkey(), atomic.va, op)
            .map_err(RequestError::NoAccess)?;
        self.history.save_atomic(original, core.attrs.max_dest_rd_atomic);
        self.msn = self.msn.next();
        ctx.count_executed(core, Kind::Atomic);
        self.replies.push_atomic(bth.psn, self.msn, original, ReplyKind::Original);
        Ok(1)
    }

    /// Handles a request whose PSN is `behind` packets before the expected PSN (IBTA 9.7.4.1.2: duplicate requests).
    fn on_past_psn<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        packet: &ReceivedPacket<'_>,
        behind: u32,
    ) {
        let psn = packet.bth.psn;
        let answered = match (self.history.packet(behind), packet.bth.opcode.operation.kind(), packet.ext) {
            // A duplicate SEND or WRITE is not executed. It is acknowledged with the newest PSN, regardless of its own
            // PSN and AckReq bit.
            (Some(_), Kind::Send | Kind::Write, _) => {
                self.replies.push_ack(self.expected.retreat(1), self.msn);
                true
            }
            // A duplicate READ is executed again if it covers part of a READ that is still in the history.
            (Some(at), Kind::Read, Ext::Reth(reth)) if self.history.covers_read(at, &reth, core.mtu()) => {
                self.replay_read(core, ctx, packet, &reth)
            }
            // A duplicate atomic must not modify memory again. It returns the saved result.
            (Some(at), Kind::Atomic, Ext::Atomic(_)) => {
                self.history.atomic_result(at).is_some_and(|original| self.replay_atomic(psn, original))
            }
            _ => false,
        };
        if answered {
            ctx.stats.recovery.duplicates += 1;
            ctx.host.request_executed(core.qpn, PeerRequest::Duplicate);
        } else {
            ctx.drop_packet(&Dropped::new(core.qpn, packet, DropReason::StaleDuplicate));
        }
    }

    fn replay_read<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        packet: &ReceivedPacket<'_>,
        reth: &Reth,
    ) -> bool {
        let psn = packet.bth.psn;
        // If responses to the READ are still being sent, the READ restarts in place, so that repeated requests do not
        // multiply the responses.
        if self.replies.rewind_read(psn) {
            return true;
        }
        // The key may have been invalidated or the SRQ destroyed since the READ was executed.
        let Ok(on) = request_context(core, ctx, packet) else { return false };
        if check_read(on.initiator, ctx, reth).is_err() || !self.replies.has_room() {
            return false;
        }
        self.replies.push_read(psn, self.msn, reth, core.mtu(), on.srq_pd(), ReplyKind::Duplicate);
        true
    }

    fn replay_atomic(&mut self, psn: Psn, original: u64) -> bool {
        if !self.replies.has_atomic(psn) {
            if !self.replies.has_room() {
                return false;
            }
            self.replies.push_atomic(psn, self.msn, original, ReplyKind::Duplicate);
        }
        true
    }
}

/// Returns the request context: the identity for memory accesses, and the queue of the receive request.
///
/// # Errors
/// Fails if an XRC request specifies an SRQ that it must not use, or has a reserved opcode and specifies none.
fn request_context<H: Host>(
    core: &Core,
    ctx: &Ctx<'_, H>,
    packet: &ReceivedPacket<'_>,
) -> Result<RequestContext, RequestError> {
    if core.attrs.service != Service::XrcTgt {
        return Ok(core.request_context());
    }
    let srqn = packet.srqn.ok_or(RequestError::Invalid)?;
    let pd = ctx.host.xrc_srq(core.qpn, srqn).map_err(|error| RequestError::Xrceth(srqn, error))?;
    Ok(RequestContext {
        initiator: Initiator { pd, ..core.initiator() },
        source: RecvSource::XrcSrq { qpn: core.qpn, srqn },
    })
}

impl RequestContext {
    /// Returns the protection domain of the SRQ that the request specifies, if any.
    fn srq_pd(&self) -> Option<Pdn> {
        self.source.srqn().map(|_| self.initiator.pd)
    }
}

fn check_read<H: Host>(initiator: Initiator, ctx: &Ctx<'_, H>, reth: &Reth) -> Result<(), AccessError> {
    // A READ of length 0 does not access memory, so its key is not checked.
    if reth.dma_len == 0 {
        return Ok(());
    }
    let (key, len): (Lkey, _) = (reth.rkey.as_lkey(), u64::from(reth.dma_len));
    ctx.host.check(initiator, key, reth.va, len, Access::RemoteRead)
}
