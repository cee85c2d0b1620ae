//! Completion queue notifications. Each arm request yields one event, and only the first lost completion is reported.

use card::frontend::snapshot::{Armed, Fault};
use protocol::ids::Eqn;
use thiserror::Error;

use super::entry_ring::WriteError;

/// Whether to raise a completion event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notify {
    /// Do not raise an event.
    No,
    /// The queue was armed. Raise a completion event in this EQ, if the EQ exists.
    Yes(Eqn),
}

/// Error returned when a completion is lost. The affected QP moves to ERR.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("completion lost: {fault}")]
pub struct CqError {
    pub fault: Fault,
    /// Whether this is the queue's first loss. Only the first loss raises an event. Later losses are consequences of
    /// the first. For example, a QP that has lost a completion flushes its requests, whose completions are then also
    /// lost.
    pub first: bool,
}

/// Arm state and fault of a completion queue.
///
/// After a fault, the queue stops accepting entries, since software could not detect the gap left by the lost one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notifier {
    eqn: Eqn,
    armed: Armed,
    fault: Option<Fault>,
}

impl Notifier {
    pub fn new(eqn: Eqn, armed: Armed) -> Self {
        Self { eqn, armed, fault: None }
    }

    /// Returns the EQ that receives the completion events.
    pub fn eqn(&self) -> Eqn {
        self.eqn
    }

    /// Returns which completions raise the next event.
    pub fn armed(&self) -> Armed {
        self.armed
    }

    pub fn fault(&self) -> Option<Fault> {
        self.fault
    }

    /// Clears the fault. Called when the queue moves to a new buffer, which has no gap.
    pub fn clear_fault(&mut self) {
        self.fault = None;
    }

    /// Arms the queue. If the queue is armed for any completion, arming it for solicited completions has no effect.
    pub fn arm(&mut self, armed: Armed) {
        if (self.armed, armed) != (Armed::Any, Armed::Solicited) {
            self.armed = armed;
        }
    }

    /// Disarms the queue and returns the event to raise.
    pub fn fire(&mut self) -> Notify {
        self.armed = Armed::No;
        Notify::Yes(self.eqn)
    }

    /// Writes an entry with `write`, unless the queue has a fault.
    ///
    /// # Errors
    /// The entry is lost if the queue is full or has a fault, or if its buffer cannot be written.
    pub fn push(
        &mut self,
        solicited: bool,
        write: impl FnOnce() -> Result<(), WriteError>,
    ) -> Result<Notify, CqError> {
        if let Some(fault) = self.fault {
            return Err(CqError { fault, first: false });
        }
        if let Err(error) = write() {
            let fault = match error {
                WriteError::Full => Fault::Overrun,
                WriteError::Access(_) => Fault::Access,
            };
            self.fault = Some(fault);
            return Err(CqError { fault, first: true });
        }
        Ok(match self.armed {
            Armed::Any => self.fire(),
            Armed::Solicited if solicited => self.fire(),
            Armed::No | Armed::Solicited => Notify::No,
        })
    }
}
