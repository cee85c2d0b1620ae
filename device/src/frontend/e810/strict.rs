//! Strict mode: what a driver does against the interface though the device tolerates it.
//!
//! Nothing here changes what the device does. What queues of a faulty driver lose, the interface itself has reports for.
//!
//! # Spec
//! E810 interface; [`rules`] names the sections.

mod commands;
mod registers;
pub mod rules;

use protocol::hca::e810::admin::control::ResourceId;

use crate::telemetry::monitor::{Monitor, Rule};

pub(super) use self::commands::examine;
pub(super) use self::registers::{View, read, write};

/// What strict mode remembers of a function.
#[derive(Debug, Default)]
pub(super) struct Strict {
    /// Commands were started, and the head not read since.
    unseen_commands: bool,
    /// Locks that the driver has taken. Bound: those of which there are three.
    locks: Vec<ResourceId>,
}

/// What was found wrong with one thing that software did.
#[derive(Debug, Default)]
pub(super) struct Findings(Vec<(&'static Rule, String)>);

impl Findings {
    pub(super) fn add(&mut self, rule: &'static Rule, what: impl Into<String>) {
        self.0.push((rule, what.into()));
    }

    /// Tells the operator.
    pub(super) fn report(self, monitor: &mut Monitor) {
        for (rule, what) in self.0 {
            monitor.violation(rule, format_args!("{what}"));
        }
    }
}
