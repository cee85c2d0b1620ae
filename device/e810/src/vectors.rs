//! Interrupt routing and moderation. Each cause is routed to a vector, which is signalled only while the driver has
//! enabled it.
//!
//! Each vector has one pending bit, and signalling a vector disables it (auto-mask). After handling all causes, the
//! driver enables the vector again. This way, no cause is lost or signalled twice, even if the driver or the VMM masks
//! the vector for a long time.
//!
//! Moderation (ITR): each route selects one of the vector's three intervals. An interval is the minimum time between
//! two signals. If several causes are pending, the shortest of their intervals applies, but never less than the
//! vector's rate limit. The vector is signalled immediately if that much time has passed since the last signal.
//!
//! Transmit completions are rarely urgent, and the reply to a frame often follows soon. Completions are coalesced until
//! four descriptors have completed, another cause for the same vector fires, or a timeout expires. A frame and its
//! reply then trigger one interrupt instead of two.
//!
//! # Spec
//! E810 interface, section 3.

use std::time::Duration;

use card::frontend::Context;
use engine::Instant;
use protocol::hca::e810::interrupt::{
    DynCtl, INTERVAL_UNIT_US, Interval, NO_INTERVAL, OtherCauses, RATE_UNIT_US, RateLimit, Route,
};
use protocol::hca::e810::regs::Register;

use super::limits::MAX_CEQS;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// An event was written to the admin receive queue.
    AdminEvent,
    /// An enabled bit of PFINT_OICR was set.
    Other,
    /// `done` descriptors in a transmit queue were completed.
    Transmit { queue: u16, done: u32 },
    /// The receive queue with the given number received frames.
    Receive(u16),
    /// An event was written to the CEQ with the given number.
    CompletionEvent(u16),
    /// An event was written to the AEQ.
    AsyncEvent,
}

/// A register that routes a cause to a vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteRegister {
    /// PFINT_FW_CTL: events in the admin receive queue.
    Firmware,
    /// PFINT_OICR_CTL: enabled causes in PFINT_OICR.
    Other,
    /// PFINT_MBX_CTL: events in the mailbox queue.
    Mailbox,
    /// PFINT_SB_CTL: events in the sideband queue.
    Sideband,
    /// PFINT_AEQCTL: events in the AEQ.
    AsyncEvents,
    /// GLINT_CEQCTL: events in the CEQ with the given number.
    CompletionEvents(u16),
    /// QINT_TQCTL: completions in the transmit queue with the given number.
    Transmit(u16),
    /// QINT_RQCTL: frames for the receive queue with the given number.
    Receive(u16),
}

impl RouteRegister {
    /// Returns the route that a BAR0 register configures, if any.
    pub fn of(register: Register) -> Option<Self> {
        Some(match register {
            Register::PfintFwCtl => Self::Firmware,
            Register::PfintOicrCtl => Self::Other,
            Register::PfintMbxCtl => Self::Mailbox,
            Register::PfintSbCtl => Self::Sideband,
            Register::PfintAeqctl => Self::AsyncEvents,
            Register::GlintCeqctl(ceq) => Self::CompletionEvents(ceq),
            Register::QintTqctl(queue) => Self::Transmit(queue),
            Register::QintRqctl(queue) => Self::Receive(queue),
            _ => return None,
        })
    }
}

/// The function's vectors and routes.
#[derive(Debug)]
pub struct Vectors {
    vectors: Vec<Vector>,
    /// Set if a vector must be signalled as soon as MSI-X is enabled.
    msix_blocked: bool,
    /// Vectors with a running timer, without duplicates.
    timers: Vec<u16>,
    firmware: u32,
    other: u32,
    mailbox: u32,
    sideband: u32,
    async_events: u32,
    completion_events: [u32; MAX_CEQS as usize],
    transmit: Vec<u32>,
    receive: Vec<u32>,
    causes: OtherCauses,
    enabled_causes: OtherCauses,
}

const INTERVALS: usize = 3;

/// Number of completed descriptors that ends coalescing. Four descriptors fill one cache line, the unit of the E810's
/// descriptor write-back.
const COALESCE_DESCRIPTORS: u32 = 4;

/// Maximum delay of a coalesced completion. The delay exceeds the time that a peer's kernel takes to reply, even in an
/// emulated guest, but does not slow down a sender that waits for buffer space.
const COALESCE_TIMEOUT: Duration = Duration::from_millis(1);

