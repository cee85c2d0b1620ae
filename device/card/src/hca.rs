//! One device, without sockets or threads: the front-end, the engine, guest memory, interrupts and the port.
//!
//! The owner passes in inputs (accesses, frames, deadlines) and, at the end of a turn, calls [`Hca::drain`] to obtain
//! the frames to send. All work happens inside these calls, on one thread. The effects of an access are therefore
//! complete when its call returns, and guest memory is not accessed between an unmap and the next call.

/// The parts of an [`Hca`] that a front-end borrows. This is a macro, since a method would borrow the whole [`Hca`],
/// including the front-end itself.
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

/// The parts of an [`Hca`] that the front-end borrows while it acts as the engine's host.
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
mod looped;
mod management;
mod recording;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
mod trace;

use engine::{Completion, Config, Engine, Event, Instant, QpStates, QpStatus, Stats};
use protocol::ids::{MacAddr, Qpn};
use protocol::roce::Offload;
use serde::{Deserialize, Serialize};

use self::doorbells::Doorbells;
use self::frames::Sender;
use self::looped::LoopedFrames;
use self::recording::Outgoing;
use crate::capture::Capture;
use crate::fabric::impair::{Impairments, Rule, TooManyRulesError};
use crate::fabric::{MEMORY_TURN_BYTES, TxBatch};
use crate::frontend::table::{Page, Row, TableContext, TableSpec};
use crate::frontend::{Context, Frontend, HostContext, PortNumber};
use crate::identity::Identity;
use crate::limited;
use crate::log_line;
use crate::management::Management;
use crate::memory::{GuestMemory, Limits};
use crate::net::address::Addresses;
use crate::net::{Link, Port, PortStats};
use crate::record::{Input, RecordSink};
use crate::telemetry::monitor::{IgnoredRow, Monitor};
use crate::telemetry::trace::{Kind, Trace};
use crate::vfio::PciFunction;
use crate::vfio::msix::Interrupts;
use crate::vfio::pci::ConfigSpace;

/// Maximum number of events reported to the front-end at a time. Without this limit, flushing many queues would delay
/// accesses.
const EVENTS_PER_TURN: usize = 4096;

/// Work that remains after a turn and needs no further input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkLeft {
    /// Whether more frames can be built once those in the batch have been sent.
    pub frames: bool,
    /// Whether events or looped-back frames remain to be handled.
    pub other: bool,
}

/// State of one QP or NIC queue for `hcactl explain`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {
    /// Why the QP is waiting. `None` if the QP does not exist.
    pub situation: Option<QpStatus>,
    /// The QP's ignored packets and requests.
    pub ignored: Option<IgnoredRow>,
    /// Lines of text that explain the NIC queue with the same number. NIC queues and QPs share a number space.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<Vec<String>>,
}

/// A device: HCA, NIC or both.
pub struct Hca<F: Frontend> {
    pci: PciFunction,
    frontend: F,
    engine: Engine,
    memory: GuestMemory,
    interrupts: Interrupts,
    config: ConfigSpace,
    port: Port,
    /// Whether the device is also a NIC.
    is_nic: bool,
    /// Management agents of the port, if it is an InfiniBand port.
    management: Option<Management>,
    capture: Option<Capture>,
    /// Rules applied to frames between the port and the fabric.
    impairments: Impairments,
    monitor: Monitor,
    /// Frames for the fabric.
    outbound: TxBatch,
    /// Whether frames need an ICRC because the fabric may corrupt them.
    needs_icrc: bool,
    /// Whether the payload of frames may be detached until they are sent.
    detaches_payload: bool,
    /// Maximum number of frame bytes built in one turn.
    turn_bytes: usize,
    /// The sender that builds the next frames.
    sender: Sender,
    /// Frames that this HCA sent to itself during a turn. They are delivered in the next turn.
    looped: LoopedFrames,
    /// Frames that the port looped back during a turn. They are delivered in the next turn.
    looped_back: Vec<Vec<u8>>,
    now: Instant,
    /// Set while the device's inputs and outputs are recorded or replayed.
    sink: Option<RecordSink>,
    outgoing: Outgoing,
    /// Doorbells that the guest can write without a VM exit, if there are any.
    doorbells: Option<Doorbells>,
}

