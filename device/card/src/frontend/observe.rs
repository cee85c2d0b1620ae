//! Observation of a front-end: counters, strict mode and trace, none of which affects the device.
//!
//! A front-end reports each decision as one event, which borrows the objects involved. An event is cheap to
//! build, and observers that are disabled do no work for it.

use super::strict::Findings;
use crate::telemetry::monitor::Monitor;
use crate::telemetry::trace::Trace;

/// A decision of a front-end.
///
/// An event type does not refer to the observers; only its implementation of this trait does. Code that reports an
/// event therefore does not depend on strict mode, although strict mode depends on that code.
pub trait Observe {
    /// Passes the event to its observers.
    fn observe(self, monitor: &mut Monitor);
}

impl Monitor {
    /// Reports an event to its observers.
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

    /// If a trace is running, calls `write` with it.
    #[inline]
    pub fn write_trace(&mut self, write: impl FnOnce(&mut Trace)) {
        if let Some(trace) = self.trace() {
            write(trace);
        }
    }
}
