//! Checks one side's completions and events. Each request must complete exactly once, in order, and with a status that
//! the QP state permits.

use std::fmt;
use std::time::Duration;

use protocol::ids::Srqn;
use protocol::roce::{Aeth, Ext, Kind, Opcode, RoceFrame, Syndrome, Transport};

use super::amplification::ReplyAllowance;
use super::congestion::Congestion;
use super::execution::{Cursor, Role};
use super::flight::Flight;
use super::shared::FetchedRequest;
use super::unreliable::Received;
use super::{Checker, SideId, Violation, ensure};
use crate::host::SimHost;
use crate::plan::{Op, Pair, XrcSrqId, draw::wr_id};
use engine::{
    AsyncEvent, Completion, Flush, Instant, Queue, RecvDone, RnrRetry, SendDone, SendOp, Service, State,
    Status, Success, Transmit,
};

/// Maximum time until a receive request posted in ERR is flushed (JingZhao interface, section 10.5).
const LATE_RECEIVE: Duration = Duration::from_millis(10);

/// Counts of the posted and completed requests of a queue.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ledger {
    pub(super) posted: usize,
    pub(super) done: usize,
}

/// One side of a pair during its current [`Connection`](crate::plan::Connection).
#[derive(Debug)]
pub(super) struct Side {
    pub(super) life: usize,
    /// QP state as software sees it, derived from its own transitions, completions and events.
    pub(super) state: State,
    pub(super) sends: Ledger,
    pub(super) recvs: Ledger,
    /// Time at which each send request was posted.
    pub(super) sent_at: Vec<Instant>,
    received_at: Vec<Instant>,
    broken_at: Option<Instant>,
    /// For each send request, the number of packets seen.
    pub(super) packets: Vec<u32>,
    /// One past the index of the newest send request for which a packet has been sent.
    started: usize,
    /// In SQD, the index of the first send request that must not start.
    may_start: usize,
    /// In SQD, whether the drained event is due.
    drain_due: bool,
    established: bool,
    /// Whether software has moved the QP to ERR or RESET, after which the QP must not send.
    muted: bool,
    /// Time from which requests between this side and its peer may go unanswered, because the network has stopped
    /// delivering packets or the QP has entered ERR or RESET.
    pub(super) unreachable_since: Option<Instant>,
    pub(super) shared: bool,
    /// The request that the side has fetched from the shared queue.
    pub(super) fetched: Option<FetchedRequest>,
    pub(super) last_wqe: bool,
    /// Whether requests are flushed by the engine or by its owner.
    flush: Flush,
    /// Whether a receive request was needed when none was posted.
    pub(super) missed_receive: bool,
    /// Progress of the peer's requests at this side.
    pub(super) executed: Cursor,
    /// Original value that each of the peer's atomics must return, set when the atomic is executed.
    pub(super) originals: Vec<Option<u64>>,
    /// Progress of the responses to the side's own requests.
    pub(super) returned: Cursor,
    /// Progress of the side's own key operations.
    pub(super) worked: Cursor,
    /// Progress of the key invalidations that end the side's READs.
    pub(super) ended: Cursor,
    pub(super) flight: Flight,
    pub(super) received: Received,
    pub(super) congestion: Congestion,
    pub(super) reply_allowance: ReplyAllowance,
}

impl Side {
    pub(super) fn new(pair: &Pair, side: usize, life: usize) -> Self {
        let (mine, theirs) = (&pair.lives[life].sides[side], &pair.lives[life].sides[1 - side]);
        Self {
            life,
            state: State::Reset,
            sends: Ledger::default(),
            recvs: Ledger::default(),
            sent_at: Vec::new(),
            received_at: Vec::new(),
            broken_at: None,
            packets: vec![0; mine.ops.len()],
            started: 0,
            may_start: 0,
            drain_due: false,
            established: false,
            muted: false,
            unreachable_since: None,
            shared: pair.shares_receives(side),
            fetched: None,
            last_wqe: false,
            flush: pair.ends[side].flush,
            missed_receive: false,
            executed: Cursor::new(Role::Responder),
            originals: vec![None; theirs.ops.len()],
            returned: Cursor::new(Role::Requester),
            worked: Cursor::new(Role::Owner),
            ended: Cursor::new(Role::Reader),
            flight: Flight::new(mine, pair.mtu),
            received: Received::new(theirs.ops.len()),
            congestion: Congestion::default(),
            reply_allowance: ReplyAllowance::default(),
        }
    }

