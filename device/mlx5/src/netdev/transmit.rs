//! Sends frames from the SQs: polls them in turn, completes their WQEs, and passes the frames to the wire and to the
//! device's own receive tables.
//!
//! # Spec
//! mlx5 interface, sections 16.1 and 16.3.

use card::frontend::Context;
use card::limited;
use card::telemetry::reason::{FrameReason, IgnoreReason};
use engine::Status;
use protocol::hca::mlx5::cqe::{Cqe, Failure, Sent};
use protocol::hca::mlx5::eqe::{Eqe, QueueEvent, QueueKind};
use protocol::hca::mlx5::sq::WorkQueueState;
use protocol::ids::{Qpn, Rqn, Sqn, UarIndex};
use protocol::net::layers::Layers;

use super::Queue;
use super::receive::discard;
use super::sq::{Done, Environment, Step};
use super::steer::{Deliveries, Link};
use crate::completion_queue::Entry;
use crate::failure;
use crate::init_segment;
use crate::reason::{FOREIGN_PAGE, FRAME_OVERSIZE, NO_SQ, OVERFLOW, SQ_STATE};
use crate::resources::Resources;
use crate::{strict, trace};

/// Maximum number of queue polls per call to `next_frame`. Without this limit, SQs full of WQEs that do not send frames
/// would block the device.
const MAX_POLLS_PER_FRAME: usize = 64;

impl Resources {
    /// Handles an SQ doorbell.
    ///
    /// # Errors
    /// Returns the reason for ignoring the doorbell.
    pub fn send_frames(&mut self, cx: &Context<'_>, page: UarIndex, sqn: Sqn) -> Result<(), IgnoreReason> {
        let sq = self.netdev.sq_mut(sqn).ok_or(NO_SQ)?;
        if sq.uar() != page {
            return Err(FOREIGN_PAGE);
        }
        if sq.state() == WorkQueueState::Reset {
            return Err(SQ_STATE);
        }
        sq.learn(cx.dma).map_err(|_| OVERFLOW)?;
        if sq.has_work() {
            self.netdev.schedule(sqn.get());
        }
        Ok(())
    }

    /// Appends the next frame for the wire to `out`. Returns whether a frame was appended. `steer` evaluates the flow
    /// tables for frames that the SQs send.
    pub fn next_frame(
        &mut self,
        cx: &mut Context<'_>,
        out: &mut Vec<u8>,
        link: Link,
        steer: impl Fn(&mut Self, &[u8], &Layers) -> Deliveries,
    ) -> bool {
        let start = out.len();
        self.netdev.has_more = false;
        for _ in 0..MAX_POLLS_PER_FRAME {
            let Some(number) = self.netdev.ready.pop_front() else { return false };
            let step = match self.netdev.queues.get_mut(number) {
                Some(Queue::Send(_)) => self.poll_sq(cx, Sqn::new(number), link, out),
                Some(Queue::Receive(_)) => {
                    self.flush_rq(cx, Rqn::new(number));
                    Step::NoFrame
                }
                None => Step::NoFrame,
            };
            match step {
                Step::Frame => {
                    let frame = out.get(start..).unwrap_or_default();
                    if self.forward(cx, Sqn::new(number), frame, link, &steer) {
                        return true;
                    }
                    out.truncate(start);
                }
                Step::Oversize => {
                    self.netdev.counters.tx_oversize += 1;
                    if let Some(sq) = self.netdev.sq_mut(Sqn::new(number)) {
                        sq.counters.dropped += 1;
                    }
                    discard(cx.monitor, FRAME_OVERSIZE, &[]);
                }
                Step::Broken => {
                    limited!(warn, sqn = number, "cannot read the WQEs of an SQ");
                    self.raise(
                        cx,
                        &Eqe::Queue { event: QueueEvent::Catastrophic, kind: QueueKind::Sq, number },
                    );
                }
                Step::NoFrame => {}
            }
        }
        self.netdev.has_more = !self.netdev.ready.is_empty();
        false
    }

