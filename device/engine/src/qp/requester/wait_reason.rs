//! Determines why a requester is not sending, by making the same decisions as [`transmit`](super::transmit) without
//! sending anything.

use super::rnr::RnrState;
use super::{Requester, StallReason, rnr_limit};
use crate::pooled_slots::PooledSlots;
use crate::qp::attr::State;
use crate::qp::{Core, ahead};
use crate::{Instant, SendOp, Unanswered, WaitReason};

impl Requester {
    /// Returns why [`Requester::transmit`] would not produce a frame, or [`WaitReason::Turn`] if it would.
    pub(crate) fn wait_reason(&self, core: &Core, pooled: PooledSlots, now: Instant) -> WaitReason {
        let refusals = self.rnr_retries;
        let most = rnr_limit(core);
        match (self.rnr_state, self.queue_wait_reason(core, pooled)) {
            (RnrState::Waiting { until }, _) => {
                WaitReason::ReceiverNotReady { left: until.saturating_since(now), refusals, most }
            }
            // The window is narrow while the requester is probing. If it is full, the requester is waiting for the
            // reply to the probe.
            (RnrState::Probing, WaitReason::Window { .. }) => WaitReason::AskedAgain { refusals, most },
            (RnrState::Probing, WaitReason::NothingPosted) => WaitReason::AskedAgain { refusals, most },
            (_, blocked) => blocked,
        }
    }

    fn queue_wait_reason(&self, core: &Core, pooled: PooledSlots) -> WaitReason {
        let Some(request) = self.queue.get(self.cursor) else {
            return match core.state {
                State::Sqd => self.drained(),
                _ if !self.may_have_posted => WaitReason::NothingPosted,
                _ if self.queue.len() >= Self::request_limit(pooled) => {
                    WaitReason::Requests { most: count(Self::request_limit(pooled)) }
                }
                _ => WaitReason::Turn,
            };
        };
        let older = count(self.cursor);
        if self.blocked_by_sqd(core, request) {
            return self.drained();
        }
        if let Some(status) = request.failure {
            return if older > 0 { WaitReason::Failed { status, older } } else { WaitReason::Turn };
        }
        let begins = self.next == 0 && !request.executed;
        match self.stall_reason(request).filter(|_| begins) {
            Some(StallReason::Fence) => return WaitReason::Fence { older },
            Some(StallReason::Invalidation) => return WaitReason::Invalidation { older },
            Some(StallReason::PacketNumbers) => return WaitReason::PacketNumbers,
            None if request.packets == 0 => return WaitReason::Turn,
            None => {}
        }
        if self.lacks_credit(request) {
            let beyond = u32::try_from(self.credits.beyond(request.recv_seq)).unwrap_or(0);
            return WaitReason::Credits { beyond };
        }
        let packets = match request.wr.op {
            SendOp::Read { .. } => self.next_read_chunk(request).packets,
            _ => 1,
        };
        self.flight_limit(core, request, packets).unwrap_or(WaitReason::Turn)
    }

    fn drained(&self) -> WaitReason {
        if self.is_drained() { WaitReason::Drained } else { WaitReason::Draining }
    }

    /// Returns the state of the unacknowledged packets, if there are any.
    pub(crate) fn unanswered(&self, core: &Core, now: Instant) -> Option<Unanswered> {
        let packets = ahead(self.high, self.unacked);
        (packets > 0).then(|| Unanswered {
            oldest: self.unacked.get(),
            packets,
            requests: count(self.queue.len()),
            waiting: now.saturating_since(self.waiting_since),
            retries: self.retries,
            most_retries: core.attrs.retry_count,
            timeout: self.ack_deadline.map(|at| at.saturating_since(now)),
        })
    }
}

fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
