//! Checks the commands MAP_ICM and UNMAP_ICM.

use std::ops::RangeInclusive;

use card::memory::dma::PAGE_LEN;
use hcr::icm::{IcmRange, page_of};
use hcr::strict;
use protocol::hca::jingzhao::cmd::Command;
use protocol::hca::jingzhao::icm::{IcmTable, MapEntry};
use protocol::ids::IcmAddr;

use super::Findings;
use super::rules::{MAP_COUNT, MAP_OVER_MAPPED, MAP_SAME_PAGE, UNMAP_IN_USE, UNMAP_NOTHING};
use crate::resources::Resources;

pub(super) fn map(resources: &Resources, command: &Command, entries: &[MapEntry], found: &mut Findings) {
    /// Maximum number of entries in one MAP_ICM_EN (CtxMgt document). A mailbox can hold more, and the interface
    /// document does not set a limit.
    const MAX_CHUNKS: usize = 64;
    let Ok(table) = IcmTable::from_op_modifier(command.op_modifier) else { return };
    if entries.len() > MAX_CHUNKS {
        found.add(&MAP_COUNT, format!("MAP_ICM has {} entries, maximum is {MAX_CHUNKS}", entries.len()));
    }
    let range = |entry: &MapEntry| IcmRange {
        start: entry.virt,
        length: u64::from(entry.pages) * PAGE_LEN,
        bus: entry.bus,
    };
    let new: Vec<_> = entries.iter().map(range).collect();
    let all_mapped = ranges(resources, IcmTable::Context).chain(ranges(resources, IcmTable::Tpt));
    strict::map(ranges(resources, table), all_mapped, &new, (&MAP_OVER_MAPPED, &MAP_SAME_PAGE), found);
}

pub(super) fn unmap(resources: &Resources, command: &Command, found: &mut Findings) {
    let Ok(table) = IcmTable::from_op_modifier(command.op_modifier) else { return };
    let Some(more) = command.in_modifier.checked_sub(1) else { return };
    let first = page_of(IcmAddr::new(command.in_param));
    let pages = first..=first.saturating_add(more.into());
    let what =
        format!("UNMAP_ICM at ICM address {:#x}, page count {}", command.in_param, command.in_modifier);
    let asked = (command.in_param, u64::from(command.in_modifier).saturating_mul(PAGE_LEN));
    if !ranges(resources, table).map(|range| (range.start.get(), range.length)).any(overlaps(asked)) {
        found.add(&UNMAP_NOTHING, format!("{what}: no page is mapped"));
    }
    let used = match table {
        IcmTable::Context => context_in(resources, &pages),
        IcmTable::Tpt => region_in(resources, &pages),
    };
    if let Some(used) = used {
        found.add(&UNMAP_IN_USE, format!("{what}: the pages still hold {used}"));
    }
}

/// Returns a description of the first object whose context is in these pages, if any.
fn context_in(resources: &Resources, pages: &RangeInclusive<u64>) -> Option<String> {
    let Resources { ctx, qps, cqs, eqs, .. } = resources;
    let data = ctx.ctxmdata();
    let inside = |entry: IcmAddr| pages.contains(&page_of(entry));
    let qp = || qps.iter().find(|(index, _)| inside(data.qpc.entry(*index)));
    let cq = || cqs.iter().find(|(index, _)| inside(data.cqc.entry(*index)));
    let eq = || eqs.iter_from(0).find(|(index, _)| inside(data.eqc.entry(*index)));
    qp().map(|(_, qp)| format!("the context of QP {}", qp.qpn))
        .or_else(|| cq().map(|(_, cq)| format!("the context of CQ {}", cq.cqn())))
        .or_else(|| eq().map(|(index, _)| format!("the context of EQ {index:#x}")))
}

/// Returns a description of the first region whose MPT entry or first MTT entry is in these pages, if any.
fn region_in(resources: &Resources, pages: &RangeInclusive<u64>) -> Option<String> {
    let regions = &resources.regions;
    let inside = |entry: IcmAddr| pages.contains(&page_of(entry));
    let in_use = |index: u32, region: &card::memory::region::MemoryRegion| {
        let mtt = strict::mtt_entries(region).and_then(|entries| regions.mtt.addr(entries.start));
        inside(regions.mpt_entry(index)) || mtt.is_some_and(inside)
    };
    regions
        .keys
        .iter_from(0)
        .find(|(index, region)| in_use(*index, region))
        .map(|(_, region)| format!("table entries of the memory region with key {}", region.key))
}

fn ranges(resources: &Resources, table: IcmTable) -> impl Iterator<Item = IcmRange> {
    let (context, tpt) = match table {
        IcmTable::Context => (Some(resources.ctx.ctxmdata().ranges_from(0)), None),
        IcmTable::Tpt => (None, Some(resources.regions.icm.ranges_from(0))),
    };
    context.into_iter().flatten().chain(tpt.into_iter().flatten()).map(|(_, range)| range)
}

/// Returns a predicate that tests for overlap with the given range. A range is a start and a length.
fn overlaps((start, length): (u64, u64)) -> impl Fn((u64, u64)) -> bool {
    move |(other, other_length)| {
        let overlap =
            start.max(other)..(start.saturating_add(length)).min(other.saturating_add(other_length));
        !overlap.is_empty()
    }
}
