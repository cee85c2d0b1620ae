//! The engine: QP lookup, transmit scheduling and deadlines.

use std::collections::VecDeque;
use std::num::NonZeroU32;

use protocol::ids::{MacAddr, Pkey, Qpn};
use protocol::roce::Offload;

use crate::error_qps::ErrorQps;
use crate::pkeys::Pkeys;
use crate::pooled_slots::{PooledSlots, SpareBuffers};
use crate::qp::{Ctx, Qp, Request, Step};
use crate::states::QpStates;
use crate::stats::Stats;
use crate::table::Table;
use crate::timers::Timers;
use crate::{
    Completion, Event, Host, Instant, Modify, QpAttrs, QpSnapshot, QpStatus, Service, State, limits,
};

/// Configuration of an engine.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Number of low bits of the QP number that index the table, at most 24. A packet must match all bits of a QP's
    /// number. Drivers keep a generation count in the high bits, so that late packets for a destroyed QP never reach
    /// its successor.
    pub qp_index_bits: u8,
    /// Maximum number of unacknowledged packets per RC QP. Loss narrows the window temporarily, but not below 8
    /// packets.
    pub window_packets: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self { qp_index_bits: 16, window_packets: 256 }
    }
}

/// One frame produced by [`Engine::poll_transmit`], or one burst of frames produced by [`Engine::poll_burst`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Number of frames appended to the caller's buffer.
    pub frames: u32,
    /// Number of bytes appended for each frame, excluding a detached payload.
    pub len: usize,
    /// Number of packets that the frames carry.
    pub packets: u32,
    /// Total length of the packets in bytes, from the BTH to the ICRC.
    pub octets: u32,
    /// Work left to do before each frame leaves the host; see [`Engine::set_offloads`].
    pub offload: Offload,
    /// Destination MAC address of the frames.
    pub dst_mac: MacAddr,
    /// QP that sent the frames.
    pub qpn: Qpn,
    /// Work request that the first frame belongs to, if it carries request packets.
    pub wr_id: Option<u64>,
    /// Payload that the caller has to insert; see [`Engine::poll_burst`]. `None` if there are several frames.
    pub detached: Option<DetachedPayload>,
}

/// Limit on the frames that one call of [`Engine::poll_burst`] may append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Maximum number of frames.
    pub frames: usize,
    /// Number of bytes after which no further frame is appended. The first frame is always appended, and the last one
    /// may exceed the limit.
    pub bytes: usize,
}

impl Room {
    /// Room for one frame of any length.
    pub const ONE_FRAME: Self = Self { frames: 1, bytes: 0 };
}

/// Detached payload of a frame: instead of containing a copy of the payload, the frame refers to ranges of guest
/// memory, which [`Host::locate`] returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DetachedPayload {
    /// Offset at which the payload belongs, from the start of the bytes that were appended.
    pub at: u16,
    /// Number of ranges that refer to the payload.
    pub ranges: u16,
    /// Length of the payload in bytes.
    pub len: NonZeroU32,
}

/// Work that an engine leaves to the code that moves frames off-host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TxOffloads {
    /// Nothing: every frame is in wire format.
    #[default]
    None,
    /// The ICRC; see [`Offload::Icrc`].
    Icrc,
    /// The ICRC and the division of long payloads into packets; see [`Offload::Segmentation`].
    Segmentation,
}

/// An error from [`Engine::create_qp`] or [`Engine::modify_qp`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpError {
    /// The QP does not exist.
    Unknown,
    /// The table entry is in use by another QP.
    Exists,
}

