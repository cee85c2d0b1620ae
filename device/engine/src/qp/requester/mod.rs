//! The requester of a reliable connection: takes send requests, cuts them into packets, and sends them again until they
//! are acknowledged. What it sends next is decided in [`transmit`], what the responder answers handled in [`response`].
//!
//! Requests stand in a queue in posting order, each with its range of PSNs; a READ has one PSN per response packet.
//! Three PSNs describe everything:
//!
//! ```text
//!   queue:   [ SEND 10..13 ][ READ 13..17 ][ WRITE 17..20 ][ SEND 20..21 ]
//!                    ^ unacked              ^ cursor        ^ high
//! ```
//!
//! - `unacked`: the oldest PSN without an answer. It always lies in the front request, since requests complete in order
//!   and leave the queue when they do. For a READ it is the next response packet.
//! - the cursor: the next packet to send. Going back (go-back-N) puts it at `unacked`.
//! - `high`: one past the newest PSN ever sent. Answers beyond it are ghosts.
//!
//! Nothing of a message is kept but its request: packets sent again are gathered again.
//!
//! # Spec
//! IBTA volume 1, sections 9.7.2 to 9.7.5 and 9.9.2; JingZhao interface, sections 6.7, 10.6 and 11.3.

pub(super) mod credits;
mod readiness;
mod response;
mod transmit;
mod waiting;

use std::collections::VecDeque;

use protocol::Psn;

use self::credits::Credits;
use self::readiness::Readiness;
use super::attr::{RnrRetry, State};
use super::congestion::Window;
use super::{Core, Ctx, Failure, ahead};
use crate::held::{Held, shrink_if_empty};
use crate::segment::packet_count;
use crate::{Fetch, Host, Instant, Queue, SendOp, SendRequest, Status, limits};

/// A send request between its fetch and its completion.
#[derive(Debug)]
struct Request {
    wr: SendRequest,
    /// When it was fetched.
    since: Instant,
    /// Bytes of the message.
    len: u32,
    first: Psn,
    /// PSNs it takes; 0 for a NOP, for work on keys and for requests that were refused.
    packets: u32,
    /// Without packets: its turn came, and going back does not execute it again.
    executed: bool,
    /// READ: response packet that the newest request packet begins with.
    chunk: u32,
    /// READ: longest piece that is asked for at once, a power of two packets; 0 before the first.
    piece: u32,
    /// READ: asked for in pieces or more than once, so that answers may begin and end in its middle.
    in_pieces: bool,
    /// Number of the message among those that take a receive request, or of the last such one before it.
    taker: u32,
    /// It cannot be executed, and completes with this in its turn.
    failure: Option<Status>,
}

impl Request {
    /// Whether data comes back, so that an acknowledge does not complete it.
    fn wants_data(&self) -> bool {
        matches!(self.wr.op, SendOp::Read { .. } | SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. })
    }

    /// One past its last PSN.
    fn end(&self) -> Psn {
        self.first.advance(self.packets)
    }
}

/// Why a request may not begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hold {
    Fence,
    Invalidation,
    PacketNumbers,
}

