//! Updates a queue pair's counters when a front-end fetches or completes a request.

use card::frontend::snapshot::QpCounters;
use engine::{Completion, Fetch, Queue};

/// Counts a send request if `fetch` removed one from the queue.
pub fn count_send<T>(counters: &mut QpCounters, fetch: &Fetch<T>) {
    counters.sends += u64::from(is_taken(fetch));
}

/// Counts a receive request if `fetch` removed one from the queue.
pub fn count_receive<T>(counters: &mut QpCounters, fetch: &Fetch<T>) {
    counters.receives += u64::from(is_taken(fetch));
}

/// Counts a completion, whether or not a CQE reports it.
pub fn count_completion(counters: &mut QpCounters, completion: &Completion) {
    match completion.queue {
        Queue::Send => counters.sends_completed += 1,
        Queue::Recv => counters.receives_completed += 1,
    }
    counters.failed += u64::from(completion.result.is_err());
}

/// Returns whether a request has left its queue. This includes rejected requests, which complete with an error.
fn is_taken<T>(fetch: &Fetch<T>) -> bool {
    matches!(fetch, Fetch::Ready(_) | Fetch::Refused { .. })
}
