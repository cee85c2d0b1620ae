//! Snapshot rows for a device with an HCR interface.

use card::frontend::Frontend;
use card::frontend::snapshot::{CqRow, EqRow, IcmRow, IcmTable, MrRow, QpRow};
use card::frontend::table::{Row as _, Table, TableContext};
use card::net::address::Addresses;
use engine::Engine;

use super::icm::IcmRange;

/// A device's objects between INIT_HCA and CLOSE_HCA. Each method returns rows in ascending index order, starting at
/// `from`.
pub trait Objects {
    /// Returns the rows of queue pairs, with their current state and PSNs from the engine.
    fn qps(&self, engine: &Engine, addresses: &Addresses, from: u32) -> impl Iterator<Item = (u32, QpRow)>;

    fn cqs(&self, from: u32) -> impl Iterator<Item = (u32, CqRow)>;

    fn eqs(&self, from: u32) -> impl Iterator<Item = (u32, EqRow)>;

    fn mrs(&self, from: u32) -> impl Iterator<Item = (u32, MrRow)>;
}

pub trait HcrDevice: Frontend {
    type Objects: Objects;

    /// Returns the objects, or `None` before INIT_HCA.
    fn objects(&self) -> Option<&Self::Objects>;

    /// Returns the ICM rows, starting at index `from`. Unlike the objects, these rows can exist before INIT_HCA,
    /// because ICM can already be mapped.
    fn icm_rows(&self, from: u64) -> impl Iterator<Item = (u64, IcmRow)>;
}

pub const fn tables<F: HcrDevice>() -> [Table<F>; 5] {
    [
        Table::new(QpRow::TABLE, |device, cx| {
            cx.page(objects(device, cx).flat_map(|(all, from)| all.qps(cx.engine, cx.addresses, from)))
        }),
        Table::new(CqRow::TABLE, |device, cx| {
            cx.page(objects(device, cx).flat_map(|(all, from)| all.cqs(from)))
        }),
        Table::new(EqRow::TABLE, |device, cx| {
            cx.page(objects(device, cx).flat_map(|(all, from)| all.eqs(from)))
        }),
        Table::new(MrRow::TABLE, |device, cx| {
            cx.page(objects(device, cx).flat_map(|(all, from)| all.mrs(from)))
        }),
        Table::new(IcmRow::TABLE, |device, cx| cx.page(device.icm_rows(cx.from))),
    ]
}

/// Yields the objects and the index of the first row. Yields nothing before INIT_HCA, or if the index exceeds 32 bits.
fn objects<'a, F: HcrDevice>(
    device: &'a F,
    cx: &TableContext<'_>,
) -> impl Iterator<Item = (&'a F::Objects, u32)> + use<'a, F> {
    device.objects().zip(cx.first()).into_iter()
}

pub fn icm_row(table: IcmTable, range: &IcmRange) -> IcmRow {
    let IcmRange { start, length, bus } = *range;
    IcmRow { table, start: start.get(), length, bus: bus.get() }
}
