//! The handshake between a thread that sleeps and one that wakes it, which loses no wake-up.

use std::sync::atomic::{AtomicU32, Ordering, fence};

/// Requests a wake-up. Afterwards the caller checks the other side's counter again, and sleeps only if it has not
/// changed.
///
/// The sleeper stores the flag and then loads the counter. The waker stores the counter and then loads the flag. If
/// both loads could precede both stores, each side would miss the other and the sleeper would never be woken. Acquire
/// and release do not prevent that, since both sides have a store before a load of another location. A full fence
/// between the two on both sides ensures that at least one load sees the other's store.
pub(super) fn want(wish: &AtomicU32) {
    wish.store(1, Ordering::Relaxed);
    fence(Ordering::SeqCst);
}

/// Returns whether the other side has to be woken after the last store, and clears the flag: see [`request`].
pub(super) fn is_wanted(wish: &AtomicU32) -> bool {
    fence(Ordering::SeqCst);
    wish.load(Ordering::Relaxed) != 0 && wish.swap(0, Ordering::Relaxed) != 0
}
