//! Encodes and decodes the entries of a recording. Each entry consists of a tag, followed by LEB128 numbers and byte
//! strings. A byte string of variable length is preceded by its length.
//!
//! Tags are part of the file format. If the meaning of a tag changes, [`FORMAT`](super::FORMAT) must change as
//! well.

use std::borrow::Cow;

use protocol::ids::MacAddr;
use thiserror::Error;

use super::dedup::{self, DedupCache, FrameParts, HEAD, TAIL};
use super::entry::{Content, Ending, Entry, Input, Update};

/// Maximum length of a byte string. It far exceeds the length of any client message, frame or guest memory read.
pub(super) const MAX_RUN: usize = 2 << 20;

/// Maximum length of an entry in bytes.
pub(super) const MAX_ENTRY: usize = MAX_RUN + 64;

mod tag {
    pub(super) const TIME: u8 = 0x01;
    pub(super) const MAP: u8 = 0x02;
    pub(super) const UNMAP: u8 = 0x03;
    pub(super) const UNMAP_ALL: u8 = 0x04;
    pub(super) const REGION_READ: u8 = 0x10;
    pub(super) const REGION_WRITE: u8 = 0x11;
    pub(super) const EVENTFD: u8 = 0x12;
    pub(super) const NO_EVENTFD: u8 = 0x13;
    pub(super) const MASK: u8 = 0x14;
    pub(super) const UNMASK: u8 = 0x15;
    pub(super) const TRIGGER: u8 = 0x16;
    pub(super) const UNWIRE: u8 = 0x17;
    pub(super) const RESET: u8 = 0x18;
    pub(super) const DISCONNECT: u8 = 0x19;
    pub(super) const FRAME: u8 = 0x1a;
    pub(super) const DEADLINE: u8 = 0x1b;
    pub(super) const DRAIN: u8 = 0x1c;
    pub(super) const LEFT: u8 = 0x1d;
    pub(super) const LINK_UP: u8 = 0x1e;
    pub(super) const LINK_DOWN: u8 = 0x1f;
    pub(super) const FAIL: u8 = 0x20;
    pub(super) const ADD_NEIGHBOUR: u8 = 0x21;
    pub(super) const REMOVE_NEIGHBOUR: u8 = 0x22;
    pub(super) const IMPAIR: u8 = 0x23;
    pub(super) const UNIMPAIR: u8 = 0x24;
    pub(super) const UNIMPAIR_ALL: u8 = 0x25;
    pub(super) const FRAME_AGAIN: u8 = 0x26;
    pub(super) const READ: u8 = 0x40;
    pub(super) const READ_REFUSED: u8 = 0x41;
    pub(super) const WRITE: u8 = 0x42;
    pub(super) const WRITE_REFUSED: u8 = 0x43;
    pub(super) const REPLACED: u8 = 0x44;
    pub(super) const KEPT: u8 = 0x45;
    pub(super) const UPDATE_REFUSED: u8 = 0x46;
    pub(super) const INTERRUPT: u8 = 0x47;
    pub(super) const SENT: u8 = 0x48;
    pub(super) const ANSWER: u8 = 0x49;
    pub(super) const DRAINED: u8 = 0x4a;
    pub(super) const READ_AGAIN: u8 = 0x4b;
    pub(super) const CLOSED: u8 = 0x70;
    pub(super) const FAILED: u8 = 0x71;
    pub(super) const FULL: u8 = 0x72;
    pub(super) const OVERRUN: u8 = 0x73;
}

/// Whether the data of an output is stored in full or as a digest.
mod form {
    pub(super) const BYTES: u8 = 0;
    pub(super) const DIGEST: u8 = 1;
}

/// Bits for the access rights of a mapping.
mod right {
    pub(super) const READ: u64 = 1;
    pub(super) const WRITE: u64 = 2;
    pub(super) const REACHABLE: u64 = 4;
}

