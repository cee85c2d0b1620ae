//! A transmit queue, which turns posted descriptors into frames, one at a time.
//!
//! Guest memory is read once, directly into the output buffer. A TSO frame yields one segment per call, and the queue
//! keeps the frame's state between calls.
//!
//! # Spec
//! E810 interface, sections 8.1 and 8.2.

use card::memory::GuestMemory;
use card::nic;
use card::nic::offload::Offloads;
use card::nic::segmentation::Segments;
use card::nic::vlan::{ADDRESSES_LEN, Insertion};
use card::telemetry::monitor::Monitor;
use protocol::hca::e810::tx_context::TxContext;
use protocol::hca::e810::tx_descriptor::{
    Command, ContextDescriptor, DONE_OFFSET, DataDescriptor, Destination, HeaderLengths, LEN, TxDescriptor,
};
use protocol::ids::Iova;
use smallvec::SmallVec;

use super::malicious::DriverError;
use super::{offload, trace};
use crate::strict::rules;

/// Maximum frame length on the wire, excluding the FCS. With the FCS, the maximum is 9728 bytes (section 5.6).
pub(super) const MAX_FRAME_LEN: usize = 9728 - 4;

/// Minimum length of a frame posted by a driver, the same as on E810 hardware. Linux pads shorter frames.
const MIN_LEN: usize = 17;

/// Maximum number of buffers per frame without TSO, the same as on E810 hardware. Linux linearizes frames with more
/// buffers.
const MAX_BUFFERS: usize = 8;

/// Maximum number of buffers per TSO frame, which limits the state that a queue keeps between calls. Linux needs fewer
/// buffers: a TSO frame has at most 45 fragments, is at most 128 KiB long, and only fragments of 16 KiB or more are
/// split.
const MAX_TSO_BUFFERS: usize = 256;

/// Maximum number of descriptors to prefetch from the ring at a time.
const WINDOW: usize = 32;

/// An enabled transmit queue.
#[derive(Debug)]
pub(super) struct TransmitQueue {
    number: u16,
    context: TxContext,
    head: u16,
    tail: u16,
    window: Window,
    frame: PendingFrame,
    segments: Option<Segments>,
    /// Spare header buffer, which the next TSO frame reuses.
    spare: Vec<u8>,
    frames: u64,
    bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The queue appended a frame with the given destination.
    Frame(Destination),
    /// The queue consumed descriptors that do not produce a frame.
    NoFrame,
    /// No descriptors are posted.
    Idle,
}

/// Prefetched descriptors. The copies stay valid because software does not modify descriptors between head and tail.
#[derive(Debug)]
struct Window {
    bytes: [[u8; LEN]; WINDOW],
    len: usize,
    next: usize,
}

/// The frame being assembled from descriptors.
#[derive(Debug, Default)]
struct PendingFrame {
    context: Option<ContextDescriptor>,
    filter: bool,
    first: Option<First>,
    buffers: SmallVec<[Buffer; MAX_BUFFERS]>,
    /// Total length of the buffers.
    len: usize,
    /// Descriptors to mark as done when the frame has been read.
    reports: SmallVec<[DoneReport; 2]>,
    /// Buffer index and offset of the next byte to read.
    position: (usize, u16),
}

/// Fields of a frame's first data descriptor.
#[derive(Clone, Copy, Debug)]
struct First {
    command: Command,
    headers: HeaderLengths,
    tag: u16,
}

#[derive(Clone, Copy, Debug)]
struct Buffer {
    at: Iova,
    len: u16,
}

#[derive(Clone, Copy, Debug)]
struct DoneReport {
    index: u16,
    done: u8,
}

impl TransmitQueue {
    pub(super) fn new(number: u16, context: TxContext) -> Self {
        Self {
            number,
            context,
            head: 0,
            tail: 0,
            window: Window { bytes: [[0; LEN]; WINDOW], len: 0, next: 0 },
            frame: PendingFrame::default(),
            segments: None,
            spare: Vec::new(),
            frames: 0,
            bytes: 0,
        }
    }

    pub(super) const fn context(&self) -> &TxContext {
        &self.context
    }

    /// Returns the number of frames and bytes sent.
    pub(super) const fn traffic(&self) -> (u64, u64) {
        (self.frames, self.bytes)
    }

    /// Returns the index of the next descriptor to fetch.
    pub(super) const fn head(&self) -> u16 {
        self.head
    }

    pub(super) const fn tail(&self) -> u16 {
        self.tail
    }

    /// Handles a doorbell that posts the descriptors before `tail`.
    ///
    /// # Errors
    /// Fails if the index is outside the ring.
    pub(super) fn set_tail(&mut self, tail: u32) -> Result<(), DriverError> {
        match u16::try_from(tail) {
            Ok(tail) if tail < self.context.ring_len => {
                self.tail = tail;
                Ok(())
            }
            _ => Err(DriverError::TailBeyondRing),
        }
    }

