//! The requester of a reliable connection: takes send requests, cuts them into packets, and sends them again until they
//! are acknowledged. What the responder answers is handled in [`response`](super::response).
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

use std::collections::VecDeque;

use protocol::Psn;
use protocol::ids::Va;
use protocol::roce::{AtomicEth, Ext, Operation, Reth};

use super::attr::State;
use super::congestion::Window;
use super::{Core, Ctx, Failure, Frame, Step, ahead};
use crate::gather::gather;
use crate::held::shrink_if_empty;
use crate::segment::{packet_count, segment};
use crate::{Fetch, Host, Instant, Queue, SendOp, SendRequest, Status, limits};

/// A send request between its fetch and its completion.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) wr: SendRequest,
    /// Bytes of the message.
    pub(super) len: u32,
    pub(super) first: Psn,
    /// PSNs it takes; 0 for a NOP and for requests that were refused.
    pub(super) packets: u32,
    /// READ: response packet that the newest request packet begins with.
    pub(super) chunk: u32,
    /// READ: longest piece that is asked for at once, a power of two packets; 0 before the first.
    piece: u32,
    /// READ: asked for in pieces or more than once, so that answers may begin and end in its middle.
    pub(super) in_pieces: bool,
    /// It cannot be executed, and completes with this in its turn.
    failure: Option<Status>,
}

impl Request {
    /// Whether data comes back, so that an acknowledge does not complete it.
    pub(super) fn wants_data(&self) -> bool {
        matches!(self.wr.op, SendOp::Read { .. } | SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. })
    }

    fn is_nop(&self) -> bool {
        self.packets == 0 && self.failure.is_none()
    }

    /// One past its last PSN.
    pub(super) fn end(&self) -> Psn {
        self.first.advance(self.packets)
    }
}

