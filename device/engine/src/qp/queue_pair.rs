//! A queue pair: the QP state, a requester, a responder, and the error handling that affects both.

use protocol::Psn;
use protocol::ids::{MacAddr, Msn, Pkey, Qpn};
use protocol::roce::{Bth, Encap, Ext, IpAddrs, Mtu, Opcode, PacketPayload as _};

use super::attr::{Flush, Modify, QpAttrs, QpSnapshot, Service, State};
use super::congestion::{Notifier, Pace, ecn_capable, is_marked, not_ecn_capable};
use super::requester::Requester;
use super::responder::Responder;
use super::unreliable::{Receiver, Sender};
use super::{Core, Ctx, FatalError, Frame, Headers, Step};
use crate::gather::FramePayload;
use crate::pkeys::Pkeys;
use crate::pooled_slots::PooledSlots;
use crate::{
    AsyncEvent, DropReason, Dropped, Ended, EndedBy, Expecting, Fetch, Host, Instant, QpStatus, Queue,
    ReceivedPacket, Room, Status, TxOffloads, WaitReason, limits,
};

#[derive(Debug)]
enum Machines {
    /// RC uses both the requester and the responder, an XRC initiator only the requester, and an XRC target only the
    /// responder.
    Reliable(Requester, Responder),
    Unreliable(Sender, Receiver),
}

#[derive(Debug)]
pub(crate) struct Qp {
    core: Core,
    machines: Machines,
    window_packets: u32,
    /// Whether the QP is in SQD with started messages outstanding.
    draining: bool,
    /// Whether to raise an event when the send queue has drained.
    notify_drained: bool,
    /// Whether the event for the first packet in RTR has been raised.
    established: bool,
    /// Whether posted requests remain to be flushed from the send queue.
    flush_send: bool,
    /// Whether posted requests remain to be flushed from the receive queue.
    flush_recv: bool,
    /// Whether requests are sent before replies in this turn.
    requests_first: bool,
    notifier: Notifier,
    pace: Option<Pace>,
    /// Arrival time of the latest packet accepted from the peer.
    last_packet_at: Option<Instant>,
    /// Time and cause of the transition to SQE or ERR.
    ended: Option<(Instant, EndedBy)>,
    /// Engine bookkeeping: whether the QP is in the ready list.
    pub(crate) scheduled: bool,
    /// Engine bookkeeping: whether the QP is in the dirty list.
    pub(crate) dirty: bool,
    /// Engine bookkeeping: the QP's turn in the list of QPs in ERR, if it is in the list.
    pub(crate) error_turn: Option<u64>,
    /// Engine bookkeeping: the registered deadline.
    pub(crate) registered: Option<Instant>,
}

const _: () = assert!(size_of::<Qp>() <= 1024, "the table in `limits` gives the size of a QP");

impl Qp {
    pub(crate) fn new(qpn: Qpn, attrs: QpAttrs, window_packets: u32) -> Self {
        Self {
            machines: machines(&attrs, window_packets),
            core: Core { qpn, state: State::Reset, attrs: with_ecn(attrs) },
            window_packets,
            draining: false,
            notify_drained: false,
            established: false,
            flush_send: false,
            flush_recv: false,
            requests_first: false,
            notifier: Notifier::default(),
            pace: None,
            last_packet_at: None,
            ended: None,
            scheduled: false,
            dirty: false,
            error_turn: None,
            registered: None,
        }
    }

    pub(crate) fn qpn(&self) -> Qpn {
        self.core.qpn
    }

    /// Returns whether this QP receives packets addressed to `number`.
    pub(crate) fn has_wire_number(&self, number: Qpn) -> bool {
        number == self.core.wire_qpn() || self.core.attrs.alias == Some(number)
    }

    pub(crate) fn pooled_slots(&self) -> PooledSlots {
        match &self.machines {
            Machines::Reliable(requester, responder) => {
                PooledSlots { requests: requester.pooled_slots(), replies: responder.pooled_slots() }
            }
            Machines::Unreliable(..) => PooledSlots::default(),
        }
    }

    pub(crate) fn state(&self) -> State {
        self.core.state
    }

    pub(crate) fn service(&self) -> Service {
        self.core.attrs.service
    }

