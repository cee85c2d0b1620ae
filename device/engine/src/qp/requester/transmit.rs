//! Selects the next request packet: in PSN order, subject to the window, `max_rd_atomic`, fences and end-to-end
//! credits.

use std::cmp::Ordering;

use protocol::Psn;
use protocol::ids::Va;
use protocol::roce::{AtomicEth, Ext, FrameWriter, Opcode, Operation, Position, Reth};

use super::rnr::RnrState;
use super::{Request, Requester, StallReason};
use crate::gather::FramePayload;
use crate::qp::attr::State;
use crate::qp::{Core, Ctx, Emitted, FatalError, Frame, Headers, MIN_DETACHED_LEN, Step, ahead};
use crate::segment::{packet_headers, segment};
use crate::{Fence, Host, LocalOp, SendOp, Status, WaitReason, limits};

/// The part of a READ requested by one request packet.
pub(super) struct ReadChunk {
    /// Chunk size in packets, a power of two. Chunks end at multiples of this size or at the end of the READ.
    unit: u32,
    /// Number of response packets requested.
    pub(super) packets: u32,
}

impl Requester {
    pub(crate) fn transmit<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        out: &mut Vec<u8>,
    ) -> Result<Step, FatalError> {
        let start = out.len();
        let step = self.send_frame(core, ctx, out)?;
        match step {
            Step::Frame(frame) if ctx.room.frames > 1 => {
                let emitted = self.extend_burst(core, ctx, (out, start), frame.emitted);
                Ok(Step::Frame(Frame { emitted, ..frame }))
            }
            _ => Ok(step),
        }
    }

    /// Appends further frames to a burst while the next request is a short message with the opcode and the length of
    /// the last one. The first frame of the burst has just been appended at offset `start` of `out`. Returns the size
    /// of the whole burst.
    ///
    /// Makes the same checks as [`Requester::send_frame`], which handles a request that fails one of them. Does not
    /// update [`Request::is_probe`], which matters only for messages of several packets.
    fn extend_burst<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        (out, start): (&mut Vec<u8>, usize),
        first: Emitted,
    ) -> Emitted {
        let last = self.cursor.checked_sub(1).and_then(|index| self.queue.get(index));
        let Some((model, len)) = last.and_then(|last| Some((self.only_packet(last)?.0, last.len))) else {
            return first;
        };
        if core.state != State::Rts || !core.has_resolved_peer() {
            return first;
        }
        let (payload_len, initiator) = (len as usize, core.initiator());
        let (psn, window) = (self.cursor_psn(), self.window());
        let mut added = 0;
        while (added as usize) + 1 < ctx.room.frames && out.len() - start < ctx.room.bytes {
            // The next call of `send_frame` reports an error.
            if self.cursor == self.queue.len() && self.fetch(core, ctx) != Ok(true) {
                break;
            }
            let Some(request) = self.queue.get(self.cursor) else { break };
            let Some((operation, ext)) = self.only_packet(request) else { break };
            if (operation, request.len) != (model, len)
                || !self.can_start(request)
                || self.lacks_credit(request)
                || ahead(request.first, self.unacked) >= window
            {
                break;
            }
            let solicited = request.wr.solicited && request.wr.op.consumes_receive();
            let (path, srqn) = (&core.attrs.path, core.xrceth(&request.wr));
            let sequence = (request.first, solicited);
            let mut writer = FrameWriter::with_model(out, start, path, sequence, srqn, &ext, payload_len);
            let message = FramePayload::Message {
                initiator,
                payload: &request.wr.payload,
                offset: 0,
                len: payload_len,
            };
            if payload_len > 0
                && let Err(reason) = writer.payload(|out| message.append(ctx.host, out))
            {
                drop(writer);
                if let Some(request) = self.queue.get_mut(self.cursor) {
                    request.failure = Some(Status::LocalProtection(reason));
                }
                break;
            }
            writer.finish_with(first.offload);
            self.cursor += 1;
            added += 1;
        }
        if added == 0 {
            return first;
        }
        // The last packet of a message always requests an ACK.
        self.on_sent(core, ctx, psn, (added, added), true);
        let opcode = Opcode { transport: core.attrs.service.transport(), operation: model };
        ctx.count_burst(core, first, (opcode, payload_len), added)
    }

    /// Returns the operation and the extension headers of a SEND or WRITE that consists of one packet, if its payload
    /// is too short to be detached. Returns `None` for any other request, and for one that has failed.
    fn only_packet(&self, request: &Request) -> Option<(Operation, Ext)> {
        let is_short = request.packets == 1 && (request.len as usize) < MIN_DETACHED_LEN;
        if !is_short || self.next != 0 || request.failure.is_some() {
            return None;
        }
        packet_headers(&request.wr.op, request.len, Position::Only)
    }

    /// Sends the next frame.
    fn send_frame<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        out: &mut Vec<u8>,
    ) -> Result<Step, FatalError> {
        // The loop is bounded, because a guest can link a chain of NOPs to itself.
        for _ in 0..limits::REQUESTS_PER_STEP {
            if self.rnr_state.is_waiting() || (self.cursor == self.queue.len() && !self.fetch(core, ctx)?) {
                return Ok(Step::Idle);
            }
            let Some(request) = self.queue.get(self.cursor) else { return Ok(Step::Idle) };
            if self.blocked_by_sqd(core, request) {
                return Ok(Step::Idle);
            }
            if let Some(status) = request.failure {
                // Earlier requests must complete first.
                return if self.cursor > 0 {
                    Ok(Step::Idle)
                } else {
                    Err(self.fail_front(core, ctx, status))
                };
            }
            if request.packets == 0 {
                if request.executed || self.can_start(request) {
                    self.execute_local(core, ctx);
                    continue;
                }
                return Ok(Step::Idle);
            }
            if (self.next == 0 && !self.can_start(request)) || self.lacks_credit(request) {
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

    /// Returns whether the request at the cursor is held back because the QP is in SQD (IBTA volume 1, section 10.3.1).
    pub(super) fn blocked_by_sqd(&self, core: &Core, request: &Request) -> bool {
        core.state == State::Sqd && !self.has_started(self.cursor) && !request.executed
    }

    fn can_start(&self, request: &Request) -> bool {
        self.stall_reason(request).is_none()
    }

    /// Returns why `request` cannot start. Only meaningful until its first packet has been sent.
    pub(super) fn stall_reason(&self, request: &Request) -> Option<StallReason> {
        if self.cursor == 0 {
            return None;
        }
        let mut older = self.queue.iter().take(self.cursor);
        let in_space = ahead(request.first, self.unacked) + request.packets <= limits::PSN_SPAN;
        match request.wr.fence {
            // Older requests may be retransmitted, and would then gather their data again through the key to be
            // invalidated.
            _ if matches!(request.wr.op, SendOp::Local(LocalOp { wait_for_older: true, .. })) => {
                Some(StallReason::Invalidation)
            }
            // IBTA 10.8.3.3: a fenced request waits for outstanding READs and atomics.
            Fence::Reads if older.any(Request::returns_data) => Some(StallReason::Fence),
            Fence::All => Some(StallReason::Fence),
            Fence::None | Fence::Reads => (!in_space).then_some(StallReason::PacketNumbers),
        }
    }

    /// Returns whether the next packet consumes a receive request that the responder may not have posted. Such a packet
    /// is sent as a probe, with AckReq.
    fn is_credit_probe(&self, request: &Request) -> bool {
        self.credits.beyond(request.recv_seq) > 0 && recv_packet_index(request) == Some(self.next)
    }

    /// Returns whether the packet with index `end` is a probe that must wait until all packets before it are
    /// acknowledged.
    fn precedes_lone_probe(&self, request: &Request, end: u32) -> bool {
        self.credits.beyond(request.recv_seq) > 1 && recv_packet_index(request) == Some(end)
    }

    /// Returns whether the packet at the cursor must wait for credits. IBTA 9.7.7.2: beyond the limit, a single packet
    /// may be outstanding as a probe for more credits.
    pub(super) fn lacks_credit(&self, request: &Request) -> bool {
        let beyond = self.credits.beyond(request.recv_seq);
        let Some(recv_packet) = recv_packet_index(request).filter(|_| beyond > 0) else { return false };
        match self.next.cmp(&recv_packet) {
            Ordering::Less => false,
            Ordering::Equal => beyond > 1 && self.in_flight() > 0,
            // The message continues when its probe packet has been acknowledged. If no packet was sent as a probe, the
            // message continues even if an ACK has set a limit since then. It must not wait, because its packets may
            // not have requested an ACK.
            Ordering::Greater => {
                request.is_probe && (self.cursor > 0 || ahead(self.unacked, request.first) <= recv_packet)
            }
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
        let packets = self.next..self.next + self.packets_to_send(core, ctx, request, in_flight);
        let count = packets.end - packets.start;
        let is_probe = self.is_credit_probe(request);
        let consumes_receive = recv_packet_index(request).is_some_and(|index| packets.contains(&index));
        let segment =
            segment(&request.wr.op, request.len, core.mtu(), packets).ok_or(Status::LocalQpOperation)?;
        let mut bth = core.bth(ctx, segment.operation, request.first.advance(self.next));
        let last = segment.operation.position().ends();
        bth.ack_req = last
            || is_probe
            || self.precedes_lone_probe(request, self.next + count)
            || self.needs_ack_req(in_flight, count);
        bth.solicited = last && request.wr.solicited && request.wr.op.consumes_receive();
        let wr_id = request.wr.wr_id;
        let headers =
            Headers { encap: &core.attrs.path, bth: &bth, srqn: core.xrceth(&request.wr), ext: &segment.ext };
        let emitted = ctx
            .emit(core, out, &headers, &segment.payload(core.initiator(), &request.wr.payload))
            .map_err(Status::LocalProtection)?;
        if consumes_receive && let Some(request) = self.queue.get_mut(self.cursor) {
            request.is_probe = is_probe;
        }
        self.sent(core, ctx, (count, count), bth.ack_req);
        Ok(Step::Frame(Frame { emitted, dst_mac: core.attrs.path.dst_mac, wr_id: Some(wr_id) }))
    }

    /// Sends the next request packet of a READ. A READ that fits into the window is sent as one request packet. A
    /// longer READ is split into chunks of half a window, at most two of which are outstanding, so that responses
    /// cannot overrun the buffers on the path. To the responder, each chunk is a separate READ.
    ///
    /// Chunks end at multiples of their size, and the size only changes by halving. The responder has thus executed
    /// either all packets of a repeated chunk or none of them. A partially executed chunk would be neither new nor a
    /// duplicate.
    fn send_read<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        out: &mut Vec<u8>,
    ) -> Result<Step, Status> {
        let next = self.next;
        let Some(request) = self.queue.get(self.cursor) else { return Ok(Step::Idle) };
        let SendOp::Read { remote, .. } = request.wr.op else { return Ok(Step::Idle) };
        let ReadChunk { unit, packets } = self.next_read_chunk(request);
        let waits = self.flight_limit(core, request, packets).is_some();
        let Some(request) = self.queue.get_mut(self.cursor) else { return Ok(Step::Idle) };
        request.chunk_packets = unit;
        if waits {
            return Ok(Step::Idle);
        }
        let offset = next as usize * core.mtu();
        let bytes = (request.len as usize - offset).min(packets as usize * core.mtu());
        let reth = Reth {
            va: Va::new(remote.va.get().wrapping_add(offset as u64)),
            rkey: remote.rkey,
            dma_len: u32::try_from(bytes).expect("no longer than the request, whose length has 32 bits"),
        };
        request.chunk_start = next;
        request.is_chunked |= packets < request.packets;
        let psn = request.first.advance(next);
        self.send_headers_only(core, ctx, out, (Operation::ReadRequest, Ext::Reth(reth)), psn, packets)
    }

    /// Returns the part of the current READ to request with the next request packet.
    pub(super) fn next_read_chunk(&self, request: &Request) -> ReadChunk {
        let (window, next) = (self.window.packets(), self.next);
        // If no response has arrived, repeat the READ unchanged. Its length did not cause the loss: at least the first
        // response would have arrived if the others had overrun a buffer.
        let repeated = next == 0 && self.is_outstanding(request.first);
        let mut unit = match request.chunk_packets {
            0 if request.packets <= window => request.packets.next_power_of_two(),
            0 => power_of_two_below(window / 2),
            unit => unit,
        };
        while !repeated && unit.min(request.packets) > window {
            unit /= 2;
        }
        let end = ((next / unit + 1) * unit).min(request.packets);
        ReadChunk { unit, packets: end - next }
    }

    /// Returns the limit on packets in flight, if any, that blocks the packet at the cursor. The packet consumes
    /// `packets` PSNs.
    pub(super) fn flight_limit(&self, core: &Core, request: &Request, packets: u32) -> Option<WaitReason> {
        let (in_flight, most) = (self.in_flight(), self.window());
        let full = match request.wr.op {
            SendOp::Read { .. } => in_flight > 0 && in_flight + packets > most,
            _ => in_flight >= most,
        };
        if full {
            return Some(WaitReason::Window { in_flight, most });
        }
        if !request.returns_data() {
            return None;
        }
        let most = core.attrs.max_rd_atomic.max(1);
        if self.rd_atomics_in_flight() >= u32::from(most) {
            return Some(WaitReason::Reads { most });
        }
        // If the oldest unacknowledged PSN is before the newest chunk, an older chunk is still outstanding as well.
        let two_under_way =
            self.cursor == 0 && self.next > 0 && ahead(self.unacked, request.first) < request.chunk_start;
        (matches!(request.wr.op, SendOp::Read { .. }) && two_under_way).then_some(WaitReason::ReadPieces)
    }

    fn send_atomic<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        out: &mut Vec<u8>,
    ) -> Result<Step, Status> {
        let Some(request) = self.queue.get(self.cursor) else { return Ok(Step::Idle) };
        if self.flight_limit(core, request, 1).is_some() {
            return Ok(Step::Idle);
        }
        let (operation, remote, swap_add, compare) = match request.wr.op {
            SendOp::CompareSwap { remote, compare, swap } => (Operation::CompareSwap, remote, swap, compare),
            SendOp::FetchAdd { remote, add } => (Operation::FetchAdd, remote, add, 0),
            _ => return Ok(Step::Idle),
        };
        let atomic = AtomicEth { va: remote.va, rkey: remote.rkey, swap_add, compare };
        let psn = request.first;
        self.send_headers_only(core, ctx, out, (operation, Ext::Atomic(atomic)), psn, 1)
    }

    /// Sends a packet without payload for the request at the cursor. The packet consumes `packets` PSNs.
    fn send_headers_only<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        out: &mut Vec<u8>,
        (operation, ext): (Operation, Ext),
        psn: Psn,
        packets: u32,
    ) -> Result<Step, Status> {
        let Some(request) = self.queue.get(self.cursor) else { return Ok(Step::Idle) };
        let (wr_id, srqn) = (request.wr.wr_id, core.xrceth(&request.wr));
        let mut bth = core.bth(ctx, operation, psn);
        bth.ack_req = true;
        let headers = Headers { encap: &core.attrs.path, bth: &bth, srqn, ext: &ext };
        let emitted = ctx
            .emit(core, out, &headers, &FramePayload::EMPTY)
            .expect("a packet without payload reads no memory");
        self.sent(core, ctx, (1, packets), true);
        Ok(Step::Frame(Frame { emitted, dst_mac: core.attrs.path.dst_mac, wr_id: Some(wr_id) }))
    }

    /// Returns the number of packets that the next frame of a SEND or WRITE carries.
    fn packets_to_send<H: Host>(
        &self,
        core: &Core,
        ctx: &Ctx<'_, H>,
        request: &Request,
        in_flight: u32,
    ) -> u32 {
        // Beyond the credits, the packet that consumes a receive request is a probe, and must be sent alone.
        let end = match recv_packet_index(request).filter(|_| self.credits.beyond(request.recv_seq) > 0) {
            Some(probe) if probe == self.next => probe + 1,
            Some(probe) if probe > self.next => probe,
            _ => request.packets,
        };
        core.packets_in_frame(ctx, self.next)
            .min(end - self.next)
            .min(self.window().saturating_sub(in_flight).max(1))
    }

    /// Updates the state after sending `packets` packets of one request, beginning with the packet at the cursor.
    /// Together, they consume `psns` PSNs.
    fn sent<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        (packets, psns): (u32, u32),
        ack_req: bool,
    ) {
        self.on_sent(core, ctx, self.cursor_psn(), (packets, psns), ack_req);
        self.next += psns;
        if self.queue.get(self.cursor).is_some_and(|request| self.next == request.packets) {
            (self.cursor, self.next) = (self.cursor + 1, 0);
        }
    }

    /// Updates the state, except for the cursor, after sending `packets` packets, the first of which has the PSN `psn`.
    /// Together, they consume `psns` PSNs.
    fn on_sent<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        psn: Psn,
        (packets, psns): (u32, u32),
        ack_req: bool,
    ) {
        self.rnr_state.on_sent();
        let after = psn.advance(psns);
        let repeated = ahead(self.high, self.unacked).saturating_sub(ahead(psn, self.unacked)).min(packets);
        ctx.stats.recovery.retransmitted_packets += u64::from(repeated);
        self.retransmitted += u64::from(repeated);
        if self.high == self.unacked {
            self.waiting_since = ctx.now;
        }
        if ahead(after, self.unacked) > ahead(self.high, self.unacked) {
            self.high = after;
        }
        self.since_ack_req = if ack_req { 0 } else { self.since_ack_req + packets };
        if self.ack_deadline.is_none() {
            self.ack_deadline = core.attrs.ack_timeout.map(|timeout| ctx.now + timeout.after(self.retries));
        }
    }

    /// Returns the maximum number of unacknowledged packets.
    fn window(&self) -> u32 {
        let window = self.window.packets();
        if self.rnr_state == RnrState::Ready { window } else { window.min(limits::MIN_WINDOW) }
    }

    /// Returns whether a frame of `packets` packets in the middle of a message needs AckReq. At least four packets per
    /// window request an ACK, and so does the last packet that the window permits. Otherwise, a message longer than the
    /// window would stall.
    fn needs_ack_req(&self, in_flight: u32, packets: u32) -> bool {
        let window = self.window();
        self.since_ack_req + packets >= (window / 4).max(1) || in_flight + packets >= window
    }
}

/// Returns the index of the packet that consumes a receive request: the first packet of a SEND, or the last packet of a
/// WRITE with immediate.
fn recv_packet_index(request: &Request) -> Option<u32> {
    match request.wr.op {
        SendOp::Send { .. } | SendOp::SendInvalidate { .. } => Some(0),
        SendOp::Write { imm: Some(_), .. } => Some(request.packets.saturating_sub(1)),
        _ => None,
    }
}

/// Returns the largest power of two not greater than `n`, or 1 if `n` is 0.
fn power_of_two_below(n: u32) -> u32 {
    n.checked_ilog2().map_or(1, |log2| 1 << log2)
}
