//! Strict checks shared by HCR interfaces: the command register, ICM tables and pages, and rings written by the device.
//! Each interface passes its own rules.

use std::ops::Range;

use card::frontend::strict::Findings;
use card::memory::dma::PAGE_LEN;
use card::memory::region::{MemoryRegion, Translation};
use card::memory::translate::{AccessTarget, RegionAccess};
use card::telemetry::monitor::Rule;
use engine::Access;
use protocol::hca::hcr::{CommandWord, HcrWord};
use protocol::hca::table::Table;

use super::entry_ring::{Buffer, LEN, OwnedRing};
use super::icm::IcmRange;
use super::mtt::Mtt;

/// State of the strict rules for the command register.
#[derive(Debug, Default)]
pub struct HcrWatch {
    /// Whether software has started a command and not yet read its completion.
    unseen: bool,
}

/// Rules for stores to the command register.
#[derive(Clone, Copy, Debug)]
pub struct HcrRules {
    /// Reserved bits are set.
    pub reserved: &'static Rule,
    /// The completion of the previous command was not read.
    pub not_polled: &'static Rule,
    /// The command word was written without the go bit.
    pub no_effect: &'static Rule,
}

impl HcrWatch {
    pub fn read(&mut self, word: HcrWord) {
        if word == HcrWord::Command {
            self.unseen = false;
        }
    }

    pub fn write(&mut self, rules: &HcrRules, word: HcrWord, value: u32, found: &mut Findings) {
        const COMMAND_RESERVED: u32 = 0xff30_0000;
        const TOKEN_RESERVED: u32 = 0xffff;
        let name = word.name();
        // Report the violation once, not for each word of the premature command.
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

/// An ICM table: its name, its location, and the number of bytes per entry.
pub type NamedTable = (&'static str, Table, u16);

/// Returns a message for each pair of tables that overlap.
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

/// Returns the ICM address where a table ends.
pub fn end(table: &Table, entry_len: u16) -> u128 {
    u128::from(table.base.get()) + u128::from(table.entries()) * u128::from(entry_len)
}

/// Checks pages that MAP_ICM is about to map. In ICM, they must not overlap `mapped`, which contains the mapped ranges
/// of the same table. On the bus, they must not overlap `all_mapped`, which contains the mapped ranges of all tables.
pub fn map(
    mapped: impl Iterator<Item = IcmRange>,
    all_mapped: impl Iterator<Item = IcmRange>,
    new: &[IcmRange],
    (over_mapped, same_page): (&'static Rule, &'static Rule),
    found: &mut Findings,
) {
    let in_icm = |range: &IcmRange| (range.start.get(), range.length);
    let on_bus = |range: &IcmRange| (range.bus.get(), range.length);
    for range in overlaps(mapped.map(|range| in_icm(&range)), new, in_icm) {
        let pages = range.length / PAGE_LEN;
        let what = format!(
            "MAP_ICM at ICM address {}, page count {pages}: the range overlaps mapped pages",
            range.start
        );
        found.add(over_mapped, what);
    }
    for range in overlaps(all_mapped.map(|range| on_bus(&range)), new, on_bus) {
        let pages = range.length / PAGE_LEN;
        let what = format!(
            "MAP_ICM of bus address {}, page count {pages}: the pages are already mapped elsewhere",
            range.bus
        );
        found.add(same_page, what);
    }
}

/// Returns new ranges that overlap an old range or each other. If there are any, the result contains at least one, but
/// not necessarily all of them.
fn overlaps(
    old: impl Iterator<Item = (u64, u64)>,
    new: &[IcmRange],
    span: impl Fn(&IcmRange) -> (u64, u64),
) -> Vec<IcmRange> {
    // The sort is bounded, because a mailbox limits the number of new ranges.
    let mut sorted: Vec<(IcmRange, bool)> = new.iter().map(|range| (*range, false)).collect();
    sorted.sort_by_key(|(range, _)| span(range));
    let mut reach = None;
    for (range, met) in &mut sorted {
        let (start, length) = span(range);
        let last = start.saturating_add(length.saturating_sub(1));
        *met = reach.is_some_and(|reach| start <= reach);
        reach = reach.max(Some(last));
    }
    for (start, length) in old {
        let last = start.saturating_add(length.saturating_sub(1));
        let behind = sorted.partition_point(|(range, _)| span(range).0 <= last);
        // Checking the last new range that starts before the old range ends is enough. If an earlier new range overlaps
        // the old range but the last one does not, the earlier range also overlaps the last one. The loop above has
        // then already marked the last one.
        if let Some((range, met)) = sorted.get_mut(..behind).and_then(<[_]>::last_mut) {
            let (first, length) = span(range);
            *met |= first.saturating_add(length.saturating_sub(1)) >= start;
        }
    }
    sorted.into_iter().filter(|(_, met)| *met).map(|(range, _)| range).collect()
}

/// Returns a region's MTT entries, if it has any.
pub fn mtt_entries(region: &MemoryRegion) -> Option<Range<u64>> {
    let Translation::Paged { page_shift, first_entry, offset } = region.translation else { return None };
    let page = 1u64 << page_shift.get();
    let bytes = offset.checked_add(region.len)?;
    Some(first_entry..first_entry.saturating_add(bytes.div_ceil(page)))
}

/// Checks the buffer of a queue that the device writes to. The buffer must be writable, and hardware must own all
/// entries.
pub fn check_ring(
    access: &RegionAccess<'_, &Mtt>,
    buffer: &Buffer,
    queue: &str,
    (reach, owner): (&'static Rule, &'static Rule),
    found: &mut Findings,
) {
    if check_ring_access(access, buffer, queue, reach, found)
        && !OwnedRing::new(*buffer, 0, access).checks_owner()
    {
        found.add(
            owner,
            format!("entries of {queue} are not in hardware ownership; overruns cannot be detected"),
        );
    }
}

/// Checks that the device may write the whole buffer. Returns false if it may not.
pub fn check_ring_access(
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
        let found = overlaps(old.iter().copied(), new, |range| (range.start.get(), range.length));
        found.iter().map(|range| range.start.get()).collect()
    }

    #[test]
    fn only_overlapping_page_ranges_are_reported() {
        let new = [range(0x1000, 0, 1), range(0x2000, 0, 2), range(0x8000, 0, 1)];
        assert!(starts(&[(0, 0x1000), (0x4000, 0x4000), (0x9000, 0x1000)], &new).is_empty());
        assert_eq!(starts(&[(0, 0x1001)], &new), [0x1000]);
        assert_eq!(starts(&[(0x3fff, 1)], &new), [0x2000]);
        assert_eq!(
            starts(&[(0, u64::MAX)], &new),
            [0x8000],
            "at least one of the overlapping ranges must be reported"
        );
        assert_eq!(starts(&[], &[range(0, 0, 2), range(0x1000, 0, 1)]), [0x1000]);
    }
}
