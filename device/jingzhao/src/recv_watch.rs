//! Polls receive queues before a message arrives.
//!
//! Receives are posted without a doorbell. Some lists of receive WQEs count as complete only once they have stayed
//! unchanged for a while, the *settle time*. If the device did not check such a list until a message arrived, the peer
//! would get an RNR NAK even for a receive posted long before. A receive queue that can hold such lists is therefore
//! polled until its maximum list length is known (see [`RecvQueue::watch`]).
//!
//! [`RecvQueue::watch`]: super::recv_queue::RecvQueue::watch
//!
//! # Spec
//! JingZhao interface, section 6.8 (J-50).

use card::frontend::Context;
use card::frontend::poll_set::PollSet;
use protocol::hca::jingzhao::qpc::QpState;

use super::ctxmgt::message::RdQpState;
use super::resources::Resources;

/// QPs whose receive queues are polled. The period of 50 ms is short compared with a list's settle time, and long
/// compared with the cost of a poll.
pub(super) type RecvWatch = PollSet<50>;

impl Resources {
    pub fn watch_receives(&mut self, cx: &Context<'_>) {
        for index in self.watch.take_due(cx.now) {
            let mem = self.regions.access(cx.dma);
            let unsettled = self.qps.get_mut(index).is_some_and(|qp| {
                let RdQpState { state, .. } = qp.key.read();
                let receives =
                    matches!(state, Some(QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Draining));
                receives && qp.recv.watch(cx.now, &mem)
            });
            if !unsettled {
                self.watch.remove(index);
            }
        }
    }
}
