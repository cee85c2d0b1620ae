//! The thread that runs one HCA: an event loop over its sockets, its deadlines and its mailbox.
//!
//! A turn serves client messages, receives frames from the fabric, handles expired deadlines, and then sends the HCA's
//! frames to the fabric. Each step is bounded, so that neither the client nor a peer can starve the other. If work
//! remains, the thread polls all descriptors and starts the next turn. Otherwise, it blocks.

mod budget;
mod busy_poll;
mod coalesce;
#[cfg(test)]
mod tests;

use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use card::capture::Capture;
use card::fabric::{Fabric, RxBatch, Sent};
use card::frontend::Frontend;
use card::hca::{Hca, WorkLeft};
use card::limited;
use card::record::Recorder;
use card::telemetry::non_blocking;
use card::vfio::server::{Connection, ConnectionError, Device as _, Listener, MessageStats, Source};
use control_api::message::{Counters, LogCounters, PortState, VfioCounters};
use control_api::named::Named;
use engine::Instant;
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::thread::{sched_yield, set_current_timer_slack};
use rustix::time::{ClockId, clock_gettime};

use self::budget::ControlBudget;
use self::busy_poll::{BusyPoll, PollWindow};
use self::coalesce::Coalescing;
use crate::clock::now;
use crate::control::call::{BeginRecordResult, Call, Mailbox, StartRecordError, Status};
use crate::descriptors::Reserve;

/// Maximum number of client messages served in one turn.
const MESSAGES_PER_TURN: usize = 64;

/// How long a second client waits for the current client to disconnect before it is rejected. The successor of a killed
/// QEMU may connect before the kernel has closed the old socket, which can take seconds on a busy host. The limit is
/// below the 5 s that QEMU waits for its first reply.
const SUCCESSOR_TIMEOUT: Duration = Duration::from_secs(4);

/// Pause after `accept` has failed, for example because no descriptors are left.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// Interval at which a thread that polls memory for frames also polls descriptors.
const DESCRIPTORS_PERIOD: Duration = Duration::from_micros(2);

/// Tokens that identify the source of an `epoll` event.
mod token {
    pub(super) const LISTENER: u64 = 0;
    pub(super) const CLIENT: u64 = 1;
    pub(super) const FABRIC: u64 = 2;
    pub(super) const MAILBOX: u64 = 3;
    pub(super) const COUNT: usize = 4;
}

/// Why a worker ended without an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// A shutdown was requested.
    Shutdown,
    /// The worker's only client was inherited and has disconnected.
    ClientGone,
}

/// One HCA with its sockets.
pub struct Worker<F: Frontend, N: Fabric> {
    hca: Hca<F>,
    fabric: N,
    arrived: RxBatch,
    /// Whether the fabric is full. If so, the worker also watches the fabric's descriptor for writability.
    blocked: bool,
    listener: Option<Arc<Listener>>,
    /// If set, the worker does not accept clients until this time.
    accept_after: Option<Instant>,
    client: Option<Client>,
    /// Number of clients so far.
    clients: u64,
    /// Sum of the message counters of all disconnected clients.
    gone: MessageStats,
    /// Number of frames received, plus one per batch sent.
    frames: u64,
    /// A second client, already accepted. It waits for the current client to disconnect, but at most until
    /// `accept_after`.
    successor: Option<UnixStream>,
    successor_timeout: Duration,
    epoll: OwnedFd,
    busy_poll: BusyPoll,
    coalescing: Coalescing,
    budget: ControlBudget,
    reserve: Reserve,
    /// The recording, which ends with the worker.
    record: Option<Recorder>,
    maker: Option<Maker<F>>,
}

/// A function that creates the device in its power-on state.
pub type Maker<F> = Box<dyn Fn() -> io::Result<Hca<F>> + Send>;

/// A worker with any front-end and fabric.
pub trait Run: Send {
    /// Runs the worker; see [`Worker::run`].
    ///
    /// # Errors
    /// Fails if a host resource becomes unusable.
    fn run(self: Box<Self>, mailbox: &mut Mailbox) -> io::Result<Ended>;
}

