//! Finds the bus address of a byte in a region, either through page tables or through lists of other keys.
//!
//! An indirect key lists ranges of other keys, which may be indirect in turn. A list is read entry by entry, on demand.
//! The keys in a list are checked when their bytes are accessed, not when the list is written. If a listed key has been
//! invalidated in the meantime, the access fails.
//!
//! A strided list begins with a header. The ranges after the header form a pattern, which is repeated. An offset is
//! divided by the length of one repetition: the quotient is the number of the repetition, and the remainder is looked
//! up in a single copy of the pattern. The cost of an access does not depend on the number of repetitions.
//!
//! | check | key of the request | keys in lists |
//! |---|---|---|
//! | exists, valid | yes | yes |
//! | kind | no window for local access | never a window |
//! | PD | that of the initiator | that of the initiator |
//! | right | as the access requires | local write if the access modifies memory, otherwise none |
//! | bounds | of the whole range | of the bytes accessed |
//!
//! Keys in lists follow the rule for windows (IBTA volume 1, section 10.6.3.2): remote write or atomic access through a
//! key requires only local write access to the memory itself. A region that grants access to peers can therefore list
//! regions that do not.

use engine::{Access, AccessError, Initiator, Rights};
use protocol::ids::{Lkey, Va};

use super::{KeyRange, PageTable};
use crate::memory::keys::{KeyTable, ListCursor};
use crate::memory::region::{EntryLen, MemoryRegion, Origin, Translation};

/// Number of pages in one list of a two-level page table.
const LIST_LEN: u64 = 512;

/// Maximum number of lists between a key and its bytes. ConnectX drivers use one list, or two for a window or a
/// registration over an implicit region. The limit also ends the look-up in a list that contains its own key.
const MAX_NESTING: usize = 4;

/// Maximum number of list entries that one access may read. This limits an access to a fraction of a second and is
/// enough for two nested lists of 2^20 entries each.
const MAX_ENTRIES: u32 = 1 << 21;

/// Rights that a key does not grant if its list contains a region without local write permission.
const MODIFYING: Rights = Rights::LOCAL_WRITE.union(Rights::REMOTE_WRITE).union(Rights::REMOTE_ATOMIC);

/// Location of a byte on the bus.
#[derive(Clone, Copy, Debug)]
pub(super) struct Located {
    pub(super) bus: u64,
    /// Number of bytes before this byte that are contiguous with it. They may be outside the region.
    pub(super) before: u64,
    /// Number of contiguous bytes, starting with this byte.
    pub(super) room: u64,
    /// Whether the location depends on a page table or a list.
    pub(super) from_table: bool,
    /// Rights that the region does not grant, because of the keys in its lists.
    pub(super) denied: Rights,
}

/// State of the look-ups for one access.
#[derive(Debug)]
pub(super) struct Walk<'a, P> {
    pub(super) keys: &'a KeyTable,
    pub(super) pages: P,
    initiator: Initiator,
    /// Access that keys in lists must grant.
    listed_access: Access,
    /// Listed key that was looked up last.
    pub(super) listed_key: Option<Lkey>,
    /// Number of list entries that the access may still read.
    entries_left: u32,
    /// Latest position in the list at each nesting level.
    cursors: [Option<ListCursor>; MAX_NESTING],
}

#[derive(Clone, Copy, Debug)]
struct List {
    count: u32,
    first_entry: u64,
}

/// A list entry, and the offset of a byte in it.
struct Found {
    entry: KeyRange,
    within: u64,
    len: u64,
}

impl<'a, P: PageTable> Walk<'a, P> {
    pub(super) const fn new(keys: &'a KeyTable, pages: P, initiator: Initiator, access: Access) -> Self {
        let listed_access = match access {
            Access::LocalRead | Access::RemoteRead => Access::LocalRead,
            Access::LocalWrite | Access::RemoteWrite | Access::RemoteAtomic => Access::LocalWrite,
        };
        let cursors = [None; MAX_NESTING];
        let entries_left = MAX_ENTRIES;
        Self { keys, pages, initiator, listed_access, listed_key: None, entries_left, cursors }
    }

    /// Locates the byte at `offset` of a region.
    ///
    /// # Errors
    /// Fails if the page or list entry does not exist, or if a key in a list fails a check.
    pub(super) fn locate(&mut self, region: &MemoryRegion, offset: u64) -> Result<Located, AccessError> {
        let keys = self.keys;
        let (mut region, mut offset) = (region, offset);
        let (mut before, mut room) = (u64::MAX, u64::MAX);
        let mut denied = Rights::empty();
        let mut level = 0;
        while let Translation::Indirect { entry_len, count, first_entry, offset: first } = region.translation
        {
            if level == MAX_NESTING {
                return Err(AccessError::Indirection);
            }
            let linear = first.checked_add(offset).ok_or(AccessError::Bounds)?;
            let list = List { count, first_entry };
            let found = match entry_len {
                EntryLen::PerEntry => self.search(level, region, list, linear)?,
                EntryLen::Strided => self.search_strided(level, region, list, linear)?,
                EntryLen::Fixed(shift) => {
                    let index = linear >> shift.get();
                    let entry = self.entry(list, index)?.ok_or(AccessError::Unmapped)?;
                    let mask = shift.offset_mask();
                    Found { entry, within: linear & mask, len: mask + 1 }
                }
            };
            let (key, va) = found.entry.target.ok_or(AccessError::Unmapped)?;
            let va = va.get().checked_add(found.within).ok_or(AccessError::Bounds)?;
            self.listed_key = Some(key);
            let listed = keys.find(key)?;
            offset = listed.grant(self.initiator, Va::new(va), Origin::Zero, 1, self.listed_access)?;
            before = before.min(found.within).min(offset);
            room = room.min(found.len - found.within).min(listed.len - offset);
            if !listed.rights.contains(Rights::LOCAL_WRITE) {
                denied |= MODIFYING;
            }
            region = listed;
            level += 1;
        }
        let direct = self.locate_direct(region, offset)?;
        Ok(Located {
            bus: direct.bus,
            before: before.min(direct.before),
            room: room.min(direct.room),
            from_table: direct.from_table || level != 0,
            denied,
        })
    }

