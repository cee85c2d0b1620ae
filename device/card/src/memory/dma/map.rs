//! Windows (address ranges) of the DMA map, the files that back them, and a cache of recently used windows.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use protocol::ids::Iova;

use super::file::{self, MappedFile};
use super::{MapError, PAGE_LEN, Permissions};
use crate::memory::limits::Limits;

/// Number of entries in the window cache, a power of two. A guest's buffers usually lie in a few windows, but
/// with an IOMMU, each page may be a separate window.
const CACHED_WINDOWS: usize = 16;

/// The map and its window cache.
#[derive(Debug, Default)]
pub(super) struct DmaMap {
    tables: Tables,
    /// Cached windows of `tables`, invalidated by [`DmaMap::change`].
    cache: [Cell<CachedWindow>; CACHED_WINDOWS],
}

#[derive(Debug, Default)]
pub(super) struct Tables {
    /// Non-overlapping windows, keyed by their first addresses.
    windows: BTreeMap<u64, Window>,
    files: Vec<Arc<MappedFile>>,
    limits: Limits,
}

/// A cached window. Only accessible windows are cached.
#[derive(Clone, Copy, Debug)]
struct CachedWindow {
    first: u64,
    last: u64,
    permissions: Permissions,
    /// Index of the file in [`Tables::files`].
    file: usize,
    /// File offset of the first byte.
    offset: u64,
}

/// The default window contains no address.
impl Default for CachedWindow {
    fn default() -> Self {
        let permissions = Permissions { read: false, write: false };
        Self { first: 1, last: 0, permissions, file: 0, offset: 0 }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Location<'a> {
    pub(super) file: &'a Arc<MappedFile>,
    /// Offset in the file.
    pub(super) offset: u64,
    /// Number of bytes in the window that follow the located byte.
    pub(super) following: u64,
    pub(super) permissions: Permissions,
}

#[derive(Clone, Debug)]
struct Window {
    /// Last address. It is inclusive because a range may extend to the end of the address space.
    last: u64,
    permissions: Permissions,
    /// `None` if the client did not provide a descriptor, which makes the range inaccessible.
    host: Option<HostRange>,
}

#[derive(Clone, Debug)]
struct HostRange {
    file: Arc<MappedFile>,
    /// File offset of the window's first byte.
    offset: u64,
}

impl DmaMap {
    pub(super) fn new(limits: Limits) -> Self {
        Self { tables: Tables { limits, ..Tables::default() }, ..Self::default() }
    }

    /// Returns the tables for modification and invalidates the cache.
    pub(super) fn change(&mut self) -> &mut Tables {
        self.cache = Default::default();
        &mut self.tables
    }

    pub(super) fn window_count(&self) -> usize {
        self.tables.windows.len()
    }

    /// Returns whether a page of any file has been lost.
    pub(super) fn is_lost(&self) -> bool {
        self.tables.files.iter().any(|file| file.is_lost())
    }

    /// Looks up an accessible address. Lost files are not accessible.
    #[inline(always)]
    pub(super) fn locate(&self, at: u64) -> Option<Location<'_>> {
        // The remainder is below 16, which keeps the index in bounds.
        let slot = &self.cache[(at / PAGE_LEN % CACHED_WINDOWS as u64) as usize];
        let window = slot.get();
        if window.first <= at && at <= window.last {
            return self.tables.locate_in(&window, at);
        }
        self.locate_and_cache(slot, at)
    }

    #[cold]
    fn locate_and_cache(&self, slot: &Cell<CachedWindow>, at: u64) -> Option<Location<'_>> {
        let found = self.tables.find(at)?;
        slot.set(found);
        self.tables.locate_in(&found, at)
    }

    #[cfg(test)]
    pub(super) fn tables(&self) -> &Tables {
        &self.tables
    }
}

impl Tables {
    /// Returns the location of an address that `window` contains. Lost files are not accessible.
    #[inline(always)]
    fn locate_in(&self, window: &CachedWindow, at: u64) -> Option<Location<'_>> {
        Some(Location {
            file: self.files.get(window.file).filter(|file| !file.is_lost())?,
            offset: window.offset + (at - window.first),
            following: window.last - at,
            permissions: window.permissions,
        })
    }

    /// Looks up the accessible window that contains an address.
    fn find(&self, at: u64) -> Option<CachedWindow> {
        let (&first, window) =
            self.windows.range(..=at).next_back().filter(|(_, window)| at <= window.last)?;
        let HostRange { file, offset } = window.host.as_ref()?;
        let file = self.files.iter().position(|known| Arc::ptr_eq(known, file))?;
        Some(CachedWindow {
            first,
            last: window.last,
            permissions: window.permissions,
            file,
            offset: *offset,
        })
    }

    /// Adds a range of whole pages. `backing` is a file and the file offset of the first page. Without a file, the
    /// pages are inaccessible.
    ///
    /// # Errors
    /// Fails with a [`MapError`]. On error, nothing has changed.
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

    /// Removes whole pages.
    ///
    /// # Errors
    /// Fails with [`MapError::TooManyRanges`] if splitting a window would exceed the limit. On error, nothing has
    /// changed.
    pub(super) fn remove(&mut self, first: u64, last: u64) -> Result<(), MapError> {
        // Only removing the middle of a window increases the number of windows.
        let splits = self.windows.range(..first).next_back().is_some_and(|(_, window)| window.last > last);
        if splits && self.windows.len() >= self.limits.windows {
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

    pub(super) fn clear(&mut self) {
        self.windows.clear();
        self.files.clear();
    }

    /// Returns the first addresses of the windows.
    #[cfg(test)]
    pub(super) fn addresses(&self) -> Vec<u64> {
        self.windows.keys().copied().collect()
    }

    #[cfg(test)]
    pub(super) fn file_count(&self) -> usize {
        self.files.len()
    }

    /// Inserts a window that does not overlap any other, merging it with contiguous neighbours.
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
            // Until it is dropped, the window counts as a user of its file.
            drop(window);
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

    /// Splits the window that contains `at` into two windows so that the second one begins at `at`.
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

    /// Returns a mapping that contains the given part of a descriptor's file. Maps the file if necessary.
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
        // This cannot overflow, since the sum never exceeds the limit.
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
    /// Returns whether `next` continues this window on the bus and in the file. `first` and `at` are the
    /// start addresses of this window and of `next`.
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
