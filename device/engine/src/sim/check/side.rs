//! What completions and events a side may have: each request one, in order, and in the state that software knows.

use std::fmt;
use std::time::Duration;

use protocol::roce::{Aeth, Ext, Kind, Opcode, RoceFrame, Syndrome, Transport};

use super::amplification::Owed;
use super::congestion::Congestion;
use super::execution::{Cursor, Role};
use super::flight::Flight;
use super::shared::Held;
use super::unreliable::Received;
use super::{Checker, Place, Violation, demand};
use crate::sim::host::SimHost;
use crate::sim::plan::{Op, Pair, draw::wr_id};
use crate::{
    AsyncEvent, Completion, Flush, Instant, Queue, RecvDone, RnrRetry, SendDone, SendOp, Service, State,
    Status, Success, Transmit,
};

/// A receive request that is posted in ERR is flushed within this time (JingZhao interface, section 10.5).
const LATE_RECEIVE: Duration = Duration::from_millis(10);

/// How far one queue is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ledger {
    pub(super) posted: usize,
    pub(super) done: usize,
}

/// One side of a pair in its present life.
#[derive(Debug)]
pub(super) struct Side {
    pub(super) life: usize,
    /// As software knows it from its own moves, completions and events.
    pub(super) state: State,
    pub(super) sends: Ledger,
    pub(super) recvs: Ledger,
    /// When each request was posted.
    pub(super) sent_at: Vec<Instant>,
    received_at: Vec<Instant>,
    /// When it came to ERR.
    broken_at: Option<Instant>,
    /// Packets seen of each send request.
    pub(super) packets: Vec<u32>,
    /// One past the newest send request of which a packet was seen.
    started: usize,
    /// SQD: send requests from here on must wait.
    may_start: usize,
    /// SQD: software waits to hear that the queue is drained.
    drain_due: bool,
    /// It told that communication is established.
    established: bool,
    /// Software moved it to ERR or RESET: nothing may leave any more.
    muted: bool,
    /// From when on its peer may hear nothing of it.
    pub(super) silent_since: Option<Instant>,
    /// Its receive requests come from a shared queue: the one it holds, and whether it told of the last.
    pub(super) shared: bool,
    pub(super) held: Option<Held>,
    pub(super) last_wqe: bool,
    /// Who completes what it leaves behind.
    flush: Flush,
    /// A receive request was wanted and there was none.
    pub(super) missed_receive: bool,
    /// The peer's requests that it executed, and the originals of atomics among them.
    pub(super) executed: Cursor,
    pub(super) originals: Vec<Option<u64>>,
    /// Data that its own requests brought back.
    pub(super) returned: Cursor,
    /// Work on its own keys.
    pub(super) worked: Cursor,
    pub(super) ended: Cursor,
    pub(super) flight: Flight,
    pub(super) received: Received,
    pub(super) congestion: Congestion,
    pub(super) owed: Owed,
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
            silent_since: None,
            shared: pair.ends[side].srq.is_some(),
            held: None,
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
            owed: Owed::default(),
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

    /// Whether a drained SQD was not reported.
    pub(super) fn owes_drained(&self) -> bool {
        self.drain_due && self.sends.done >= self.started
    }

    /// Whether something was received in RTR, and not reported.
    pub(super) fn owes_established(&self) -> bool {
        self.state == State::Rtr && self.recvs.done > 0 && !self.established
    }

    /// Whether all packets of a request were seen.
    pub(super) fn sent_whole(&self, nth: usize, packets: u32) -> bool {
        self.packets[nth] == packets
    }