/// Transport state machines of one HCA.
///
/// Outputs are queued until they are polled. After each call, poll as follows:
///
/// | after | poll |
/// |---|---|
/// | [`modify_qp`], [`notify_send`], [`handle_packet`], [`handle_timeout`] | [`poll_event`] until `None`; further inputs may follow before the round ends |
/// | [`poll_transmit`] that returned a frame | `poll_event` until `None`; then send the frame and call `poll_transmit` again |
/// | `poll_transmit` that returned `None` | `poll_event` and [`poll_dirty`] until `None`, then [`poll_timeout`] |
/// | [`create_qp`], [`destroy_qp`], [`reset`], [`set_pkeys`] | nothing, since these produce no events or frames |
///
/// The owner drives the engine in rounds and ends each round by calling `poll_transmit` until it returns `None`. To be
/// fair to other devices, the owner can stop early and begin the next round immediately. Events come before frames, so
/// that a peer never receives an ACK before local software can see that the data has arrived. Poll events after every
/// input, because nothing limits the number of events that packets produce. Only flushing and deadline handling pause
/// when many events are queued. `poll_dirty` comes last, so that the PSNs of the sent frames are written back.
///
/// [`modify_qp`]: Self::modify_qp
/// [`notify_send`]: Self::notify_send
/// [`handle_packet`]: Self::handle_packet
/// [`handle_timeout`]: Self::handle_timeout
/// [`poll_event`]: Self::poll_event
/// [`poll_transmit`]: Self::poll_transmit
/// [`poll_dirty`]: Self::poll_dirty
/// [`poll_timeout`]: Self::poll_timeout
/// [`create_qp`]: Self::create_qp
/// [`destroy_qp`]: Self::destroy_qp
/// [`reset`]: Self::reset
/// [`set_pkeys`]: Self::set_pkeys
///
/// ```
/// use engine::{Engine, Event, Host, Instant};
/// use protocol::ids::Qpn;
/// use protocol::roce::RoceFrame;
///
/// /// Receives the outputs of an engine.
/// trait Outputs {
///     fn report(&mut self, event: Event);
///     fn send(&mut self, frame: &[u8]);
///     fn write_back(&mut self, engine: &Engine, qpn: Qpn);
/// }
///
/// /// Handles an incoming frame.
/// fn receive(engine: &mut Engine, host: &mut impl Host, to: &mut impl Outputs, now: Instant, frame: &[u8]) {
///     if let Ok(RoceFrame { encap, packet }) = RoceFrame::parse(frame) {
///         engine.handle_packet(now, &encap, &packet.convert(), host);
///     }
///     report(engine, to);
/// }
///
/// /// Runs at the time returned by `drain`.
/// fn wake(engine: &mut Engine, host: &mut impl Host, to: &mut impl Outputs, now: Instant) {
///     engine.handle_timeout(now, host);
///     report(engine, to);
/// }
///
/// fn report(engine: &mut Engine, to: &mut impl Outputs) {
///     while let Some(event) = engine.poll_event() {
///         to.report(event);
///     }
/// }
///
/// /// Ends a round. Returns the time at which the next round begins if no input arrives earlier. A time in the past
/// /// means that it begins immediately.
/// fn drain(
///     engine: &mut Engine,
///     host: &mut impl Host,
///     to: &mut impl Outputs,
///     now: Instant,
/// ) -> Option<Instant> {
///     let mut frame = Vec::new();
///     while engine.poll_transmit(now, host, &mut frame).is_some() {
///         // Sending can produce events, for example if a gather fails.
///         report(engine, to);
///         to.send(&frame);
///         frame.clear();
///     }
///     report(engine, to);
///     while let Some(qpn) = engine.poll_dirty() {
///         to.write_back(engine, qpn);
///     }
///     engine.poll_timeout()
/// }
/// ```
pub struct Engine {
    config: Config,
    table: Table,
    pkeys: Pkeys,
    /// The QP that serves as QP0 on the wire.
    smi: Option<Qpn>,
    /// The QP that serves as QP1 on the wire.
    gsi: Option<Qpn>,
    /// QPs that may have something to send, in turn order. The front QP has the current turn.
    ready: VecDeque<u32>,
    /// Number of packets that the front QP can still send in its turn; 0 before the turn starts.
    turn_left: u32,
    /// Set if `poll_transmit` returned before all work was done and must be called again.
    unfinished: bool,
    timers: Timers,
    /// QPs in ERR, whose receive queues are polled periodically.
    in_error: ErrorQps,
    error_poll_at: Option<Instant>,
    events: VecDeque<Event>,
    dirty: VecDeque<u32>,
    pub(crate) stats: Stats,
    states: QpStates,
    pooled: PooledSlots,
    spares: SpareBuffers<Request>,
    offloads: TxOffloads,
}

impl Engine {
    /// Creates an engine without QPs.
    pub fn new(config: Config) -> Self {
        Self {
            config,
            table: Table::new(config.qp_index_bits),
            pkeys: Pkeys::default(),
            smi: None,
            gsi: None,
            ready: VecDeque::new(),
            turn_left: 0,
            unfinished: false,
            timers: Timers::default(),
            in_error: ErrorQps::default(),
            error_poll_at: None,
            events: VecDeque::new(),
            dirty: VecDeque::new(),
            stats: Stats::default(),
            states: QpStates::default(),
            pooled: PooledSlots::default(),
            spares: SpareBuffers::default(),
            offloads: TxOffloads::default(),
        }
    }

    /// Discards all QPs, queued events, deadlines and P_Keys without reporting anything, and applies a new
    /// configuration (INIT_HCA, reset). Counters are not reset.
    pub fn reset(&mut self, config: Config) {
        *self = Self { stats: self.stats, offloads: self.offloads, ..Self::new(config) };
    }

