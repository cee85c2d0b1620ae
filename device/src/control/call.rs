//! Calls from the main thread to a device's thread, and what the main thread knows of it without asking.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use protocol::ids::Qpn;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use thiserror::Error;
use tokio::sync::{mpsc, oneshot};

use super::impair::ImpairCall;
use super::message::{Counters, PortState};
use super::peers::PeerCall;
use crate::capture::Capture;
use crate::frontend::snapshot::{Page, Table};
use crate::hca::Explanation;
use crate::record::Recorder;
use crate::telemetry::trace::Trace;

/// Bound: calls that wait for a device, and calls it answers between two turns. As many as there are control clients,
/// each of which waits for one answer at a time.
const CALLS: usize = 16;

/// How long an answer is waited for. A turn takes milliseconds; a thread that takes longer hangs, or has no processor.
pub const ANSWER: Duration = Duration::from_secs(2);

/// What a device's thread is asked, with the way back. An asker that is gone by the time of the answer is no error.
#[derive(Debug)]
pub enum Call {
    /// How it is.
    Status(oneshot::Sender<Status>),
    /// A page of a table, from a place on.
    List(Table, u64, oneshot::Sender<Page>),
    /// What a queue pair waits for.
    Explain(Qpn, oneshot::Sender<Explanation>),
    /// Counters.
    Counters(oneshot::Sender<Counters>),
    /// Bring the link up, or take it down.
    SetPort(PortState, oneshot::Sender<()>),
    /// Have an internal error.
    Fail(oneshot::Sender<()>),
    /// Use another capture from now on, or none. Gives back what was there: files are opened and closed elsewhere.
    SetCapture(Option<Box<Capture>>, oneshot::Sender<Option<Capture>>),
    /// What memory holds of the capture.
    KeptFrames(oneshot::Sender<Option<Vec<u8>>>),
    /// What memory holds of the trace.
    KeptRecords(oneshot::Sender<Option<Vec<u8>>>),
    /// Use another trace from now on, or none. Gives back what was there.
    SetTrace(Option<Box<Trace>>, oneshot::Sender<Option<Trace>>),
    /// Make the device anew and record it.
    BeginRecord(Box<Recorder>, oneshot::Sender<Begun>),
    /// Record no more. Gives back what was there.
    EndRecord(oneshot::Sender<Option<Recorder>>),
    /// Look at or change its impairments.
    Impair(ImpairCall),
    /// Look at or change who is on its fabric.
    Peers(PeerCall),
}

impl Call {
    /// Whether nobody waits for the answer any more. Who was told that nothing has been done must find it so.
    fn is_abandoned(&self) -> bool {
        match self {
            Self::Status(answer) => answer.is_closed(),
            Self::List(_, _, answer) => answer.is_closed(),
            Self::Explain(_, answer) => answer.is_closed(),
            Self::Counters(answer) => answer.is_closed(),
            Self::SetPort(_, answer) | Self::Fail(answer) => answer.is_closed(),
            Self::SetCapture(_, answer) => answer.is_closed(),
            Self::SetTrace(_, answer) => answer.is_closed(),
            Self::KeptFrames(answer) | Self::KeptRecords(answer) => answer.is_closed(),
            Self::BeginRecord(_, answer) => answer.is_closed(),
            Self::EndRecord(answer) => answer.is_closed(),
            Self::Impair(call) => call.is_abandoned(),
            Self::Peers(call) => call.is_abandoned(),
        }
    }
}

/// How a device is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Its link.
    pub port: PortState,
    /// Software has disabled the port.
    pub port_disabled: bool,
    /// File of the capture, if one is running.
    pub capture: Option<PathBuf>,
    /// Where the trace goes, if one is running.
    pub trace: Option<PathBuf>,
    /// File of the record, if it goes on.
    pub record: Option<PathBuf>,
}

/// An earlier record, or the one that does not begin.
pub type Begun = Result<Option<Recorder>, (Box<Recorder>, NotRecorded)>;

/// Why a record does not begin.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NotRecorded {
    /// The current state of the device cannot be reproduced from outside.
    #[error(
        "a VMM is connected; start recording before the VMM connects, or set `record` in the configuration"
    )]
    HasClient,
    /// The device cannot be made anew.
    #[error("cannot restart the device: {0}")]
    NotMade(String),
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum NoAnswer {
    /// Its thread has ended, or waits to make the device anew.
    #[error("the device is not running")]
    NotRunning,
    /// Its thread is busy with something else.
    #[error("the device is not responding")]
    Late,
}

/// What a device's thread is at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Life {
    /// It serves, as far as it knows.
    Running,
    /// It failed and will be made anew.
    Restarting(String),
}

/// How a device fares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// What its thread is at.
    pub life: Life,
    /// Times it failed and was made anew, or is about to be.
    pub restarts: u64,
    /// Why, the last time.
    pub problem: Option<String>,
}

/// Reaches a device's thread from others.
#[derive(Clone, Debug)]
pub struct Handle {
    calls: mpsc::Sender<Call>,
    shared: Arc<Shared>,
}

/// The device's end: what its thread waits for and takes calls from.
#[derive(Debug)]
pub struct Mailbox {
    calls: mpsc::Receiver<Call>,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    bell: OwnedFd,
    /// Apart from the calls: a request to end must not wait for room among them.
    stop: AtomicBool,
    /// A VMM is connected.
    connected: AtomicBool,
    health: Mutex<Health>,
}

