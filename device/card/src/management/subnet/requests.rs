//! Tracks requests that are awaiting a response. Unsolicited responses are ignored and do not trigger further requests.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use engine::Instant;
use protocol::ids::Lid;
use protocol::mad::smp::attribute;

use super::{MAX_MISSED_SWEEPS, MAX_NODES};

/// Maximum number of outstanding requests to individual HCAs: three per HCA, for NodeInfo, NodeDescription and
/// PortInfo.
const MAX_REQUESTS: usize = 3 * MAX_NODES;

/// How long to wait for a response before repeating a request. A guest on an emulated CPU may take this long.
const ANSWER_TIME: Duration = Duration::from_secs(3);

/// A sweep, and the HCAs that have responded to its Get(NodeInfo). Each unicast LID is stored at most once,
/// which bounds the set.
#[derive(Clone, Debug)]
struct Sweep {
    tid: u32,
    answered: BTreeSet<Lid>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct OpenRequests {
    last_tid: u32,
    /// The most recent sweeps, newest last.
    sweeps: VecDeque<Sweep>,
    /// Outstanding requests by LID and attribute: transaction ID and start time.
    pending: BTreeMap<(Lid, u16), (u32, Instant)>,
    last_pruned: Instant,
}

impl OpenRequests {
    /// Registers a sweep. Returns the lower half of its transaction ID.
    pub(super) fn start_sweep(&mut self) -> u32 {
        let tid = self.next_tid();
        if self.sweeps.len() >= usize::from(MAX_MISSED_SWEEPS) {
            self.sweeps.pop_front();
        }
        self.sweeps.push_back(Sweep { tid, answered: BTreeSet::new() });
        tid
    }

    /// Registers a request to one HCA. Returns the lower half of its transaction ID, or `None` if the request is
    /// already outstanding or the table is full.
    pub(super) fn open(&mut self, now: Instant, lid: Lid, attribute: u16) -> Option<u32> {
        let is_pending = |at: Instant| now.saturating_since(at) < ANSWER_TIME;
        if self.pending.get(&(lid, attribute)).is_some_and(|(_, at)| is_pending(*at)) {
            return None;
        }
        if self.pending.len() >= MAX_REQUESTS && !is_pending(self.last_pruned) {
            self.pending.retain(|_, (_, at)| is_pending(*at));
            self.last_pruned = now;
        }
        if self.pending.len() >= MAX_REQUESTS {
            return None;
        }
        let tid = self.next_tid();
        self.pending.insert((lid, attribute), (tid, now));
        Some(tid)
    }

    /// Returns whether a response matches an outstanding request. Each response is accepted only once.
    pub(super) fn take(&mut self, from: Lid, attribute: u16, tid: u32) -> bool {
        if self.pending.get(&(from, attribute)).is_some_and(|(open_tid, _)| *open_tid == tid) {
            self.pending.remove(&(from, attribute));
            return true;
        }
        let sweep = self.sweeps.iter_mut().find(|sweep| sweep.tid == tid);
        sweep.is_some_and(|sweep| attribute == attribute::NODE_INFO && sweep.answered.insert(from))
    }

    fn next_tid(&mut self) -> u32 {
        self.last_tid = self.last_tid.wrapping_add(1);
        self.last_tid
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: Lid = Lid::new(2);
    const OTHER: Lid = Lid::new(3);
    const DESCRIPTION: u16 = attribute::NODE_DESCRIPTION;

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn response_is_accepted_once_from_queried_node() {
        let mut requests = OpenRequests::default();
        let tid = requests.open(at(0), PEER, DESCRIPTION).unwrap();
        assert!(!requests.take(OTHER, DESCRIPTION, tid), "a response from another HCA is ignored");
        assert!(
            !requests.take(PEER, attribute::PORT_INFO, tid),
            "a response with another attribute is ignored"
        );
        assert!(
            !requests.take(PEER, DESCRIPTION, tid + 1),
            "a response with another transaction ID is ignored"
        );
        assert!(requests.take(PEER, DESCRIPTION, tid));
        assert!(!requests.take(PEER, DESCRIPTION, tid), "a duplicate response is ignored");
    }

    #[test]
    fn node_response_to_sweep_is_accepted_once() {
        let mut requests = OpenRequests::default();
        let tid = requests.start_sweep();
        for lid in [PEER, OTHER] {
            assert!(requests.take(lid, attribute::NODE_INFO, tid));
            assert!(
                !requests.take(lid, attribute::NODE_INFO, tid),
                "a second response from {lid:?} is ignored"
            );
        }
        assert!(
            !requests.take(Lid::new(4), DESCRIPTION, tid),
            "a response with an attribute that was not requested is ignored"
        );
        for _ in 0..MAX_MISSED_SWEEPS {
            requests.start_sweep();
        }
        assert!(
            !requests.take(Lid::new(4), attribute::NODE_INFO, tid),
            "a response to an old sweep is ignored"
        );
    }

    #[test]
    fn outstanding_request_is_repeated_only_after_timeout() {
        let mut requests = OpenRequests::default();
        let first = requests.open(at(0), PEER, DESCRIPTION).unwrap();
        assert_eq!(requests.open(at(2), PEER, DESCRIPTION), None);
        let second = requests.open(at(3), PEER, DESCRIPTION).unwrap();
        assert!(!requests.take(PEER, DESCRIPTION, first), "a response to a timed-out request is ignored");
        assert!(requests.take(PEER, DESCRIPTION, second));
    }

    #[test]
    fn outstanding_requests_are_limited_and_expire() {
        let mut requests = OpenRequests::default();
        let opened = |requests: &mut OpenRequests, now| {
            (1..10_000).filter(|lid| requests.open(now, Lid::new(*lid), DESCRIPTION).is_some()).count()
        };
        assert_eq!(opened(&mut requests, at(10)), MAX_REQUESTS);
        assert_eq!(opened(&mut requests, at(11)), 0);
        assert_eq!(opened(&mut requests, at(14)), MAX_REQUESTS);
    }
}
