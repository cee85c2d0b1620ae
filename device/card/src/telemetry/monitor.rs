//! Observes a device without affecting it: writes its trace, counts driver activity, and reports driver violations.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::time::Duration;

use engine::{
    AccessError, Completion, DropReason, Durations, Instant, NakKind, Queue, ReceivedNak, Retry, Status,
};
use protocol::describe::{Field as _, Value, Visitor};
use protocol::ids::Qpn;
use protocol::roce::Opcode;
use serde::{Deserialize, Serialize};

use super::log::Site;
use super::reason::{IgnoreReason, Reason, Severity};
use super::trace::{Group, Kind, Trace};
use crate::log_line;

/// A device's monitor, which the front-end borrows for each call.
#[derive(Debug, Default)]
pub struct Monitor {
    /// Time of the current input on the device's clock.
    now: Instant,
    trace: Option<Trace>,
    /// Counts of commands by name and status.
    commands: BTreeMap<&'static str, BTreeMap<&'static str, u64>>,
    command_time: Durations,
    doorbells: BTreeMap<&'static str, u64>,
    /// Ignored operations by reason. Has at most one entry per reason.
    ignored: BTreeMap<&'static str, Seen>,
    /// Ignored operations by QPN, for at most [`MAX_QPS`] QPs.
    ignored_of: BTreeMap<Qpn, Ignored>,
    /// Ignored packets by QPN, for at most [`MAX_QPS`] numbers that belong to no QP. This table is separate so that a
    /// peer that sends to many QP numbers cannot evict the counts of existing QPs.
    ignored_of_unknown: BTreeMap<Qpn, Ignored>,
    /// Number of requests that failed because an access was denied, by [`AccessError::name`].
    refused: BTreeMap<&'static str, u64>,
    strict: bool,
    /// Violations by rule. Has at most one entry per rule of the interface.
    violations: BTreeMap<&'static str, Seen>,
}

/// A requirement that the interface places on software but the device does not enforce.
#[derive(Debug, PartialEq, Eq)]
pub struct Rule {
    /// Name in counters and traces.
    pub name: &'static str,
    /// Section of the interface specification.
    pub section: &'static str,
    /// Description of a violation, in a sentence or two.
    pub about: &'static str,
}

/// Maximum number of QPs whose ignored operations are counted. The limit is needed because a guest can ring doorbells
/// for any QP number.
const MAX_QPS: usize = 4096;

/// A QP's doorbells and packets that have been ignored since it last entered RESET.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ignored {
    pub count: u64,
    /// Why the most recent doorbell or packet was ignored.
    pub last: Reason,
}

/// [`Ignored`] as shown to an operator, with the reason given by its [name](Reason::name).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IgnoredRow {
    pub count: u64,
    /// Name of the reason why the most recent doorbell or packet was ignored.
    pub last: String,
}

impl From<Ignored> for IgnoredRow {
    fn from(ignored: Ignored) -> Self {
        Self { count: ignored.count, last: ignored.last.name().to_owned() }
    }
}

#[derive(Debug, Default)]
struct Seen {
    count: u64,
    /// Each rule or reason has its own log limit so that one cannot suppress another's log lines.
    site: Site,
}

impl Monitor {
    /// Returns the trace if one is running. While no trace is running, this check is the only cost of tracing.
    pub fn trace(&mut self) -> Option<&mut Trace> {
        self.trace.as_mut()
    }

    /// Returns the path of the trace's file or ring, if a trace is running.
    pub fn trace_path(&self) -> Option<&Path> {
        self.trace.as_ref().and_then(Trace::path)
    }

    /// Returns the contents of the trace ring, if there is one.
    pub fn trace_kept(&self) -> Option<Vec<u8>> {
        self.trace.as_ref().and_then(Trace::kept)
    }

    /// Sets or removes the trace and returns the previous one.
    pub fn set_trace(&mut self, trace: Option<Trace>) -> Option<Trace> {
        if let Some(trace) = &mut self.trace {
            trace.finish();
        }
        std::mem::replace(&mut self.trace, trace)
    }

