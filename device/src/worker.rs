//! The thread of one HCA: one loop over its sockets, its deadline and its mailbox.
//!
//! A turn serves messages of the client, takes frames from the fabric, fires the deadline, then drains the HCA into
//! the fabric. Each part is bounded, so that neither client nor peers can keep the other waiting; what is left is
//! taken up at once in the next turn, after every descriptor has been looked at again. With nothing left the thread
//! sleeps.

mod linger;
#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use engine::Instant;
use rustix::event::Timespec;
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, clock_gettime, timerfd_create,
    timerfd_settime,
};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};

use self::linger::Linger;
use crate::capture::Capture;
use crate::control::call::{Call, Mailbox, Status};
use crate::control::message::{Counters, LogCounters, PortState, VfioCounters};
use crate::descriptors::Reserve;
use crate::fabric::{Fabric, RxBatch, Sent};
use crate::frontend::Frontend;
use crate::hca::{Hca, WorkLeft};
use crate::limited;
use crate::telemetry::outlet;
use crate::vfio::server::{Connection, Device as _, Gone, Listener, MessageStats, Source};

/// Bound: messages of the client in one turn.
const MESSAGES_PER_TURN: usize = 64;

/// How long a newcomer waits for the present client to end before it is refused. A VMM that replaces another may come
/// early: on a busy host it takes the kernel seconds to close the socket of a killed QEMU. QEMU waits 5 s for its first
/// reply; a second left over lets it see that it was refused instead of giving up for want of an answer.
const SUCCESSION: Duration = Duration::from_secs(4);

/// How long nobody is accepted after accepting failed, which is for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// What a descriptor is, in the events of `epoll`.
mod token {
    pub(super) const LISTENER: u64 = 0;
    pub(super) const CLIENT: u64 = 1;
    pub(super) const FABRIC: u64 = 2;
    pub(super) const TIMER: u64 = 3;
    pub(super) const MAILBOX: u64 = 4;
}

/// Why a worker ended without a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It was asked to.
    Shutdown,
    /// Its only client, which came with the command line, is gone.
    ClientGone,
}

/// One HCA with its sockets.
pub struct Worker<F: Frontend, N: Fabric> {
    hca: Hca<F>,
    fabric: N,
    arrived: RxBatch,
    /// The fabric took no more frames: it is watched for being writable.
    blocked: bool,
    listener: Option<Arc<Listener>>,
    /// Until then the listener is not watched.
    accept_after: Option<Instant>,
    client: Option<Client>,
    /// Clients there were, and messages of those that are gone.
    clients: u64,
    gone: MessageStats,
    /// A newcomer while there is a client; waits until `accept_after`.
    successor: Option<UnixStream>,
    epoll: Epoll,
    timer: OwnedFd,
    /// When the timer fires, if it is set.
    armed: Option<Instant>,
    linger: Linger,
    reserve: Reserve,
}

/// A worker whatever its front-end and fabric are.
pub trait Run: Send {
    /// See [`Worker::run`].
    ///
    /// # Errors
    /// The host failed us.
    fn run(self: Box<Self>, mailbox: &mut Mailbox) -> io::Result<Ended>;
}

impl<F: Frontend + Send, N: Fabric + Send> Run for Worker<F, N> {
    fn run(self: Box<Self>, mailbox: &mut Mailbox) -> io::Result<Ended> {
        Worker::run(*self, mailbox)
    }
}

struct Client {
    connection: Connection,
    /// What `epoll` watches it for.
    interest: EventSet,
    /// The last turn left messages behind.
    more: bool,
}

impl<F: Frontend, N: Fabric> Worker<F, N> {
    /// Puts a device on its sockets. Clients can connect from now on and are served once [`Worker::run`] runs.
    ///
    /// # Errors
    /// The host has no descriptors left.
    pub fn new(source: Source, hca: Hca<F>, fabric: N) -> io::Result<Self> {
        let epoll = Epoll::new()?;
        let timer =
            timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        watch(&epoll, &timer, token::TIMER)?;
        watch(&epoll, fabric.as_fd(), token::FABRIC)?;

        let mut worker = Self {
            hca,
            fabric,
            arrived: RxBatch::new(),
            blocked: false,
            listener: None,
            accept_after: None,
            client: None,
            clients: 0,
            gone: MessageStats::default(),
            successor: None,
            epoll,
            timer,
            armed: None,
            linger: Linger::new(Duration::ZERO),
            reserve: Reserve::new(),
        };
        match source {
            Source::Listener(listener) => {
                watch(&worker.epoll, &*listener, token::LISTENER)?;
                worker.listener = Some(listener);
            }
            Source::Client(stream) => worker.adopt(Connection::new(stream)?)?,
        }
        Ok(worker)
    }

