//! Calls from the main thread to a device's thread.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, eventfd};
use thiserror::Error;
use tokio::sync::{mpsc, oneshot};

use super::impair::ImpairCall;
use super::message::{Counters, PortState};
use super::peers::PeerCall;
use crate::capture::Capture;
use crate::frontend::snapshot::{Page, Table};
use crate::telemetry::trace::Trace;

/// Bound: calls that wait for a device, and calls it answers between two turns.
const CALLS: usize = 16;

/// What a device's thread is asked, with the way back. An asker that is gone by the time of the answer is no error.
#[derive(Debug)]
pub enum Call {
    /// How it is.
    Status(oneshot::Sender<Status>),
    /// A page of a table, from a place on.
    List(Table, u64, oneshot::Sender<Page>),
    /// Counters.
    Counters(oneshot::Sender<Counters>),
    /// Bring the link up, or take it down.
    SetPort(PortState, oneshot::Sender<()>),
    /// Have an internal error.
    Fail(oneshot::Sender<()>),
    /// Use another capture from now on, or none. Gives back what was there: files are opened and closed elsewhere.
    SetCapture(Option<Capture>, oneshot::Sender<Option<Capture>>),
    /// Use another trace from now on, or none. Gives back what was there.
    SetTrace(Option<Box<Trace>>, oneshot::Sender<Option<Trace>>),
    /// Look at or change its impairments.
    Impair(ImpairCall),
    /// Look at or change who is on its fabric.
    Peers(PeerCall),
}

/// How a device is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// A VMM is connected.
    pub connected: bool,
    /// Its link.
    pub port: PortState,
    /// File of the capture, if one is running.
    pub capture: Option<PathBuf>,
    /// Where the trace goes, if one is running.
    pub trace: Option<PathBuf>,
}

/// The device's thread has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the device has stopped")]
pub struct Stopped;

/// Reaches a device's thread from others.
#[derive(Clone, Debug)]
pub struct Handle {
    calls: mpsc::Sender<Call>,
    bell: Arc<Bell>,
}

/// The device's end: what its thread waits for and takes calls from.
#[derive(Debug)]
pub struct Mailbox {
    calls: mpsc::Receiver<Call>,
    bell: Arc<Bell>,
}

#[derive(Debug)]
struct Bell {
    eventfd: OwnedFd,
    /// Apart from the calls: a request to end must not wait for room among them.
    stop: AtomicBool,
}

/// A mailbox and the handle to it.
///
/// # Errors
/// The host has no descriptors left.
pub fn mailbox() -> io::Result<(Handle, Mailbox)> {
    let eventfd = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
    let bell = Arc::new(Bell { eventfd, stop: AtomicBool::new(false) });
    let (sender, receiver) = mpsc::channel(CALLS);
    Ok((Handle { calls: sender, bell: bell.clone() }, Mailbox { calls: receiver, bell }))
}

impl Handle {
    /// Asks the thread to end at its next turn.
    pub fn stop(&self) {
        self.bell.stop.store(true, Ordering::Release);
        self.ring();
    }

    /// Calls and waits for the answer, first for room if too many others do.
    ///
    /// # Errors
    /// [`Stopped`].
    pub async fn call<T>(&self, call: impl FnOnce(oneshot::Sender<T>) -> Call) -> Result<T, Stopped> {
        let (answer, answered) = oneshot::channel();
        self.calls.send(call(answer)).await.map_err(|_| Stopped)?;
        self.ring();
        answered.await.map_err(|_| Stopped)
    }

    fn ring(&self) {
        // Fails only when the counter is full, and then the thread is about to wake up already.
        let _ = rustix::io::write(&self.bell.eventfd, &1_u64.to_ne_bytes());
    }
}

impl Mailbox {
    /// Whether the thread is to end.
    pub fn is_stopped(&self) -> bool {
        self.bell.stop.load(Ordering::Acquire)
    }

    /// The calls that wait. Those that come meanwhile make the mailbox readable again.
    pub fn take(&mut self) -> impl Iterator<Item = Call> {
        // Before the first call is taken: whoever calls after this also rings after this.
        let _ = rustix::io::read(&self.bell.eventfd, &mut [0_u8; 8]);
        std::iter::from_fn(|| self.calls.try_recv().ok()).take(CALLS)
    }
}

/// Readable when there is something to look at.
impl AsFd for Mailbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.eventfd.as_fd()
    }
}
