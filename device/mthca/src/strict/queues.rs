//! Checks commands for CQs, EQs and SRQs.

use card::frontend::strict::Findings;
use card::memory::translate::AccessTarget;
use engine::Access;
use hcr::entry_ring::Buffer;
use hcr::strict::{check_ring, check_ring_access};
use protocol::hca::mthca::cmd::Command;
use protocol::hca::mthca::cqc::{Cqc, ResizeCq};
use protocol::hca::mthca::eqc::{Eqc, Interrupt};
use protocol::hca::mthca::pci::MSIX_VECTORS;
use protocol::hca::mthca::srqc::Srqc;

use super::View;
use super::icm::{self, Context};
use super::rules::{
    CQ_BUFFER, CQ_EQ, CQ_IN_USE, CQ_NUMBER, CQ_OWNER, EQ_BUFFER, EQ_EVENTS, EQ_IN_USE, EQ_MAPPED, EQ_OWNER,
    EQ_VECTOR, SRQ_BUFFER, SRQ_IN_USE, SRQ_NUMBER,
};
use crate::resources::Resources;

pub(super) fn sw2hw_cq(view: View<'_>, command: &Command, cqc: &Cqc, found: &mut Findings) {
    let resources = view.resources;
    let (cqn, number) = (command.cqn(), format!("CQ {}", command.cqn()));
    icm::context(resources, Context::Cq(cqn.get()), &number, found);
    icm::records(view, cqc.page, &[cqc.consumer_record, cqc.arm_record], &number, found);
    if cqc.cqn != cqn {
        found.add(&CQ_NUMBER, format!("context of {number} has CQ number {}", cqc.cqn));
    }
    if !resources.eqs.contains(cqc.comp_eqn) {
        found.add(&CQ_EQ, format!("{number} uses EQ {}, which is not valid", cqc.comp_eqn));
    }
    let buffer = Buffer { pd: cqc.pd, lkey: cqc.lkey, start: cqc.start, log_entries: cqc.log_entries };
    check_ring(&resources.regions.access(view.dma), &buffer, &number, (&CQ_BUFFER, &CQ_OWNER), found);
}

pub(super) fn resize_cq(view: View<'_>, command: &Command, resize: &ResizeCq, found: &mut Findings) {
    let resources = view.resources;
    let cqn = command.cqn();
    let Some(cq) = resources.cqs.get(resources.cq_index(cqn)) else { return };
    let &ResizeCq { start, lkey, log_entries } = resize;
    let buffer = Buffer { start, lkey, log_entries, ..*cq.ring().buffer() };
    let access = resources.regions.access(view.dma);
    // The owner bits are not checked. The new buffer may already hold unread entries, which software owns.
    check_ring_access(&access, &buffer, &format!("CQ {cqn}"), &CQ_BUFFER, found);
}

pub(super) fn hw2sw_cq(resources: &Resources, command: &Command, found: &mut Findings) {
    let cqn = command.cqn();
    let mut qps = resources.qps.iter().map(|(_, qp)| &**qp);
    if let Some(qp) = qps.find(|qp| [qp.qpc.send_cqn, qp.qpc.recv_cqn].contains(&cqn)) {
        found.add(&CQ_IN_USE, format!("HW2SW_CQ of CQ {cqn}, which QP {} still uses", qp.qpn));
    }
}

pub(super) fn sw2hw_eq(view: View<'_>, command: &Command, eqc: &Eqc, found: &mut Findings) {
    let resources = view.resources;
    let (eqn, number) = (command.eqn(), format!("EQ {}", command.eqn()));
    icm::context(resources, Context::Eq(eqn.get()), &number, found);
    match eqc.interrupt {
        Interrupt::MsiX(vector) if vector < MSIX_VECTORS => {}
        Interrupt::MsiX(vector) => {
            found.add(&EQ_VECTOR, format!("{number} uses MSI-X vector {vector}, which does not exist"));
        }
        Interrupt::Pin => {
            found.add(&EQ_VECTOR, format!("{number} requests INTx, which the device does not support"));
        }
    }
    let buffer = Buffer { pd: eqc.pd, lkey: eqc.lkey, start: eqc.start, log_entries: eqc.log_entries };
    check_ring(&resources.regions.access(view.dma), &buffer, &number, (&EQ_BUFFER, &EQ_OWNER), found);
}

pub(super) fn hw2sw_eq(resources: &Resources, command: &Command, found: &mut Findings) {
    let eqn = command.eqn();
    if let Some((_, cq)) = resources.cqs.iter().find(|(_, cq)| cq.eqn() == eqn) {
        found.add(&EQ_IN_USE, format!("HW2SW_EQ of EQ {eqn}, which CQ {} still uses", cq.cqn()));
    }
    let mask = resources.eqs.mask(eqn);
    if mask != 0 {
        found.add(&EQ_MAPPED, format!("HW2SW_EQ of EQ {eqn}, to which events {mask:#x} are still routed"));
    }
}

pub(super) fn map_eq(command: &Command, found: &mut Findings) {
    const COMPLETION: u64 = 1;
    let map = command.map_eq();
    if map.events & COMPLETION != 0 {
        found.add(&EQ_EVENTS, format!("MAP_EQ mask {:#x} for EQ {} has bit 0 set, but completion events are never routed by the mask", map.events, map.eqn));
    }
}

pub(super) fn sw2hw_srq(view: View<'_>, command: &Command, srqc: &Srqc, found: &mut Findings) {
    let resources = view.resources;
    let number = command.in_modifier;
    let queue = format!("SRQ {number:#x}");
    icm::context(resources, Context::Srq(number), &queue, found);
    icm::records(view, srqc.page, &[srqc.record], &queue, found);
    if srqc.srqn.get() != number {
        found.add(&SRQ_NUMBER, format!("context of {queue} has SRQ number {}", srqc.srqn));
    }
    let len = 1u64 << (u32::from(srqc.log_slots) + u32::from(srqc.log_slot)).min(32);
    let place = AccessTarget::offset(srqc.pd, srqc.lkey, 0);
    if let Err(error) = resources.regions.access(view.dma).check(place, len, Access::LocalRead) {
        found.add(
            &SRQ_BUFFER,
            format!("{queue} needs {len} bytes in the memory region with key {}: {error}", srqc.lkey),
        );
    }
}

pub(super) fn hw2sw_srq(resources: &Resources, command: &Command, found: &mut Findings) {
    let number = command.in_modifier;
    let mut qps = resources.qps.iter().map(|(_, qp)| &**qp);
    if let Some(qp) = qps.find(|qp| qp.qpc.responder.srq() && qp.qpc.srqn.get() == number) {
        found.add(&SRQ_IN_USE, format!("HW2SW_SRQ of SRQ {number:#x}, which QP {} still uses", qp.qpn));
    }
}
