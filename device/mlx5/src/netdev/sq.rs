//! Send queues (SQ) for Ethernet frames.
//!
//! A WQE with LSO yields one segment per poll. The SQ keeps the WQE's state between polls.
//!
//! # Spec
//! mlx5 interface, sections 16.1 and 16.5.

use card::memory::GuestMemory;
use card::memory::translate::RegionAccess;
use card::nic;
use card::nic::offload::HeaderError;
use card::nic::segmentation::{SegmentationError, Segments};
use card::nic::vlan::ADDRESSES_LEN;
use engine::{AccessError, Fetch, Initiator, Status};
use protocol::hca::mlx5::doorbell::QueueRecord;
use protocol::hca::mlx5::sq::{SqContext, WorkQueueState};
use protocol::hca::mlx5::wqe::{EthernetSegment, FrameOperation, FrameWqe};
use protocol::ids::{Cqn, Iova, Qpn, Sqn, UarIndex, UserIndex};

use super::gather::Gather;
use super::offload::{self, Route};
use super::status::{FailedAt, QueueCounters, QueueStatus};
use crate::buffer::QueueBuffer;
use crate::failure;
use crate::limits::netdev::MAX_LSO_PAYLOAD;
use crate::mkey::Mkeys;
use crate::send_queue::{FetchedWqe, PostedBlocks, SendQueue, SendTag};
use crate::umem::Umems;
use crate::uses::{Object, Used};
use crate::work_queue::{Advance, TooMany};

/// Length of an Ethernet header (IEEE 802.3-2022, clause 3.1.1).
pub const ETHERNET_LEN: usize = 14;

/// Number of send queue blocks to copy at once. The number is small because SQs take turns after each frame, and each
/// SQ's copy overwrites the previous SQ's copy.
const READ_AHEAD: u16 = 4;

/// Result of polling an SQ for a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The SQ appended a frame.
    Frame,
    /// The SQ did not append a frame.
    NoFrame,
    /// The SQ dropped a frame that exceeds the port's MTU.
    Oversize,
    /// The SQ's memory is not accessible. The SQ has moved to the error state.
    Broken,
}

/// A WQE that has completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    pub tag: SendTag,
    pub result: Result<(), Status>,
}

/// Resources used by a poll.
#[derive(Clone, Copy, Debug)]
pub struct Environment<'a> {
    pub memory: RegionAccess<'a, &'a Mkeys>,
    pub dma: &'a GuestMemory,
    /// Maximum frame length that the port's MTU permits.
    pub max_frame: usize,
}

#[derive(Debug)]
pub struct Sq {
    sqn: Sqn,
    context: SqContext,
    state: WorkQueueState,
    buffer: QueueBuffer,
    queue: SendQueue,
    /// The LSO in progress. In the error state, its WQE has yet to be flushed.
    lso: Option<Lso>,
    pub(super) is_scheduled: bool,
    pub counters: QueueCounters,
    failure: Option<FailedAt>,
    pub umems: Umems,
}

/// An LSO in progress.
#[derive(Debug)]
struct Lso {
    tag: SendTag,
    segments: Segments,
    /// Destinations of an IPv6 packet with a routing header.
    route: Option<Route>,
    data: Gather,
}

/// Result of executing a WQE.
enum Executed {
    Frame,
    NoFrame,
    Oversize,
    /// The first segment of an LSO has been sent, and others follow.
    Segmented(Box<Lso>),
}

/// Completion status of a WQE that fails.
#[derive(Debug)]
struct Failed(Status);

const MALFORMED: Failed = Failed(Status::LocalQpOperation);

impl From<AccessError> for Failed {
    fn from(error: AccessError) -> Self {
        Self(Status::LocalProtection(error))
    }
}

impl From<HeaderError> for Failed {
    fn from(_: HeaderError) -> Self {
        MALFORMED
    }
}

impl Sq {
    pub fn new(sqn: Sqn, context: SqContext, buffer: QueueBuffer) -> Self {
        Self {
            sqn,
            context,
            state: WorkQueueState::Reset,
            buffer,
            queue: SendQueue::new(0, 1 << context.queue.log_entries),
            lso: None,
            is_scheduled: false,
            counters: QueueCounters::default(),
            failure: None,
            umems: Umems::default(),
        }
    }

    pub fn status(&self) -> QueueStatus {
        let ready = if self.has_work() { QueueStatus::Busy } else { QueueStatus::Idle };
        QueueStatus::unless_ready(self.state, self.context.flush_in_error).unwrap_or(ready)
    }

    /// Returns the WQE that moved the SQ to the error state, if any.
    pub const fn failure(&self) -> Option<FailedAt> {
        self.failure
    }

    /// Returns the context with the current state.
    pub const fn context(&self) -> SqContext {
        SqContext { state: self.state.code(), ..self.context }
    }

    pub const fn state(&self) -> WorkQueueState {
        self.state
    }

    pub const fn cqn(&self) -> Cqn {
        self.context.cqn
    }

    pub const fn uar(&self) -> UarIndex {
        self.context.queue.uar
    }