    /// Replaces the P_Key table for all QPs. Initially, the table holds only the default partition. An entry whose low
    /// 15 bits are zero is invalid and matches no packet.
    pub fn set_pkeys(&mut self, entries: &[Pkey]) {
        self.pkeys.set(entries);
    }

    /// Declares which QP is QP0 on the wire, if any. The QP need not exist yet.
    pub fn set_smi(&mut self, qpn: Option<Qpn>) {
        self.smi = qpn;
    }

    /// Returns the QP that serves as QP0 on the wire, if any.
    pub fn smi(&self) -> Option<Qpn> {
        self.smi
    }

    /// Returns the QP that serves as QP1 on the wire, if any.
    pub fn gsi(&self) -> Option<Qpn> {
        self.gsi
    }

    /// Declares which QP is QP1 on the wire, if any. The QP need not exist yet.
    pub fn set_gsi(&mut self, qpn: Option<Qpn>) {
        self.gsi = qpn;
    }

    /// Creates a QP in RESET.
    ///
    /// # Errors
    /// [`QpError::Exists`] if the table entry is in use.
    pub fn create_qp(&mut self, qpn: Qpn, attrs: QpAttrs) -> Result<(), QpError> {
        let qp = Qp::new(qpn, attrs, self.config.window_packets);
        let state = qp.state();
        if !self.table.insert(self.table.index(qpn), qp) {
            return Err(QpError::Exists);
        }
        self.states.enter(state);
        Ok(())
    }

    /// Destroys a QP and discards its timers and events. Its requests do not complete.
    pub fn destroy_qp(&mut self, qpn: Qpn) {
        let Some(index) = self.find(qpn) else { return };
        let Some(mut qp) = self.table.remove(index) else { return };
        self.states.leave(qp.state());
        self.timers.cancel(index, &mut qp.registered);
        self.pooled.update(qp.pooled_slots(), PooledSlots::default());
        if qp.scheduled {
            if self.ready.front() == Some(&index) {
                self.turn_left = 0;
            }
            self.ready.retain(|&other| other != index);
        }
        if qp.dirty {
            self.dirty.retain(|&other| other != index);
        }
        self.in_error.remove(&mut qp.error_turn);
        // Events that have not been polled yet must not be reported for the next QP with the same number.
        self.events.retain(|event| match event {
            Event::Completion(Completion { qpn, .. }) | Event::Async { qpn, .. } => *qpn != qp.qpn(),
        });
    }

    /// Moves a QP to a new state and replaces its attributes. Moving to ERR flushes both queues. Moving to RESET
    /// discards all requests without completing them.
    ///
    /// # Errors
    /// [`QpError::Unknown`] if the QP does not exist.
    pub fn modify_qp(
        &mut self,
        now: Instant,
        qpn: Qpn,
        modify: &Modify,
        host: &mut impl Host,
    ) -> Result<(), QpError> {
        self.input(now, qpn, host, |qp, ctx| qp.modify(ctx, modify)).ok_or(QpError::Unknown)
    }

    /// Returns the current state and sequence numbers of a QP.
    pub fn query_qp(&self, qpn: Qpn) -> Option<QpSnapshot> {
        self.table.get(self.find(qpn)?).map(Qp::snapshot)
    }

    /// Describes what a QP is doing or waiting for.
    pub fn explain(&self, now: Instant, qpn: Qpn) -> Option<QpStatus> {
        self.table.get(self.find(qpn)?).map(|qp| qp.explain(self.pooled, now))
    }

    /// Records that the send queue of `qpn` may have new requests (a doorbell). Outside RTS, the QP's state determines
    /// whether the requests wait, are flushed or are ignored.
    pub fn notify_send(&mut self, now: Instant, qpn: Qpn, host: &mut impl Host) {
        self.input(now, qpn, host, Qp::notify_send);
    }

    /// Handles expired deadlines. Has no effect before the time returned by [`Engine::poll_timeout`].
    pub fn handle_timeout(&mut self, now: Instant, host: &mut impl Host) {
        self.unfinished = false;
        let most = self.event_limit();
        // The next call, which is due immediately, handles deadlines beyond this limit.
        for _ in 0..limits::TIMEOUTS_PER_CALL {
            if self.events.len() >= most {
                return;
            }
            let Some(index) = self.timers.pop_due(now) else { break };
            if let Some(qp) = self.table.get_mut(index) {
                qp.registered = None;
            }
            self.input_at(now, index, host, Qp::handle_timeout);
        }
        if self.error_poll_at.is_some_and(|at| at <= now) {
            self.poll_errors(now, host);
        }
    }