    pub(super) fn on_move(&mut self, to: State, now: Instant) {
        match to {
            State::Sqd => (self.may_start, self.drain_due) = (self.started, true),
            State::Err | State::Reset => self.muted = true,
            _ => {}
        }
        if to != State::Sqd {
            self.enter(to, now);
        }
        self.state = to;
    }

    pub(super) fn on_post(&mut self, queue: Queue, count: usize, now: Instant) {
        match queue {
            Queue::Send => {
                self.sends.posted += count;
                self.sent_at.resize(self.sends.posted, now);
            }
            Queue::Recv => {
                self.recvs.posted += count;
                self.received_at.resize(self.recvs.posted, now);
            }
        }
    }

    pub(super) fn is_finished(&self) -> bool {
        if self.flush == Flush::Owner && matches!(self.state, State::Err | State::Sqe) {
            return true;
        }
        let receives =
            self.state != State::Err || self.recvs.done == self.recvs.posted && self.shared == self.last_wqe;
        self.state == State::Reset || (self.sends.done == self.sends.posted && receives)
    }

    /// Returns whether the drained event is overdue in SQD.
    pub(super) fn missing_drained_event(&self) -> bool {
        self.drain_due && self.sends.done >= self.started
    }

    /// Returns whether the communication-established event is overdue after a message was received in RTR.
    pub(super) fn missing_established_event(&self) -> bool {
        self.state == State::Rtr && self.recvs.done > 0 && !self.established
    }

    pub(super) fn sent_whole(&self, nth: usize, packets: u32) -> bool {
        self.packets[nth] == packets
    }

    fn enter(&mut self, state: State, now: Instant) {
        (self.state, self.drain_due) = (state, false);
        if state == State::Err {
            self.broken_at.get_or_insert(now);
        }
        if matches!(state, State::Err | State::Reset) {
            self.unreachable_since.get_or_insert(now);
        }
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { life, state, sends, recvs, .. } = self;
        write!(
            f,
            "life {life}, {state:?}, {}/{} sends, {}/{} receives",
            sends.done, sends.posted, recvs.done, recvs.posted
        )
    }
}