#[derive(Clone, Copy, Debug, Default)]
struct Vector {
    /// Last value written, except for `enable`, which the device updates.
    control: DynCtl,
    intervals: [Interval; INTERVALS],
    rate_limit: RateLimit,
    pending: PendingState,
    /// Time of the last signal.
    signalled: Option<Instant>,
    /// Set when coalesced completions time out and cleared when another cause fires. While set, completions are not
    /// coalesced.
    coalescing_off: bool,
    /// Whether the vector is in [`Vectors::timers`].
    has_timer: bool,
}

#[derive(Clone, Copy, Debug, Default)]
enum PendingState {
    #[default]
    Idle,
    /// An interrupt for `done` completed descriptors is delayed until `until`.
    Coalescing { done: u32, until: Instant, interval: Duration },
    /// The vector is signalled when `interval` has passed since the last signal.
    Due { interval: Duration },
}

impl Vector {
    /// Returns the interval for an ITR index; 0 for [`NO_INTERVAL`].
    fn interval(&self, index: u8) -> Duration {
        let interval = self.intervals.get(usize::from(index)).copied().unwrap_or_default();
        Duration::from_micros(u64::from(interval.interval) * u64::from(INTERVAL_UNIT_US))
    }

    /// Returns the minimum time between two signals, regardless of their causes.
    fn min_interval(&self) -> Duration {
        let RateLimit { interval, enable } = self.rate_limit;
        if enable {
            Duration::from_micros(u64::from(interval) * u64::from(RATE_UNIT_US))
        } else {
            Duration::ZERO
        }
    }

    fn set_pending(&mut self, interval: Duration) {
        let interval = match self.pending {
            PendingState::Due { interval: other } => interval.min(other),
            PendingState::Idle | PendingState::Coalescing { .. } => interval,
        };
        self.pending = PendingState::Due { interval };
    }

    fn complete(&mut self, now: Instant, more: u32, interval: Duration) {
        let (done, until) = match self.pending {
            PendingState::Due { .. } => return,
            PendingState::Coalescing { done, until, .. } => (done.saturating_add(more), until),
            PendingState::Idle => (more, now + COALESCE_TIMEOUT),
        };
        if self.coalescing_off || done >= COALESCE_DESCRIPTORS {
            self.set_pending(interval);
        } else {
            self.pending = PendingState::Coalescing { done, until, interval };
        }
    }

    /// Ends coalescing if it has timed out.
    fn expire(&mut self, now: Instant) {
        if let PendingState::Coalescing { until, interval, .. } = self.pending
            && until <= now
        {
            self.coalescing_off = true;
            self.set_pending(interval);
        }
    }

    /// Returns the time of the next state change, assuming that no cause fires before then. A time in the past means
    /// that the change is due.
    fn deadline(&self) -> Option<Instant> {
        match self.pending {
            PendingState::Idle => None,
            PendingState::Coalescing { until, .. } => Some(until),
            PendingState::Due { interval } => {
                let interval = interval.max(self.min_interval());
                self.signalled.filter(|_| self.control.enable).map(|signalled| signalled + interval)
            }
        }
    }
}

impl Vectors {
    /// Creates `vectors` vectors and routes for `queues` transmit and `queues` receive queues. All vectors and routes
    /// are disabled.
    pub fn new(vectors: u16, queues: u16) -> Self {
        Self {
            vectors: vec![Vector::default(); vectors.into()],
            msix_blocked: false,
            timers: Vec::new(),
            firmware: 0,
            other: 0,
            mailbox: 0,
            sideband: 0,
            async_events: 0,
            completion_events: [0; MAX_CEQS as usize],
            transmit: vec![0; queues.into()],
            receive: vec![0; queues.into()],
            causes: OtherCauses::empty(),
            enabled_causes: OtherCauses::empty(),
        }
    }