impl Shared {
    fn health(&self) -> MutexGuard<'_, Health> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A mailbox and the handle to it.
///
/// # Errors
/// The host has no descriptors left.
pub fn mailbox() -> io::Result<(Handle, Mailbox)> {
    let shared = Arc::new(Shared {
        bell: eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?,
        stop: AtomicBool::new(false),
        connected: AtomicBool::new(false),
        health: Mutex::new(Health { life: Life::Running, restarts: 0, problem: None }),
    });
    let (sender, receiver) = mpsc::channel(CALLS);
    Ok((Handle { calls: sender, shared: shared.clone() }, Mailbox { calls: receiver, shared }))
}

/// An answer that is on its way.
#[derive(Debug)]
pub struct Answer<T>(oneshot::Receiver<T>);

impl<T> Answer<T> {
    /// Waits for it, until `deadline`.
    ///
    /// # Errors
    /// [`NoAnswer`].
    pub async fn by(self, deadline: tokio::time::Instant) -> Result<T, NoAnswer> {
        match tokio::time::timeout_at(deadline, self.0).await {
            Ok(answer) => answer.map_err(|_| NoAnswer::NotRunning),
            Err(_) => Err(NoAnswer::Late),
        }
    }
}

impl Handle {
    /// Asks the thread to end at its next turn.
    pub fn stop(&self) {
        self.shared.stop.store(true, Ordering::Release);
        self.ring();
    }

    /// Calls and waits for the answer, [`ANSWER`] at most.
    ///
    /// # Errors
    /// [`NoAnswer`].
    pub async fn call<T>(&self, call: impl FnOnce(oneshot::Sender<T>) -> Call) -> Result<T, NoAnswer> {
        self.ask(call)?.by(tokio::time::Instant::now() + ANSWER).await
    }

    /// Calls, without waiting.
    ///
    /// # Errors
    /// [`NoAnswer`]: too many calls are waiting, or nobody will answer any.
    pub fn ask<T>(&self, call: impl FnOnce(oneshot::Sender<T>) -> Call) -> Result<Answer<T>, NoAnswer> {
        let (answer, answered) = oneshot::channel();
        self.calls.try_send(call(answer)).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => NoAnswer::Late,
            mpsc::error::TrySendError::Closed(_) => NoAnswer::NotRunning,
        })?;
        self.ring();
        Ok(Answer(answered))
    }

    /// Whether a VMM is connected.
    pub fn is_connected(&self) -> bool {
        self.shared.connected.load(Ordering::Acquire)
    }

    /// How the device fares.
    pub fn health(&self) -> Health {
        self.shared.health().clone()
    }

    fn ring(&self) {
        // Fails only when the counter is full, and then the thread is about to wake up already.
        let _ = rustix::io::write(&self.shared.bell, &1_u64.to_ne_bytes());
    }
}

impl Mailbox {
    /// Whether the thread is to end.
    pub fn is_stopped(&self) -> bool {
        self.shared.stop.load(Ordering::Acquire)
    }

    /// Waits until the thread is to end, no longer than `pause`, for a device that cannot answer: calls are refused.
    pub fn is_stopped_within(&mut self, pause: Duration) -> bool {
        let end = Instant::now() + pause;
        loop {
            self.take().for_each(drop);
            let left = end.saturating_duration_since(Instant::now());
            if self.is_stopped() || left.is_zero() {
                return self.is_stopped();
            }
            let timeout = Timespec::try_from(left).ok();
            let _ = poll(&mut [PollFd::new(&*self, PollFlags::IN)], timeout.as_ref());
        }
    }

    /// The calls that wait and are still waited for. Those that come meanwhile make the mailbox readable again.
    pub fn take(&mut self) -> impl Iterator<Item = Call> {
        // Before the first call is taken: whoever calls after this also rings after this.
        let _ = rustix::io::read(&self.shared.bell, &mut [0_u8; 8]);
        std::iter::from_fn(|| self.calls.try_recv().ok()).take(CALLS).filter(|call| !call.is_abandoned())
    }

    /// Tells whether a VMM is connected.
    pub fn set_connected(&self, connected: bool) {
        // Looked at first: a store takes the line of memory away from whoever reads it.
        if self.shared.connected.load(Ordering::Relaxed) != connected {
            self.shared.connected.store(connected, Ordering::Release);
        }
    }

    /// Tells what the thread is at. A restart is counted.
    pub fn set_life(&self, life: Life) {
        let mut health = self.shared.health();
        if let Life::Restarting(problem) = &life {
            health.restarts += 1;
            health.problem = Some(problem.clone());
        }
        health.life = life;
    }
}

/// Readable when there is something to look at.
impl AsFd for Mailbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.bell.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
    }

    #[test]
    fn a_device_that_does_not_answer_is_not_waited_for_and_later_does_not_do_what_it_was_asked() {
        let (handle, mut mailbox) = mailbox().unwrap();
        let soon = || tokio::time::Instant::now() + Duration::from_millis(20);
        runtime().block_on(async {
            for _ in 0..CALLS {
                let answer = handle.ask(|answer| Call::SetPort(PortState::Down, answer)).unwrap();
                assert_eq!(answer.by(soon()).await, Err(NoAnswer::Late));
            }
            assert_eq!(handle.ask(Call::Fail).unwrap_err(), NoAnswer::Late, "there is no room left");
        });
        assert_eq!(mailbox.take().count(), 0);
    }

    #[test]
    fn a_device_that_is_not_running_says_so() {
        let (handle, mut mailbox) = mailbox().unwrap();
        runtime().block_on(async {
            let answer = handle.ask(Call::Fail).unwrap();
            assert!(!mailbox.is_stopped_within(Duration::ZERO));
            assert_eq!(answer.by(tokio::time::Instant::now() + ANSWER).await, Err(NoAnswer::NotRunning));
            drop(mailbox);
            assert_eq!(handle.call(Call::Fail).await, Err(NoAnswer::NotRunning));
        });
    }
}