    /// Locates a byte in a region that is not indirect.
    fn locate_direct(&self, region: &MemoryRegion, offset: u64) -> Result<Located, AccessError> {
        let denied = Rights::empty();
        let (page_shift, linear, entry) = match region.translation {
            Translation::Contiguous { bus } => {
                let bus = bus.get().checked_add(offset).ok_or(AccessError::Bounds)?;
                let room = (u64::MAX - bus).saturating_add(1);
                return Ok(Located { bus, before: offset, room, from_table: false, denied });
            }
            Translation::Paged { page_shift, first_entry, offset: first } => {
                let linear = first.checked_add(offset).ok_or(AccessError::Bounds)?;
                (page_shift, linear, first_entry.checked_add(linear >> page_shift.get()))
            }
            Translation::TwoLevel { page_shift, first_entry, offset: first } => {
                let linear = first.checked_add(offset).ok_or(AccessError::Bounds)?;
                let page = linear >> page_shift.get();
                let list = first_entry.checked_add(page / LIST_LEN).and_then(|entry| self.pages.list(entry));
                (page_shift, linear, list.and_then(|list| list.checked_add(page % LIST_LEN)))
            }
            Translation::Indirect { .. } => return Err(AccessError::Indirection),
        };
        let mask = page_shift.offset_mask();
        let base = entry.and_then(|entry| self.pages.page(entry)).ok_or(AccessError::Unmapped)?;
        let before = linear & mask;
        let bus = (base.get() & !mask) | before;
        Ok(Located { bus, before, room: mask + 1 - before, from_table: true, denied })
    }

    /// Finds the entry that contains byte `linear` of a list whose entries can differ in length. The search continues
    /// from the latest known position before `linear`.
    fn search(
        &mut self,
        level: usize,
        region: &MemoryRegion,
        list: List,
        linear: u64,
    ) -> Result<Found, AccessError> {
        let key = region.key;
        let generation = self.pages.generation();
        let latest = self.cursors.get(level).copied().flatten().filter(|cursor| cursor.key == key);
        let cached = || self.keys.list_cursor(key, generation?);
        let is_before = |cursor: &ListCursor| cursor.start <= linear;
        let start = ListCursor { key, entry: 0, start: 0 };
        let mut cursor = latest.filter(is_before).or_else(|| cached().filter(is_before)).unwrap_or(start);
        loop {
            let entry = self.entry(list, cursor.entry.into())?.ok_or(AccessError::Unmapped)?;
            let within = linear - cursor.start;
            if within < entry.len {
                if let Some(latest) = self.cursors.get_mut(level) {
                    *latest = Some(cursor);
                }
                if let Some(generation) = generation {
                    self.keys.cache_list_cursor(cursor, generation);
                }
                return Ok(Found { entry, within, len: entry.len });
            }
            // Neither addition overflows: the entry ends at or before `linear`, and its index is below `count`.
            cursor.start += entry.len;
            cursor.entry += 1;
        }
    }

    /// Finds the entry that contains byte `linear` of a strided list. Advances the entry's address to the repetition
    /// that contains the byte.
    fn search_strided(
        &mut self,
        level: usize,
        region: &MemoryRegion,
        list: List,
        linear: u64,
    ) -> Result<Found, AccessError> {
        self.count_entry()?;
        let pattern = self.pages.pattern(list.first_entry).ok_or(AccessError::Unmapped)?;
        let (Some(repetition), Some(within)) =
            (linear.checked_div(pattern.len), linear.checked_rem(pattern.len))
        else {
            return Err(AccessError::Unmapped);
        };
        if repetition >= pattern.repetitions {
            return Err(AccessError::Unmapped);
        }
        let first_entry = list.first_entry.checked_add(1).ok_or(AccessError::Unmapped)?;
        let ranges = List { count: pattern.ranges.min(list.count.saturating_sub(1)), first_entry };
        let mut found = self.search(level, region, ranges, within)?;
        // The header can specify fewer bytes than the ranges contain. A repetition then ends inside a range.
        found.len = found.len.min(found.within.saturating_add(pattern.len - within));
        if let Some((_, va)) = &mut found.entry.target {
            let distance = repetition.checked_mul(found.entry.stride);
            *va = distance
                .and_then(|distance| va.get().checked_add(distance))
                .map(Va::new)
                .ok_or(AccessError::Bounds)?;
        }
        Ok(found)
    }

    /// Counts an entry that is about to be read.
    fn count_entry(&mut self) -> Result<(), AccessError> {
        self.entries_left = self.entries_left.checked_sub(1).ok_or(AccessError::Indirection)?;
        Ok(())
    }

    /// Reads a list entry. Returns `None` past the end of the list.
    fn entry(&mut self, list: List, index: u64) -> Result<Option<KeyRange>, AccessError> {
        if index >= list.count.into() {
            return Ok(None);
        }
        self.count_entry()?;
        Ok(list.first_entry.checked_add(index).and_then(|entry| self.pages.range(entry)))
    }
}

#[cfg(test)]
mod tests;
