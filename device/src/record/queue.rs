//! Entries on their way from the thread of a device to that of its file.
//!
//! The device appends and goes on; it waits for the lock only, which the other side holds to take a list. What is not
//! written in time fills the queue up to its bound, and then the record ends.

use std::collections::VecDeque;
use std::mem;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::chunk::ENOUGH;
use super::codec::{self, MAX_RUN};
use super::entry::{Ending, Entry};
use super::memo::Memo;

/// Bound: bytes that wait for the file. What a device moves in a tenth of a second, at the rates that one reaches.
pub(super) const MAX_WAITING: usize = 128 << 20;

/// How long the writer lets entries gather, so that the device seldom has to wake it. A daemon that is killed loses so much.
const GATHER: Duration = Duration::from_millis(20);

/// Bytes that are written without waiting for more.
const PLENTY: usize = 4 * ENOUGH;

/// Buffers that are kept to be used again.
const SPARE: usize = 32;

pub(super) struct Queue {
    state: Mutex<State>,
    /// The writer is to look.
    wake: Condvar,
    /// The writer has ended.
    ended: Condvar,
}

struct State {
    chunks: VecDeque<Vec<u8>>,
    /// Bytes of chunks, also of those that are being written.
    waiting: usize,
    /// Bound of `waiting`.
    room: usize,
    spare: Vec<Vec<u8>>,
    memo: Memo,
    /// The device's clock as far as it is in the record.
    recorded: u64,
    /// The writer sleeps until there is something.
    idle: bool,
    phase: Phase,
    /// Why the record ended before anybody wanted that.
    failure: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Open,
    /// Nothing is added any more.
    Closing,
    /// The writer is gone.
    Ended,
}

/// What the writer has to do.
pub(super) struct Batch {
    pub(super) chunks: VecDeque<Vec<u8>>,
    /// There will be no more.
    pub(super) last: bool,
}

impl Queue {
    /// For so many bytes that wait.
    pub(super) fn new(room: usize) -> Self {
        let state = State {
            chunks: VecDeque::new(),
            waiting: 0,
            room,
            spare: Vec::new(),
            memo: Memo::default(),
            recorded: 0,
            idle: false,
            phase: Phase::Open,
            failure: None,
        };
        Self { state: Mutex::new(state), wake: Condvar::new(), ended: Condvar::new() }
    }

    /// Adds an entry, which comes at this time of the device's clock if it begins a step, nanoseconds. False: the record
    /// ends with this call, for want of room.
    pub(super) fn append(&self, now: Option<u64>, entry: &Entry<'_>) -> bool {
        let mut state = self.lock();
        if state.phase != Phase::Open {
            return true;
        }
        if let Some(now) = now.filter(|now| *now != state.recorded) {
            let passed = now.wrapping_sub(state.recorded);
            state.recorded = now;
            state.push(&Entry::Time { passed });
        }
        let before = state.waiting;
        let fits = state.waiting <= state.room && longest_run(entry) <= MAX_RUN;
        if fits {
            state.push(entry);
        } else {
            state.push(&Entry::End(Ending::Overrun));
            state.failure = Some(Ending::Overrun.to_string());
            state.phase = Phase::Closing;
        }
        let plenty = before < PLENTY && state.waiting >= PLENTY;
        if mem::take(&mut state.idle) || plenty || !fits {
            self.wake.notify_one();
        }
        fits
    }

    /// Adds the last entry, and waits for up to `patience` until it is written. False: that takes longer.
    pub(super) fn close(&self, ending: Ending, patience: Duration) -> bool {
        let mut state = self.lock();
        if state.phase == Phase::Open {
            state.push(&Entry::End(ending));
            state.phase = Phase::Closing;
        }
        self.wake.notify_one();
        let until = Instant::now() + patience;
        while state.phase != Phase::Ended {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            (state, _) = self.ended.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner);
        }
        true
    }

    /// What there is to write, once there is some.
    pub(super) fn take(&self) -> Batch {
        let mut state = self.lock();
        while state.chunks.is_empty() && state.phase == Phase::Open {
            state.idle = true;
            state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.idle = false;
        if state.phase == Phase::Open && state.waiting < PLENTY {
            (state, _) = self.wake.wait_timeout(state, GATHER).unwrap_or_else(PoisonError::into_inner);
        }
        Batch { chunks: mem::take(&mut state.chunks), last: state.phase != Phase::Open }
    }

    /// A chunk of [`Queue::take`] is written.
    pub(super) fn done(&self, mut chunk: Vec<u8>) {
        let mut state = self.lock();
        state.waiting = state.waiting.saturating_sub(chunk.len());
        if state.spare.len() < SPARE {
            chunk.clear();
            state.spare.push(chunk);
        }
    }

    /// Whether entries are still taken.
    pub(super) fn is_open(&self) -> bool {
        self.lock().phase == Phase::Open
    }

    /// Why the record ended before anybody wanted that, if it did.
    pub(super) fn failure(&self) -> Option<String> {
        self.lock().failure.clone()
    }

    /// The writer ends, with what kept it from writing all: what is added from now on is lost.
    pub(super) fn end(&self, failure: Option<String>) {
        let mut state = self.lock();
        if let Some(failure) = failure {
            state.failure.get_or_insert(failure);
        }
        state.phase = Phase::Ended;
        state.chunks.clear();
        state.spare.clear();
        self.ended.notify_all();
    }

    /// A panic of one side leaves whole entries.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn push(&mut self, entry: &Entry<'_>) {
        if self.chunks.back().is_none_or(|chunk| chunk.len() >= ENOUGH) {
            let chunk = self.spare.pop().unwrap_or_else(|| Vec::with_capacity(ENOUGH + (ENOUGH >> 2)));
            self.chunks.push_back(chunk);
        }
        if let Some(chunk) = self.chunks.back_mut() {
            let before = chunk.len();
            codec::encode_briefly(entry, &mut self.memo, chunk);
            self.waiting += chunk.len() - before;
        }
    }
}

fn longest_run(entry: &Entry<'_>) -> usize {
    use super::entry::Input;
    match entry {
        Entry::Read { bytes: Some(bytes), .. } => bytes.len(),
        Entry::Input(Input::Frame(bytes) | Input::RegionWrite { data: bytes, .. }) => bytes.len(),
        Entry::Read { len, bytes: None, .. } => *len,
        Entry::Write { data, .. } => data.len(),
        _ => 0,
    }
}
