//! What was recorded not long ago, so that it need not be written again: programs send from the same buffers, contexts and
//! rings are read again and again, and what is lost is read and sent once more.
//!
//! Writer and reader of a record each have one, and learn the same in the same order.

use twox_hash::XxHash3_64;

/// Bytes of a run from which on it is worth looking for.
const SHORTEST: usize = 256;

/// Bound: bytes of a run. A page, or the frame of a packet of the largest path MTU.
const LONGEST: usize = 4096 + 256;

/// Bound: runs of each kind. Even.
const RUNS: usize = 4096;

/// Bytes of a frame that differ though its payload is the same: headers, and its check at the end.
pub(super) const HEAD: usize = 64;
pub(super) const TAIL: usize = 4;

const PAGE: u64 = 4096;

/// Odd, so that parts of a page have places of their own too.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Of a payload, bytes that say where to look for it.
const SAMPLE: usize = 64;

/// Runs by where they were read, and payloads of frames by how they begin. Places are a part of the format.
#[derive(Default)]
pub(super) struct Memo {
    pub(super) reads: Runs,
    pub(super) frames: Runs,
}

/// Runs by their place, of which there are [`RUNS`].
#[derive(Default)]
pub(super) struct Runs(Vec<Vec<u8>>);

impl Runs {
    /// What is remembered there; nothing is empty.
    pub(super) fn get(&self, place: usize) -> &[u8] {
        self.0.get(place).map_or(&[], Vec::as_slice)
    }

    /// Where a run is remembered, at its place or beside it.
    pub(super) fn find(&self, place: usize, run: &[u8]) -> Option<usize> {
        [place, place ^ 1].into_iter().find(|place| self.get(*place) == run)
    }

    /// Remembers a run. What was there is now beside it, in place of what was there.
    pub(super) fn put_before(&mut self, place: usize, run: &[u8]) {
        if place.max(place ^ 1) < self.0.len() {
            self.0.swap(place, place ^ 1);
        }
        self.put(place, run);
    }

    /// Remembers a run in place of what was there.
    pub(super) fn put(&mut self, place: usize, run: &[u8]) {
        if self.0.is_empty() {
            self.0.resize(RUNS, Vec::new());
        }
        if let Some(kept) = self.0.get_mut(place) {
            kept.clear();
            kept.extend_from_slice(run);
        }
    }
}

/// Whether a run is remembered.
pub(super) fn is_kept(len: usize) -> bool {
    (SHORTEST..=LONGEST).contains(&len)
}

/// The place of what is read at an address. Pages that follow each other have places of their own.
pub(super) fn place_of_read(iova: u64) -> usize {
    let (page, within) = (iova / PAGE, iova % PAGE);
    place(page.wrapping_add(within.wrapping_mul(SPREAD)))
}

/// A frame whose payload is remembered.
pub(super) struct Parts<'a> {
    pub(super) head: &'a [u8; HEAD],
    pub(super) payload: &'a [u8],
    pub(super) tail: &'a [u8; TAIL],
    /// Of the payload.
    pub(super) place: usize,
}

impl<'a> Parts<'a> {
    /// `None` if it is too short or too long for that.
    pub(super) fn of(frame: &'a [u8]) -> Option<Self> {
        let (head, rest) = frame.split_first_chunk()?;
        let (payload, tail) = rest.split_last_chunk()?;
        let sample = payload.get(..SAMPLE)?;
        is_kept(payload.len()).then(|| Self {
            head,
            payload,
            tail,
            place: place(XxHash3_64::oneshot(sample)),
        })
    }
}

fn place(key: u64) -> usize {
    // The remainder is below RUNS.
    usize::try_from(key % RUNS as u64).unwrap_or(0)
}
