//! What a device holds of its record: each of its parts tells it what it does, or is told what to meet.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::entry::{Content, Entry, Input, Update};
use super::player::Player;
use super::queue::Queue;

/// One end of a record. All clones are the same.
///
/// Nothing here fails: a record that cannot be written ends, and a replay that finds a difference keeps it for whoever
/// runs it.
#[derive(Clone)]
pub struct Tape(Side);

#[derive(Clone)]
enum Side {
    /// The device works, and this is written down.
    Recording(Arc<Queue>),
    /// The device does again what it did, without a guest.
    Playing(Arc<Mutex<Player>>),
}

impl Tape {
    /// To run a device from a record.
    pub fn playing(player: Arc<Mutex<Player>>) -> Self {
        Self(Side::Playing(player))
    }

    /// To record a device.
    pub(super) fn recording(queue: Arc<Queue>) -> Self {
        Self(Side::Recording(queue))
    }

    /// A step begins, at this time of the device's clock in nanoseconds. In a replay both are known already.
    pub fn step(&self, now: u64, input: Input<'_>) {
        if let Side::Recording(queue) = &self.0 {
            append_at(queue, Some(now), &Entry::Input(input));
        }
    }

    /// The same for a step in which no time is asked for.
    pub fn input(&self, input: Input<'_>) {
        self.record(&Entry::Input(input));
    }

    /// The client lent a range of its memory.
    pub fn map(&self, iova: u64, len: u64, (read, write): (bool, bool), reachable: bool) {
        self.record(&Entry::Map { iova, len, read, write, reachable });
    }

    /// The client took a range back.
    pub fn unmap(&self, iova: u64, len: u64) {
        self.record(&Entry::Unmap { iova, len });
    }

    /// The client took all ranges back.
    pub fn unmap_all(&self) {
        self.record(&Entry::UnmapAll);
    }

    /// Reads guest memory into `out` by `perform`, or as it was read.
    ///
    /// # Errors
    /// `perform` fails, or failed, which is told by `refusal`.
    pub fn read<E>(
        &self,
        iova: u64,
        out: &mut [u8],
        refusal: E,
        perform: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        match &self.0 {
            Side::Recording(queue) => {
                let read = perform(out);
                let bytes = read.is_ok().then_some(&*out);
                append(queue, &Entry::Read { iova, len: out.len(), bytes });
                read
            }
            Side::Playing(player) => {
                let len = out.len();
                let found = lock(player).read(iova, len, |bytes| out.copy_from_slice(bytes));
                if found { Ok(()) } else { Err(refusal) }
            }
        }
    }

    /// Appends `len` bytes of guest memory to `out` by `perform`, or as they were read.
    ///
    /// # Errors
    /// `perform` fails, or failed, which is told by `refusal`.
    pub fn append<E>(
        &self,
        iova: u64,
        len: usize,
        out: &mut Vec<u8>,
        refusal: E,
        perform: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
    ) -> Result<(), E> {
        match &self.0 {
            Side::Recording(queue) => {
                let before = out.len();
                let read = perform(out);
                let bytes = read.is_ok().then(|| out.get(before..)).flatten();
                append(queue, &Entry::Read { iova, len, bytes });
                read
            }
            Side::Playing(player) => {
                let found = lock(player).read(iova, len, |bytes| out.extend_from_slice(bytes));
                if found { Ok(()) } else { Err(refusal) }
            }
        }
    }

    /// Writes `data` to guest memory by `perform`, or tells whether it could be.
    ///
    /// # Errors
    /// `perform` fails, or failed, which is told by `refusal`.
    pub fn write<E>(
        &self,
        iova: u64,
        data: &[u8],
        refusal: E,
        perform: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        let content = Content::of(data);
        match &self.0 {
            Side::Recording(queue) => {
                let written = perform();
                append(queue, &Entry::Write { iova, data: content, done: written.is_ok() });
                written
            }
            Side::Playing(player) => {
                if lock(player).write(iova, content) {
                    Ok(())
                } else {
                    Err(refusal)
                }
            }
        }
    }

    /// Exchanges a word by `perform`, which gives what was there and what is there now, or with what was there then.
    ///
    /// # Errors
    /// `perform` fails, or failed, which is told by `refusal`.
    pub fn update<E, U: FnMut(u64) -> Option<u64>>(
        &self,
        iova: u64,
        mut update: U,
        refusal: E,
        perform: impl FnOnce(&mut dyn FnMut(u64) -> Option<u64>) -> Result<u64, E>,
    ) -> Result<u64, E> {
        match &self.0 {
            Side::Recording(queue) => {
                // The last call is the one that counted.
                let mut after = None;
                let updated = perform(&mut |before| {
                    after = update(before);
                    after
                });
                let outcome = match (&updated, after) {
                    (Ok(before), Some(after)) => Update::Replaced { before: *before, after },
                    (Ok(before), None) => Update::Kept(*before),
                    (Err(_), _) => Update::Refused,
                };
                append(queue, &Entry::Update { iova, outcome });
                updated
            }
            Side::Playing(player) => lock(player).update(iova, update).ok_or(refusal),
        }
    }

    /// The device signals a vector.
    pub fn interrupt(&self, vector: usize) {
        self.output(&Entry::Interrupt { vector });
    }

    /// The device has made a frame.
    pub fn frame(&self, frame: &[u8]) {
        self.output(&Entry::Frame(Content::of(frame)));
    }

    /// The client is told what it read.
    pub fn answer(&self, bytes: &[u8]) {
        self.output(&Entry::Answer(Content::of(bytes)));
    }

    /// The end of a turn left frames to be made, or other work.
    pub fn drained(&self, frames: bool, other: bool) {
        self.output(&Entry::Drained { frames, other });
    }

    fn record(&self, entry: &Entry<'_>) {
        if let Side::Recording(queue) = &self.0 {
            append(queue, entry);
        }
    }

    fn output(&self, entry: &Entry<'_>) {
        match &self.0 {
            Side::Recording(queue) => append(queue, entry),
            Side::Playing(player) => lock(player).output(entry),
        }
    }
}

fn append(queue: &Queue, entry: &Entry<'_>) {
    append_at(queue, None, entry);
}

fn append_at(queue: &Queue, now: Option<u64>, entry: &Entry<'_>) {
    if !queue.append(now, entry) {
        tracing::error!("recording stopped: data arrives faster than it can be written to the file");
    }
}

/// A device that panicked leaves a player that knows where.
fn lock(player: &Mutex<Player>) -> MutexGuard<'_, Player> {
    player.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for Tape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.0 {
            Side::Recording(_) => "Recording",
            Side::Playing(_) => "Playing",
        })
    }
}
