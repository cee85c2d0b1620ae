//! One device, without sockets and threads: front-end, engine, guest memory, interrupts and port put together.
//!
//! Its owner tells it what happened (an access, a frame, a deadline) and calls [`Hca::drain`] at the end of a turn
//! for the frames that are to leave. Everything happens inside these calls, on one thread. Two promises follow from
//! that without further effort: what an access starts is done when the access is, and nothing touches guest memory
//! between an unmap and the next call.

/// All that a front-end borrows from its [`Hca`]: a macro, since the front-end itself is borrowed beside it.
macro_rules! context {
    ($hca:ident) => {
        Context {
            now: $hca.now,
            config: &$hca.config,
            engine: &mut $hca.engine,
            dma: &$hca.memory,
            port: &mut $hca.port,
            management: $hca.management.as_mut(),
            interrupts: &mut $hca.interrupts,
            monitor: &mut $hca.monitor,
        }
    };
}

/// What the engine's view of a front-end borrows from its [`Hca`].
macro_rules! host_context {
    ($hca:ident) => {
        HostContext {
            now: $hca.now,
            addresses: $hca.port.addresses(),
            dma: &$hca.memory,
            monitor: &mut $hca.monitor,
        }
    };
}

mod accesses;
mod doorbells;
mod frames;
mod management;
mod tape;
#[cfg(test)]
pub(crate) mod tests;
mod trace;

use engine::{Completion, Config, Engine, Event, Instant, QpStates, QpStatus, Stats};
use protocol::ids::{MacAddr, Qpn};
use protocol::roce::IcrcField;
use serde::{Deserialize, Serialize};

use self::doorbells::Doorbells;
use self::frames::Sender;
use self::tape::Outgoing;
use crate::capture::Capture;
use crate::fabric::impair::{Impairments, Rule, TooManyRules};
use crate::fabric::{MEMORY_TURN_BYTES, TxBatch};
use crate::frontend::snapshot::{Page, Rows, Table};
use crate::frontend::{Context, Frontend, FrontendCounters, HostContext};
use crate::identity::Identity;
use crate::limited;
use crate::management::Management;
use crate::memory::{GuestMemory, Limits};
use crate::net::address::Addresses;
use crate::net::{Link, Port, PortStats};
use crate::record::{Input, Tape};
use crate::telemetry::monitor::{Ignored, Monitor};
use crate::telemetry::trace::{Kind, Trace};
use crate::vfio::PciFunction;
use crate::vfio::msix::Interrupts;
use crate::vfio::pci::ConfigSpace;

/// Bound: events the front-end is told in one go, so that a flush of many queues does not hold up an access for long.
const EVENTS_PER_TURN: usize = 4096;

/// Work that a turn did not finish, and that needs no new input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkLeft {
    /// More frames can be made once those made have left.
    pub frames: bool,
    /// Events to report, or frames of this HCA to itself.
    pub other: bool,
}

/// What is to be said of one queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {
    /// What it waits for; `None`: there is none of this number.
    pub situation: Option<QpStatus>,
    /// What was ignored of it.
    pub ignored: Option<Ignored>,
}

/// An HCA.
pub struct Hca<F: Frontend> {
    pci: PciFunction,
    frontend: F,
    engine: Engine,
    memory: GuestMemory,
    interrupts: Interrupts,
    config: ConfigSpace,
    port: Port,
    /// Where the front-end wants it.
    management: Option<Management>,
    capture: Option<Capture>,
    /// What is done to frames between the port and the fabric.
    impairments: Impairments,
    monitor: Monitor,
    /// Frames for the fabric.
    outbound: TxBatch,
    /// What carries them may damage them.
    needs_icrc: bool,
    /// How many bytes of them a turn makes.
    turn_bytes: usize,
    /// Whose turn it is to make frames.
    sender: Sender,
    /// Frames for this HCA itself, for the next turn. Bound: those of one turn.
    looped: Vec<Vec<u8>>,
    /// Frames that the loopback of the port returns, for the next turn. Bound: those of one turn.
    looped_back: Vec<Vec<u8>>,
    now: Instant,
    /// Of a device that is recorded or replayed.
    tape: Option<Tape>,
    outgoing: Outgoing,
    /// Of a device whose guest stores doorbells without an exit.
    doorbells: Option<Doorbells>,
}

