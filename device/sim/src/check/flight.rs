//! Checks the packets of an RC requester against the responses it has received.
//!
//! From the requests and the delivered responses, the checker derives which packets are acknowledged. PSNs are relative
//! to the first PSN of the connection.
//!
//! # Spec
//! IBTA volume 1, sections 9.7.5 to 9.7.7 and 9.9.2.1.

use std::ops::RangeInclusive;
use std::time::Duration;

use protocol::Psn;
use protocol::roce::{Ext, Kind, NakCode, Packet, Syndrome};

use super::{Checker, SideId, Violation, ensure};
use crate::check::packet_count;
use crate::plan::{Op, Work};
use engine::{AckTimeout, Fence, Instant, Mtu, RnrRetry, RnrTimer};

/// Maximum number of packets in a probe after an RNR NAK.
const PROBE: u32 = 8;

#[derive(Debug)]
pub(super) struct Flight {
    start: Psn,
    /// For each request, one past its last PSN.
    ends: Vec<u32>,
    unacked: u32,
    /// One past the highest PSN sent.
    high: u32,
    /// One past the PSN sent most recently.
    next: u32,
    /// READs and atomics sent, as PSN ranges.
    reads: Vec<(u32, u32)>,
    timer_from: Option<Instant>,
    /// Whether a delivered response justifies a retry.
    retry_allowed: bool,
    /// PSN of the newest sequence NAK since a packet was last acknowledged. Another NAK for the same PSN does not
    /// justify a retry.
    last_nak_psn: Option<u32>,
    /// Number of times the oldest unacknowledged packet has been sent. An RNR NAK resets the number to 0.
    transmissions: u32,
    /// Number of retries since the last acknowledgement or RNR NAK. It is a range because the checker cannot always
    /// determine the exact number.
    retries: RangeInclusive<u8>,
    /// Whether the next retry may already have been due when the last acknowledgement arrived. If so, the requester may
    /// have counted it before the acknowledgement reset the retry count.
    retry_optional: bool,
    rnr_until: Option<Instant>,
    /// Number of RNR NAKs since a packet was last acknowledged.
    rnr_naks: u32,
}

/// Connection parameters that limit the requester.
struct Limits {
    window: u32,
    retries: u32,
    rnr_retries: u32,
    rd_atomic: usize,
    ack_timeout: AckTimeout,
    slack: Duration,
}

impl Flight {
    pub(super) fn new(work: &Work, mtu: Mtu) -> Self {
        let ends = work.ops.iter().scan(0, |end, op| {
            *end += op.packets(mtu);
            Some(*end)
        });
        Self {
            start: work.psn,
            ends: ends.collect(),
            unacked: 0,
            high: 0,
            next: 0,
            reads: Vec::new(),
            timer_from: None,
            retry_allowed: false,
            last_nak_psn: None,
            transmissions: 0,
            retries: 0..=0,
            retry_optional: false,
            rnr_until: None,
            rnr_naks: 0,
        }
    }

    pub(super) fn is_answered(&self, nth: usize) -> bool {
        self.ends[nth] <= self.unacked
    }

    /// Returns whether all packets of requests 0 to `nth`, and no packets of later requests, have been sent.
    pub(super) fn ends_with(&self, nth: usize) -> bool {
        self.ends[nth] == self.high
    }

    pub(super) fn transmissions(&self) -> u32 {
        self.transmissions
    }

    pub(super) fn rnr_naks(&self) -> u32 {
        self.rnr_naks
    }

    fn relative(&self, psn: Psn) -> u32 {
        psn.get().wrapping_sub(self.start.get()) & 0xff_ffff
    }

    /// Returns the request that a sent packet with `psn` belongs to, and the index of the packet within that request.
    pub(super) fn find(&self, psn: Psn) -> (Option<usize>, u32) {
        let psn = self.relative(psn);
        let nth = self.ends.partition_point(|&end| end <= psn);
        (Some(nth).filter(|_| psn < self.high), psn - self.first(nth).min(psn))
    }

    fn first(&self, nth: usize) -> u32 {
        nth.checked_sub(1).map_or(0, |before| self.ends[before])
    }

