//! Strict mode for the RDMA half of the device: detects driver violations that the device tolerates.
//!
//! User doorbells are not checked. Processes share the doorbell page, so an invalid value is not necessarily the
//! driver's fault.
//!
//! # Spec
//! E810 interface, sections 9 to 14; each rule cites its sections.

use card::frontend::strict::Findings;
use protocol::hca::e810::rdma::Operation;
use protocol::hca::e810::rdma::hmc::UpdateSegments;
use protocol::hca::e810::rdma::queue_pair::QpState;
use protocol::hca::e810::rdma::region::StagRights;
use protocol::hca::e810::regs::Register;
use protocol::ids::{Cqn, Qpn};

use super::Rdma;
use super::queues::CONTROL_CQ;
use crate::strict::rules::{
    AEQ_CREDITS, ARM_NO_CQ, CEQ_IN_USE, CQ_IN_USE, CQP_IN_USE, CQP_POLARITY, CQP_RUNNING, FLUSH_STATE,
    QP_RUNNING, REGION_REMOTE, SEGMENT_IN_USE, SEND_NO_QP,
};

/// Checks a register write before it takes effect.
pub(super) fn write(rdma: &Rdma, register: Register, value: u32) -> Findings {
    let mut found = Findings::default();
    // While the control queue is not running, no objects exist, so there is nothing to check.
    let entries = rdma.cqp.entries();
    if entries == 0 {
        return found;
    }
    match register {
        Register::PfpeCcqplow if rdma.cqp.context(value).is_some() => {
            found.add(
                &CQP_RUNNING,
                format!("RDMA control queue started while it is running ({entries} entries)"),
            );
        }
        Register::PfpeCcqplow => {
            if let Some(what) = in_use(rdma) {
                found.add(&CQP_IN_USE, format!("RDMA control queue destroyed while {what} exists"));
            }
        }
        Register::PfpeWqealloc if rdma.queues.qp(Qpn::new(value)).is_none() => {
            found.add(&SEND_NO_QP, format!("doorbell for QP {value:#x}, which does not exist"));
        }
        Register::PfpeCqarm if rdma.queues.cq(Cqn::new(value)).is_none() => {
            found.add(&ARM_NO_CQ, format!("CQ {value:#x} armed, but it does not exist"));
        }
        Register::PfpeAeqalloc if value > rdma.events.unread() => {
            found.add(
                &AEQ_CREDITS,
                format!(
                    "{value} asynchronous events acknowledged, but only {} reported",
                    rdma.events.unread()
                ),
            );
        }
        _ => {}
    }
    found
}

/// Checks an operation before it is executed. `polarity_matches` is true if the operation's polarity matches
/// the current pass over the ring.
pub(super) fn operation(rdma: &Rdma, operation: &Operation, polarity_matches: bool) -> Findings {
    let mut found = Findings::default();
    if !polarity_matches {
        found.add(&CQP_POLARITY, format!("{} has the wrong polarity", operation.opcode().name()));
    }
    match operation {
        Operation::DestroyCq(command) => {
            let users = rdma
                .queues
                .qps_from(0)
                .filter(|(_, qp)| [qp.context.send_cqn, qp.context.recv_cqn].contains(&command.cqn));
            if let Some((qpn, _)) = users.into_iter().next() {
                found
                    .add(&CQ_IN_USE, format!("CQ {} destroyed while QP {qpn:#x} still uses it", command.cqn));
            }
        }
        Operation::DestroyCeq(command) => {
            let mut users = rdma.queues.cqs_from(0).filter(|(_, cq)| cq.ceq() == Some(command.ceq));
            if let Some((cqn, _)) = users.find(|(cqn, _)| *cqn != CONTROL_CQ.get()) {
                found.add(
                    &CEQ_IN_USE,
                    format!("CEQ {} destroyed while CQ {cqn:#x} still uses it", command.ceq),
                );
            }
        }
        Operation::DestroyQp(command) => {
            let qp = rdma.queues.qp(command.qpn);
            if let Some(qp) = qp.filter(|qp| qp.state == QpState::Rts) {
                found.add(&QP_RUNNING, format!("QP {} destroyed in state {}", command.qpn, qp.state));
            }
        }
        Operation::FlushQp(command) if command.sq || command.rq => {
            let qp = rdma.queues.qp(command.qpn);
            if let Some(qp) = qp.filter(|qp| !matches!(qp.state, QpState::Error | QpState::Sqd)) {
                found.add(&FLUSH_STATE, format!("QP {} flushed in state {}", command.qpn, qp.state));
            }
        }
        Operation::UpdateSegments(command) if unmaps_segments(command) => {
            if let Some(what) = in_use(rdma) {
                found.add(&SEGMENT_IN_USE, format!("context memory unmapped while {what} exists"));
            }
        }
        Operation::RegisterMr(command) => {
            let rights = StagRights::REMOTE_READ | StagRights::REMOTE_WRITE;
            if command.remote != command.rights.intersects(rights) {
                let flag = if command.remote { "set" } else { "clear" };
                let (stag, granted) = (command.stag, names(command.rights));
                found.add(
                    &REGION_REMOTE,
                    format!(
                        "remote access flag of STag {stag:#x} is {flag}, but its access rights are {granted}"
                    ),
                );
            }
        }
        _ => {}
    }
    found
}

/// Returns whether an operation unmaps segments. Only the entries in the operation itself are checked, not the entries
/// in memory.
fn unmaps_segments(command: &UpdateSegments) -> bool {
    let first = Some(&command.first).filter(|_| !command.skip_first);
    let others = [&command.second, &command.third].into_iter().filter(|entry| entry.valid);
    first.into_iter().chain(others).any(|entry| !entry.descriptor.valid)
}

/// Returns the name of an existing queue pair or region, if any.
fn in_use(rdma: &Rdma) -> Option<String> {
    let qp = rdma.queues.qps_from(0).next().map(|(qpn, _)| format!("QP {qpn:#x}"));
    qp.or_else(|| rdma.regions.keys.iter().next().map(|region| format!("STag {:#x}", region.key.get())))
}

fn names(rights: StagRights) -> String {
    let names: Vec<_> = rights.iter_names().map(|(name, _)| name).collect();
    if names.is_empty() { "0".to_owned() } else { names.join("|") }
}