impl<F: Frontend> Hca<F> {
    /// Creates a device in its power-on state.
    pub fn new(frontend: F, addresses: impl Into<Addresses>, capture: Option<Capture>) -> Self {
        let pci = frontend.pci();
        let kind = frontend.port_kind(PortNumber::ONE);
        let is_nic = kind.is_nic();
        let port = match is_nic {
            true => Port::of_nic(addresses),
            false => Port::new(addresses),
        };
        let own = port.addresses().own;
        let management = kind.node().map(|node| Management::new(own, node));
        let mut hca = Self {
            pci,
            frontend,
            engine: Engine::new(Config::default()),
            memory: GuestMemory::default(),
            interrupts: Interrupts::new(pci.msix.vectors),
            config: ConfigSpace::new(&pci),
            port,
            is_nic,
            management,
            capture,
            impairments: Impairments::default(),
            monitor: Monitor::default(),
            outbound: if is_nic { TxBatch::of_nic() } else { TxBatch::default() },
            needs_icrc: true,
            detaches_payload: false,
            turn_bytes: MEMORY_TURN_BYTES,
            sender: Sender::default(),
            looped: LoopedFrames::default(),
            looped_back: Vec::new(),
            now: Instant::ZERO,
            sink: None,
            outgoing: Outgoing::default(),
            doorbells: None,
        };
        hca.apply_config();
        hca
    }

    /// Sets whether frames need an ICRC; see [`Fabric::needs_icrc`](crate::fabric::Fabric::needs_icrc).
    #[must_use]
    pub fn with_icrc_needed(self, needs_icrc: bool) -> Self {
        Self { needs_icrc, ..self }
    }

    /// Sets whether the payload of frames may be detached; see
    /// [`Fabric::takes_detached_payload`](crate::fabric::Fabric::takes_detached_payload). If so, the frames of
    /// [`Hca::outbound`] must be sent or [settled](TxBatch::settle) before any other method is called.
    #[must_use]
    pub fn with_detached_payload(self, detaches_payload: bool) -> Self {
        Self { detaches_payload, ..self }
    }

    /// Sets the maximum number of frame bytes built in one turn; see
    /// [`Fabric::turn_bytes`](crate::fabric::Fabric::turn_bytes).
    #[must_use]
    pub fn with_turn_bytes(self, turn_bytes: usize) -> Self {
        Self { turn_bytes, ..self }
    }

    /// Sets the current time. It stays the same until the next call.
    pub fn set_now(&mut self, now: Instant) {
        self.now = now;
        self.monitor.set_now(now);
    }

    /// Returns the front-end, and guest memory as the front-end sees it.
    #[cfg(any(test, feature = "testing"))]
    pub const fn frontend_and_memory(&mut self) -> (&mut F, &GuestMemory) {
        (&mut self.frontend, &self.memory)
    }

    /// Returns the time at which [`Hca::handle_deadline`] must be called next. A time in the past means that the call
    /// is due immediately.
    pub fn next_deadline(&self) -> Option<Instant> {
        let others = [
            self.impairments.next_deadline(),
            self.management.as_ref().and_then(Management::next_deadline),
            self.frontend.next_deadline(),
            self.monitor.next_deadline(),
        ];
        self.engine.poll_timeout().into_iter().chain(others.into_iter().flatten()).min()
    }

    /// Handles all expired deadlines.
    pub fn handle_deadline(&mut self) {
        self.step(Input::Deadline);
        self.release_inbound();
        self.release_outbound();
        let now = self.now;
        self.engine.handle_timeout(now, &mut self.frontend.host(host_context!(self)));
        self.report_events();
        self.management_deadline();
        self.monitor.handle_deadline();
        if self.frontend.next_deadline().is_some_and(|deadline| deadline <= now) {
            let cx = &mut context!(self);
            self.frontend.handle_deadline(cx);
            self.report_events();
        }
    }

    /// Ends a turn. Completions become visible to the guest, frames are built, and contexts are written back.
    /// Afterwards, [`Hca::outbound`] holds the frames.
    pub fn drain(&mut self) -> WorkLeft {
        self.step(Input::Drain);
        let left = self.end_turn();
        self.record_drained(left);
        left
    }

