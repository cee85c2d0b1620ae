//! Replays a recorded session without a guest, a VMM or a network, and compares the device's outputs with the
//! recording.
//!
//! A replay runs a complete device, created from the recording's header. Only the device's memory, client and fabric
//! are replaced with recorded data. A panic is a valid result, since replays are often used to reproduce one.

pub mod clock;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;

use std::any::Any;
use std::fmt;
use std::os::fd::OwnedFd;
use std::panic::{self, AssertUnwindSafe};
use std::sync::{Arc, Mutex, PoisonError};

use engine::Instant;
use rustix::event::{EventfdFlags, eventfd};

use crate::fabric::impair::{Rule, RuleEntry};
use crate::frontend::Frontend;
use crate::hca::Hca;
use crate::record::{Counts, Difference, Finish, Input, RecordSink, ReplaySource};
use crate::sanitize;
use crate::vfio::server::{Device as _, Region};

/// Result of a replay.
#[derive(Debug)]
pub struct Report {
    /// Counters for the steps that were executed.
    pub counts: Counts,
    pub outcome: Outcome,
    /// Outputs of the last step as text, if the log is enabled.
    pub rest: Vec<String>,
}

/// Whether the outputs match the recording.
#[derive(Debug)]
pub enum Outcome {
    Same(Finish),
    /// All outputs up to the requested step match.
    Stopped,
    Differs(Difference),
    Panicked {
        step: u64,
        message: String,
    },
    /// A step is invalid for this device: an access outside its regions, or an impairment unknown to this hcad.
    Impossible {
        step: u64,
        /// Description of the step.
        input: String,
    },
}

/// Whether to execute the next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Execute the step and continue.
    Go,
    /// Stop before executing the step.
    Stop,
}

/// A step that is about to be executed.
#[derive(Debug)]
pub struct Step<'a> {
    /// Counters up to and including this step.
    pub counts: Counts,
    pub input: &'a Input<'static>,
    /// Outputs of the previous step as text, if the log is enabled.
    pub before: Vec<String>,
}

/// Replays a recording step by step on a device in its power-on state. `observe` is called before each step.
pub fn play<F: Frontend>(
    hca: &mut Hca<F>,
    source: ReplaySource,
    mut observe: impl FnMut(&Step<'_>) -> Next,
) -> Report {
    let source = Arc::new(Mutex::new(source));
    hca.set_record_sink(&RecordSink::playing(source.clone()));
    let source = || source.lock().unwrap_or_else(PoisonError::into_inner);
    let mut stopped = None;
    // Counters and outputs from before the step where `observe` stopped the replay.
    let mut before_stop = None;
    let ran = panic::catch_unwind(AssertUnwindSafe(|| {
        loop {
            let (input, now, counts, counts_before, before) = {
                let mut source = source();
                let counts_before = source.counts();
                let Some(input) = source.next_input() else { return };
                clock::set(source.since_1970());
                (input, source.now(), source.counts(), counts_before, source.take_log())
            };
            let next_step = Step { counts, input: &input, before };
            if observe(&next_step) == Next::Stop {
                before_stop = Some((counts_before, next_step.before));
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
    let mut source = source();
    let (counts, rest) = before_stop.unwrap_or_else(|| (source.counts(), source.take_log()));
    let outcome = match (ran, stopped, source.take_stop()) {
        // After the first difference, the device's behaviour is no longer meaningful, so even a panic is ignored.
        (_, _, Some(Err(difference))) => Outcome::Differs(difference),
        (Err(payload), _, _) => {
            Outcome::Panicked { step: counts.steps, message: panic_message(payload.as_ref()) }
        }
        (Ok(()), Some(stopped), _) => stopped,
        (Ok(()), None, Some(Ok(finish))) => Outcome::Same(finish),
        (Ok(()), None, None) => Outcome::Stopped,
    };
    Report { counts, outcome, rest }
}

/// Executes a recorded input. Returns `None` if the input is invalid for this device.
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
            hca.interrupts().set_eventfd(*vector, present.then(unread_eventfd).flatten());
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
        Input::AddNeighbour(mac) => hca.add_static_neighbour(*mac),
        Input::RemoveNeighbour(mac) => hca.remove_static_neighbour(*mac),
        Input::Impair(rule) => {
            let entry = serde_json::from_str::<RuleEntry>(rule).ok()?;
            // Ignore the error. It occurs only if the recorded device also had too many rules.
            let _ = hca.impair(Rule::try_from(entry).ok()?);
        }
        Input::Unimpair(id) => {
            hca.clear_impairments(*id);
        }
    }
    Some(())
}

/// Returns the region that an access targets, or `None` if the access is not entirely inside that region.
fn inside<F: Frontend>(hca: &Hca<F>, region: u8, offset: u64, len: usize) -> Option<Region> {
    let region = Region::from_index(region.into())?;
    let room = hca.region_len(region).checked_sub(offset)?;
    (u64::try_from(len).ok()? <= room).then_some(region)
}

/// Creates an eventfd that is never read. Without an eventfd, the vector would become pending, and the replay would
/// differ from the recording.
fn unread_eventfd() -> Option<OwnedFd> {
    eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).ok()
}

fn panic_message(payload: &(dyn Any + Send)) -> String {
    let panic_message = payload.downcast_ref::<&str>().copied();
    panic_message
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
        .to_owned()
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = &self.counts;
        let (steps, reads, writes) = (counts.steps, counts.reads, counts.writes);
        let (interrupts, frames, span) = (counts.interrupts, counts.frames, counts.span.as_secs_f64());
        writeln!(
            f,
            "{steps} steps in {span:.6} s: {reads} reads and {writes} writes of guest memory, {interrupts} \
             interrupts, {frames} frames"
        )?;
        match &self.outcome {
            Outcome::Same(finish) => write!(f, "no differences; {finish}"),
            Outcome::Stopped => write!(f, "no differences up to this step"),
            Outcome::Differs(difference) => write!(f, "first difference in {difference}"),
            Outcome::Panicked { step, message } => {
                write!(f, "panic in step {step}: {}", sanitize::text(message))
            }
            Outcome::Impossible { step, input } => {
                write!(f, "step {step} cannot be replayed: {}", sanitize::text(input))
            }
        }
    }
}