    /// Looks for work for up to `limit` before sleeping, while data are moved in bulk and pauses are short. Without this
    /// call the worker always sleeps at once.
    #[must_use]
    pub fn with_linger(self, limit: Duration) -> Self {
        Self { linger: Linger::new(limit), ..self }
    }

    /// Serves until asked to end, by a call to `mailbox`.
    ///
    /// # Errors
    /// The host failed us: the fabric's socket or `epoll` is unusable. Clients and peers cannot cause that.
    pub fn run(mut self, mailbox: &mut Mailbox) -> io::Result<Ended> {
        watch(&self.epoll, &*mailbox, token::MAILBOX)?;
        let mut ready = Ready::default();
        let mut work_left = false;
        loop {
            mailbox.set_connected(self.client.is_some());
            let messages_left = self.client.as_ref().is_some_and(|client| client.more);
            self.wait(&mut ready, work_left || messages_left)?;
            self.hca.set_now(now());

            let is_ready = |token| ready.has(token);
            if is_ready(token::MAILBOX) {
                self.answer_calls(mailbox);
                // Looked at last: the calls took the wake-up of a request to end with them.
                if mailbox.is_stopped() {
                    self.hca.disconnect();
                    self.hca.flush();
                    return Ok(Ended::Shutdown);
                }
            }
            if is_ready(token::TIMER) {
                self.timer_fired();
            }
            if is_ready(token::CLIENT) || messages_left {
                self.serve()?;
            }
            if is_ready(token::LISTENER) {
                self.accept()?;
            }
            if self.accept_after.is_some_and(|after| after <= now()) {
                self.resume_accepting()?;
            }
            if is_ready(token::FABRIC) {
                // Bound: one batch, a few hundred frames at most.
                self.fabric.recv(&mut self.arrived)?;
                // A wait that a packet asks for begins when it is here, not when the turn began.
                self.hca.set_now(now());
                for frame in self.arrived.iter() {
                    self.linger.moved(frame.len());
                    self.hca.handle_frame(frame);
                }
            }
            if self.hca.next_deadline().is_some_and(|deadline| deadline <= now()) {
                self.hca.handle_deadline();
            }
            let WorkLeft { frames, other } = self.hca.drain();
            if self.hca.memory().is_lost() {
                self.lose_client(&Gone::MemoryLost)?;
            }
            work_left = (self.send()? == Sent::All && frames) || other;
            self.reply()?;
            if self.client.is_none() && self.listener.is_none() {
                self.hca.flush();
                return Ok(Ended::ClientGone);
            }
        }
    }

    /// Answers what other threads want to know. Between turns, so that they see nothing half done.
    fn answer_calls(&mut self, mailbox: &mut Mailbox) {
        let Self { hca, fabric, client, clients, gone, .. } = self;
        for call in mailbox.take() {
            // An asker that is gone wants no answer.
            match call {
                Call::Status(answer) => {
                    let port = if hca.is_link_up() { PortState::Up } else { PortState::Down };
                    let capture = hca.capture().and_then(Capture::path).map(Path::to_owned);
                    let trace = hca.monitor().trace_path().map(Path::to_owned);
                    let port_disabled = hca.is_disabled();
                    let _ = answer.send(Status { port, port_disabled, capture, trace });
                }
                Call::List(table, from, answer) => {
                    let _ = answer.send(hca.snapshot(table, from));
                }
                Call::Counters(answer) => {
                    let mut messages = *gone;
                    if let Some(client) = client {
                        messages += *client.connection.stats();
                    }
                    let _ = answer.send(Counters {
                        frontend: hca.frontend_counters(),
                        engine: *hca.engine_stats(),
                        port: hca.port_stats().into(),
                        fabric: fabric.stats(),
                        vfio: VfioCounters {
                            clients: *clients,
                            messages,
                            dma_ranges: hca.memory().ranges(),
                            interrupts: *hca.interrupts().stats(),
                        },
                        interface: hca.monitor().into(),
                        log: LogCounters { lines_lost: outlet::lines_lost() },
                    });
                }
                Call::Fail(answer) => {
                    hca.fail();
                    let _ = answer.send(());
                }
                Call::SetPort(state, answer) => {
                    hca.set_link(state == PortState::Up);
                    let _ = answer.send(());
                }
                Call::SetCapture(capture, answer) => {
                    let _ = answer.send(hca.set_capture(capture));
                }
                Call::SetTrace(trace, answer) => {
                    let _ = answer.send(hca.set_trace(trace.map(|trace| *trace)));
                }
                Call::Impair(call) => call.answer(hca.impairments()),
                Call::Peers(call) => call.answer(hca, fabric),
            }
        }
    }

