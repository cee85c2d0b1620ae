//! What a requester of a reliable connection may send, given what it has been told.
//!
//! The model knows the requests, hears the answers that arrive, and derives from them what is answered. PSNs are
//! relative to the first of the life.
//!
//! # Spec
//! IBTA volume 1, sections 9.7.5 to 9.7.7 and 9.9.2.1.

use std::ops::RangeInclusive;
use std::time::Duration;

use protocol::Psn;
use protocol::roce::{Ext, Kind, NakCode, Packet, Syndrome};

use super::{Checker, Place, Violation, demand};
use crate::segment::packet_count;
use crate::sim::plan::{Op, Work};
use crate::{AckTimeout, Fence, Instant, Mtu, RnrRetry, RnrTimer};

/// Packets that may be sent at once to a receiver that was not ready.
const PROBE: u32 = 8;

#[derive(Debug)]
pub(super) struct Flight {
    start: Psn,
    /// One past the last PSN of each request.
    ends: Vec<u32>,
    /// Oldest PSN without an answer.
    unacked: u32,
    /// One past the newest PSN sent, and one past the last one sent.
    high: u32,
    next: u32,
    /// READs and atomics sent, by their PSNs.
    reads: Vec<(u32, u32)>,
    /// Since when the ACK timeout runs.
    timer_from: Option<Instant>,
    /// An answer gives reason to go back.
    provoked: bool,
    /// PSN of the newest sequence NAK since there was progress: another one for it is no reason.
    nak_heard: Option<u32>,
    /// Times that the oldest PSN without an answer was sent since there was progress.
    asked: u32,
    /// Times that it went back since then, at the least and at the most.
    went_back: RangeInclusive<u8>,
    /// What gave reason to go back lies before the last progress, which forgave it if it was heeded by then.
    forgiven: bool,
    rnr_until: Option<Instant>,
    /// RNR NAKs since there was progress.
    rnr_naks: u32,
}

