//! Rows for the control socket (`hcactl`).

use super::device::E810;
use super::function::Function;
use super::rdma::View;
use super::vectors::RouteRegister;
use crate::frontend::snapshot::{
    ControlRow, CqRow, EqRow, GroupRow, HandleRow, IcmRow, LinkRow, MrRow, NodeRow, QpRow, QueueDirection,
    QueueRow, RuleRow, VsiRow,
};
use crate::frontend::table::{Row as _, Table, TableContext};
use crate::net::address::Addresses;

/// Position of receive queue 0 in the table of queues, after all transmit queues.
const RECEIVE_OFFSET: u64 = 1 << 16;

/// All tables: those of the RDMA half, and those of the NIC.
pub(super) const TABLES: &[Table<E810>] = &[
    Table::new(QpRow::TABLE, |device, cx| cx.page(rdma(device, cx).qps())),
    Table::new(CqRow::TABLE, |device, cx| cx.page(rdma(device, cx).cqs())),
    Table::new(EqRow::TABLE, |device, cx| cx.page(rdma(device, cx).eqs())),
    Table::new(MrRow::TABLE, |device, cx| cx.page(rdma(device, cx).mrs())),
    Table::new(IcmRow::TABLE, |device, cx| cx.page(rdma(device, cx).icm())),
    Table::new(QueueRow::TABLE, |device, cx| cx.page(queues(device, cx.from))),
    Table::new(LinkRow::TABLE, |device, cx| cx.single(link(device, cx.addresses))),
    Table::new(VsiRow::TABLE, |device, cx| cx.page(device.function.pf_config.vsi_rows(cx.from))),
    Table::new(RuleRow::TABLE, |device, cx| cx.page(device.function.pf_config.rule_rows(cx.from))),
    Table::new(NodeRow::TABLE, |device, cx| cx.page(device.function.pf_config.node_rows(cx.from))),
    Table::new(HandleRow::TABLE, |device, cx| cx.page(rdma(device, cx).handles())),
    Table::new(GroupRow::TABLE, |device, cx| cx.page(rdma(device, cx).groups())),
    Table::new(ControlRow::TABLE, |device, cx| cx.single(rdma(device, cx).control())),
];

/// Returns the data that rows of the RDMA half are built from.
fn rdma<'a>(device: &'a E810, cx: &TableContext<'a>) -> View<'a> {
    let Function { rdma, vectors, .. } = &device.function;
    View { rdma, vectors, cx: *cx }
}

/// Returns the queues by position.
fn queues(device: &E810, from: u64) -> impl Iterator<Item = (u64, QueueRow)> {
    device
        .lan
        .queues()
        .map(|row| {
            let (place, route) = match row.direction {
                QueueDirection::Transmit => (0, RouteRegister::Transmit(row.queue)),
                QueueDirection::Receive => (RECEIVE_OFFSET, RouteRegister::Receive(row.queue)),
            };
            let vector = device.function.vectors.vector(route);
            (place + u64::from(row.queue), QueueRow { vector, ..row })
        })
        .filter(move |(place, _)| *place >= from)
}

fn link(device: &E810, addresses: &Addresses) -> LinkRow {
    let counts = device.lan.port_counts();
    let [received, sent] = [counts.receive, counts.transmit].map(|traffic| traffic.frames());
    LinkRow {
        enabled: device.link.is_enabled(),
        gbps: device.setup.options.link_speed.gbps(),
        mac: addresses.own.mac.to_string(),
        max_frame: device.function.max_frame,
        received,
        sent,
        lost: counts.dropped_link_down,
    }
}