    /// Appends the next frame to `out`, from Ethernet header to ICRC (but see [`Engine::set_offloads`]). Returns `None`
    /// if there is nothing to send until the next input or deadline. QPs take turns of up to 32 packets; the last frame
    /// of a turn may exceed the limit. The call can produce events, for example when a gather fails or a datagram has
    /// been sent.
    pub fn poll_transmit(
        &mut self,
        now: Instant,
        host: &mut impl Host,
        out: &mut Vec<u8>,
    ) -> Option<Transmit> {
        self.poll_burst(now, host, out, None, Room::ONE_FRAME)
    }

    /// Like [`Engine::poll_transmit`], but may append several frames. The frames are those that successive calls with
    /// room for one frame would append, and the engine's state and other outputs are the same as after those calls. If
    /// there are several, they are short messages of one QP, with the same opcode and length. Building them together
    /// saves most of the cost per frame.
    ///
    /// If `ranges` is given, the payload of a single frame may be detached. The ranges that refer to it are appended to
    /// `ranges`. The caller must then insert the payload before the guest can see any later completion, and before any
    /// later input.
    pub fn poll_burst<H: Host>(
        &mut self,
        now: Instant,
        host: &mut H,
        out: &mut Vec<u8>,
        mut ranges: Option<&mut Vec<H::Range>>,
        room: Room,
    ) -> Option<Transmit> {
        let mut idle_steps = 0;
        while let Some(&index) = self.ready.front() {
            let Some(qp) = self.table.get_mut(index) else {
                self.end_turn(false);
                continue;
            };
            if self.turn_left == 0 {
                self.turn_left = limits::PACKETS_PER_QP_TURN;
                qp.begin_turn();
            }
            let (before, from) = (qp.pooled_slots(), qp.state());
            let mut ctx = Ctx {
                now,
                host,
                events: &mut self.events,
                stats: &mut self.stats,
                pkeys: &self.pkeys,
                pooled: self.pooled,
                spares: &mut self.spares,
                offloads: self.offloads,
                ranges: ranges.as_deref_mut(),
                room: Room { frames: room.frames.min(self.turn_left as usize), ..room },
            };
            let step = qp.transmit(&mut ctx, out);
            self.pooled.update(before, qp.pooled_slots());
            self.states.change(from, qp.state());
            let deadline = qp.deadline();
            self.timers.schedule(index, &mut qp.registered, deadline);
            if step != Step::Idle {
                push_once(&mut qp.dirty, &mut self.dirty, index);
            }
            if qp.state() == State::Err {
                watch_error_qp(qp, &mut self.in_error, &mut self.error_poll_at, index, now);
            }
            match step {
                Step::Frame(frame) => {
                    let qpn = qp.qpn();
                    let more = qp.has_work();
                    self.turn_left = self.turn_left.saturating_sub(frame.emitted.packets);
                    if self.turn_left == 0 || !more {
                        self.end_turn(more);
                    }
                    return Some(Transmit {
                        frames: frame.emitted.frames,
                        len: frame.emitted.len,
                        packets: frame.emitted.packets,
                        octets: frame.emitted.octets,
                        offload: frame.emitted.offload,
                        dst_mac: frame.dst_mac,
                        qpn,
                        wr_id: frame.wr_id,
                        detached: frame.emitted.detached,
                    });
                }
                Step::Again => {
                    self.end_turn(true);
                    idle_steps += 1;
                    if idle_steps == limits::IDLE_STEPS_PER_POLL {
                        self.unfinished = true;
                        return None;
                    }
                }
                Step::Idle => self.end_turn(false),
            }
        }
        None
    }

    /// Selects the work that the engine leaves to the code that moves frames off-host.
    pub fn set_offloads(&mut self, offloads: TxOffloads) {
        self.offloads = offloads;
    }

    /// Returns whether [`Engine::poll_event`] would return an event.
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Returns the next event, in order of occurrence.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Returns the next QP whose state or PSNs may have changed since it was last returned.
    pub fn poll_dirty(&mut self) -> Option<Qpn> {
        while let Some(index) = self.dirty.pop_front() {
            if let Some(qp) = self.table.get_mut(index) {
                qp.dirty = false;
                return Some(qp.qpn());
            }
        }
        None
    }

