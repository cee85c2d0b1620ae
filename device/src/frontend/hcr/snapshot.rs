//! Rows for an operator, of what a device of the lineage has.

use engine::Engine;

use super::icm::IcmRange;
use crate::frontend::snapshot::{CqRow, EqRow, IcmRow, IcmTable, MrRow, Page, QpRow, Rows, Table, page};
use crate::net::address::Addresses;

/// What a device has from INIT_HCA to CLOSE_HCA: rows by ascending place, from one on.
pub trait Objects {
    /// Queue pairs, with the values of the engine.
    fn qps(&self, engine: &Engine, addresses: &Addresses, from: u32) -> impl Iterator<Item = (u32, QpRow)>;

    /// Completion queues.
    fn cqs(&self, from: u32) -> impl Iterator<Item = (u32, CqRow)>;

    /// Event queues.
    fn eqs(&self, from: u32) -> impl Iterator<Item = (u32, EqRow)>;

    /// Memory regions.
    fn mrs(&self, from: u32) -> impl Iterator<Item = (u32, MrRow)>;
}

/// One page of a table. Before INIT_HCA there are no objects, but there may be rows of `icm`, which begin at place `from`.
pub fn take(
    objects: Option<&impl Objects>,
    icm: impl Iterator<Item = (u64, IcmRow)>,
    (engine, addresses): (&Engine, &Addresses),
    table: Table,
    from: u64,
) -> Page {
    // Places of objects have 32 bits; behind them there is nothing.
    let objects = objects.zip(u32::try_from(from).ok()).into_iter();
    match table {
        Table::Qps => page(objects.flat_map(|(all, from)| all.qps(engine, addresses, from)), Rows::Qps),
        Table::Cqs => page(objects.flat_map(|(all, from)| all.cqs(from)), Rows::Cqs),
        Table::Eqs => page(objects.flat_map(|(all, from)| all.eqs(from)), Rows::Eqs),
        Table::Mrs => page(objects.flat_map(|(all, from)| all.mrs(from)), Rows::Mrs),
        Table::Icm => page(icm, Rows::Icm),
        Table::Queues
        | Table::Link
        | Table::Vsis
        | Table::Rules
        | Table::Scheduler
        | Table::Handles
        | Table::Groups
        | Table::Control => Page { rows: Rows::none(table), next: None },
    }
}

impl IcmRow {
    /// The row of a range.
    pub fn new(table: IcmTable, range: &IcmRange) -> Self {
        let IcmRange { start, length, bus } = *range;
        Self { table, start: start.get(), length, bus: bus.get() }
    }
}