    pub const fn user_index(&self) -> UserIndex {
        self.context.user_index
    }

    pub const fn sqn(&self) -> Sqn {
        self.sqn
    }

    /// Returns the doorbell record, or `None` if it is not accessible.
    pub fn record(&self, dma: &GuestMemory) -> Option<QueueRecord> {
        let mut record = [0; QueueRecord::LEN];
        dma.read(self.context.queue.record, &mut record).ok()?;
        Some(QueueRecord::parse(&record))
    }

    /// Clears the send counter in the doorbell record. An inaccessible record is left as it is, which is harmless
    /// because the device cannot poll it.
    pub fn clear_record(&self, dma: &GuestMemory) {
        let [_, _, _, _, counter @ ..] = QueueRecord::default().emit();
        let _ = dma.write(Iova::new(self.context.queue.record.get() | 4), &counter);
    }

    pub const fn queue(&self) -> &SendQueue {
        &self.queue
    }

    pub const fn buffer(&self) -> &QueueBuffer {
        &self.buffer
    }

    /// Marks a WQE and all WQEs before it as completed. Called for WQEs that generate a CQE.
    pub fn complete(&mut self, tag: SendTag) {
        self.queue.complete(tag);
    }

    pub fn pages(&self) -> usize {
        self.buffer.pages()
    }

    pub fn uses(context: &SqContext) -> Used {
        let queue = &context.queue;
        let mut used = Used::from_slice(&[
            Object::Pd(queue.pd.get()),
            Object::Uar(queue.uar.get()),
            Object::Cq(context.cqn.get()),
        ]);
        used.extend(context.tis().map(|tisn| Object::Tis(tisn.get())));
        used
    }

    /// Changes the state. In the reset state, the SQ has no WQEs, and its producer and consumer counters are 0.
    pub fn set_state(&mut self, state: WorkQueueState) {
        self.state = state;
        if state == WorkQueueState::Reset {
            self.queue.clear();
            (self.lso, self.failure) = (None, None);
        }
    }

    /// Updates the producer counter from a polled doorbell record.
    pub fn poll_record(&mut self, record: QueueRecord) -> Advance {
        self.queue.poll(record.sent)
    }

    /// Updates the SQ's producer counter from the doorbell record. If the record is not accessible, the producer
    /// counter does not change.
    ///
    /// # Errors
    /// Fails if the record's counter covers more blocks than the SQ has.
    pub fn learn(&mut self, dma: &GuestMemory) -> Result<(), TooMany> {
        self.record(dma).map_or(Ok(()), |record| self.queue.learn(record.sent))
    }

    /// Returns whether another poll may make progress.
    pub fn has_work(&self) -> bool {
        match self.state {
            WorkQueueState::Reset => false,
            WorkQueueState::Ready => self.lso.is_some() || self.queue.waiting() != 0,
            WorkQueueState::Error => {
                self.context.flush_in_error && (self.lso.is_some() || self.queue.waiting() != 0)
            }
        }
    }