    /// Looks at all descriptors, and sleeps before that unless there is work or a deadline has passed.
    fn wait(&mut self, ready: &mut Ready, work_left: bool) -> io::Result<()> {
        let deadline = self.hca.next_deadline().into_iter().chain(self.accept_after).min();
        let at_once = work_left || deadline.is_some_and(|deadline| deadline <= now());
        if at_once {
            return self.look(ready, 0);
        }
        if let Some(patience) = self.linger.pause() {
            let until = deadline.into_iter().chain([now() + patience]).min();
            while until.is_some_and(|until| now() < until) {
                self.look(ready, 0)?;
                if ready.count > 0 {
                    return Ok(());
                }
                std::hint::spin_loop();
            }
        }
        self.arm(deadline)?;
        self.hca.flush();
        let asleep_since = now();
        self.look(ready, -1)?;
        self.linger.slept(now().saturating_since(asleep_since));
        Ok(())
    }

    /// Looks at all descriptors, for up to `timeout` milliseconds, without end if that is negative.
    fn look(&mut self, ready: &mut Ready, timeout: i32) -> io::Result<()> {
        ready.count = match self.epoll.wait(timeout, &mut ready.events) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
            count => count?,
        };
        Ok(())
    }

    /// Makes the timer fire no later than `deadline`. It may fire earlier, for a deadline that has moved on: setting
    /// it anew at every acknowledgement would cost more than waking up for nothing once.
    fn arm(&mut self, deadline: Option<Instant>) -> io::Result<()> {
        let Some(deadline) = deadline else { return Ok(()) };
        if self.armed.is_some_and(|armed| armed <= deadline) {
            return Ok(());
        }
        let it_value = timespec(deadline);
        let setting = Itimerspec { it_interval: timespec(Instant::ZERO), it_value };
        timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &setting)?;
        self.armed = Some(deadline);
        Ok(())
    }

    fn timer_fired(&mut self) {
        let mut count = [0; 8];
        if rustix::io::read(&self.timer, &mut count).is_ok() {
            self.armed = None;
        }
    }

    /// Sends what there is, and watches for room if not all of it could be sent.
    fn send(&mut self) -> io::Result<Sent> {
        let batch = self.hca.outbound();
        let waiting = batch.bytes();
        let sent = if batch.is_empty() { Sent::All } else { self.fabric.send(batch) };
        self.linger.moved(waiting.saturating_sub(batch.bytes()));
        let blocked = sent == Sent::Blocked;
        if blocked != self.blocked {
            self.blocked = blocked;
            let interest = match blocked {
                true => EventSet::IN | EventSet::OUT,
                false => EventSet::IN,
            };
            control(&self.epoll, ControlOperation::Modify, &self.fabric.as_fd(), token::FABRIC, interest)?;
        }
        Ok(sent)
    }

    fn serve(&mut self) -> io::Result<()> {
        let Some(client) = &mut self.client else { return Ok(()) };
        match client.connection.serve(&mut self.hca, MESSAGES_PER_TURN) {
            Ok(served) => {
                client.more = served.more;
                Ok(())
            }
            Err(gone) => self.lose_client(&gone),
        }
    }

    /// Ends what a turn does for the client.
    fn reply(&mut self) -> io::Result<()> {
        let Some(client) = &mut self.client else { return Ok(()) };
        match client.connection.reply() {
            Ok(()) => {
                client.more &= !client.connection.wants_to_send();
                client.watch(&self.epoll)
            }
            Err(gone) => self.lose_client(&gone),
        }
    }

    fn lose_client(&mut self, gone: &Gone) -> io::Result<()> {
        match gone {
            Gone::Closed => limited!(info, "client is gone, device reset"),
            Gone::Violation(error) => {
                limited!(warn, %error, "client broke the vfio-user protocol, device reset");
            }
            Gone::MemoryLost => limited!(
                warn,
                "a file of the client's memory was cut short, or the host has no page for it; device reset"
            ),
            Gone::Io(error) => limited!(warn, %error, "connection of the client failed, device reset"),
        }
        if let Some(client) = &self.client {
            self.gone += *client.connection.stats();
        }
        // Closing the socket takes it out of epoll.
        self.client = None;
        self.hca.disconnect();
        self.reserve.refill();
        if self.successor.is_some() { self.resume_accepting() } else { Ok(()) }
    }

    fn accept(&mut self) -> io::Result<()> {
        let Some(listener) = &self.listener else { return Ok(()) };
        match listener.accept() {
            Ok(None) => Ok(()),
            Ok(Some(stream)) if self.client.is_some() => {
                self.successor = Some(stream);
                self.pause_accepting(SUCCESSION)
            }
            Ok(Some(stream)) => self.adopt(Connection::new(stream)?),
            // The client still waits, and this turn's end sees that.
            Err(error) if self.reserve.give_up(&error) => Ok(()),
            Err(error) => {
                limited!(error, %error, "cannot accept clients");
                self.pause_accepting(ACCEPT_PAUSE)
            }
        }
    }

    fn pause_accepting(&mut self, pause: Duration) -> io::Result<()> {
        if let Some(listener) = &self.listener {
            control(&self.epoll, ControlOperation::Delete, &**listener, token::LISTENER, EventSet::empty())?;
            self.accept_after = Some(now() + pause);
        }
        Ok(())
    }

    /// Takes or refuses the newcomer that waits, if any, and lets others in.
    fn resume_accepting(&mut self) -> io::Result<()> {
        self.accept_after = None;
        if let Some(listener) = &self.listener {
            watch(&self.epoll, &**listener, token::LISTENER)?;
        }
        match self.successor.take() {
            Some(_) if self.client.is_some() => {
                limited!(warn, "refused a second client");
                Ok(())
            }
            Some(stream) => self.adopt(Connection::new(stream)?),
            None => Ok(()),
        }
    }

    fn adopt(&mut self, connection: Connection) -> io::Result<()> {
        limited!(info, "client connected");
        watch(&self.epoll, &connection, token::CLIENT)?;
        self.clients += 1;
        self.client = Some(Client { connection, interest: EventSet::IN, more: false });
        Ok(())
    }
}

