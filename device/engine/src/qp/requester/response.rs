//! Handles acknowledgements, READ responses and atomic results.
//!
//! A response is accepted only for a PSN that has been sent but not acknowledged. All other responses are ghosts and
//! are dropped. A response acknowledges all SENDs and WRITEs before its PSN. If an earlier READ or atomic still lacks
//! its data, its response was lost (an implied NAK). To avoid two retries for one loss, an implied NAK triggers a retry
//! only if the oldest unacknowledged PSN has advanced since the last retry. Otherwise, the ACK timeout recovers the
//! loss.
//!
//! # Spec
//! IBTA volume 1, section 9.7.5 (acknowledges), section 9.9.2 (requester error behaviour).

use protocol::Psn;
use protocol::roce::{Aeth, Ext, Kind, NakCode, PacketPayload as _, Position, Syndrome};

use super::Requester;
use crate::gather::scatter;
use crate::qp::attr::RnrTimer;
use crate::qp::{Core, Ctx, FatalError, ahead};
use crate::segment::payload_len;
use crate::{
    DropReason, Dropped, Host, NakKind, Payload, PayloadRef, ReceivedPacket, RetryCause, SendOp, Status,
};

impl Requester {
    pub(crate) fn handle_response<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        packet: &ReceivedPacket<'_>,
        packets: u32,
    ) -> Result<(), FatalError> {
        let psn = packet.bth.psn;
        // IBTA 9.4.2: only READ responses have a payload.
        let kind = packet.bth.opcode.operation.kind();
        if matches!(kind, Kind::Acknowledge | Kind::AtomicAcknowledge) && !packet.payload.is_empty() {
            ctx.drop_packet(&Dropped::new(core.qpn, packet, DropReason::Malformed));
            return Ok(());
        }
        if !self.is_outstanding(psn) {
            ctx.drop_packet(&Dropped::new(core.qpn, packet, DropReason::GhostResponse));
            // A responder can advertise new receive requests by repeating its last ACK.
            if let (Ext::Aeth(aeth), true) = (packet.ext, psn.advance(1) == self.unacked) {
                self.update_credits(aeth);
            }
            return Ok(());
        }
        match (kind, packet.ext) {
            (Kind::Acknowledge, Ext::Aeth(aeth)) => self.on_acknowledge(core, ctx, packet, aeth),
            (Kind::AtomicAcknowledge, Ext::AtomicAck(aeth, original)) => {
                self.on_atomic_acknowledge(core, ctx, packet, aeth, original)
            }
            _ => self.on_read_response(core, ctx, packet, packets),
        }
    }

    fn on_acknowledge<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        packet: &ReceivedPacket<'_>,
        aeth: Aeth,
    ) -> Result<(), FatalError> {
        let psn = packet.bth.psn;
        let implied_nak_armed = self.implied_nak_armed;
        match aeth.syndrome {
            Syndrome::Ack { .. } => {
                // IBTA 9.7.5: an ACK covers every SEND and WRITE packet up to its PSN.
                let done = self.acknowledge(core, ctx, psn.advance(1));
                self.update_credits(aeth);
                // The responder acknowledges a duplicate SEND with its newest PSN, which can belong to a READ after the
                // SEND. Such an ACK does not indicate a gap.
                let behind = self
                    .queue
                    .front()
                    .is_some_and(|front| ahead(psn, self.unacked) >= ahead(front.end(), self.unacked));
                if !done && behind {
                    self.on_implied_nak(core, ctx, packet, implied_nak_armed)
                } else {
                    Ok(())
                }
            }
            Syndrome::RnrNak { timer } => {
                if !self.acknowledge(core, ctx, psn) {
                    return self.on_implied_nak(core, ctx, packet, implied_nak_armed);
                }
                // Ignore copies of the RNR NAK that started the wait, and RNR NAKs for packets sent before the wait.
                if self.rnr_state.ignores_rnr_nak() {
                    return Ok(());
                }
                ctx.stats.naks_received.rnr += 1;
                let wait = RnrTimer::new(timer).duration();
                ctx.report_nak(core, psn, NakKind::Rnr { wait });
                self.wait_for_receiver(core, ctx, ctx.now + wait)
            }
            Syndrome::Nak(NakCode::PsnSequence) => {
                let reached = self.acknowledge(core, ctx, psn);
                // IBTA 9.7.5.2: a responder sends one NAK per gap, so another NAK for the same PSN is a late or
                // duplicated copy.
                let copy = self.last_nak_psn.replace(psn) == Some(psn);
                // After a packet is refused with an RNR NAK, the packets in flight after it can trigger a sequence NAK,
                // which must not shorten the wait. If nothing has been sent since the last retry, the sequence NAK is
                // late and must not trigger another retry.
                if copy || self.rnr_state.is_waiting() || self.is_rewound() {
                    return Ok(());
                }
                ctx.stats.naks_received.sequence += 1;
                ctx.report_nak(core, psn, NakKind::Sequence);
                // The NAK skips a READ or atomic whose response was lost. Treat it as an implied NAK, because otherwise
                // each NAK in flight would count as a retry.
                if !reached {
                    return self.on_implied_nak(core, ctx, packet, implied_nak_armed);
                }
                self.go_back(core, ctx, RetryCause::SequenceNak)
            }
            // IBTA 9.9.2: any other NAK completes the earlier requests, fails the request at its PSN and moves the QP
            // to ERR.
            Syndrome::Nak(code) => {
                if !self.acknowledge(core, ctx, psn) {
                    return self.on_implied_nak(core, ctx, packet, implied_nak_armed);
                }
                ctx.report_nak(core, psn, code.into());
                let naks = &mut ctx.stats.naks_received;
                let (counter, status) = match code {
                    NakCode::InvalidRequest => (&mut naks.invalid_request, Status::RemoteInvalidRequest),
                    NakCode::RemoteAccess => (&mut naks.remote_access, Status::RemoteAccess),
                    NakCode::RemoteOperational => (&mut naks.remote_operational, Status::RemoteOperational),
                    NakCode::InvalidRdRequest => {
                        (&mut naks.invalid_rd_request, Status::RemoteInvalidRdRequest)
                    }
                    NakCode::PsnSequence | NakCode::Reserved(_) => {
                        return Err(self.fail_front(core, ctx, Status::BadResponse));
                    }
                };
                *counter += 1;
                Err(self.fail_front(core, ctx, status))
            }
            Syndrome::Reserved(_) => {
                if !self.acknowledge(core, ctx, psn) {
                    return self.on_implied_nak(core, ctx, packet, implied_nak_armed);
                }
                ctx.report_nak(core, psn, NakKind::Reserved);
                Err(self.fail_front(core, ctx, Status::BadResponse))
            }
        }
    }

    fn on_read_response<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        packet: &ReceivedPacket<'_>,
        packets: u32,
    ) -> Result<(), FatalError> {
        let implied_nak_armed = self.implied_nak_armed;
        if !self.acknowledge(core, ctx, packet.bth.psn) {
            return self.on_implied_nak(core, ctx, packet, implied_nak_armed);
        }
        let Some(front) = self.queue.front() else { return Ok(()) };
        let SendOp::Read { .. } = front.wr.op else {
            return Err(self.fail_front(core, ctx, Status::BadResponse));
        };
        let index = ahead(self.unacked, front.first);
        let last = index + packets == front.packets;
        let position = packet.bth.opcode.operation.position();
        // After a READ has been retried from its middle, responses to the old and the new request can be in flight, and
        // some responders (soft-RoCE) resume with MIDDLE. For this reason, check only where responses end: the READ
        // must end with LAST or ONLY, and no earlier packet may be LAST or ONLY except at the end of a chunk.
        let in_place = if front.is_chunked {
            let ends_chunk = (index + packets).is_multiple_of(front.chunk_packets.max(1));
            position.ends() == last || (position.ends() && ends_chunk)
        } else {
            position == Position::of(index == 0, last)
        };
        let positive = match packet.ext {
            Ext::Aeth(aeth) => matches!(aeth.syndrome, Syndrome::Ack { .. }),
            _ => true,
        };
        if !in_place
            || !positive
            || packet.payload.len() != payload_len(front.len, core.mtu(), index..index + packets)
        {
            return Err(self.fail_front(core, ctx, Status::BadResponse));
        }
        if let Ext::Aeth(aeth) = packet.ext {
            self.update_credits(aeth);
        }
        let offset = index as usize * core.mtu();
        self.store_response(core, ctx, offset, packet.payload, packets)
    }

    fn on_atomic_acknowledge<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        packet: &ReceivedPacket<'_>,
        aeth: Aeth,
        original: u64,
    ) -> Result<(), FatalError> {
        let psn = packet.bth.psn;
        let implied_nak_armed = self.implied_nak_armed;
        if !self.acknowledge(core, ctx, psn) {
            return self.on_implied_nak(core, ctx, packet, implied_nak_armed);
        }
        let atomic = self
            .queue
            .front()
            .is_some_and(|front| matches!(front.wr.op, SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. }));
        if !atomic || !self.update_credits(aeth) {
            return Err(self.fail_front(core, ctx, Status::BadResponse));
        }
        // Guests are little-endian and read the result as a native integer.
        self.store_response(core, ctx, 0, (&original.to_le_bytes()).into(), 1)
    }

    /// Applies an ACK's credits. The caller has already completed the messages that the ACK covers. Returns whether the
    /// syndrome is a positive ACK.
    fn update_credits(&mut self, aeth: Aeth) -> bool {
        let Syndrome::Ack { credits } = aeth.syndrome else { return false };
        self.credits.update(credits, self.recv_seq_done);
        true
    }

    /// Writes the front request's next response to memory. The last response completes the request.
    fn store_response<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        offset: usize,
        data: PayloadRef<'_>,
        packets: u32,
    ) -> Result<(), FatalError> {
        let Some(front) = self.queue.front() else { return Ok(()) };
        let sges = match &front.wr.payload {
            Payload::Sges(sges) => sges.as_slice(),
            Payload::Inline(_) | Payload::Mixed(_) => &[],
        };
        if let Err(reason) = scatter(ctx.host, core.initiator(), sges, offset, data) {
            return Err(self.fail_front(core, ctx, Status::LocalProtection(reason)));
        }
        self.unacked = self.unacked.advance(packets);
        if self.unacked == front.end() {
            if let SendOp::Read { invalidate: Some(key), .. } = front.wr.op
                && let Err(reason) = ctx.host.invalidate(core.initiator(), key)
            {
                return Err(self.fail_front(core, ctx, Status::MemoryManagement(reason)));
            }
            self.complete_front(core, ctx);
        }
        self.on_progress(core, ctx, packets);
        Ok(())
    }

    /// Acknowledges all packets before `to` that do not need response data. Returns whether `to` is now the oldest
    /// unacknowledged PSN. If not, the front request is a READ or atomic that still needs its data.
    fn acknowledge<H: Host>(&mut self, core: &Core, ctx: &mut Ctx<'_, H>, to: Psn) -> bool {
        let mut left = ahead(to, self.unacked);
        let mut gained = 0;
        // The loop terminates because each iteration but the last removes a request from the queue.
        while left > 0 {
            let Some(front) = self.queue.front() else { break };
            if front.returns_data() {
                break;
            }
            let step = left.min(ahead(front.end(), self.unacked));
            self.unacked = self.unacked.advance(step);
            (left, gained) = (left - step, gained + step);
            if self.unacked == front.end() {
                self.complete_front(core, ctx);
            }
        }
        if gained > 0 {
            self.on_progress(core, ctx, gained);
        }
        left == 0
    }

    /// Handles an implied NAK: a response that the front request needs is missing.
    fn on_implied_nak<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        packet: &ReceivedPacket<'_>,
        armed: bool,
    ) -> Result<(), FatalError> {
        ctx.drop_packet(&Dropped::new(core.qpn, packet, DropReason::ResponseGap));
        if !armed {
            return Ok(());
        }
        ctx.stats.recovery.implied_naks += 1;
        self.go_back(core, ctx, RetryCause::ImpliedNak)
    }
}