impl<F: Frontend> Hca<F> {
    /// An HCA after power-on.
    pub fn new(frontend: F, addresses: impl Into<Addresses>, capture: Option<Capture>) -> Self {
        let pci = frontend.pci();
        let is_nic = F::NIC;
        let port = match is_nic {
            true => Port::of_nic(addresses),
            false => Port::new(addresses),
        };
        let own = port.addresses().own;
        let management = frontend.node().map(|node| Management::new(own, node));
        let mut hca = Self {
            pci,
            frontend,
            engine: Engine::new(Config::default()),
            memory: GuestMemory::default(),
            interrupts: Interrupts::new(pci.msix.vectors),
            config: ConfigSpace::new(&pci),
            port,
            management,
            capture,
            impairments: Impairments::default(),
            monitor: Monitor::default(),
            outbound: if is_nic { TxBatch::of_nic() } else { TxBatch::default() },
            needs_icrc: true,
            turn_bytes: MEMORY_TURN_BYTES,
            sender: Sender::default(),
            looped: Vec::new(),
            looped_back: Vec::new(),
            now: Instant::ZERO,
            tape: None,
            outgoing: Outgoing::default(),
            doorbells: None,
        };
        hca.apply_config();
        hca
    }

    /// An HCA that makes frames without ICRC where nothing needs it: see
    /// [`Fabric::needs_icrc`](crate::fabric::Fabric::needs_icrc).
    #[must_use]
    pub fn with_icrc_needed(self, needs_icrc: bool) -> Self {
        Self { needs_icrc, ..self }
    }

    /// An HCA whose turns make so many bytes of frames: see [`Fabric::turn_bytes`](crate::fabric::Fabric::turn_bytes).
    #[must_use]
    pub fn with_turn_bytes(self, turn_bytes: usize) -> Self {
        Self { turn_bytes, ..self }
    }

    /// What time it is for everything until the next call.
    pub fn set_now(&mut self, now: Instant) {
        self.now = now;
    }

    /// The front-end, and guest memory as it sees it.
    #[cfg(test)]
    pub(crate) const fn frontend_and_memory(&mut self) -> (&mut F, &GuestMemory) {
        (&mut self.frontend, &self.memory)
    }

    /// When [`Hca::handle_deadline`] is wanted next; the past if at once.
    pub fn next_deadline(&self) -> Option<Instant> {
        let others = [
            self.impairments.next_deadline(),
            self.management.as_ref().and_then(Management::next_deadline),
            self.frontend.next_deadline(),
        ];
        self.engine.poll_timeout().into_iter().chain(others.into_iter().flatten()).min()
    }

    /// A deadline may have passed.
    pub fn handle_deadline(&mut self) {
        self.step(Input::Deadline);
        self.release_inbound();
        self.release_outbound();
        let now = self.now;
        self.engine.handle_timeout(now, &mut self.frontend.host(host_context!(self)));
        self.report_events();
        self.management_deadline();
        if self.frontend.next_deadline().is_some_and(|deadline| deadline <= now) {
            let cx = &mut context!(self);
            self.frontend.handle_deadline(cx);
            self.report_events();
        }
    }

    /// Ends a turn: completions become visible to the guest, frames are made, contexts are written back. The frames
    /// are in [`Hca::outbound`].
    pub fn drain(&mut self) -> WorkLeft {
        self.step(Input::Drain);
        let left = self.end_turn();
        self.tell_drained(left);
        left
    }

    fn end_turn(&mut self) -> WorkLeft {
        for frame in std::mem::take(&mut self.looped) {
            self.deliver_looped(&frame);
        }
        for frame in std::mem::take(&mut self.looped_back) {
            self.take_in(&frame, IcrcField::Computed);
        }
        self.serve_management();

        // A peer must not learn of what the guest cannot see yet: events before frames.
        let more_events = self.report_events();
        let more_frames = !more_events && self.transmit();
        if !self.is_port_active() {
            self.port.count_lost(self.outbound.len() + self.looped.len() + self.looped_back.len());
            self.outbound.clear();
            self.outgoing.clear();
            self.looped.clear();
            self.looped_back.clear();
        }
        // Making frames may have completed or failed requests.
        let more_events = self.report_events() || more_events;
        let more_work = self.frontend.end_turn(&mut context!(self));
        let is_looped = !(self.looped.is_empty() && self.looped_back.is_empty());
        WorkLeft { frames: more_frames, other: more_events || more_work || is_looped }
    }