    fn enter(&mut self, state: State, now: Instant) {
        (self.state, self.drain_due) = (state, false);
        if state == State::Err {
            self.broken_at.get_or_insert(now);
        }
        if matches!(state, State::Err | State::Reset) {
            self.silent_since.get_or_insert(now);
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
    pub(super) fn complete_send(&mut self, place: Place, completion: &Completion) -> Result<(), Violation> {
        let (pair, side) = (self.pair(place), self.side(place));
        let nth = side.sends.done;
        demand!(nth < side.sends.posted, "nothing is posted");
        let op = &pair.lives[side.life].sides[place.side].ops[nth];
        demand!(completion.wr_id == wr_id(side.life as u64, nth), "request {nth} is next");
        let sending = matches!(side.state, State::Rts | State::Sqd);
        match completion.result {
            Ok(Success::Recv(_)) => return Err("a receive in the send queue".to_owned()),
            Ok(Success::Send(done)) => {
                demand!(sending, "success in {:?}", side.state);
                demand!(op.fails.is_empty(), "must fail with {:?}", op.fails);
                self.judge_success(place, nth, op, &done)?;
            }
            Err(Status::Flushed) => {
                demand!(side.flush == Flush::Each, "flushed, which its owner does");
                demand!(matches!(side.state, State::Err | State::Sqe), "flushed in {:?}", side.state);
            }
            Err(status) => {
                demand!(sending, "a failure in {:?}", side.state);
                if !op.fails.contains(&status) {
                    self.judge_giving_up(place, nth, status)?;
                }
                let now = self.now;
                let to = if pair.service == Service::Rc { State::Err } else { State::Sqe };
                self.side_mut(place).enter(to, now);
            }
        }
        self.side_mut(place).sends.done += 1;
        Ok(())
    }

    fn judge_success(&self, place: Place, nth: usize, op: &Op, done: &SendDone) -> Result<(), Violation> {
        let (pair, side, peer) = (self.pair(place), self.side(place), self.side(place.peer()));
        let remote_qpn = match (&op.request.ud, pair.service) {
            (Some(to), Service::Ud) if op.len > 0 || op.takes_receive() => to.qpn,
            _ => pair.ends[1 - place.side].qpn,
        };
        demand!(
            done.op == op.request.op && done.byte_len == op.len && done.remote_qpn == remote_qpn,
            "of {op:?}"
        );
        if pair.service != Service::Rc {
            let (sent, due) = (side.packets[nth], op.packets(pair.mtu));
            demand!(sent == due, "after {sent} of {due} packets");
            return Ok(());
        }
        demand!(side.flight.is_answered(nth), "without an answer");
        demand!(side.returned.has_done(self.ops(place), nth), "without its data");
        let worked = [&side.worked, &side.ended].map(|cursor| cursor.has_done(self.ops(place), nth));
        demand!(worked == [true; 2], "without its work on a key");
        demand!(peer.executed.has_done(self.ops(place), nth), "not executed");
        let taken = self.ops(place)[..=nth].iter().filter(|op| op.takes_receive()).count();
        demand!(peer.recvs.done >= taken, "before the receiver's completion");
        Ok(())
    }

    fn judge_giving_up(&self, place: Place, nth: usize, status: Status) -> Result<(), Violation> {
        let (pair, side, peer) = (self.pair(place), self.side(place), self.side(place.peer()));
        let life = &pair.lives[side.life];
        demand!(pair.service == Service::Rc, "unexpected");
        match status {
            Status::RetryExceeded => {
                let silence = [side.silent_since, peer.silent_since].into_iter().flatten().min();
                let retries = u32::from(life.retry_count);
                demand!(retries < 7 || silence.is_some(), "everybody answers");
                demand!(side.flight.times_asked() >= retries, "after {} attempts", side.flight.times_asked());
                if let Some(silence) = silence.filter(|_| retries == 7) {
                    // Each timeout once, and what was on its way or waited for a receiver when the silence began.
                    let timeouts: Duration =
                        (0..=life.retry_count).map(|retries| pair.ack_timeout.after(retries)).sum();
                    let longest = timeouts
                        + pair.ack_timeout.after(life.retry_count)
                        + Duration::from_millis(2)
                        + self.slack(place);
                    let since = silence.max(side.sent_at[nth]);
                    demand!(self.now <= since + longest, "silence began at {since:?}");
                }
            }
            Status::RnrRetryExceeded => {
                let RnrRetry::Limited(limit) = life.rnr_retry else {
                    return Err("retries have no limit".to_owned());
                };
                let naks = side.flight.rnr_naks();
                demand!(naks > u32::from(limit), "after {naks} RNR NAKs, with {limit} retries");
            }
            _ => return Err("unexpected".to_owned()),
        }
        Ok(())
    }

    pub(super) fn complete_recv(
        &mut self,
        place: Place,
        completion: &Completion,
        host: &SimHost,
    ) -> Result<(), Violation> {
        let (pair, side) = (self.pair(place), self.side(place));
        let nth = side.recvs.done;
        let next = match side.held {
            _ if !side.shared => (nth < side.recvs.posted).then(|| wr_id(side.life as u64, nth)),
            held => held.map(|held| held.wr_id),
        };
        let next = next.ok_or("nothing is posted")?;
        demand!(completion.wr_id == next, "receive {nth}, {next:#x}, is next");
        match completion.result {
            Ok(Success::Send(_)) => return Err("a send in the receive queue".to_owned()),
            Ok(Success::Recv(done)) => {
                demand!(self.outsider.is_none(), "of {:?}", self.outsider);
                let states = [State::Rtr, State::Rts, State::Sqd, State::Sqe];
                demand!(states.contains(&side.state), "in {:?}", side.state);
                match pair.service {
                    Service::Rc => self.receive_reliable(place, nth, &done)?,
                    Service::Uc => self.receive_connected(place, &done, host)?,
                    _ => self.receive_datagram(place, &done, host)?,
                }
            }
            Err(Status::Flushed) => {
                demand!(side.flush == Flush::Each, "flushed, which its owner does");
                let broken_at = side.broken_at.ok_or_else(|| format!("flushed in {:?}", side.state))?;
                demand!(side.sends.done == side.sends.posted, "flushed before the send queue");
                // Posted late, it is found by looking for it, which happens at least every 10 ms.
                let posted_at = side.received_at.get(nth).copied().unwrap_or(broken_at);
                let late = if posted_at > broken_at { LATE_RECEIVE } else { Duration::ZERO };
                let due = posted_at.max(broken_at) + late;
                demand!(self.now <= due, "flushed after {due:?}");
            }
            Err(status) => {
                let expected =
                    pair.lives[side.life].sides[place.side].recvs.get(nth).and_then(|recv| recv.fails);
                demand!(expected == Some(status), "expected {expected:?}");
                let now = self.now;
                self.side_mut(place).enter(State::Err, now);
            }
        }
        let side = self.side_mut(place);
        side.recvs.done += 1;
        if side.held.take().is_some() {
            side.recvs.posted += 1;
        }
        Ok(())
    }

    /// The n-th receive request of a reliable connection is for the n-th message that takes one.
    fn receive_reliable(&self, place: Place, nth: usize, done: &RecvDone) -> Result<(), Violation> {
        let (side, peer) = (self.side(place), self.side(place.peer()));
        let ops = &self.ops(place.peer())[..peer.sends.posted];
        let takers = ops.iter().enumerate().filter(|(_, op)| op.takes_receive());
        let (at, op) = takers.clone().nth(nth).ok_or("the peer posted nothing for it")?;
        demand!(op.fails.is_empty(), "request {at} must fail");
        fits(op, done)?;
        demand!(done.remote_qpn == self.pair(place).ends[1 - place.side].qpn, "of {op:?}");
        demand!(side.executed.has_done(ops, at), "request {at} is not executed");
        Ok(())
    }

    /// A side whose owner flushes fetched nothing that it had no reason to.
    pub(super) fn left_requests(&self, place: Place, host: &SimHost) -> Result<(), Violation> {
        let (pair, side) = (self.pair(place), self.side(place));
        let taken = host.queues.get(&pair.ends[place.side].qpn.get()).map_or([0; 2], |queues| queues.taken);
        if side.flush == Flush::Owner && side.state == State::Err {
            let ops = &self.ops(place)[..side.sends.posted];
            let worked = (0..ops.len()).rfind(|&nth| ops[nth].is_local() && side.worked.has_done(ops, nth));
            let begun = side.sends.done.max(side.started).max(worked.map_or(0, |nth| nth + 1));
            // The next one that has something to do may have been waiting for its turn.
            let idle = ops[begun..].iter().take_while(|op| op.request.op == SendOp::Nop).count();
            let most = begun + idle + 1;
            demand!(taken[0] <= most, "{} requests are fetched, {begun} began", taken[0]);
            demand!(taken[1] <= side.recvs.done + 1, "{} receives are fetched", taken[1]);
        }
        Ok(())
    }

    pub(super) fn on_async(&mut self, place: Place, event: AsyncEvent) -> Result<(), Violation> {
        let now = self.now;
        match event {
            AsyncEvent::AccessError(_) | AsyncEvent::InvalidRequest => {
                let posted = self.side(place.peer()).sends.posted;
                let ops = &self.ops(place.peer())[..posted];
                let status = match event {
                    AsyncEvent::AccessError(_) => Status::RemoteAccess,
                    _ => Status::RemoteInvalidRequest,
                };
                demand!(ops.iter().any(|op| op.fails.contains(&status)), "the peer asked for nothing wrong");
                self.side_mut(place).enter(State::Err, now);
            }
            AsyncEvent::SqDrained => {
                let side = self.side_mut(place);
                demand!(side.state == State::Sqd && side.drain_due, "not asked for");
                demand!(side.sends.done >= side.started, "request {} is under way", side.sends.done);
                side.drain_due = false;
            }
            AsyncEvent::CommunicationEstablished => {
                let side = self.side_mut(place);
                demand!(side.state == State::Rtr && !side.established, "in {:?}, or again", side.state);
                side.established = true;
            }
            AsyncEvent::LastWqeReached => {
                let side = self.side_mut(place);
                demand!(side.shared && side.state == State::Err, "in {:?}", side.state);
                demand!(side.held.is_none() && !side.last_wqe, "holds {:?}, or again", side.held);
                side.last_wqe = true;
            }
            AsyncEvent::WqCatastrophic | AsyncEvent::SrqCatastrophic => {
                return Err("unexpected".to_owned());
            }
        }
        Ok(())
    }

    /// A frame that `place` sent.
    pub(super) fn judge_frame(
        &mut self,
        place: Place,
        sent: &Transmit,
        frame: &RoceFrame<'_>,
    ) -> Result<(), Violation> {
        let (pair, side) = (self.pair(place), self.side(place));
        let (bth, payload) = (&frame.packet.bth, frame.packet.payload);
        let transport = match pair.service {
            Service::Rc => Transport::Rc,
            Service::Uc => Transport::Uc,
            _ => Transport::Ud,
        };
        demand!(bth.pkey == self.pkey(place), "{:?}", bth.pkey);
        if bth.opcode == Opcode::CNP {
            return self.judge_notification(place, bth);
        }
        demand!(bth.opcode.transport == transport, "opcode {:?}", bth.opcode);
        demand!(payload.len() <= pair.mtu.bytes(), "a payload of {} bytes", payload.len());
        demand!(bth.mig_req, "MigReq is 0");
        demand!(side.state != State::Reset && !side.muted, "in {:?}", side.state);
        if pair.service != Service::Ud {
            let to = &pair.ends[1 - place.side];
            demand!(bth.dest_qp == to.qpn, "for {:?}", bth.dest_qp);
        }
        if let (true, Ext::Aeth(Aeth { syndrome: Syndrome::Ack { credits }, .. })) =
            (side.shared, frame.packet.ext)
        {
            demand!(credits == 31, "{credits} credits of a shared queue");
        }
        if bth.opcode.is_response() {
            if bth.opcode.operation.kind() == Kind::ReadResponse {
                self.judge_read_response(place, &frame.packet)?;
            }
            return self.judge_answer(place, &frame.packet);
        }
        let life = side.life;
        let nth = sent.wr_id.map(|id| usize::try_from(id & 0xffff_ffff).unwrap_or(usize::MAX));
        let nth = nth.filter(|&nth| sent.wr_id == Some(wr_id(life as u64, nth))).ok_or("of another life")?;
        let open = side.sends.done..side.sends.posted;
        demand!(open.contains(&nth), "of request {nth}, when {open:?} are open");
        let may = match side.state {
            State::Rts => true,
            State::Sqd => nth < side.may_start,
            _ => false,
        };
        demand!(may, "of request {nth} in {:?}", side.state);
        let op = &pair.lives[life].sides[place.side].ops[nth];
        let ends = bth.opcode.operation.position().ends();
        let solicited = ends && op.request.solicited && op.takes_receive();
        demand!(bth.solicited == solicited, "solicited: {}", bth.solicited);
        match pair.service {
            Service::Rc => self.ask(place, nth, &frame.packet)?,
            Service::Uc => demand!(!bth.ack_req, "AckReq is 1"),
            _ => self.judge_datagram(place, nth, frame)?,
        }
        let side = self.side_mut(place);
        side.packets[nth] += 1;
        side.started = side.started.max(nth + 1);
        Ok(())
    }
}

/// Whether a receive completion says what its message says.
pub(super) fn fits(op: &Op, done: &RecvDone) -> Result<(), Violation> {
    let kind = match op.request.op {
        SendOp::Send { .. } | SendOp::SendInvalidate { .. } => Kind::Send,
        _ => Kind::Write,
    };
    demand!(
        done.opcode.operation.kind() == kind
            && done.opcode.operation.position().ends()
            && (done.byte_len, done.imm, done.solicited) == (op.len, op.imm(), op.request.solicited)
            && done.invalidated == op.invalidates(),
        "of {op:?}"
    );
    Ok(())
}