impl Client {
    /// Watches for what lets the connection go on: requests, or room for replies.
    fn watch(&mut self, epoll: &Epoll) -> io::Result<()> {
        let wanted = match self.connection.wants_to_send() {
            true => EventSet::OUT,
            false => EventSet::IN,
        };
        if wanted != self.interest {
            control(epoll, ControlOperation::Modify, &self.connection, token::CLIENT, wanted)?;
            self.interest = wanted;
        }
        Ok(())
    }
}

/// What `epoll` found: at most one event for each token.
#[derive(Default)]
struct Ready {
    events: [EpollEvent; 8],
    count: usize,
}

impl Ready {
    fn has(&self, token: u64) -> bool {
        self.events.iter().take(self.count).any(|event| event.data() == token)
    }
}

fn watch(epoll: &Epoll, source: impl AsFd, token: u64) -> io::Result<()> {
    control(epoll, ControlOperation::Add, &source, token, EventSet::IN)
}

fn control(
    epoll: &Epoll,
    operation: ControlOperation,
    source: &impl AsFd,
    token: u64,
    interest: EventSet,
) -> io::Result<()> {
    epoll.ctl(operation, source.as_fd().as_raw_fd(), EpollEvent::new(interest, token))
}

/// The clock of engine and timer.
fn now() -> Instant {
    let time = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    Instant::from_nanos(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
}

fn timespec(at: Instant) -> Timespec {
    let nanos = at.as_nanos();
    Timespec {
        tv_sec: i64::try_from(nanos / 1_000_000_000).unwrap_or(i64::MAX),
        tv_nsec: i64::try_from(nanos % 1_000_000_000).unwrap_or(0),
    }
}
