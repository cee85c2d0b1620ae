//! Checks QP commands and doorbells.

use std::fmt::Display;

use card::identity::Identity;
use card::memory::translate::AccessTarget;
use engine::Access;
use protocol::Psn;
use protocol::hca::jingzhao::cmd::Command;
use protocol::hca::jingzhao::doorbell::SendDoorbell;
use protocol::hca::jingzhao::qpc::{QpState, Qpc, ServiceType};
use protocol::hca::jingzhao::transition::{Attributes, Transition};
use protocol::ids::{Cqn, Lid, Lkey, Qpn};

use super::rules::{
    CQ_OVERRUN_RISK, DOORBELL_NO_QP, DOORBELL_NUMBER, DOORBELL_PAGE, DOORBELL_STATE, QP_ATTRIBUTES,
    QP_BUFFER, QP_CQ, QP_NUMBER, QP_SOURCE, QP_UNNAMED, QUERY_RESET, SQ_OVERRUN,
};
use super::{Findings, View};
use crate::qp::QueuePair;
use crate::resources::Resources;

/// Checks a doorbell before it takes effect. `qp` is the QP at the doorbell's index. The QP's state and counters are up
/// to date.
pub(in super::super) fn doorbell(qp: Option<&QueuePair>, page: u32, doorbell: &SendDoorbell) -> Findings {
    let mut found = Findings::default();
    let number = doorbell.qpn;
    let Some(qp) = qp else {
        found.add(&DOORBELL_NO_QP, format!("doorbell for QP {number}, which does not exist or is in RESET"));
        return found;
    };
    let image = &qp.key.context().image;
    if let Some(state @ (QpState::Init | QpState::Rtr)) = image.state() {
        found.add(&DOORBELL_STATE, format!("doorbell for QP {number}, which is in {}", state.name()));
        return found;
    }
    if image.usr_page != page {
        found.add(
            &DOORBELL_PAGE,
            format!("doorbell for QP {number} in UAR page {page:#x}, expected page {:#x}", image.usr_page),
        );
    }
    if number != qp.qpn {
        found.add(
            &DOORBELL_NUMBER,
            format!("doorbell for QP {number}, but the QP at its index is now {}", qp.qpn),
        );
    }
    // Each doorbell, this one included, covers at least one request.
    let announced = qp.counters.sends_outstanding() + qp.send.waiting() as u64 + 1;
    if announced > u64::from(qp.send.slots()) {
        let slots = qp.send.slots();
        found.add(
            &SQ_OVERRUN,
            format!("send queue of QP {number} has {slots} slots, but at least {announced} posted requests"),
        );
    }
    found
}

pub(super) fn query(resources: &Resources, command: &Command, found: &mut Findings) {
    if let Ok(number) = command.qpn()
        && resources.qp(number).is_none()
    {
        found.add(&QUERY_RESET, format!("QUERY_QP of QP {number}, which does not exist or is in RESET"));
    }
}

pub(super) fn modify(
    view: View<'_>,
    own: &Identity,
    command: &Command,
    transition: Transition,
    mailbox: &Qpc,
    found: &mut Findings,
) {
    let Ok(number) = command.qpn() else { return };
    let ctx = &view.resources.ctx;
    if !matches!(transition, Transition::ToErr | Transition::ToRst)
        && mailbox.local_qpn != Qpn::default()
        && ctx.qp_index(mailbox.local_qpn) != ctx.qp_index(number)
    {
        found.add(&QP_NUMBER, format!("context of QP {number} has QP number {}", mailbox.local_qpn));
    }
    let current = view.resources.qp(number).map(|qp| *qp.key.context()).unwrap_or_default();
    let Ok(next) = current.modify(transition, mailbox) else { return };
    let service = next.image.service().unwrap_or(ServiceType::Rc);
    attributes(number, transition, service, mailbox, found);
    unnamed(number, transition, &next.image, mailbox, found);
    if next.image.source_ip != current.image.source_ip
        || (next.image.smac_high, next.image.slid) != (current.image.smac_high, current.image.slid)
    {
        source(number, own, &next.image, found);
    }
    let Qpc { pd, rq_lkey, rq_len, recv_cqn, sq_lkey, sq_len, send_cqn, .. } = next.image;
    let mut begin = |queue, key, len, cqn| queue_begins(view, number, queue, (pd, key, len), cqn, found);
    match transition {
        Transition::Init2Rtr => begin("receive", rq_lkey, rq_len, recv_cqn),
        Transition::Rtr2Rts => {
            begin("send", sq_lkey, sq_len, send_cqn);
            overrun_risk(view.resources, number, &next.image, found);
        }
        _ => {}
    }
}