    /// Returns whether another call to `poll` may make progress.
    pub(super) const fn has_work(&self) -> bool {
        self.segments.is_some() || self.head != self.tail
    }

    /// Appends the next frame to `out`, marks completed descriptors as done, and adds their number to `done`.
    ///
    /// # Errors
    /// Fails on a driver violation, which stops the queue. `out` is then unchanged.
    pub(super) fn poll(
        &mut self,
        (memory, monitor): (&GuestMemory, &mut Monitor),
        out: &mut Vec<u8>,
        done: &mut u32,
    ) -> Result<Step, DriverError> {
        let start = out.len();
        let step = self.step((memory, monitor), out, done).inspect_err(|_| out.truncate(start))?;
        if let Step::Frame(_) = step {
            self.frames += 1;
            self.bytes += (out.len() - start) as u64;
        }
        Ok(step)
    }

    fn step(
        &mut self,
        (memory, monitor): (&GuestMemory, &mut Monitor),
        out: &mut Vec<u8>,
        done: &mut u32,
    ) -> Result<Step, DriverError> {
        if self.segments.is_none() {
            let Some(first) = self.gather(memory, monitor)? else { return Ok(Step::Idle) };
            if first.command.dummy() {
                *done += self.complete(memory, monitor)?;
                return Ok(Step::NoFrame);
            }
            let context = self.frame.context.unwrap_or_default();
            let tag = first.command.insert_tag().then_some(first.tag);
            let tags = offload::tags(&context, tag);
            let inserted_len = tags.bytes().len();
            let offloads = offload::headers(first.command, first.headers, &context.tunnel, inserted_len)?;
            let Some(segmentation) = context.segmentation else {
                self.emit_unsegmented(memory, &offloads, &tags, out)?;
                *done += self.complete(memory, monitor)?;
                return Ok(Step::Frame(context.destination));
            };
            let headers_len = offloads.headers_len().saturating_sub(inserted_len);
            if self.frame.len != headers_len + segmentation.payload_len as usize {
                return Err(DriverError::SegmentedLength);
            }
            let mut headers = std::mem::take(&mut self.spare);
            headers.clear();
            self.frame.take_tagged(memory, headers_len, &tags, &mut headers)?;
            self.segments = Some(offload::segments(headers, offloads, segmentation)?);
        }
        let Some(segments) = &mut self.segments else { return Ok(Step::Idle) };
        let destination = self.frame.context.unwrap_or_default().destination;
        let start = out.len();
        let last = segments.emit(out, |len, out| self.frame.take(memory, len, out))?;
        nic::pad(out, start);
        if last {
            self.spare = self.segments.take().map(Segments::into_headers).unwrap_or_default();
            *done += self.complete(memory, monitor)?;
        }
        Ok(Step::Frame(destination))
    }

    /// Appends a frame that does not use TSO. Inserts the tags and computes the checksums.
    fn emit_unsegmented(
        &mut self,
        memory: &GuestMemory,
        offloads: &Offloads,
        tags: &Insertion,
        out: &mut Vec<u8>,
    ) -> Result<(), DriverError> {
        let start = out.len();
        let len = self.frame.len;
        if len < MIN_LEN {
            return Err(DriverError::FrameTooShort);
        }
        if len + tags.bytes().len() > MAX_FRAME_LEN {
            return Err(DriverError::FrameTooLong);
        }
        self.frame.take_tagged(memory, len, tags, out)?;
        offloads.fill_checksums(out.get_mut(start..).unwrap_or_default())?;
        nic::pad(out, start);
        Ok(())
    }

    /// Fetches descriptors up to the end of a frame. Returns `None` if the tail is reached first, and keeps the
    /// descriptors fetched so far.
    ///
    /// The number of descriptors fetched is at most the maximum number of buffers plus three: one context descriptor,
    /// one filter descriptor, and the data descriptor that exceeds the maximum.
    fn gather(&mut self, memory: &GuestMemory, monitor: &mut Monitor) -> Result<Option<First>, DriverError> {
        while self.head != self.tail {
            let index = self.head;
            let descriptor = self.next_descriptor(memory)?;
            trace::transmit(monitor, (self.number, index), &descriptor);
            let frame = &mut self.frame;
            match descriptor {
                TxDescriptor::Context(context) if frame.context.is_none() && frame.first.is_none() => {
                    frame.context = Some(context);
                }
                TxDescriptor::FilterProgram if !frame.filter && frame.first.is_none() => {
                    frame.filter = true;
                }
                TxDescriptor::Data(data) => {
                    if monitor.is_strict() && !frame.matches_first(&data) {
                        let number = self.number;
                        monitor.violation(
                            &rules::FRAME_COMMANDS,
                            format_args!("commands of descriptor {index} of transmit queue {number} conflict with the frame's first descriptor"),
                        );
                    }
                    frame.add(index, &data)?;
                    if data.command.end_of_packet() {
                        return Ok(frame.first);
                    }
                }
                TxDescriptor::Context(_) | TxDescriptor::FilterProgram | TxDescriptor::Unknown(_) => {
                    return Err(DriverError::DescriptorType);
                }
            }
        }
        Ok(None)
    }