    /// Fires a cause. Has no effect if the cause's route is disabled.
    pub fn fire(&mut self, cx: &mut Context<'_>, cause: Cause) {
        let route = match cause {
            Cause::AdminEvent => Some(self.firmware),
            Cause::Other => Some(self.other),
            Cause::Transmit { queue, .. } => self.transmit.get(usize::from(queue)).copied(),
            Cause::Receive(queue) => self.receive.get(usize::from(queue)).copied(),
            Cause::CompletionEvent(ceq) => self.completion_events.get(usize::from(ceq)).copied(),
            Cause::AsyncEvent => Some(self.async_events),
        };
        let route = Route::parse(&route.unwrap_or_default().to_le_bytes());
        if route.enable
            && let Some(vector) = self.vectors.get_mut(usize::from(route.vector))
        {
            let interval = vector.interval(route.interval_index);
            if let Cause::Transmit { done, .. } = cause {
                vector.complete(cx.now, done, interval);
            } else {
                vector.coalescing_off = false;
                vector.set_pending(interval);
            }
            self.deliver(cx, route.vector);
        }
    }

    /// Sets bits of PFINT_OICR. Fires [`Cause::Other`] if any bit that is now set is also enabled.
    pub fn fire_other(&mut self, cx: &mut Context<'_>, causes: OtherCauses) {
        self.causes |= causes;
        self.fire_enabled(cx);
    }

    /// Raises the interrupt of a core or global reset. The vector is signalled even if it is disabled or its interval
    /// has not passed, because the reset that follows discards pending causes. `ice` recovers only after this
    /// interrupt.
    pub fn signal_reset(&mut self, cx: &mut Context<'_>) {
        if self.enabled_causes.contains(OtherCauses::GLOBAL_RESET)
            && let Some(vector) = self.vector(RouteRegister::Other)
            && usize::from(vector) < self.vectors.len()
            && cx.interrupts.is_enabled()
        {
            cx.interrupt(vector);
        }
    }

    /// Sets bits of PFINT_OICR without raising an interrupt.
    pub fn set_other(&mut self, causes: OtherCauses) {
        self.causes |= causes;
    }

    /// Reads and clears PFINT_OICR.
    pub fn read_other(&mut self) -> u32 {
        std::mem::take(&mut self.causes).bits()
    }

    /// Reads the register PFINT_OICR_ENA.
    pub fn other_enabled(&self) -> u32 {
        self.enabled_causes.bits()
    }

    /// Writes PFINT_OICR_ENA. Fires [`Cause::Other`] if the new value enables any bit that is set in PFINT_OICR.
    pub fn enable_other(&mut self, cx: &mut Context<'_>, causes: u32) {
        self.enabled_causes = OtherCauses::from_bits_retain(causes);
        self.fire_enabled(cx);
    }

    fn fire_enabled(&mut self, cx: &mut Context<'_>) {
        if self.causes.intersects(self.enabled_causes) {
            self.fire(cx, Cause::Other);
        }
    }

    /// Returns a route's vector, or `None` if the route is disabled.
    pub(super) fn vector(&self, register: RouteRegister) -> Option<u16> {
        let route = Route::parse(&self.route(register).to_le_bytes());
        route.enable.then_some(route.vector)
    }

    /// Reads a route register. Returns 0 if the queue does not exist.
    pub fn route(&self, register: RouteRegister) -> u32 {
        match register {
            RouteRegister::Firmware => self.firmware,
            RouteRegister::Other => self.other,
            RouteRegister::Mailbox => self.mailbox,
            RouteRegister::Sideband => self.sideband,
            RouteRegister::AsyncEvents => self.async_events,
            RouteRegister::CompletionEvents(ceq) => {
                self.completion_events.get(usize::from(ceq)).copied().unwrap_or(0)
            }
            RouteRegister::Transmit(queue) => self.transmit.get(usize::from(queue)).copied().unwrap_or(0),
            RouteRegister::Receive(queue) => self.receive.get(usize::from(queue)).copied().unwrap_or(0),
        }
    }

    /// Writes a route register. The write is ignored if the queue does not exist.
    pub fn set_route(&mut self, register: RouteRegister, value: u32) {
        let route = match register {
            RouteRegister::Firmware => Some(&mut self.firmware),
            RouteRegister::Other => Some(&mut self.other),
            RouteRegister::Mailbox => Some(&mut self.mailbox),
            RouteRegister::Sideband => Some(&mut self.sideband),
            RouteRegister::AsyncEvents => Some(&mut self.async_events),
            RouteRegister::CompletionEvents(ceq) => self.completion_events.get_mut(usize::from(ceq)),
            RouteRegister::Transmit(queue) => self.transmit.get_mut(usize::from(queue)),
            RouteRegister::Receive(queue) => self.receive.get_mut(usize::from(queue)),
        };
        if let Some(route) = route {
            *route = value;
        }
    }