    /// Returns whether the engine must poll the receive queue for requests to flush while the QP is in ERR. Polling is
    /// needed because receive requests are posted without a doorbell.
    pub(crate) fn polls_receives(&self) -> bool {
        !self.core.uses_srq() && self.core.attrs.service.receives() && self.engine_flushes()
    }

    fn engine_flushes(&self) -> bool {
        self.core.attrs.flush == Flush::Each
    }

    pub(crate) fn modify<H: Host>(&mut self, ctx: &mut Ctx<'_, H>, modify: &Modify) {
        let from = self.core.state;
        if modify.to == State::Reset {
            self.reset(modify.attrs);
            return;
        }
        if from == State::Reset {
            self.reset(modify.attrs);
        }
        if from == State::Sqe && modify.to == State::Rts {
            self.finish_flush(ctx);
        }
        let old = self.core.attrs;
        self.core.attrs = with_ecn(QpAttrs { service: old.service, ..modify.attrs });
        if !from.is_unconnected() {
            // Segments of a message may be in flight, so the path MTU must not change.
            self.core.attrs.mtu = old.mtu;
        }
        match &mut self.machines {
            Machines::Reliable(requester, responder) => {
                modify.send_psn.into_iter().for_each(|psn| requester.set_psn(psn));
                modify.recv_psn.into_iter().for_each(|psn| responder.set_psn(psn));
            }
            Machines::Unreliable(sender, receiver) => {
                modify.send_psn.into_iter().for_each(|psn| sender.set_psn(psn));
                modify.recv_psn.into_iter().for_each(|psn| receiver.set_psn(psn));
            }
        }
        self.core.state = modify.to;
        match modify.to {
            State::Err if from != State::Err => {
                self.ended.get_or_insert((ctx.now, EndedBy::Software));
                self.enter_error(ctx);
            }
            State::Sqd if from != State::Sqd => {
                (self.draining, self.notify_drained) = (true, modify.notify_drained);
                self.check_drained(ctx);
            }
            State::Rts => {
                (self.draining, self.ended) = (false, None);
                if from == State::Sqd {
                    self.notify_send_queue();
                }
            }
            _ => {}
        }
    }

    pub(crate) fn snapshot(&self) -> QpSnapshot {
        let (send_psn, unacked_psn, recv_psn, msn): (Psn, Psn, Psn, Msn) = match &self.machines {
            Machines::Reliable(requester, responder) => {
                (requester.send_psn(), requester.unacked_psn(), responder.recv_psn(), responder.msn())
            }
            Machines::Unreliable(sender, receiver) => {
                (sender.psn(), sender.psn(), receiver.psn(), receiver.msn())
            }
        };
        let (state, draining) = (self.core.state, self.draining);
        QpSnapshot { state, draining, send_psn, unacked_psn, recv_psn, msn }
    }

    /// Describes what the QP is doing or waiting for. `pooled` counts the pooled slots allocated to all QPs.
    pub(crate) fn explain(&self, pooled: PooledSlots, now: Instant) -> QpStatus {
        let core = &self.core;
        let ended = self.ended.map(|(at, by)| Ended { ago: now.saturating_since(at), by });
        let paused = self.pace.and_then(|pace| pace.paused_until());
        let (send, unanswered, retransmitted, receive, answers) = match &self.machines {
            Machines::Reliable(requester, responder) => (
                requester.wait_reason(core, pooled, now),
                requester.unanswered(core, now),
                requester.retransmitted(),
                responder.expecting(now),
                responder.pending_replies(),
            ),
            Machines::Unreliable(sender, receiver) => {
                (sender.wait_reason(core), None, 0, receiver.expecting(), 0)
            }
        };
        let send = match (core.state, paused) {
            _ if !core.attrs.service.has_send_queue() => WaitReason::NoSendQueue,
            (State::Reset | State::Init | State::Rtr, _) => WaitReason::State,
            (State::Sqe | State::Err, _) => WaitReason::Ended,
            (State::Rts | State::Sqd, Some(until)) if send == WaitReason::Turn => {
                WaitReason::Congestion { left: until.saturating_since(now) }
            }
            (State::Rts | State::Sqd, _) => send,
        };
        let receive = match core.state {
            _ if !core.attrs.service.receives() => Expecting::NoReceive,
            State::Reset | State::Init => Expecting::State,
            State::Err => Expecting::Ended,
            State::Rtr | State::Rts | State::Sqd | State::Sqe => receive,
        };
        QpStatus {
            state: core.state,
            service: core.attrs.service,
            last_packet: self.last_packet_at.map(|at| now.saturating_since(at)),
            ended,
            send,
            unanswered,
            retransmitted,
            receive,
            answers: u32::try_from(answers).unwrap_or(u32::MAX),
        }
    }

