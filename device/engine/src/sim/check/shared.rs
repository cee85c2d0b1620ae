//! Receive queues that sides share: who holds which request.
//!
//! # Spec
//! IBTA volume 1, section 10.2.9.

use std::collections::VecDeque;

use protocol::ids::Qpn;

use super::{Checker, Place, Violation, demand};
use crate::State;
use crate::sim::plan::{Area, SHARED};

/// A request of a shared queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    pub(super) wr_id: u64,
    area: Area,
}

/// Requests that nobody took.
pub(super) type SharedQueue = VecDeque<Held>;

impl Checker<'_> {
    /// Software posted a request to a shared queue, for the slot that is given.
    pub fn on_share(&mut self, srq: usize, wr_id: u64, slot: usize) {
        let len = self.plan.slots[&srq];
        let area = Area { region: SHARED, offset: slot * len, len };
        self.queues.entry(srq).or_default().push_back(Held { wr_id, area });
    }

    /// A QP took a request of its shared queue.
    pub(super) fn on_taken(&mut self, node: usize, qpn: Qpn, wr_id: u64) -> Result<(), Violation> {
        let place = self.find(node, qpn)?;
        let side = self.side(place);
        let receives = !matches!(side.state, State::Reset | State::Init | State::Err);
        demand!(receives && !side.last_wqe, "{place:?} takes a request in {:?}", side.state);
        demand!(side.held.is_none(), "{place:?} takes a second request");
        demand!(self.outsider.is_none(), "{place:?} takes a request for {:?}", self.outsider);
        let queue = self.srq(place).and_then(|srq| self.queues.get_mut(&srq));
        let held = queue.and_then(VecDeque::pop_front).ok_or("an empty queue gave a request")?;
        demand!(held.wr_id == wr_id, "{place:?} takes {wr_id:#x} before {held:?}");
        self.side_mut(place).held = Some(held);
        Ok(())
    }

    pub(super) fn srq(&self, place: Place) -> Option<usize> {
        self.pair(place).ends[place.side].srq
    }

    /// Where the request goes that a side holds.
    pub(super) fn held_area(&self, place: Place) -> Option<Area> {
        self.side(place).held.map(|held| held.area)
    }

    /// Where the next message of a side goes: of a shared queue, if a request is taken or `skip` others leave one.
    pub(super) fn next_areas(&self, place: Place, skip: usize) -> Option<Vec<Area>> {
        let side = self.side(place);
        match self.srq(place) {
            Some(srq) => {
                let waiting = || self.queues.get(&srq)?.get(skip).map(|held| held.area);
                self.held_area(place).or_else(waiting).map(|area| vec![area])
            }
            None if side.recvs.done < side.recvs.posted => {
                let recvs = &self.pair(place).lives[side.life].sides[place.side].recvs;
                recvs.get(side.recvs.done).map(|recv| recv.areas.clone())
            }
            None => None,
        }
    }
}
