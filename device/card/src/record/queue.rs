//! The queue between a device's thread, which appends entries, and the thread that writes them to the file.
//!
//! The device appends entries without waiting for the file. It waits only for the lock, which the writer holds while it
//! takes the queued data. If the file is too slow, the queue fills up and the recording ends.

use std::collections::VecDeque;
use std::mem;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::chunk::TARGET_LEN;
use super::codec::{self, MAX_RUN};
use super::dedup::DedupCache;
use super::entry::{Ending, Entry};

/// Maximum number of bytes waiting to be written to the file. A device at full rate transfers about this many bytes in
/// a tenth of a second.
pub(super) const MAX_WAITING: usize = 128 << 20;

/// How long the writer lets entries accumulate so that the device rarely has to wake it. If the daemon is killed, the
/// accumulated entries are lost.
const GATHER_TIME: Duration = Duration::from_millis(20);

/// Once this many bytes are queued, the writer stops waiting for more.
const BATCH_LEN: usize = 4 * TARGET_LEN;

/// Number of buffers kept for reuse.
const SPARE: usize = 32;

pub(super) struct Queue {
    state: Mutex<State>,
    wake: Condvar,
    /// Signals that the writer has ended.
    ended: Condvar,
}

struct State {
    chunks: VecDeque<Vec<u8>>,
    /// Number of bytes in all chunks, including those being written.
    waiting: usize,
    /// Once `waiting` exceeds this value, the next entry ends the recording.
    room: usize,
    spare: Vec<Vec<u8>>,
    cache: DedupCache,
    /// The device's clock at the last recorded step, in nanoseconds.
    recorded: u64,
    /// Whether the writer is sleeping until entries arrive.
    idle: bool,
    phase: Phase,
    /// Why the recording ended without being closed.
    failure: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Open,
    /// No more entries are accepted.
    Closing,
    /// The writer has ended.
    Ended,
}

/// Work for the writer.
pub(super) struct Batch {
    pub(super) chunks: VecDeque<Vec<u8>>,
    pub(super) last: bool,
}

impl Queue {
    /// Creates a queue that accepts entries until more than `room` bytes are waiting.
    pub(super) fn new(room: usize) -> Self {
        let state = State {
            chunks: VecDeque::new(),
            waiting: 0,
            room,
            spare: Vec::new(),
            cache: DedupCache::default(),
            recorded: 0,
            idle: false,
            phase: Phase::Open,
            failure: None,
        };
        Self { state: Mutex::new(state), wake: Condvar::new(), ended: Condvar::new() }
    }

    /// Appends an entry. `now` is the device's clock in nanoseconds if the entry begins a step. Returns false if the
    /// entry does not fit, which ends the recording.
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
        let plenty = before < BATCH_LEN && state.waiting >= BATCH_LEN;
        if mem::take(&mut state.idle) || plenty || !fits {
            self.wake.notify_one();
        }
        fits
    }

    /// Appends the last entry and waits at most `timeout` for it to be written. Returns false on timeout.
    pub(super) fn close(&self, ending: Ending, timeout: Duration) -> bool {
        let mut state = self.lock();
        if state.phase == Phase::Open {
            state.push(&Entry::End(ending));
            state.phase = Phase::Closing;
        }
        self.wake.notify_one();
        let until = Instant::now() + timeout;
        while state.phase != Phase::Ended {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            (state, _) = self.ended.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner);
        }
        true
    }

    /// Waits for entries and returns them.
    pub(super) fn take(&self) -> Batch {
        let mut state = self.lock();
        while state.chunks.is_empty() && state.phase == Phase::Open {
            state.idle = true;
            state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.idle = false;
        if state.phase == Phase::Open && state.waiting < BATCH_LEN {
            (state, _) = self.wake.wait_timeout(state, GATHER_TIME).unwrap_or_else(PoisonError::into_inner);
        }
        Batch { chunks: mem::take(&mut state.chunks), last: state.phase != Phase::Open }
    }

    /// Releases a written chunk that [`Queue::take`] returned, and recycles its buffer.
    pub(super) fn done(&self, mut chunk: Vec<u8>) {
        let mut state = self.lock();
        state.waiting = state.waiting.saturating_sub(chunk.len());
        if state.spare.len() < SPARE {
            chunk.clear();
            state.spare.push(chunk);
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.lock().phase == Phase::Open
    }

    /// Returns why the recording ended without being closed, if it did.
    pub(super) fn failure(&self) -> Option<String> {
        self.lock().failure.clone()
    }

    /// Ends the recording. Called by the writer when it stops. `failure` is the writer's error, if any. Later entries
    /// are discarded.
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

    /// Locks the state. Poisoning is ignored because the state contains only complete entries even if a thread panics
    /// while it holds the lock.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn push(&mut self, entry: &Entry<'_>) {
        if self.chunks.back().is_none_or(|chunk| chunk.len() >= TARGET_LEN) {
            let chunk =
                self.spare.pop().unwrap_or_else(|| Vec::with_capacity(TARGET_LEN + (TARGET_LEN >> 2)));
            self.chunks.push_back(chunk);
        }
        if let Some(chunk) = self.chunks.back_mut() {
            let before = chunk.len();
            codec::encode_dedup(entry, &mut self.cache, chunk);
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
