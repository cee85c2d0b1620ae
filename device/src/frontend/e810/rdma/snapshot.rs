//! Rows of RDMA objects for the control socket.

use engine::{Engine, QpAttrs, QpSnapshot};
use protocol::hca::e810::rdma::send_wqe;

use super::Rdma;
use super::completion_queue::CompletionQueue;
use super::queue_pair::{PathContext, QueuePair};
use crate::frontend::e810::limits::MAX_CEQS;
use crate::frontend::e810::vectors::{RouteRegister, Vectors};
use crate::frontend::snapshot::{
    self, ControlRow, EqRow, GroupRow, HandleRow, MrRow, Page, Peer, QpRow, Rows, Service, Table,
    remote_rights,
};
use crate::net::address::Addresses;

/// QP number 1, reported as the GSI QP.
const GSI: u32 = 1;

/// Row number of the asynchronous event queue, after all CEQs.
const ASYNC: u16 = MAX_CEQS;

/// Data that rows are built from.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct View<'a> {
    pub(in super::super) rdma: &'a Rdma,
    /// Vectors of the event queues.
    pub(in super::super) vectors: &'a Vectors,
    pub(in super::super) addresses: &'a Addresses,
}

impl View<'_> {
    /// Returns a page of rows of `table`, from position `from` on. `None` for a table of the NIC half.
    pub(in super::super) fn page(self, engine: &Engine, table: Table, from: u64) -> Option<Page> {
        let Rdma { hmc, regions, paths, groups, queues, .. } = self.rdma;
        // Positions have 32 bits; the page is empty beyond that.
        let first = u32::try_from(from).ok();
        let pages = first.into_iter();
        Some(match table {
            Table::Qps => {
                let qps = pages.flat_map(|first| queues.qps_from(first));
                let rows = qps.filter_map(|(place, qp)| {
                    let live = engine.query_qp(qp.qpn)?;
                    Some((place, self.qp(qp, &live)))
                });
                snapshot::page(rows, Rows::Qps)
            }
            Table::Cqs => {
                let cqs = pages.flat_map(|first| queues.cqs_from(first));
                snapshot::page(cqs.map(|(place, cq)| (place, CompletionQueue::row(cq))), Rows::Cqs)
            }
            Table::Eqs => {
                snapshot::page(self.eqs().filter(|(place, _)| u64::from(*place) >= from), Rows::Eqs)
            }
            Table::Mrs => {
                let regions = pages.flat_map(|first| regions.keys.iter_from(first));
                snapshot::page(regions.map(|(place, region)| (place, MrRow::from(region))), Rows::Mrs)
            }
            Table::Icm => snapshot::page(hmc.rows(from), Rows::Icm),
            Table::Handles => {
                let rows: fn(Vec<HandleRow>) -> Rows = Rows::Handles;
                snapshot::page(pages.flat_map(|first| paths.rows(first)), rows)
            }
            Table::Groups => {
                let rows: fn(Vec<GroupRow>) -> Rows = Rows::Groups;
                snapshot::page(pages.flat_map(|first| groups.rows(first)), rows)
            }
            Table::Control => Page { rows: Rows::Control(vec![self.control()]), next: None },
            Table::Queues | Table::Link | Table::Vsis | Table::Rules | Table::Scheduler => return None,
        })
    }

    fn qp(self, qp: &QueuePair, live: &QpSnapshot) -> QpRow {
        let path_context = PathContext { paths: &self.rdma.paths, mac: self.addresses.own.mac };
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
            // A doorbell does not carry the number of requests posted.
            send_waiting: 0,
            recv_slots: qp.receive.slots(),
            remote_rights: remote_rights(remote),
            max_rd_atomic,
            max_dest_rd_atomic,
            counters: qp.counters,

            ignored: None,
        }
    }

    fn eqs(self) -> impl Iterator<Item = (u16, EqRow)> {
        self.rdma.events.rings().map(move |(ceq, entries, producer, lost)| {
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
        })
    }

    fn control(self) -> ControlRow {
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