    fn poll_sq(&mut self, cx: &mut Context<'_>, sqn: Sqn, link: Link, out: &mut Vec<u8>) -> Step {
        let Self { netdev, mkeys, posted, .. } = self;
        let (dma, monitor) = (cx.dma, &mut *cx.monitor);
        let env = Environment { memory: mkeys.access(dma), dma, max_frame: link.max_frame };
        let Some(sq) = netdev.sq_mut(sqn) else { return Step::NoFrame };
        sq.is_scheduled = false;
        let (step, done) = sq.poll(&env, posted, out, |sq, fetch| {
            monitor.check(|| strict::frame_wqe(sq, fetch));
            monitor.write_trace(|trace| trace::frame_wqe(trace, sqn, fetch));
        });
        if sq.has_work() {
            netdev.schedule(sqn.get());
        }
        if let Some(done) = done {
            cx.monitor.check(|| strict::frame_done(self, sqn, &done, dma));
            self.complete_frame(cx, sqn, done);
        }
        step
    }

    /// Writes the CQE for a WQE. Section 16.1: a successful WQE generates a CQE only on request.
    fn complete_frame(&mut self, cx: &mut Context<'_>, sqn: Sqn, done: Done) {
        let Done { tag, result } = done;
        if result.is_ok() && !tag.signaled() {
            return;
        }
        let Some(sq) = self.netdev.sq_mut(sqn) else { return };
        sq.complete(tag);
        let (qpn, cqn, user_index) = (Qpn::new(sqn.get()), sq.cqn(), sq.user_index());
        let entry = match result {
            Ok(()) => {
                let sent = Sent {
                    wqe_opcode: tag.opcode(),
                    qpn,
                    user_index,
                    wqe_counter: tag.index(),
                    byte_count: 0,
                    timestamp: init_segment::ticks(cx.now),
                };
                Entry { cqe: Cqe::Sent(sent), solicited: tag.event(), urgent: false }
            }
            Err(status) => {
                if status != Status::Flushed {
                    let syndrome = failure::syndrome(status).name();
                    limited!(warn, %sqn, index = tag.index(), syndrome, "WQE of an SQ failed");
                }
                let failure = Failure {
                    send: true,
                    syndrome: failure::syndrome(status).code(),
                    vendor: failure::vendor(status),
                    qpn,
                    user_index,
                    wqe_opcode: tag.opcode(),
                    wqe_counter: tag.index(),
                    solicited: true,
                };
                Entry { cqe: Cqe::Failed(failure), solicited: true, urgent: true }
            }
        };
        self.write(cx, (qpn, cqn), &entry);
    }

    /// Completes one posted receive of a failed RQ.
    fn flush_rq(&mut self, cx: &mut Context<'_>, rqn: Rqn) {
        let Some(rq) = self.netdev.rq_mut(rqn) else { return };
        rq.is_scheduled = false;
        if let Some(number) = rq.flush(cx.dma) {
            self.netdev.schedule(rqn.get());
            self.fail_receive(cx, rqn, number, Status::Flushed);
        } else if rq.flushes() {
            self.netdev.flushed.insert(rqn.get(), cx.now);
        }
    }

    /// Returns whether a frame from an SQ can reach the TIRs. Section 15.2: the vport can disable loopback for all
    /// TIRs.
    fn loops_back(&self, layers: &Layers) -> bool {
        self.port.ethernet().is_none_or(|port| port.vport.loops_back(layers.dst.is_multicast()))
    }

    /// Forwards a frame from an SQ. Section 16.3: the frame also passes through the device's own receive tables.
    /// Returns whether the frame goes to the wire.
    fn forward(
        &mut self,
        cx: &mut Context<'_>,
        sqn: Sqn,
        frame: &[u8],
        link: Link,
        steer: impl Fn(&mut Self, &[u8], &Layers) -> Deliveries,
    ) -> bool {
        if let (Some(domain), Ok(layers)) = (self.netdev.domain(sqn), Layers::parse(frame))
            && self.loops_back(&layers)
        {
            for delivery in steer(self, frame, &layers) {
                if self.deliver(cx, frame, &layers, &delivery, Some(domain)) {
                    self.netdev.counters.looped(frame);
                }
            }
        }
        if let Some(sq) = self.netdev.sq_mut(sqn) {
            match link.is_up {
                true => sq.counters.count(frame.len()),
                false => sq.counters.dropped += 1,
            }
        }
        if !link.is_up {
            self.netdev.counters.tx_link_down += 1;
            discard(cx.monitor, FrameReason::LinkDown, frame);
            return false;
        }
        if let Some(port) = self.port.ethernet_mut() {
            port.frames.count_sent(frame);
        }
        true
    }
}
