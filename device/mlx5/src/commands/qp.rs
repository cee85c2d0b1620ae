//! Commands for queue pairs.
//!
//! # Spec
//! mlx5 interface, sections 5.4 and 10.

use engine::Mtu;
use protocol::hca::mlx5::doorbell::RECORD_LEN;
use protocol::hca::mlx5::input::Pages;
use protocol::hca::mlx5::qp::{CreateQp, ModifyQp, QpContext, QueriedQp, ReceiveKind, Service};
use protocol::hca::mlx5::resource::QpNumber;
use protocol::hca::mlx5::transition::Transition;
use protocol::hca::mlx5::user_context::User;
use protocol::ids::Qpn;

use super::{Call, Output, nothing};
use crate::buffer::Placement;
use crate::check::{Check, Rejection};
use crate::host;
use crate::limits::{LOG_MAX_RECV_ENTRY, Limits};
use crate::mapped::Word;
use crate::queue_pair::QueuePair;
use crate::resources::Resources;
use crate::umem::Umems;

fn unknown(qpn: Qpn) -> Rejection {
    Check::Qp.rejects(qpn.get())
}

pub(super) fn create(call: Call<'_, '_>, create: &CreateQp, pages: Pages<'_>) -> Result<Output, Rejection> {
    let Call { resources, setup, cx, .. } = call;
    let mut context = create.context;
    let umems = Umems { queue: create.place(), record: context.record_place() };
    resources.resolve_record(&umems, &mut context.record)?;
    let service = service(&context)?;
    // Section 15.3: an Ethernet port has no QP0.
    if service == Service::Qp0 && resources.port.ethernet().is_some() {
        return Err(Check::QpService.rejects(context.service));
    }
    check_geometry(&setup.options.limits, &context)?;
    check_objects(resources, &context, service)?;
    let taken = match service {
        Service::Qp0 => cx.engine.smi(),
        Service::Qp1 => cx.engine.gsi(),
        _ => None,
    };
    if let Some(taken) = taken {
        return Err(Check::QpManagement.rejects(taken.get()));
    }
    let full = Check::QpLimit.rejects(resources.qps.count() as u64);
    let qpn = Qpn::new(resources.qps.next().ok_or(full)?);
    let place = Placement { log_page_size: context.log_page_size, page_offset: context.page_offset };
    let len = (context.rq_len() + context.sq_len()) as u64;
    let buffer = resources.buffer_in(&umems, pages, place, len, Check::QpPages.rejects(len))?;
    let kept = buffer.pages();
    let mut qp = QueuePair::new(qpn, service, context, buffer);
    qp.umems = umems;
    if let Some(attributes) = qp.attributes(resources.port.resolver(cx.port.addresses()))
        && cx.engine.create_qp(qpn, attributes).is_err()
    {
        resources.release_pages(kept);
        return Err(Check::QpEngine.rejects(qpn.get()));
    }
    match service {
        Service::Qp0 => cx.engine.set_smi(Some(qpn)),
        Service::Qp1 => cx.engine.set_gsi(Some(qpn)),
        _ => {}
    }
    resources.uses.add(&QueuePair::uses(&context));
    resources.uses.add(&umems.uses());
    resources.qps.insert(Box::new(qp)).ok_or(full)?;
    if !context.no_sq {
        resources.poll_queue(context.uar, Word::Send, qpn.get());
    }
    Ok(QpNumber { qpn }.emit().to_vec())
}

fn service(context: &QpContext) -> Result<Service, Rejection> {
    match context.service() {
        Some(
            service @ (Service::Rc
            | Service::Uc
            | Service::Ud
            | Service::Xrc
            | Service::Qp0
            | Service::Qp1
            | Service::Umr),
        ) => Ok(service),
        _ => Err(Check::QpService.rejects(context.service)),
    }
}

fn check_geometry(limits: &Limits, context: &QpContext) -> Result<(), Rejection> {
    let most = limits.caps().log_max_qp_blocks;
    let too_large = |log: u8, most: u8| if log > most { Err(Check::QpSize.rejects(log)) } else { Ok(()) };
    if !context.no_sq {
        too_large(context.log_sq_blocks, most)?;
    }
    match context.receive_kind() {
        Some(ReceiveKind::Own) => {
            too_large(context.log_rq_entries, most)?;
            too_large(context.log_rq_stride + 4, LOG_MAX_RECV_ENTRY)?;
        }
        Some(ReceiveKind::Srq | ReceiveKind::None) => {}
        _ => return Err(Check::QpReceiveKind.rejects(context.receive_kind)),
    }
    if !context.record.get().is_multiple_of(RECORD_LEN as u64) {
        return Err(Check::QpRecord.rejects(context.record.get()));
    }
    Ok(())
}

