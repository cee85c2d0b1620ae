//! The device's objects as an operator sees them.

use engine::Engine;
use protocol::hca::mthca::eqc::Interrupt;
use protocol::ids::Eqn;

use super::resources::{DeviceState, Resources};
use crate::frontend::address::Addresses;
use crate::frontend::snapshot::{EqRow, IcmRow, IcmTable, Page, Rows, Table, page};

/// One page of a table. Before INIT_HCA there is nothing but what is lent.
pub(super) fn take(
    state: &DeviceState,
    addresses: &Addresses,
    engine: &Engine,
    table: Table,
    from: u64,
) -> Page {
    // Places in the other tables have 32 bits; behind them there is nothing.
    let indexed = state.resources().zip(u32::try_from(from).ok());
    let (rows, next) = match table {
        Table::Qps => {
            let qps = indexed.into_iter().flat_map(|(all, from)| all.qps.iter_from(from));
            let live = qps.filter_map(|(index, qp)| Some((index, (qp, engine.query_qp(qp.qpn)?))));
            let (rows, next) = page(live.map(|(index, (qp, live))| (index, qp.row(&live, addresses))));
            (Rows::Qps(rows), next)
        }
        Table::Cqs => {
            let cqs = indexed.into_iter().flat_map(|(all, from)| all.cqs.iter_from(from));
            let (rows, next) = page(cqs.map(|(index, cq)| (index, cq.row())));
            (Rows::Cqs(rows), next)
        }
        Table::Eqs => {
            let eqs = indexed.into_iter().flat_map(|(all, from)| eq_rows(all, from));
            let (rows, next) = page(eqs);
            (Rows::Eqs(rows), next)
        }
        Table::Mrs => {
            let regions = indexed.into_iter().flat_map(|(all, from)| all.regions.keys.iter_from(from));
            let (rows, next) = page(regions.map(|(index, region)| (index, region.into())));
            (Rows::Mrs(rows), next)
        }
        Table::Icm => {
            let ranges = state.page_map().ranges_from(from);
            let (rows, next) = page(ranges.map(|(first, range)| (first, IcmRow::new(IcmTable::All, &range))));
            (Rows::Icm(rows), next)
        }
    };
    Page { rows, next }
}

fn eq_rows(resources: &Resources, from: u32) -> impl Iterator<Item = (u32, EqRow)> {
    resources.eqs.iter_from(from).map(|(eqn, queue)| {
        let row = EqRow {
            eqn,
            entries: queue.ring().entries(),
            producer: queue.ring().producer(),
            armed: queue.is_armed(),
            vector: match queue.interrupt() {
                Interrupt::MsiX(vector) => Some(vector),
                Interrupt::Pin => None,
            },
            mask: resources.eqs.mask(Eqn::new(eqn)),
            overflowed: queue.overflowed(),
        };
        (eqn, row)
    })
}