    pub(crate) fn notify_send<H: Host>(&mut self, ctx: &mut Ctx<'_, H>) {
        match self.core.state {
            State::Rts | State::Sqd => self.notify_send_queue(),
            State::Sqe | State::Err => {
                self.flush_send = self.engine_flushes() && self.core.attrs.service.has_send_queue();
                self.flush(ctx);
            }
            State::Reset | State::Init | State::Rtr => {}
        }
    }

    /// Flushes receive requests posted since the last poll. Called only in ERR.
    pub(crate) fn poll_error<H: Host>(&mut self, ctx: &mut Ctx<'_, H>) {
        self.flush_recv |= self.polls_receives();
        self.flush(ctx);
    }

    pub(crate) fn handle_packet<H: Host>(
        &mut self,
        ctx: &mut Ctx<'_, H>,
        encap: &Encap,
        packet: &ReceivedPacket<'_>,
    ) {
        self.handle(ctx, encap, packet, 1);
    }

    /// Handles a frame that carries several packets, each with at most `mtu` bytes of payload. The packets are handled
    /// together if `mtu` is the QP's path MTU, they pass the checks in `admit`, and their PSNs are the next expected
    /// ones (or, for responses, all outstanding). Otherwise, they are handled one by one.
    pub(crate) fn handle_segments<H: Host>(
        &mut self,
        ctx: &mut Ctx<'_, H>,
        encap: &Encap,
        packet: &ReceivedPacket<'_>,
        mtu: Mtu,
    ) {
        let packets = packet.segment_count(mtu);
        let is_next = mtu == self.core.attrs.mtu
            && self.admit(ctx.pkeys, encap, packet).is_ok()
            && match &self.machines {
                Machines::Reliable(requester, _) if packet.bth.opcode.is_response() => {
                    requester.are_outstanding(packet.bth.psn, packets)
                }
                Machines::Reliable(_, responder) => responder.recv_psn() == packet.bth.psn,
                Machines::Unreliable(_, receiver) => receiver.psn() == packet.bth.psn,
            };
        if is_next {
            return self.handle(ctx, encap, packet, packets);
        }
        packet.segments(mtu).for_each(|segment| self.handle(ctx, encap, &segment, 1));
    }

    /// Handles a packet. If `packets` is greater than 1, `packet` holds the combined payload of that many consecutive
    /// packets.
    fn handle<H: Host>(
        &mut self,
        ctx: &mut Ctx<'_, H>,
        encap: &Encap,
        packet: &ReceivedPacket<'_>,
        packets: u32,
    ) {
        let connected = !self.core.attrs.service.is_datagram();
        // IBTA 9.6.1.1, 9.6.1.2: packets that fail a check are dropped without a response.
        let pkey_index = match self.admit(ctx.pkeys, encap, packet) {
            Ok(index) => index,
            Err(reason) => {
                ctx.stats.received_ip.of(&encap.ip).discarded += 1;
                return ctx.drop_packet(&Dropped::new(self.core.qpn, packet, reason));
            }
        };
        self.last_packet_at = Some(ctx.now);
        if connected && packet.bth.opcode == Opcode::CNP {
            ctx.stats.congestion.received_cnps += 1;
            self.pace.get_or_insert_with(|| Pace::new(ctx.now)).on_notification(ctx.now);
            return;
        }
        if connected && is_marked(encap.traffic_class) && !packet.payload.is_empty() {
            self.notifier.on_marked(ctx.now);
        }
        let response = packet.bth.opcode.is_response();
        let core = &self.core;
        let result = match &mut self.machines {
            Machines::Reliable(requester, _) if response => {
                if core.state.sends() {
                    requester.handle_response(core, ctx, packet, packets).map(|()| false)
                } else {
                    ctx.drop_packet(&Dropped::new(core.qpn, packet, DropReason::GhostResponse));
                    Ok(false)
                }
            }
            Machines::Reliable(_, responder) => responder.handle_request(core, ctx, packet, packets),
            Machines::Unreliable(_, receiver) if connected => {
                receiver.handle_connected(core, ctx, packet, packets)
            }
            Machines::Unreliable(_, receiver) => {
                receiver.handle_datagram(core, ctx, encap, pkey_index, packet)
            }
        };
        // IBTA 11.6.3: communication established, raised once for the first packet accepted in RTR.
        if core.state == State::Rtr && !self.established && result == Ok(true) {
            self.established = true;
            ctx.raise(&self.core, AsyncEvent::CommunicationEstablished);
        }
        self.apply_failure(ctx, result.map(|_| ()));
    }

