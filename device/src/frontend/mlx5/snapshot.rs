//! Snapshot rows of the device.

use engine::{Engine, State};

use super::event_queue::EventQueue;
use super::resources::Resources;
use crate::frontend::snapshot::{EqRow, Page, Rows, Table, page};
use crate::net::address::Addresses;

/// Returns one page of a table. QPs of service UMR are not listed: they have no state in the engine.
pub(super) fn take(
    resources: Option<&Resources>,
    engine: &Engine,
    addresses: &Addresses,
    table: Table,
    from: u64,
) -> Page {
    // Numbers of objects have 24 bits, so a larger `from` is past the last row.
    let all = resources.zip(u32::try_from(from).ok()).into_iter();
    match table {
        Table::Qps => {
            let rows = all.flat_map(|(all, from)| all.qps.iter_from(from));
            let rows = rows.filter_map(|(number, qp)| {
                let live = engine.query_qp(qp.qpn).filter(|live| live.state != State::Reset)?;
                Some((number, qp.row(&live, addresses)?))
            });
            page(rows, Rows::Qps)
        }
        Table::Cqs => {
            let rows = all.flat_map(|(all, from)| all.cqs.iter_from(from));
            page(rows.map(|(number, queue)| (number, queue.row())), Rows::Cqs)
        }
        Table::Eqs => {
            let rows = all.flat_map(|(all, from)| all.eqs.iter_from(from));
            let row = |eqn, queue: &EventQueue| EqRow {
                eqn,
                entries: queue.entries().into(),
                producer: queue.producer(),
                armed: queue.is_armed(),
                vector: Some(queue.vector()),
                mask: queue.mask().bits(),
                overflowed: queue.has_lost(),
            };
            page(rows.map(|(number, queue)| (number, row(number, queue))), Rows::Eqs)
        }
        Table::Mrs => {
            let rows = all.flat_map(|(all, from)| all.mkeys.regions_from(from));
            page(rows.map(|(number, region)| (number, region.into())), Rows::Mrs)
        }
        Table::Icm
        | Table::Queues
        | Table::Link
        | Table::Vsis
        | Table::Rules
        | Table::Scheduler
        | Table::Handles
        | Table::Groups
        | Table::Control => Page { rows: Rows::none(table), next: None },
    }
}