    /// Sets the time of the next input on the device's clock.
    pub fn set_now(&mut self, now: Instant) {
        self.now = now;
    }

    /// Returns the time at which [`Monitor::handle_deadline`] must be called next.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.trace.as_ref().and_then(Trace::next_deadline)
    }

    /// Reports the number of trace records suppressed in each period that has ended.
    pub fn handle_deadline(&mut self) {
        if let Some(trace) = &mut self.trace {
            trace.handle_deadline(self.now);
        }
    }

    /// Counts a completed command and its duration.
    pub fn count_command(&mut self, name: &'static str, status: &'static str, took: Duration) {
        self.command_time.record(took);
        *self.commands.entry(name).or_default().entry(status).or_default() += 1;
    }

    pub fn command_time(&self) -> &Durations {
        &self.command_time
    }

    pub fn commands(&self) -> &BTreeMap<&'static str, BTreeMap<&'static str, u64>> {
        &self.commands
    }

    /// Counts an executed doorbell.
    pub fn count_doorbell(&mut self, what: &'static str) {
        *self.doorbells.entry(what).or_default() += 1;
    }

    pub fn doorbells(&self) -> &BTreeMap<&'static str, u64> {
        &self.doorbells
    }

    /// Reports in the counters, trace and log that `what` was ignored. `qpn` is the affected QP, if any. `fields` adds
    /// fields to the trace record. For packets and frames, use [`Monitor::ignored_packet`] and
    /// [`Monitor::ignored_frame`], whose trace records are rate-limited.
    #[cold]
    pub fn ignored(
        &mut self,
        reason: impl Into<Reason>,
        qpn: Option<Qpn>,
        what: fmt::Arguments<'_>,
        fields: impl FnOnce(&mut dyn Visitor),
    ) {
        let name = self.count_ignored(reason.into(), qpn, what);
        if let Some(trace) = &mut self.trace {
            trace.record(Kind::Ignored, &what.to_string(), |to| {
                qpn.show("qpn", to);
                fields(to);
                name.show("reason", to);
            });
        }
    }

    /// Reports that a packet for a QP was ignored; see [`Monitor::ignored`].
    #[cold]
    pub fn ignored_packet(
        &mut self,
        reason: impl Into<Reason>,
        qpn: Qpn,
        opcode: Option<Opcode>,
        fields: impl FnOnce(&mut dyn Visitor),
    ) {
        let reason = Some(self.count_ignored(reason.into(), Some(qpn), format_args!("packet")));
        let group = Group { kind: Kind::Ignored, name: "packet", qpn: Some(qpn), opcode, reason };
        self.record_repeated(group, fields);
    }

    /// Reports that a frame was ignored; see [`Monitor::ignored`].
    #[cold]
    pub fn ignored_frame(&mut self, reason: impl Into<Reason>, fields: impl FnOnce(&mut dyn Visitor)) {
        let reason = Some(self.count_ignored(reason.into(), None, format_args!("frame")));
        let group = Group { kind: Kind::Ignored, name: "frame", qpn: None, opcode: None, reason };
        self.record_repeated(group, fields);
    }

    /// Counts and logs that `what` was ignored, and returns the name of the reason.
    fn count_ignored(&mut self, reason: Reason, qpn: Option<Qpn>, what: fmt::Arguments<'_>) -> &'static str {
        let name = reason.name();
        if let Some(qpn) = qpn {
            let before = self.ignored_of(qpn).map_or(0, |of| of.count);
            let is_unknown = reason == Reason::Packet(DropReason::UnknownQp);
            let counts = if is_unknown && !self.ignored_of.contains_key(&qpn) {
                &mut self.ignored_of_unknown
            } else {
                self.ignored_of_unknown.remove(&qpn);
                &mut self.ignored_of
            };
            if counts.len() >= MAX_QPS && !counts.contains_key(&qpn) {
                counts.pop_first();
            }
            counts.insert(qpn, Ignored { count: before + 1, last: reason });
        }
        let seen = self.ignored.entry(name).or_default();
        seen.count += 1;
        let number = qpn.map(Qpn::get);
        match reason.severity() {
            Severity::GuestBug => {
                if let Some(suppressed) = seen.site.admit() {
                    log_line!(warn, reason = name, qpn = number, suppressed, "ignored {what}");
                }
            }
            Severity::Denied => {
                if let Some(suppressed) = seen.site.admit() {
                    log_line!(info, reason = name, qpn = number, suppressed, "ignored {what}");
                }
            }
            Severity::Expected if tracing::enabled!(tracing::Level::DEBUG) => {
                if let Some(suppressed) = seen.site.admit() {
                    log_line!(debug, reason = name, qpn = number, suppressed, "ignored {what}");
                }
            }
            Severity::Expected => {}
        }
        name
    }

    fn record_repeated(&mut self, group: Group, fields: impl FnOnce(&mut dyn Visitor)) {
        if let Some(trace) = &mut self.trace {
            trace.record_repeated(self.now, group, fields);
        }
    }

    /// Reports that a store to a BAR was ignored.
    #[cold]
    pub fn ignored_store(&mut self, reason: IgnoreReason, bar: u8, offset: u64) {
        self.ignored(reason, None, format_args!("bar{bar}+{offset:#x}"), |_| {});
    }

    /// Reports that a packet was dropped or denied.
    #[cold]
    pub fn packet_dropped(&mut self, dropped: &engine::Dropped) {
        let engine::Dropped { qpn, opcode, psn, reason, cause } = *dropped;
        self.ignored_packet(reason, qpn, Some(opcode), |to| {
            psn.show("psn", to);
            cause.map(AccessError::name).show("cause", to);
        });
    }

    /// Reports a NAK received by a requester.
    #[cold]
    pub fn nak_received(&mut self, nak: &ReceivedNak) {
        let ReceivedNak { qpn, psn, kind } = *nak;
        let group = Group { kind: Kind::Nak, name: kind.name(), qpn: Some(qpn), opcode: None, reason: None };
        self.record_repeated(group, |to| {
            psn.show("psn", to);
            if let NakKind::Rnr { wait } = kind {
                to.value("wait_us", Value::Number(u64::try_from(wait.as_micros()).unwrap_or(u64::MAX)));
            }
        });
    }

    /// Reports that a requester is retransmitting packets.
    #[cold]
    pub fn retrying(&mut self, retry: &Retry) {
        let Retry { qpn, cause, psn, packets, count, limit } = *retry;
        let group =
            Group { kind: Kind::Retry, name: cause.name(), qpn: Some(qpn), opcode: None, reason: None };
        self.record_repeated(group, |to| {
            psn.show("psn", to);
            packets.show("packets", to);
            count.show("count", to);
            limit.show("limit", to);
        });
    }

    /// Returns the number of ignored operations by reason. Omits reasons that have not occurred.
    pub fn ignored_counts(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.ignored.iter().map(|(name, seen)| (*name, seen.count))
    }

    pub fn ignored_of(&self, qpn: Qpn) -> Option<Ignored> {
        self.ignored_of.get(&qpn).or_else(|| self.ignored_of_unknown.get(&qpn)).copied()
    }

    /// Clears the state of a QP that enters RESET. Its number may be reused.
    pub fn forget_qp(&mut self, qpn: Qpn) {
        self.ignored_of.remove(&qpn);
        self.ignored_of_unknown.remove(&qpn);
    }

    pub fn forget_qps(&mut self) {
        self.ignored_of.clear();
        self.ignored_of_unknown.clear();
    }

    /// Reports that a request failed because a memory access was denied.
    #[cold]
    pub fn request_failed(&mut self, completion: &Completion) {
        let (status, cause) = match completion.result {
            Err(Status::LocalProtection(cause)) => ("local_protection", cause),
            Err(Status::MemoryManagement(cause)) => ("memory_management", cause),
            _ => return,
        };
        *self.refused.entry(cause.name()).or_default() += 1;
        if let Some(trace) = &mut self.trace {
            let queue = match completion.queue {
                Queue::Send => "send",
                Queue::Recv => "recv",
            };
            trace.record(Kind::Refused, queue, |to| {
                completion.qpn.show("qpn", to);
                status.show("status", to);
                cause.name().show("cause", to);
            });
        }
    }

    pub fn refused(&self) -> &BTreeMap<&'static str, u64> {
        &self.refused
    }

    pub fn is_strict(&self) -> bool {
        self.strict
    }

    /// Enables or disables reports of violations.
    pub fn set_strict(&mut self, strict: bool) {
        self.strict = strict;
    }

    /// Reports a driver violation in the counters, trace and log. `what` describes it and its location.
    pub fn violation(&mut self, rule: &'static Rule, what: fmt::Arguments<'_>) {
        let Rule { name, section, .. } = *rule;
        let seen = self.violations.entry(name).or_default();
        seen.count += 1;
        if let Some(suppressed) = seen.site.admit() {
            log_line!(warn, rule = name, section, suppressed, "driver violation: {what}");
        }
        if let Some(trace) = &mut self.trace {
            trace.record(Kind::Violation, name, |to| {
                section.show("section", to);
                what.show("what", to);
            });
        }
    }

    /// Returns the number of violations by rule. Omits rules that have not been violated.
    pub fn violations(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.violations.iter().map(|(name, seen)| (*name, seen.count))
    }
}

