//! The monotonic clock for the engine and for all deadlines.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use engine::Instant;
use rustix::time::{ClockId, clock_gettime};

pub(crate) fn now() -> Instant {
    let time = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    Instant::from_nanos(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
}

/// Returns the Unix time at which the monotonic clock was zero. The result changes if the system clock is stepped, and
/// is zero if the system clock is behind the monotonic clock.
pub(crate) fn origin() -> Duration {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since_1970.saturating_sub(Duration::from_nanos(now().as_nanos()))
}
