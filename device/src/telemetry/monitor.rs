//! What looks on while a device works, and changes nothing of what it does: a trace, counters of what software asks
//! for, and reports of what it does against the interface.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use protocol::describe::Field as _;

use super::log::Site;
use super::trace::{Kind, Trace};

/// Lent to the front-end with everything else of a turn.
#[derive(Debug, Default)]
pub struct Monitor {
    trace: Option<Trace>,
    /// By name and status.
    commands: BTreeMap<&'static str, BTreeMap<&'static str, u64>>,
    doorbells: BTreeMap<&'static str, u64>,
    strict: bool,
    /// Bound: one for each rule of the interface.
    violations: BTreeMap<&'static str, Violations>,
}

/// Something that the interface demands of software and a device does not enforce.
#[derive(Debug, PartialEq, Eq)]
pub struct Rule {
    /// For counters and traces.
    pub name: &'static str,
    /// Of the interface's specification.
    pub section: &'static str,
}

#[derive(Debug, Default)]
struct Violations {
    count: u64,
    /// Each rule has an allowance of log lines, so that none hides another.
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

    /// Uses another trace from now on, or none, and gives back what was there.
    pub fn set_trace(&mut self, trace: Option<Trace>) -> Option<Trace> {
        std::mem::replace(&mut self.trace, trace)
    }

    /// Counts a command that ended.
    pub fn count_command(&mut self, name: &'static str, status: &'static str) {
        *self.commands.entry(name).or_default().entry(status).or_default() += 1;
    }

    /// Commands by name and status.
    pub fn commands(&self) -> &BTreeMap<&'static str, BTreeMap<&'static str, u64>> {
        &self.commands
    }

    /// Counts a doorbell by its kind, or by why it was ignored.
    pub fn count_doorbell(&mut self, what: &'static str) {
        *self.doorbells.entry(what).or_default() += 1;
    }

    /// Doorbells by kind.
    pub fn doorbells(&self) -> &BTreeMap<&'static str, u64> {
        &self.doorbells
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
        let Rule { name, section } = *rule;
        let seen = self.violations.entry(name).or_default();
        seen.count += 1;
        if let Some(suppressed) = seen.site.admit() {
            tracing::warn!(rule = name, section, suppressed, "driver breaks the interface: {what}");
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

    const RULE: Rule = Rule { name: "narrow_write", section: "1.3" };

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
