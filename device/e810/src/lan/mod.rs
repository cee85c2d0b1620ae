//! The LAN data path: transmit and receive queues, offloads and statistics.
//!
//! This module handles queues and frames only. Other modules implement forwarding, interrupt routing and queue
//! permissions.
//!
//! # Spec
//! E810 interface, section 8.

mod checks;
mod malicious;
mod offload;
mod receive_queue;
mod statistics;
#[cfg(test)]
mod tests;
mod trace;
mod transmit_queue;

use std::collections::VecDeque;

use card::frontend::snapshot::{QueueDirection, QueueRow, QueueState};
use card::limited;
use card::memory::GuestMemory;
use card::telemetry::monitor::Monitor;
use protocol::describe::Field as _;
use protocol::hca::e810::regs::Register;
use protocol::hca::e810::rx_context::{self, RxContext};
use protocol::hca::e810::rx_descriptor::Profile;
use protocol::hca::e810::tx_context::TxContext;
use protocol::hca::e810::tx_descriptor::Destination;
use protocol::net::layers::Layers;
use smallvec::SmallVec;
use thiserror::Error;

use self::malicious::{Detector, DriverError, MaliciousDriver};
pub(super) use self::receive_queue::RxOffload;
use self::receive_queue::{ReceiveQueue, RxError};
pub(super) use self::statistics::add_roce;
use self::statistics::{PortStatistics, Statistics};
use self::transmit_queue::{MAX_FRAME_LEN, Step, TransmitQueue};
use crate::reason::{LONGER_THAN_QUEUE, NO_BUFFER, NO_QUEUE};
use crate::strict::rules;
use crate::vectors::Cause;

/// Maximum number of queue polls per frame. Without this limit, queues full of descriptors that do not produce a frame
/// would block the device.
const MAX_POLLS_PER_FRAME: usize = 64;

/// A frame fetched from a transmit queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OutgoingFrame {
    pub(super) vsi: u16,
    /// Destination requested by the context descriptor.
    pub(super) destination: Destination,
}

/// Reason why a transmit queue cannot be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(super) enum AddError {
    #[error("transmit queue {0} does not exist")]
    NoSuchQueue(u16),
    #[error("transmit queue {0} is already enabled")]
    Enabled(u16),
    #[error(
        "the ring of transmit queue {0} has {1} descriptors (minimum {min}, maximum {max})",
        min = RING_LENGTHS.start(),
        max = RING_LENGTHS.end()
    )]
    RingLength(u16, u16),
}

/// Valid ring lengths, in descriptors. E810 drivers accept the same range.
const RING_LENGTHS: std::ops::RangeInclusive<u16> = 8..=8160;

/// Pending interrupt causes, without duplicates.
type Causes = SmallVec<[Cause; 8]>;

#[derive(Debug)]
pub(super) struct Lan {
    transmit: Vec<Option<Box<Transmit>>>,
    /// Transmit queues that have work, in round-robin order.
    ready: VecDeque<u16>,
    receive: Vec<Receive>,
    causes: Causes,
    malicious: MaliciousDriver,
    /// Set by an MDET event and cleared by [`Lan::take_malicious`].
    mdet_pending: bool,
    statistics: Statistics,
}

#[derive(Debug)]
struct Transmit {
    queue: TransmitQueue,
    /// Whether the queue is in [`Lan::ready`].
    queued: bool,
    /// Set if a driver violation has stopped the queue. A stopped queue does nothing until it is removed.
    stopped: bool,
}

/// Registers of a receive queue, and the queue's state while it is enabled.
#[derive(Debug, Default)]
struct Receive {
    context: [u32; rx_context::WORDS],
    profile: u32,
    tail: u32,
    control: u32,
    queue: Option<Box<ReceiveQueue>>,
    /// Set if a driver violation has stopped the queue.
    stopped: bool,
}

impl Receive {
    fn queue_mut(&mut self) -> Option<&mut ReceiveQueue> {
        self.queue.as_deref_mut().filter(|_| !self.stopped)
    }
}