    fn end_turn(&mut self) -> WorkLeft {
        self.deliver_looped();
        for frame in std::mem::take(&mut self.looped_back) {
            self.handle_inbound(&frame, Offload::None);
        }
        self.serve_management();

        // Report events before sending frames, so that a peer does not learn of anything that the guest cannot see yet.
        let more_events = self.report_events();
        let more_frames = !more_events && self.transmit();
        if !self.is_port_active() {
            self.port.count_lost(self.outbound.len() + self.looped.len() + self.looped_back.len());
            self.outbound.clear();
            self.outgoing.clear();
            self.looped.clear();
            self.looped_back.clear();
        }
        // Building frames may have completed or failed requests. Once software sees the result, it may reuse the
        // request's memory, so copy detached payload first.
        if self.engine.has_events() {
            self.outbound.settle();
        }
        let more_events = self.report_events() || more_events;
        let more_work = self.frontend.end_turn(&mut context!(self));
        let is_looped = !(self.looped.is_empty() && self.looped_back.is_empty());
        WorkLeft { frames: more_frames, other: more_events || more_work || is_looped }
    }

    /// Returns the frames to send.
    pub fn outbound(&mut self) -> &mut TxBatch {
        self.outgoing.note_len(&self.outbound);
        &mut self.outbound
    }

    /// Flushes the capture and the trace to their files.
    pub fn flush(&mut self) {
        if let Some(capture) = &mut self.capture {
            capture.flush();
        }
        if let Some(trace) = self.monitor.trace() {
            trace.flush();
        }
    }

    /// Sets or removes the trace and returns the previous one.
    pub fn set_trace(&mut self, trace: Option<Trace>) -> Option<Trace> {
        self.monitor.set_trace(trace)
    }

    /// Limits the memory that a client may map. Must not be called while a client is connected.
    pub fn set_memory_limits(&mut self, limits: Limits) {
        self.memory = GuestMemory::new(limits);
        self.apply_config();
    }

    /// Enables or disables reports of driver violations.
    pub fn set_strict(&mut self, strict: bool) {
        self.monitor.set_strict(strict);
    }

    /// Returns the trace, strict rules and counters of the interface.
    pub fn monitor(&self) -> &Monitor {
        &self.monitor
    }

    /// Sets or removes the capture and returns the previous one.
    pub fn set_capture(&mut self, capture: Option<Capture>) -> Option<Capture> {
        std::mem::replace(&mut self.capture, capture)
    }

    pub fn impairments(&self) -> &Impairments {
        &self.impairments
    }

    /// Adds an impairment; see [`Impairments::add`].
    ///
    /// # Errors
    /// Fails with [`TooManyRulesError`] if the port already has the maximum number of rules.
    pub fn impair(&mut self, rule: Rule) -> Result<u32, TooManyRulesError> {
        if self.sink.is_some() {
            // Serialising cannot fail, since the rule was parsed from JSON.
            let entry = serde_json::to_string(rule.entry()).unwrap_or_default();
            self.step(Input::Impair(entry.into()));
        }
        self.impairments.add(rule)
    }

    /// Copies the operator's settings (link state and impairments) from `other`, the device that this one replaces. The
    /// impairments' counters start at zero.
    pub fn copy_settings(&mut self, other: &Self) {
        if !other.port.link().plugged {
            self.set_link(false);
        }
        self.clear_impairments(None);
        for rule in other.impairments.rules() {
            // This cannot fail because `other` has the same limit, which its rules did not exceed.
            let _ = self.impair(rule.clone());
        }
    }

    /// Removes impairments; see [`Impairments::clear`].
    pub fn clear_impairments(&mut self, id: Option<u32>) -> bool {
        self.step(Input::Unimpair(id));
        self.impairments.clear(id)
    }

    pub fn capture(&self) -> Option<&Capture> {
        self.capture.as_ref()
    }

    pub fn is_link_up(&self) -> bool {
        self.port.is_up()
    }

    /// Returns whether frames can pass through the port. The link must be up, and on some interfaces, software must
    /// have opened the port.
    fn is_port_active(&self) -> bool {
        self.management.as_ref().map_or(self.port.is_up(), Management::is_active)
    }

    /// Returns whether software has disabled the port. A reset enables the port again.
    pub fn is_disabled(&self) -> bool {
        !self.port.link().enabled
    }

    pub fn mac(&self) -> MacAddr {
        self.port.addresses().own.mac
    }

