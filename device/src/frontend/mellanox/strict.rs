//! What strict rules of the lineage look at in the same way: the command register, tables and pages of ICM, and rings
//! that the device writes. Which rule is broken is the interface's business, so its rules are given.

use std::ops::Range;

use engine::Access;
use protocol::hca::hcr::{CommandWord, HcrWord};
use protocol::hca::table::Table;

use super::entry_ring::{Buffer, LEN, OwnedRing};
use super::icm::IcmRange;
use super::mtt::Mtt;
use crate::frontend::strict::Findings;
use crate::memory::dma::PAGE_LEN;
use crate::memory::region::{MemoryRegion, Translation};
use crate::memory::translate::{AccessTarget, RegionAccess};
use crate::telemetry::monitor::Rule;

/// The command register as strict rules see it: whether its software has seen the end of the command before.
#[derive(Debug, Default)]
pub struct HcrWatch {
    /// A command was started, and its end not looked for.
    unseen: bool,
}

/// What may be wrong with a store to the command register.
#[derive(Clone, Copy, Debug)]
pub struct HcrRules {
    /// Bits that software leaves 0.
    pub reserved: &'static Rule,
    /// The end of the command before was not read.
    pub not_polled: &'static Rule,
    /// The command word without go.
    pub no_effect: &'static Rule,
}

impl HcrWatch {
    /// Software reads a word.
    pub fn read(&mut self, word: HcrWord) {
        if word == HcrWord::Command {
            self.unseen = false;
        }
    }

    /// Software writes a word.
    pub fn write(&mut self, rules: &HcrRules, word: HcrWord, value: u32, found: &mut Findings) {
        const COMMAND_RESERVED: u32 = 0xff30_0000;
        const TOKEN_RESERVED: u32 = 0xffff;
        let name = word.name();
        // Once for all the words of the command that comes too early.
        if std::mem::take(&mut self.unseen) {
            found.add(
                rules.not_polled,
                format!("{name} written before software polled the previous command to completion"),
            );
        }
        let reserved = match word {
            HcrWord::Token => value & TOKEN_RESERVED,
            HcrWord::Command => value & COMMAND_RESERVED,
            _ => 0,
        };
        if reserved != 0 {
            found.add(rules.reserved, format!("reserved bits {reserved:#x} set in {name}"));
        }
        if word == HcrWord::Command {
            let go = CommandWord::from_bits(value).go();
            if !go {
                found.add(rules.no_effect, format!("command word {value:#x} written without the go bit"));
            }
            self.unseen |= go;
        }
    }
}