/// What a connection is set up with.
struct Limits {
    window: u32,
    retries: u32,
    rnr_retries: u32,
    rd_atomic: usize,
    ack_timeout: AckTimeout,
    /// How late a deadline may have its effect.
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
            provoked: false,
            nak_heard: None,
            asked: 0,
            went_back: 0..=0,
            forgiven: false,
            rnr_until: None,
            rnr_naks: 0,
        }
    }

    pub(super) fn is_answered(&self, nth: usize) -> bool {
        self.ends[nth] <= self.unacked
    }

    /// Whether all packets of the requests up to `nth` were sent, and none of later ones.
    pub(super) fn ends_with(&self, nth: usize) -> bool {
        self.ends[nth] == self.high
    }

    pub(super) fn times_asked(&self) -> u32 {
        self.asked
    }

    pub(super) fn rnr_naks(&self) -> u32 {
        self.rnr_naks
    }

    fn relative(&self, psn: Psn) -> u32 {
        psn.get().wrapping_sub(self.start.get()) & 0xff_ffff
    }

    /// The request of which a packet with `psn` was sent, and the place of the packet in it.
    pub(super) fn find(&self, psn: Psn) -> (Option<usize>, u32) {
        let psn = self.relative(psn);
        let nth = self.ends.partition_point(|&end| end <= psn);
        (Some(nth).filter(|_| psn < self.high), psn - self.first(nth).min(psn))
    }

    fn first(&self, nth: usize) -> u32 {
        nth.checked_sub(1).map_or(0, |before| self.ends[before])
    }

    /// A request packet is sent that stands for `covers` PSNs.
    fn ask(
        &mut self,
        now: Instant,
        ops: &[Op],
        nth: usize,
        (psn, covers): (Psn, u32),
        limits: &Limits,
    ) -> Result<(), Violation> {
        let (from, to) = (self.relative(psn), self.relative(psn) + covers);
        let (first, end) = (self.first(nth), self.ends[nth]);
        demand!(first <= from && to <= end, "PSNs {from}..{to} of request {nth}, which has {first}..{end}");
        let Self { unacked, next, high, .. } = *self;
        demand!(from == next || from == unacked, "PSN {from}: next is {next}, oldest {unacked}");
        demand!(to - unacked <= limits.window, "PSN {to} is {} beyond {unacked}", to - unacked);
        let waited = self.rnr_until.take();
        if let Some(until) = waited {
            demand!(
                now >= until && now <= until + limits.slack,
                "sent at {now:?}, told to wait until {until:?}"
            );
            demand!(self.rnr_naks <= limits.rnr_retries, "after {} RNR NAKs", self.rnr_naks);
        }
        if from < next {
            let on_time = self.due(limits.ack_timeout).any(|due| now >= due && now <= due + limits.slack);
            let due = self.due(limits.ack_timeout).next();
            demand!(self.provoked || on_time, "sent again for no reason, timeout is at {due:?}");
            if waited.is_none() {
                let (least, most) = (*self.went_back.start(), *self.went_back.end());
                self.went_back = least + u8::from(!self.forgiven)..=most + 1;
            }
            (self.provoked, self.forgiven, self.timer_from) = (false, false, None);
        }
        if self.rnr_naks > 0 {
            let refused = (first..end).contains(&unacked) && ops[nth].wants_data();
            let few = refused || to - unacked <= PROBE;
            demand!(few, "PSN {to} is {} beyond {unacked}, which was not received", to - unacked);
        }
        if ops[nth].request.fence == Fence::Reads && from == first {
            let mut before = ops[..nth].iter().zip(&self.ends);
            let open = before.any(|(op, end)| op.wants_data() && *end > unacked && op.fails.is_empty());
            demand!(!open, "the fence of request {nth}");
        }
        if ops[nth].request.fence == Fence::All {
            demand!(unacked >= first, "the fence of request {nth}");
        }
        if ops[nth].wants_data() {
            self.reads.retain(|&(_, end)| end <= from && end > unacked);
            self.reads.push((from, to));
            let count = self.reads.len();
            demand!(count <= limits.rd_atomic, "{count} READs and atomics outstanding");
        }
        self.asked += u32::from((from..to).contains(&unacked));
        demand!(self.asked <= limits.retries + 1, "PSN {unacked} is sent {} times", self.asked);
        self.timer_from.get_or_insert(now);
        (self.high, self.next) = (high.max(to), to);
        Ok(())
    }

    /// When the ACK timeout may be over.
    fn due(&self, timeout: AckTimeout) -> impl Iterator<Item = Instant> + use<> {
        let times = self.went_back.clone();
        self.timer_from
            .into_iter()
            .flat_map(move |from| times.clone().map(move |times| from + timeout.after(times)))
    }

    /// An answer arrives.
    fn hear(&mut self, now: Instant, timeout: AckTimeout, ops: &[Op], packet: &Packet<'_>) {
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
                    self.provoked |= self.unacked <= psn;
                }
                Syndrome::RnrNak { timer } => {
                    self.advance(ops, psn);
                    self.progress(now, before, overdue);
                    if self.unacked == psn && self.rnr_until.is_none() {
                        self.rnr_until = Some(now + RnrTimer::new(timer).duration());
                        // The peer is there: losses before this answer are forgiven.
                        (self.timer_from, self.asked, self.went_back) = (None, 0, 0..=0);
                        self.rnr_naks += 1;
                    }
                    self.provoked = true;
                    return;
                }
                Syndrome::Nak(code) => {
                    self.advance(ops, psn);
                    self.progress(now, before, overdue);
                    let news = code == NakCode::PsnSequence && self.nak_heard.replace(psn) != Some(psn);
                    self.provoked |= news || self.unacked < psn;
                    return;
                }
                Syndrome::Reserved(_) => {}
            },
            _ => {
                self.advance(ops, psn);
                if self.unacked == psn {
                    self.unacked += 1;
                } else {
                    self.provoked = true;
                }
            }
        }
        self.progress(now, before, overdue);
    }

    /// Everything before `to` is answered, as far as it needs no data.
    fn advance(&mut self, ops: &[Op], to: u32) {
        while self.unacked < to {
            let nth = self.ends.partition_point(|&end| end <= self.unacked);
            if ops[nth].wants_data() {
                return;
            }
            self.unacked = to.min(self.ends[nth]);
        }
    }

    fn progress(&mut self, now: Instant, before: u32, overdue: bool) {
        if self.unacked > before {
            (self.asked, self.went_back, self.rnr_naks) = (0, 0..=0, 0);
            (self.rnr_until, self.nak_heard) = (None, None);
            // Who went back at the end of the timeout may have waited since for a turn on the wire.
            self.provoked |= overdue;
            self.forgiven = self.provoked;
            self.next = self.next.max(self.unacked);
            self.timer_from = (self.next > self.unacked).then_some(now);
        }
    }
}

impl Checker<'_> {
    /// `place` sends a packet of its `nth` request.
    pub(super) fn ask(&mut self, place: Place, nth: usize, packet: &Packet<'_>) -> Result<(), Violation> {
        let (now, pair) = (self.now, self.pair(place));
        let life = &pair.lives[self.side(place).life];
        let limits = Limits {
            window: self.plan.window_packets,
            retries: u32::from(life.retry_count),
            rnr_retries: match life.rnr_retry {
                RnrRetry::Limited(limit) => u32::from(limit),
                RnrRetry::Infinite => u32::MAX,
            },
            rd_atomic: usize::from(pair.rd_atomic),
            ack_timeout: pair.ack_timeout,
            slack: self.slack(place),
        };
        let covers = match (packet.bth.opcode.operation.kind(), packet.ext) {
            (Kind::Read, Ext::Reth(reth)) => packet_count(reth.dma_len, pair.mtu.bytes()),
            _ => 1,
        };
        let side = self.side_mut(place);
        let ops = &life.sides[place.side].ops;
        if let Some(before) = ops[..nth].iter().rposition(Op::is_local) {
            demand!(side.worked.has_done(ops, before), "request {before} is work on a key, and not executed");
        }
        side.flight.ask(now, ops, nth, (packet.bth.psn, covers), &limits)
    }

    /// The net hands an answer to `place`.
    pub(super) fn hear_response(&mut self, place: Place, packet: &Packet<'_>) {
        let (now, pair) = (self.now, self.pair(place));
        let side = self.side_mut(place);
        if matches!(side.state, crate::State::Rts | crate::State::Sqd) {
            let ops = &pair.lives[side.life].sides[place.side].ops;
            side.flight.hear(now, pair.ack_timeout, ops, packet);
        }
    }
}
