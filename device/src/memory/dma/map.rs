//! Windows of the DMA map by address, the files behind them, and the windows that were met last.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use protocol::ids::Iova;

use super::file::{self, MappedFile};
use super::{MapError, PAGE_LEN, Permissions};
use crate::memory::limits::Limits;

/// Places for windows that were met; a power of two. A guest's buffers are in a few windows, or behind an IOMMU in one for
/// each page.
const REMEMBERED: usize = 16;

/// The map, which remembers the windows that it was asked for.
#[derive(Debug, Default)]
pub(super) struct DmaMap {
    tables: Tables,
    /// Windows of `tables` as they are: whoever changes those goes through [`DmaMap::change`].
    recent: [Cell<Option<Recent>>; REMEMBERED],
}

/// Windows and files.
#[derive(Debug, Default)]
pub(super) struct Tables {
    /// By first address. They do not overlap.
    windows: BTreeMap<u64, Window>,
    files: Vec<Arc<MappedFile>>,
    limits: Limits,
}

/// A window that can be reached.
#[derive(Clone, Copy, Debug)]
struct Recent {
    first: u64,
    last: u64,
    permissions: Permissions,
    /// Which one.
    file: usize,
    /// In the file, of the first byte.
    offset: u64,
}

/// What there is at an address.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reach<'a> {
    pub(super) file: &'a MappedFile,
    /// In the file.
    pub(super) offset: u64,
    /// Bytes of the window behind the one at the address.
    pub(super) behind: u64,
    pub(super) permissions: Permissions,
}

#[derive(Clone, Debug)]
struct Window {
    /// Last address, so that a range may end where the address space does.
    last: u64,
    permissions: Permissions,
    /// `None`: the client gave no descriptor, so we know of the range but cannot reach it.
    host: Option<HostRange>,
}

#[derive(Clone, Debug)]
struct HostRange {
    file: Arc<MappedFile>,
    /// Of the window's first byte.
    offset: u64,
}

impl DmaMap {
    /// Nothing yet.
    pub(super) fn new(limits: Limits) -> Self {
        Self { tables: Tables { limits, ..Tables::default() }, ..Self::default() }
    }

    /// The tables, to be changed. Forgets what was remembered of them; while they are borrowed nothing is looked up.
    pub(super) fn change(&mut self) -> &mut Tables {
        self.recent = Default::default();
        &mut self.tables
    }

    /// Windows there are.
    pub(super) fn window_count(&self) -> usize {
        self.tables.windows.len()
    }

    /// Whether the host could not give a page of a file.
    pub(super) fn is_lost(&self) -> bool {
        self.tables.files.iter().any(|file| file.is_lost())
    }

    /// What there is at an address, if it can be reached. Nothing of a file that is lost can.
    #[inline(always)]
    pub(super) fn reach(&self, at: u64) -> Option<Reach<'_>> {
        // The remainder is below 16.
        let place = &self.recent[(at / PAGE_LEN % REMEMBERED as u64) as usize];
        let recent = match place.get() {
            Some(recent) if recent.first <= at && at <= recent.last => recent,
            _ => {
                let found = self.tables.find(at)?;
                place.set(Some(found));
                found
            }
        };
        Some(Reach {
            file: self.tables.files.get(recent.file).filter(|file| !file.is_lost())?,
            offset: recent.offset + (at - recent.first),
            behind: recent.last - at,
            permissions: recent.permissions,
        })
    }

    #[cfg(test)]
    pub(super) fn tables(&self) -> &Tables {
        &self.tables
    }
}

impl Tables {
    /// The window of an address, if it can be reached.
    #[cold]
    fn find(&self, at: u64) -> Option<Recent> {
        let (&first, window) =
            self.windows.range(..=at).next_back().filter(|(_, window)| at <= window.last)?;
        let HostRange { file, offset } = window.host.as_ref()?;
        let file = self.files.iter().position(|known| Arc::ptr_eq(known, file))?;
        Some(Recent { first, last: window.last, permissions: window.permissions, file, offset: *offset })
    }

    /// Adds whole pages, backed by a file from an offset on, or by nothing that we can reach.
    ///
    /// # Errors
    /// See [`MapError`]; nothing has changed.
    pub(super) fn add(
        &mut self,
        first: u64,
        last: u64,
        permissions: Permissions,
        backing: Option<(OwnedFd, u64)>,
    ) -> Result<(), MapError> {
        if self.windows.range(..=last).next_back().is_some_and(|(_, window)| window.last >= first) {
            return Err(MapError::Overlap { iova: Iova::new(first) });
        }
        let host = match backing {
            None => None,
            Some((_, offset)) if !offset.is_multiple_of(PAGE_LEN) => {
                return Err(MapError::Invalid { what: "offset", value: offset });
            }
            Some((fd, offset)) => {
                let file = self.file(fd, offset, last - first + 1, permissions.write)?;
                Some(HostRange { file, offset })
            }
        };
        self.insert(first, Window { last, permissions, host })
    }