impl Checker<'_> {
    pub(super) fn complete_send(&mut self, id: SideId, completion: &Completion) -> Result<(), Violation> {
        let (pair, side) = (self.pair(id), self.side(id));
        let nth = side.sends.done;
        ensure!(nth < side.sends.posted, "no send request is posted");
        let op = &pair.lives[side.life].sides[id.side].ops[nth];
        ensure!(
            completion.wr_id == wr_id(side.life as u64, nth),
            "expected the completion of send request {nth}"
        );
        let sending = matches!(side.state, State::Rts | State::Sqd);
        match completion.result {
            Ok(Success::Recv(_)) => return Err("a completion of the send queue reports a receive".to_owned()),
            Ok(Success::Send(done)) => {
                ensure!(sending, "a request succeeded in state {:?}", side.state);
                ensure!(
                    op.fails.is_empty(),
                    "the request succeeded, but it must fail with one of {:?}",
                    op.fails
                );
                self.check_success(id, nth, op, &done)?;
            }
            Err(Status::Flushed) => {
                ensure!(
                    side.flush == Flush::Each,
                    "the engine flushed a request, but the owner of the engine must flush this QP"
                );
                ensure!(
                    matches!(side.state, State::Err | State::Sqe),
                    "a request was flushed in state {:?}",
                    side.state
                );
            }
            Err(status) => {
                ensure!(sending, "a request failed in state {:?}", side.state);
                if !op.fails.contains(&status) {
                    self.check_retry_failure(id, nth, status)?;
                }
                let now = self.now;
                let to = if pair.is_reliable() { State::Err } else { State::Sqe };
                self.side_mut(id).enter(to, now);
            }
        }
        self.side_mut(id).sends.done += 1;
        Ok(())
    }

    fn check_success(&self, id: SideId, nth: usize, op: &Op, done: &SendDone) -> Result<(), Violation> {
        let (pair, side, peer) = (self.pair(id), self.side(id), self.side(id.peer()));
        let remote_qpn = match (&op.request.ud, pair.service) {
            (Some(to), Service::Ud) if op.len > 0 || op.takes_receive() => to.qpn,
            _ => pair.ends[1 - id.side].qpn,
        };
        ensure!(
            done.op == op.request.op && done.byte_len == op.len && done.remote_qpn == remote_qpn,
            "the completion does not match {op:?}"
        );
        if !pair.is_reliable() {
            let (sent, due) = (side.packets[nth], op.packets(pair.mtu));
            ensure!(sent == due, "the request completed after {sent} packets, expected {due}");
            return Ok(());
        }
        ensure!(side.flight.is_answered(nth), "the request completed before it was acknowledged");
        ensure!(
            side.returned.has_done(self.ops(id), nth),
            "the request completed before its response data was written"
        );
        let worked = [&side.worked, &side.ended].map(|cursor| cursor.has_done(self.ops(id), nth));
        ensure!(worked == [true; 2], "the request completed before its key operation");
        ensure!(
            peer.executed.has_done(self.ops(id), nth),
            "the request completed before the peer executed it"
        );
        let taken = self.ops(id)[..=nth].iter().filter(|op| op.takes_receive()).count();
        ensure!(peer.recvs.done >= taken, "the request completed before the peer's receive request did");
        Ok(())
    }

    fn check_retry_failure(&self, id: SideId, nth: usize, status: Status) -> Result<(), Violation> {
        let (pair, side, peer) = (self.pair(id), self.side(id), self.side(id.peer()));
        let life = &pair.lives[side.life];
        ensure!(pair.is_reliable(), "a request on an unreliable QP failed with {status:?}");
        match status {
            Status::RetryExceeded => {
                let unreachable =
                    [side.unreachable_since, peer.unreachable_since].into_iter().flatten().min();
                let retries = u32::from(life.retry_count);
                ensure!(
                    retries < 7 || unreachable.is_some(),
                    "the request ran out of retries although the peer was reachable"
                );
                ensure!(
                    side.flight.transmissions() >= retries,
                    "the request failed after {} transmissions, but the retry count is {retries}",
                    side.flight.transmissions()
                );
                if let Some(unreachable) = unreachable.filter(|_| retries == 7) {
                    // Upper bound: the sum of all timeouts, plus slack for packets in flight or an RNR wait in progress
                    // when the connection was cut.
                    let timeouts: Duration =
                        (0..=life.retry_count).map(|retries| pair.ack_timeout.after(retries)).sum();
                    let longest = timeouts
                        + pair.ack_timeout.after(life.retry_count)
                        + Duration::from_millis(2)
                        + self.slack(id);
                    let since = unreachable.max(side.sent_at[nth]);
                    ensure!(
                        self.now <= since + longest,
                        "the request failed too late: more than {longest:?} after {since:?}"
                    );
                }
            }
            Status::RnrRetryExceeded => {
                let RnrRetry::Limited(limit) = life.rnr_retry else {
                    return Err("the request ran out of RNR retries, which are unlimited".to_owned());
                };
                let naks = side.flight.rnr_naks();
                ensure!(
                    naks > u32::from(limit),
                    "the request failed after {naks} RNR NAKs, but {limit} RNR retries are allowed"
                );
            }
            _ => return Err(format!("the request must not fail with {status:?}")),
        }
        Ok(())
    }

    pub(super) fn complete_recv(
        &mut self,
        id: SideId,
        completion: &Completion,
        host: &SimHost,
    ) -> Result<(), Violation> {
        let (pair, side) = (self.pair(id), self.side(id));
        let nth = side.recvs.done;
        let next = match side.fetched {
            _ if !side.shared => (nth < side.recvs.posted).then(|| wr_id(side.life as u64, nth)),
            fetched => fetched.map(|fetched| fetched.wr_id),
        };
        let next = next.ok_or("no receive request is posted")?;
        ensure!(
            completion.wr_id == next,
            "expected the completion of receive request {nth} (wr_id {next:#x})"
        );
        let srqn = side
            .fetched
            .filter(|_| pair.is_xrc())
            .and_then(|fetched| u32::try_from(fetched.srq).ok())
            .map(Srqn::new);
        ensure!(completion.srqn == srqn, "the reported SRQ is {:?}, expected {srqn:?}", completion.srqn);
        match completion.result {
            Ok(Success::Send(_)) => return Err("a completion of the receive queue reports a send".to_owned()),
            Ok(Success::Recv(done)) => {
                ensure!(
                    self.foreign_pkey.is_none(),
                    "a packet with mismatched P_Key {:?} completed a receive request",
                    self.foreign_pkey
                );
                let states = [State::Rtr, State::Rts, State::Sqd, State::Sqe];
                ensure!(states.contains(&side.state), "a message was received in state {:?}", side.state);
                match pair.service {
                    Service::Rc | Service::XrcIni => self.receive_reliable(id, nth, &done)?,
                    Service::Uc => self.receive_connected(id, &done, host)?,
                    _ => self.receive_datagram(id, &done, host)?,
                }
            }
            Err(Status::Flushed) => {
                ensure!(
                    side.flush == Flush::Each,
                    "the engine flushed a request, but the owner of the engine must flush this QP"
                );
                // If later packets of a message specified a different SRQ, the message's receive request is flushed
                // before the event is raised.
                let mut takers = self.ops(id.peer()).iter().filter(|op| op.takes_receive());
                if takers.nth(nth).is_some_and(|op| op.changes_srq.is_some()) {
                    let now = self.now;
                    self.side_mut(id).enter(State::Err, now);
                }
                let side = self.side(id);
                let broken_at = side
                    .broken_at
                    .ok_or_else(|| format!("a receive request was flushed in state {:?}", side.state))?;
                ensure!(
                    side.sends.done == side.sends.posted,
                    "the receive queue was flushed before the send queue"
                );
                // In ERR, the engine polls for newly posted receive requests at least every 10 ms.
                let posted_at = side.received_at.get(nth).copied().unwrap_or(broken_at);
                let late = if posted_at > broken_at { LATE_RECEIVE } else { Duration::ZERO };
                let due = posted_at.max(broken_at) + late;
                ensure!(self.now <= due, "the receive request must be flushed by {due:?}");
            }
            Err(status) => {
                let expected =
                    pair.lives[side.life].sides[id.side].recvs.get(nth).and_then(|recv| recv.fails);
                ensure!(
                    expected == Some(status),
                    "the receive failed with {status:?}, expected {expected:?}"
                );
                let now = self.now;
                self.side_mut(id).enter(State::Err, now);
            }
        }
        let side = self.side_mut(id);
        side.recvs.done += 1;
        if side.fetched.take().is_some() {
            side.recvs.posted += 1;
        }
        Ok(())
    }

    /// Checks that the n-th receive request completes with the n-th message that consumes a receive request.
    fn receive_reliable(&self, id: SideId, nth: usize, done: &RecvDone) -> Result<(), Violation> {
        let (side, peer) = (self.side(id), self.side(id.peer()));
        let ops = &self.ops(id.peer())[..peer.sends.posted];
        let takers = ops.iter().enumerate().filter(|(_, op)| op.takes_receive());
        let (at, op) = takers.clone().nth(nth).ok_or("the peer sent no message for this request")?;
        ensure!(op.fails.is_empty(), "the peer's request {at} was received, but it must fail");
        fits(op, done)?;
        ensure!(
            done.remote_qpn == self.pair(id).ends[1 - id.side].qpn,
            "the completion reports a remote QP that did not send {op:?}"
        );
        ensure!(side.executed.has_done(ops, at), "the peer's request {at} has not been executed");
        Ok(())
    }

    /// If the engine's owner flushes the requests of a QP in ERR, checks that the engine has fetched no more of them
    /// than necessary.
    pub(super) fn check_unfetched_requests(&self, id: SideId, host: &SimHost) -> Result<(), Violation> {
        let (pair, side) = (self.pair(id), self.side(id));
        let taken = host.queues.get(&pair.ends[id.side].qpn.get()).map_or([0; 2], |queues| queues.taken);
        if side.flush == Flush::Owner && side.state == State::Err {
            let ops = &self.ops(id)[..side.sends.posted];
            let worked = (0..ops.len()).rfind(|&nth| ops[nth].is_local() && side.worked.has_done(ops, nth));
            let begun = side.sends.done.max(side.started).max(worked.map_or(0, |nth| nth + 1));
            // From `begun` on, the engine may have consumed NOPs and fetched one more request without starting it.
            let idle = ops[begun..].iter().take_while(|op| op.request.op == SendOp::Nop).count();
            let most = begun + idle + 1;
            ensure!(taken[0] <= most, "{} send requests were fetched (maximum {most})", taken[0]);
            ensure!(
                taken[1] <= side.recvs.done + 1,
                "{} receive requests were fetched, but only {} have completed",
                taken[1],
                side.recvs.done
            );
        }
        Ok(())
    }

    pub(super) fn on_async(&mut self, id: SideId, event: AsyncEvent) -> Result<(), Violation> {
        let now = self.now;
        match event {
            AsyncEvent::AccessError(_) | AsyncEvent::InvalidRequest => {
                let posted = self.side(id.peer()).sends.posted;
                let ops = &self.ops(id.peer())[..posted];
                let status = match event {
                    AsyncEvent::AccessError(_) => Status::RemoteAccess,
                    _ => Status::RemoteInvalidRequest,
                };
                ensure!(
                    ops.iter().any(|op| op.fails.contains(&status)),
                    "unexpected {event:?}: none of the peer's requests should fail with {status:?}"
                );
                self.side_mut(id).enter(State::Err, now);
            }
            AsyncEvent::SqDrained => {
                let side = self.side_mut(id);
                ensure!(
                    side.state == State::Sqd && side.drain_due,
                    "software did not request the SQ-drained event"
                );
                ensure!(
                    side.sends.done >= side.started,
                    "the SQ-drained event was raised while request {} was outstanding",
                    side.sends.done
                );
                side.drain_due = false;
            }
            AsyncEvent::CommunicationEstablished => {
                let side = self.side_mut(id);
                ensure!(
                    side.state == State::Rtr,
                    "the communication-established event was raised in state {:?}, not RTR",
                    side.state
                );
                ensure!(!side.established, "the communication-established event was raised twice");
                side.established = true;
            }
            AsyncEvent::LastWqeReached => {
                let side = self.side_mut(id);
                ensure!(
                    side.shared && side.state == State::Err,
                    "Last WQE Reached was raised for a QP in state {:?} (uses an SRQ: {})",
                    side.state,
                    side.shared
                );
                ensure!(
                    side.fetched.is_none(),
                    "Last WQE Reached was raised before the fetched request completed: {:?}",
                    side.fetched
                );
                ensure!(!side.last_wqe, "Last WQE Reached was raised twice");
                side.last_wqe = true;
            }
            AsyncEvent::InvalidXrceth(srqn) | AsyncEvent::XrcDomainViolation(srqn) => {
                let posted = self.side(id.peer()).sends.posted;
                let rejected = |op: &Op| {
                    op.request.remote_srq == Some(srqn) && op.fails.contains(&Status::RemoteInvalidRequest)
                };
                ensure!(
                    self.ops(id.peer())[..posted].iter().any(rejected),
                    "unexpected {event:?}: none of the peer's requests for {srqn:?} should be rejected"
                );
                let exists = XrcSrqId::of(srqn.get() as usize).is_some();
                let is_domain = matches!(event, AsyncEvent::XrcDomainViolation(_));
                ensure!(is_domain || !exists, "expected XrcDomainViolation, because {srqn:?} exists");
                ensure!(exists || !is_domain, "expected InvalidXrceth, because {srqn:?} does not exist");
                self.side_mut(id).enter(State::Err, now);
            }
            AsyncEvent::WqCatastrophic | AsyncEvent::SrqCatastrophic | AsyncEvent::XrcSrqCatastrophic(_) => {
                return Err("no request of the plan causes a catastrophic error".to_owned());
            }
        }
        Ok(())
    }

    pub(super) fn check_frame(
        &mut self,
        id: SideId,
        sent: &Transmit,
        frame: &RoceFrame<'_>,
    ) -> Result<(), Violation> {
        let (pair, side) = (self.pair(id), self.side(id));
        let (bth, payload) = (&frame.packet.bth, frame.packet.payload);
        let transport = match pair.service {
            Service::Rc => Transport::Rc,
            Service::XrcIni => Transport::Xrc,
            Service::Uc => Transport::Uc,
            _ => Transport::Ud,
        };
        ensure!(bth.pkey == self.pkey(id), "the P_Key is {:?}, expected {:?}", bth.pkey, self.pkey(id));
        if bth.opcode == Opcode::CNP {
            return self.check_notification(id, bth);
        }
        ensure!(bth.opcode.transport == transport, "opcode {:?} is not a {transport:?} opcode", bth.opcode);
        ensure!(
            payload.len() <= pair.mtu.bytes(),
            "the payload is {} bytes, but the path MTU is {}",
            payload.len(),
            pair.mtu.bytes()
        );
        ensure!(bth.mig_req, "MigReq is 0, expected 1");
        ensure!(
            side.state != State::Reset && !side.muted,
            "the QP sent a packet in state {:?} or after software had moved it to ERR or RESET",
            side.state
        );
        if pair.service != Service::Ud {
            let to = &pair.ends[1 - id.side];
            ensure!(bth.dest_qp == to.qpn, "the destination is {:?}, expected {:?}", bth.dest_qp, to.qpn);
        }
        if let (true, Ext::Aeth(Aeth { syndrome: Syndrome::Ack { credits }, .. })) =
            (side.shared, frame.packet.ext)
        {
            ensure!(credits == 31, "an ACK from a QP with an SRQ has credit count {credits}, expected 31");
        }
        if bth.opcode.is_response() {
            ensure!(frame.packet.srqn.is_none(), "the response has an XRCETH for {:?}", frame.packet.srqn);
            if bth.opcode.operation.kind() == Kind::ReadResponse {
                self.check_read_response(id, &frame.packet)?;
            }
            return self.check_reply(id, &frame.packet);
        }
        let life = side.life;
        let nth = sent.wr_id.map(|id| usize::try_from(id & 0xffff_ffff).unwrap_or(usize::MAX));
        let nth = nth
            .filter(|&nth| sent.wr_id == Some(wr_id(life as u64, nth)))
            .ok_or("the request belongs to an earlier life of the pair")?;
        let open = side.sends.done..side.sends.posted;
        ensure!(open.contains(&nth), "request {nth} is not among the outstanding requests, {open:?}");
        let may = match side.state {
            State::Rts => true,
            State::Sqd => nth < side.may_start,
            _ => false,
        };
        ensure!(may, "request {nth} was sent in state {:?}", side.state);
        let op = &pair.lives[life].sides[id.side].ops[nth];
        ensure!(
            frame.packet.srqn == op.request.remote_srq,
            "the XRC SRQ is {:?}, expected {:?}",
            frame.packet.srqn,
            op.request.remote_srq
        );
        let ends = bth.opcode.operation.position().ends();
        let solicited = ends && op.request.solicited && op.takes_receive();
        ensure!(
            bth.solicited == solicited,
            "the solicited event bit is {}, expected {solicited}",
            bth.solicited
        );
        match pair.service {
            Service::Rc | Service::XrcIni => self.on_request_sent(id, nth, &frame.packet)?,
            Service::Uc => ensure!(!bth.ack_req, "AckReq is set in a UC packet"),
            _ => self.check_datagram(id, nth, frame)?,
        }
        let side = self.side_mut(id);
        side.packets[nth] += 1;
        side.started = side.started.max(nth + 1);
        Ok(())
    }
}

pub(super) fn fits(op: &Op, done: &RecvDone) -> Result<(), Violation> {
    let kind = match op.request.op {
        SendOp::Send { .. } | SendOp::SendInvalidate { .. } => Kind::Send,
        _ => Kind::Write,
    };
    ensure!(
        done.opcode.operation.kind() == kind
            && done.opcode.operation.position().ends()
            && (done.byte_len, done.imm, done.solicited) == (op.len, op.imm(), op.request.solicited)
            && done.invalidated == op.invalidates(),
        "the completion does not match {op:?}"
    );
    Ok(())
}
