//! Snapshot rows of a device with an HCR interface.

use engine::Engine;

use super::icm::IcmRange;
use crate::frontend::snapshot::{CqRow, EqRow, IcmRow, IcmTable, MrRow, Page, QpRow, Rows, Table, page};
use crate::net::address::Addresses;

/// Objects of a device between INIT_HCA and CLOSE_HCA. Each method returns rows in ascending order of their index,
/// starting at `from`.
pub trait Objects {
    /// Queue pairs. Their dynamic values are read from the engine.
    fn qps(&self, engine: &Engine, addresses: &Addresses, from: u32) -> impl Iterator<Item = (u32, QpRow)>;

    fn cqs(&self, from: u32) -> impl Iterator<Item = (u32, CqRow)>;

    fn eqs(&self, from: u32) -> impl Iterator<Item = (u32, EqRow)>;

    fn mrs(&self, from: u32) -> impl Iterator<Item = (u32, MrRow)>;
}

/// Returns one page of a table. Before INIT_HCA there are no objects, but ICM may already be mapped; `icm` returns its
/// rows from index `from` on.
pub fn take(
    objects: Option<&impl Objects>,
    icm: impl Iterator<Item = (u64, IcmRow)>,
    (engine, addresses): (&Engine, &Addresses),
    table: Table,
    from: u64,
) -> Page {
    // Indices of objects have 32 bits, so a larger `from` is past the last row.
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
    /// The row of an ICM range.
    pub fn new(table: IcmTable, range: &IcmRange) -> Self {
        let IcmRange { start, length, bus } = *range;
        Self { table, start: start.get(), length, bus: bus.get() }
    }
}
