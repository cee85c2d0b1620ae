//! Explanations of an SQ's or RQ's state for operators.

use protocol::ids::Cqn;

use super::Queue;
use super::rq::Rq;
use super::sq::Sq;
use super::status::{FailedAt, QueueCounters};
use crate::resources::Resources;
use crate::uses::Object;

impl Resources {
    /// Explains an SQ or RQ, one fact per line. Returns `None` if the queue does not exist.
    pub fn explain_queue(&self, number: u32) -> Option<Vec<String>> {
        let (mut lines, cqn) = match self.netdev.queues.get(number)? {
            Queue::Send(sq) => (sq_lines(sq), sq.cqn()),
            Queue::Receive(rq) => (self.rq_lines(rq), rq.cqn()),
        };
        lines.extend(self.cq_line(cqn));
        if self.port.ethernet().is_some_and(|port| !port.is_enabled()) {
            lines.push("port: disabled by the driver; no frames are sent or received".to_owned());
        }
        Some(lines)
    }

    fn rq_lines(&self, rq: &Rq) -> Vec<String> {
        let QueueCounters { frames, bytes, dropped } = rq.counters;
        let mut lines = vec![format!("RQ {}: {}", rq.rqn(), rq.status().explanation())];
        lines.extend(rq.failure().map(|failed| failed_at("receive", failed)));
        if !self.uses.is_used(Object::Rq(rq.rqn().get())) {
            lines.push("steering: no TIR or RQT names the RQ, so it receives no frames".to_owned());
        }
        lines.push(format!("frames: {frames} received ({bytes} bytes), {dropped} dropped"));
        lines
    }

    fn cq_line(&self, cqn: Cqn) -> Option<String> {
        let fault = self.cqs.get(cqn.get())?.row().fault?;
        Some(format!("completions: CQ {cqn} has failed ({fault}), so none are written"))
    }
}

fn sq_lines(sq: &Sq) -> Vec<String> {
    let QueueCounters { frames, bytes, dropped } = sq.counters;
    let mut lines = vec![format!("SQ {}: {}", sq.sqn(), sq.status().explanation())];
    lines.extend(sq.failure().map(|failed| failed_at("WQE at block", failed)));
    if sq.context().tis().is_none() {
        lines.push("TIS: none, so the SQ can only execute NOPs".to_owned());
    }
    let waiting = sq.queue().waiting();
    if waiting != 0 {
        lines.push(format!("WQEs: {waiting} announced blocks are not executed"));
    }
    lines.push(format!("frames: {frames} sent ({bytes} bytes), {dropped} dropped"));
    lines
}

fn failed_at(what: &str, FailedAt { index, syndrome }: FailedAt) -> String {
    format!("stopped: {what} {index:#x} failed with syndrome {}", syndrome.name())
}