fn check_objects(resources: &Resources, context: &QpContext, service: Service) -> Result<(), Rejection> {
    // Section 20, M-33: the UMR QP may be created with PD 0, and RST2INIT sets its PD.
    let waits_for_pd = service == Service::Umr && context.pd.get() == 0;
    if !waits_for_pd && !resources.pds.contains(context.pd.get()) {
        return Err(Check::QpPd.rejects(context.pd.get()));
    }
    // An XRC target has no send queue and does not need a UAR page for a doorbell.
    let is_target = service == Service::Xrc && context.no_sq;
    let has_no_page = is_target && context.uar.get() == 0;
    if !has_no_page && !resources.uars.contains(context.uar.get()) {
        return Err(Check::QpUar.rejects(context.uar.get()));
    }
    if is_target && !resources.xrcds.contains(context.xrcd.get()) {
        return Err(Check::QpXrcd.rejects(context.xrcd.get()));
    }
    let receives = context.receive_kind() != Some(ReceiveKind::None);
    let [send, recv] = QueuePair::cqs(context).map(|cqn| cqn.get());
    if (send != 0 || !context.no_sq) && !resources.cqs.contains(send) {
        return Err(Check::QpSendCq.rejects(send));
    }
    if (recv != 0 || receives) && !resources.cqs.contains(recv) {
        return Err(Check::QpRecvCq.rejects(recv));
    }
    let is_shared = context.receive_kind() == Some(ReceiveKind::Srq);
    if is_shared && !resources.srqs.contains(context.srqn.get()) {
        return Err(Check::QpSrq.rejects(context.srqn.get()));
    }
    Ok(())
}

/// Destroys a QP and removes it from its multicast groups. Afterwards, the device no longer accesses the QP's buffers.
pub(super) fn destroy(call: Call<'_, '_>, qpn: Qpn) -> Result<Output, Rejection> {
    let Call { resources, cx, .. } = call;
    let qp = resources.qps.remove(qpn.get()).ok_or_else(|| unknown(qpn))?;
    cx.engine.destroy_qp(qpn);
    match qp.service() {
        Service::Qp0 => cx.engine.set_smi(None),
        Service::Qp1 => cx.engine.set_gsi(None),
        Service::Ud => resources.groups.forget(qpn),
        _ => {}
    }
    cx.monitor.forget_qp(qpn);
    resources.polled.remove((qp.context.uar, Word::Send), qpn.get());
    resources.uses.remove(&QueuePair::uses(&qp.context));
    resources.uses.remove(&qp.umems.uses());
    resources.release_pages(qp.buffer.pages());
    Ok(nothing())
}

pub(super) fn query(call: Call<'_, '_>, qpn: Qpn) -> Result<Output, Rejection> {
    let Call { resources, cx, .. } = call;
    resources.observe(cx.engine, qpn);
    let qp = resources.qps.get(qpn.get()).ok_or_else(|| unknown(qpn))?;
    let context = QpContext { record: qp.umems.specified(qp.context.record), ..qp.context };
    Ok(QueriedQp { context }.emit().to_vec())
}

/// Executes a transition. Changes only the context fields that the transition defines or the mask selects.
pub(super) fn modify(
    call: Call<'_, '_>,
    transition: Transition,
    modify: &ModifyQp,
) -> Result<Output, Rejection> {
    let Call { resources, cx, user, .. } = call;
    let qpn = modify.qpn;
    resources.observe(cx.engine, qpn);
    let qp = resources.qps.get(qpn.get()).ok_or_else(|| unknown(qpn))?;
    let (old, service) = (qp.context, qp.service());
    let next = old.modified(transition, modify.optional, &modify.context);
    let mut next = next.map_err(|_| Check::QpTransition.rejects(old.state))?;
    // Section 23.2: a user program cannot move the doorbell record to another address.
    if matches!(user, User::Context(_)) {
        next.record = old.record;
    }
    check_modified(resources, transition, &next, service)?;
    resources.uses.remove(&QueuePair::uses(&old));
    resources.uses.add(&QueuePair::uses(&next));
    let Resources { qps, port, .. } = &mut *resources;
    let Some(qp) = qps.get_mut(qpn.get()) else { return Err(unknown(qpn)) };
    qp.context = next;
    if transition == Transition::ToRst {
        qp.clear();
        cx.monitor.forget_qp(qpn);
    }
    let modification = qp.modification(transition, port.resolver(cx.port.addresses()));
    if let Some(modification) = modification {
        host::modify_qp(cx, resources, qpn, &modification)?;
    }
    Ok(nothing())
}

fn check_modified(
    resources: &Resources,
    transition: Transition,
    next: &QpContext,
    service: Service,
) -> Result<(), Rejection> {
    match transition {
        Transition::Rst2Init => {
            if !resources.pds.contains(next.pd.get()) {
                return Err(Check::QpPd.rejects(next.pd.get()));
            }
            let send = next.send_cqn.get();
            if send != 0 && !resources.cqs.contains(send) {
                return Err(Check::QpSendCq.rejects(send));
            }
            if !next.record.get().is_multiple_of(RECORD_LEN as u64) {
                return Err(Check::QpRecord.rejects(next.record.get()));
            }
        }
        Transition::Init2Rtr
            if matches!(service, Service::Rc | Service::Uc | Service::Xrc)
                && Mtu::from_code(next.mtu).is_none() =>
        {
            return Err(Check::QpMtu.rejects(next.mtu));
        }
        _ => {}
    }
    // The receive CQ and the SRQ are always checked, because the mask can select them in any transition.
    if next.recv_cqn.get() != 0 && !resources.cqs.contains(next.recv_cqn.get()) {
        return Err(Check::QpRecvCq.rejects(next.recv_cqn.get()));
    }
    let is_shared = next.receive_kind() == Some(ReceiveKind::Srq);
    if is_shared && !resources.srqs.contains(next.srqn.get()) {
        return Err(Check::QpSrq.rejects(next.srqn.get()));
    }
    Ok(())
}
