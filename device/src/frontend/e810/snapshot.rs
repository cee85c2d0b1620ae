//! Rows for the control socket (`hcactl`).

use engine::Engine;

use super::function::Function;
use super::rdma::View;
use super::state::State;
use super::vectors::RouteRegister;
use crate::frontend::snapshot::{self, LinkRow, Page, QueueDirection, QueueRow, Rows, Table};
use crate::net::address::Addresses;

/// Position of receive queue 0 in the table of queues, after all transmit queues.
const RECEIVE_OFFSET: u64 = 1 << 16;

/// Returns a page of rows of a table, from position `from` on.
pub(super) fn page(state: &State, engine: &Engine, addresses: &Addresses, table: Table, from: u64) -> Page {
    match table {
        Table::Queues => snapshot::page(queues(state, from), Rows::Queues),
        Table::Link => Page { rows: Rows::Link(vec![link(state, addresses)]), next: None },
        Table::Vsis => snapshot::page(state.function.pf_config.vsi_rows(from), Rows::Vsis),
        Table::Rules => snapshot::page(state.function.pf_config.rule_rows(from), Rows::Rules),
        Table::Scheduler => snapshot::page(state.function.pf_config.node_rows(from), Rows::Scheduler),
        _ => {
            let Function { rdma, vectors, .. } = &state.function;
            let page = View { rdma, vectors, addresses }.page(engine, table, from);
            page.unwrap_or(Page { rows: Rows::none(table), next: None })
        }
    }
}

/// Returns the queues by position.
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
