//! Strict rules: what an interface demands of software and its device does not enforce.
//!
//! A device that is strict looks at what software does and tells its operator; what it does is the same either way. Each
//! interface has a table of its own in `strict/rules.rs`, made by `rules!`, and looks where it has something to look at.

use crate::telemetry::monitor::{Monitor, Rule};

/// A table of rules: what each demands, its name for counters and traces, and the sections of the interface that say so.
macro_rules! rules {
    ($($(#[doc = $doc:literal])+ $rule:ident $name:literal $section:literal;)*) => {
        $($(#[doc = $doc])+ pub static $rule: Rule =
            Rule { name: $name, section: $section, about: concat!($($doc),+) };)*

        /// All of them.
        pub static ALL: &[&Rule] = &[$(&$rule),*];
    };
}

pub(crate) use rules;

/// What was found wrong with one thing that software did.
#[derive(Debug, Default)]
pub struct Findings(Vec<(&'static Rule, String)>);

impl Findings {
    /// Software broke this rule; `what` says what and where.
    pub fn add(&mut self, rule: &'static Rule, what: impl Into<String>) {
        self.0.push((rule, what.into()));
    }

    /// Tells the operator.
    pub fn report(self, monitor: &mut Monitor) {
        for (rule, what) in self.0 {
            monitor.violation(rule, format_args!("{what}"));
        }
    }
}