    /// Checks the service, state, addresses and P_Key of a packet. Returns the index of the matching P_Key.
    fn admit(&self, pkeys: &Pkeys, encap: &Encap, packet: &ReceivedPacket<'_>) -> Result<u16, DropReason> {
        let attrs = &self.core.attrs;
        let connected = !attrs.service.is_datagram();
        let notification = connected && packet.bth.opcode == Opcode::CNP;
        if !attrs.service.accepts(packet.bth.opcode) && !notification {
            Err(DropReason::WrongService)
        } else if !self.core.state.receives() {
            Err(DropReason::WrongState)
        } else if connected && !is_from(encap, &attrs.path) {
            Err(DropReason::WrongSource)
        } else if connected && attrs.own_address && !is_to(encap, &attrs.path) {
            Err(DropReason::WrongDestination)
        } else {
            self.partition(pkeys, packet.bth.pkey).ok_or(DropReason::WrongPkey)
        }
    }

    /// Returns the index of the P_Key table entry that matches a packet's P_Key, or `None` if the packet must be
    /// dropped.
    ///
    /// # Spec
    /// IBTA volume 1, section 9.6.1.1.3: QP0 accepts every P_Key, and QP1 accepts every P_Key in the port's table.
    fn partition(&self, pkeys: &Pkeys, found: Pkey) -> Option<u16> {
        let own = self.core.attrs.pkey_index;
        match self.core.attrs.service {
            Service::Smi => Some(own),
            Service::Gsi => pkeys.find(found),
            Service::Rc | Service::XrcIni | Service::XrcTgt | Service::Uc | Service::Ud => {
                pkeys.get(own).matches(found).then_some(own)
            }
        }
    }

    pub(crate) fn handle_timeout<H: Host>(&mut self, ctx: &mut Ctx<'_, H>) {
        if let Some(pace) = &mut self.pace {
            pace.advance_to(ctx.now);
        }
        if let Machines::Reliable(requester, _) = &mut self.machines
            && self.core.state.sends()
        {
            let result = requester.handle_timeout(&self.core, ctx);
            self.apply_failure(ctx, result);
        }
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        let machine = match &self.machines {
            Machines::Reliable(requester, _) if self.core.state.sends() => requester.deadline(),
            _ => None,
        };
        machine.into_iter().chain(self.pace.and_then(|pace| pace.paused_until())).min()
    }

    pub(crate) fn has_work(&self) -> bool {
        let (sends, paused) = (self.core.state.sends() && !self.is_paused(), self.is_paused());
        let machine = match &self.machines {
            Machines::Reliable(requester, responder) => {
                (sends && requester.has_work()) || responder.has_work(paused)
            }
            Machines::Unreliable(sender, _) => sends && sender.has_work(),
        };
        machine || self.notifier.is_due() || self.flush_send || self.flush_recv
    }

    /// Returns whether congestion control has paused this QP's data.
    fn is_paused(&self) -> bool {
        self.pace.is_some_and(|pace| pace.paused_until().is_some())
    }

    /// Starts a turn. Requests and replies go first in alternate turns, so that neither starves the other.
    pub(crate) fn begin_turn(&mut self) {
        self.requests_first = !self.requests_first;
    }