impl<F: Frontend + Send, N: Fabric + Send> Run for Worker<F, N> {
    fn run(self: Box<Self>, mailbox: &mut Mailbox) -> io::Result<Ended> {
        Worker::run(*self, mailbox)
    }
}

struct Client {
    connection: Connection,
    /// Events for which the client is registered with `epoll`, or `None` while it is not registered.
    interest: Option<epoll::EventFlags>,
    /// Whether the last turn left messages unserved.
    more: bool,
}

impl<F: Frontend, N: Fabric> Worker<F, N> {
    /// Creates a device's worker. Clients can connect as soon as this function returns, but are not served until
    /// [`Worker::run`] is called.
    ///
    /// # Errors
    /// Fails if the process is out of file descriptors.
    pub fn new(source: Source, hca: Hca<F>, fabric: N) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        watch(&epoll, fabric.as_fd(), token::FABRIC)?;

        let mut worker = Self {
            hca: fit(hca, &fabric),
            fabric,
            arrived: RxBatch::new(),
            blocked: false,
            listener: None,
            accept_after: None,
            client: None,
            clients: 0,
            gone: MessageStats::default(),
            frames: 0,
            successor: None,
            successor_timeout: SUCCESSOR_TIMEOUT,
            epoll,
            busy_poll: BusyPoll::new(Duration::ZERO),
            coalescing: Coalescing::new(Duration::ZERO),
            budget: ControlBudget::new(thread::available_parallelism().map_or(1, usize::from)),
            reserve: Reserve::new(),
            record: None,
            maker: None,
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

    /// Enables busy-polling: while sleeps are short, the worker polls for up to `limit` before it blocks. By default,
    /// the worker never busy-polls.
    #[must_use]
    pub fn with_busy_poll(self, limit: Duration) -> Self {
        Self { busy_poll: BusyPoll::new(limit), ..self }
    }

    /// Enables coalescing: the worker sleeps for `sleep` without being woken, as long as this raises throughput. By
    /// default, every message wakes the worker.
    #[must_use]
    pub fn with_coalescing(self, sleep: Duration) -> Self {
        Self { coalescing: Coalescing::new(sleep), ..self }
    }

    /// Records all inputs and outputs of the device.
    #[must_use]
    pub fn with_record(mut self, record: Recorder) -> Self {
        self.hca.set_record_sink(record.sink());
        Self { record: Some(record), ..self }
    }

    /// Sets the function that re-creates the device. A recording begins with a new device, so starting one at run time
    /// requires this function.
    #[must_use]
    pub fn with_maker(self, maker: Maker<F>) -> Self {
        Self { maker: Some(maker), ..self }
    }

    /// Serves until a shutdown is requested through `mailbox` or until an inherited client disconnects.
    ///
    /// # Errors
    /// Fails if the fabric's socket or `epoll` becomes unusable. Clients and peers cannot cause this.
    pub fn run(mut self, mailbox: &mut Mailbox) -> io::Result<Ended> {
        watch(&self.epoll, &*mailbox, token::MAILBOX)?;
        // By default, the kernel may delay timer wake-ups by 50 us. If this call fails, wake-ups are merely late.
        let _ = set_current_timer_slack(NonZeroU64::new(1));
        let mut ready = Ready::new();
        let mut work_left = false;
        loop {
            mailbox.set_connected(self.client.is_some());
            let is_paused = self.budget.paused_until().is_some();
            let messages_left = !is_paused && self.client.as_ref().is_some_and(|client| client.more);
            self.wait(&mut ready, work_left || messages_left)?;
            self.hca.set_now(now());

            let is_ready = |token| ready.has(token);
            if is_ready(token::MAILBOX) {
                self.answer_calls(mailbox);
                // Answering the calls may have consumed the wake-up of a shutdown request. Check for a request now.
                if mailbox.is_stopped() {
                    self.hca.disconnect();
                    self.hca.flush();
                    return Ok(Ended::Shutdown);
                }
            }
            let start = now();
            let moved = self.data_moved();
            if is_ready(token::CLIENT) || messages_left {
                self.serve()?;
            }
            if is_ready(token::LISTENER) {
                self.accept()?;
            }
            if self.accept_after.is_some_and(|after| after <= now()) {
                self.resume_accepting()?;
            }
            let fabric_is_ready = is_ready(token::FABRIC);
            if fabric_is_ready {
                self.fabric.handle_ready()?;
            }
            if fabric_is_ready || self.fabric.has_frames() {
                // This step is bounded, as a batch has at most a few hundred frames.
                self.fabric.recv(&mut self.arrived)?;
                // A timer started by a packet must run from the packet's arrival, not from the start of the turn.
                self.hca.set_now(now());
                for arrival in self.arrived.iter() {
                    self.frames += 1;
                    self.busy_poll.moved(arrival.len());
                    self.hca.handle_arrival(arrival);
                }
                self.fabric.release(&mut self.arrived);
            }
            self.hca.poll_doorbells();
            if self.hca.next_deadline().is_some_and(|deadline| deadline <= now()) {
                self.hca.handle_deadline();
            }
            let WorkLeft { frames, other } = self.hca.drain();
            self.check_memory()?;
            work_left = (self.send()? == Sent::All && frames) || other;
            // Check again: sending may have copied payload from guest memory, which fails if a page is lost.
            self.check_memory()?;
            self.reply()?;
            let now = now();
            let moved_data = self.data_moved() != moved;
            let was_paused = self.budget.paused_until().is_some();
            self.budget.add_turn(now, now.saturating_since(start), moved_data, processor_time);
            if !was_paused && self.budget.paused_until().is_some() {
                limited!(
                    info,
                    "client delayed: its connections, mappings and commands exceed their share of CPU time"
                );
            }
            self.watch_client()?;
            if self.client.is_none() && self.listener.is_none() {
                self.hca.flush();
                return Ok(Ended::ClientGone);
            }
        }
    }

    /// Answers calls from other threads. Called between turns, while the device's state is consistent.
    fn answer_calls(&mut self, mailbox: &mut Mailbox) {
        for call in mailbox.take() {
            let Self { hca, fabric, client, clients, gone, record, .. } = self;
            // Errors from `send` are ignored, since the caller may have disconnected.
            match call {
                Call::Status(answer) => {
                    let port = if hca.is_link_up() { PortState::Up } else { PortState::Down };
                    let capture = hca.capture().and_then(Capture::path).map(Path::to_owned);
                    let trace = hca.monitor().trace_path().map(Path::to_owned);
                    let port_disabled = hca.is_disabled();
                    let record = record.as_ref().and_then(Recorder::path).map(Path::to_owned);
                    let _ = answer.send(Status { port, port_disabled, capture, trace, record });
                }
                Call::List(table, from, answer) => {
                    let _ = answer.send(hca.page(table, from));
                }
                Call::Explain(qpn, answer) => {
                    let _ = answer.send(hca.explain(qpn));
                }
                Call::Counters(answer) => {
                    let mut messages = *gone;
                    if let Some(client) = client {
                        messages += *client.connection.stats();
                    }
                    let _ = answer.send(Counters {
                        frontend: Named::new(F::KEY, &hca.frontend_counters()),
                        engine: *hca.engine_stats(),
                        qps: *hca.qp_states(),
                        port: hca.port_stats().into(),
                        fabric: fabric.stats(),
                        vfio: VfioCounters {
                            clients: *clients,
                            messages,
                            dma_ranges: hca.memory().ranges(),
                            interrupts: *hca.interrupts().stats(),
                        },
                        interface: hca.monitor().into(),
                        log: LogCounters { lines_lost: non_blocking::lines_lost() },
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
                    let _ = answer.send(hca.set_capture(capture.map(|capture| *capture)));
                }
                Call::KeptFrames(answer) => {
                    let _ = answer.send(hca.capture().and_then(Capture::kept));
                }
                Call::KeptRecords(answer) => {
                    let _ = answer.send(hca.monitor().trace_kept());
                }
                Call::SetTrace(trace, answer) => {
                    let _ = answer.send(hca.set_trace(trace.map(|trace| *trace)));
                }
                Call::BeginRecord(record, answer) => {
                    let _ = answer.send(self.begin_record(record));
                }
                Call::EndRecord(answer) => {
                    hca.remove_record_sink();
                    let _ = answer.send(record.take());
                }
                Call::Impair(call) => call.answer(hca),
                Call::Peers(call) => call.answer(hca, fabric),
            }
        }
    }

    /// Re-creates the device and records it from its power-on state. Operator settings are kept, but counters restart
    /// at zero.
    fn begin_record(&mut self, record: Box<Recorder>) -> BeginRecordResult {
        let mut hca = match &self.maker {
            Some(make) if self.client.is_none() => match make() {
                Ok(hca) => hca,
                Err(error) => return Err((record, StartRecordError::NotMade(error.to_string()))),
            },
            _ => return Err((record, StartRecordError::HasClient)),
        };
        hca.set_capture(self.hca.set_capture(None));
        hca.set_trace(self.hca.set_trace(None));
        hca.set_now(now());
        hca.set_record_sink(record.sink());
        hca.copy_settings(&self.hca);
        self.fabric
            .switch()
            .into_iter()
            .flat_map(|switch| switch.configured_macs())
            .for_each(|mac| hca.add_static_neighbour(mac));
        self.hca = fit(hca, &self.fabric);
        Ok(self.record.replace(*record))
    }

    /// Waits for an event on any descriptor. Does not block if work is left or a deadline has passed.
    fn wait(&mut self, ready: &mut Ready, work_left: bool) -> io::Result<()> {
        let retry = self.fabric.retry_after().filter(|_| self.blocked).map(|retry_after| now() + retry_after);
        let deadline = self.hca.next_deadline().into_iter();
        let deadline = deadline.chain(self.accept_after).chain(retry).chain(self.budget.paused_until()).min();
        let until = deadline.into_iter().chain(self.hca.next_poll()).min();
        let at_once = work_left || self.fabric.has_frames() || until.is_some_and(|until| until <= now());
        if at_once {
            return self.poll(ready, Some(Duration::ZERO));
        }
        let has_work = match self.busy_poll.pause(now()) {
            Some(pause) => self.busy_poll(ready, pause, deadline)?,
            None => self.coalesce(ready, until)?,
        };
        if has_work {
            return Ok(());
        }
        self.hca.flush();
        // If frames arrived before wake-ups were enabled, they will not wake the thread, so it must not block.
        if !self.fabric.enable_wakeups() {
            self.fabric.disable_wakeups();
            return self.poll(ready, Some(Duration::ZERO));
        }
        let blocked_since = now();
        self.poll(ready, until.map(|until| until.saturating_since(blocked_since)))?;
        self.fabric.disable_wakeups();
        if until.is_none_or(|until| until > blocked_since) {
            self.busy_poll.slept(now().saturating_since(blocked_since));
        }
        Ok(())
    }

    /// If coalescing raises throughput, sleeps for a while, during which messages accumulate without waking the thread.
    /// Returns whether work is available.
    fn coalesce(&mut self, ready: &mut Ready, until: Option<Instant>) -> io::Result<bool> {
        let blocked_since = now();
        let done = self.hca.engine_stats().messages();
        let Some(sleep) = self.coalescing.sleep(blocked_since, done) else { return Ok(false) };
        let left = until.map_or(sleep, |until| until.saturating_since(blocked_since));
        thread::sleep(sleep.min(left));
        self.poll(ready, Some(Duration::ZERO))?;
        let has_work = !ready.events.is_empty() || self.fabric.has_frames() || self.hca.has_doorbells();
        // If there is work, it may have arrived at the start of the sleep. Then the thread would hardly have slept
        // without coalescing, so record a sleep of length 0.
        self.busy_poll.slept(if has_work { Duration::ZERO } else { sleep });
        Ok(has_work)
    }

    /// Busy-polls for work, including doorbells in mapped pages. Returns whether work was found.
    fn busy_poll(
        &mut self,
        ready: &mut Ready,
        pause: PollWindow,
        deadline: Option<Instant>,
    ) -> io::Result<bool> {
        let PollWindow { limit, mut yields } = pause;
        let start = now();
        let until = deadline.into_iter().chain([start + limit]).min().unwrap_or(start);
        // With an in-memory fabric, most arrivals are visible in memory, so most polls need no system call.
        let period = if self.fabric.is_memory() { DESCRIPTORS_PERIOD } else { Duration::ZERO };
        let mut polled = start;
        let mut time = start;
        ready.events.clear();
        while time < until {
            let mut has_work = self.fabric.has_frames() || self.hca.has_doorbells();
            if !has_work && time >= polled + period {
                self.poll(ready, Some(Duration::ZERO))?;
                has_work = !ready.events.is_empty();
                polled = time;
            }
            if has_work {
                if time > start {
                    self.busy_poll.found();
                }
                return Ok(true);
            }
            let before = now();
            if yields {
                sched_yield();
            } else {
                std::hint::spin_loop();
            }
            time = now();
            yields = yields && self.busy_poll.yielded(time, time.saturating_since(before));
        }
        self.busy_poll.found_nothing();
        Ok(false)
    }

    /// Waits for an event on any descriptor, for at most `limit` if it is set.
    fn poll(&mut self, ready: &mut Ready, limit: Option<Duration>) -> io::Result<()> {
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        ready.events.clear();
        match epoll::wait(&self.epoll, spare_capacity(&mut ready.events), limit.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Sends the outbound batch. While the fabric is full, also watches its descriptor for writability.
    fn send(&mut self) -> io::Result<Sent> {
        let batch = self.hca.outbound();
        let waiting = batch.bytes();
        let sent = if batch.is_empty() { Sent::All } else { self.fabric.send(batch) };
        let sent_bytes = waiting.saturating_sub(batch.bytes());
        self.frames = self.frames.wrapping_add(u64::from(sent_bytes > 0));
        self.busy_poll.moved(sent_bytes);
        let blocked = sent == Sent::Blocked;
        if blocked != self.blocked {
            self.blocked = blocked;
            let interest = match blocked {
                true => epoll::EventFlags::IN | epoll::EventFlags::OUT,
                false => epoll::EventFlags::IN,
            };
            epoll::modify(
                &self.epoll,
                self.fabric.as_fd(),
                epoll::EventData::new_u64(token::FABRIC),
                interest,
            )?;
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

    /// Sends the replies at the end of a turn.
    fn reply(&mut self) -> io::Result<()> {
        let Some(client) = &mut self.client else { return Ok(()) };
        match client.connection.reply() {
            Ok(()) => {
                client.more &= !client.connection.wants_to_send();
                Ok(())
            }
            Err(gone) => self.lose_client(&gone),
        }
    }

    /// Watches the client for the events that its connection needs, unless the control budget has paused the device.
    fn watch_client(&mut self) -> io::Result<()> {
        let is_paused = self.budget.paused_until().is_some();
        match &mut self.client {
            Some(client) => client.watch(&self.epoll, is_paused),
            None => Ok(()),
        }
    }

    /// Returns a number that changes with each message and each frame.
    fn data_moved(&self) -> u64 {
        self.frames.wrapping_add(self.hca.engine_stats().messages())
    }

    /// Disconnects the client if a page of its memory has been lost.
    fn check_memory(&mut self) -> io::Result<()> {
        if self.hca.memory().is_lost() { self.lose_client(&ConnectionError::MemoryLost) } else { Ok(()) }
    }

    fn lose_client(&mut self, gone: &ConnectionError) -> io::Result<()> {
        match gone {
            ConnectionError::Closed => limited!(info, "client disconnected; device reset"),
            ConnectionError::Violation(error) => {
                limited!(warn, %error, "client violated the vfio-user protocol; device reset");
            }
            ConnectionError::MemoryLost => limited!(
                warn,
                "guest memory is not accessible (file truncated, or host out of memory); device reset"
            ),
            ConnectionError::Io(error) => limited!(warn, %error, "client connection failed; device reset"),
        }
        if let Some(client) = &self.client {
            self.gone += *client.connection.stats();
        }
        // Closing the socket removes it from epoll.
        self.client = None;
        self.hca.disconnect();
        self.reserve.refill();
        if self.successor.is_some() { self.resume_accepting() } else { Ok(()) }
    }

    fn accept(&mut self) -> io::Result<()> {
        let Some(listener) = &self.listener else { return Ok(()) };
        match listener.accept() {
            Ok(None) => Ok(()),
            // The current client may be about to disconnect; see `SUCCESSOR_TIMEOUT`.
            Ok(Some(stream)) if self.client.is_some() => {
                self.successor = Some(stream);
                self.pause_accepting(self.successor_timeout)
            }
            Ok(Some(stream)) => self.adopt(Connection::new(stream)?),
            // A descriptor is now free. The next turn accepts the client, which is still waiting.
            Err(error) if self.reserve.release(&error) => Ok(()),
            Err(error) => {
                limited!(error, %error, "cannot accept connections from VMMs");
                self.pause_accepting(ACCEPT_PAUSE)
            }
        }
    }

    fn pause_accepting(&mut self, pause: Duration) -> io::Result<()> {
        if let Some(listener) = &self.listener {
            epoll::delete(&self.epoll, &**listener)?;
            self.accept_after = Some(now() + pause);
        }
        Ok(())
    }

    /// Resumes accepting clients. Adopts or rejects the waiting client, if any.
    fn resume_accepting(&mut self) -> io::Result<()> {
        self.accept_after = None;
        if let Some(listener) = &self.listener {
            watch(&self.epoll, &**listener, token::LISTENER)?;
        }
        match self.successor.take() {
            Some(_) if self.client.is_some() => {
                limited!(warn, "rejected a client because another client is connected");
                Ok(())
            }
            Some(stream) => self.adopt(Connection::new(stream)?),
            None => Ok(()),
        }
    }

    fn adopt(&mut self, connection: Connection) -> io::Result<()> {
        limited!(info, "client connected");
        self.clients += 1;
        self.client = Some(Client { connection, interest: None, more: false });
        self.watch_client()
    }
}

impl Client {
    /// Watches the client for requests or, if replies are pending, for socket buffer space. A paused client is
    /// deregistered. Otherwise, `epoll` would keep reporting a closed peer, even with no events requested.
    fn watch(&mut self, epoll: &OwnedFd, is_paused: bool) -> io::Result<()> {
        let wanted = match (is_paused, self.connection.wants_to_send()) {
            (true, _) => None,
            (false, true) => Some(epoll::EventFlags::OUT),
            (false, false) => Some(epoll::EventFlags::IN),
        };
        let data = epoll::EventData::new_u64(token::CLIENT);
        match (self.interest, wanted) {
            (None, Some(flags)) => epoll::add(epoll, &self.connection, data, flags)?,
            (Some(_), None) => epoll::delete(epoll, &self.connection)?,
            (Some(old), Some(flags)) if old != flags => epoll::modify(epoll, &self.connection, data, flags)?,
            _ => {}
        }
        self.interest = wanted;
        Ok(())
    }
}

/// Events from `epoll`, at most one per token.
struct Ready {
    events: Vec<epoll::Event>,
}

impl Ready {
    fn new() -> Self {
        Self { events: Vec::with_capacity(token::COUNT) }
    }

    fn has(&self, token: u64) -> bool {
        self.events.iter().any(|event| event.data.u64() == token)
    }
}

fn watch(epoll: &OwnedFd, source: impl AsFd, token: u64) -> io::Result<()> {
    Ok(epoll::add(epoll, source, epoll::EventData::new_u64(token), epoll::EventFlags::IN)?)
}

/// Adapts a device to its fabric.
fn fit<F: Frontend>(hca: Hca<F>, fabric: &impl Fabric) -> Hca<F> {
    hca.with_icrc_needed(fabric.needs_icrc())
        .with_detached_payload(fabric.takes_detached_payload())
        .with_turn_bytes(fabric.turn_bytes())
}

/// Returns the CPU time used by this thread.
fn processor_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}