    /// Frames to send.
    pub fn outbound(&mut self) -> &mut TxBatch {
        self.outgoing.lend(&self.outbound);
        &mut self.outbound
    }

    /// Lets captured frames and records of the trace reach their files.
    pub fn flush(&mut self) {
        if let Some(capture) = &mut self.capture {
            capture.flush();
        }
        if let Some(trace) = self.monitor.trace() {
            trace.flush();
        }
    }

    /// Uses another trace from now on, or none, and gives back what was there.
    pub fn set_trace(&mut self, trace: Option<Trace>) -> Option<Trace> {
        self.monitor.set_trace(trace)
    }

    /// Limits what a client may have mapped. Not for a device that has a client.
    pub fn set_memory_limits(&mut self, limits: Limits) {
        self.memory = GuestMemory::new(limits);
        self.apply_config();
    }

    /// Begins or ends to report what the driver does against the interface.
    pub fn set_strict(&mut self, strict: bool) {
        self.monitor.set_strict(strict);
    }

    /// Trace, strict rules and counters of the interface.
    pub fn monitor(&self) -> &Monitor {
        &self.monitor
    }

    /// Uses another capture from now on, or none, and gives back what was there.
    pub fn set_capture(&mut self, capture: Option<Capture>) -> Option<Capture> {
        std::mem::replace(&mut self.capture, capture)
    }

    /// What is done to frames on their way.
    pub fn impairments(&self) -> &Impairments {
        &self.impairments
    }

    /// See [`Impairments::add`].
    ///
    /// # Errors
    /// [`TooManyRules`].
    pub fn impair(&mut self, rule: Rule) -> Result<u32, TooManyRules> {
        if self.tape.is_some() {
            // A rule has come as JSON.
            let entry = serde_json::to_string(rule.entry()).unwrap_or_default();
            self.step(Input::Impair(entry.into()));
        }
        self.impairments.add(rule)
    }

    /// What the operator has done to another, with whose place on the fabric this one is: its cable and its impairments,
    /// which begin anew.
    pub fn take_over(&mut self, other: &Self) {
        if !other.port.link().plugged {
            self.set_link(false);
        }
        self.clear_impairments(None);
        for rule in other.impairments.rules() {
            // As many as the other had.
            let _ = self.impair(rule.clone());
        }
    }

    /// See [`Impairments::clear`].
    pub fn clear_impairments(&mut self, id: Option<u32>) -> bool {
        self.step(Input::Unimpair(id));
        self.impairments.clear(id)
    }

    /// The capture that is running.
    pub fn capture(&self) -> Option<&Capture> {
        self.capture.as_ref()
    }

    /// Whether the link of the port is up.
    pub fn is_link_up(&self) -> bool {
        self.port.is_up()
    }

    /// Whether frames pass the port: its link is up, and software has not closed it.
    fn is_port_active(&self) -> bool {
        self.management.as_ref().map_or(self.port.is_up(), Management::is_active)
    }

    /// Whether software has disabled the port, which ends with the next reset.
    pub fn is_disabled(&self) -> bool {
        !self.port.link().enabled
    }

    /// MAC of the port.
    pub fn mac(&self) -> MacAddr {
        self.port.addresses().own.mac
    }

    /// Another station has this MAC: the addresses that follow from it are nobody else's. Those of the table of addresses are
    /// known from the start.
    pub fn know(&mut self, mac: MacAddr) {
        self.step(Input::Know(mac));
        if let Some(other) = self.by_rule(mac) {
            self.port.know(&other);
        }
    }

    /// A station that [`Hca::know`] was told of is gone.
    pub fn forget(&mut self, mac: MacAddr) {
        self.step(Input::Forget(mac));
        if let Some(other) = self.by_rule(mac) {
            self.port.forget(&other);
        }
    }

    /// Who has a MAC that the table of addresses has not.
    fn by_rule(&self, mac: MacAddr) -> Option<Identity> {
        Identity::of_mac(mac).filter(|_| !self.port.addresses().lists(mac))
    }

