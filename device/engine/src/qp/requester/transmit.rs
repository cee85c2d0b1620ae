//! What a requester sends next: request packets in PSN order, as far as window, limits, fence and credits allow.

use std::cmp::Ordering;

use protocol::Psn;
use protocol::ids::Va;
use protocol::roce::{AtomicEth, Ext, Operation, Reth};

use super::readiness::Readiness;
use super::{Hold, Request, Requester};
use crate::gather::gather;
use crate::qp::attr::State;
use crate::qp::{Core, Ctx, Failure, Frame, Step, ahead};
use crate::segment::segment;
use crate::{Blocked, Fence, Host, LocalOp, SendOp, Status, limits};

/// What one request packet of a READ asks for.
pub(super) struct Piece {
    /// Pieces are as long, or end where the READ does; a power of two.
    unit: u32,
    pub(super) packets: u32,
}

impl Requester {
    /// Appends the next request packet to `out`.
    pub(crate) fn transmit<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        out: &mut Vec<u8>,
    ) -> Result<Step, Failure> {
        // Bound: a chain of NOPs can be endless.
        for _ in 0..limits::REQUESTS_PER_STEP {
            if self.readiness.is_waiting() || (self.cursor == self.queue.len() && !self.fetch(core, ctx)?) {
                return Ok(Step::Idle);
            }
            let Some(request) = self.queue.get(self.cursor) else { return Ok(Step::Idle) };
            if self.is_kept_back(core, request) {
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
                if request.executed || self.may_start(request) {
                    self.pass_local(core, ctx);
                    continue;
                }
                return Ok(Step::Idle);
            }
            if (self.next == 0 && !self.may_start(request)) || self.lacks_credit(request) {
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

    /// Whether the request at the cursor does not begin because the queue is to be drained.
    pub(super) fn is_kept_back(&self, core: &Core, request: &Request) -> bool {
        core.state == State::Sqd && !self.has_started(self.cursor) && !request.executed
    }

    fn may_start(&self, request: &Request) -> bool {
        self.hold(request).is_none()
    }

    /// Fence, and the PSN space. Asked once per request and round, before its first packet.
    pub(super) fn hold(&self, request: &Request) -> Option<Hold> {
        if self.cursor == 0 {
            return None;
        }
        let mut older = self.queue.iter().take(self.cursor);
        let in_space = ahead(request.first, self.unacked) + request.packets <= limits::PSN_SPAN;
        match request.wr.fence {
            // What is older may be gathered again until it is done.
            _ if matches!(request.wr.op, SendOp::Local(LocalOp::Invalidate(_))) => Some(Hold::Invalidation),
            Fence::Reads if older.any(Request::wants_data) => Some(Hold::Fence),
            Fence::All => Some(Hold::Fence),
            Fence::None | Fence::Reads => (!in_space).then_some(Hold::PacketNumbers),
        }
    }

    /// The packet that takes a receive request, of a message that there may be none for.
    fn is_limited(&self, request: &Request) -> bool {
        self.credits.beyond(request.taker) > 0 && taking_packet(request) == Some(self.next)
    }

    /// Whether the packet at the cursor must wait for an acknowledge: the message is beyond the responder's credits, and
    /// the one packet that may ask for more is under way.
    pub(super) fn lacks_credit(&self, request: &Request) -> bool {
        let beyond = self.credits.beyond(request.taker);
        let Some(taking) = taking_packet(request).filter(|_| beyond > 0) else { return false };
        match self.next.cmp(&taking) {
            Ordering::Less => false,
            Ordering::Equal => beyond > 1 && self.in_flight() > 0,
            // It goes on when the packet that asked was accepted.
            Ordering::Greater => self.cursor > 0 || ahead(self.unacked, request.first) <= taking,
        }
    }

    fn send_segment<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        out: &mut Vec<u8>,
    ) -> Result<Step, Status> {
        let Some(request) = self.queue.get(self.cursor) else { return Ok(Step::Idle) };
        let in_flight = self.in_flight();
        if in_flight >= self.window() {
            return Ok(Step::Idle);
        }
        let segment =
            segment(&request.wr.op, request.len, core.mtu(), self.next).ok_or(Status::LocalQpOperation)?;
        let mut bth = core.bth(ctx, segment.operation, request.first.advance(self.next));
        let last = segment.operation.position().ends();
        bth.ack_req = last || self.is_limited(request) || self.asks_for_ack(in_flight);
        bth.solicited = last && request.wr.solicited && request.wr.op.consumes_receive();
        let wr_id = request.wr.wr_id;
        let len = ctx
            .emit(out, &core.attrs.path, &bth, &segment.ext, segment.len, |host, payload| {
                gather(host, core.accessor(), &request.wr.payload, segment.offset, segment.len, payload)
            })
            .map_err(Status::LocalProtection)?;
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
        let next = self.next;
        let Some(request) = self.queue.get(self.cursor) else { return Ok(Step::Idle) };
        let SendOp::Read { remote, .. } = request.wr.op else { return Ok(Step::Idle) };
        let Piece { unit, packets: piece } = self.next_piece(request);
        let waits = self.no_room(core, request, piece).is_some();
        let Some(request) = self.queue.get_mut(self.cursor) else { return Ok(Step::Idle) };
        request.piece = unit;
        if waits {
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

    /// What the next request packet of a READ at the cursor asks for.
    pub(super) fn next_piece(&self, request: &Request) -> Piece {
        let (window, next) = (self.window.packets(), self.next);
        // Without any answer to it, it is asked for as before: what was lost is not the end of a burst.
        let repeated = next == 0 && self.is_outstanding(request.first);
        let mut unit = match request.piece {
            0 if request.packets <= window => request.packets.next_power_of_two(),
            0 => power_of_two_below(window / 2),
            unit => unit,
        };
        while !repeated && unit.min(request.packets) > window {
            unit /= 2;
        }
        let end = ((next / unit + 1) * unit).min(request.packets);
        Piece { unit, packets: end - next }
    }

    /// Why the next packet at the cursor, which stands for `packets` PSNs, has to wait for answers.
    pub(super) fn no_room(&self, core: &Core, request: &Request, packets: u32) -> Option<Blocked> {
        let (in_flight, most) = (self.in_flight(), self.window());
        let full = match request.wr.op {
            SendOp::Read { .. } => in_flight > 0 && in_flight + packets > most,
            _ => in_flight >= most,
        };
        if full {
            return Some(Blocked::Window { in_flight, most });
        }
        if !request.wants_data() {
            return None;
        }
        let most = core.attrs.max_rd_atomic.max(1);
        if self.answers_due() >= u32::from(most) {
            return Some(Blocked::Reads { most });
        }
        // A piece under way that is not the newest: wait for it.
        let two_under_way =
            self.cursor == 0 && self.next > 0 && ahead(self.unacked, request.first) < request.chunk;
        (matches!(request.wr.op, SendOp::Read { .. }) && two_under_way).then_some(Blocked::ReadPieces)
    }

    fn send_atomic<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        out: &mut Vec<u8>,
    ) -> Result<Step, Status> {
        let Some(request) = self.queue.get(self.cursor) else { return Ok(Step::Idle) };
        if self.no_room(core, request, 1).is_some() {
            return Ok(Step::Idle);
        }
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
        let mut bth = core.bth(ctx, operation, psn);
        bth.ack_req = true;
        let len = ctx
            .emit(out, &core.attrs.path, &bth, &ext, 0, |_, _| Ok(()))
            .expect("a packet without payload reads no memory");
        self.sent(core, ctx, packets, true);
        Step::Frame(Frame { len, dst_mac: core.attrs.path.dst_mac, wr_id: Some(wr_id) })
    }

    /// The packet at the cursor, which stands for `packets` PSNs, has gone out.
    fn sent<H: Host>(&mut self, core: &Core, ctx: &mut Ctx<'_, H>, packets: u32, ack_req: bool) {
        self.readiness.on_sent();
        let psn = self.cursor_psn();
        let after = psn.advance(packets);
        if ahead(psn, self.unacked) < ahead(self.high, self.unacked) {
            ctx.stats.recovery.retransmitted_packets += 1;
        }
        if self.high == self.unacked {
            self.waiting_since = ctx.now;
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
            self.ack_deadline = core.attrs.ack_timeout.map(|timeout| ctx.now + timeout.after(self.retries));
        }
    }

    /// Packets that may be unacknowledged.
    fn window(&self) -> u32 {
        let window = self.window.packets();
        if self.readiness == Readiness::Ready { window } else { window.min(limits::MIN_WINDOW) }
    }

    /// Whether a packet in the middle of a message asks for an acknowledge: four times per window, and when it is the
    /// last that the window lets out. Without that a message longer than the window would never end.
    fn asks_for_ack(&self, in_flight: u32) -> bool {
        let window = self.window();
        self.since_ack_req + 1 >= (window / 4).max(1) || in_flight + 1 >= window
    }
}

/// The packet that takes a receive request, if the message takes one.
fn taking_packet(request: &Request) -> Option<u32> {
    match request.wr.op {
        SendOp::Send { .. } | SendOp::SendInvalidate { .. } => Some(0),
        SendOp::Write { imm: Some(_), .. } => Some(request.packets.saturating_sub(1)),
        _ => None,
    }
}

/// The largest power of two up to `n`, at least 1.
fn power_of_two_below(n: u32) -> u32 {
    n.checked_ilog2().map_or(1, |log2| 1 << log2)
}
