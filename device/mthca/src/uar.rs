//! Doorbells in UAR pages that are mapped into the guest. Stores to these pages do not trap.
//!
//! Software first updates a doorbell record in memory, and then stores a doorbell with the same contents. In a mapped
//! page, that store just writes a word in memory. The device finds the word later, or not at all if the doorbell of
//! another queue has overwritten it. A 32-bit guest stores the word in two halves, of which the device may find only
//! one. A word therefore only shows that its page has been used. The device polls the doorbell record of the queue that
//! the word names, and then the records of all queues of the page in a polling round. The rest of the word is ignored.
//!
//! # Spec
//! mthca interface, sections 5.1 to 5.4.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound::{Excluded, Unbounded};

use card::frontend::Context;
use engine::State;
use hcr::host::notify_send;
use hcr::notify::Notify;
use hcr::reason::OVERFLOW;
use protocol::hca::mthca::doorbell::{RECORD_LEN, UAR_PAGE, UarRegister};

use super::doorbell::Doorbell;
use super::observed::Observed;
use super::resources::Resources;
use super::work_queue::Advance;

/// Maximum number of records polled as soon as a word is found. If the page has no more queues than that, all of them
/// are polled in the same turn.
const POLLS_AT_ONCE: usize = 16;
/// Maximum number of records polled at the end of a turn of the worker thread.
const POLLS_PER_TURN: usize = 256;

/// A register in a UAR page, called a slot here. Each slot has its own set of queues.
type UarSlot = (u32, UarRegister);

#[derive(Debug, Default)]
pub struct UarQueues {
    places: BTreeMap<UarSlot, Queues>,
    /// Slots with an active round, and possibly slots whose round has already ended.
    rounds: VecDeque<UarSlot>,
}

/// The queues of one slot, and the progress of the current round.
#[derive(Debug, Default)]
struct Queues {
    all: BTreeSet<u32>,
    round: bool,
    /// The last queue polled in this round, or `None` at the start of the round.
    last: Option<u32>,
    /// Whether another word was found during the round. If so, all queues are polled again.
    again: bool,
}

impl UarQueues {
    pub fn add(&mut self, page: u32, register: UarRegister, index: u32) {
        self.places.entry((page, register)).or_default().all.insert(index);
    }

    pub fn remove(&mut self, page: u32, register: UarRegister, index: u32) {
        if let Entry::Occupied(mut queues) = self.places.entry((page, register)) {
            queues.get_mut().all.remove(&index);
            if queues.get().all.is_empty() {
                queues.remove();
            }
        }
    }

    /// Appends the BAR2 offset of each doorbell register that has queues. BAR2 has `pages` pages.
    pub fn words(&self, pages: u32, words: &mut Vec<u64>) {
        let word = |(page, register): &UarSlot| u64::from(*page) * UAR_PAGE + register.offset();
        words.extend(self.places.range(..(pages, UarRegister::Send)).map(|(place, _)| word(place)));
    }

    /// Starts a round over all queues of a slot, unless the only queue is `seen`, which has just been polled.
    fn begin(&mut self, place: UarSlot, seen: Option<u32>) {
        let Some(queues) = self.places.get_mut(&place) else { return };
        if queues.round {
            queues.again = true;
        } else if queues.all.len() > 1 || queues.all.first().copied() != seen {
            (queues.round, queues.last) = (true, None);
            self.rounds.push_back(place);
        }
    }

    /// Returns the next queue to poll, or `None` if the round has ended.
    fn next(&mut self, place: UarSlot) -> Option<u32> {
        let queues = self.places.get_mut(&place).filter(|queues| queues.round)?;
        let from = queues.last.map_or(Unbounded, Excluded);
        let mut next = queues.all.range((from, Unbounded)).next();
        if next.is_none() && std::mem::take(&mut queues.again) {
            next = queues.all.first();
        }
        queues.last = next.copied();
        queues.round = next.is_some();
        queues.last
    }
}

impl Resources {
    /// Handles a word that was found in a mapped page.
    pub fn handle_mapped_doorbell(&mut self, cx: &mut Context<'_>, doorbell: &Doorbell) {
        let (place, index, of_page) = match *doorbell {
            Doorbell::Send { page, doorbell } => {
                let index = self.qp_index(doorbell.qpn);
                ((page, UarRegister::Send), index, self.qps.get(index).map(|qp| qp.qpc.page))
            }
            Doorbell::Arm { page, arm } => {
                let index = self.cq_index(arm.cqn);
                ((page, UarRegister::ArmCq), index, self.cqs.get(index).map(|cq| cq.page()))
            }
        };
        let named = (of_page == Some(place.0)).then_some(index);
        if let Some(index) = named {
            self.poll_record(cx, place.1, index);
        }
        self.uar.begin(place, named);
        for _ in 0..POLLS_AT_ONCE {
            let Some(index) = self.uar.next(place) else { return };
            self.poll_record(cx, place.1, index);
        }
    }

