//! What a completion queue owes its software beside entries: one event for each time it is armed, and one report of the
//! fault that ends it.

use protocol::ids::Eqn;
use thiserror::Error;

use super::entry_ring::WriteError;
use crate::frontend::snapshot::{Armed, Fault};

/// What is to be done after an entry was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notify {
    /// Nothing.
    No,
    /// The queue was armed: raise a completion event in this event queue, if it exists.
    Yes(Eqn),
}

/// A completion was lost. The QP it belongs to goes to ERR.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("completion lost: {fault}")]
pub struct CqError {
    /// Why.
    pub fault: Fault,
    /// The first one of the queue: software is told by an event. Later ones are consequences, such as the flush of
    /// the QPs that lost completions.
    pub first: bool,
}

/// Arming and fault of one completion queue.
///
/// After a fault the queue takes no entries: software could not tell that some are missing between others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notifier {
    eqn: Eqn,
    armed: Armed,
    fault: Option<Fault>,
}

impl Notifier {
    /// Of a queue whose events go to `eqn`.
    pub fn new(eqn: Eqn, armed: Armed) -> Self {
        Self { eqn, armed, fault: None }
    }

    /// Event queue of the events.
    pub fn eqn(&self) -> Eqn {
        self.eqn
    }

    /// What raises the next event.
    pub fn armed(&self) -> Armed {
        self.armed
    }

    /// Why the queue takes no more entries.
    pub fn fault(&self) -> Option<Fault> {
        self.fault
    }

    /// The queue has got another buffer, where nothing is missing yet.
    pub fn clear_fault(&mut self) {
        self.fault = None;
    }

    /// Asks for an event. A queue that waits for any entry goes on to do so if the next solicited one is asked for.
    pub fn arm(&mut self, armed: Armed) {
        if (self.armed, armed) != (Armed::Any, Armed::Solicited) {
            self.armed = armed;
        }
    }

    /// Raises an event now: what was asked for is there already.
    pub fn fire(&mut self) -> Notify {
        self.armed = Armed::No;
        Notify::Yes(self.eqn)
    }

    /// Writes an entry with `write`, unless the queue is broken.
    ///
    /// # Errors
    /// The entry is lost, because software has not made room or the buffer cannot be written.
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
