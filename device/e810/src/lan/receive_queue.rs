//! A receive queue: writes frames into posted buffers and completes their descriptors.
//!
//! # Spec
//! E810 interface, sections 8.3 and 8.4.

use card::memory::GuestMemory;
use card::nic::vlan::TAG_LEN;
use card::telemetry::monitor::Monitor;
use protocol::hca::e810::packet_type::PacketType;
use protocol::hca::e810::rx_context::{RxContext, Split};
use protocol::hca::e810::rx_descriptor::{LEN, Profile, RxBuffers, RxWriteBack, STATUS_OFFSET, Tag};
use protocol::ids::Iova;
use protocol::net::layers::Layers;
use smallvec::SmallVec;

use super::malicious::DriverError;
use super::{checks, trace};
use crate::strict::rules;

/// Maximum number of buffers per frame, the same as on E810 hardware. Linux posts buffers large enough to stay within
/// this limit.
const MAX_BUFFERS: usize = 5;

/// Maximum number of descriptors to prefetch from the ring at a time.
const WINDOW: usize = 16;

/// Length of the frame check sequence (FCS) in bytes.
const FCS_LEN: usize = 4;

/// An enabled receive queue.
#[derive(Debug)]
pub(super) struct ReceiveQueue {
    number: u16,
    context: RxContext,
    profile: Profile,
    head: u16,
    tail: u16,
    window: Window,
    counts: Counts,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) frames: u64,
    /// Bytes in delivered frames, including stripped VLAN tags but excluding the FCS.
    pub(super) bytes: u64,
    pub(super) dropped: u64,
}

/// Reason for not delivering a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RxError {
    /// Too few buffers are posted.
    NoBuffers,
    /// The frame exceeds the queue's maximum frame length or does not fit into [`MAX_BUFFERS`] buffers.
    TooLong,
    /// A driver violation, which stops the queue.
    Driver(DriverError),
}

/// Receive offloads for one frame, as selected by the VSI and by RSS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct RxOffload {
    /// Whether to move the outer VLAN tag from the frame to the descriptor.
    pub(in super::super) strip_tag: bool,
    /// RSS hash to report, if any.
    pub(in super::super) hash: Option<u32>,
}

/// Prefetched descriptors. The copies stay valid because software does not modify descriptors between head and tail.
#[derive(Debug)]
struct Window {
    bytes: [[u8; LEN]; WINDOW],
    len: usize,
    next: usize,
}

/// A frame as a list of slices, in order.
type Parts<'a> = SmallVec<[&'a [u8]; 4]>;

impl ReceiveQueue {
    /// Creates a queue without buffers.
    pub(super) fn new(number: u16, context: RxContext, profile: Profile) -> Self {
        let window = Window { bytes: [[0; LEN]; WINDOW], len: 0, next: 0 };
        // If the head is out of range, start at 0. The ring would otherwise never become empty.
        let head = if context.head < context.ring_len { context.head } else { 0 };
        Self { number, context, profile, head, tail: head, window, counts: Counts::default() }
    }

