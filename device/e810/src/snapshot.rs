//! Table rows for the control socket (`hcactl`).

use card::frontend::snapshot::{
    ControlRow, CqRow, EqRow, GroupRow, HandleRow, IcmRow, LinkRow, MrRow, NodeRow, QpRow, QueueDirection,
    QueueRow, RuleRow, VsiRow,
};
use card::frontend::table::{Row as _, Table, TableContext};
use card::net::address::Addresses;

use super::function::Function;
use super::rdma::View;
use super::state::State;
use super::vectors::RouteRegister;

/// Position of receive queue 0 in the queue table, after all transmit queues.
const RECEIVE_OFFSET: u64 = 1 << 16;

/// Returns all tables of the device.
pub(super) const fn tables<F: AsRef<State>>() -> [Table<F>; 13] {
    [
        Table::new(QpRow::TABLE, |device, cx| cx.page(rdma(device, cx).qps())),
        Table::new(CqRow::TABLE, |device, cx| cx.page(rdma(device, cx).cqs())),
        Table::new(EqRow::TABLE, |device, cx| cx.page(rdma(device, cx).eqs())),
        Table::new(MrRow::TABLE, |device, cx| cx.page(rdma(device, cx).mrs())),
        Table::new(IcmRow::TABLE, |device, cx| cx.page(rdma(device, cx).icm())),
        Table::new(QueueRow::TABLE, |device, cx| cx.page(queues(device.as_ref(), cx.from))),
        Table::new(LinkRow::TABLE, |device, cx| cx.single(link(device.as_ref(), cx.addresses))),
        Table::new(VsiRow::TABLE, |device, cx| cx.page(device.as_ref().function.pf_config.vsi_rows(cx.from))),
        Table::new(RuleRow::TABLE, |device, cx| {
            cx.page(device.as_ref().function.pf_config.rule_rows(cx.from))
        }),
        Table::new(NodeRow::TABLE, |device, cx| {
            cx.page(device.as_ref().function.pf_config.node_rows(cx.from))
        }),
        Table::new(HandleRow::TABLE, |device, cx| cx.page(rdma(device, cx).handles())),
        Table::new(GroupRow::TABLE, |device, cx| cx.page(rdma(device, cx).groups())),
        Table::new(ControlRow::TABLE, |device, cx| cx.single(rdma(device, cx).control())),
    ]
}

/// Returns the data for the RDMA function's tables.
fn rdma<'a>(device: &'a impl AsRef<State>, cx: &TableContext<'a>) -> View<'a> {
    let Function { rdma, vectors, .. } = &device.as_ref().function;
    View { rdma, vectors, cx: *cx }
}

/// Returns the rows of the queue table in order, starting at position `from`.
fn queues(state: &State, from: u64) -> impl Iterator<Item = (u64, QueueRow)> {
    state
        .lan
        .queues()
        .map(|row| {
            let (place, route) = match row.direction {
                QueueDirection::Transmit => (0, RouteRegister::Transmit(row.queue)),
                QueueDirection::Receive => (RECEIVE_OFFSET, RouteRegister::Receive(row.queue)),
            };
            let vector = state.function.vectors.vector(route);
            (place + u64::from(row.queue), QueueRow { vector, ..row })
        })
        .filter(move |(place, _)| *place >= from)
}

fn link(state: &State, addresses: &Addresses) -> LinkRow {
    let counts = state.lan.port_counts();
    let [received, sent] = [counts.receive, counts.transmit].map(|traffic| traffic.frames());
    LinkRow {
        enabled: state.link.is_enabled(),
        gbps: state.setup.options.link_speed.gbps(),
        mac: addresses.own.mac.to_string(),
        max_frame: state.function.max_frame,
        received,
        sent,
        lost: counts.dropped_link_down,
    }
}