    /// Appends the next frame to `out` or does a bounded amount of other work.
    pub(crate) fn transmit<H: Host>(&mut self, ctx: &mut Ctx<'_, H>, out: &mut Vec<u8>) -> Step {
        if self.notifier.is_due() {
            return Step::Frame(self.notify(ctx, out));
        }
        if self.pace.is_some() {
            // Send single packets, because a longer frame would lengthen the pause that follows it.
            ctx.room = Room::ONE_FRAME;
            if ctx.offloads == TxOffloads::Segmentation {
                ctx.offloads = TxOffloads::Icrc;
            }
        }
        let paused = self.is_paused();
        let core = &self.core;
        let sends = core.state.sends() && !paused;
        let result = match &mut self.machines {
            Machines::Reliable(requester, responder) => {
                let mut sides = [false, true];
                if self.requests_first {
                    sides.reverse();
                }
                let mut result = Ok(Step::Idle);
                for requests in sides {
                    result = match requests {
                        true if sends => requester.transmit(core, ctx, out),
                        true => Ok(Step::Idle),
                        false if responder.has_work(paused) => responder.transmit(core, ctx, out),
                        false => Ok(Step::Idle),
                    };
                    if result != Ok(Step::Idle) {
                        break;
                    }
                }
                result
            }
            Machines::Unreliable(sender, _) if sends => sender.transmit(core, ctx, out),
            Machines::Unreliable(..) => Ok(Step::Idle),
        };
        let step = result.unwrap_or(Step::Again);
        if let (Some(pace), Step::Frame(frame)) = (&mut self.pace, step)
            && !pace.on_sent(ctx.now, frame.emitted.frame_len())
        {
            self.pace = None;
        }
        self.apply_failure(ctx, result.map(|_| ()));
        if step == Step::Idle && (self.flush_send || self.flush_recv) {
            self.flush(ctx);
            return if self.flush_send || self.flush_recv { Step::Again } else { Step::Idle };
        }
        step
    }

    /// Sends a congestion notification packet (CNP).
    ///
    /// # Spec
    /// IBTA annex A17, section A17.9.3 (CNP format).
    fn notify<H: Host>(&mut self, ctx: &mut Ctx<'_, H>, out: &mut Vec<u8>) -> Frame {
        const RESERVED_LEN: usize = 16;
        self.notifier.on_sent(ctx.now);
        ctx.stats.congestion.sent_cnps += 1;
        let attrs = &self.core.attrs;
        let bth = Bth {
            opcode: Opcode::CNP,
            solicited: false,
            mig_req: false,
            pkey: ctx.pkeys.get(attrs.pkey_index),
            fecn: false,
            becn: true,
            dest_qp: attrs.remote_qpn,
            ack_req: false,
            psn: Psn::default(),
        };
        let encap = Encap { traffic_class: not_ecn_capable(attrs.path.traffic_class), ..attrs.path };
        let headers = Headers { encap: &encap, bth: &bth, srqn: None, ext: &Ext::None };
        let emitted = ctx
            .emit(&self.core, out, &headers, &FramePayload::Zeros(RESERVED_LEN))
            .expect("a packet without data reads no memory");
        Frame { emitted, dst_mac: encap.dst_mac, wr_id: None }
    }

    /// Runs after every packet, timeout and transmit step. Applies the state transition that an error requires, and
    /// reports when the send queue has drained.
    #[inline]
    fn apply_failure<H: Host>(&mut self, ctx: &mut Ctx<'_, H>, result: Result<(), FatalError>) {
        match result {
            Ok(()) => self.check_drained(ctx),
            Err(failure) => self.fail(ctx, failure),
        }
    }

