//! Requester of a reliable connection (RC, XRC initiator): fetches send requests, segments them into packets, and
//! retransmits the packets until they are acknowledged. [`transmit`] selects the next packet to send, and [`response`]
//! handles the responder's replies.
//!
//! Requests are queued in posting order, each with its range of PSNs. A READ consumes one PSN per response packet.
//! Three PSNs describe the whole state:
//!
//! ```text
//!   queue:   [ SEND 10..13 ][ READ 13..17 ][ WRITE 17..20 ][ SEND 20..21 ]
//!                    ^ unacked              ^ cursor        ^ high
//! ```
//!
//! - `unacked`: the oldest unacknowledged PSN. It is always in the front request, because requests complete in order
//!   and leave the queue on completion. For a READ, it is the PSN of the next response packet.
//! - the cursor: the next packet to send. A retry (go-back-N) moves it back to `unacked`.
//! - `high`: one past the newest PSN ever sent. Responses with this PSN or a later one are ghosts and are dropped.
//!
//! Packets are not buffered, so a retransmission gathers the payload from guest memory again.
//!
//! # Spec
//! IBTA volume 1, sections 9.7.2 to 9.7.5 and 9.9.2; JingZhao interface, sections 6.7, 10.6 and 11.3.

pub(super) mod credits;
mod response;
mod rnr;
mod transmit;
mod wait_reason;

use std::collections::VecDeque;

use protocol::Psn;

use self::credits::Credits;
use self::rnr::RnrState;
use super::attr::{RnrRetry, Service, State};
use super::congestion::Window;
use super::{Core, Ctx, FatalError, ahead};
use crate::pooled_slots::PooledSlots;
use crate::segment::packet_count;
use crate::{Fetch, Host, Instant, Queue, Retry, RetryCause, SendOp, SendRequest, Status, limits};

/// A send request that has been fetched but not completed.
#[derive(Debug)]
pub(crate) struct Request {
    wr: SendRequest,
    /// Time when the request was fetched.
    since: Instant,
    /// Message length in bytes.
    len: u32,
    first: Psn,
    /// Number of PSNs; 0 for a NOP, a local operation or a request that has failed validation.
    packets: u32,
    /// Whether a request without packets has been executed. If so, a retry must not execute it again.
    executed: bool,
    /// For a READ: index of the first response packet requested by the newest request packet.
    chunk_start: u32,
    /// For a READ: chunk size in packets, a power of two; 0 before the first request packet.
    chunk_packets: u32,
    /// For a READ: whether any request packet covered only part of the message. If so, response sequences can start and
    /// end inside the message.
    is_chunked: bool,
    /// Sequence number among messages that consume a receive request. A message that does not consume a receive request
    /// has the number of the last earlier message that does.
    recv_seq: u32,
    /// Whether the packet that consumes a receive request was a probe, beyond the credit limit, when it was last sent.
    is_probe: bool,
    /// If set, the request cannot be executed, and completes with this status once all earlier requests are done.
    failure: Option<Status>,
}

impl Request {
    /// Returns whether the response carries data, so that a plain ACK does not complete the request.
    fn returns_data(&self) -> bool {
        matches!(self.wr.op, SendOp::Read { .. } | SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. })
    }

    /// Returns the PSN after the request's last PSN.
    fn end(&self) -> Psn {
        self.first.advance(self.packets)
    }
}

/// Reason why a request cannot start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StallReason {
    Fence,
    Invalidation,
    PacketNumbers,
}

