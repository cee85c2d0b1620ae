//! Checks ICM mappings and the contexts in mapped ICM.

use std::ops::RangeInclusive;

use card::frontend::strict::Findings;
use hcr::icm::{IcmRange, PageMap, page_of, pages};
use hcr::mtt::ENTRY_LEN;
use hcr::strict::{self, NamedTable};
use protocol::hca::mthca::cmd::Command;
use protocol::hca::mthca::icm::Block;
use protocol::hca::mthca::init::InitHca;
use protocol::hca::table::Table;
use protocol::ids::IcmAddr;

use super::View;
use super::rules::{
    CONTEXT_UNMAPPED, MAP_OVER_MAPPED, MAP_SAME_PAGE, RECORD_SHARED, RECORD_UNMAPPED, UAR_RESERVED,
    UNMAP_IN_USE, UNMAP_NOTHING,
};
use crate::resources::{DeviceState, Resources};

/// Sizes of table entries, as reported by QUERY_DEV_LIM.
const QPC_LEN: u16 = 0x100;
const ENTRY: u16 = 0x40;
/// Number of reserved UAR pages at the start of BAR2.
const RESERVED_UARS: u32 = 2;

/// Returns the context tables and the MPT, as placed by INIT_HCA.
pub(super) fn tables(init: &InitHca) -> [NamedTable; 5] {
    [
        ("QPC", init.qpc, QPC_LEN),
        ("SRQC", init.srqc, ENTRY),
        ("CQC", init.cqc, ENTRY),
        ("EQC", init.eqc, ENTRY),
        ("MPT", init.mpt, ENTRY),
    ]
}

fn entry(table: &Table, len: u16, number: u32) -> IcmAddr {
    let offset = u64::from(table.index(number)) * u64::from(len);
    IcmAddr::new(table.base.get().wrapping_add(offset))
}

#[derive(Clone, Copy)]
pub(super) enum Context {
    Qp(u32),
    Cq(u32),
    Srq(u32),
    Eq(u32),
    Mpt(u32),
}

impl Context {
    fn place(self, init: &InitHca) -> IcmAddr {
        match self {
            Self::Qp(number) => entry(&init.qpc, QPC_LEN, number),
            Self::Cq(number) => entry(&init.cqc, ENTRY, number),
            Self::Srq(number) => entry(&init.srqc, ENTRY, number),
            Self::Eq(number) => entry(&init.eqc, ENTRY, number),
            Self::Mpt(number) => entry(&init.mpt, ENTRY, number),
        }
    }
}

/// Checks that a context's page is mapped before the device writes the context.
pub(super) fn context(resources: &Resources, context: Context, object: &str, found: &mut Findings) {
    let place = context.place(&resources.layout);
    if resources.regions.icm.translate(place).is_none() {
        found.add(&CONTEXT_UNMAPPED, format!("context of {object}, at ICM address {place}, is not mapped"));
    }
}

/// Checks the UAR page and the doorbell records of a new queue.
pub(super) fn records(view: View<'_>, page: u32, records: &[u32], queue: &str, found: &mut Findings) {
    let resources = view.resources;
    if !(RESERVED_UARS..view.uar_pages).contains(&page) {
        found.add(
            &UAR_RESERVED,
            format!("{queue} uses UAR page {page:#x}, which is reserved or does not exist"),
        );
        return;
    }
    for (n, index) in records.iter().enumerate() {
        let place = resources.layout.record(page, *index);
        if resources.regions.icm.translate(place).is_none() {
            found.add(
                &RECORD_UNMAPPED,
                format!("doorbell record {index} of {queue}, at ICM address {place}, is not mapped"),
            );
            continue;
        }
        let own = records.iter().take(n).any(|other| other == index).then(|| queue.to_owned());
        if let Some(other) = own.or_else(|| user_of(resources, |used| used == (page, *index))) {
            found.add(&RECORD_SHARED, format!("doorbell record {index} of {queue} is also used by {other}"));
        }
    }
}