    /// Reads a vector's GLINT_DYN_CTL.
    pub fn control(&self, vector: u16) -> u32 {
        let control = self.vectors.get(usize::from(vector)).map(|vector| vector.control.emit());
        u32::from_le_bytes(control.unwrap_or_default())
    }

    /// Writes a vector's GLINT_DYN_CTL. CLEARPBA does not drop a pending cause, because the cause may have arrived
    /// during the write. A spurious interrupt is harmless, but a lost one is not.
    pub fn set_control(&mut self, cx: &mut Context<'_>, index: u16, value: u32) {
        let Some(vector) = self.vectors.get_mut(usize::from(index)) else { return };
        let written = DynCtl::parse(&value.to_le_bytes());
        let enable = if written.keep_enable { vector.control.enable } else { written.enable };
        if let Some(interval) = vector.intervals.get_mut(usize::from(written.interval_index)) {
            *interval = Interval { interval: written.interval };
        }
        let other = Route::parse(&self.other.to_le_bytes());
        if written.trigger && other.enable && other.vector == index {
            self.causes |= OtherCauses::SOFTWARE;
        }
        if written.trigger {
            let index = if written.software_interval { written.software_interval_index } else { NO_INTERVAL };
            vector.set_pending(vector.interval(index));
        }
        vector.control =
            DynCtl { enable, clear_pending: false, trigger: false, keep_enable: false, ..written };
        self.deliver(cx, index);
    }

    /// Signals vectors that were pending while MSI-X was disabled.
    pub fn retry_blocked(&mut self, cx: &mut Context<'_>) {
        if self.msix_blocked && cx.interrupts.is_enabled() {
            self.msix_blocked = false;
            for vector in 0..u16::try_from(self.vectors.len()).unwrap_or(u16::MAX) {
                self.deliver(cx, vector);
            }
        }
    }

    /// Reads the register GLINT_ITR.
    pub fn interval(&self, index: u16, vector: u16) -> u32 {
        let vector = self.vectors.get(usize::from(vector));
        let interval = vector.and_then(|vector| vector.intervals.get(usize::from(index)));
        u32::from_le_bytes(interval.copied().unwrap_or_default().emit())
    }

    /// Writes the register GLINT_ITR.
    pub fn set_interval(&mut self, index: u16, vector: u16, value: u32) {
        let vector = self.vectors.get_mut(usize::from(vector));
        if let Some(interval) = vector.and_then(|vector| vector.intervals.get_mut(usize::from(index))) {
            *interval = Interval::parse(&value.to_le_bytes());
        }
    }

    /// Writes the register GLINT_RATE.
    pub fn set_rate_limit(&mut self, vector: u16, value: u32) {
        if let Some(vector) = self.vectors.get_mut(usize::from(vector)) {
            vector.rate_limit = RateLimit::parse(&value.to_le_bytes());
        }
    }

    /// Returns the time at which [`Vectors::handle_deadline`] must be called next.
    pub fn next_deadline(&self) -> Option<Instant> {
        let timers = self.timers.iter().filter_map(|vector| self.vectors.get(usize::from(*vector)));
        timers.filter_map(Vector::deadline).min()
    }

    pub fn handle_deadline(&mut self, cx: &mut Context<'_>) {
        for index in std::mem::take(&mut self.timers) {
            if let Some(vector) = self.vectors.get_mut(usize::from(index)) {
                vector.has_timer = false;
                vector.expire(cx.now);
                self.deliver(cx, index);
            }
        }
    }

    fn deliver(&mut self, cx: &mut Context<'_>, index: u16) {
        let Some(vector) = self.vectors.get_mut(usize::from(index)) else { return };
        let is_pending = matches!(vector.pending, PendingState::Due { .. });
        if is_pending && vector.control.enable && !cx.interrupts.is_enabled() {
            self.msix_blocked = true;
        } else if vector.deadline().is_some_and(|deadline| deadline > cx.now) {
            if !std::mem::replace(&mut vector.has_timer, true) {
                self.timers.push(index);
            }
        } else if is_pending && vector.control.enable {
            vector.pending = PendingState::Idle;
            vector.control.enable = false;
            vector.signalled = Some(cx.now);
            cx.interrupt(index);
        }
    }
}