#[derive(Debug)]
pub(crate) struct Requester {
    queue: VecDeque<Request>,
    /// Index of the request at the cursor, which is the next request to send.
    cursor: usize,
    /// Index of the next packet of the request at the cursor.
    next: u32,
    unacked: Psn,
    high: Psn,
    /// PSN to assign to the next request fetched.
    end: Psn,
    /// Whether the send queue may hold requests that have not been fetched.
    may_have_posted: bool,
    /// Whether the send queue could not be read. If this ends a burst, the next step reports the error.
    is_broken: bool,
    window: Window,
    /// Number of packets sent since the last packet with AckReq.
    since_ack_req: u32,
    ack_deadline: Option<Instant>,
    /// Time when `unacked` last advanced or, if later, when the oldest unacknowledged packet was sent.
    waiting_since: Instant,
    rnr_state: RnrState,
    /// Number of retries after timeouts, sequence NAKs and implied NAKs since `unacked` last advanced or an RNR NAK
    /// arrived.
    retries: u8,
    rnr_retries: u32,
    /// Number of packets retransmitted since RESET.
    retransmitted: u64,
    /// Whether `unacked` has advanced since the last retry. If so, a gap in the responses triggers another retry.
    implied_nak_armed: bool,
    /// PSN of the newest sequence NAK since `unacked` last advanced.
    last_nak_psn: Option<Psn>,
    /// Sequence number of the last fetched message that consumes a receive request.
    recv_seq_assigned: u32,
    /// Sequence number of the last successfully completed message that consumes a receive request.
    recv_seq_done: u32,
    credits: Credits,
}

impl Requester {
    pub(crate) fn new(psn: Psn, window_packets: u32) -> Self {
        Self {
            queue: VecDeque::new(),
            cursor: 0,
            next: 0,
            unacked: psn,
            high: psn,
            end: psn,
            may_have_posted: false,
            is_broken: false,
            window: Window::new(window_packets),
            since_ack_req: 0,
            ack_deadline: None,
            waiting_since: Instant::ZERO,
            rnr_state: RnrState::Ready,
            retries: 0,
            rnr_retries: 0,
            retransmitted: 0,
            implied_nak_armed: true,
            last_nak_psn: None,
            recv_seq_assigned: 0,
            recv_seq_done: 0,
            credits: Credits::default(),
        }
    }

    pub(crate) fn pooled_slots(&self) -> usize {
        PooledSlots::requests_of(self.queue.capacity())
    }

    /// Sets the next send PSN. Ignored while requests are outstanding.
    pub(crate) fn set_psn(&mut self, psn: Psn) {
        if self.queue.is_empty() {
            (self.unacked, self.high, self.end) = (psn, psn, psn);
        }
    }

    pub(crate) fn notify_send(&mut self) {
        self.may_have_posted = true;
    }

    pub(crate) fn send_psn(&self) -> Psn {
        self.high
    }

    pub(crate) fn unacked_psn(&self) -> Psn {
        self.unacked
    }

    pub(crate) fn retransmitted(&self) -> u64 {
        self.retransmitted
    }

    /// Returns whether [`Requester::transmit`] may produce a frame.
    pub(crate) fn has_work(&self) -> bool {
        !self.rnr_state.is_waiting() && (self.may_have_posted || self.cursor < self.queue.len())
    }

    /// Returns true if no started message is outstanding. A QP in SQD is then drained.
    pub(crate) fn is_drained(&self) -> bool {
        self.unacked == self.high && !self.has_started(0)
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.rnr_state.deadline().or(self.ack_deadline)
    }

