//! Rows for the control socket (`hcactl`).

use engine::Engine;

use super::device::E810;
use super::function::Function;
use super::rdma::View;
use super::vectors::RouteRegister;
use crate::frontend::snapshot::{self, LinkRow, Page, QueueDirection, QueueRow, Rows, Table};
use crate::net::address::Addresses;

/// Position of receive queue 0 in the table of queues, after all transmit queues.
const RECEIVE_OFFSET: u64 = 1 << 16;

/// Returns a page of rows of a table, from position `from` on.
pub(super) fn page(device: &E810, engine: &Engine, addresses: &Addresses, table: Table, from: u64) -> Page {
    match table {
        Table::Queues => snapshot::page(queues(device, from), Rows::Queues),
        Table::Link => Page { rows: Rows::Link(vec![link(device, addresses)]), next: None },
        Table::Vsis => snapshot::page(device.function.pf_config.vsi_rows(from), Rows::Vsis),
        Table::Rules => snapshot::page(device.function.pf_config.rule_rows(from), Rows::Rules),
        Table::Scheduler => snapshot::page(device.function.pf_config.node_rows(from), Rows::Scheduler),
        _ => {
            let Function { rdma, vectors, .. } = &device.function;
            let page = View { rdma, vectors, addresses }.page(engine, table, from);
            page.unwrap_or(Page { rows: Rows::none(table), next: None })
        }
    }
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
