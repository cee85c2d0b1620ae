//! Passes each observed event to the counters, the trace and strict mode, in this order.

use card::frontend::observe::Observe;
use card::telemetry::monitor::Monitor;
use engine::Fetch;
use hcr::counters::{count_completion, count_receive, count_send};
use hcr::verbs::cq_fault;

use super::observed::Observed;
use super::{strict, trace};

impl Observe for Observed<'_> {
    fn observe(self, monitor: &mut Monitor) {
        match self {
            Self::SendDoorbell { qp, page, doorbell } => {
                monitor.check(|| strict::doorbell(qp, page, doorbell));
            }
            Self::ArmNothing { queue, number } => monitor.check(|| strict::arm(queue, number)),
            Self::SendWqe { qpn, taken } => {
                monitor.write_trace(|trace| trace::send_wqe(trace, qpn, taken));
                monitor.check(|| strict::send_wqe(qpn, taken));
            }
            Self::SendRequest { qp, fetch } => count_send(&mut qp.counters, fetch),
            Self::RecvRequest { qp, fetch } => {
                count_receive(&mut qp.counters, fetch);
                monitor.write_trace(|trace| trace::recv_wqe(trace, qp.qpn, fetch));
                if let Fetch::Ready(request) = fetch {
                    monitor.check(|| strict::recv_wqe(qp, request.wr_id));
                }
            }
            Self::Completion { qp, completion } => count_completion(&mut qp.counters, completion),
            Self::Cqe { cqn, slot, cqe, lost } => {
                let lost = lost.map(|error| cq_fault(error.fault));
                monitor.write_trace(|trace| trace::cqe(trace, cqn, slot, cqe, lost));
            }
            Self::Eqe { place, event, lost } => {
                monitor.write_trace(|trace| trace::eqe(trace, place, event, lost));
            }
        }
    }
}
