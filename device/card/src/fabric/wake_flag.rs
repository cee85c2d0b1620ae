//! A handshake between a sleeping thread and its wakers that never loses a wake-up.

use std::sync::atomic::{AtomicU32, Ordering, fence};

/// A flag that a thread sets before it sleeps, in memory shared with the threads that wake it.
///
/// The waker changes a variable, such as the head of a ring. The sleeper stores the flag, then loads the variable; the
/// waker stores the variable, then loads the flag. Without a fence, both loads could precede both stores. Each side
/// would then miss the other side's store, and the sleeper would never be woken. Acquire and release ordering does not
/// prevent this: it does not order a store before a later load from another location. A full fence between the store
/// and the load on each side ensures that at least one load sees the other side's store.
pub(super) struct WakeFlag<'a>(pub(super) &'a AtomicU32);

impl WakeFlag<'_> {
    /// Requests a wake-up. The caller must then check the waker's variable again and may sleep only if it has not
    /// changed.
    pub(super) fn request(&self) {
        self.0.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Returns whether the sleeper must be woken, and clears the flag. Call this after storing the variable.
    pub(super) fn take(&self) -> bool {
        fence(Ordering::SeqCst);
        self.0.load(Ordering::Relaxed) != 0 && self.0.swap(0, Ordering::Relaxed) != 0
    }

    pub(super) fn clear(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}