    /// Executes the next WQE or sends the next segment of an LSO. Appends at most one frame to `out`. `posted` holds
    /// WQEs copied in advance. If the poll attempts to fetch a WQE, it passes the result to `observe`.
    pub fn poll(
        &mut self,
        env: &Environment<'_>,
        posted: &mut PostedBlocks,
        out: &mut Vec<u8>,
        observe: impl FnOnce(&Self, &Fetch<FetchedWqe<'_>>),
    ) -> (Step, Option<Done>) {
        let start = out.len();
        if self.state == WorkQueueState::Error && !self.context.flush_in_error {
            // Section 16.1: without "flush in error", WQEs do not complete.
            return (Step::NoFrame, None);
        }
        if let Some(mut lso) = self.lso.take() {
            // The driver has stopped the SQ between two segments.
            if self.state == WorkQueueState::Error {
                return (Step::NoFrame, Some(Done { tag: lso.tag, result: Err(Status::Flushed) }));
            }
            return match lso.send(env, out) {
                Ok(false) => {
                    self.lso = Some(lso);
                    (Step::Frame, None)
                }
                Ok(true) => (Step::Frame, Some(Done { tag: lso.tag, result: Ok(()) })),
                Err(failed) => (Step::NoFrame, Some(self.fail(lso.tag, failed))),
            };
        }
        let flushes = match self.state {
            WorkQueueState::Reset => return (Step::NoFrame, None),
            WorkQueueState::Ready => false,
            WorkQueueState::Error => true,
        };
        if self.queue.waiting() == 0 {
            // Section 20, M-12: the record may be newer than the doorbell. An implausible counter is ignored.
            let _ = self.learn(env.dma);
        }
        let fetch = self.queue.take(&self.buffer, env.dma, posted, READ_AHEAD);
        observe(self, &fetch);
        let (tag, wqe) = match fetch {
            Fetch::Empty => return (Step::NoFrame, None),
            Fetch::Broken => {
                // Discard the WQEs, which the device cannot flush without access to them.
                self.queue.clear();
                self.set_state(WorkQueueState::Error);
                return (Step::Broken, None);
            }
            Fetch::Refused { wr_id, .. } => (SendTag::from_bits(wr_id), None),
            Fetch::Ready(wqe) => (wqe.tag, Some(wqe)),
        };
        if flushes {
            return (Step::NoFrame, Some(Done { tag, result: Err(Status::Flushed) }));
        }
        let executed = wqe.ok_or(MALFORMED).and_then(|wqe| self.execute(&wqe, env, out));
        let done = Done { tag, result: Ok(()) };
        match executed {
            Ok(Executed::Frame) => (Step::Frame, Some(done)),
            Ok(Executed::NoFrame) => (Step::NoFrame, Some(done)),
            Ok(Executed::Oversize) => (Step::Oversize, Some(done)),
            Ok(Executed::Segmented(lso)) => {
                self.lso = Some(*lso);
                (Step::Frame, None)
            }
            Err(failed) => {
                out.truncate(start);
                (Step::NoFrame, Some(self.fail(tag, failed)))
            }
        }
    }

    /// Moves the SQ to the error state after a WQE has failed (section 16.1). Returns the WQE's completion.
    fn fail(&mut self, tag: SendTag, Failed(status): Failed) -> Done {
        self.set_state(WorkQueueState::Error);
        self.failure = Some(FailedAt { index: tag.index(), syndrome: failure::syndrome(status) });
        Done { tag, result: Err(status) }
    }

    fn execute(
        &self,
        wqe: &FetchedWqe<'_>,
        env: &Environment<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Executed, Failed> {
        let parsed = FrameWqe::parse(wqe.bytes, self.sqn).map_err(|_| MALFORMED)?;
        let FrameOperation::Send { segment, mss, header, data } = parsed.operation else {
            return Ok(Executed::NoFrame);
        };
        // An SQ without a TIS, such as the driver's ICOSQ, has no transport domain and cannot send frames.
        if self.context.tis().is_none() {
            return Err(MALFORMED);
        }
        let mut data = Gather::new(self.initiator(), &data);
        let tags = offload::tags(&segment);
        let Some(mss) = mss else {
            let len = header.len() as u64 + data.total_len();
            if len < ETHERNET_LEN as u64 {
                return Err(MALFORMED);
            }
            let tagged = len + tags.bytes().len() as u64;
            if tagged > env.max_frame as u64 {
                return Ok(Executed::Oversize);
            }
            append_frame(header, &mut data, (&segment, tags.bytes()), env, out)?;
            return Ok(Executed::Frame);
        };
        let payload_len = u32::try_from(data.total_len()).ok().filter(|len| *len <= MAX_LSO_PAYLOAD);
        // No tag is lost here: a WQE that inserts a VLAN tag has no inline header, and an LSO without headers fails.
        let segments = offload::segments(header.to_vec(), mss, payload_len.ok_or(MALFORMED)?, env.max_frame);
        let (segments, route) = match segments {
            Ok(segments) => segments,
            Err(SegmentationError::TooLong) => return Ok(Executed::Oversize),
            Err(SegmentationError::NoPayload | SegmentationError::Headers) => return Err(MALFORMED),
        };
        let mut lso = Lso { tag: wqe.tag, segments, route, data };
        match lso.send(env, out)? {
            true => Ok(Executed::Frame),
            false => Ok(Executed::Segmented(Box::new(lso))),
        }
    }

    /// Returns the initiator of the SQ's accesses to WQE data.
    pub const fn initiator(&self) -> Initiator {
        Initiator {
            pd: self.context.queue.pd,
            qpn: Qpn::new(self.sqn.get()),
            reserved_lkey: self.context.reserved_lkey,
        }
    }
}

impl Lso {
    /// Appends the next segment to `out`. Returns whether it was the last.
    fn send(&mut self, env: &Environment<'_>, out: &mut Vec<u8>) -> Result<bool, Failed> {
        let start = out.len();
        let Self { segments, route, data, .. } = self;
        let payload = |len: usize, out: &mut Vec<u8>| Ok(data.take(&env.memory, len, out)?);
        let is_last = segments.emit::<Failed>(out, payload)?;
        if let Some(route) = route {
            route.write_next_destination(out.get_mut(start..).unwrap_or_default());
        }
        nic::pad(out, start);
        Ok(is_last)
    }
}

fn append_frame(
    header: &[u8],
    data: &mut Gather,
    (segment, tags): (&EthernetSegment, &[u8]),
    env: &Environment<'_>,
    out: &mut Vec<u8>,
) -> Result<(), Failed> {
    let start = out.len();
    out.extend_from_slice(header);
    let len = usize::try_from(data.total_len()).unwrap_or(usize::MAX);
    if tags.is_empty() {
        data.take(&env.memory, len, out)?;
    } else {
        // Tags are inserted only if there is no inline header, so the data starts with the MAC addresses.
        data.take(&env.memory, ADDRESSES_LEN, out)?;
        out.extend_from_slice(tags);
        data.take(&env.memory, len, out)?;
    }
    offload::fill_checksums(out.get_mut(start..).unwrap_or_default(), segment);
    nic::pad(out, start);
    Ok(())
}
