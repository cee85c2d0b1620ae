//! Checks commands for completion and event queues.

use card::frontend::snapshot::Armed;
use hcr::strict::{check_ring, check_ring_access};
use protocol::hca::jingzhao::cmd::Command;
use protocol::hca::jingzhao::cqc::{CqArm, Cqc, ResizeCq};
use protocol::hca::jingzhao::eqc::Eqc;
use protocol::hca::jingzhao::eqe::EventType;
use protocol::hca::jingzhao::pci::MSIX_VECTORS;

use super::rules::{
    CQ_BUFFER, CQ_EQ, CQ_IN_USE, CQ_NUMBER, CQ_OWNER, EQ_BUFFER, EQ_EVENTS, EQ_IN_USE, EQ_OWNER, EQ_VECTOR,
};
use super::{Findings, View};
use crate::resources::Resources;
use crate::{completion_queue, event_queue};

pub(super) fn sw2hw_cq(view: View<'_>, command: &Command, cqc: &Cqc, found: &mut Findings) {
    let ctx = &view.resources.ctx;
    let Ok(number) = command.cqn() else { return };
    if ctx.cq_index(cqc.cqn) != ctx.cq_index(number) {
        found.add(&CQ_NUMBER, format!("context of CQ {number} has CQ number {}", cqc.cqn));
    }
    if cqc.flags.arm() != CqArm::Disarmed && !view.resources.eqs.contains(cqc.comp_eqn.get()) {
        found.add(&CQ_EQ, format!("CQ {number} uses EQ {}, which is not valid", cqc.comp_eqn));
    }
    let access = view.resources.regions.access(view.dma);
    let buffer = completion_queue::buffer(cqc.pd, cqc.lkey, cqc.start, cqc.log_entries, &access);
    check_ring(&access, &buffer, &format!("CQ {number}"), (&CQ_BUFFER, &CQ_OWNER), found);
}

pub(super) fn resize_cq(view: View<'_>, command: &Command, resize: &ResizeCq, found: &mut Findings) {
    let Ok(number) = command.cqn() else { return };
    let Some(cq) = view.resources.cqs.get(view.resources.ctx.cq_index(number)) else { return };
    let access = view.resources.regions.access(view.dma);
    let buffer =
        completion_queue::buffer(cq.buffer().pd, resize.lkey, cq.start(), resize.log_entries, &access);
    // The owner bits are not checked, because the new buffer may already hold unread entries, which software owns.
    check_ring_access(&access, &buffer, &format!("CQ {number}"), &CQ_BUFFER, found);
}

pub(super) fn hw2sw_cq(resources: &Resources, command: &Command, found: &mut Findings) {
    let Ok(number) = command.cqn() else { return };
    let index = resources.ctx.cq_index(number);
    let uses = |cqn, len| resources.ctx.cq_index(cqn) == index && len != 0;
    let user = resources.qps.iter().find(|(_, qp)| {
        let image = &qp.key.context().image;
        uses(image.send_cqn, image.sq_len) || uses(image.recv_cqn, image.rq_len)
    });
    if let Some((_, qp)) = user {
        found.add(&CQ_IN_USE, format!("HW2SW_CQ of CQ {number}, which QP {} still uses", qp.qpn));
    }
}

pub(super) fn sw2hw_eq(view: View<'_>, command: &Command, eqc: &Eqc, found: &mut Findings) {
    let number = command.in_modifier;
    if eqc.msix_vector >= MSIX_VECTORS {
        found.add(
            &EQ_VECTOR,
            format!("EQ {number:#x} uses MSI-X vector {}, which does not exist", eqc.msix_vector),
        );
    }
    let access = view.resources.regions.access(view.dma);
    let buffer = event_queue::buffer(eqc, &access);
    check_ring(&access, &buffer, &format!("EQ {number:#x}"), (&EQ_BUFFER, &EQ_OWNER), found);
}

pub(super) fn hw2sw_eq(resources: &Resources, command: &Command, found: &mut Findings) {
    let armed = |cq: &&super::super::completion_queue::CompletionQueue| {
        cq.notifier().armed() != Armed::No && cq.notifier().eqn().get() == command.in_modifier
    };
    if let Some(cq) = resources.cqs.iter().map(|(_, cq)| &**cq).find(armed) {
        found.add(
            &EQ_IN_USE,
            format!("HW2SW_EQ of EQ {:#x}, which CQ {} still uses", command.in_modifier, cq.cqn()),
        );
    }
}

pub(super) fn map_eq(command: &Command, found: &mut Findings) {
    let by_mask = |code: &u8| EventType::from_code(*code).is_some_and(|event| event != EventType::Completion);
    let known = (0..64).filter(by_mask).fold(0u64, |mask, code| mask | 1 << code);
    let unknown = command.in_param & !known;
    if unknown != 0 {
        found.add(
            &EQ_EVENTS,
            format!("MAP_EQ mask has bits {unknown:#x}, which are never routed by the mask"),
        );
    }
}
