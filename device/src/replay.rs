//! Running a device from a record, without guest, VMM and network, and comparing what it does with what it did.
//!
//! The device is the one that the record's header describes, and all of it: only its memory, its client and its fabric
//! are the record. A panic is a result like any other: often it is what somebody wants to see again.

mod clock;
mod command;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

use std::any::Any;
use std::os::fd::OwnedFd;
use std::panic::{self, AssertUnwindSafe};
use std::sync::{Arc, Mutex, PoisonError};

use engine::Instant;
use rustix::event::{EventfdFlags, eventfd};

pub use self::command::{Options, ReplayError, run};
use crate::fabric::impair::{Rule, RuleEntry};
use crate::frontend::Frontend;
use crate::hca::Hca;
use crate::record::{Counts, Difference, Finish, Input, Player, Tape};
use crate::vfio::server::{Device as _, Region};

/// How a replay came out.
#[derive(Debug)]
pub struct Report {
    /// What was done.
    pub counts: Counts,
    /// Whether it is what was recorded.
    pub outcome: Outcome,
}

/// Whether a device did what was recorded.
#[derive(Debug)]
pub enum Outcome {
    /// It did all of it.
    Same(Finish),
    /// It did all of it up to the step that somebody wanted it to stop at.
    Stopped,
    /// It did something else.
    Differs(Difference),
    /// It panicked.
    Panicked {
        /// In which step.
        step: u64,
        /// What the panic says.
        message: String,
    },
    /// A step is none that can be told to this device: an access outside of its regions, an impairment that this hcad does
    /// not know.
    Impossible {
        /// Which step.
        step: u64,
        /// What it is.
        input: String,
    },
}

/// What is to be done before the next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The step.
    Go,
    /// No more.
    Stop,
}

/// A step, for whoever looks on.
#[derive(Debug)]
pub struct Step<'a> {
    /// What was done up to here; this step is counted.
    pub counts: Counts,
    /// What is told to the device.
    pub input: &'a Input<'static>,
    /// What the device did in the step before, in words, if the player keeps a log.
    pub before: Vec<String>,
}

/// Runs a device after power-on from a record, step by step; `look` sees each before it is done.
pub fn play<F: Frontend>(
    hca: &mut Hca<F>,
    player: Player,
    mut look: impl FnMut(&Step<'_>) -> Next,
) -> Report {
    let player = Arc::new(Mutex::new(player));
    hca.set_tape(&Tape::playing(player.clone()));
    let player = || player.lock().unwrap_or_else(PoisonError::into_inner);
    let mut stopped = None;
    let ran = panic::catch_unwind(AssertUnwindSafe(|| {
        loop {
            let (input, now, counts, before) = {
                let mut player = player();
                let Some(input) = player.next_input() else { return };
                (input, player.now(), player.counts(), player.take_log())
            };
            clock::set(now);
            if look(&Step { counts, input: &input, before }) == Next::Stop {
                stopped = Some(Outcome::Stopped);
                return;
            }
            hca.set_now(Instant::from_nanos(now));
            if step(hca, &input).is_none() {
                stopped = Some(Outcome::Impossible { step: counts.steps, input: input.to_string() });
                return;
            }
        }
    }));
    hca.flush();
    let mut player = player();
    let counts = player.counts();
    let outcome = match (ran, stopped, player.take_stop()) {
        // What a device does once nothing answers it any more says nothing, a panic neither.
        (_, _, Some(Err(difference))) => Outcome::Differs(difference),
        (Err(payload), _, _) => Outcome::Panicked { step: counts.steps, message: text(payload.as_ref()) },
        (Ok(()), Some(stopped), _) => stopped,
        (Ok(()), None, Some(Ok(finish))) => Outcome::Same(finish),
        (Ok(()), None, None) => Outcome::Stopped,
    };
    Report { counts, outcome }
}

/// Tells the device what it was told. `None`: that cannot have been.
fn step<F: Frontend>(hca: &mut Hca<F>, input: &Input<'_>) -> Option<()> {
    match input {
        Input::RegionRead { region, offset, len } => {
            let region = inside(hca, *region, *offset, *len)?;
            hca.region_read(region, *offset, &mut vec![0; *len]);
        }
        Input::RegionWrite { region, offset, data } => {
            let region = inside(hca, *region, *offset, data.len())?;
            hca.region_write(region, *offset, data);
        }
        Input::Eventfd { vector, present } => {
            hca.interrupts().set_eventfd(*vector, present.then(nobody).flatten());
        }
        Input::Mask { vector, masked } => hca.interrupts().set_masked(*vector, *masked),
        Input::Trigger { vector } => hca.interrupts().trigger(*vector),
        Input::Unwire => hca.interrupts().disconnect(),
        Input::Reset => hca.reset(),
        Input::Disconnect => hca.disconnect(),
        Input::Frame(frame) => hca.handle_frame(frame),
        Input::Deadline => hca.handle_deadline(),
        Input::Drain => {
            hca.drain();
        }
        Input::Left { frames } => hca.outbound().keep_last(*frames),
        Input::Link { up } => hca.set_link(*up),
        Input::Fail => hca.fail(),
        Input::Know(mac) => hca.know(*mac),
        Input::Forget(mac) => hca.forget(*mac),
        Input::Impair(rule) => {
            let entry = serde_json::from_str::<RuleEntry>(rule).ok()?;
            // A device that has too many had them then.
            let _ = hca.impair(Rule::try_from(entry).ok()?);
        }
        Input::Unimpair(id) => {
            hca.clear_impairments(*id);
        }
    }
    Some(())
}

/// The region of an access that is wholly inside of it.
fn inside<F: Frontend>(hca: &Hca<F>, region: u8, offset: u64, len: usize) -> Option<Region> {
    let region = Region::from_index(region.into())?;
    let room = hca.region_len(region).checked_sub(offset)?;
    (u64::try_from(len).ok()? <= room).then_some(region)
}

/// An eventfd that nobody reads. Without one the vector would be pending, which is a difference that is told.
fn nobody() -> Option<OwnedFd> {
    eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).ok()
}

/// What a panic says.
fn text(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message").to_owned()
}
