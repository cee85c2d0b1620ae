//! What looks on while a device works, and changes nothing of what it does.

use std::path::Path;

use super::trace::Trace;

/// Lent to the front-end with everything else of a turn.
#[derive(Debug, Default)]
pub struct Monitor {
    trace: Option<Trace>,
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
}