/// A table of ICM: its name, where it is, and bytes of an entry.
pub type NamedTable = (&'static str, Table, u16);

/// Names of the tables that have bytes in common.
pub fn overlapping(tables: &[NamedTable]) -> Vec<String> {
    let mut found = Vec::new();
    for (n, (name, table, len)) in tables.iter().enumerate() {
        for (other, earlier, earlier_len) in tables.iter().take(n) {
            let begins = |table: &Table| u128::from(table.base.get());
            if begins(table) < end(earlier, *earlier_len) && begins(earlier) < end(table, *len) {
                found.push(format!("the {other} and {name} tables overlap in ICM"));
            }
        }
    }
    found
}

/// Where a table ends in ICM.
pub fn end(table: &Table, entry_len: u16) -> u128 {
    u128::from(table.base.get()) + u128::from(table.entries()) * u128::from(entry_len)
}

/// Looks at pages that are about to be lent: over pages that are `mapped` there, and whether the device has them already
/// somewhere, as `lent`.
pub fn map(
    mapped: impl Iterator<Item = IcmRange>,
    lent: impl Iterator<Item = IcmRange>,
    new: &[IcmRange],
    (over_mapped, same_page): (&'static Rule, &'static Rule),
    found: &mut Findings,
) {
    let in_icm = |range: &IcmRange| (range.start.get(), range.length);
    let on_bus = |range: &IcmRange| (range.bus.get(), range.length);
    for range in met(mapped.map(|range| in_icm(&range)), new, in_icm) {
        let pages = range.length / PAGE_LEN;
        let what = format!(
            "MAP_ICM at ICM address {}, page count {pages}: the range overlaps mapped pages",
            range.start
        );
        found.add(over_mapped, what);
    }
    for range in met(lent.map(|range| on_bus(&range)), new, on_bus) {
        let pages = range.length / PAGE_LEN;
        let what = format!(
            "MAP_ICM of bus address {}, page count {pages}: the pages are already mapped elsewhere",
            range.bus
        );
        found.add(same_page, what);
    }
}

/// Those of the new ranges that have a byte of an old one, or of a new one in front of it.
fn met(
    old: impl Iterator<Item = (u64, u64)>,
    new: &[IcmRange],
    place: impl Fn(&IcmRange) -> (u64, u64),
) -> Vec<IcmRange> {
    // Bound: as many ranges as a mailbox holds.
    let mut sorted: Vec<(IcmRange, bool)> = new.iter().map(|range| (*range, false)).collect();
    sorted.sort_by_key(|(range, _)| place(range));
    let mut reach = None;
    for (range, met) in &mut sorted {
        let (start, length) = place(range);
        let last = start.saturating_add(length.saturating_sub(1));
        *met = reach.is_some_and(|reach| start <= reach);
        reach = reach.max(Some(last));
    }
    for (start, length) in old {
        let last = start.saturating_add(length.saturating_sub(1));
        let behind = sorted.partition_point(|(range, _)| place(range).0 <= last);
        // The nearest in front of its end is enough to find one; ranges that overlap are found by themselves.
        if let Some((range, met)) = sorted.get_mut(..behind).and_then(<[_]>::last_mut) {
            let (first, length) = place(range);
            *met |= first.saturating_add(length.saturating_sub(1)) >= start;
        }
    }
    sorted.into_iter().filter(|(_, met)| *met).map(|(range, _)| range).collect()
}

/// MTT entries of a region, if it has any.
pub fn mtt_entries(region: &MemoryRegion) -> Option<Range<u64>> {
    let Translation::Paged { page_shift, first_entry, offset } = region.translation else { return None };
    let page = 1u64 << page_shift.get();
    let bytes = offset.checked_add(region.len)?;
    Some(first_entry..first_entry.saturating_add(bytes.div_ceil(page)))
}

/// Looks at the buffer of a queue that the device is to write: whether it may write all of it, and whether software has
/// given it all entries.
pub fn ring_begins(
    access: &RegionAccess<'_, &Mtt>,
    buffer: &Buffer,
    queue: &str,
    (reach, owner): (&'static Rule, &'static Rule),
    found: &mut Findings,
) {
    if ring_reached(access, buffer, queue, reach, found) && !OwnedRing::new(*buffer, 0, access).checks_owner()
    {
        found.add(
            owner,
            format!("entries of {queue} are not in hardware ownership; overruns cannot be detected"),
        );
    }
}

/// Whether the device may write the whole buffer.
pub fn ring_reached(
    access: &RegionAccess<'_, &Mtt>,
    buffer: &Buffer,
    queue: &str,
    rule: &'static Rule,
    found: &mut Findings,
) -> bool {
    let len = (LEN as u64) << buffer.log_entries.min(32);
    let place = AccessTarget::offset(buffer.pd, buffer.lkey, buffer.start);
    let granted = access.check(place, len, Access::LocalWrite);
    if let Err(error) = granted {
        found.add(
            rule,
            format!("{queue} needs {len} bytes in the memory region with key {}: {error}", buffer.lkey),
        );
    }
    granted.is_ok()
}

#[cfg(test)]
mod tests {
    use protocol::ids::{IcmAddr, Iova};

    use super::*;

    fn range(start: u64, bus: u64, pages: u64) -> IcmRange {
        IcmRange { start: IcmAddr::new(start), bus: Iova::new(bus), length: pages * PAGE_LEN }
    }

    fn starts(old: &[(u64, u64)], new: &[IcmRange]) -> Vec<u64> {
        let found = met(old.iter().copied(), new, |range| (range.start.get(), range.length));
        found.iter().map(|range| range.start.get()).collect()
    }

    #[test]
    fn ranges_that_adjoin_do_not_meet() {
        let new = [range(0x1000, 0, 1), range(0x2000, 0, 2), range(0x8000, 0, 1)];
        assert!(starts(&[(0, 0x1000), (0x4000, 0x4000), (0x9000, 0x1000)], &new).is_empty());
        assert_eq!(starts(&[(0, 0x1001)], &new), [0x1000]);
        assert_eq!(starts(&[(0x3fff, 1)], &new), [0x2000]);
        assert_eq!(starts(&[(0, u64::MAX)], &new), [0x8000], "one of many is enough");
        assert_eq!(starts(&[], &[range(0, 0, 2), range(0x1000, 0, 1)]), [0x1000]);
    }
}