/// Bits for the kinds of work pending at the end of an event loop iteration.
mod left {
    pub(super) const FRAMES: u64 = 1;
    pub(super) const OTHER: u64 = 2;
}

/// Reason why bytes cannot be decoded as an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CodecError {
    /// The entry continues beyond the end of its chunk.
    #[error("a recorded entry is truncated")]
    CutOff,
    /// The tag, form or flag is unknown.
    #[error("a recorded entry contains an unknown {what}: {value:#x}")]
    Unknown { what: &'static str, value: u64 },
    /// A number is out of range.
    #[error("a recorded entry contains an out-of-range number")]
    TooLarge,
    /// The entry refers to data that is not in the cache.
    #[error("a recorded entry refers to data that was not recorded")]
    NotKnown,
    /// The text of an impairment rule is not UTF-8.
    #[error("a recorded entry contains text that is not valid UTF-8")]
    Text,
}

/// Appends an entry. Data that is already in `cache` is replaced with a reference.
pub(super) fn encode_dedup(entry: &Entry<'_>, cache: &mut DedupCache, to: &mut Vec<u8>) {
    match entry {
        Entry::Read { iova, len, bytes: Some(bytes) } if dedup::is_kept(*len) => {
            let slot = dedup::slot_of_read(*iova);
            if cache.reads.get(slot) == *bytes {
                return numbers(to, tag::READ_AGAIN, &[*iova, wide(*len)]);
            }
            cache.reads.put(slot, bytes);
        }
        Entry::Input(Input::Frame(frame)) => {
            if let Some(FrameParts { head, payload, tail, slot }) = FrameParts::of(frame) {
                if let Some(slot) = cache.frames.find(slot, payload) {
                    numbers(to, tag::FRAME_AGAIN, &[wide(slot)]);
                    to.extend_from_slice(head);
                    return to.extend_from_slice(tail);
                }
                cache.frames.put_before(slot, payload);
            }
        }
        _ => {}
    }
    encode(entry, to);
}

/// Updates the cache with the entry at the start of `bytes`, exactly as [`encode_dedup`] did when the entry was
/// written. Returns the number of bytes that follow the entry.
pub(super) fn learn(bytes: &[u8], cache: &mut DedupCache) -> Result<usize, CodecError> {
    let mut from = Bytes(bytes);
    match from.byte()? {
        tag::READ => {
            let (iova, run) = (from.number()?, from.run()?);
            if dedup::is_kept(run.len()) {
                cache.reads.put(dedup::slot_of_read(iova), run);
            }
            Ok(from.0.len())
        }
        tag::FRAME => {
            if let Some(FrameParts { payload, slot, .. }) = FrameParts::of(from.run()?) {
                cache.frames.put_before(slot, payload);
            }
            Ok(from.0.len())
        }
        _ => decode(bytes, cache).map(|(_, rest)| rest.len()),
    }
}

