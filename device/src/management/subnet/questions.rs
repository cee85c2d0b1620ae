//! Requests that wait for a response: unsolicited responses are ignored and cause no further requests.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use engine::Instant;
use protocol::ids::Lid;
use protocol::mad::smp::attribute;

use super::{MAX_NODES, PATIENCE};

/// Bound: open requests to single HCAs. Each may have three: NodeInfo, NodeDescription, PortInfo.
const MAX_QUESTIONS: usize = 3 * MAX_NODES;

/// Time for a response, during which the request is not repeated. An emulated guest may need long.
const ANSWER_TIME: Duration = Duration::from_secs(3);

/// A Get(NodeInfo) to all HCAs, and those that have responded: at most every unicast LID.
#[derive(Clone, Debug)]
struct Sweep {
    tid: u32,
    answered: BTreeSet<Lid>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Questions {
    last_tid: u32,
    /// The last few, newest last.
    sweeps: VecDeque<Sweep>,
    /// Open requests by LID and attribute: transaction ID and start time.
    open: BTreeMap<(Lid, u16), (u32, Instant)>,
    tidied: Instant,
}

impl Questions {
    /// Registers a sweep. Returns the lower half of its transaction ID.
    pub(super) fn ask_everybody(&mut self) -> u32 {
        let tid = self.next_tid();
        if self.sweeps.len() >= usize::from(PATIENCE) {
            self.sweeps.pop_front();
        }
        self.sweeps.push_back(Sweep { tid, answered: BTreeSet::new() });
        tid
    }

    /// Registers a request to one HCA. Returns the lower half of its transaction ID, or `None` if the request is open
    /// already or the table is full.
    pub(super) fn ask(&mut self, now: Instant, lid: Lid, attribute: u16) -> Option<u32> {
        let is_open = |at: Instant| now.saturating_since(at) < ANSWER_TIME;
        if self.open.get(&(lid, attribute)).is_some_and(|(_, at)| is_open(*at)) {
            return None;
        }
        if self.open.len() >= MAX_QUESTIONS && !is_open(self.tidied) {
            self.open.retain(|_, (_, at)| is_open(*at));
            self.tidied = now;
        }
        if self.open.len() >= MAX_QUESTIONS {
            return None;
        }
        let tid = self.next_tid();
        self.open.insert((lid, attribute), (tid, now));
        Some(tid)
    }

    /// Returns whether a response matches an open request. Each response is accepted once.
    pub(super) fn take(&mut self, from: Lid, attribute: u16, tid: u32) -> bool {
        if self.open.get(&(from, attribute)).is_some_and(|(asked, _)| *asked == tid) {
            self.open.remove(&(from, attribute));
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
    fn an_answer_is_taken_once_from_who_was_asked_and_for_what_was_asked() {
        let mut questions = Questions::default();
        let tid = questions.ask(at(0), PEER, DESCRIPTION).unwrap();
        assert!(!questions.take(OTHER, DESCRIPTION, tid), "another HCA's");
        assert!(!questions.take(PEER, attribute::PORT_INFO, tid), "of another attribute");
        assert!(!questions.take(PEER, DESCRIPTION, tid + 1), "of another transaction");
        assert!(questions.take(PEER, DESCRIPTION, tid));
        assert!(!questions.take(PEER, DESCRIPTION, tid), "a second time");
    }

    #[test]
    fn everybody_may_answer_a_look_around_once() {
        let mut questions = Questions::default();
        let tid = questions.ask_everybody();
        for lid in [PEER, OTHER] {
            assert!(questions.take(lid, attribute::NODE_INFO, tid));
            assert!(!questions.take(lid, attribute::NODE_INFO, tid), "{lid:?} again");
        }
        assert!(!questions.take(Lid::new(4), DESCRIPTION, tid), "what was not asked");
        for _ in 0..PATIENCE {
            questions.ask_everybody();
        }
        assert!(!questions.take(Lid::new(4), attribute::NODE_INFO, tid), "too late");
    }

    #[test]
    fn nobody_is_asked_again_before_it_had_time_to_answer() {
        let mut questions = Questions::default();
        let first = questions.ask(at(0), PEER, DESCRIPTION).unwrap();
        assert_eq!(questions.ask(at(2), PEER, DESCRIPTION), None);
        let second = questions.ask(at(3), PEER, DESCRIPTION).unwrap();
        assert!(!questions.take(PEER, DESCRIPTION, first), "given up");
        assert!(questions.take(PEER, DESCRIPTION, second));
    }

    #[test]
    fn questions_are_bounded_and_make_room_when_nobody_answers() {
        let mut questions = Questions::default();
        let asked = |questions: &mut Questions, now| {
            (1..10_000).filter(|lid| questions.ask(now, Lid::new(*lid), DESCRIPTION).is_some()).count()
        };
        assert_eq!(asked(&mut questions, at(10)), MAX_QUESTIONS);
        assert_eq!(asked(&mut questions, at(11)), 0);
        assert_eq!(asked(&mut questions, at(14)), MAX_QUESTIONS);
    }
}
