//! RDMA objects as table rows for the control socket.

use card::frontend::snapshot::{
    ControlRow, CqRow, EqRow, GroupRow, HandleRow, IcmRow, MrRow, Peer, QpRow, Service, remote_rights,
};
use card::frontend::table::TableContext;
use engine::{QpAttrs, QpSnapshot};
use protocol::hca::e810::rdma::send_wqe;

use super::Rdma;
use super::completion_queue::CompletionQueue;
use super::queue_pair::{PathContext, QueuePair};
use crate::limits::MAX_CEQS;
use crate::vectors::{RouteRegister, Vectors};

/// QPN of the QP that is reported as the GSI QP.
const GSI: u32 = 1;

/// Row number of the asynchronous event queue, after all CEQs.
const ASYNC: u16 = MAX_CEQS;

/// Device state that the rows describe.
#[derive(Clone, Copy)]
pub(in super::super) struct View<'a> {
    pub(in super::super) rdma: &'a Rdma,
    /// Interrupt vectors of the event queues.
    pub(in super::super) vectors: &'a Vectors,
    /// The engine, the port's addresses, and the index of the first row.
    pub(in super::super) cx: TableContext<'a>,
}

impl View<'_> {
    pub(in super::super) fn qps(self) -> impl Iterator<Item = (u32, QpRow)> {
        let qps = self.cx.first().into_iter().flat_map(move |first| self.rdma.queues.qps_from(first));
        qps.filter_map(move |(index, qp)| {
            let live = self.cx.engine.query_qp(qp.qpn)?;
            Some((index, self.qp(qp, &live)))
        })
    }

    pub(in super::super) fn cqs(self) -> impl Iterator<Item = (u32, CqRow)> {
        let cqs = self.cx.first().into_iter().flat_map(move |first| self.rdma.queues.cqs_from(first));
        cqs.map(|(index, cq)| (index, CompletionQueue::row(cq)))
    }

    pub(in super::super) fn mrs(self) -> impl Iterator<Item = (u32, MrRow)> {
        let keys = &self.rdma.regions.keys;
        let regions = self.cx.first().into_iter().flat_map(move |first| keys.iter_from(first));
        regions.map(|(index, region)| (index, MrRow::from(region)))
    }

    pub(in super::super) fn icm(self) -> impl Iterator<Item = (u64, IcmRow)> {
        self.rdma.hmc.rows(self.cx.from)
    }

    pub(in super::super) fn handles(self) -> impl Iterator<Item = (u32, HandleRow)> {
        self.cx.first().into_iter().flat_map(move |first| self.rdma.paths.rows(first))
    }

    pub(in super::super) fn groups(self) -> impl Iterator<Item = (u32, GroupRow)> {
        self.cx.first().into_iter().flat_map(move |first| self.rdma.groups.rows(first))
    }

    fn qp(self, qp: &QueuePair, live: &QpSnapshot) -> QpRow {
        let path_context = PathContext { paths: &self.rdma.paths, mac: self.cx.addresses.own.mac };
        let QpAttrs { pd, remote, remote_qpn, path, max_rd_atomic, max_dest_rd_atomic, .. } =
            qp.attributes(path_context);
        let connected = qp.service == send_wqe::Service::Connection
            && !matches!(live.state, engine::State::Reset | engine::State::Init);
        QpRow {
            qpn: qp.qpn.get(),
            state: live.into(),
            service: match qp.service {
                send_wqe::Service::Connection => Service::Rc,
                send_wqe::Service::Datagram if qp.qpn.get() == GSI => Service::Gsi,
                send_wqe::Service::Datagram => Service::Ud,
            },
            pd: pd.get(),
            send_psn: live.send_psn.get(),
            unacked_psn: live.unacked_psn.get(),
            expected_psn: live.recv_psn.get(),
            peer: connected.then(|| Peer::new(remote_qpn, &path)),
            send_cqn: qp.context.send_cqn.get(),
            recv_cqn: qp.context.recv_cqn.get(),
            send_slots: qp.send.quanta(),
            // The number of posted requests is unknown, because doorbells do not carry it.
            send_waiting: 0,
            recv_slots: qp.receive.slots(),
            remote_rights: remote_rights(remote),
            max_rd_atomic,
            max_dest_rd_atomic,
            counters: qp.counters,

            ignored: None,
        }
    }

    pub(in super::super) fn eqs(self) -> impl Iterator<Item = (u16, EqRow)> {
        let rows = self.rdma.events.rings().map(move |(ceq, entries, producer, lost)| {
            let (place, route, mask) = match ceq {
                Some(ceq) => (ceq, RouteRegister::CompletionEvents(ceq), 0),
                None => (ASYNC, RouteRegister::AsyncEvents, u64::MAX),
            };
            let row = EqRow {
                eqn: place.into(),
                entries: entries.into(),
                producer,
                armed: true,
                vector: self.vectors.vector(route),
                mask,
                overflowed: lost,
            };
            (place, row)
        });
        rows.filter(move |(index, _)| u64::from(*index) >= self.cx.from)
    }

    pub(in super::super) fn control(self) -> ControlRow {
        let Rdma { cqp, hmc, paths, groups, nodes, .. } = self.rdma;
        let (neighbours, handles) = paths.counts();
        ControlRow {
            pbles: hmc.pbles(),
            neighbours,
            handles,
            groups: groups.count(),
            nodes: nodes.count(),
            ..cqp.row()
        }
    }
}