pub(super) fn encode(entry: &Entry<'_>, to: &mut Vec<u8>) {
    match entry {
        Entry::Time { passed } => numbers(to, tag::TIME, &[*passed]),
        Entry::Map { iova, len, read, write, reachable } => {
            let rights =
                flag(*read, right::READ) | flag(*write, right::WRITE) | flag(*reachable, right::REACHABLE);
            numbers(to, tag::MAP, &[*iova, *len, rights]);
        }
        Entry::Unmap { iova, len } => numbers(to, tag::UNMAP, &[*iova, *len]),
        Entry::UnmapAll => to.push(tag::UNMAP_ALL),
        Entry::Input(input) => encode_input(input, to),
        Entry::Read { iova, bytes: Some(bytes), .. } => {
            numbers(to, tag::READ, &[*iova]);
            run(to, bytes);
        }
        Entry::Read { iova, len, bytes: None } => numbers(to, tag::READ_REFUSED, &[*iova, wide(*len)]),
        Entry::Write { iova, data, done } => {
            numbers(to, if *done { tag::WRITE } else { tag::WRITE_REFUSED }, &[*iova]);
            content(to, data);
        }
        Entry::Update { iova, outcome } => match outcome {
            Update::Replaced { before, after } => numbers(to, tag::REPLACED, &[*iova, *before, *after]),
            Update::Kept(before) => numbers(to, tag::KEPT, &[*iova, *before]),
            Update::Refused => numbers(to, tag::UPDATE_REFUSED, &[*iova]),
        },
        Entry::Interrupt { vector } => numbers(to, tag::INTERRUPT, &[wide(*vector)]),
        Entry::Frame(frame) => {
            to.push(tag::SENT);
            content(to, frame);
        }
        Entry::Answer(answer) => {
            to.push(tag::ANSWER);
            content(to, answer);
        }
        Entry::Drained { frames, other } => {
            numbers(to, tag::DRAINED, &[flag(*frames, left::FRAMES) | flag(*other, left::OTHER)]);
        }
        Entry::End(ending) => to.push(match ending {
            Ending::Closed => tag::CLOSED,
            Ending::Failed => tag::FAILED,
            Ending::Full => tag::FULL,
            Ending::Overrun => tag::OVERRUN,
        }),
    }
}

fn encode_input(input: &Input<'_>, to: &mut Vec<u8>) {
    match input {
        Input::RegionRead { region, offset, len } => {
            numbers(to, tag::REGION_READ, &[u64::from(*region), *offset, wide(*len)]);
        }
        Input::RegionWrite { region, offset, data } => {
            numbers(to, tag::REGION_WRITE, &[u64::from(*region), *offset]);
            run(to, data);
        }
        Input::Eventfd { vector, present } => {
            numbers(to, if *present { tag::EVENTFD } else { tag::NO_EVENTFD }, &[wide(*vector)]);
        }
        Input::Mask { vector, masked } => {
            numbers(to, if *masked { tag::MASK } else { tag::UNMASK }, &[wide(*vector)]);
        }
        Input::Trigger { vector } => numbers(to, tag::TRIGGER, &[wide(*vector)]),
        Input::Unwire => to.push(tag::UNWIRE),
        Input::Reset => to.push(tag::RESET),
        Input::Disconnect => to.push(tag::DISCONNECT),
        Input::Frame(frame) => {
            to.push(tag::FRAME);
            run(to, frame);
        }
        Input::Deadline => to.push(tag::DEADLINE),
        Input::Drain => to.push(tag::DRAIN),
        Input::Left { frames } => numbers(to, tag::LEFT, &[wide(*frames)]),
        Input::Link { up } => to.push(if *up { tag::LINK_UP } else { tag::LINK_DOWN }),
        Input::Fail => to.push(tag::FAIL),
        Input::AddNeighbour(mac) => {
            to.push(tag::ADD_NEIGHBOUR);
            to.extend_from_slice(&mac.0);
        }
        Input::RemoveNeighbour(mac) => {
            to.push(tag::REMOVE_NEIGHBOUR);
            to.extend_from_slice(&mac.0);
        }
        Input::Impair(rule) => {
            to.push(tag::IMPAIR);
            run(to, rule.as_bytes());
        }
        Input::Unimpair(Some(id)) => numbers(to, tag::UNIMPAIR, &[u64::from(*id)]),
        Input::Unimpair(None) => to.push(tag::UNIMPAIR_ALL),
    }
}

fn numbers(to: &mut Vec<u8>, tag: u8, values: &[u64]) {
    to.push(tag);
    values.iter().for_each(|value| number(to, *value));
}

fn number(to: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        to.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    to.push((value & 0x7f) as u8);
}

fn run(to: &mut Vec<u8>, bytes: &[u8]) {
    number(to, wide(bytes.len()));
    to.extend_from_slice(bytes);
}