    /// Returns the time at which [`Engine::handle_timeout`] must be called next, which can be before the next deadline.
    /// If the time is in the past, call it immediately.
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.unfinished {
            return Some(Instant::ZERO);
        }
        self.timers.next().into_iter().chain(self.error_poll_at).min()
    }

    /// Returns the counters of this engine.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Returns the number of QPs in each state.
    pub fn states(&self) -> &QpStates {
        &self.states
    }

    /// Returns the number of slots that all QPs have taken from the shared pools.
    pub fn pooled_slots(&self) -> PooledSlots {
        self.pooled
    }

    pub(crate) fn service_of(&self, qpn: Qpn) -> Option<Service> {
        self.table.get(self.find(qpn)?).map(Qp::service)
    }

    /// Returns the table index of QP `qpn`.
    fn find(&self, qpn: Qpn) -> Option<u32> {
        let index = self.table.index(qpn);
        (self.table.get(index)?.qpn() == qpn).then_some(index)
    }

    /// Returns the table index of QP `qpn` if that QP accepts packets addressed to `to`. The two numbers can differ:
    /// QP0 and QP1 have different numbers internally, and a QP can have an alias.
    pub(crate) fn destination(&self, qpn: Qpn, to: Qpn) -> Option<u32> {
        let index = self.table.index(qpn);
        self.table.get(index)?.has_wire_number(to).then_some(index)
    }

    pub(crate) fn input<H: Host>(
        &mut self,
        now: Instant,
        qpn: Qpn,
        host: &mut H,
        act: impl FnOnce(&mut Qp, &mut Ctx<'_, H>),
    ) -> Option<()> {
        self.input_at(now, self.find(qpn)?, host, act)
    }

    /// Passes an input to a QP, then updates the engine's counts and lists and the QP's deadline.
    pub(crate) fn input_at<H: Host>(
        &mut self,
        now: Instant,
        index: u32,
        host: &mut H,
        act: impl FnOnce(&mut Qp, &mut Ctx<'_, H>),
    ) -> Option<()> {
        let qp = self.table.get_mut(index)?;
        let (before, from) = (qp.pooled_slots(), qp.state());
        let mut ctx = Ctx {
            now,
            host,
            events: &mut self.events,
            stats: &mut self.stats,
            pkeys: &self.pkeys,
            pooled: self.pooled,
            spares: &mut self.spares,
            offloads: self.offloads,
            ranges: None,
            room: Room::ONE_FRAME,
        };
        act(qp, &mut ctx);
        self.pooled.update(before, qp.pooled_slots());
        self.states.change(from, qp.state());
        push_once(&mut qp.dirty, &mut self.dirty, index);
        if qp.has_work() {
            push_once(&mut qp.scheduled, &mut self.ready, index);
        }
        let deadline = qp.deadline();
        self.timers.schedule(index, &mut qp.registered, deadline);
        if qp.state() == State::Err {
            watch_error_qp(qp, &mut self.in_error, &mut self.error_poll_at, index, now);
        }
        Some(())
    }

    fn end_turn(&mut self, again: bool) {
        self.turn_left = 0;
        let Some(index) = self.ready.pop_front() else { return };
        if again {
            self.ready.push_back(index);
        } else if let Some(qp) = self.table.get_mut(index) {
            qp.scheduled = false;
        }
    }

    /// Returns the event queue length at which the current call stops.
    fn event_limit(&self) -> usize {
        limits::EVENT_BACKLOG.min(self.events.len() + limits::EVENTS_PER_CALL)
    }

    fn poll_errors(&mut self, now: Instant, host: &mut impl Host) {
        let most = self.event_limit();
        for _ in 0..self.in_error.len().min(limits::ERROR_POLLS_PER_PERIOD) {
            if self.events.len() >= most {
                break;
            }
            let Some(index) = self.in_error.pop_front() else { break };
            let Some(qp) = self.table.get_mut(index) else { continue };
            qp.error_turn = None;
            if qp.state() == State::Err {
                // `input_at` appends the QP to the list again if it is still in ERR.
                self.input_at(now, index, host, Qp::poll_error);
            }
        }
        self.error_poll_at = (!self.in_error.is_empty()).then(|| now + limits::ERROR_POLL_PERIOD);
    }
}

/// Appends a QP to a list and sets `listed`, unless the QP is already in the list.
fn push_once(listed: &mut bool, list: &mut VecDeque<u32>, index: u32) {
    if !*listed {
        *listed = true;
        list.push_back(index);
    }
}

fn watch_error_qp(qp: &mut Qp, list: &mut ErrorQps, poll_at: &mut Option<Instant>, index: u32, now: Instant) {
    if !qp.polls_receives() {
        return;
    }
    list.push_back(index, &mut qp.error_turn);
    poll_at.get_or_insert(now + limits::ERROR_POLL_PERIOD);
}