    /// Checks a request packet that consumes `covers` PSNs.
    fn on_request_sent(
        &mut self,
        now: Instant,
        ops: &[Op],
        nth: usize,
        (psn, covers): (Psn, u32),
        limits: &Limits,
    ) -> Result<(), Violation> {
        let (from, to) = (self.relative(psn), self.relative(psn) + covers);
        let (first, end) = (self.first(nth), self.ends[nth]);
        ensure!(
            first <= from && to <= end,
            "PSNs {from}..{to} are outside request {nth}, which has PSNs {first}..{end}"
        );
        let Self { unacked, next, high, .. } = *self;
        ensure!(
            from == next || from == unacked,
            "PSN {from} was sent, expected the next PSN, {next}, or the oldest unacknowledged PSN, {unacked}"
        );
        ensure!(
            to - unacked <= limits.window,
            "PSNs {unacked}..{to} exceed the window of {} packets",
            limits.window
        );
        let waited = self.rnr_until.take();
        if let Some(until) = waited {
            ensure!(
                now >= until && now <= until + limits.slack,
                "the packet was sent at {now:?}, but the RNR wait ends at {until:?}"
            );
            ensure!(
                self.rnr_naks <= limits.rnr_retries,
                "the packet was sent after {} RNR NAKs, but the limit is {} RNR retries",
                self.rnr_naks,
                limits.rnr_retries
            );
        }
        if from < next {
            let on_time = self.due(limits.ack_timeout).any(|due| now >= due && now <= due + limits.slack);
            let due = self.due(limits.ack_timeout).next();
            ensure!(
                self.retry_allowed || on_time,
                "the packet was retransmitted without cause; the ACK timer expires at {due:?}"
            );
            if waited.is_none() {
                let (least, most) = (*self.retries.start(), *self.retries.end());
                self.retries = least + u8::from(!self.retry_optional)..=most + 1;
            }
            (self.retry_allowed, self.retry_optional, self.timer_from) = (false, false, None);
        }
        if self.rnr_naks > 0 {
            let refused = (first..end).contains(&unacked) && ops[nth].returns_data();
            let few = refused || to - unacked <= PROBE;
            ensure!(few, "PSNs {unacked}..{to} exceed the limit of {PROBE} packets after an RNR NAK");
        }
        if ops[nth].request.fence == Fence::Reads && from == first {
            let mut before = ops[..nth].iter().zip(&self.ends);
            let open = before.any(|(op, end)| op.returns_data() && *end > unacked && op.fails.is_empty());
            ensure!(!open, "fenced request {nth} was sent while earlier READs or atomics were outstanding");
        }
        if ops[nth].request.fence == Fence::All {
            ensure!(
                unacked >= first,
                "fenced request {nth} was sent while earlier requests were outstanding"
            );
        }
        if ops[nth].returns_data() {
            self.reads.retain(|&(_, end)| end <= from && end > unacked);
            self.reads.push((from, to));
            let count = self.reads.len();
            ensure!(
                count <= limits.rd_atomic,
                "{count} READs and atomics are outstanding (maximum {})",
                limits.rd_atomic
            );
        }
        self.transmissions += u32::from((from..to).contains(&unacked));
        ensure!(
            self.transmissions <= limits.retries + 1,
            "PSN {unacked} was sent {} times (maximum {})",
            self.transmissions,
            limits.retries + 1
        );
        self.timer_from.get_or_insert(now);
        (self.high, self.next) = (high.max(to), to);
        Ok(())
    }

    /// Returns the possible expiry times of the ACK timer.
    fn due(&self, timeout: AckTimeout) -> impl Iterator<Item = Instant> + use<> {
        let times = self.retries.clone();
        self.timer_from
            .into_iter()
            .flat_map(move |from| times.clone().map(move |times| from + timeout.after(times)))
    }