mod control {
    /// QENA_REQ: software requests that the queue be enabled.
    pub(super) const REQUEST: u32 = 1 << 0;
    /// QENA_STAT: the queue is enabled.
    pub(super) const STATUS: u32 = 1 << 2;
}

impl Lan {
    /// Creates `queues` transmit and `queues` receive queues, all disabled.
    pub(super) fn new(queues: u16) -> Self {
        Self {
            transmit: (0..queues).map(|_| None).collect(),
            ready: VecDeque::new(),
            receive: (0..queues).map(|_| Receive::default()).collect(),
            causes: Causes::new(),
            malicious: MaliciousDriver::default(),
            mdet_pending: false,
            statistics: Statistics::default(),
        }
    }

    /// Handles a function reset: removes all queues but keeps the statistics.
    pub(super) fn reset(&mut self) {
        self.transmit.iter_mut().for_each(|queue| *queue = None);
        self.receive.iter_mut().for_each(|queue| *queue = Receive::default());
        self.ready.clear();
        self.causes.clear();
        self.malicious = MaliciousDriver::default();
        self.mdet_pending = false;
    }

    pub(super) const fn port_counts(&self) -> PortStatistics {
        self.statistics.port
    }

    /// Returns the enabled queues as rows for the control socket, transmit queues first. The caller fills in the
    /// vectors.
    pub(super) fn queues(&self) -> impl Iterator<Item = QueueRow> {
        let state = |stopped: bool| if stopped { QueueState::Stopped } else { QueueState::Enabled };
        let transmit = (0..).zip(&self.transmit).filter_map(move |(number, place)| {
            let Transmit { queue, stopped, .. } = place.as_deref()?;
            let (context, (frames, bytes)) = (queue.context(), queue.traffic());
            Some(QueueRow {
                queue: number,
                direction: QueueDirection::Transmit,
                state: state(*stopped),
                vsi: Some(context.vsi),
                ring: context.ring.first().get(),
                entries: context.ring_len,
                head: queue.head(),
                tail: queue.tail(),
                vector: None,
                frames,
                bytes,
                dropped: 0,
            })
        });
        let receive = (0..).zip(&self.receive).filter_map(move |(number, receive)| {
            let queue = receive.queue.as_deref()?;
            let (context, counts) = (queue.context(), queue.counts());
            Some(QueueRow {
                queue: number,
                direction: QueueDirection::Receive,
                state: state(receive.stopped),
                vsi: None,
                ring: context.ring.first().get(),
                entries: context.ring_len,
                head: queue.head(),
                tail: queue.tail(),
                vector: None,
                frames: counts.frames,
                bytes: counts.bytes,
                dropped: counts.dropped,
            })
        });
        transmit.chain(receive)
    }

    /// Returns the interrupt causes raised since the last call. Transmit causes come first, so that the interrupt for a
    /// receive cause also signals coalesced transmit completions on the same vector.
    pub(super) fn take_causes(&mut self) -> Causes {
        let mut causes = std::mem::take(&mut self.causes);
        causes.sort_by_key(|cause| matches!(cause, Cause::Receive(_)));
        causes
    }

    /// Returns whether a "malicious driver detected" interrupt is pending, and clears it.
    pub(super) fn take_malicious(&mut self) -> bool {
        std::mem::take(&mut self.mdet_pending)
    }

    /// Reads a register. Returns `None` if the register belongs to another block. Queue registers are 32 bits wide, and
    /// counters are up to 40 bits wide. The counters do not include the packets of the RDMA function; see [`add_roce`].
    pub(super) fn read(&self, register: Register) -> Option<u64> {
        Some(match register {
            Register::QtxCommHead(queue) => self.transmit_head(queue).into(),
            Register::QtxCommDbell(queue) => self.transmit_tail(queue).into(),
            Register::QrxCtrl(queue) => self.receive_control(queue).into(),
            Register::QrxContext(word, queue) => self.receive_context(queue, word.into()).into(),
            Register::QrxflxpCntxt(queue) => self.receive_profile(queue).into(),
            Register::QrxTail(queue) => self.receive_tail(queue).into(),
            _ => {
                return self
                    .malicious
                    .read(register)
                    .map(u64::from)
                    .or_else(|| self.statistics.read(register));
            }
        })
    }

