//! Receives frames: selects the RQ, writes the frame to it, and completes the receive.
//!
//! # Spec
//! mlx5 interface, sections 16.2 and 16.3.

use card::frontend::Context;
use card::limited;
use card::telemetry::monitor::Monitor;
use card::telemetry::reason::{FrameReason, Reason};
use engine::Status;
use protocol::describe::Field as _;
use protocol::hca::mlx5::cqe::{Cqe, Failure};
use protocol::hca::mlx5::eqe::{Eqe, QueueEvent, QueueKind};
use protocol::hca::mlx5::wqe::RecvWqe;
use protocol::ids::{Qpn, Rqn, TransportDomain};
use protocol::net::layers::Layers;

use super::rq::{Received, RxError};
use super::steer::{Deliveries, Delivery, Link};
use crate::completion_queue::Entry;
use crate::failure;
use crate::init_segment;
use crate::reason::{FRAME_OVERSIZE, FRAME_UNPARSED, LONGER_THAN_RECEIVE, NO_TIR, RQ_EMPTY, RQ_STATE};
use crate::resources::Resources;
use crate::{strict, trace};

impl Resources {
    /// Handles a frame from the wire. `steer` evaluates the flow tables.
    pub fn receive_frame(
        &mut self,
        cx: &mut Context<'_>,
        frame: &[u8],
        link: Link,
        steer: impl Fn(&mut Self, &[u8], &Layers) -> Deliveries,
    ) {
        if !link.is_up {
            return discard(cx.monitor, FrameReason::LinkDown, frame);
        }
        if frame.len() > link.max_frame {
            if let Some(port) = self.port.ethernet_mut() {
                port.frames.oversize += 1;
            }
            return discard(cx.monitor, FRAME_OVERSIZE, frame);
        }
        let Ok(layers) = Layers::parse(frame) else {
            return discard(cx.monitor, FRAME_UNPARSED, frame);
        };
        if let Some(port) = self.port.ethernet_mut() {
            port.frames.count_arrived(frame);
        }
        let deliveries = steer(self, frame, &layers);
        if deliveries.is_empty() {
            return discard(cx.monitor, NO_TIR, frame);
        }
        if let Some(port) = self.port.ethernet_mut() {
            port.frames.count_received(frame);
        }
        for delivery in &deliveries {
            self.deliver(cx, frame, &layers, delivery, None);
        }
    }

    /// Delivers a frame to a TIR. `from` is the sending SQ's transport domain, or `None` for a frame from the wire.
    /// Returns whether an RQ has received the frame.
    pub fn deliver(
        &mut self,
        cx: &mut Context<'_>,
        frame: &[u8],
        layers: &Layers,
        delivery: &Delivery,
        from: Option<TransportDomain>,
    ) -> bool {
        let Some(tir) = self.netdev.tirs.get(delivery.tirn.get()) else {
            discard(cx.monitor, NO_TIR, frame);
            return false;
        };
        if from.is_some_and(|from| !tir.accepts_own(from, layers)) {
            return false;
        }
        let parsed;
        let (frame, layers) = match &delivery.edited {
            None => (frame, layers),
            Some(edited) => match Layers::parse(edited) {
                Ok(layers) => {
                    parsed = layers;
                    (&edited[..], &parsed)
                }
                Err(_) => {
                    discard(cx.monitor, FRAME_UNPARSED, edited);
                    return false;
                }
            },
        };
        let Some((rqn, hashed)) = tir.select(&self.netdev.rqts, frame, layers) else { return false };
        let timestamp = init_segment::ticks(cx.now);
        let received = Received { frame, layers, hashed, tag: delivery.tag, timestamp };
        self.deliver_to_rq(cx, rqn, &received)
    }

    fn deliver_to_rq(&mut self, cx: &mut Context<'_>, rqn: Rqn, received: &Received<'_>) -> bool {
        let Self { netdev, mkeys, counter_sets, .. } = self;
        let Some(rq) = netdev.rq_mut(rqn) else { return false };
        let (dma, monitor) = (cx.dma, &mut *cx.monitor);
        monitor.check(|| strict::frame_receives(rq, dma));
        let trace = |number, wqe: &RecvWqe| {
            monitor.write_trace(|trace| trace::frame_receive(trace, rqn, number, wqe));
        };
        let result = rq.deliver(&mkeys.access(dma), dma, received, trace);
        rq.count(received.frame.len(), result.as_ref());
        let error = match result {
            Ok(receipt) => {
                let cqn = rq.cqn();
                let entry = Entry { cqe: Cqe::Frame(receipt), solicited: false, urgent: true };
                self.write(cx, (Qpn::new(rqn.get()), cqn), &entry);
                return true;
            }
            Err(error) => error,
        };
        let set = rq.counter_set();
        match error {
            RxError::NotReady => discard(cx.monitor, RQ_STATE, received.frame),
            RxError::TooLong => discard(cx.monitor, LONGER_THAN_RECEIVE, received.frame),
            RxError::NoBuffer => {
                if let Some(counters) = counter_sets.get_mut(set.get().into()) {
                    counters.out_of_buffer = counters.out_of_buffer.wrapping_add(1);
                }
                discard(cx.monitor, RQ_EMPTY, received.frame);
            }
            RxError::Broken => {
                limited!(warn, %rqn, "cannot read receive WQEs from an RQ");
                let number = rqn.get();
                netdev.schedule(number);
                self.raise(cx, &Eqe::Queue { event: QueueEvent::Catastrophic, kind: QueueKind::Rq, number });
            }
            RxError::Protection(number, error) => {
                limited!(warn, %rqn, "cannot write to receive buffers: {error}");
                netdev.schedule(rqn.get());
                let failed = RxError::Protection(number, error);
                cx.monitor.check(|| strict::frame_not_received(self, rqn, failed, dma));
                self.fail_receive(cx, rqn, number, Status::LocalProtection(error));
            }
        }
        false
    }

    /// Writes the CQE for a failed receive.
    pub(super) fn fail_receive(&mut self, cx: &mut Context<'_>, rqn: Rqn, number: u16, status: Status) {
        let Some(rq) = self.netdev.rq(rqn) else { return };
        let (qpn, cqn) = (Qpn::new(rqn.get()), rq.cqn());
        let failure = Failure {
            send: false,
            syndrome: failure::syndrome(status).code(),
            vendor: failure::vendor(status),
            qpn,
            user_index: rq.user_index(),
            wqe_opcode: 0,
            wqe_counter: number,
            solicited: true,
        };
        let entry = Entry { cqe: Cqe::Failed(failure), solicited: true, urgent: true };
        self.write(cx, (qpn, cqn), &entry);
    }
}

#[cold]
pub(super) fn discard(monitor: &mut Monitor, reason: impl Into<Reason>, frame: &[u8]) {
    monitor.ignored_frame(reason, |to| frame.len().show("len", to));
}
