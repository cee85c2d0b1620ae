//! The engine: QPs by number, who is next to transmit, whose deadline is next.

use std::collections::VecDeque;

use protocol::ids::{MacAddr, Pkey, Qpn};
use protocol::roce::IcrcField;

use crate::held::Held;
use crate::pkeys::Pkeys;
use crate::qp::{Ctx, Qp, Step};
use crate::states::QpStates;
use crate::stats::Stats;
use crate::table::Table;
use crate::timers::Timers;
use crate::{
    Completion, Event, Host, Instant, Modify, QpAttrs, QpSnapshot, Service, Situation, State, limits,
};

/// What an engine is told at its creation.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Low bits of a QP number that index the table, at most 24. A QP is found by its whole number all the same: drivers
    /// count generations in the higher bits, so that nothing that is late meets the successor of a QP.
    pub qp_index_bits: u8,
    /// Packets an RC QP may have unacknowledged. Loss narrows it for a while, down to 8.
    pub window_packets: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self { qp_index_bits: 16, window_packets: 256 }
    }
}

/// One frame handed out by [`Engine::poll_transmit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Bytes appended to the caller's buffer.
    pub len: usize,
    /// Ethernet destination, as in the frame.
    pub dst_mac: MacAddr,
    /// Local QP.
    pub qpn: Qpn,
    /// Work request the packet belongs to, if it is a request.
    pub wr_id: Option<u64>,
}

/// Why a QP could not be created or modified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpError {
    /// No such QP.
    Unknown,
    /// The table already has a QP at this index.
    Exists,
}

/// Transport state machines of one HCA.
///
/// What an input brings about waits until it is polled. Which polls are due after which call:
///
/// | after | poll |
/// |---|---|
/// | [`modify_qp`], [`ring`], [`handle_packet`], [`handle_timeout`] | [`poll_event`] until `None`; the turn is to end |
/// | [`poll_transmit`] that gave a frame | `poll_event` until `None` before it leaves; `poll_transmit` again |
/// | `poll_transmit` that gave none | `poll_event` and [`poll_dirty`] until `None`, [`poll_timeout`] |
/// | [`create_qp`], [`destroy_qp`], [`reset`], [`set_pkeys`] | nothing: they bring about no event and no frame |
///
/// To end a turn is to call `poll_transmit` until it gives none, or as often as is fair to others; then the next turn
/// comes at once. Events come before frames, because a peer must not learn of what software cannot see yet: that its
/// data are there, or that they were asked for. They are polled after every input: packets make more of them however many
/// wait, only flushes and deadlines do not. `poll_dirty` comes last, so that the PSNs of the frames are written back with
/// them.
///
/// [`modify_qp`]: Self::modify_qp
/// [`ring`]: Self::ring
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
/// /// What an engine's outputs go to.
/// trait Surroundings {
///     fn report(&mut self, event: Event);
///     fn send(&mut self, frame: &[u8]);
///     fn write_back(&mut self, engine: &Engine, qpn: Qpn);
/// }
///
/// /// A frame arrived.
/// fn receive(engine: &mut Engine, host: &mut impl Host, to: &mut impl Surroundings, now: Instant, frame: &[u8]) {
///     if let Ok(RoceFrame { encap, packet }) = RoceFrame::parse(frame) {
///         engine.handle_packet(now, &encap, &packet, host);
///     }
///     report(engine, to);
/// }
///
/// /// The instant that `drain` returned has come.
/// fn wake(engine: &mut Engine, host: &mut impl Host, to: &mut impl Surroundings, now: Instant) {
///     engine.handle_timeout(now, host);
///     report(engine, to);
/// }
///
/// fn report(engine: &mut Engine, to: &mut impl Surroundings) {
///     while let Some(event) = engine.poll_event() {
///         to.report(event);
///     }
/// }
///
/// /// Ends a turn. Returns when the next is wanted though nothing happens: at once if that is past.
/// fn drain(
///     engine: &mut Engine,
///     host: &mut impl Host,
///     to: &mut impl Surroundings,
///     now: Instant,
/// ) -> Option<Instant> {
///     let mut frame = Vec::new();
///     while engine.poll_transmit(now, host, &mut frame).is_some() {
///         // Gathering may have failed, a datagram may be done.
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
    /// The QPs that others know as 0 and 1.
    smi: Option<Qpn>,
    gsi: Option<Qpn>,
    /// QPs that may have something to send; the front one has its turn.
    ready: VecDeque<u32>,
    /// Frames the front QP may still send in its turn; 0 before it began.
    turn_left: u32,
    /// Work without frames was left behind by `poll_transmit`: it wants to be called again.
    unfinished: bool,
    timers: Timers,
    /// QPs in ERR, whose receive queues are looked at from time to time.
    in_error: VecDeque<u32>,
    error_poll_at: Option<Instant>,
    events: VecDeque<Event>,
    dirty: VecDeque<u32>,
    pub(crate) stats: Stats,
    states: QpStates,
    held: Held,
    icrc: IcrcField,
}

