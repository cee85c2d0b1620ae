//! Observers of a front-end: counters, strict mode and trace. None of them affects the device.
//!
//! A front-end reports each decision as one event, which borrows the objects involved. Building an event is cheap, and
//! disabled observers ignore it.

use super::strict::Findings;
use crate::telemetry::monitor::Monitor;
use crate::telemetry::trace::Trace;

/// A front-end decision to report.
///
/// Code that reports an event does not refer to the observers; only implementations of this trait do. Otherwise, there
/// would be a circular dependency, because strict mode depends on the reporting code.
pub trait Observe {
    /// Passes the event to the observers.
    fn observe(self, monitor: &mut Monitor);
}

impl Monitor {
    /// Reports an event to the observers.
    #[inline]
    pub fn observe(&mut self, event: impl Observe) {
        event.observe(self);
    }

    /// In strict mode, runs `check` and reports its findings.
    #[inline]
    pub fn check(&mut self, check: impl FnOnce() -> Findings) {
        if self.is_strict() {
            check().report(self);
        }
    }

    /// If a trace is running, passes it to `write`.
    #[inline]
    pub fn write_trace(&mut self, write: impl FnOnce(&mut Trace)) {
        if let Some(trace) = self.trace() {
            write(trace);
        }
    }
}