    #[cold]
    fn fail<H: Host>(&mut self, ctx: &mut Ctx<'_, H>, failure: FatalError) {
        match failure {
            _ if self.core.state == State::Err => self.drop_pending_replies(),
            // IBTA 10.3.1: a send error moves UC and UD QPs to SQE; the receive queue keeps working.
            FatalError::Send(status) if matches!(self.machines, Machines::Unreliable(..)) => {
                self.ended = Some((ctx.now, EndedBy::Send(status)));
                self.core.state = State::Sqe;
                (self.draining, self.flush_send) = (false, true);
                self.flush(ctx);
            }
            failure => {
                let by = match failure {
                    FatalError::Send(status) => EndedBy::Send(status),
                    FatalError::Recv(reason, cause) => EndedBy::Peer { reason, cause },
                    FatalError::Queue(queue) => EndedBy::Queue(queue),
                    FatalError::XrcSrq(_) => EndedBy::Queue(Queue::Recv),
                };
                self.ended = Some((ctx.now, by));
                let event = match failure {
                    FatalError::Queue(Queue::Recv) if self.core.attrs.srq => {
                        Some(AsyncEvent::SrqCatastrophic)
                    }
                    FatalError::Queue(_) => Some(AsyncEvent::WqCatastrophic),
                    FatalError::XrcSrq(srqn) => Some(AsyncEvent::XrcSrqCatastrophic(srqn)),
                    FatalError::Send(_) | FatalError::Recv(..) => None,
                };
                event.into_iter().for_each(|event| ctx.raise(&self.core, event));
                // The responder's own NAK must still be sent, so replies are discarded only if the send queue failed.
                if matches!(failure, FatalError::Send(_) | FatalError::Queue(Queue::Send)) {
                    self.drop_pending_replies();
                }
                self.core.state = State::Err;
                self.enter_error_with_replies(ctx);
            }
        }
    }

    /// Enters ERR at the request of software and discards pending replies.
    fn enter_error<H: Host>(&mut self, ctx: &mut Ctx<'_, H>) {
        self.drop_pending_replies();
        self.enter_error_with_replies(ctx);
    }

    fn enter_error_with_replies<H: Host>(&mut self, ctx: &mut Ctx<'_, H>) {
        self.draining = false;
        self.notifier = Notifier::default();
        let service = self.core.attrs.service;
        (self.flush_send, self.flush_recv) = (service.has_send_queue(), service.receives());
        self.flush(ctx);
    }

    /// Flushes the requests that doorbells posted before software moved the QP out of SQE. The send queue resumes with
    /// the requests that the next doorbell posts (JingZhao interface, section 10.5).
    fn finish_flush<H: Host>(&mut self, ctx: &mut Ctx<'_, H>) {
        // The loop is bounded, because a guest can link a request to itself. Requests that remain after the last
        // iteration are executed instead of flushed.
        for _ in 0..limits::EVENT_BACKLOG {
            if !self.flush_send {
                return;
            }
            let fetch = ctx.host.next_send(self.core.qpn);
            self.flush_send = flush_one(&self.core, ctx, Queue::Send, fetch, |wr| wr.wr_id);
        }
        self.flush_send = false;
    }

    /// Completes outstanding and posted requests as flushed: first the send queue, then the receive queue, each in
    /// order. Requests beyond the limit per step are flushed in later turns.
    fn flush<H: Host>(&mut self, ctx: &mut Ctx<'_, H>) {
        let each = self.engine_flushes();
        let core = &self.core;
        let room = limits::EVENT_BACKLOG.saturating_sub(ctx.events.len());
        let mut left = limits::FLUSHES_PER_STEP.min(room);
        if self.flush_send {
            match &mut self.machines {
                Machines::Reliable(requester, _) => requester.flush(core, ctx),
                Machines::Unreliable(sender, _) => sender.flush(core, ctx),
            }
            self.flush_send = each;
            while self.flush_send && left > 0 {
                left -= 1;
                let fetch = ctx.host.next_send(core.qpn);
                self.flush_send = flush_one(core, ctx, Queue::Send, fetch, |wr| wr.wr_id);
            }
        }
        if self.flush_recv && !self.flush_send {
            match &mut self.machines {
                Machines::Reliable(_, responder) => responder.flush(core, ctx),
                Machines::Unreliable(_, receiver) => receiver.flush(core, ctx),
            }
            // IBTA 10.2.9: requests in a shared queue are not flushed, since other QPs can use them. The event reports
            // that this QP no longer holds any of them.
            if core.uses_srq() {
                self.flush_recv = false;
                ctx.raise(core, AsyncEvent::LastWqeReached);
            }
            self.flush_recv &= each;
            while self.flush_recv && left > 0 {
                left -= 1;
                let fetch = ctx.host.next_flushed_recv(core.qpn);
                self.flush_recv = flush_one(core, ctx, Queue::Recv, fetch, |wr| wr.wr_id);
            }
        }
    }

