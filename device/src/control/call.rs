//! Calls from the main thread to a device's thread, and the state that the two threads share.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use card::capture::Capture;
use card::frontend::table::{Page, TableSpec};
use card::hca::Explanation;
use card::record::Recorder;
use card::telemetry::trace::Trace;
use control_api::message::{Counters, PortState};
use protocol::ids::Qpn;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use thiserror::Error;
use tokio::sync::{mpsc, oneshot};

use super::impair::ImpairCall;
use super::peers::PeerCall;

/// Maximum number of pending calls to a device, and of calls answered between two iterations of its event loop. Each
/// control client waits for one answer at a time, so the limit equals the maximum number of clients.
const MAX_CALLS: usize = 16;

/// Maximum time to wait for an answer. An iteration takes milliseconds. A thread that takes longer than this is hung or
/// starved of CPU time.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// A call to a device's thread, with the channel for the answer. Failing to send the answer is not an error, since the
/// caller may have disconnected.
#[derive(Debug)]
pub enum Call {
    Status(oneshot::Sender<Status>),
    /// Returns the table page that starts at the given index.
    List(&'static TableSpec, u64, oneshot::Sender<Page>),
    /// Explains what a QP is waiting for.
    Explain(Qpn, oneshot::Sender<Explanation>),
    Counters(oneshot::Sender<Counters>),
    /// Sets the link up or down.
    SetPort(PortState, oneshot::Sender<()>),
    /// Injects a device error.
    Fail(oneshot::Sender<()>),
    /// Sets or removes the capture. Returns the previous capture to the main thread, which opens and closes the files.
    SetCapture(Option<Box<Capture>>, oneshot::Sender<Option<Capture>>),
    /// Returns the contents of the capture ring.
    KeptFrames(oneshot::Sender<Option<Vec<u8>>>),
    /// Returns the contents of the trace ring.
    KeptRecords(oneshot::Sender<Option<Vec<u8>>>),
    /// Sets or removes the trace. Returns the previous trace, as for captures.
    SetTrace(Option<Box<Trace>>, oneshot::Sender<Option<Trace>>),
    /// Restarts the device and starts recording its session.
    BeginRecord(Box<Recorder>, oneshot::Sender<BeginRecordResult>),
    /// Stops recording and returns the recorder, if any.
    EndRecord(oneshot::Sender<Option<Recorder>>),
    /// Queries or changes the link impairments.
    Impair(ImpairCall),
    /// Queries or changes the peers.
    Peers(PeerCall),
}

impl Call {
    /// Returns whether the caller has stopped waiting. An abandoned call must not be executed, since its caller has
    /// already received an error.
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

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    pub port: PortState,
    /// Whether software has disabled the port.
    pub port_disabled: bool,
    /// File or ring of the capture, if one is running.
    pub capture: Option<PathBuf>,
    /// File or ring of the trace, if one is running.
    pub trace: Option<PathBuf>,
    /// File of the recording, if one is running.
    pub record: Option<PathBuf>,
}

/// Result of starting a recording. On success, this contains the previous recorder, if any. On failure, it contains the
/// unused new recorder and the reason.
pub type BeginRecordResult = Result<Option<Recorder>, (Box<Recorder>, StartRecordError)>;

/// Why a recording cannot be started.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum StartRecordError {
    /// A VMM is connected, so a recording started now could not reproduce the device's state.
    #[error(
        "a VMM is connected; start recording before the VMM connects, or set `record` in the configuration"
    )]
    HasClient,
    /// The device cannot be re-created.
    #[error("cannot restart the device: {0}")]
    NotMade(String),
}

/// Why a call received no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CallError {
    /// The device's thread has ended, or is waiting to restart the device.
    #[error("the device is not running")]
    NotRunning,
    /// The device's thread is busy.
    #[error("the device is not responding")]
    Late,
}

/// Whether a device is running, as seen by other threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunState {
    /// The device is serving, and no failure has been reported.
    Running,
    /// The device has failed and will restart.
    Restarting(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    pub run_state: RunState,
    /// Number of restarts, including a pending one.
    pub restarts: u64,
    /// Reason for the last failure.
    pub problem: Option<String>,
}

/// The main thread's end of the channel to a device.
#[derive(Clone, Debug)]
pub struct Handle {
    calls: mpsc::Sender<Call>,
    shared: Arc<Shared>,
}

/// The device's end of the channel. Its descriptor can be polled for pending calls.
#[derive(Debug)]
pub struct Mailbox {
    calls: mpsc::Receiver<Call>,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    wakeup: OwnedFd,
    /// Whether a shutdown has been requested. Unlike a call, the request does not need a free slot in the queue.
    stop: AtomicBool,
    connected: AtomicBool,
    health: Mutex<Health>,
}