impl Drop for Monitor {
    /// Ends the trace so that the number of suppressed records is still reported.
    fn drop(&mut self) {
        self.set_trace(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::testing::Written;
    use crate::telemetry::trace::TraceFormat;

    #[test]
    fn trace_ends_with_number_of_suppressed_packets() {
        let written = Written::default();
        let mut monitor = Monitor::default();
        monitor.set_trace(Some(written.trace(TraceFormat::Text)));
        for _ in 0..100 {
            monitor.ignored_packet(engine::DropReason::NoReceive, Qpn::new(5), None, |_| {});
        }
        assert_eq!(
            monitor.ignored_of(Qpn::new(5)).unwrap().count,
            100,
            "suppressed packets are also counted"
        );
        drop(monitor);
        let text = written.text();
        let last = "1.500000 hca1 ignored packet qpn=0x5 reason=no_receive suppressed=84";
        assert_eq!((text.lines().count(), text.lines().last()), (17, Some(last)));
    }

    #[test]
    fn unknown_qp_packets_keep_existing_qp_counts() {
        let mut monitor = Monitor::default();
        let mut ignored = |qpn, reason| monitor.ignored_packet(reason, Qpn::new(qpn), None, |_| {});
        ignored(5, DropReason::UnknownQp);
        ignored(5, DropReason::NoReceive);
        for qpn in 0..=2 * u32::try_from(MAX_QPS).unwrap() {
            ignored(0x10_0000 + qpn, DropReason::UnknownQp);
        }
        let of = Ignored { count: 2, last: Reason::Packet(DropReason::NoReceive) };
        assert_eq!(monitor.ignored_of(Qpn::new(5)), Some(of));
        assert_eq!(monitor.ignored_of_unknown.len(), MAX_QPS);
        monitor.forget_qp(Qpn::new(5));
        assert_eq!(monitor.ignored_of(Qpn::new(5)), None);
    }

    const RULE: Rule = Rule { name: "narrow_write", section: "1.3", about: "" };

    #[test]
    fn violation_is_counted_and_traced() {
        let written = Written::default();
        let mut monitor = Monitor::default();
        monitor.violation(&RULE, format_args!("before the trace"));
        monitor.set_trace(Some(written.trace(TraceFormat::Text)));
        monitor.violation(&RULE, format_args!("2 bytes at bar0+{:#x}", 0x10));
        monitor.trace().unwrap().flush();
        assert_eq!(monitor.violations().collect::<Vec<_>>(), [("narrow_write", 2)]);
        assert_eq!(
            written.text(),
            "1.500000 hca1 violation narrow_write section=1.3 what=\"2 bytes at bar0+0x10\"\n"
        );
    }
}