#[derive(Debug)]
pub(crate) struct Requester {
    queue: VecDeque<Request>,
    /// Request to send from next, and its packet.
    cursor: usize,
    next: u32,
    unacked: Psn,
    high: Psn,
    /// PSN of the next request that is fetched.
    end: Psn,
    /// The send queue may hold requests that were not fetched.
    more: bool,
    window: Window,
    /// Packets sent since one asked for an acknowledge.
    since_ack_req: u32,
    ack_deadline: Option<Instant>,
    /// The last progress, or the first packet without an answer if that is younger.
    waiting_since: Instant,
    readiness: Readiness,
    /// Retries since the last progress.
    retries: u8,
    rnr_retries: u8,
    /// A hole seen now is news: there was progress since we last went back.
    holes_count: bool,
    /// What the newest sequence NAK since the last progress asked for.
    nak_heard: Option<Psn>,
    /// Messages that take a receive request: fetched, and completed with success.
    takers: u32,
    takers_done: u32,
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
            more: false,
            window: Window::new(window_packets),
            since_ack_req: 0,
            ack_deadline: None,
            waiting_since: Instant::ZERO,
            readiness: Readiness::Ready,
            retries: 0,
            rnr_retries: 0,
            holes_count: true,
            nak_heard: None,
            takers: 0,
            takers_done: 0,
            credits: Credits::default(),
        }
    }

    /// Slots for requests beyond those a QP keeps.
    pub(crate) fn held(&self) -> usize {
        self.queue.capacity().saturating_sub(limits::KEPT_REQUESTS)
    }

    /// Software set the next PSN. Only possible while nothing is under way.
    pub(crate) fn set_psn(&mut self, psn: Psn) {
        if self.queue.is_empty() {
            (self.unacked, self.high, self.end) = (psn, psn, psn);
        }
    }

    /// The send queue may have new requests.
    pub(crate) fn ring(&mut self) {
        self.more = true;
    }

    pub(crate) fn send_psn(&self) -> Psn {
        self.high
    }

    pub(crate) fn unacked_psn(&self) -> Psn {
        self.unacked
    }

    /// Whether asking for a frame may give one.
    pub(crate) fn wants_turn(&self) -> bool {
        !self.readiness.is_waiting() && (self.more || self.cursor < self.queue.len())
    }

    /// No message is under way (SQD is drained).
    pub(crate) fn is_drained(&self) -> bool {
        self.unacked == self.high && !self.has_started(0)
    }

    /// When [`Requester::handle_timeout`] is wanted.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.readiness.deadline().or(self.ack_deadline)
    }

    pub(crate) fn handle_timeout<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
    ) -> Result<(), Failure> {
        self.readiness.on_time(ctx.now);
        if self.ack_deadline.is_some_and(|at| at <= ctx.now) {
            ctx.stats.recovery.timeouts += 1;
            self.window.on_timeout();
            self.go_back(core, ctx)?;
        }
        Ok(())
    }

    /// Completes everything in the queue as flushed and stops all timers. Requests not fetched yet are the caller's.
    pub(crate) fn flush<H: Host>(&mut self, core: &Core, ctx: &mut Ctx<'_, H>) {
        for request in self.queue.drain(..) {
            ctx.complete(core, Queue::Send, request.wr.wr_id, Err(Status::Flushed));
        }
        shrink_if_empty(&mut self.queue, limits::KEPT_REQUESTS);
        (self.cursor, self.next) = (0, 0);
        (self.unacked, self.end) = (self.high, self.high);
        (self.ack_deadline, self.readiness, self.more) = (None, Readiness::Ready, false);
    }

    /// Requests that may be taken and not done. Who is refused for want of slots has requests under way, whose end wakes
    /// it up.
    fn most_requests(held: Held) -> usize {
        if held.no_requests_left() { limits::KEPT_REQUESTS } else { limits::OUTSTANDING_REQUESTS }
    }

    /// Takes the next request from the send queue. False: there is none, or none may start.
    fn fetch<H: Host>(&mut self, core: &Core, ctx: &mut Ctx<'_, H>) -> Result<bool, Failure> {
        let most = Self::most_requests(ctx.held);
        if !self.more || core.state != State::Rts || self.queue.len() >= most {
            return Ok(false);
        }
        let (wr, failure) = match ctx.host.next_send(core.qpn) {
            Fetch::Ready(wr) => (wr, None),
            Fetch::Refused { wr_id, status } => (SendRequest::refused(wr_id), Some(status)),
            Fetch::Empty => {
                self.more = false;
                return Ok(false);
            }
            Fetch::Broken => return Err(Failure::Queue(Queue::Send)),
        };
        let message_len =
            u32::try_from(wr.payload.len()).ok().filter(|&len| len <= core.attrs.max_message_len);
        let failure = failure.or(match (message_len, &wr.op) {
            (None, _) => Some(Status::LocalLength),
            (Some(len), SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. }) if len != 8 => {
                Some(Status::LocalLength)
            }
            _ => None,
        });
        let len = message_len.unwrap_or(0);
        let packets = match wr.op {
            _ if failure.is_some() => 0,
            SendOp::Nop | SendOp::Local(_) => 0,
            _ => packet_count(len, core.mtu()),
        };
        let first = self.end;
        self.end = first.advance(packets);
        self.takers = self.takers.wrapping_add(u32::from(failure.is_none() && wr.op.consumes_receive()));
        self.queue.push_back(Request {
            wr,
            since: ctx.now,
            len,
            first,
            packets,
            executed: false,
            chunk: 0,
            piece: 0,
            in_pieces: false,
            taker: self.takers,
            failure,
        });
        Ok(true)
    }

    /// Progress: `packets` more are acknowledged, and completed requests have left the queue.
    fn on_progress<H: Host>(&mut self, core: &Core, ctx: &Ctx<'_, H>, packets: u32) {
        (self.retries, self.rnr_retries) = (0, 0);
        self.waiting_since = ctx.now;
        self.holes_count = true;
        (self.readiness, self.nak_heard) = (Readiness::Ready, None);
        self.window.on_acknowledged(packets);
        // Answers to what was sent before we went back can overtake the cursor.
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

    /// The front request is done: it completes with success.
    fn complete_front<H: Host>(&mut self, core: &Core, ctx: &mut Ctx<'_, H>) {
        if let Some(request) = self.queue.front() {
            let (wr_id, op, len, since) = (request.wr.wr_id, request.wr.op, request.len, request.since);
            self.takers_done = request.taker;
            self.drop_front();
            ctx.stats.request_time.record(ctx.now.saturating_since(since));
            ctx.complete_send(core, wr_id, op, len);
        }
        // Those behind it that were executed without a packet waited for their turn to complete.
        while self.queue.front().is_some_and(|request| request.executed) {
            self.complete_local(core, ctx);
        }
    }

    /// The front request failed.
    fn fail_front<H: Host>(&mut self, core: &Core, ctx: &mut Ctx<'_, H>, status: Status) -> Failure {
        if let Some(wr_id) = self.queue.front().map(|request| request.wr.wr_id) {
            self.drop_front();
            ctx.complete(core, Queue::Send, wr_id, Err(status));
        }
        Failure::Send(status)
    }

    /// Something is lost: send again from the oldest PSN without an answer, if there are retries left.
    fn go_back<H: Host>(&mut self, core: &Core, ctx: &mut Ctx<'_, H>) -> Result<(), Failure> {
        if self.retries >= core.attrs.retry_count {
            return Err(self.fail_front(core, ctx, Status::RetryExceeded));
        }
        self.retries += 1;
        if self.window.on_loss(ahead(self.high, self.unacked)) {
            ctx.stats.recovery.window_cuts += 1;
        }
        self.rewind();
        Ok(())
    }

    /// The receiver was not ready for the front request: send again from there, later, and until there is progress only few
    /// packets: they may be dropped as well.
    fn wait_for_receiver<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        until: Instant,
    ) -> Result<(), Failure> {
        if let RnrRetry::Limited(limit) = core.attrs.rnr_retry
            && self.rnr_retries >= limit
        {
            return Err(self.fail_front(core, ctx, Status::RnrRetryExceeded));
        }
        self.rnr_retries = self.rnr_retries.saturating_add(1);
        // The peer is there: losses before this answer are forgiven.
        self.retries = 0;
        self.rewind();
        self.readiness = Readiness::Refused { until };
        Ok(())
    }

    /// Whether the cursor is at the oldest PSN without an answer: we went back and sent nothing since.
    fn is_rewound(&self) -> bool {
        self.in_flight() == 0
    }

    /// Whether `psn` was sent and has no answer yet.
    fn is_outstanding(&self, psn: Psn) -> bool {
        ahead(psn, self.unacked) < ahead(self.high, self.unacked)
    }

    fn rewind(&mut self) {
        for request in self.queue.iter_mut().take(self.cursor + 1) {
            (request.in_pieces, request.chunk) = (true, 0);
        }
        self.cursor = 0;
        self.next = self.queue.front().map_or(0, |front| ahead(self.unacked, front.first));
        self.since_ack_req = 0;
        self.ack_deadline = None;
        self.holes_count = false;
    }

    /// Takes the front request out, without giving it back: some hundred bytes would have to be moved for that.
    fn drop_front(&mut self) {
        drop(self.queue.pop_front());
        shrink_if_empty(&mut self.queue, limits::KEPT_REQUESTS);
        match self.cursor.checked_sub(1) {
            Some(cursor) => self.cursor = cursor,
            None => self.next = 0,
        }
    }

    /// Executes the request at the cursor, which has no packets, and goes on to the next.
    fn pass_local<H: Host>(&mut self, core: &Core, ctx: &mut Ctx<'_, H>) {
        let Some(request) = self.queue.get_mut(self.cursor) else { return };
        if let (SendOp::Local(op), false) = (&request.wr.op, request.executed)
            && let Err(reason) = ctx.host.run_local(core.accessor(), op)
        {
            request.failure = Some(Status::MemoryManagement(reason));
            return;
        }
        request.executed = true;
        if self.cursor == 0 {
            self.complete_local(core, ctx);
        } else {
            (self.cursor, self.next) = (self.cursor + 1, 0);
        }
    }

    fn complete_local<H: Host>(&mut self, core: &Core, ctx: &mut Ctx<'_, H>) {
        if let Some((wr_id, op)) = self.queue.front().map(|request| (request.wr.wr_id, request.wr.op)) {
            self.drop_front();
            ctx.complete_send(core, wr_id, op, 0);
        }
    }

    fn cursor_psn(&self) -> Psn {
        match self.queue.get(self.cursor) {
            Some(request) => request.first.advance(self.next),
            None => self.end,
        }
    }

    /// PSNs between the oldest without an answer and the cursor.
    fn in_flight(&self) -> u32 {
        ahead(self.cursor_psn(), self.unacked)
    }

    /// Whether any packet of request `index` was ever sent.
    fn has_started(&self, index: usize) -> bool {
        self.queue.get(index).is_some_and(|request| {
            request.packets > 0
                && ((index == 0 && request.first != self.unacked) || self.is_outstanding(request.first))
        })
    }

    /// READ and atomic request packets whose answers are still due.
    fn answers_due(&self) -> u32 {
        let requests = self.queue.iter().enumerate().take(self.cursor + 1);
        requests
            .filter(|(_, request)| request.wants_data())
            .map(|(index, request)| {
                let got = if index == 0 { ahead(self.unacked, request.first) } else { 0 };
                let asked = if index < self.cursor { request.packets } else { self.next };
                u32::from(got < asked) + u32::from(got < asked && got < request.chunk)
            })
            .sum()
    }
}
