//! Tables of the device's objects, printed by `hcactl`.

mod flow;
mod matches;
mod netdev;

use card::frontend::snapshot::{CqRow, EqRow, LinkRow, MrRow, QpRow};
use card::frontend::table::{Page, Row as _, Table, TableContext};
use engine::State;

use self::flow::{FlowEntryRow, FlowGroupRow, FlowTableRow};
use self::netdev::{RqRow, RqtRow, SqRow, TirRow};
use super::event_queue::EventQueue;
use super::function::Function;
use super::resources::Resources;

/// Returns the tables for a device. UMR QPs, which have no transport service, are omitted.
pub(super) const fn tables<F: AsRef<Function>>() -> [Table<F>; 12] {
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
        Table::new(LinkRow::TABLE, |device, cx| {
            let link = device.as_ref().resources().and_then(|all| netdev::link(all, cx.addresses));
            link.map_or(Page::empty(LinkRow::TABLE), |link| cx.single(link))
        }),
        Table::new(SqRow::TABLE, |device, cx| {
            cx.page(objects(device, cx).flat_map(|(all, from)| netdev::sqs(all, from)))
        }),
        Table::new(RqRow::TABLE, |device, cx| {
            cx.page(objects(device, cx).flat_map(|(all, from)| netdev::rqs(all, from)))
        }),
        Table::new(TirRow::TABLE, |device, cx| {
            let all = objects(device, cx).flat_map(|(all, from)| all.netdev.tirs.iter_from(from));
            cx.page(all.map(|(number, tir)| (number, TirRow::new(number, tir))))
        }),
        Table::new(RqtRow::TABLE, |device, cx| {
            let all = objects(device, cx).flat_map(|(all, from)| all.netdev.rqts.iter_from(from));
            cx.page(all.map(|(number, rqt)| (number, RqtRow::new(number, rqt))))
        }),
        Table::new(FlowTableRow::TABLE, |device, cx| {
            cx.page(objects(device, cx).flat_map(|(all, from)| flow::tables(&all.steering, from)))
        }),
        Table::new(FlowGroupRow::TABLE, |device, cx| {
            let all = device.as_ref().resources().into_iter();
            cx.page(all.flat_map(|all| flow::groups(&all.steering, cx.from)))
        }),
        Table::new(FlowEntryRow::TABLE, |device, cx| {
            let all = device.as_ref().resources().into_iter();
            cx.page(all.flat_map(|all| flow::entries(&all.steering, cx.from)))
        }),
    ]
}

/// Returns the device's objects, and the object number that the requested page starts at. The iterator is empty if the
/// device is not initialised, or the number does not fit in 32 bits.
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