impl Engine {
    /// An engine without QPs.
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
            in_error: VecDeque::new(),
            error_poll_at: None,
            events: VecDeque::new(),
            dirty: VecDeque::new(),
            stats: Stats::default(),
            states: QpStates::default(),
            held: Held::default(),
            icrc: IcrcField::default(),
        }
    }

    /// Forgets all QPs, queued events, deadlines and partitions, silently, and takes a new configuration (INIT_HCA,
    /// reset). Counters go on.
    pub fn reset(&mut self, config: Config) {
        *self = Self { stats: self.stats, icrc: self.icrc, ..Self::new(config) };
    }

    /// Replaces the P_Key table, for all QPs at once. Before the first call it has one entry, the default partition. An
    /// entry whose low 15 bits are zero is invalid: its QPs talk to nobody.
    pub fn set_pkeys(&mut self, entries: &[Pkey]) {
        self.pkeys.set(entries);
    }

    /// Declares which QP others know as QP0, if any. It may be created later.
    pub fn set_smi(&mut self, qpn: Option<Qpn>) {
        self.smi = qpn;
    }

    /// The QP that others know as QP0.
    pub fn smi(&self) -> Option<Qpn> {
        self.smi
    }

    /// The QP that others know as QP1.
    pub fn gsi(&self) -> Option<Qpn> {
        self.gsi
    }

    /// Declares which QP others know as QP1, if any. It may be created later.
    pub fn set_gsi(&mut self, qpn: Option<Qpn>) {
        self.gsi = qpn;
    }

    /// Creates a QP in RESET state.
    ///
    /// # Errors
    /// [`QpError::Exists`].
    pub fn create_qp(&mut self, qpn: Qpn, attrs: QpAttrs) -> Result<(), QpError> {
        let qp = Qp::new(qpn, attrs, self.config.window_packets);
        let state = qp.state();
        if !self.table.insert(self.table.index(qpn), qp) {
            return Err(QpError::Exists);
        }
        self.states.enter(state);
        Ok(())
    }

    /// Removes a QP: no completions, no events, timers dropped.
    pub fn destroy_qp(&mut self, qpn: Qpn) {
        let Some(index) = self.find(qpn) else { return };
        let Some(mut qp) = self.table.remove(index) else { return };
        self.states.leave(qp.state());
        self.timers.forget(index, &mut qp.registered);
        self.held.update(qp.held(), Held::default());
        if qp.scheduled {
            if self.ready.front() == Some(&index) {
                self.turn_left = 0;
            }
            self.ready.retain(|&other| other != index);
        }
        if qp.dirty {
            self.dirty.retain(|&other| other != index);
        }
        if qp.in_error_list {
            self.in_error.retain(|&other| other != index);
        }
        // An owner that has not drained all events of the QP must not report them for the next one of its number.
        self.events.retain(|event| match event {
            Event::Completion(Completion { qpn, .. }) | Event::Async { qpn, .. } => *qpn != qp.qpn(),
        });
    }

    /// Moves a QP to a state and replaces its attributes. To ERR: both queues are flushed. To RESET: everything is
    /// forgotten without completions.
    ///
    /// # Errors
    /// [`QpError::Unknown`].
    pub fn modify_qp(
        &mut self,
        now: Instant,
        qpn: Qpn,
        modify: &Modify,
        host: &mut impl Host,
    ) -> Result<(), QpError> {
        self.input(now, qpn, host, |qp, ctx| qp.modify(ctx, modify)).ok_or(QpError::Unknown)
    }

    /// Live values of a QP.
    pub fn query_qp(&self, qpn: Qpn) -> Option<QpSnapshot> {
        self.table.get(self.find(qpn)?).map(Qp::snapshot)
    }

    /// What a QP waits for.
    pub fn explain(&self, now: Instant, qpn: Qpn) -> Option<Situation> {
        self.table.get(self.find(qpn)?).map(|qp| qp.explain(self.held, now))
    }

    /// The send queue of `qpn` may have new requests. Outside RTS they wait, are flushed or are ignored, as the
    /// state demands.
    pub fn ring(&mut self, now: Instant, qpn: Qpn, host: &mut impl Host) {
        self.input(now, qpn, host, Qp::ring);
    }

    /// The instant of [`Engine::poll_timeout`] may have come. Harmless when early.
    pub fn handle_timeout(&mut self, now: Instant, host: &mut impl Host) {
        self.unfinished = false;
        let most = self.most_events();
        // Bound: what is still due is due at once again.
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

    /// Appends the next frame to `out`, complete from Ethernet header to ICRC (but see [`Engine::set_icrc`]). QPs take
    /// turns of up to 32 frames.
    /// `None`: nothing to send until the next input or deadline. May itself produce events (a gather that fails, a
    /// datagram that is done).
    pub fn poll_transmit(
        &mut self,
        now: Instant,
        host: &mut impl Host,
        out: &mut Vec<u8>,
    ) -> Option<Transmit> {
        let mut idle_steps = 0;
        while let Some(&index) = self.ready.front() {
            let Some(qp) = self.table.get_mut(index) else {
                self.end_turn(false);
                continue;
            };
            if self.turn_left == 0 {
                self.turn_left = limits::FRAMES_PER_QP_TURN;
                qp.begin_turn();
            }
            let (before, from) = (qp.held(), qp.state());
            let mut ctx = Ctx {
                now,
                host,
                events: &mut self.events,
                stats: &mut self.stats,
                pkeys: &self.pkeys,
                held: self.held,
                icrc: self.icrc,
            };
            let step = qp.transmit(&mut ctx, out);
            self.held.update(before, qp.held());
            self.states.change(from, qp.state());
            let deadline = qp.deadline();
            self.timers.want(index, &mut qp.registered, deadline);
            if step != Step::Idle {
                note(&mut qp.dirty, &mut self.dirty, index);
            }
            if qp.state() == State::Err {
                watch_error(qp, &mut self.in_error, &mut self.error_poll_at, index, now);
            }
            match step {
                Step::Frame(frame) => {
                    let qpn = qp.qpn();
                    let more = qp.wants_turn();
                    self.turn_left -= 1;
                    if self.turn_left == 0 || !more {
                        self.end_turn(more);
                    }
                    return Some(Transmit {
                        len: frame.len,
                        dst_mac: frame.dst_mac,
                        qpn,
                        wr_id: frame.wr_id,
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

    /// Whether frames get their ICRC from now on, as they do at first, or from who takes them out of memory.
    pub fn set_icrc(&mut self, field: IcrcField) {
        self.icrc = field;
    }

    /// The next event, in the order things happened.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The next QP whose state or PSNs may have changed since it was last returned here.
    pub fn poll_dirty(&mut self) -> Option<Qpn> {
        while let Some(index) = self.dirty.pop_front() {
            if let Some(qp) = self.table.get_mut(index) {
                qp.dirty = false;
                return Some(qp.qpn());
            }
        }
        None
    }

    /// When [`Engine::handle_timeout`] is wanted next. May be earlier than anything is really due; an instant in the
    /// past asks for a call at once.
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.unfinished {
            return Some(Instant::ZERO);
        }
        self.timers.next().into_iter().chain(self.error_poll_at).min()
    }

    /// Counters.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Queue pairs by state.
    pub fn states(&self) -> &QpStates {
        &self.states
    }

    /// Slots that QPs hold beyond what each may always have.
    #[cfg(feature = "sim")]
    pub(crate) fn held(&self) -> Held {
        self.held
    }

    pub(crate) fn service_of(&self, qpn: Qpn) -> Option<Service> {
        self.table.get(self.find(qpn)?).map(Qp::service)
    }

    /// Place in the table of the QP with this whole number.
    fn find(&self, qpn: Qpn) -> Option<u32> {
        let index = self.table.index(qpn);
        (self.table.get(index)?.qpn() == qpn).then_some(index)
    }

    /// Place in the table of the QP that packets for `to` are for, which has the low bits of `qpn`.
    pub(crate) fn destination(&self, qpn: Qpn, to: Qpn) -> Option<u32> {
        let index = self.table.index(qpn);
        self.table.get(index)?.answers_to(to).then_some(index)
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

    /// Lets a QP act, and takes note of what it wants then.
    pub(crate) fn input_at<H: Host>(
        &mut self,
        now: Instant,
        index: u32,
        host: &mut H,
        act: impl FnOnce(&mut Qp, &mut Ctx<'_, H>),
    ) -> Option<()> {
        let qp = self.table.get_mut(index)?;
        let (before, from) = (qp.held(), qp.state());
        let mut ctx = Ctx {
            now,
            host,
            events: &mut self.events,
            stats: &mut self.stats,
            pkeys: &self.pkeys,
            held: self.held,
            icrc: self.icrc,
        };
        act(qp, &mut ctx);
        self.held.update(before, qp.held());
        self.states.change(from, qp.state());
        note(&mut qp.dirty, &mut self.dirty, index);
        if qp.wants_turn() {
            note(&mut qp.scheduled, &mut self.ready, index);
        }
        let deadline = qp.deadline();
        self.timers.want(index, &mut qp.registered, deadline);
        if qp.state() == State::Err {
            watch_error(qp, &mut self.in_error, &mut self.error_poll_at, index, now);
        }
        Some(())
    }

    /// The front QP's turn is over.
    fn end_turn(&mut self, again: bool) {
        self.turn_left = 0;
        let Some(index) = self.ready.pop_front() else { return };
        if again {
            self.ready.push_back(index);
        } else if let Some(qp) = self.table.get_mut(index) {
            qp.scheduled = false;
        }
    }

    /// Events that wait for the owner when a call has to end.
    fn most_events(&self) -> usize {
        limits::EVENT_BACKLOG.min(self.events.len() + limits::EVENTS_PER_CALL)
    }

    fn poll_errors(&mut self, now: Instant, host: &mut impl Host) {
        let most = self.most_events();
        for _ in 0..self.in_error.len().min(limits::ERROR_POLLS_PER_PERIOD) {
            if self.events.len() >= most {
                break;
            }
            let Some(index) = self.in_error.pop_front() else { break };
            let Some(qp) = self.table.get_mut(index) else { continue };
            qp.in_error_list = false;
            if qp.state() == State::Err {
                // Comes back to the end of the list.
                self.input_at(now, index, host, Qp::poll_error);
            }
        }
        self.error_poll_at = (!self.in_error.is_empty()).then(|| now + limits::ERROR_POLL_PERIOD);
    }
}

/// Puts a QP into a list unless it is there.
fn note(noted: &mut bool, list: &mut VecDeque<u32>, index: u32) {
    if !*noted {
        *noted = true;
        list.push_back(index);
    }
}

fn watch_error(
    qp: &mut Qp,
    list: &mut VecDeque<u32>,
    poll_at: &mut Option<Instant>,
    index: u32,
    now: Instant,
) {
    if !qp.awaits_receives() {
        return;
    }
    note(&mut qp.in_error_list, list, index);
    poll_at.get_or_insert(now + limits::ERROR_POLL_PERIOD);
}