    /// Adds static neighbour entries that map the IP addresses derived from another host's MAC to that MAC. Has no
    /// effect if the address table contains the MAC.
    pub fn add_static_neighbour(&mut self, mac: MacAddr) {
        self.step(Input::AddNeighbour(mac));
        if let Some(other) = self.by_rule(mac) {
            self.port.add_static_neighbour(&other);
        }
    }

    /// Removes the entries added by [`Hca::add_static_neighbour`].
    pub fn remove_static_neighbour(&mut self, mac: MacAddr) {
        self.step(Input::RemoveNeighbour(mac));
        if let Some(other) = self.by_rule(mac) {
            self.port.remove_static_neighbour(&other);
        }
    }

    /// Returns the addresses derived from a MAC, unless the address table contains the MAC.
    fn by_rule(&self, mac: MacAddr) -> Option<Identity> {
        Identity::of_mac(mac).filter(|_| !self.port.addresses().lists(mac))
    }

    /// Plugs or unplugs the cable and notifies the guest if the link changes. A device reset does not affect the cable.
    pub fn set_link(&mut self, up: bool) {
        self.step(Input::Link { up });
        self.change_link(Link { plugged: up, ..self.port.link() });
    }

    /// Disables or enables the port on behalf of software.
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

    /// Injects a device error; see [`Frontend::fail`].
    pub fn fail(&mut self) {
        self.step(Input::Fail);
        log_line!(info, "injecting a device error at the operator's request");
        let cx = &mut context!(self);
        self.frontend.fail(cx);
    }

    /// Returns a page of a table, starting at row index `from`. The page is empty if the device does not have the
    /// table.
    pub fn page(&self, table: &'static TableSpec, from: u64) -> Page {
        let cx = TableContext {
            engine: &self.engine,
            addresses: self.port.addresses(),
            monitor: &self.monitor,
            from,
        };
        let found = F::TABLES.iter().find(|of| of.spec.name == table.name);
        found.map_or_else(|| Page::empty(table), |table| (table.page)(&self.frontend, &cx))
    }

    /// Like [`Hca::page`], but returns only the rows, as values of type `T`.
    pub fn rows<T: Row>(&self, from: u64) -> Vec<T> {
        self.page(T::TABLE, from).rows.of()
    }

    /// Explains what the QP or NIC queue `qpn` is waiting for. Includes the QP's ignored packets and requests.
    pub fn explain(&self, qpn: Qpn) -> Explanation {
        let ignored = self.monitor.ignored_of(qpn).map(IgnoredRow::from);
        let queue = self.frontend.explain_queue(qpn);
        Explanation { situation: self.engine.explain(self.now, qpn), ignored, queue }
    }

    pub fn frontend_counters(&self) -> F::Counters {
        self.frontend.counters()
    }

    pub fn engine_stats(&self) -> &Stats {
        self.engine.stats()
    }

    /// Returns the number of QPs in each state.
    pub fn qp_states(&self) -> &QpStates {
        self.engine.states()
    }

    pub fn port_stats(&self) -> &PortStats {
        self.port.stats()
    }

    /// Handles the client's disconnection, releasing its memory and eventfds.
    pub fn disconnect(&mut self) {
        self.step(Input::Disconnect);
        self.trace_reset("disconnect");
        self.memory.unmap_all();
        self.interrupts.unwire();
        if let Some(doorbells) = &mut self.doorbells {
            doorbells.unshare();
        }
        self.power_on();
    }

    /// Resets the device to its power-on state, except for the client's memory and interrupt wiring.
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
        // The front-end has just been reset and does not report this link change to the guest.
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

    /// Reports the engine's events to the front-end. Called after every input so that no access finds pending events
    /// from an earlier input. Returns whether more events are left.
    fn report_events(&mut self) -> bool {
        for _ in 0..EVENTS_PER_TURN {
            // Match by reference, since moving the event out of the `Option` would copy it.
            let event = self.engine.poll_event();
            let Some(event) = &event else { return false };
            if let Event::Completion(completion @ Completion { result: Err(_), .. }) = event {
                self.monitor.request_failed(completion);
            }
            let cx = &mut context!(self);
            self.frontend.handle_event(cx, event);
        }
        true
    }

    /// Applies the config space bits that permit DMA and interrupts.
    fn apply_config(&mut self) {
        self.memory.set_blocked(!self.config.bus_master());
        self.interrupts.set_gate(self.config.msix_gate());
    }
}