fn content(to: &mut Vec<u8>, content: &Content<'_>) {
    match content {
        Content::Bytes(bytes) => {
            to.push(form::BYTES);
            run(to, bytes);
        }
        Content::Digest { len, xxh3 } => {
            numbers(to, form::DIGEST, &[wide(*len)]);
            to.extend_from_slice(&xxh3.to_le_bytes());
        }
    }
}

fn flag(set: bool, bit: u64) -> u64 {
    if set { bit } else { 0 }
}

fn wide(len: usize) -> u64 {
    len as u64
}

/// Decodes the entry at the start of `bytes`. Returns the entry and the bytes that follow it.
pub(super) fn decode<'a>(
    bytes: &'a [u8],
    cache: &'a DedupCache,
) -> Result<(Entry<'a>, &'a [u8]), CodecError> {
    let mut from = Bytes(bytes);
    let entry = match from.byte()? {
        tag::TIME => Entry::Time { passed: from.number()? },
        tag::MAP => {
            let (iova, len) = (from.number()?, from.number()?);
            let rights = from.flags("right", right::READ | right::WRITE | right::REACHABLE)?;
            let has = |right| rights & right != 0;
            let (read, write, reachable) = (has(right::READ), has(right::WRITE), has(right::REACHABLE));
            Entry::Map { iova, len, read, write, reachable }
        }
        tag::UNMAP => Entry::Unmap { iova: from.number()?, len: from.number()? },
        tag::UNMAP_ALL => Entry::UnmapAll,
        tag::READ => {
            let (iova, bytes) = (from.number()?, from.run()?);
            Entry::Read { iova, len: bytes.len(), bytes: Some(bytes) }
        }
        tag::READ_AGAIN => {
            let (iova, len) = (from.number()?, from.size()?);
            let bytes = cache.reads.get(dedup::slot_of_read(iova));
            if bytes.len() != len || bytes.is_empty() {
                return Err(CodecError::NotKnown);
            }
            Entry::Read { iova, len, bytes: Some(bytes) }
        }
        tag::FRAME_AGAIN => {
            let payload = cache.frames.get(from.size()?);
            if payload.is_empty() {
                return Err(CodecError::NotKnown);
            }
            let (head, tail) = (from.take(HEAD)?, from.take(TAIL)?);
            Entry::Input(Input::Frame([head, payload, tail].concat().into()))
        }
        tag::READ_REFUSED => Entry::Read { iova: from.number()?, len: from.size()?, bytes: None },
        tag::WRITE => Entry::Write { iova: from.number()?, data: from.content()?, done: true },
        tag::WRITE_REFUSED => Entry::Write { iova: from.number()?, data: from.content()?, done: false },
        tag::REPLACED => {
            let (iova, before, after) = (from.number()?, from.number()?, from.number()?);
            Entry::Update { iova, outcome: Update::Replaced { before, after } }
        }
        tag::KEPT => Entry::Update { iova: from.number()?, outcome: Update::Kept(from.number()?) },
        tag::UPDATE_REFUSED => Entry::Update { iova: from.number()?, outcome: Update::Refused },
        tag::INTERRUPT => Entry::Interrupt { vector: from.size()? },
        tag::SENT => Entry::Frame(from.content()?),
        tag::ANSWER => Entry::Answer(from.content()?),
        tag::DRAINED => {
            let work = from.flags("kind of work", left::FRAMES | left::OTHER)?;
            Entry::Drained { frames: work & left::FRAMES != 0, other: work & left::OTHER != 0 }
        }
        tag::CLOSED => Entry::End(Ending::Closed),
        tag::FAILED => Entry::End(Ending::Failed),
        tag::FULL => Entry::End(Ending::Full),
        tag::OVERRUN => Entry::End(Ending::Overrun),
        tag => Entry::Input(decode_input(tag, &mut from)?),
    };
    Ok((entry, from.0))
}