fn attributes(
    number: Qpn,
    transition: Transition,
    service: ServiceType,
    mailbox: &Qpc,
    found: &mut Findings,
) {
    let given = Attributes::from_bits_retain(mailbox.opt_param_mask);
    let accepted = transition.required(service) | transition.optional(service) | Attributes::STATE;
    let others = given.difference(accepted);
    if !others.is_empty() {
        found.add(
            &QP_ATTRIBUTES,
            format!(
                "opt_param_mask bits {:#x} are not valid for {} (QP {number})",
                others.bits(),
                transition.op()
            ),
        );
    }
}

/// Finds values that are set in the mailbox but not copied to the context by the command. PSNs are not compared,
/// because the public driver repeats the initial PSNs in every command. The state and the service type are not compared
/// either, because commands after the first do not copy them from the mailbox.
fn unnamed(number: Qpn, transition: Transition, next: &Qpc, mailbox: &Qpc, found: &mut Findings) {
    if matches!(transition, Transition::ToErr | Transition::ToRst) {
        return;
    }
    let stored = next.emit();
    let given = Qpc {
        opt_param_mask: 0,
        state: 0,
        service: 0,
        next_send_psn: Psn::default(),
        unacked_psn: Psn::default(),
        recv_psn: Psn::default(),
        ..*mailbox
    };
    let mut bytes = given.emit().into_iter().zip(stored).enumerate();
    if let Some((at, (given, kept))) = bytes.find(|(_, (given, kept))| *given != 0 && given != kept) {
        let what = format!(
            "{} of QP {number} ignores byte {at:#x}: mailbox has {given:#04x}, context keeps {kept:#04x}",
            transition.op()
        );
        found.add(&QP_UNNAMED, what);
    }
}

fn source(number: Qpn, own: &Identity, image: &Qpc, found: &mut Findings) {
    let mut other = |what: &str, given: &dyn Display, own: &dyn Display| {
        found.add(&QP_SOURCE, format!("source {what} of QP {number} is {given}, but the port has {own}"));
    };
    if let Some(ip) = image.sip().filter(|ip| *ip != own.ipv4) {
        other("IP address", &ip, &own.ipv4);
    }
    match image.smac() {
        Some(mac) if mac != own.mac => other("MAC", &mac, &own.mac),
        None if image.slid != Lid::default() && image.slid != own.lid => other("LID", &image.slid, &own.lid),
        _ => {}
    }
}

fn queue_begins(
    view: View<'_>,
    number: Qpn,
    queue: &str,
    (pd, key, len): (protocol::ids::Pdn, Lkey, u32),
    cqn: Cqn,
    found: &mut Findings,
) {
    if len == 0 {
        return;
    }
    let access = view.resources.regions.access(view.dma);
    if let Err(error) = access.check(AccessTarget::offset(pd, key, 0), len.into(), Access::LocalRead) {
        let what = format!(
            "{queue} queue of QP {number} needs {len} bytes in the memory region with key {key}: {error}"
        );
        found.add(&QP_BUFFER, what);
    }
    if view.resources.cqs.get(view.resources.ctx.cq_index(cqn)).is_none() {
        found.add(&QP_CQ, format!("{queue} queue of QP {number} uses CQ {cqn}, which is not valid"));
    }
}

/// Reports each of the QP's CQs that has fewer entries than the total number of slots in the work queues that use it.
fn overrun_risk(resources: &Resources, number: Qpn, image: &Qpc, found: &mut Findings) {
    let ctx = &resources.ctx;
    let this = ctx.qp_index(number);
    let slots = |len: u32, log_slot: u8| u64::from(len.checked_shr(log_slot.into()).unwrap_or(0));
    let of = |image: &Qpc, cq| {
        let part = |cqn, slots| if ctx.cq_index(cqn) == cq { slots } else { 0 };
        part(image.send_cqn, slots(image.sq_len, image.log_sq_slot))
            + part(image.recv_cqn, slots(image.rq_len, image.log_rq_slot))
    };
    let mut cqs = vec![ctx.cq_index(image.send_cqn), ctx.cq_index(image.recv_cqn)];
    cqs.dedup();
    for cq in cqs {
        let others = resources.qps.iter().filter(|(index, _)| *index != this);
        let requests: u64 =
            of(image, cq) + others.map(|(_, qp)| of(&qp.key.context().image, cq)).sum::<u64>();
        if let Some(queue) = resources.cqs.get(cq).filter(|queue| requests > queue.entries()) {
            let (cqn, entries) = (queue.cqn(), queue.entries());
            found.add(
                &CQ_OVERRUN_RISK,
                format!("CQ {cqn} has {entries} entries, but its queues have {requests} slots"),
            );
        }
    }
}
