//! QPs whose receive slots are looked at before a message comes.
//!
//! Where nothing but time tells whether a list is whole ([`RecvQueue::watch`]), the time must not begin with the first
//! message: its sender would be told to come again though the receive was posted long before. So such QPs are polled until
//! the length of their lists is known.
//!
//! [`RecvQueue::watch`]: super::recv_queue::RecvQueue::watch
//!
//! # Spec
//! JingZhao interface, section 6.8 (J-50).

use protocol::hca::jingzhao::qpc::QpState;

use super::ctxmgt::message::RdQpState;
use super::resources::Resources;
use crate::frontend::Context;
use crate::frontend::poll_set::PollSet;

/// The period is short beside the time a list has to stay as it is, and long beside what a look costs.
pub(super) type RecvWatch = PollSet<50>;

impl Resources {
    /// Looks at the receive queues whose turn it is.
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
