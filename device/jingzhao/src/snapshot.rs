//! Snapshots of the device's objects for an operator.

use card::frontend::snapshot::{CqRow, EqRow, IcmRow, IcmTable, MrRow, Peer, QpRow, Service, remote_rights};
use card::net::address::Addresses;
use engine::{Engine, QpSnapshot};
use hcr::snapshot::{Objects, icm_row};
use protocol::hca::jingzhao::qpc::ServiceType;

use super::address::connected;
use super::completion_queue::CompletionQueue;
use super::event_queue::EventQueue;
use super::qp::QueuePair;
use super::resources::Resources;

/// This bit is set in the row index of every TPT range, so that TPT ranges sort after those of the context tables.
const TPT_ROWS: u64 = 1 << 63;

impl Objects for Resources {
    fn qps(&self, engine: &Engine, addresses: &Addresses, from: u32) -> impl Iterator<Item = (u32, QpRow)> {
        let live = |qp: &QueuePair| engine.query_qp(qp.qpn).map(|live| qp_row(qp, &live, addresses));
        self.qps.iter_from(from).filter_map(move |(index, qp)| Some((index, live(qp)?)))
    }

    fn cqs(&self, from: u32) -> impl Iterator<Item = (u32, CqRow)> {
        self.cqs.iter_from(from).map(|(index, cq)| (index, cq_row(cq)))
    }

    fn eqs(&self, from: u32) -> impl Iterator<Item = (u32, EqRow)> {
        self.eqs.iter_from(from).map(|(index, eq)| (index, eq_row(index, eq)))
    }

    fn mrs(&self, from: u32) -> impl Iterator<Item = (u32, MrRow)> {
        self.regions.keys.iter_from(from).map(|(index, region)| (index, region.into()))
    }
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
        remote_rights: remote_rights(qp.limits.remote),
        max_rd_atomic: qp.limits.max_rd_atomic,
        max_dest_rd_atomic: qp.limits.max_dest_rd_atomic,
        counters: qp.counters,

        ignored: None,
    }
}

fn peer(qp: &QueuePair, live: &QpSnapshot, addresses: &Addresses) -> Option<Peer> {
    let image = &qp.key.context().image;
    let is_connected = image.service() != Some(ServiceType::Ud)
        && !matches!(live.state, engine::State::Reset | engine::State::Init);
    let path = connected(addresses, &qp.key.read(), qp.qpn, image.remote_qpn).filter(|_| is_connected)?;
    Some(Peer::new(image.remote_qpn, &path))
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

/// Returns the mapped ICM ranges of the context tables, followed by those of the TPT.
pub(super) fn icm_rows(resources: &Resources, from: u64) -> impl Iterator<Item = (u64, IcmRow)> {
    let context = (from & TPT_ROWS == 0).then(|| resources.ctx.ctxmdata().ranges_from(from));
    let tpt_from = if from & TPT_ROWS == 0 { 0 } else { from & !TPT_ROWS };
    let tpt = resources.regions.icm.ranges_from(tpt_from);
    let context = context.into_iter().flatten();
    context
        .map(move |(page, range)| (page, icm_row(IcmTable::Context, &range)))
        .chain(tpt.map(move |(page, range)| (page | TPT_ROWS, icm_row(IcmTable::Tpt, &range))))
}
