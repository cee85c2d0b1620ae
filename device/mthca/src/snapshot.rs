//! Snapshots of the device's objects, for operators.

use card::frontend::snapshot::{CqRow, EqRow, IcmRow, IcmTable, MrRow, QpRow};
use card::net::address::Addresses;
use engine::Engine;
use hcr::icm::PageMap;
use hcr::snapshot::{Objects, icm_row};
use protocol::hca::mthca::eqc::Interrupt;
use protocol::ids::Eqn;

use super::qp::QueuePair;
use super::resources::Resources;

impl Objects for Resources {
    fn qps(&self, engine: &Engine, addresses: &Addresses, from: u32) -> impl Iterator<Item = (u32, QpRow)> {
        let live = |qp: &QueuePair| engine.query_qp(qp.qpn).map(|live| qp.row(&live, addresses));
        self.qps.iter_from(from).filter_map(move |(index, qp)| Some((index, live(qp)?)))
    }

    fn cqs(&self, from: u32) -> impl Iterator<Item = (u32, CqRow)> {
        self.cqs.iter_from(from).map(|(index, cq)| (index, cq.row()))
    }

    fn eqs(&self, from: u32) -> impl Iterator<Item = (u32, EqRow)> {
        self.eqs.iter_from(from).map(|(eqn, queue)| {
            let row = EqRow {
                eqn,
                entries: queue.ring().entries(),
                producer: queue.ring().producer(),
                armed: queue.is_armed(),
                vector: match queue.interrupt() {
                    Interrupt::MsiX(vector) => Some(vector),
                    Interrupt::Pin => None,
                },
                mask: self.eqs.mask(Eqn::new(eqn)),
                overflowed: queue.overflowed(),
            };
            (eqn, row)
        })
    }

    fn mrs(&self, from: u32) -> impl Iterator<Item = (u32, MrRow)> {
        self.regions.keys.iter_from(from).map(|(index, region)| (index, region.into()))
    }
}

/// Returns the mapped ICM ranges. ICM may be mapped before INIT_HCA.
pub(super) fn icm_rows(icm: &PageMap, from: u64) -> impl Iterator<Item = (u64, IcmRow)> {
    icm.ranges_from(from).map(|(first, range)| (first, icm_row(IcmTable::All, &range)))
}