impl Shared {
    fn health(&self) -> MutexGuard<'_, Health> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Creates a mailbox and its handle.
///
/// # Errors
/// Fails if the process is out of file descriptors.
pub fn mailbox() -> io::Result<(Handle, Mailbox)> {
    let shared = Arc::new(Shared {
        wakeup: eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?,
        stop: AtomicBool::new(false),
        connected: AtomicBool::new(false),
        health: Mutex::new(Health { run_state: RunState::Running, restarts: 0, problem: None }),
    });
    let (sender, receiver) = mpsc::channel(MAX_CALLS);
    Ok((Handle { calls: sender, shared: shared.clone() }, Mailbox { calls: receiver, shared }))
}

#[derive(Debug)]
pub struct Answer<T>(oneshot::Receiver<T>);

impl<T> Answer<T> {
    /// Waits for the answer until `deadline`.
    ///
    /// # Errors
    /// [`CallError`] if no answer arrives in time.
    pub async fn by(self, deadline: tokio::time::Instant) -> Result<T, CallError> {
        match tokio::time::timeout_at(deadline, self.0).await {
            Ok(answer) => answer.map_err(|_| CallError::NotRunning),
            Err(_) => Err(CallError::Late),
        }
    }
}

impl Handle {
    /// Requests that the thread stop, and wakes it.
    pub fn stop(&self) {
        self.shared.stop.store(true, Ordering::Release);
        self.wake();
    }

    /// Makes a call and waits for the answer, for at most [`ANSWER_TIMEOUT`].
    ///
    /// # Errors
    /// [`CallError`] if no answer arrives in time.
    pub async fn call<T>(&self, call: impl FnOnce(oneshot::Sender<T>) -> Call) -> Result<T, CallError> {
        self.ask(call)?.by(tokio::time::Instant::now() + ANSWER_TIMEOUT).await
    }

    /// Makes a call without waiting for the answer.
    ///
    /// # Errors
    /// [`CallError`] if too many calls are pending or the thread has ended.
    pub fn ask<T>(&self, call: impl FnOnce(oneshot::Sender<T>) -> Call) -> Result<Answer<T>, CallError> {
        let (answer, answered) = oneshot::channel();
        self.calls.try_send(call(answer)).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => CallError::Late,
            mpsc::error::TrySendError::Closed(_) => CallError::NotRunning,
        })?;
        self.wake();
        Ok(Answer(answered))
    }

    pub fn is_connected(&self) -> bool {
        self.shared.connected.load(Ordering::Acquire)
    }

    pub fn health(&self) -> Health {
        self.shared.health().clone()
    }

    fn wake(&self) {
        // This fails only if the counter is saturated. A wake-up is then pending anyway.
        let _ = rustix::io::write(&self.shared.wakeup, &1_u64.to_ne_bytes());
    }
}

impl Mailbox {
    pub fn is_stopped(&self) -> bool {
        self.shared.stop.load(Ordering::Acquire)
    }

    /// Waits up to `pause` for a stop request and returns whether one was made. Drops all calls, since the device
    /// cannot answer them.
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

    /// Takes the pending calls whose callers are still waiting. Calls that arrive later make the mailbox readable
    /// again.
    pub fn take(&mut self) -> impl Iterator<Item = Call> {
        // Reset the counter before taking the first call, so that no later wake-up is lost.
        let _ = rustix::io::read(&self.shared.wakeup, &mut [0_u8; 8]);
        std::iter::from_fn(|| self.calls.try_recv().ok()).take(MAX_CALLS).filter(|call| !call.is_abandoned())
    }

    pub fn set_connected(&self, connected: bool) {
        // A redundant store would invalidate the cache line on the CPUs that read it.
        if self.shared.connected.load(Ordering::Relaxed) != connected {
            self.shared.connected.store(connected, Ordering::Release);
        }
    }

    /// Sets whether the device is running, and counts the restarts.
    pub fn set_run_state(&self, run_state: RunState) {
        let mut health = self.shared.health();
        if let RunState::Restarting(problem) = &run_state {
            health.restarts += 1;
            health.problem = Some(problem.clone());
        }
        health.run_state = run_state;
    }
}

/// The descriptor is readable when calls or a stop request are pending.
impl AsFd for Mailbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.wakeup.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
    }

    #[test]
    fn abandoned_call_is_not_executed() {
        let (handle, mut mailbox) = mailbox().unwrap();
        let soon = || tokio::time::Instant::now() + Duration::from_millis(20);
        runtime().block_on(async {
            for _ in 0..MAX_CALLS {
                let answer = handle.ask(|answer| Call::SetPort(PortState::Down, answer)).unwrap();
                assert_eq!(answer.by(soon()).await, Err(CallError::Late));
            }
            assert_eq!(handle.ask(Call::Fail).unwrap_err(), CallError::Late, "the queue of calls is full");
        });
        assert_eq!(mailbox.take().count(), 0);
    }

    #[test]
    fn stop_request_ends_pause() {
        let (handle, mut mailbox) = mailbox().unwrap();
        let (ended, is_stopped) = std::sync::mpsc::channel();
        std::thread::spawn(move || ended.send(mailbox.is_stopped_within(Duration::from_secs(3600))));
        handle.stop();
        let limit = Duration::from_secs(60);
        assert_eq!(is_stopped.recv_timeout(limit), Ok(true), "the pause has not ended within {limit:?}");
    }

    #[test]
    fn call_to_exited_thread_fails() {
        let (handle, mut mailbox) = mailbox().unwrap();
        runtime().block_on(async {
            let answer = handle.ask(Call::Fail).unwrap();
            assert!(!mailbox.is_stopped_within(Duration::ZERO));
            assert_eq!(
                answer.by(tokio::time::Instant::now() + ANSWER_TIMEOUT).await,
                Err(CallError::NotRunning)
            );
            drop(mailbox);
            assert_eq!(handle.call(Call::Fail).await, Err(CallError::NotRunning));
        });
    }
}