    /// Plugs the cable in or pulls it out, and tells the guest if that changes its link. A reset of the device leaves the
    /// cable as it is.
    pub fn set_link(&mut self, up: bool) {
        self.step(Input::Link { up });
        self.change_link(Link { plugged: up, ..self.port.link() });
    }

    /// Disables the port for software, or enables it again.
    fn set_enabled(&mut self, enabled: bool) {
        self.change_link(Link { enabled, ..self.port.link() });
    }

    fn change_link(&mut self, link: Link) {
        let (was_up, was_active) = (self.port.is_up(), self.is_port_active());
        self.port.set_link(link);
        let up = self.port.is_up();
        if up != was_up {
            limited!(info, up, "link state changed");
            let view = self.view();
            if let Some(management) = &mut self.management {
                management.set_link(up, &view);
            }
            if self.is_port_active() != was_active {
                let cx = &mut context!(self);
                self.frontend.link_changed(cx, up);
            }
        }
    }

    /// See [`Frontend::fail`].
    pub fn fail(&mut self) {
        self.step(Input::Fail);
        tracing::info!("operator injected a device error");
        let cx = &mut context!(self);
        self.frontend.fail(cx);
    }

    /// See [`Frontend::snapshot`].
    pub fn snapshot(&self, table: Table, from: u64) -> Page {
        let mut page = self.frontend.snapshot(&self.engine, self.port.addresses(), table, from);
        if let Rows::Qps(rows) = &mut page.rows {
            for row in rows {
                row.ignored = self.monitor.ignored_of(Qpn::new(row.qpn));
            }
        }
        page
    }

    /// What a queue pair waits for, and what was ignored of it.
    pub fn explain(&self, qpn: Qpn) -> Explanation {
        Explanation { situation: self.engine.explain(self.now, qpn), ignored: self.monitor.ignored_of(qpn) }
    }

    /// Counters of the device interface.
    pub fn frontend_counters(&self) -> FrontendCounters {
        self.frontend.counters()
    }

    /// Counters of the transport.
    pub fn engine_stats(&self) -> &Stats {
        self.engine.stats()
    }

    /// Queue pairs by state.
    pub fn qp_states(&self) -> &QpStates {
        self.engine.states()
    }

    /// Counters of the port.
    pub fn port_stats(&self) -> &PortStats {
        self.port.stats()
    }

    /// The client is gone, and with it its memory and eventfds.
    pub fn disconnect(&mut self) {
        self.step(Input::Disconnect);
        self.trace_reset("disconnect");
        self.memory.unmap_all();
        self.interrupts.unwire();
        if let Some(doorbells) = &mut self.doorbells {
            doorbells.take_back();
        }
        self.power_on();
    }

    /// All but the client's memory and wiring as after power-on.
    fn power_on(&mut self) {
        self.engine.reset(Config::default());
        self.monitor.forget_qps();
        self.frontend.reset();
        if let Some(management) = &mut self.management {
            management.reset();
        }
        self.outbound.clear();
        self.outgoing.clear();
        self.looped.clear();
        self.looped_back.clear();
        self.port.reset();
        // Closed by now, so that nobody is told.
        self.set_enabled(true);
        self.config.reset();
        self.interrupts.reset();
        self.apply_config();
    }

    fn trace_reset(&mut self, cause: &str) {
        if let Some(trace) = self.monitor.trace() {
            trace.record(Kind::Reset, cause, |_| {});
        }
    }

    /// Tells the front-end what happened. Done after every input, so that an access never meets the events of an
    /// earlier one. Whether there are more.
    fn report_events(&mut self) -> bool {
        for _ in 0..EVENTS_PER_TURN {
            let Some(event) = self.engine.poll_event() else { return false };
            if let Event::Completion(completion @ Completion { result: Err(_), .. }) = &event {
                self.monitor.request_failed(completion);
            }
            let cx = &mut context!(self);
            self.frontend.handle_event(cx, event);
        }
        true
    }

    /// Makes config space's permissions hold.
    fn apply_config(&mut self) {
        self.memory.set_blocked(!self.config.bus_master());
        self.interrupts.set_gate(self.config.msix_gate());
    }
}