    fn check_drained<H: Host>(&mut self, ctx: &mut Ctx<'_, H>) {
        if !self.draining {
            return;
        }
        self.draining = match &self.machines {
            Machines::Reliable(requester, _) => !requester.is_drained(),
            Machines::Unreliable(sender, _) => !sender.is_drained(),
        };
        if !self.draining && self.notify_drained {
            ctx.raise(&self.core, AsyncEvent::SqDrained);
        }
    }

    fn notify_send_queue(&mut self) {
        if !self.core.attrs.service.has_send_queue() {
            return;
        }
        match &mut self.machines {
            Machines::Reliable(requester, _) => requester.notify_send(),
            Machines::Unreliable(sender, _) => sender.notify_send(),
        }
    }

    fn drop_pending_replies(&mut self) {
        if let Machines::Reliable(_, responder) = &mut self.machines {
            responder.drop_pending_replies();
        }
    }

    /// Resets everything except the engine's bookkeeping.
    fn reset(&mut self, attrs: QpAttrs) {
        let fresh = Self::new(self.core.qpn, attrs, self.window_packets);
        *self = Self {
            scheduled: self.scheduled,
            dirty: self.dirty,
            error_turn: self.error_turn,
            registered: self.registered,
            ..fresh
        };
    }
}

fn machines(attrs: &QpAttrs, window_packets: u32) -> Machines {
    let psn = Psn::default();
    match attrs.service {
        Service::Rc | Service::XrcIni | Service::XrcTgt => {
            Machines::Reliable(Requester::new(psn, window_packets), Responder::new(psn))
        }
        Service::Uc | Service::Ud | Service::Smi | Service::Gsi => {
            Machines::Unreliable(Sender::new(psn), Receiver::new(psn))
        }
    }
}

/// Marks a connection's traffic class as ECN-capable, so that congested switches can mark its packets.
fn with_ecn(mut attrs: QpAttrs) -> QpAttrs {
    if !attrs.service.is_datagram() {
        attrs.path.traffic_class = ecn_capable(attrs.path.traffic_class);
    }
    attrs
}

/// Returns whether a packet came from the address and VLAN of the connected peer. If only one direction of an
/// InfiniBand connection carries a GRH, the packet and the path have different IP versions, and their MAC addresses are
/// compared instead. This comparison fails until the path's MAC address has been resolved.
fn is_from(encap: &Encap, path: &Encap) -> bool {
    let vlan = |encap: &Encap| encap.tag.map_or(0, |tag| tag.vid());
    let by_address = match (encap.ip, path.ip) {
        (IpAddrs::V4 { src, .. }, IpAddrs::V4 { dst, .. }) => src == dst,
        (IpAddrs::V6 { src, .. }, IpAddrs::V6 { dst, .. }) => src == dst,
        _ => path.dst_mac != MacAddr::default() && encap.src_mac == path.dst_mac,
    };
    by_address && vlan(encap) == vlan(path)
}

/// Returns whether a packet is addressed to the connection's local address.
///
/// # Spec
/// IBTA volume 1, section 9.6.1.2: the destination GID must be that of the local port.
fn is_to(encap: &Encap, path: &Encap) -> bool {
    match (encap.ip, path.ip) {
        (IpAddrs::V4 { dst, .. }, IpAddrs::V4 { src, .. }) => dst == src,
        (IpAddrs::V6 { dst, .. }, IpAddrs::V6 { src, .. }) => dst == src,
        _ => false,
    }
}

/// Completes one posted request as flushed. Returns false if the queue is empty or unreadable.
fn flush_one<H: Host, T>(
    core: &Core,
    ctx: &mut Ctx<'_, H>,
    queue: Queue,
    fetch: Fetch<T>,
    wr_id: impl FnOnce(&T) -> u64,
) -> bool {
    let wr_id = match &fetch {
        Fetch::Ready(wr) => wr_id(wr),
        Fetch::Refused { wr_id, .. } => *wr_id,
        Fetch::Empty | Fetch::Broken => return false,
    };
    ctx.complete(core, queue, wr_id, Err(Status::Flushed));
    true
}
