//! How a thread says that it sleeps and wants to be woken, and how another notices, so that neither is missed.

use std::sync::atomic::{AtomicU32, Ordering, fence};

/// Says that we want to be woken. The caller looks at the other's counter after this, and sleeps only if nothing changed.
///
/// Who sleeps stores its wish and then loads the counter; who wakes stores the counter and then loads the wish. If both
/// loads could come before both stores, each would miss the other and the sleeper would never be woken. No order of
/// acquire and release forbids that, for both are a store before a load of another place: it takes a full fence between
/// the two on both sides. With them at least one of the loads sees the other's store.
pub(super) fn want(wish: &AtomicU32) {
    wish.store(1, Ordering::Relaxed);
    fence(Ordering::SeqCst);
}

/// Whether the other side wants to be woken by what was stored just now. It is told once: see [`want`].
pub(super) fn is_wanted(wish: &AtomicU32) -> bool {
    fence(Ordering::SeqCst);
    wish.load(Ordering::Relaxed) != 0 && wish.swap(0, Ordering::Relaxed) != 0
}