/// Returns the name of an object whose doorbell record satisfies `matches`, which is called with the record's UAR
/// page and index.
fn user_of(resources: &Resources, matches: impl Fn((u32, u32)) -> bool) -> Option<String> {
    let Resources { qps, cqs, srqs, .. } = resources;
    let of_qp = |qpc: &protocol::hca::mthca::qpc::Qpc| {
        matches((qpc.page, qpc.sq_record)) || !qpc.responder.srq() && matches((qpc.page, qpc.rq_record))
    };
    let qp = qps.iter().find(|(_, qp)| of_qp(&qp.qpc)).map(|(_, qp)| format!("QP {}", qp.qpn));
    let cq = || {
        let mut all = cqs.iter().map(|(_, cq)| &**cq);
        all.find(|cq| matches(cq.record()) || matches((cq.page(), cq.arm_record())))
            .map(|cq| format!("CQ {}", cq.cqn()))
    };
    let srq =
        || srqs.iter().find(|(_, srq)| matches(srq.record())).map(|(_, srq)| format!("SRQ {}", srq.srqn()));
    qp.or_else(cq).or_else(srq)
}

pub(super) fn map(icm: &PageMap, blocks: &[Block], found: &mut Findings) {
    let new: Vec<_> = blocks
        .iter()
        .map(|block| IcmRange { start: block.start, length: block.length, bus: block.bus })
        .collect();
    let all_mapped = || icm.ranges_from(0).map(|(_, range)| range);
    strict::map(all_mapped(), all_mapped(), &new, (&MAP_OVER_MAPPED, &MAP_SAME_PAGE), found);
}

pub(super) fn unmap(state: &DeviceState, command: &Command, found: &mut Findings) {
    let Ok(pages) = pages(command.in_param, command.in_modifier) else { return };
    let what =
        format!("UNMAP_ICM at ICM address {:#x}, page count {}", command.in_param, command.in_modifier);
    if !is_mapped(state.page_map(), &pages) {
        found.add(&UNMAP_NOTHING, format!("{what}: no page is mapped"));
    }
    if let Some(used) = state.resources().and_then(|resources| used(resources, &pages)) {
        found.add(&UNMAP_IN_USE, format!("{what}: the pages still hold {used}"));
    }
}

fn is_mapped(icm: &PageMap, pages: &RangeInclusive<u64>) -> bool {
    let first = pages.start().checked_mul(card::memory::dma::PAGE_LEN).map(IcmAddr::new);
    first.is_some_and(|first| icm.translate(first).is_some())
        || icm.ranges_from(*pages.start()).next().is_some_and(|(page, _)| pages.contains(&page))
}

/// Describes a context, doorbell record or table entry that is in use and lies in `pages`.
fn used(resources: &Resources, pages: &RangeInclusive<u64>) -> Option<String> {
    let Resources { layout, qps, cqs, srqs, eqs, regions, .. } = resources;
    let inside = |context: Context| pages.contains(&page_of(context.place(layout)));
    let qp = || {
        qps.iter()
            .find(|(index, _)| inside(Context::Qp(*index)))
            .map(|(_, qp)| format!("the context of QP {}", qp.qpn))
    };
    let cq = || {
        cqs.iter()
            .find(|(index, _)| inside(Context::Cq(*index)))
            .map(|(_, cq)| format!("the context of CQ {}", cq.cqn()))
    };
    let srq = || {
        srqs.iter()
            .find(|(index, _)| inside(Context::Srq(*index)))
            .map(|(_, srq)| format!("the context of SRQ {}", srq.srqn()))
    };
    let eq = || {
        eqs.iter_from(0)
            .find(|(index, _)| inside(Context::Eq(*index)))
            .map(|(eqn, _)| format!("the context of EQ {eqn:#x}"))
    };
    let record = || {
        let inside = |(page, index)| pages.contains(&page_of(layout.record(page, index)));
        Some(format!("a doorbell record of {}", user_of(resources, inside)?))
    };
    let key = || {
        let entries = |region| {
            let entries = strict::mtt_entries(region)?;
            let page = |entry: u64| Some(page_of(IcmAddr::new(entry.checked_mul(ENTRY_LEN as u64)?)));
            Some((page(entries.start)?, page(entries.end.saturating_sub(1))?))
        };
        let mut keys = regions.keys.iter_from(0);
        let found = keys.find(|(index, region)| {
            inside(Context::Mpt(*index))
                || entries(region)
                    .is_some_and(|(first, last)| first <= *pages.end() && *pages.start() <= last)
        });
        found.map(|(_, region)| format!("table entries of the memory region with key {}", region.key))
    };
    qp().or_else(cq).or_else(srq).or_else(eq).or_else(record).or_else(key)
}