    /// Takes whole pages out.
    ///
    /// # Errors
    /// [`MapError::TooManyRanges`]: the rest would be one range too many; nothing has changed.
    pub(super) fn remove(&mut self, first: u64, last: u64) -> Result<(), MapError> {
        // Only what is taken out of the middle of a window leaves more windows than there were.
        let divides = self.windows.range(..first).next_back().is_some_and(|(_, window)| window.last > last);
        if divides && self.windows.len() >= self.limits.windows {
            return Err(MapError::TooManyRanges(self.limits.windows));
        }
        self.split_at(first);
        if let Some(next) = last.checked_add(1) {
            self.split_at(next);
        }
        self.windows.extract_if(first..=last, |_, _| true).for_each(drop);
        self.drop_unused_files();
        Ok(())
    }

    /// Takes everything out.
    pub(super) fn clear(&mut self) {
        self.windows.clear();
        self.files.clear();
    }

    /// First addresses of windows.
    #[cfg(test)]
    pub(super) fn addresses(&self) -> Vec<u64> {
        self.windows.keys().copied().collect()
    }

    /// How many files are mapped.
    #[cfg(test)]
    pub(super) fn file_count(&self) -> usize {
        self.files.len()
    }

    /// Adds a window that overlaps none, as part of its neighbours where it continues them.
    fn insert(&mut self, first: u64, mut window: Window) -> Result<(), MapError> {
        let before = first
            .checked_sub(1)
            .and_then(|end| self.windows.range(..=end).next_back())
            .filter(|(start, earlier)| earlier.continues_into(**start, first, &window))
            .map(|(start, _)| *start);
        let after = window.last.checked_add(1).filter(|next| {
            self.windows.get(next).is_some_and(|later| window.continues_into(first, *next, later))
        });
        if before.is_none() && after.is_none() && self.windows.len() >= self.limits.windows {
            self.drop_unused_files();
            return Err(MapError::TooManyRanges(self.limits.windows));
        }

        if let Some(later) = after.and_then(|next| self.windows.remove(&next)) {
            window.last = later.last;
        }
        match before.and_then(|start| self.windows.get_mut(&start)) {
            Some(earlier) => earlier.last = window.last,
            None => {
                self.windows.insert(first, window);
            }
        }
        Ok(())
    }

    /// Makes `at` the first address of a window if it is inside one.
    fn split_at(&mut self, at: u64) {
        let Some((first, window)) = self.windows.range_mut(..at).next_back() else { return };
        if window.last < at {
            return;
        }
        let mut upper = window.clone();
        if let Some(host) = &mut upper.host {
            host.offset += at - first;
        }
        window.last = at - 1;
        self.windows.insert(at, upper);
    }

    /// The mapping of a descriptor's file that has the given part.
    fn file(
        &mut self,
        fd: OwnedFd,
        offset: u64,
        len: u64,
        writable: bool,
    ) -> Result<Arc<MappedFile>, MapError> {
        let candidate = file::Candidate::new(fd, writable)?;
        let file_len = candidate.len();
        if offset > file_len || len > file_len - offset {
            return Err(MapError::OutsideFile { offset, len, file_len });
        }
        if let Some(known) = self.files.iter().find(|file| file.serves(&candidate, offset, len)) {
            return Ok(Arc::clone(known));
        }
        if self.files.len() >= self.limits.files {
            return Err(MapError::TooManyFiles(self.limits.files));
        }
        // The sum is below the limit, so it does not overflow.
        let mapped = self.files.iter().map(|file| file.len()).sum();
        let limit = self.limits.bytes;
        if file_len > limit.saturating_sub(mapped) {
            return Err(MapError::TooManyBytes { file_len, mapped, limit });
        }
        let file = Arc::new(candidate.map(self.limits.file_systems)?);
        self.files.push(Arc::clone(&file));
        Ok(file)
    }

    fn drop_unused_files(&mut self) {
        self.files.retain(|file| Arc::strong_count(file) > 1);
    }
}

impl Window {
    /// Whether `next`, which begins at `at`, is what this window, which begins at `first`, would be if it were longer.
    fn continues_into(&self, first: u64, at: u64, next: &Self) -> bool {
        let adjoins = self.last.checked_add(1) == Some(at);
        let same_host = match (&self.host, &next.host) {
            (None, None) => true,
            (Some(a), Some(b)) => {
                Arc::ptr_eq(&a.file, &b.file) && b.offset.checked_sub(a.offset) == Some(at - first)
            }
            _ => false,
        };
        adjoins && self.permissions == next.permissions && same_host
    }
}
