//! A cache that avoids storing repeated data in a recording. Data is often repeated: programs send from the same
//! buffers, devices read contexts and rings again and again, and peers retransmit lost packets.
//!
//! The writer and the reader of a recording each have a cache, and both update their caches in the same order.

use twox_hash::XxHash3_64;

/// Minimum length of a cached run of bytes.
const SHORTEST: usize = 256;

/// Maximum length of a cached run: a page, or the payload of a packet with the largest path MTU. The payload can be
/// preceded by headers that do not fit in [`HEAD`].
const LONGEST: usize = 4096 + 256;

/// Number of slots for each kind of run. Must be even, because neighbouring slots form pairs.
const RUNS: usize = 4096;

/// Number of bytes at the start and at the end of a frame that are not cached. They contain the headers and the ICRC,
/// in which even frames with the same payload usually differ.
pub(super) const HEAD: usize = 64;
pub(super) const TAIL: usize = 4;

const PAGE: u64 = 4096;

/// Multiplier that is applied to an offset in a page to select a slot. It is odd so that different offsets in a page
/// get different slots.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Number of payload bytes that determine the payload's slot.
const SAMPLE: usize = 64;

/// The cached runs. For a read from guest memory, the address selects the slot. For a frame, the first bytes of
/// the payload select it. The choice of slots is part of the file format.
#[derive(Default)]
pub(super) struct DedupCache {
    pub(super) reads: Runs,
    pub(super) frames: Runs,
}

#[derive(Default)]
pub(super) struct Runs(Vec<Vec<u8>>);

impl Runs {
    /// Returns the run in a slot, or an empty slice if the slot is empty.
    pub(super) fn get(&self, slot: usize) -> &[u8] {
        self.0.get(slot).map_or(&[], Vec::as_slice)
    }

    /// Searches the given slot and its neighbour for a run. Returns the slot that contains the run.
    pub(super) fn find(&self, slot: usize, run: &[u8]) -> Option<usize> {
        [slot, slot ^ 1].into_iter().find(|slot| self.get(*slot) == run)
    }

    /// Stores a run in a slot. The slot's old run moves to the neighbouring slot, replacing the run there.
    pub(super) fn put_before(&mut self, slot: usize, run: &[u8]) {
        if slot.max(slot ^ 1) < self.0.len() {
            self.0.swap(slot, slot ^ 1);
        }
        self.put(slot, run);
    }

    pub(super) fn put(&mut self, slot: usize, run: &[u8]) {
        if self.0.is_empty() {
            self.0.resize(RUNS, Vec::new());
        }
        if let Some(kept) = self.0.get_mut(slot) {
            kept.clear();
            kept.extend_from_slice(run);
        }
    }
}

/// Returns whether runs of length `len` are cached.
pub(super) fn is_kept(len: usize) -> bool {
    (SHORTEST..=LONGEST).contains(&len)
}

/// Returns the slot for a read at the given address. Consecutive pages get different slots.
pub(super) fn slot_of_read(iova: u64) -> usize {
    let (page, within) = (iova / PAGE, iova % PAGE);
    slot(page.wrapping_add(within.wrapping_mul(SPREAD)))
}

/// A frame whose payload length permits caching, split into its parts.
pub(super) struct FrameParts<'a> {
    pub(super) head: &'a [u8; HEAD],
    pub(super) payload: &'a [u8],
    pub(super) tail: &'a [u8; TAIL],
    /// Slot of the payload.
    pub(super) slot: usize,
}

impl<'a> FrameParts<'a> {
    /// Splits a frame. Returns `None` if the payload is too short or too long for the cache.
    pub(super) fn of(frame: &'a [u8]) -> Option<Self> {
        let (head, rest) = frame.split_first_chunk()?;
        let (payload, tail) = rest.split_last_chunk()?;
        let sample = payload.get(..SAMPLE)?;
        is_kept(payload.len()).then(|| Self { head, payload, tail, slot: slot(XxHash3_64::oneshot(sample)) })
    }
}

fn slot(key: u64) -> usize {
    // The conversion cannot fail because the remainder is below RUNS.
    usize::try_from(key % RUNS as u64).unwrap_or(0)
}
