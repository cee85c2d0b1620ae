//! What looks on while a device works, and changes nothing of what it does: a trace, counters of what software asks
//! for, and reports of what it does against the interface.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::time::Duration;

use engine::{AccessError, Completion, Durations, Queue, Status};
use protocol::describe::{Field as _, Visitor};
use protocol::ids::Qpn;
use serde::{Deserialize, Serialize};

use super::log::Site;
use super::reason::{InterfaceReason, Reason, Weight};
use super::trace::{Kind, Trace};

/// Lent to the front-end with everything else of a turn.
#[derive(Debug, Default)]
pub struct Monitor {
    trace: Option<Trace>,
    /// By name and status.
    commands: BTreeMap<&'static str, BTreeMap<&'static str, u64>>,
    command_time: Durations,
    doorbells: BTreeMap<&'static str, u64>,
    /// Bound: one for each reason.
    ignored: BTreeMap<&'static str, Seen>,
    /// By number, of [`MOST_QPS`] queue pairs at the most.
    ignored_of: BTreeMap<Qpn, Ignored>,
    /// Requests that failed for want of access, by [`AccessError::name`].
    refused: BTreeMap<&'static str, u64>,
    strict: bool,
    /// Bound: one for each rule of the interface.
    violations: BTreeMap<&'static str, Seen>,
}

/// Something that the interface demands of software and a device does not enforce.
#[derive(Debug, PartialEq, Eq)]
pub struct Rule {
    /// For counters and traces.
    pub name: &'static str,
    /// Of the interface's specification.
    pub section: &'static str,
    /// What breaks it, in a sentence or two.
    pub about: &'static str,
}

/// Bound: queue pairs whose newest reason is known. A guest can ring for any number; those that exist are few.
const MOST_QPS: usize = 4096;

/// What was ignored of one queue pair since it left RESET last, or in RESET since.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ignored {
    /// How often nothing was done.
    pub count: u64,
    /// Why, the last time.
    pub last: Reason,
}

#[derive(Debug, Default)]
struct Seen {
    count: u64,
    /// Each rule or reason has an allowance of log lines, so that none hides another.
    site: Site,
}

impl Monitor {
    /// The trace, if one is running: the one branch that tracing costs when it is off.
    pub fn trace(&mut self) -> Option<&mut Trace> {
        self.trace.as_mut()
    }

    /// Where the trace goes, if one is running.
    pub fn trace_path(&self) -> Option<&Path> {
        self.trace.as_ref().and_then(Trace::path)
    }

    /// The newest records, of a trace that is kept in memory.
    pub fn trace_kept(&self) -> Option<Vec<u8>> {
        self.trace.as_ref().and_then(Trace::kept)
    }

    /// Uses another trace from now on, or none, and gives back what was there.
    pub fn set_trace(&mut self, trace: Option<Trace>) -> Option<Trace> {
        std::mem::replace(&mut self.trace, trace)
    }

    /// Counts a command that ended and took so long.
    pub fn count_command(&mut self, name: &'static str, status: &'static str, took: Duration) {
        self.command_time.record(took);
        *self.commands.entry(name).or_default().entry(status).or_default() += 1;
    }

    /// How long commands took.
    pub fn command_time(&self) -> &Durations {
        &self.command_time
    }

    /// Commands by name and status.
    pub fn commands(&self) -> &BTreeMap<&'static str, BTreeMap<&'static str, u64>> {
        &self.commands
    }

    /// Counts a doorbell that was obeyed by its kind.
    pub fn count_doorbell(&mut self, what: &'static str) {
        *self.doorbells.entry(what).or_default() += 1;
    }

