//! The sink to which a device reports its inputs and outputs. In a recording, they are written to a file. In a replay,
//! the outputs are compared with the recorded ones.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::entry::{Content, Entry, Input, Update};
use super::queue::Queue;
use super::replay_source::ReplaySource;
use crate::log_line;

/// A device's interface to its recorder or its replay. All clones report to the same recorder or
/// replay.
///
/// Recording stops if the file cannot be written. A replay stores the first difference in its [`ReplaySource`].
#[derive(Clone)]
pub struct RecordSink(Side);

#[derive(Clone)]
enum Side {
    /// The device runs and is recorded.
    Recording(Arc<Queue>),
    /// The device is replayed without a guest.
    Playing(Arc<Mutex<ReplaySource>>),
}

impl RecordSink {
    /// Creates the device's side of a replay.
    pub fn playing(source: Arc<Mutex<ReplaySource>>) -> Self {
        Self(Side::Playing(source))
    }

    /// Creates the device's side of a recording.
    pub(super) fn recording(queue: Arc<Queue>) -> Self {
        Self(Side::Recording(queue))
    }

    /// Records the input that begins a step. `now` is the device's clock in nanoseconds. Has no effect in a replay.
    pub fn step(&self, now: u64, input: Input<'_>) {
        if let Side::Recording(queue) = &self.0 {
            append_at(queue, Some(now), &Entry::Input(input));
        }
    }

    /// Like [`RecordSink::step`], but for an input without a timestamp.
    pub fn input(&self, input: Input<'_>) {
        self.record(&Entry::Input(input));
    }

    /// Records that the client mapped memory.
    pub fn map(&self, iova: u64, len: u64, (read, write): (bool, bool), reachable: bool) {
        self.record(&Entry::Map { iova, len, read, write, reachable });
    }

    pub fn unmap(&self, iova: u64, len: u64) {
        self.record(&Entry::Unmap { iova, len });
    }

    pub fn unmap_all(&self) {
        self.record(&Entry::UnmapAll);
    }

    /// Reads guest memory into `out`. In a recording, `perform` reads the memory. In a replay, the bytes come from the
    /// file.
    ///
    /// # Errors
    /// Returns the error from `perform`, or `refusal` if the recorded access was denied.
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
            Side::Playing(source) => {
                let len = out.len();
                let found = lock(source).read(iova, len, |bytes| out.copy_from_slice(bytes));
                if found { Ok(()) } else { Err(refusal) }
            }
        }
    }

    /// Appends `len` bytes of guest memory to `out`. In a recording, `perform` reads the memory. In a replay, the bytes
    /// come from the file.
    ///
    /// # Errors
    /// Returns the error from `perform`, or `refusal` if the recorded access was denied.
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
            Side::Playing(source) => {
                let found = lock(source).read(iova, len, |bytes| out.extend_from_slice(bytes));
                if found { Ok(()) } else { Err(refusal) }
            }
        }
    }

    /// In a recording, writes `data` to guest memory with `perform`. In a replay, compares `data` with the recorded
    /// data.
    ///
    /// # Errors
    /// Returns the error from `perform`, or `refusal` if the recorded access was denied.
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
            Side::Playing(source) => {
                if lock(source).write(iova, content) {
                    Ok(())
                } else {
                    Err(refusal)
                }
            }
        }
    }

    /// Executes a compare-and-swap and returns the old value. In a recording, `perform` executes the operation. In a
    /// replay, the old value comes from the file.
    ///
    /// # Errors
    /// Returns the error from `perform`, or `refusal` if the recorded access was denied.
    pub fn update<E, U: FnMut(u64) -> Option<u64>>(
        &self,
        iova: u64,
        mut update: U,
        refusal: E,
        perform: impl FnOnce(&mut dyn FnMut(u64) -> Option<u64>) -> Result<u64, E>,
    ) -> Result<u64, E> {
        match &self.0 {
            Side::Recording(queue) => {
                // The closure may be called several times. Only the result of its last call takes effect.
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
            Side::Playing(source) => lock(source).update(iova, update).ok_or(refusal),
        }
    }

    /// Reports that the device signals an interrupt vector.
    pub fn interrupt(&self, vector: usize) {
        self.output(&Entry::Interrupt { vector });
    }

    /// Reports a frame sent by the device.
    pub fn frame(&self, frame: &[u8]) {
        self.output(&Entry::Frame(Content::of(frame)));
    }

    /// Reports the data returned for a client's read.
    pub fn answer(&self, bytes: &[u8]) {
        self.output(&Entry::Answer(Content::of(bytes)));
    }

    /// Reports which kinds of work are pending at the end of an event loop iteration: whether there are frames to send,
    /// and whether there is other work.
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
            Side::Playing(source) => lock(source).output(entry),
        }
    }
}

fn append(queue: &Queue, entry: &Entry<'_>) {
    append_at(queue, None, entry);
}

fn append_at(queue: &Queue, now: Option<u64>, entry: &Entry<'_>) {
    if !queue.append(now, entry) {
        log_line!(error, "recording stopped: data is arriving faster than it can be written to the file");
    }
}

/// Locks the source. Poisoning is ignored because the replay state stays valid even if the device panics.
fn lock(source: &Mutex<ReplaySource>) -> MutexGuard<'_, ReplaySource> {
    source.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for RecordSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.0 {
            Side::Recording(_) => "Recording",
            Side::Playing(_) => "Playing",
        })
    }
}