    fn on_response(&mut self, now: Instant, timeout: AckTimeout, ops: &[Op], packet: &Packet<'_>) {
        let overdue = self.due(timeout).any(|due| now >= due);
        let psn = self.relative(packet.bth.psn);
        if !(self.unacked..self.high).contains(&psn) {
            return;
        }
        let kind = packet.bth.opcode.operation.kind();
        let before = self.unacked;
        match (kind, packet.ext) {
            (Kind::Acknowledge, Ext::Aeth(aeth)) => match aeth.syndrome {
                Syndrome::Ack { .. } => {
                    self.advance(ops, psn + 1);
                    self.retry_allowed |= self.unacked <= psn;
                }
                Syndrome::RnrNak { timer } => {
                    self.advance(ops, psn);
                    self.progress(now, before, overdue);
                    if self.unacked == psn && self.rnr_until.is_none() {
                        self.rnr_until = Some(now + RnrTimer::new(timer).duration());
                        // Earlier losses do not count towards the retry limit, as the responder is alive.
                        (self.timer_from, self.transmissions, self.retries) = (None, 0, 0..=0);
                        self.rnr_naks += 1;
                    }
                    self.retry_allowed = true;
                    return;
                }
                Syndrome::Nak(code) => {
                    self.advance(ops, psn);
                    self.progress(now, before, overdue);
                    let news = code == NakCode::PsnSequence && self.last_nak_psn.replace(psn) != Some(psn);
                    self.retry_allowed |= news || self.unacked < psn;
                    return;
                }
                Syndrome::Reserved(_) => {}
            },
            _ => {
                self.advance(ops, psn);
                if self.unacked == psn {
                    self.unacked += 1;
                } else {
                    self.retry_allowed = true;
                }
            }
        }
        self.progress(now, before, overdue);
    }

    /// Acknowledges the packets before `to`, up to the first request that needs response data.
    fn advance(&mut self, ops: &[Op], to: u32) {
        while self.unacked < to {
            let nth = self.ends.partition_point(|&end| end <= self.unacked);
            if ops[nth].returns_data() {
                return;
            }
            self.unacked = to.min(self.ends[nth]);
        }
    }

    fn progress(&mut self, now: Instant, before: u32, overdue: bool) {
        if self.unacked > before {
            (self.transmissions, self.retries, self.rnr_naks) = (0, 0..=0, 0);
            (self.rnr_until, self.last_nak_psn) = (None, None);
            // If the timer expired before this acknowledgement arrived, the retry may be waiting for the link, so it is
            // still permitted.
            self.retry_allowed |= overdue;
            self.retry_optional = self.retry_allowed;
            self.next = self.next.max(self.unacked);
            self.timer_from = (self.next > self.unacked).then_some(now);
        }
    }
}

impl Checker<'_> {
    pub(super) fn on_request_sent(
        &mut self,
        id: SideId,
        nth: usize,
        packet: &Packet<'_>,
    ) -> Result<(), Violation> {
        let (now, pair) = (self.now, self.pair(id));
        let life = &pair.lives[self.side(id).life];
        let limits = Limits {
            window: self.plan.window_packets,
            retries: u32::from(life.retry_count),
            rnr_retries: match life.rnr_retry {
                RnrRetry::Limited(limit) => u32::from(limit),
                RnrRetry::Infinite => u32::MAX,
            },
            rd_atomic: usize::from(pair.rd_atomic),
            ack_timeout: pair.ack_timeout,
            slack: self.slack(id),
        };
        let covers = match (packet.bth.opcode.operation.kind(), packet.ext) {
            (Kind::Read, Ext::Reth(reth)) => packet_count(reth.dma_len, pair.mtu.bytes()),
            _ => 1,
        };
        let side = self.side_mut(id);
        let ops = &life.sides[id.side].ops;
        if let Some(before) = ops[..nth].iter().rposition(Op::is_local) {
            ensure!(
                side.worked.has_done(ops, before),
                "request {nth} was sent before local operation {before} was executed"
            );
        }
        side.flight.on_request_sent(now, ops, nth, (packet.bth.psn, covers), &limits)
    }

    pub(super) fn on_response(&mut self, id: SideId, packet: &Packet<'_>) {
        let (now, pair) = (self.now, self.pair(id));
        let side = self.side_mut(id);
        if matches!(side.state, engine::State::Rts | engine::State::Sqd) {
            let ops = &pair.lives[side.life].sides[id.side].ops;
            side.flight.on_response(now, pair.ack_timeout, ops, packet);
        }
    }
}