fn decode_input<'a>(tag: u8, from: &mut Bytes<'a>) -> Result<Input<'a>, CodecError> {
    Ok(match tag {
        tag::REGION_READ => {
            Input::RegionRead { region: from.small()?, offset: from.number()?, len: from.size()? }
        }
        tag::REGION_WRITE => {
            Input::RegionWrite { region: from.small()?, offset: from.number()?, data: from.run()?.into() }
        }
        tag::EVENTFD => Input::Eventfd { vector: from.size()?, present: true },
        tag::NO_EVENTFD => Input::Eventfd { vector: from.size()?, present: false },
        tag::MASK => Input::Mask { vector: from.size()?, masked: true },
        tag::UNMASK => Input::Mask { vector: from.size()?, masked: false },
        tag::TRIGGER => Input::Trigger { vector: from.size()? },
        tag::UNWIRE => Input::Unwire,
        tag::RESET => Input::Reset,
        tag::DISCONNECT => Input::Disconnect,
        tag::FRAME => Input::Frame(from.run()?.into()),
        tag::DEADLINE => Input::Deadline,
        tag::DRAIN => Input::Drain,
        tag::LEFT => Input::Left { frames: from.size()? },
        tag::LINK_UP => Input::Link { up: true },
        tag::LINK_DOWN => Input::Link { up: false },
        tag::FAIL => Input::Fail,
        tag::ADD_NEIGHBOUR => Input::AddNeighbour(from.mac()?),
        tag::REMOVE_NEIGHBOUR => Input::RemoveNeighbour(from.mac()?),
        tag::IMPAIR => {
            let rule = std::str::from_utf8(from.run()?).map_err(|_| CodecError::Text)?;
            Input::Impair(Cow::Borrowed(rule))
        }
        tag::UNIMPAIR => {
            Input::Unimpair(Some(u32::try_from(from.number()?).map_err(|_| CodecError::TooLarge)?))
        }
        tag::UNIMPAIR_ALL => Input::Unimpair(None),
        tag => return Err(CodecError::Unknown { what: "tag", value: tag.into() }),
    })
}

/// The part of a chunk that has not been decoded yet.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], CodecError> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(CodecError::CutOff)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], CodecError> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(CodecError::CutOff)?;
        self.0 = rest;
        Ok(*taken)
    }

    fn byte(&mut self) -> Result<u8, CodecError> {
        self.array().map(|[byte]| byte)
    }

    fn number(&mut self) -> Result<u64, CodecError> {
        let mut value = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if bits.leading_zeros() < shift {
                return Err(CodecError::TooLarge);
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(CodecError::TooLarge)
    }

    fn size(&mut self) -> Result<usize, CodecError> {
        let size = usize::try_from(self.number()?).map_err(|_| CodecError::TooLarge)?;
        if size <= MAX_RUN { Ok(size) } else { Err(CodecError::TooLarge) }
    }

    fn small(&mut self) -> Result<u8, CodecError> {
        u8::try_from(self.number()?).map_err(|_| CodecError::TooLarge)
    }

    fn flags(&mut self, what: &'static str, known: u64) -> Result<u64, CodecError> {
        let value = self.number()?;
        if value & !known == 0 { Ok(value) } else { Err(CodecError::Unknown { what, value }) }
    }

    fn run(&mut self) -> Result<&'a [u8], CodecError> {
        let len = self.size()?;
        self.take(len)
    }

    fn mac(&mut self) -> Result<MacAddr, CodecError> {
        self.array().map(MacAddr)
    }

    fn content(&mut self) -> Result<Content<'a>, CodecError> {
        match self.byte()? {
            form::BYTES => self.run().map(Content::Bytes),
            form::DIGEST => {
                let len = self.size()?;
                Ok(Content::Digest { len, xxh3: u64::from_le_bytes(self.array()?) })
            }
            form => Err(CodecError::Unknown { what: "form", value: form.into() }),
        }
    }
}
