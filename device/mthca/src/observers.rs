//! Passes each observed event to the counters, strict mode and the trace, in this order.

use card::frontend::observe::Observe;
use card::telemetry::monitor::Monitor;
use hcr::counters::{count_completion, count_receive, count_send};

use super::observed::Observed;
use super::{strict, trace};

impl Observe for Observed<'_> {
    fn observe(self, monitor: &mut Monitor) {
        match self {
            Self::SendDoorbell { qp, state, page, doorbell, memory } => {
                monitor.check(|| strict::send(qp, state, page, doorbell, memory));
            }
            Self::SendRecord { qp, record } => monitor.check(|| strict::sends(qp, record)),
            Self::ArmDoorbell { cq, eqs, page, arm, memory } => {
                monitor.check(|| strict::arm_cq(cq, eqs, page, arm, memory));
            }
            Self::ArmRecord { cq, eqs, arm } => monitor.check(|| strict::arms(cq, eqs, arm)),
            Self::SendQueue { qp, memory } => monitor.check(|| strict::send_wqe(qp, &memory.access())),
            Self::SendWqe { qp, fetch } => {
                count_send(&mut qp.counters, fetch);
                monitor.write_trace(|trace| trace::send_wqe(trace, qp.qpn, fetch));
            }
            Self::RecvWqe { qp, srq, fetch, memory } => {
                count_receive(&mut qp.counters, fetch);
                monitor.check(|| match srq {
                    Some(srq) => strict::shared_wqe(qp, srq, fetch, memory),
                    None => strict::recv_wqe(qp, fetch, memory),
                });
                monitor.write_trace(|trace| trace::recv_wqe(trace, qp.qpn, fetch));
            }
            Self::Completion { qp, completion } => count_completion(&mut qp.counters, completion),
            Self::CqSlot { cq, memory } => monitor.check(|| strict::cqe(cq, memory)),
            Self::Cqe { cqn, slot, cqe, lost } => {
                monitor.write_trace(|trace| trace::cqe(trace, cqn, slot, cqe, lost));
            }
            Self::EqSlot { eqn, queue, memory } => {
                monitor.check(|| strict::eqe(eqn, queue, &memory.access()));
            }
            Self::Eqe { place, event, lost } => {
                monitor.write_trace(|trace| trace::eqe(trace, place, event, lost));
            }
        }
    }
}