    /// Strict mode: checks a register write before it takes effect.
    pub(super) fn check_write(&self, register: Register, value: u32, monitor: &mut Monitor) {
        let receive = |queue: u16| self.receive.get(usize::from(queue));
        match register {
            Register::QtxCommDbell(queue)
                if self.transmit.get(usize::from(queue)).is_some_and(Option::is_none) =>
            {
                monitor.violation(
                    &rules::DOORBELL_NO_QUEUE,
                    format_args!("doorbell for transmit queue {queue}, which is not enabled"),
                );
            }
            Register::QrxContext(word, queue)
                if receive(queue).is_some_and(|receive| receive.queue.is_some()) =>
            {
                monitor.violation(
                    &rules::CONTEXT_IN_USE,
                    format_args!(
                        "context word {word} of receive queue {queue} written while the queue is enabled"
                    ),
                );
            }
            Register::QrxCtrl(queue) if value & control::REQUEST != 0 => {
                let context = receive(queue).map(|receive| RxContext::from_registers(&receive.context));
                if let Some(why) = context.as_ref().and_then(ReceiveQueue::context_violation) {
                    monitor.violation(&rules::RECEIVE_CONTEXT, format_args!("receive queue {queue}: {why}"));
                }
            }
            _ => {}
        }
    }

    /// Writes a register. Returns false if the register belongs to another block.
    pub(super) fn write(&mut self, register: Register, value: u32) -> bool {
        match register {
            Register::QtxCommDbell(queue) => self.ring_doorbell(queue, value),
            Register::QrxCtrl(queue) => self.write_receive_control(queue, value),
            Register::QrxContext(word, queue) => self.write_receive_context(queue, word.into(), value),
            Register::QrxflxpCntxt(queue) => self.write_receive_profile(queue, value),
            Register::QrxTail(queue) => self.write_receive_tail(queue, value),
            _ if self.malicious.read(register).is_some() => self.malicious.clear(register),
            _ => return self.read(register).is_some(),
        }
        true
    }

    /// Adds a transmit queue.
    ///
    /// # Errors
    /// See [`AddError`].
    pub(super) fn add_transmit(&mut self, number: u16, context: TxContext) -> Result<(), AddError> {
        let place = self.transmit.get_mut(usize::from(number)).ok_or(AddError::NoSuchQueue(number))?;
        if place.is_some() {
            return Err(AddError::Enabled(number));
        }
        if !RING_LENGTHS.contains(&context.ring_len) {
            return Err(AddError::RingLength(number, context.ring_len));
        }
        *place = Some(Box::new(Transmit {
            queue: TransmitQueue::new(number, context),
            queued: false,
            stopped: false,
        }));
        Ok(())
    }

    /// Immediately removes a transmit queue and its pending frames. Returns whether the queue existed.
    pub(super) fn remove_transmit(&mut self, number: u16) -> bool {
        self.ready.retain(|waiting| *waiting != number);
        self.causes.retain(|cause| !matches!(cause, Cause::Transmit { queue, .. } if *queue == number));
        self.transmit.get_mut(usize::from(number)).is_some_and(|place| place.take().is_some())
    }

    /// Handles a doorbell that posts the descriptors before `tail`.
    fn ring_doorbell(&mut self, number: u16, tail: u32) {
        let Some(transmit) = self.transmit_mut(number) else { return };
        match transmit.queue.set_tail(tail) {
            Ok(()) if transmit.queue.has_work() && !transmit.queued => {
                transmit.queued = true;
                self.ready.push_back(number);
            }
            Ok(()) => {}
            Err(fault) => self.stop_transmit(number, fault),
        }
    }

    pub(super) fn has_transmit(&self, number: u16) -> bool {
        self.transmit.get(usize::from(number)).is_some_and(Option::is_some)
    }

    fn transmit_head(&self, number: u16) -> u32 {
        let transmit = self.transmit.get(usize::from(number)).and_then(Option::as_ref);
        transmit.map_or(0, |transmit| transmit.queue.head().into())
    }

