//! What a requester does with the responder's answers.
//!
//! An answer counts only for a PSN that was sent and is unanswered; everything else is a ghost and dropped. An answer to
//! a later PSN answers all SENDs and WRITEs before it; a READ or atomic before it that still lacks its data means that
//! an answer was lost (an implied NAK). To not go back twice for one loss, a hole is acted on only when there was
//! progress since the requester last went back; else the ACK timeout is the remedy.
//!
//! # Spec
//! IBTA volume 1, section 9.7.5 (acknowledges), section 9.9.2 (requester error behaviour).

use protocol::Psn;
use protocol::roce::{Aeth, Ext, Kind, NakCode, Packet, Position, Syndrome};

use super::Requester;
use crate::gather::scatter;
use crate::qp::attr::RnrTimer;
use crate::qp::{Core, Ctx, Failure, ahead};
use crate::segment::payload_len;
use crate::{DropReason, Dropped, Host, LocalOp, Payload, SendOp, Status};

impl Requester {
    /// A packet with a response opcode arrived.
    pub(crate) fn handle_response<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        packet: &Packet<'_>,
    ) -> Result<(), Failure> {
        let psn = packet.bth.psn;
        // IBTA 9.4.2: only READ responses have a payload.
        let kind = packet.bth.opcode.operation.kind();
        if matches!(kind, Kind::Acknowledge | Kind::AtomicAcknowledge) && !packet.payload.is_empty() {
            ctx.drop(&Dropped::new(core.qpn, packet, DropReason::Malformed));
            return Ok(());
        }
        if !self.is_outstanding(psn) {
            ctx.drop(&Dropped::new(core.qpn, packet, DropReason::GhostResponse));
            // A responder that has more receive requests now may say so by repeating its last acknowledge.
            if let (Ext::Aeth(aeth), true) = (packet.ext, psn.advance(1) == self.unacked) {
                self.take_credits(aeth);
            }
            return Ok(());
        }
        match (kind, packet.ext) {
            (Kind::Acknowledge, Ext::Aeth(aeth)) => self.on_acknowledge(core, ctx, packet, aeth),
            (Kind::AtomicAcknowledge, Ext::AtomicAck(aeth, original)) => {
                self.on_atomic_acknowledge(core, ctx, packet, aeth, original)
            }
            _ => self.on_read_response(core, ctx, packet),
        }
    }

    fn on_acknowledge<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        packet: &Packet<'_>,
        aeth: Aeth,
    ) -> Result<(), Failure> {
        let psn = packet.bth.psn;
        let holes_count = self.holes_count;
        match aeth.syndrome {
            Syndrome::Ack { .. } => {
                let done = self.acknowledge(core, ctx, psn.advance(1));
                self.take_credits(aeth);
                // A duplicate SEND before a READ is answered with the newest PSN, which can be the READ's own: no hole.
                let behind = self
                    .queue
                    .front()
                    .is_some_and(|front| ahead(psn, self.unacked) >= ahead(front.end(), self.unacked));
                if !done && behind { self.on_hole(core, ctx, packet, holes_count) } else { Ok(()) }
            }
            Syndrome::RnrNak { timer } => {
                if !self.acknowledge(core, ctx, psn) {
                    return self.on_hole(core, ctx, packet, holes_count);
                }
                // Copies of it, and answers to what was sent before it, ask for no more waiting, and cost no retry.
                if self.readiness.is_told() {
                    return Ok(());
                }
                ctx.stats.naks_received.rnr += 1;
                self.wait_for_receiver(core, ctx, ctx.now + RnrTimer::new(timer).duration())
            }
            Syndrome::Nak(NakCode::PsnSequence) => {
                let reached = self.acknowledge(core, ctx, psn);
                // A responder complains once of a gap, so one more about the same PSN is a copy that the wire made, or late.
                let copy = self.nak_heard.replace(psn) == Some(psn);
                // Its complaint about packets that were in flight behind one it was not ready for must not shorten the
                // wait; one about packets we are about to send again anyway is late.
                if copy || self.readiness.is_waiting() || self.is_rewound() {
                    return Ok(());
                }
                ctx.stats.naks_received.sequence += 1;
                // With a READ unanswered before it, each NAK on the way would use up a retry.
                if !reached {
                    return self.on_hole(core, ctx, packet, holes_count);
                }
                self.go_back(core, ctx)
            }
            Syndrome::Nak(code) => {
                if !self.acknowledge(core, ctx, psn) {
                    return self.on_hole(core, ctx, packet, holes_count);
                }
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
                    return self.on_hole(core, ctx, packet, holes_count);
                }
                Err(self.fail_front(core, ctx, Status::BadResponse))
            }
        }
    }

    fn on_read_response<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        packet: &Packet<'_>,
    ) -> Result<(), Failure> {
        let holes_count = self.holes_count;
        if !self.acknowledge(core, ctx, packet.bth.psn) {
            return self.on_hole(core, ctx, packet, holes_count);
        }
        let Some(front) = self.queue.front() else { return Ok(()) };
        let SendOp::Read { .. } = front.wr.op else {
            return Err(self.fail_front(core, ctx, Status::BadResponse));
        };
        let index = ahead(self.unacked, front.first);
        let last = index + 1 == front.packets;
        let position = packet.bth.opcode.operation.position();
        // After a READ was asked again from its middle, packets of both answers may be under way, and some peers answer
        // from the middle with MIDDLE. The PSN says where they belong; only the end must be one, and nothing else but the
        // end of a piece may be.
        let in_place = if front.in_pieces {
            let ends_piece = (index + 1).is_multiple_of(front.piece.max(1));
            position.ends() == last || (position.ends() && ends_piece)
        } else {
            position == Position::of(index == 0, last)
        };
        let positive = match packet.ext {
            Ext::Aeth(aeth) => matches!(aeth.syndrome, Syndrome::Ack { .. }),
            _ => true,
        };
        if !in_place || !positive || packet.payload.len() != payload_len(front.len, core.mtu(), index) {
            return Err(self.fail_front(core, ctx, Status::BadResponse));
        }
        if let Ext::Aeth(aeth) = packet.ext {
            self.take_credits(aeth);
        }
        let offset = index as usize * core.mtu();
        self.take_data(core, ctx, offset, packet.payload)
    }

    fn on_atomic_acknowledge<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        packet: &Packet<'_>,
        aeth: Aeth,
        original: u64,
    ) -> Result<(), Failure> {
        let psn = packet.bth.psn;
        let holes_count = self.holes_count;
        if !self.acknowledge(core, ctx, psn) {
            return self.on_hole(core, ctx, packet, holes_count);
        }
        let atomic = self
            .queue
            .front()
            .is_some_and(|front| matches!(front.wr.op, SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. }));
        if !atomic || !self.take_credits(aeth) {
            return Err(self.fail_front(core, ctx, Status::BadResponse));
        }
        // Guests are little-endian machines, and read the result as an integer of theirs.
        self.take_data(core, ctx, 0, &original.to_le_bytes())
    }

    /// Takes the credits of an acknowledge, after the messages that it completes have left. Whether it is a positive one.
    fn take_credits(&mut self, aeth: Aeth) -> bool {
        let Syndrome::Ack { credits } = aeth.syndrome else { return false };
        self.credits.on_given(credits, self.takers_done);
        true
    }

    /// Puts the front request's next answer into memory, and completes the request with its last.
    fn take_data<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        offset: usize,
        data: &[u8],
    ) -> Result<(), Failure> {
        let Some(front) = self.queue.front() else { return Ok(()) };
        let sges = match &front.wr.payload {
            Payload::Sges(sges) => sges.as_slice(),
            Payload::Inline(_) => &[],
        };
        if let Err(reason) = scatter(ctx.host, core.accessor(), sges, offset, data) {
            return Err(self.fail_front(core, ctx, Status::LocalProtection(reason)));
        }
        self.unacked = self.unacked.advance(1);
        if self.unacked == front.end() {
            if let SendOp::Read { invalidate: Some(key), .. } = front.wr.op
                && let Err(reason) = ctx.host.run_local(core.accessor(), &LocalOp::Invalidate(key))
            {
                return Err(self.fail_front(core, ctx, Status::MemoryManagement(reason)));
            }
            self.complete_front(core, ctx);
        }
        self.on_progress(core, ctx, 1);
        Ok(())
    }

    /// Everything before `to` is answered, as far as it needs no data. False: a READ or atomic is in the way; it is at
    /// the front then. True: `to` itself is the oldest PSN without an answer.
    fn acknowledge<H: Host>(&mut self, core: &Core, ctx: &mut Ctx<'_, H>, to: Psn) -> bool {
        let mut left = ahead(to, self.unacked);
        let mut gained = 0;
        // Bound: each round but the last takes a request out of the queue.
        while left > 0 {
            let Some(front) = self.queue.front() else { break };
            if front.wants_data() {
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

    /// An answer the front request waits for is missing.
    fn on_hole<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        packet: &Packet<'_>,
        counts: bool,
    ) -> Result<(), Failure> {
        ctx.drop(&Dropped::new(core.qpn, packet, DropReason::ResponseGap));
        if !counts {
            return Ok(());
        }
        ctx.stats.recovery.implied_naks += 1;
        self.go_back(core, ctx)
    }
}
