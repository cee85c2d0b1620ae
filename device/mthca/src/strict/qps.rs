//! Checks commands that modify QPs.

use card::frontend::strict::Findings;
use card::memory::translate::AccessTarget;
use engine::Access;
use protocol::hca::mthca::cmd::Command;
use protocol::hca::mthca::modify::{ModifyQp, QpAttributes};
use protocol::hca::mthca::path::Address;
use protocol::hca::mthca::qpc::{Geometry, Qpc};
use protocol::hca::qp::Transition;
use protocol::ids::{Qkey, Qpn};

use super::View;
use super::icm::{self, Context};
use super::rules::{QP_ATTRIBUTES, QP_BUFFER, QP_CQ, QP_NUMBER, QP_SRQ, QP_UNNAMED};

pub(super) fn modify(
    view: View<'_>,
    command: &Command,
    transition: Transition,
    new: &ModifyQp,
    found: &mut Findings,
) {
    if matches!(transition, Transition::ToRst | Transition::ToErr | Transition::Rts2Sqd) {
        return;
    }
    let qpn = command.qpn();
    if new.qpc.local_qpn != qpn {
        found.add(&QP_NUMBER, format!("context of QP {qpn} has QP number {}", new.qpc.local_qpn));
    }
    attributes(qpn, command, transition, new.named, found);
    unnamed(qpn, command, new, found);
    if transition == Transition::Rst2Init {
        begins(view, qpn, &new.qpc, found);
    }
}

/// Checks a QP as it leaves the RESET state.
fn begins(view: View<'_>, qpn: Qpn, qpc: &Qpc, found: &mut Findings) {
    let resources = view.resources;
    let queue = format!("QP {qpn}");
    icm::context(resources, Context::Qp(qpn.get()), &queue, found);
    let both = [qpc.sq_record, qpc.rq_record];
    let own = if qpc.responder.srq() { both.get(..1).unwrap_or(&both) } else { &both };
    icm::records(view, qpc.page, own, &queue, found);
    let valid = |cqn| resources.cqs.get(resources.cq_index(cqn)).is_some_and(|cq| cq.cqn() == cqn);
    if let Some(cqn) = [qpc.send_cqn, qpc.recv_cqn].into_iter().find(|cqn| !valid(*cqn)) {
        found.add(&QP_CQ, format!("{queue} uses CQ {cqn}, which is not valid"));
    }
    if qpc.responder.srq() && resources.srqs.get(resources.srq_index(qpc.srqn)).is_none() {
        found.add(&QP_SRQ, format!("{queue} uses SRQ {}, which is not valid", qpc.srqn));
    }
    let bytes = |queue: Geometry| 1u64 << (u32::from(queue.log_slots) + u32::from(queue.log_slot)).min(40);
    // Queues whose log_slots is 0 are not checked, since a queue without slots is indistinguishable from one with a
    // single slot (section 12, T44).
    let queues = [("send", qpc.sq_base, qpc.sq), ("receive", qpc.rq_base, qpc.rq)];
    for (name, base, geometry) in queues.into_iter().filter(|(_, _, queue)| queue.log_slots != 0) {
        let place = AccessTarget::offset(qpc.pd, qpc.wqe_lkey, base.into());
        let len = bytes(geometry);
        if let Err(error) = resources.regions.access(view.dma).check(place, len, Access::LocalRead) {
            let key = qpc.wqe_lkey;
            found.add(
                &QP_BUFFER,
                format!("{name} queue of {queue} needs {len} bytes at {base:#x} in the memory region with key {key}: {error}"),
            );
        }
    }
}

fn accepted_attributes(transition: Transition) -> QpAttributes {
    let rights = QpAttributes::REMOTE_READ | QpAttributes::REMOTE_WRITE | QpAttributes::REMOTE_ATOMIC;
    // The scheduling queue is accepted although it has no effect on this device.
    let both = rights
        | QpAttributes::RNR_TIMER
        | QpAttributes::ALTERNATE_PATH
        | QpAttributes::QKEY
        | QpAttributes::SCHED_QUEUE;
    match transition {
        Transition::Init2Rtr => {
            both | QpAttributes::PRIMARY_PATH | QpAttributes::RESPONDER_DEPTH | QpAttributes::PKEY_INDEX
        }
        Transition::Rtr2Rts => {
            both | QpAttributes::ACK_TIMEOUT
                | QpAttributes::RETRY_COUNT
                | QpAttributes::RNR_RETRY
                | QpAttributes::ALTERNATE_RNR_RETRY
                | QpAttributes::REQUESTER_DEPTH
                | QpAttributes::MIGRATION
        }
        _ => QpAttributes::from_bits_truncate((1 << 17) - 1),
    }
}

fn attributes(
    qpn: Qpn,
    command: &Command,
    transition: Transition,
    named: QpAttributes,
    found: &mut Findings,
) {
    let others = named.bits() & !accepted_attributes(transition).bits();
    if others != 0 {
        found.add(
            &QP_ATTRIBUTES,
            format!("opt_param_mask bits {others:#x} are not valid for {} (QP {qpn})", command.op),
        );
    }
}

/// Reports values that are set although their bit in opt_param_mask is clear. Values that are always present, or always
/// filled in by the driver, are not checked.
fn unnamed(qpn: Qpn, command: &Command, new: &ModifyQp, found: &mut Findings) {
    let Qpc { primary, requester, responder, min_rnr_timer, qkey, .. } = &new.qpc;
    let given = [
        (QpAttributes::PKEY_INDEX, primary.pkey_index != 0, "P_Key index"),
        (QpAttributes::QKEY, *qkey != Qkey::default(), "Q_Key"),
        (QpAttributes::RNR_TIMER, *min_rnr_timer != 0, "RNR timer"),
        (QpAttributes::PRIMARY_PATH, primary.address != Address::default(), "primary path"),
        (QpAttributes::REQUESTER_DEPTH, requester.log_depth() != 0, "requester depth"),
        (QpAttributes::RESPONDER_DEPTH, responder.log_depth() != 0, "responder depth"),
        (QpAttributes::RETRY_COUNT, requester.retry_count() != 0, "retry count"),
        (QpAttributes::ACK_TIMEOUT, primary.ack_timeout != 0, "ACK timeout"),
        (QpAttributes::RNR_RETRY, primary.rnr_retry != 0, "RNR retry count"),
    ];
    if let Some((bit, _, what)) = given.iter().find(|(bit, given, _)| *given && !new.named.contains(*bit)) {
        let bit = bit.bits().trailing_zeros();
        found.add(
            &QP_UNNAMED,
            format!("{} of QP {qpn} sets the {what} without opt_param_mask bit {bit}", command.op),
        );
    }
}
