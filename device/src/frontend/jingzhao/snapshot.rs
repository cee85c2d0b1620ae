//! The device's objects as an operator sees them.

use std::net::IpAddr;

use engine::{Engine, QpSnapshot};
use protocol::hca::jingzhao::qpc::ServiceType;
use protocol::roce::IpAddrs;

use super::address::connected;
use super::completion_queue::CompletionQueue;
use super::event_queue::EventQueue;
use super::qp::QueuePair;
use super::resources::Resources;
use crate::frontend::address::Addresses;
use crate::frontend::snapshot::{
    CqRow, EqRow, IcmRow, IcmTable, Page, Peer, QpRow, Rows, Service, Table, page,
};

/// Set in the place of a row of the TPT translation, whose rows come after those of the context translation.
const TPT_ROWS: u64 = 1 << 63;

/// One page of a table. Without `resources` there are no objects.
pub(super) fn take(
    resources: Option<&Resources>,
    addresses: &Addresses,
    engine: &Engine,
    table: Table,
    from: u64,
) -> Page {
    // Places in the other tables have 32 bits; behind them there is nothing.
    let index = u32::try_from(from).ok();
    let indexed = resources.zip(index);
    let (rows, next) = match table {
        Table::Qps => {
            let qps = indexed.into_iter().flat_map(|(all, from)| all.qps.iter_from(from));
            let live = qps.filter_map(|(index, qp)| Some((index, (qp, engine.query_qp(qp.qpn)?))));
            let (rows, next) = page(live.map(|(index, (qp, live))| (index, qp_row(qp, &live, addresses))));
            (Rows::Qps(rows), next)
        }
        Table::Cqs => {
            let cqs = indexed.into_iter().flat_map(|(all, from)| all.cqs.iter_from(from));
            let (rows, next) = page(cqs.map(|(index, cq)| (index, cq_row(cq))));
            (Rows::Cqs(rows), next)
        }
        Table::Eqs => {
            let eqs = indexed.into_iter().flat_map(|(all, from)| all.eqs.iter_from(from));
            let (rows, next) = page(eqs.map(|(index, eq)| (index, eq_row(index, eq))));
            (Rows::Eqs(rows), next)
        }
        Table::Mrs => {
            let regions = indexed.into_iter().flat_map(|(all, from)| all.regions.keys.iter_from(from));
            let (rows, next) = page(regions.map(|(index, region)| (index, region.into())));
            (Rows::Mrs(rows), next)
        }
        Table::Icm => {
            let (rows, next) = page(resources.into_iter().flat_map(|all| icm_rows(all, from)));
            (Rows::Icm(rows), next)
        }
    };
    Page { rows, next }
}

fn qp_row(qp: &QueuePair, live: &QpSnapshot, addresses: &Addresses) -> QpRow {
    let image = &qp.key.context().image;
    QpRow {
        qpn: qp.qpn.get(),
        state: live.into(),
        service: match image.service() {
            Some(ServiceType::Uc) => Service::Uc,
            Some(ServiceType::Ud) => Service::Ud,
            Some(ServiceType::Rc) | None => Service::Rc,
        },
        pd: image.pd.get(),
        send_psn: live.send_psn.get(),
        unacked_psn: live.unacked_psn.get(),
        expected_psn: live.recv_psn.get(),
        peer: peer(qp, live, addresses),
        send_cqn: image.send_cqn.get(),
        recv_cqn: image.recv_cqn.get(),
        send_slots: qp.send.slots(),
        send_waiting: u32::try_from(qp.send.waiting()).unwrap_or(u32::MAX),
        recv_slots: qp.recv.slots(),
        counters: qp.counters,
    }
}

fn peer(qp: &QueuePair, live: &QpSnapshot, addresses: &Addresses) -> Option<Peer> {
    let image = &qp.key.context().image;
    let is_connected = image.service() != Some(ServiceType::Ud)
        && !matches!(live.state, engine::State::Reset | engine::State::Init);
    let path = connected(addresses, &qp.key.read(), qp.qpn, image.remote_qpn).filter(|_| is_connected)?;
    let ip = match path.ip {
        IpAddrs::V4 { dst, .. } => IpAddr::V4(dst),
        IpAddrs::V6 { dst, .. } => IpAddr::V6(dst),
    };
    Some(Peer { qpn: image.remote_qpn.get(), mac: path.dst_mac.to_string(), ip })
}

fn cq_row(cq: &CompletionQueue) -> CqRow {
    CqRow {
        cqn: cq.cqn().get(),
        entries: cq.entries(),
        producer: cq.producer(),
        armed: cq.notifier().armed(),
        eqn: cq.notifier().eqn().get(),
        fault: cq.notifier().fault(),
    }
}

fn eq_row(eqn: u32, eq: &EventQueue) -> EqRow {
    EqRow {
        eqn,
        entries: eq.entries(),
        producer: eq.producer(),
        armed: eq.is_armed(),
        vector: Some(eq.msix_vector()),
        mask: eq.mask(),
        overflowed: eq.overflowed(),
    }
}

fn icm_rows(resources: &Resources, from: u64) -> impl Iterator<Item = (u64, IcmRow)> {
    let context = (from & TPT_ROWS == 0).then(|| resources.ctx.ctxmdata().ranges_from(from));
    let tpt_from = if from & TPT_ROWS == 0 { 0 } else { from & !TPT_ROWS };
    let tpt = resources.regions.icm.ranges_from(tpt_from);
    let context = context.into_iter().flatten();
    context
        .map(move |(page, range)| (page, IcmRow::new(IcmTable::Context, &range)))
        .chain(tpt.map(move |(page, range)| (page | TPT_ROWS, IcmRow::new(IcmTable::Tpt, &range))))
}
