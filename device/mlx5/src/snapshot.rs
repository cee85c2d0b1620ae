//! Tables of the device's objects, printed by `hcactl`.

use card::frontend::snapshot::{CqRow, EqRow, MrRow, QpRow};
use card::frontend::table::{Row as _, Table, TableContext};
use engine::State;

use super::event_queue::EventQueue;
use super::function::Function;
use super::resources::Resources;

/// Returns the tables for a device. UMR QPs are omitted, because they have no transport service.
pub(super) const fn tables<F: AsRef<Function>>() -> [Table<F>; 4] {
    [
        Table::new(QpRow::TABLE, |device, cx| {
            let all =
                objects(device, cx).flat_map(|(all, from)| all.qps.iter_from(from).map(move |of| (all, of)));
            cx.page(all.filter_map(|(all, (number, qp))| {
                let live = cx.engine.query_qp(qp.qpn).filter(|live| live.state != State::Reset)?;
                Some((number, qp.row(&live, all.port.resolver(cx.addresses))?))
            }))
        }),
        Table::new(CqRow::TABLE, |device, cx| {
            let all = objects(device, cx).flat_map(|(all, from)| all.cqs.iter_from(from));
            cx.page(all.map(|(number, queue)| (number, queue.row())))
        }),
        Table::new(EqRow::TABLE, |device, cx| {
            let all = objects(device, cx).flat_map(|(all, from)| all.eqs.iter_from(from));
            cx.page(all.map(|(number, queue)| (number, event_queue(number, queue))))
        }),
        Table::new(MrRow::TABLE, |device, cx| {
            let all = objects(device, cx).flat_map(|(all, from)| all.mkeys.regions_from(from));
            cx.page(all.map(|(number, region)| (number, MrRow::from(region))))
        }),
    ]
}

/// Returns the device's objects, and the object number at which the requested page starts. The iterator is empty if the
/// device is not initialised, or if the number does not fit in 32 bits.
fn objects<'a>(
    device: &'a impl AsRef<Function>,
    cx: &TableContext<'_>,
) -> impl Iterator<Item = (&'a Resources, u32)> {
    device.as_ref().resources().zip(cx.first()).into_iter()
}

fn event_queue(eqn: u32, queue: &EventQueue) -> EqRow {
    EqRow {
        eqn,
        entries: queue.entries().into(),
        producer: queue.producer(),
        armed: queue.is_armed(),
        vector: Some(queue.vector()),
        mask: queue.mask().bits(),
        overflowed: queue.has_lost(),
    }
}