    fn transmit_tail(&self, number: u16) -> u32 {
        let transmit = self.transmit.get(usize::from(number)).and_then(Option::as_ref);
        transmit.map_or(0, |transmit| transmit.queue.tail().into())
    }

    /// Returns whether [`Lan::poll_frame`] may return another frame.
    pub(super) fn has_work(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Appends the next frame to `out`, serving queues round-robin.
    pub(super) fn poll_frame(
        &mut self,
        (memory, monitor): (&GuestMemory, &mut Monitor),
        out: &mut Vec<u8>,
    ) -> Option<OutgoingFrame> {
        for _ in 0..MAX_POLLS_PER_FRAME {
            let number = self.ready.pop_front()?;
            let Some(transmit) = self.transmit_mut(number) else { continue };
            let start = out.len();
            let mut done = 0;
            let step = transmit.queue.poll((memory, &mut *monitor), out, &mut done);
            transmit.queued = step.is_ok() && transmit.queue.has_work();
            let (queued, vsi) = (transmit.queued, transmit.queue.context().vsi);
            if queued {
                self.ready.push_back(number);
            }
            if done > 0 {
                self.complete(number, done);
            }
            match step {
                Ok(Step::Frame(destination)) => {
                    self.statistics.transmitted(vsi, out.get(start..).unwrap_or_default());
                    return Some(OutgoingFrame { vsi, destination });
                }
                Ok(Step::NoFrame | Step::Idle) => {}
                Err(fault) => self.stop_transmit(number, fault),
            }
        }
        None
    }

    pub(super) fn count_sent(&mut self, frame: &[u8]) {
        self.statistics.port_transmitted(frame);
    }

    pub(super) const fn count_lost_with_link_down(&mut self) {
        self.statistics.port.dropped_link_down += 1;
    }

    /// Counts a frame that the switch rejected.
    pub(super) fn count_rejected(&mut self, vsi: u16) {
        self.statistics.vsi_mut(vsi).transmit_errors += 1;
    }

    /// Writes a context register. The value takes effect when the queue is enabled.
    fn write_receive_context(&mut self, number: u16, index: usize, value: u32) {
        if let Some(word) = self.receive_mut(number).and_then(|receive| receive.context.get_mut(index)) {
            *word = value;
        }
    }

    fn receive_context(&self, number: u16, index: usize) -> u32 {
        let context = self.receive.get(usize::from(number)).map(|receive| &receive.context);
        context.and_then(|context| context.get(index)).copied().unwrap_or_default()
    }

    /// Writes the descriptor profile. The value takes effect when the queue is enabled.
    fn write_receive_profile(&mut self, number: u16, value: u32) {
        if let Some(receive) = self.receive_mut(number) {
            receive.profile = value;
        }
    }

    fn receive_profile(&self, number: u16) -> u32 {
        self.receive.get(usize::from(number)).map_or(0, |receive| receive.profile)
    }

    /// Writes QRX_CTRL. The queue is enabled or disabled immediately.
    fn write_receive_control(&mut self, number: u16, value: u32) {
        let Some(receive) = self.receive_mut(number) else { return };
        let enable = value & control::REQUEST != 0;
        let enabled = receive.control & control::STATUS != 0;
        receive.control = value & !control::STATUS | if enable { control::STATUS } else { 0 };
        if enable == enabled {
            return;
        }
        receive.stopped = false;
        receive.queue = enable.then(|| {
            let context = RxContext::from_registers(&receive.context);
            Box::new(ReceiveQueue::new(number, context, Profile::of_register(receive.profile)))
        });
        let tail = receive.tail;
        if enable {
            self.move_receive_tail(number, tail);
        } else {
            self.causes.retain(|cause| *cause != Cause::Receive(number));
        }
    }

    fn receive_control(&self, number: u16) -> u32 {
        self.receive.get(usize::from(number)).map_or(0, |receive| receive.control)
    }

    /// Handles a tail write that posts the entries before `tail`.
    fn write_receive_tail(&mut self, number: u16, tail: u32) {
        let Some(receive) = self.receive_mut(number) else { return };
        receive.tail = tail;
        self.move_receive_tail(number, tail);
    }

    fn receive_tail(&self, number: u16) -> u32 {
        self.receive.get(usize::from(number)).map_or(0, |receive| receive.tail)
    }

    /// Counts a frame received by the port. Returns false if the frame exceeds the maximum frame size.
    pub(super) fn accept_from_port(&mut self, frame: &[u8]) -> bool {
        if frame.len() > MAX_FRAME_LEN {
            self.statistics.port.oversize += 1;
            return false;
        }
        self.statistics.port_received(frame);
        true
    }

    /// Delivers a frame to queue `number` of a VSI. A frame that cannot be delivered is counted and dropped.
    pub(super) fn receive(
        &mut self,
        (memory, monitor): (&GuestMemory, &mut Monitor),
        (vsi, number): (u16, u16),
        frame: &[u8],
        layers: &Layers,
        offload: RxOffload,
    ) {
        // A VSI's received-frame counters include dropped frames. DPDK's net_ice subtracts the drops itself
        // (section 8.6).
        self.statistics.received(vsi, frame);
        let queue = self.receive_mut(number).and_then(Receive::queue_mut);
        let error = match queue.map(|queue| queue.deliver((memory, &mut *monitor), frame, layers, offload)) {
            Some(Ok(())) => return self.raise_receive(number),
            None => None,
            Some(Err(error)) => Some(error),
        };
        self.statistics.vsi_mut(vsi).receive_dropped += 1;
        let reason = match error {
            None => NO_QUEUE,
            Some(RxError::NoBuffers) => NO_BUFFER,
            Some(RxError::TooLong) => LONGER_THAN_QUEUE,
            Some(RxError::Driver(fault)) => return self.stop_receive(number, fault),
        };
        monitor.ignored_frame(reason, |to| {
            frame.len().show("len", to);
            vsi.show("vsi", to);
            number.show("queue", to);
        });
    }

    fn move_receive_tail(&mut self, number: u16, tail: u32) {
        let queue = self.receive_mut(number).and_then(Receive::queue_mut);
        if let Some(Err(fault)) = queue.map(|queue| queue.set_tail(tail)) {
            self.stop_receive(number, fault);
        }
    }

    fn transmit_mut(&mut self, number: u16) -> Option<&mut Transmit> {
        self.transmit.get_mut(usize::from(number))?.as_deref_mut().filter(|transmit| !transmit.stopped)
    }

    fn receive_mut(&mut self, number: u16) -> Option<&mut Receive> {
        self.receive.get_mut(usize::from(number))
    }

    /// Adds `more` to the number of completed descriptors that a transmit queue's interrupt cause reports. Raises the
    /// cause unless it is already pending.
    fn complete(&mut self, number: u16, more: u32) {
        let pending = self.causes.iter_mut().find_map(|cause| match cause {
            Cause::Transmit { queue, done } if *queue == number => Some(done),
            _ => None,
        });
        match pending {
            Some(done) => *done = done.saturating_add(more),
            None => self.causes.push(Cause::Transmit { queue: number, done: more }),
        }
    }

    fn raise_receive(&mut self, number: u16) {
        let cause = Cause::Receive(number);
        if !self.causes.contains(&cause) {
            self.causes.push(cause);
        }
    }

    fn stop_transmit(&mut self, number: u16, fault: DriverError) {
        self.ready.retain(|waiting| *waiting != number);
        if let Some(transmit) = self.transmit_mut(number) {
            limited!(warn, queue = number, "transmit queue stopped: {fault}");
            transmit.stopped = true;
            transmit.queued = false;
            let vsi = transmit.queue.context().vsi;
            self.statistics.vsi_mut(vsi).transmit_errors += 1;
            self.raise_mdet(fault.transmit_detector(), number, fault);
        }
    }

    fn stop_receive(&mut self, number: u16, fault: DriverError) {
        limited!(warn, queue = number, "receive queue stopped: {fault}");
        if let Some(receive) = self.receive_mut(number) {
            receive.stopped = true;
        }
        self.raise_mdet(Detector::Receive, number, fault);
    }

    fn raise_mdet(&mut self, detector: Detector, number: u16, fault: DriverError) {
        self.malicious.record(detector, number, fault);
        self.mdet_pending = true;
    }
}
