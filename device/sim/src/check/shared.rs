//! Checks shared receive queues and tracks which QP fetched which request.
//!
//! # Spec
//! IBTA volume 1, section 10.2.9.

use std::collections::VecDeque;

use protocol::ids::{Qpn, Srqn};

use super::{Checker, SideId, Violation, ensure};
use crate::plan::{Area, SHARED, slots_key};
use engine::State;

/// A receive request from a shared queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct FetchedRequest {
    pub(super) wr_id: u64,
    pub(super) srq: usize,
    area: Area,
}

impl FetchedRequest {
    pub(super) fn buffer(&self) -> (u32, Area) {
        (slots_key(self.srq), self.area)
    }
}

/// Posted requests that no QP has fetched.
pub(super) type SharedQueue = VecDeque<FetchedRequest>;

impl Checker<'_> {
    /// Records that software posted a request to a shared queue, with `slot` as its buffer.
    pub fn on_post_shared(&mut self, srq: usize, wr_id: u64, slot: usize) {
        let len = self.plan.slots[&srq];
        let area = Area { region: SHARED, offset: slot * len, len };
        self.queues.entry(srq).or_default().push_back(FetchedRequest { wr_id, srq, area });
    }

    /// Checks that a QP may fetch a request from a shared queue.
    pub(super) fn on_shared_fetch(
        &mut self,
        node: usize,
        qpn: Qpn,
        srqn: Option<Srqn>,
        wr_id: u64,
    ) -> Result<(), Violation> {
        let id = self.find(node, qpn)?;
        let side = self.side(id);
        let receives = !matches!(side.state, State::Reset | State::Init | State::Err);
        ensure!(receives, "{id:?} fetched a receive request in state {:?}", side.state);
        ensure!(!side.last_wqe, "{id:?} fetched a receive request after Last WQE Reached");
        ensure!(side.fetched.is_none(), "{id:?} fetched a second request before the first completed");
        ensure!(
            self.foreign_pkey.is_none(),
            "{id:?} fetched a receive request for a packet with mismatched P_Key {:?}",
            self.foreign_pkey
        );
        let named = self.named_srq(id);
        ensure!(srqn == named, "{id:?} fetched from {srqn:?}, but the message is for {named:?}");
        let number = named.map(|srqn| srqn.get() as usize).or_else(|| self.srq(id));
        let queue = number.and_then(|srq| self.queues.get_mut(&srq));
        let fetched =
            queue.and_then(VecDeque::pop_front).ok_or("a request was fetched from an empty queue")?;
        ensure!(fetched.wr_id == wr_id, "{id:?} fetched request {wr_id:#x}, expected {:#x}", fetched.wr_id);
        self.side_mut(id).fetched = Some(fetched);
        Ok(())
    }

    /// Returns the SRQ that the current message names (XRC). The current message is the first message that consumes a
    /// receive request and has not completed.
    fn named_srq(&self, id: SideId) -> Option<Srqn> {
        let (side, peer) = (self.side(id), self.side(id.peer()));
        let ops = &self.ops(id.peer())[..peer.sends.posted];
        let message = ops.iter().filter(|op| op.takes_receive()).nth(side.recvs.done);
        message.and_then(|op| op.request.remote_srq)
    }

    pub(super) fn srq(&self, id: SideId) -> Option<usize> {
        self.pair(id).ends[id.side].srq
    }

    pub(super) fn fetched_area(&self, id: SideId) -> Option<Area> {
        self.side(id).fetched.map(|fetched| fetched.area)
    }

    /// Returns the buffers for a side's next message, assuming that other QPs first fetch `skip` requests from the
    /// shared queue.
    pub(super) fn next_areas(&self, id: SideId, skip: usize) -> Option<Vec<Area>> {
        let side = self.side(id);
        match self.srq(id) {
            Some(srq) => {
                let waiting = || self.queues.get(&srq)?.get(skip).map(|fetched| fetched.area);
                self.fetched_area(id).or_else(waiting).map(|area| vec![area])
            }
            None if side.recvs.done < side.recvs.posted => {
                let recvs = &self.pair(id).lives[side.life].sides[id.side].recvs;
                recvs.get(side.recvs.done).map(|recv| recv.areas.clone())
            }
            None => None,
        }
    }
}