    /// Returns the violation in a queue context, if any (strict mode). Data buffers may have length 0, because the flow
    /// director's VSI has a queue that receives nothing.
    pub(super) fn context_violation(context: &RxContext) -> Option<&'static str> {
        let buffers = usize::from(context.data_len()) * MAX_BUFFERS;
        if context.ring_len == 0 {
            Some("the ring has no descriptors")
        } else if !context.long_descriptors {
            Some("descriptors have 16 bytes, expected 32")
        } else if context.data_len() != 0 && usize::from(context.max_frame) > buffers {
            Some("the maximum frame size exceeds five buffers")
        } else {
            None
        }
    }

    pub(super) const fn context(&self) -> &RxContext {
        &self.context
    }

    pub(super) const fn counts(&self) -> Counts {
        self.counts
    }

    /// Returns the index of the next descriptor to use.
    pub(super) const fn head(&self) -> u16 {
        self.head
    }

    pub(super) const fn tail(&self) -> u16 {
        self.tail
    }

    /// Sets the tail, which posts the descriptors before it.
    ///
    /// # Errors
    /// Fails if the index is outside the ring.
    pub(super) fn set_tail(&mut self, tail: u32) -> Result<(), DriverError> {
        match u16::try_from(tail) {
            Ok(tail) if tail < self.context.ring_len => {
                self.tail = tail;
                Ok(())
            }
            // Drivers write tail 0 before they enable a queue, so tail 0 is accepted even if the ring length is 0.
            Ok(0) => Ok(()),
            _ => Err(DriverError::TailBeyondRing),
        }
    }

    /// Returns the number of posted descriptors.
    pub(super) const fn free(&self) -> u16 {
        if self.head <= self.tail {
            self.tail - self.head
        } else {
            self.context.ring_len - self.head + self.tail
        }
    }

    /// Delivers a frame (without FCS) into the next posted buffers.
    ///
    /// # Errors
    /// See [`RxError`]. The frame is not delivered.
    pub(super) fn deliver(
        &mut self,
        (memory, monitor): (&GuestMemory, &mut Monitor),
        frame: &[u8],
        layers: &Layers,
        offload: RxOffload,
    ) -> Result<(), RxError> {
        let outcome = self.put((memory, monitor), frame, layers, offload);
        if outcome.is_ok() {
            self.counts.frames += 1;
            self.counts.bytes += frame.len() as u64;
        } else {
            self.counts.dropped += 1;
        }
        outcome
    }

    fn put(
        &mut self,
        (memory, monitor): (&GuestMemory, &mut Monitor),
        frame: &[u8],
        layers: &Layers,
        offload: RxOffload,
    ) -> Result<(), RxError> {
        // RXMAX includes the FCS.
        if frame.len() + FCS_LEN > self.context.max_frame.into() {
            return Err(RxError::TooLong);
        }
        let fcs = (!self.context.strip_crc).then(|| crc32fast::hash(frame).to_le_bytes());
        let (mut parts, tag) = match checks::strip(frame, layers.outer_tag.filter(|_| offload.strip_tag)) {
            Some((parts, tag)) => (Parts::from_slice(&parts), Some(tag)),
            None => (Parts::from_slice(&[frame]), None),
        };
        parts.extend(fcs.as_ref().map(<[u8; FCS_LEN]>::as_slice));
        let len: usize = parts.iter().map(|part| part.len()).sum();
        let stripped = tag.map_or(0, |_| TAG_LEN);
        let header_len = self.header_len(frame, layers, stripped);
        let data_len = len - header_len.unwrap_or_default();

        let buffer_len = usize::from(self.context.data_len());
        if buffer_len == 0 || data_len > buffer_len * MAX_BUFFERS {
            return Err(RxError::TooLong);
        }
        let count = data_len.div_ceil(buffer_len).max(1);
        if usize::from(self.free()) < count {
            return Err(RxError::NoBuffers);
        }

        let field = if self.context.tag_in_first_field { Tag::First } else { Tag::Second };
        let whole = RxWriteBack {
            packet_type: PacketType::of(layers),
            len: 0,
            header_len: None,
            end_of_packet: false,
            checks: checks::verify(frame, layers),
            tag: tag.map(field),
            hash: offload.hash,
        };
        let mut entries: SmallVec<[(u16, RxWriteBack); MAX_BUFFERS]> = SmallVec::new();
        let mut at = 0;
        for index in 0..count {
            let entry = self.head;
            let buffers = self.next_entry(memory).map_err(RxError::Driver)?;
            trace::receive(monitor, (self.number, entry), &buffers);
            if monitor.is_strict() && buffers.has_done_bit() {
                let number = self.number;
                monitor.violation(
                    &rules::RECEIVE_ENTRY,
                    format_args!("descriptor {entry} of receive queue {number} posted with the done bit set"),
                );
            }
            let header_len = header_len.filter(|_| index == 0);
            if let Some(header_len) = header_len {
                write(memory, &parts, at, header_len, buffers.headers)?;
                at += header_len;
            }
            let filled = (len - at).min(buffer_len);
            write(memory, &parts, at, filled, buffers.data)?;
            at += filled;
            let write_back = RxWriteBack {
                // `filled` is below 2^14, because the buffer size field is seven bits wide, in units of 128 bytes.
                len: u16::try_from(filled).unwrap_or_default(),
                header_len: header_len.and_then(|len| u16::try_from(len).ok()),
                end_of_packet: index + 1 == count,
                ..whole
            };
            entries.push((entry, write_back));
        }
        // Complete the descriptors only after all buffers are written, so that software never sees a partial frame.
        for (entry, write_back) in &entries {
            self.publish(memory, *entry, &write_back.emit(self.profile)).map_err(RxError::Driver)?;
            trace::receive_done(monitor, (self.number, *entry), write_back);
        }
        Ok(())
    }

    /// Returns the number of bytes to write to the header buffer, or `None` if header split does not apply.
    fn header_len(&self, frame: &[u8], layers: &Layers, stripped: usize) -> Option<usize> {
        let most = usize::from(self.context.header_len());
        let fitting = |len: usize| len.checked_sub(stripped).filter(|len| *len <= most);
        match self.context.split {
            Split::No | Split::Reserved => None,
            // If a layer does not fit, use the next outer layer. `ice` builds a packet around its header buffer,
            // because the data buffers have no headroom and no tailroom. The headers must therefore never be empty.
            Split::Headers => {
                let points = checks::split_points(frame, layers, &self.context);
                points.into_iter().flatten().find_map(fitting)
            }
            Split::Known => checks::headers_len(frame, layers).and_then(fitting),
        }
    }

    fn next_entry(&mut self, memory: &GuestMemory) -> Result<RxBuffers, DriverError> {
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
        Ok(RxBuffers::parse(bytes))
    }

    /// Writes a descriptor: the bytes after the status byte, then those before it, then the status byte. Software that
    /// sees the done bit therefore sees the whole descriptor.
    fn publish(&self, memory: &GuestMemory, entry: u16, bytes: &[u8; LEN]) -> Result<(), DriverError> {
        let at = self.address(entry);
        let (front, behind) = bytes.split_at(STATUS_OFFSET + 1);
        let behind_at = Iova::new(at.get().wrapping_add(front.len() as u64));
        memory
            .write(behind_at, behind)
            .and_then(|()| memory.publish(at, front))
            .map_err(|_| DriverError::RingOutsideMemory)
    }

    const fn address(&self, index: u16) -> Iova {
        self.context.ring.entry(index, LEN)
    }
}

/// Writes `len` bytes of the concatenated parts, starting at offset `from`.
fn write(memory: &GuestMemory, parts: &[&[u8]], from: usize, len: usize, to: Iova) -> Result<(), RxError> {
    let (mut skip, mut rest, mut to) = (from, len, to.get());
    for part in parts {
        let Some((_, part)) = part.split_at_checked(skip) else {
            skip -= part.len();
            continue;
        };
        skip = 0;
        let (now, _) = part.split_at(rest.min(part.len()));
        memory.write(Iova::new(to), now).map_err(|_| RxError::Driver(DriverError::BufferOutsideMemory))?;
        rest -= now.len();
        to = to.wrapping_add(now.len() as u64);
    }
    Ok(())
}
