//! What a requester waits for: the answers of [`transmit`](super::transmit), without sending.

use super::readiness::Readiness;
use super::{Hold, Requester};
use crate::held::Held;
use crate::qp::attr::{RnrRetry, State};
use crate::qp::{Core, ahead};
use crate::{Blocked, Instant, SendOp, Unanswered};

impl Requester {
    /// Why [`Requester::transmit`] gives no frame; [`Blocked::Turn`] if it may.
    pub(crate) fn blocked(&self, core: &Core, held: Held, now: Instant) -> Blocked {
        let refusals = self.rnr_retries;
        let most = match core.attrs.rnr_retry {
            RnrRetry::Limited(most) => Some(most),
            RnrRetry::Infinite => None,
        };
        match (self.readiness, self.blocked_by_itself(core, held)) {
            (Readiness::Refused { until }, _) => {
                Blocked::ReceiverNotReady { left: until.saturating_since(now), refusals, most }
            }
            // The window is narrow as long as the peer has not answered, and then is as it was.
            (Readiness::Asked, Blocked::Window { .. }) => Blocked::AskedAgain { refusals, most },
            (Readiness::Asked, Blocked::NothingPosted) => Blocked::AskedAgain { refusals, most },
            (_, blocked) => blocked,
        }
    }

    fn blocked_by_itself(&self, core: &Core, held: Held) -> Blocked {
        let Some(request) = self.queue.get(self.cursor) else {
            return match core.state {
                State::Sqd => self.drained(),
                _ if !self.more => Blocked::NothingPosted,
                _ if self.queue.len() >= Self::most_requests(held) => {
                    Blocked::Requests { most: count(Self::most_requests(held)) }
                }
                _ => Blocked::Turn,
            };
        };
        let older = count(self.cursor);
        if self.is_kept_back(core, request) {
            return self.drained();
        }
        if let Some(status) = request.failure {
            return if older > 0 { Blocked::Failed { status, older } } else { Blocked::Turn };
        }
        let begins = self.next == 0 && !request.executed;
        match self.hold(request).filter(|_| begins) {
            Some(Hold::Fence) => return Blocked::Fence { older },
            Some(Hold::Invalidation) => return Blocked::Invalidation { older },
            Some(Hold::PacketNumbers) => return Blocked::PacketNumbers,
            None if request.packets == 0 => return Blocked::Turn,
            None => {}
        }
        if self.lacks_credit(request) {
            let beyond = u32::try_from(self.credits.beyond(request.taker)).unwrap_or(0);
            return Blocked::Credits { beyond };
        }
        let packets = match request.wr.op {
            SendOp::Read { .. } => self.next_piece(request).packets,
            _ => 1,
        };
        self.no_room(core, request, packets).unwrap_or(Blocked::Turn)
    }

    fn drained(&self) -> Blocked {
        if self.is_drained() { Blocked::Drained } else { Blocked::Draining }
    }

    /// What has no answer yet.
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