    pub(crate) fn handle_timeout<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
    ) -> Result<(), FatalError> {
        if self.rnr_state.advance_to(ctx.now) {
            self.report_retry(core, ctx, RetryCause::RnrNak);
        }
        // IBTA 9.7.6: after a local ACK timeout, retransmission starts from the oldest unacknowledged PSN.
        if self.ack_deadline.is_some_and(|at| at <= ctx.now) {
            ctx.stats.recovery.timeouts += 1;
            self.window.on_timeout();
            self.go_back(core, ctx, RetryCause::AckTimeout)?;
        }
        Ok(())
    }

    /// Completes all fetched requests as flushed and stops all timers. The caller flushes the requests still in the
    /// send queue.
    pub(crate) fn flush<H: Host>(&mut self, core: &Core, ctx: &mut Ctx<'_, H>) {
        for request in self.queue.drain(..) {
            ctx.complete(core, Queue::Send, request.wr.wr_id, Err(Status::Flushed));
        }
        ctx.spares.shrink_if_empty(&mut self.queue);
        (self.cursor, self.next) = (0, 0);
        (self.unacked, self.end) = (self.high, self.high);
        (self.ack_deadline, self.rnr_state) = (None, RnrState::Ready);
        (self.may_have_posted, self.is_broken) = (false, false);
    }

    /// Returns the maximum number of outstanding requests. A QP that is denied additional slots cannot stall, since it
    /// has requests in flight whose completion triggers the next fetch.
    fn request_limit(pooled: PooledSlots) -> usize {
        if pooled.no_requests_left() { limits::KEPT_REQUESTS } else { limits::OUTSTANDING_REQUESTS }
    }

    /// Fetches the next request from the send queue. Returns false if the queue is empty or the limit on outstanding
    /// requests has been reached.
    fn fetch<H: Host>(&mut self, core: &Core, ctx: &mut Ctx<'_, H>) -> Result<bool, FatalError> {
        let most = Self::request_limit(ctx.pooled);
        if !self.may_have_posted || core.state != State::Rts || self.queue.len() >= most {
            return Ok(false);
        }
        if self.is_broken {
            return Err(FatalError::Queue(Queue::Send));
        }
        match ctx.host.next_send(core.qpn) {
            Fetch::Ready(wr) => self.enqueue(core, ctx, wr, None),
            Fetch::Refused { wr_id, status } => {
                self.enqueue(core, ctx, SendRequest::refused(wr_id), Some(status));
            }
            Fetch::Empty => {
                self.may_have_posted = false;
                return Ok(false);
            }
            Fetch::Broken => {
                self.is_broken = true;
                return Err(FatalError::Queue(Queue::Send));
            }
        }
        Ok(true)
    }

    /// Appends a fetched request to the queue. `failure` is the status of a refused request.
    fn enqueue<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        wr: SendRequest,
        failure: Option<Status>,
    ) {
        let message_len =
            u32::try_from(wr.payload.len()).ok().filter(|&len| len <= core.attrs.max_message_len);
        let failure = failure.or(match (message_len, &wr.op) {
            (None, _) => Some(Status::LocalLength),
            (Some(len), SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. }) if len != 8 => {
                Some(Status::LocalLength)
            }
            (Some(_), op) if lacks_srq(core, &wr) && op.sends_packets() => Some(Status::LocalQpOperation),
            _ => None,
        });
        let len = message_len.unwrap_or(0);
        let packets = match wr.op {
            _ if failure.is_some() => 0,
            op if !op.sends_packets() => 0,
            _ => packet_count(len, core.mtu()),
        };
        let first = self.end;
        self.end = first.advance(packets);
        self.recv_seq_assigned =
            self.recv_seq_assigned.wrapping_add(u32::from(failure.is_none() && wr.op.consumes_receive()));
        let request = Request {
            wr,
            since: ctx.now,
            len,
            first,
            packets,
            executed: false,
            chunk_start: 0,
            chunk_packets: 0,
            is_chunked: false,
            recv_seq: self.recv_seq_assigned,
            is_probe: false,
            failure,
        };
        ctx.spares.push_request(&mut self.queue, request, &mut ctx.pooled);
    }

    /// Resets the retry state after `packets` more packets have been acknowledged. The caller has already removed
    /// completed requests.
    fn on_progress<H: Host>(&mut self, core: &Core, ctx: &Ctx<'_, H>, packets: u32) {
        (self.retries, self.rnr_retries) = (0, 0);
        self.waiting_since = ctx.now;
        self.implied_nak_armed = true;
        (self.rnr_state, self.last_nak_psn) = (RnrState::Ready, None);
        self.window.on_acknowledged(packets);
        // Responses to packets sent before a retry can acknowledge packets beyond the cursor. Move the cursor past
        // them.
        if self.cursor == 0
            && let Some(front) = self.queue.front()
            && front.packets > 0
        {
            self.next = self.next.max(ahead(self.unacked, front.first));
        }
        self.ack_deadline = match core.attrs.ack_timeout {
            Some(timeout) if self.in_flight() > 0 => Some(ctx.now + timeout.after(self.retries)),
            _ => None,
        };
    }

    fn complete_front<H: Host>(&mut self, core: &Core, ctx: &mut Ctx<'_, H>) {
        if let Some(request) = self.queue.front() {
            let (wr_id, op, len, since) = (request.wr.wr_id, request.wr.op, request.len, request.since);
            self.recv_seq_done = request.recv_seq;
            self.drop_front(ctx);
            ctx.stats.request_time.record(ctx.now.saturating_since(since));
            ctx.complete_send(core, wr_id, op, len);
        }
        // Local operations queued after the front request have already been executed, but must complete in order.
        while self.queue.front().is_some_and(|request| request.executed) {
            self.complete_front_local(core, ctx);
        }
    }

    /// Completes the front request with an error. Returns the error that moves the QP to ERR.
    fn fail_front<H: Host>(&mut self, core: &Core, ctx: &mut Ctx<'_, H>, status: Status) -> FatalError {
        if let Some(wr_id) = self.queue.front().map(|request| request.wr.wr_id) {
            self.drop_front(ctx);
            ctx.complete(core, Queue::Send, wr_id, Err(status));
        }
        FatalError::Send(status)
    }

    /// Retransmits from the oldest unacknowledged PSN or fails the front request if no retries are left.
    fn go_back<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        cause: RetryCause,
    ) -> Result<(), FatalError> {
        // IBTA 9.9.2: timeouts, sequence NAKs and implied NAKs share one retry counter.
        if self.retries >= core.attrs.retry_count {
            return Err(self.fail_front(core, ctx, Status::RetryExceeded));
        }
        self.retries += 1;
        self.report_retry(core, ctx, cause);
        if self.window.on_loss(ahead(self.high, self.unacked)) {
            ctx.stats.recovery.window_cuts += 1;
        }
        self.rewind();
        Ok(())
    }

    #[cold]
    fn report_retry<H: Host>(&self, core: &Core, ctx: &mut Ctx<'_, H>, cause: RetryCause) {
        let (count, limit) = match cause {
            RetryCause::RnrNak => (self.rnr_retries, rnr_limit(core)),
            RetryCause::AckTimeout | RetryCause::SequenceNak | RetryCause::ImpliedNak => {
                (self.retries.into(), Some(core.attrs.retry_count))
            }
        };
        let (psn, packets) = (self.unacked, ahead(self.high, self.unacked));
        ctx.host.retrying(&Retry { qpn: core.qpn, cause, psn, packets, count, limit });
    }

    /// Handles an RNR NAK for the front request. Nothing is sent before `until`. After that, only a few packets are
    /// sent until one is acknowledged, because the responder drops packets that follow a refused one.
    fn wait_for_receiver<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        until: Instant,
    ) -> Result<(), FatalError> {
        // IBTA 9.9.2: RNR NAKs have a separate retry counter.
        if rnr_limit(core).is_some_and(|limit| self.rnr_retries >= u32::from(limit)) {
            return Err(self.fail_front(core, ctx, Status::RnrRetryExceeded));
        }
        self.rnr_retries = self.rnr_retries.saturating_add(1);
        // The responder is alive, so earlier losses no longer count against the retry limit.
        self.retries = 0;
        self.rewind();
        self.rnr_state = RnrState::Waiting { until };
        Ok(())
    }

    /// Returns whether the cursor is at the oldest unacknowledged PSN, which means that nothing has been sent since the
    /// last retry.
    fn is_rewound(&self) -> bool {
        self.in_flight() == 0
    }

    /// Returns whether all of `packets` PSNs, beginning with `psn`, have been sent but not acknowledged.
    pub(crate) fn are_outstanding(&self, psn: Psn, packets: u32) -> bool {
        ahead(psn, self.unacked) + packets <= ahead(self.high, self.unacked)
    }

    fn is_outstanding(&self, psn: Psn) -> bool {
        ahead(psn, self.unacked) < ahead(self.high, self.unacked)
    }

    fn rewind(&mut self) {
        for request in self.queue.iter_mut().take(self.cursor + 1) {
            (request.is_chunked, request.chunk_start) = (true, 0);
        }
        self.cursor = 0;
        self.next = self.queue.front().map_or(0, |front| ahead(self.unacked, front.first));
        self.since_ack_req = 0;
        self.ack_deadline = None;
        self.implied_nak_armed = false;
    }

    /// Removes the front request in place. Returning it would copy several hundred bytes.
    fn drop_front<H: Host>(&mut self, ctx: &mut Ctx<'_, H>) {
        drop(self.queue.pop_front());
        ctx.spares.shrink_if_empty(&mut self.queue);
        match self.cursor.checked_sub(1) {
            Some(cursor) => self.cursor = cursor,
            None => self.next = 0,
        }
    }

    /// Executes the request at the cursor, which has no packets, and advances the cursor to the next request.
    fn execute_local<H: Host>(&mut self, core: &Core, ctx: &mut Ctx<'_, H>) {
        let Some(request) = self.queue.get_mut(self.cursor) else { return };
        if let (SendOp::Local(op), false) = (&request.wr.op, request.executed)
            && let Err(reason) = ctx.host.run_local(core.initiator(), &op.token)
        {
            request.failure = Some(Status::MemoryManagement(reason));
            return;
        }
        request.executed = true;
        if self.cursor == 0 {
            self.complete_front_local(core, ctx);
        } else {
            (self.cursor, self.next) = (self.cursor + 1, 0);
        }
    }

    fn complete_front_local<H: Host>(&mut self, core: &Core, ctx: &mut Ctx<'_, H>) {
        if let Some((wr_id, op)) = self.queue.front().map(|request| (request.wr.wr_id, request.wr.op)) {
            self.drop_front(ctx);
            ctx.complete_send(core, wr_id, op, 0);
        }
    }

    fn cursor_psn(&self) -> Psn {
        match self.queue.get(self.cursor) {
            Some(request) => request.first.advance(self.next),
            None => self.end,
        }
    }

    /// Returns the number of PSNs between the oldest unacknowledged PSN and the cursor.
    fn in_flight(&self) -> u32 {
        ahead(self.cursor_psn(), self.unacked)
    }

    /// Returns whether any packet of request `index` has ever been sent.
    fn has_started(&self, index: usize) -> bool {
        self.queue.get(index).is_some_and(|request| {
            request.packets > 0
                && ((index == 0 && request.first != self.unacked) || self.is_outstanding(request.first))
        })
    }

    /// Returns the number of READ and atomic request packets whose responses are outstanding (IBTA: initiator depth).
    fn rd_atomics_in_flight(&self) -> u32 {
        let requests = self.queue.iter().enumerate().take(self.cursor + 1);
        requests
            .filter(|(_, request)| request.returns_data())
            .map(|(index, request)| {
                let got = if index == 0 { ahead(self.unacked, request.first) } else { 0 };
                let requested = if index < self.cursor { request.packets } else { self.next };
                u32::from(got < requested) + u32::from(got < requested && got < request.chunk_start)
            })
            .sum()
    }
}

/// Returns the RNR retry limit, or `None` if retries are unlimited.
fn rnr_limit(core: &Core) -> Option<u8> {
    match core.attrs.rnr_retry {
        RnrRetry::Limited(limit) => Some(limit),
        RnrRetry::Infinite => None,
    }
}

fn lacks_srq(core: &Core, wr: &SendRequest) -> bool {
    core.attrs.service == Service::XrcIni && wr.remote_srq.is_none()
}