#[derive(Debug)]
pub(crate) struct Requester {
    pub(super) queue: VecDeque<Request>,
    /// Request to send from next, and its packet.
    cursor: usize,
    next: u32,
    pub(super) unacked: Psn,
    pub(super) high: Psn,
    /// PSN of the next request that is fetched.
    end: Psn,
    /// The send queue may hold requests that were not fetched.
    more: bool,
    pub(super) window: Window,
    /// Packets sent since one asked for an acknowledge.
    since_ack_req: u32,
    ack_deadline: Option<Instant>,
    /// Waiting until then because the receiver was not ready.
    pub(super) rnr_wait: Option<Instant>,
    /// Retries since the last progress.
    retries: u8,
    rnr_retries: u8,
    /// A hole seen now is news: there was progress since we last went back.
    pub(super) holes_count: bool,
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
            rnr_wait: None,
            retries: 0,
            rnr_retries: 0,
            holes_count: true,
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
        self.rnr_wait.is_none() && (self.more || self.cursor < self.queue.len())
    }

    /// No message is under way (SQD is drained).
    pub(crate) fn is_drained(&self) -> bool {
        self.unacked == self.high && !self.has_started(0)
    }

    /// When [`Requester::handle_timeout`] is wanted.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.rnr_wait.or(self.ack_deadline)
    }

    pub(crate) fn handle_timeout<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
    ) -> Result<(), Failure> {
        if self.rnr_wait.is_some_and(|until| until <= ctx.now) {
            self.rnr_wait = None;
        }
        if self.ack_deadline.is_some_and(|at| at <= ctx.now) {
            ctx.stats.recovery.timeouts += 1;
            self.window.on_timeout();
            self.go_back(core, ctx)?;
        }
        Ok(())
    }

    /// Appends the next request packet to `out`.
    pub(crate) fn transmit<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        out: &mut Vec<u8>,
    ) -> Result<Step, Failure> {
        // Bound: a chain of NOPs can be endless.
        for _ in 0..limits::REQUESTS_PER_STEP {
            if self.rnr_wait.is_some() || (self.cursor == self.queue.len() && !self.fetch(core, ctx)?) {
                return Ok(Step::Idle);
            }
            let Some(request) = self.queue.get(self.cursor) else { return Ok(Step::Idle) };
            if core.state == State::Sqd && !self.has_started(self.cursor) {
                return Ok(Step::Idle);
            }
            if let Some(status) = request.failure {
                // Earlier requests get their chance first.
                return if self.cursor > 0 {
                    Ok(Step::Idle)
                } else {
                    Err(self.fail_front(core, ctx, status))
                };
            }
            if request.packets == 0 {
                self.pass_nop(core, ctx);
                continue;
            }
            if self.next == 0 && !self.may_start(request) {
                return Ok(Step::Idle);
            }
            let frame = match request.wr.op {
                SendOp::Read { .. } => self.send_read(core, ctx, out),
                SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } => self.send_atomic(core, ctx, out),
                _ => self.send_segment(core, ctx, out),
            };
            match frame {
                Ok(step) => return Ok(step),
                Err(status) => {
                    if let Some(request) = self.queue.get_mut(self.cursor) {
                        request.failure = Some(status);
                    }
                }
            }
        }
        Ok(Step::Again)
    }

    /// Completes everything in the queue as flushed and stops all timers. Requests not fetched yet are the caller's.
    pub(crate) fn flush<H: Host>(&mut self, core: &Core, ctx: &mut Ctx<'_, H>) {
        for request in self.queue.drain(..) {
            ctx.complete(core, Queue::Send, request.wr.wr_id, Err(Status::Flushed));
        }
        shrink_if_empty(&mut self.queue, limits::KEPT_REQUESTS);
        (self.cursor, self.next) = (0, 0);
        (self.unacked, self.end) = (self.high, self.high);
        (self.ack_deadline, self.rnr_wait) = (None, None);
        self.more = false;
    }

    /// Takes the next request from the send queue. False: there is none, or none may start.
    fn fetch<H: Host>(&mut self, core: &Core, ctx: &mut Ctx<'_, H>) -> Result<bool, Failure> {
        // Who is refused for want of slots has requests under way, whose end wakes it up.
        let most =
            if ctx.held.no_requests_left() { limits::KEPT_REQUESTS } else { limits::OUTSTANDING_REQUESTS };
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
            SendOp::Nop => 0,
            _ => packet_count(len, core.mtu()),
        };
        let first = self.end;
        self.end = first.advance(packets);
        self.queue.push_back(Request {
            wr,
            len,
            first,
            packets,
            chunk: 0,
            piece: 0,
            in_pieces: false,
            failure,
        });
        Ok(true)
    }

    /// Fence, and the PSN space. Asked once per request and round, before its first packet.
    fn may_start(&self, request: &Request) -> bool {
        let fenced = request.wr.fence && self.queue.iter().take(self.cursor).any(Request::wants_data);
        let in_space = ahead(request.first, self.unacked) + request.packets <= limits::PSN_SPAN;
        !fenced && (in_space || self.cursor == 0)
    }

    fn send_segment<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        out: &mut Vec<u8>,
    ) -> Result<Step, Status> {
        let in_flight = self.in_flight();
        if in_flight >= self.window.packets() {
            return Ok(Step::Idle);
        }
        let Some(request) = self.queue.get(self.cursor) else { return Ok(Step::Idle) };
        let segment =
            segment(&request.wr.op, request.len, core.mtu(), self.next).ok_or(Status::LocalQpOperation)?;
        let mut bth = core.bth(segment.operation, request.first.advance(self.next));
        let last = segment.operation.position().ends();
        bth.ack_req = last || self.asks_for_ack(in_flight);
        bth.solicited = last && request.wr.solicited && request.wr.op.consumes_receive();
        let wr_id = request.wr.wr_id;
        let len = ctx
            .emit(out, &core.attrs.path, &bth, &segment.ext, segment.len, |host, payload| {
                gather(host, core.attrs.pd, &request.wr.payload, segment.offset, payload)
            })
            .map_err(|_| Status::LocalProtection)?;
        self.sent(core, ctx, 1, bth.ack_req);
        Ok(Step::Frame(Frame { len, dst_mac: core.attrs.path.dst_mac, wr_id: Some(wr_id) }))
    }

    /// A READ that fits the window is asked for in one packet; a longer one in pieces of half a window, at most two of
    /// them under way, so that the responses cannot overrun the buffers in between. To the responder each piece is a
    /// READ of its own.
    ///
    /// Pieces end at multiples of their length, which only ever halves: so a piece that is asked for again never reaches
    /// from what the responder has executed into what it has not, which would be neither a duplicate nor new.
    fn send_read<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        out: &mut Vec<u8>,
    ) -> Result<Step, Status> {
        let (window, in_flight, next) = (self.window.packets(), self.in_flight(), self.next);
        let answers_due = self.answers_due();
        let Some(request) = self.queue.get_mut(self.cursor) else { return Ok(Step::Idle) };
        let SendOp::Read { remote } = request.wr.op else { return Ok(Step::Idle) };
        if request.piece == 0 {
            let fits = request.packets <= window;
            request.piece =
                if fits { request.packets.next_power_of_two() } else { power_of_two_below(window / 2) };
        }
        while request.piece.min(request.packets) > window {
            request.piece /= 2;
        }
        let end = ((next / request.piece + 1) * request.piece).min(request.packets);
        let piece = end - next;
        // A piece under way that is not the newest: wait for it.
        let two_under_way =
            self.cursor == 0 && next > 0 && ahead(self.unacked, request.first) < request.chunk;
        if (in_flight > 0 && in_flight + piece > window)
            || answers_due >= u32::from(core.attrs.max_rd_atomic.max(1))
            || two_under_way
        {
            return Ok(Step::Idle);
        }
        let offset = next as usize * core.mtu();
        let bytes = (request.len as usize - offset).min(piece as usize * core.mtu());
        let reth = Reth {
            va: Va::new(remote.va.get().wrapping_add(offset as u64)),
            rkey: remote.rkey,
            dma_len: u32::try_from(bytes).expect("no longer than the request, whose length has 32 bits"),
        };
        request.chunk = next;
        request.in_pieces |= piece < request.packets;
        let wr_id = request.wr.wr_id;
        let psn = request.first.advance(next);
        Ok(self.send_bare(core, ctx, out, (Operation::ReadRequest, Ext::Reth(reth)), psn, piece, wr_id))
    }

    fn send_atomic<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        out: &mut Vec<u8>,
    ) -> Result<Step, Status> {
        if self.in_flight() >= self.window.packets()
            || self.answers_due() >= u32::from(core.attrs.max_rd_atomic.max(1))
        {
            return Ok(Step::Idle);
        }
        let Some(request) = self.queue.get(self.cursor) else { return Ok(Step::Idle) };
        let (operation, remote, swap_add, compare) = match request.wr.op {
            SendOp::CompareSwap { remote, compare, swap } => (Operation::CompareSwap, remote, swap, compare),
            SendOp::FetchAdd { remote, add } => (Operation::FetchAdd, remote, add, 0),
            _ => return Ok(Step::Idle),
        };
        let atomic = AtomicEth { va: remote.va, rkey: remote.rkey, swap_add, compare };
        let (wr_id, psn) = (request.wr.wr_id, request.first);
        Ok(self.send_bare(core, ctx, out, (operation, Ext::Atomic(atomic)), psn, 1, wr_id))
    }

    /// Sends a request packet without payload that stands for `packets` PSNs.
    #[expect(clippy::too_many_arguments, reason = "private, and each value is one field of the packet")]
    fn send_bare<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        out: &mut Vec<u8>,
        (operation, ext): (Operation, Ext),
        psn: Psn,
        packets: u32,
        wr_id: u64,
    ) -> Step {
        let mut bth = core.bth(operation, psn);
        bth.ack_req = true;
        let len = ctx
            .emit(out, &core.attrs.path, &bth, &ext, 0, |_, _| Ok(()))
            .expect("a packet without payload reads no memory");
        self.sent(core, ctx, packets, true);
        Step::Frame(Frame { len, dst_mac: core.attrs.path.dst_mac, wr_id: Some(wr_id) })
    }

    /// The packet at the cursor, which stands for `packets` PSNs, has gone out.
    fn sent<H: Host>(&mut self, core: &Core, ctx: &mut Ctx<'_, H>, packets: u32, ack_req: bool) {
        let psn = self.cursor_psn();
        let after = psn.advance(packets);
        if ahead(psn, self.unacked) < ahead(self.high, self.unacked) {
            ctx.stats.recovery.retransmitted_packets += 1;
        }
        if ahead(after, self.unacked) > ahead(self.high, self.unacked) {
            self.high = after;
        }
        self.next += packets;
        if self.queue.get(self.cursor).is_some_and(|request| self.next == request.packets) {
            (self.cursor, self.next) = (self.cursor + 1, 0);
        }
        self.since_ack_req = if ack_req { 0 } else { self.since_ack_req + 1 };
        if self.ack_deadline.is_none() {
            self.ack_deadline = core.attrs.ack_timeout.map(|timeout| ctx.now + timeout);
        }
    }

    /// Whether a packet in the middle of a message asks for an acknowledge: four times per window, and when it is the
    /// last that the window lets out. Without that a message longer than the window would never end.
    fn asks_for_ack(&self, in_flight: u32) -> bool {
        let window = self.window.packets();
        self.since_ack_req + 1 >= (window / 4).max(1) || in_flight + 1 >= window
    }

    /// Progress: `packets` more are acknowledged, and completed requests have left the queue.
    pub(super) fn on_progress<H: Host>(&mut self, core: &Core, ctx: &Ctx<'_, H>, packets: u32) {
        (self.retries, self.rnr_retries) = (0, 0);
        self.holes_count = true;
        self.rnr_wait = None;
        self.window.on_acknowledged(packets);
        // Answers to what was sent before we went back can overtake the cursor.
        if self.cursor == 0
            && let Some(front) = self.queue.front()
            && front.packets > 0
        {
            self.next = self.next.max(ahead(self.unacked, front.first));
        }
        self.ack_deadline = match core.attrs.ack_timeout {
            Some(timeout) if self.in_flight() > 0 => Some(ctx.now + timeout),
            _ => None,
        };
    }

    /// The front request is done: it completes with success.
    pub(super) fn complete_front<H: Host>(&mut self, core: &Core, ctx: &mut Ctx<'_, H>) {
        if let Some(request) = self.pop_front() {
            ctx.complete_send(core, request.wr.wr_id, request.wr.op, request.len);
        }
        // NOPs behind it are done if they were passed, be it before we went back.
        while (self.cursor > 0 || self.unacked != self.high)
            && self.queue.front().is_some_and(Request::is_nop)
        {
            self.complete_nop(core, ctx);
        }
    }

    /// The front request failed.
    pub(super) fn fail_front<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        status: Status,
    ) -> Failure {
        if let Some(request) = self.pop_front() {
            ctx.complete(core, Queue::Send, request.wr.wr_id, Err(status));
        }
        Failure::Send
    }

    /// Something is lost: send again from the oldest PSN without an answer, if there are retries left.
    pub(super) fn go_back<H: Host>(&mut self, core: &Core, ctx: &mut Ctx<'_, H>) -> Result<(), Failure> {
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

    /// The receiver was not ready for the front request: send again from there, later.
    pub(super) fn wait_for_receiver<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        until: Instant,
    ) -> Result<(), Failure> {
        use super::attr::RnrRetry;
        if let RnrRetry::Limited(limit) = core.attrs.rnr_retry {
            if self.rnr_retries >= limit {
                return Err(self.fail_front(core, ctx, Status::RnrRetryExceeded));
            }
            self.rnr_retries += 1;
        }
        // The peer is there: losses before this answer are forgiven.
        self.retries = 0;
        self.rewind();
        self.rnr_wait = Some(until);
        Ok(())
    }

    /// Whether the cursor is at the oldest PSN without an answer: we went back and sent nothing since.
    pub(super) fn is_rewound(&self) -> bool {
        self.in_flight() == 0
    }

    /// Whether `psn` was sent and has no answer yet.
    pub(super) fn is_outstanding(&self, psn: Psn) -> bool {
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

    fn pop_front(&mut self) -> Option<Request> {
        let request = self.queue.pop_front()?;
        shrink_if_empty(&mut self.queue, limits::KEPT_REQUESTS);
        match self.cursor.checked_sub(1) {
            Some(cursor) => self.cursor = cursor,
            None => self.next = 0,
        }
        Some(request)
    }

    fn pass_nop<H: Host>(&mut self, core: &Core, ctx: &mut Ctx<'_, H>) {
        if self.cursor == 0 {
            self.complete_nop(core, ctx);
        } else {
            (self.cursor, self.next) = (self.cursor + 1, 0);
        }
    }

    fn complete_nop<H: Host>(&mut self, core: &Core, ctx: &mut Ctx<'_, H>) {
        if let Some(request) = self.pop_front() {
            ctx.complete_send(core, request.wr.wr_id, SendOp::Nop, 0);
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

/// The largest power of two up to `n`, at least 1.
fn power_of_two_below(n: u32) -> u32 {
    n.checked_ilog2().map_or(1, |log2| 1 << log2)
}