    /// Continues the active rounds. Returns whether a round was active, in which case another turn is needed.
    pub fn poll_rounds(&mut self, cx: &mut Context<'_>) -> bool {
        if self.uar.rounds.is_empty() {
            return false;
        }
        for _ in 0..POLLS_PER_TURN {
            let Some(place) = self.uar.rounds.front().copied() else { break };
            match self.uar.next(place) {
                Some(index) => self.poll_record(cx, place.1, index),
                None => drop(self.uar.rounds.pop_front()),
            }
        }
        // Rotate the slots, so that the next turn starts with a different one.
        if self.uar.rounds.len() > 1 {
            self.uar.rounds.rotate_left(1);
        }
        true
    }

    fn poll_record(&mut self, cx: &mut Context<'_>, register: UarRegister, index: u32) {
        match register {
            UarRegister::Send => self.poll_send_record(cx, index),
            UarRegister::ArmCq => self.poll_arm_record(cx, index),
        }
    }

    fn poll_send_record(&mut self, cx: &mut Context<'_>, index: u32) {
        let Self { layout, regions, qps, .. } = self;
        let Some(qp) = qps.get_mut(index) else { return };
        // Software posts nothing before RTS. Until then, the record may still contain the counter of an earlier QP.
        let state = cx.engine.query_qp(qp.qpn).map(|live| live.state);
        let Some(State::Rts | State::Sqd | State::Sqe | State::Err) = state else { return };
        let record = regions.whole_record(layout, cx.dma, qp.qpc.page, qp.qpc.sq_record);
        let Some(record) = record else { return };
        let learned = qp.send.learn(record.counter);
        if learned == Advance::Nothing {
            return;
        }
        cx.monitor.observe(Observed::SendRecord { qp, record });
        let qpn = qp.qpn;
        if learned == Advance::TooMany {
            let what = format_args!("UAR[{}].send", qp.qpc.page);
            return cx.monitor.ignored(OVERFLOW, Some(qpn), what, |_| {});
        }
        qp.counters.doorbells += 1;
        cx.monitor.count_doorbell("send");
        notify_send(cx, self, qpn);
    }

    fn poll_arm_record(&mut self, cx: &mut Context<'_>, index: u32) {
        let Self { layout, regions, cqs, eqs, .. } = self;
        let Some(cq) = cqs.get_mut(index) else { return };
        let mut record = [0; RECORD_LEN];
        if regions.icm.read(cx.dma, layout.record(cq.page(), cq.arm_record()), &mut record).is_err() {
            return;
        }
        let Some(arm) = cq.rearmed(record) else { return };
        cx.monitor.observe(Observed::ArmRecord { cq, eqs, arm: &arm });
        cx.monitor.count_doorbell("arm_cq");
        if let Notify::Yes(eqn) = cq.arm(&arm) {
            self.notify(cx, eqn, arm.cqn);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: UarSlot = (2, UarRegister::Send);

    fn queues<const N: usize>(indices: [u32; N]) -> UarQueues {
        let mut queues = UarQueues::default();
        indices.into_iter().for_each(|index| queues.add(PLACE.0, PLACE.1, index));
        queues
    }

    fn rest(queues: &mut UarQueues) -> Vec<u32> {
        std::iter::from_fn(|| queues.next(PLACE)).collect()
    }

    #[test]
    fn only_doorbell_words_with_queues_are_polled() {
        let mut queues = queues([1, 2]);
        queues.add(7, UarRegister::ArmCq, 1);
        queues.add(8, UarRegister::Send, 1);
        let mut words = Vec::new();
        queues.words(8, &mut words);
        assert_eq!(words, [0x2010, 0x7020]);
        queues.remove(2, UarRegister::Send, 1);
        queues.remove(7, UarRegister::ArmCq, 1);
        queues.remove(9, UarRegister::ArmCq, 1);
        words.clear();
        queues.words(8, &mut words);
        assert_eq!(words, [0x2010]);
    }

    #[test]
    fn single_queue_needs_no_polling_round() {
        let mut queues = queues([5]);
        queues.begin(PLACE, Some(5));
        assert!(queues.rounds.is_empty() && rest(&mut queues).is_empty());
        queues.begin(PLACE, None);
        assert_eq!(rest(&mut queues), [5]);
    }

    #[test]
    fn doorbell_during_polling_round_triggers_another() {
        let mut queues = queues([1, 2, 3, 4]);
        queues.begin(PLACE, Some(1));
        assert_eq!([queues.next(PLACE), queues.next(PLACE)], [Some(1), Some(2)]);
        queues.begin(PLACE, Some(1));
        queues.begin(PLACE, Some(3));
        assert_eq!(rest(&mut queues), [3, 4, 1, 2, 3, 4]);
        assert_eq!(queues.rounds, [PLACE], "it began once");
    }

    #[test]
    fn queues_may_change_during_polling_round() {
        let mut queues = queues([1, 3, 5]);
        queues.begin(PLACE, None);
        assert_eq!([queues.next(PLACE), queues.next(PLACE)], [Some(1), Some(3)]);
        queues.remove(PLACE.0, PLACE.1, 3);
        queues.add(PLACE.0, PLACE.1, 4);
        assert_eq!(rest(&mut queues), [4, 5]);
        [1, 4, 5].into_iter().for_each(|index| queues.remove(PLACE.0, PLACE.1, index));
        assert_eq!(queues.next(PLACE), None);
    }
}