    /// Doorbells by kind.
    pub fn doorbells(&self) -> &BTreeMap<&'static str, u64> {
        &self.doorbells
    }

    /// Nothing was done for `what`: for the counters, the trace and the log. `qpn`: of the queue pair that it was for;
    /// `fields`: what more a record says.
    #[cold]
    pub fn ignored(
        &mut self,
        reason: impl Into<Reason>,
        qpn: Option<Qpn>,
        what: fmt::Arguments<'_>,
        fields: impl FnOnce(&mut dyn Visitor),
    ) {
        let reason = reason.into();
        let name = reason.name();
        if let Some(qpn) = qpn {
            if self.ignored_of.len() >= MOST_QPS && !self.ignored_of.contains_key(&qpn) {
                self.ignored_of.pop_first();
            }
            let of = self.ignored_of.entry(qpn).or_insert(Ignored { count: 0, last: reason });
            *of = Ignored { count: of.count + 1, last: reason };
        }
        let seen = self.ignored.entry(name).or_default();
        seen.count += 1;
        let number = qpn.map(Qpn::get);
        match reason.weight() {
            Weight::Mistake => {
                if let Some(suppressed) = seen.site.admit() {
                    tracing::warn!(reason = name, qpn = number, suppressed, "ignored {what}");
                }
            }
            Weight::Refusal => {
                if let Some(suppressed) = seen.site.admit() {
                    tracing::info!(reason = name, qpn = number, suppressed, "ignored {what}");
                }
            }
            Weight::Usual if tracing::enabled!(tracing::Level::DEBUG) => {
                if let Some(suppressed) = seen.site.admit() {
                    tracing::debug!(reason = name, qpn = number, suppressed, "ignored {what}");
                }
            }
            Weight::Usual => {}
        }
        if let Some(trace) = &mut self.trace {
            trace.record(Kind::Ignored, &what.to_string(), |to| {
                if let Some(qpn) = qpn {
                    qpn.show("qpn", to);
                }
                fields(to);
                name.show("reason", to);
            });
        }
    }

    /// Nothing was done for a store to a BAR.
    #[cold]
    pub fn ignored_store(&mut self, reason: InterfaceReason, bar: u8, offset: u64) {
        self.ignored(reason, None, format_args!("bar{bar}+{offset:#x}"), |_| {});
    }

    /// A packet changed nothing, or was refused.
    #[cold]
    pub fn packet_dropped(&mut self, dropped: &engine::Dropped) {
        let engine::Dropped { qpn, opcode, psn, reason, cause } = *dropped;
        self.ignored(reason, Some(qpn), format_args!("packet"), |to| {
            format_args!("{opcode}").show("opcode", to);
            psn.show("psn", to);
            cause.map(AccessError::name).show("cause", to);
        });
    }

    /// How often nothing was done, by reason, where it was.
    pub fn ignorances(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.ignored.iter().map(|(name, seen)| (*name, seen.count))
    }

    /// What was ignored of a queue pair, if anything was.
    pub fn ignored_of(&self, qpn: Qpn) -> Option<Ignored> {
        self.ignored_of.get(&qpn).copied()
    }

    /// A queue pair goes to RESET: what comes after is another's.
    pub fn forget_qp(&mut self, qpn: Qpn) {
        self.ignored_of.remove(&qpn);
    }

    /// All queue pairs are gone.
    pub fn forget_qps(&mut self) {
        self.ignored_of.clear();
    }

    /// A request of a queue pair failed. Says why, where an access was refused.
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

    /// Requests that failed for want of access, by cause.
    pub fn refused(&self) -> &BTreeMap<&'static str, u64> {
        &self.refused
    }

    /// Whether violations are to be looked for.
    pub fn is_strict(&self) -> bool {
        self.strict
    }

    /// Begins or ends to look for violations.
    pub fn set_strict(&mut self, strict: bool) {
        self.strict = strict;
    }

    /// Reports that software broke a rule: in the counters, in the trace and in the log. `what` says what and where.
    pub fn violation(&mut self, rule: &'static Rule, what: fmt::Arguments<'_>) {
        let Rule { name, section, .. } = *rule;
        let seen = self.violations.entry(name).or_default();
        seen.count += 1;
        if let Some(suppressed) = seen.site.admit() {
            tracing::warn!(rule = name, section, suppressed, "driver violation: {what}");
        }
        if let Some(trace) = &mut self.trace {
            trace.record(Kind::Violation, name, |to| {
                section.show("section", to);
                what.show("what", to);
            });
        }
    }

    /// How often rules were broken, those that were.
    pub fn violations(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.violations.iter().map(|(name, seen)| (*name, seen.count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::trace::TraceFormat;
    use crate::telemetry::trace::tests::Written;

    const RULE: Rule = Rule { name: "narrow_write", section: "1.3", about: "" };

    #[test]
    fn a_violation_is_counted_and_recorded() {
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