    fn next_descriptor(&mut self, memory: &GuestMemory) -> Result<TxDescriptor, DriverError> {
        let ring_len = self.context.ring_len;
        if self.window.next == self.window.len {
            let end = if self.head < self.tail { self.tail } else { ring_len };
            let count = usize::from(end - self.head).min(WINDOW);
            let at = self.address(self.head);
            let bytes = self.window.bytes.get_mut(..count).unwrap_or_default();
            memory.read(at, bytes.as_flattened_mut()).map_err(|_| DriverError::RingOutsideMemory)?;
            (self.window.next, self.window.len) = (0, count);
        }
        let bytes = self.window.bytes.get(self.window.next).ok_or(DriverError::RingOutsideMemory)?;
        self.window.next += 1;
        self.head = if self.head + 1 == ring_len { 0 } else { self.head + 1 };
        Ok(TxDescriptor::parse(bytes))
    }

    /// Marks each descriptor of the frame as done if its RS bit is set. Returns the number of descriptors marked.
    fn complete(&mut self, memory: &GuestMemory, monitor: &mut Monitor) -> Result<u32, DriverError> {
        let frame = std::mem::take(&mut self.frame);
        let mut done = 0;
        for report in &frame.reports {
            let at = self.address(report.index).get().wrapping_add(DONE_OFFSET);
            memory.publish(Iova::new(at), &[report.done]).map_err(|_| DriverError::RingOutsideMemory)?;
            trace::transmit_done(monitor, (self.number, report.index));
            done += 1;
        }
        Ok(done)
    }

    const fn address(&self, index: u16) -> Iova {
        self.context.ring.entry(index, LEN)
    }
}

impl PendingFrame {
    /// Returns whether a data descriptor has the same header lengths and, apart from EOP and RS, the same command bits
    /// as the frame's first data descriptor.
    fn matches_first(&self, data: &DataDescriptor) -> bool {
        let shared_bits = |command: Command| command.with_end_of_packet(false).with_report_status(false);
        self.first.is_none_or(|first| {
            shared_bits(first.command) == shared_bits(data.command) && first.headers == data.headers
        })
    }

    fn add(&mut self, index: u16, data: &DataDescriptor) -> Result<(), DriverError> {
        let tso = self.context.is_some_and(|context| context.segmentation.is_some());
        if self.buffers.len() >= if tso { MAX_TSO_BUFFERS } else { MAX_BUFFERS } {
            return Err(DriverError::TooManyBuffers);
        }
        if data.len == 0 {
            return Err(DriverError::EmptyBuffer);
        }
        let DataDescriptor { command, headers, tag, .. } = *data;
        self.first.get_or_insert(First { command, headers, tag });
        self.len += usize::from(data.len);
        self.buffers.push(Buffer { at: data.buffer, len: data.len });
        if command.report_status() {
            self.reports.push(DoneReport { index, done: data.done() });
        }
        Ok(())
    }

    /// Appends the next `len` bytes of the frame and inserts the tags after the MAC addresses.
    fn take_tagged(
        &mut self,
        memory: &GuestMemory,
        len: usize,
        tags: &Insertion,
        out: &mut Vec<u8>,
    ) -> Result<(), DriverError> {
        let mut rest = len;
        if !tags.bytes().is_empty() {
            let addresses = rest.min(ADDRESSES_LEN);
            self.take(memory, addresses, out)?;
            out.extend_from_slice(tags.bytes());
            rest -= addresses;
        }
        self.take(memory, rest, out)
    }

    /// Appends the next `len` bytes of the frame.
    fn take(&mut self, memory: &GuestMemory, len: usize, out: &mut Vec<u8>) -> Result<(), DriverError> {
        let mut rest = len;
        while rest > 0 {
            let (index, offset) = self.position;
            let buffer = self.buffers.get(index).ok_or(DriverError::SegmentedLength)?;
            let left = buffer.len - offset;
            let now = u16::try_from(rest).map_or(left, |rest| rest.min(left));
            let at = Iova::new(buffer.at.get().wrapping_add(offset.into()));
            memory.append(at, now.into(), out).map_err(|_| DriverError::BufferOutsideMemory)?;
            rest -= usize::from(now);
            self.position = if now == left { (index + 1, 0) } else { (index, offset + now) };
        }
        Ok(())
    }
}
