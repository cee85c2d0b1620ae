//! The DMA map: bus address ranges the client lent us, and the only place that touches them.
//!
//! The client gives each range as a part of a file. A file is mapped once, whole, however many ranges and
//! descriptors of it arrive: behind an emulated IOMMU there is a range per 4 KiB page, and a mapping for each would
//! meet the host's limit. Ranges that continue each other, on the bus and in the file, become one. What a client may
//! have mapped is limited, see [`Limits`].
//!
//! The guest runs while we look, so its bytes are only ever copied or, where an exchange demands it, accessed
//! atomically; no reference to them exists outside of this file. A page that the host cannot give makes the access
//! fail, and every later one to that file, see [`GuestMemory::is_lost`].

mod file;
mod mapping;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use protocol::ids::Iova;
use smallvec::SmallVec;
use thiserror::Error;
use vm_memory::{Bytes, VolatileMemory, VolatileSlice, WriteVolatile as _};

use self::file::MappedFile;
use super::limits::Limits;
use crate::record::Tape;

/// Granularity of ranges, bytes.
pub const PAGE_LEN: u64 = 4096;

/// A bus address range is not wholly mapped with the needed permission, or the host has no page for some of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("no {access} mapping for {len} bytes at {iova}")]
pub struct DmaError {
    /// First address asked for.
    pub iova: Iova,
    /// Bytes asked for.
    pub len: usize,
    /// "read" or "write".
    pub access: &'static str,
}

/// Why a range was not added.
#[derive(Debug, Error)]
pub enum MapError {
    /// The range is empty, passes the end of the address space, is not made of whole pages, or grants nothing.
    #[error("{what} of a DMA range: {value:#x}")]
    Invalid {
        /// Which field.
        what: &'static str,
        /// Its value.
        value: u64,
    },
    /// Some of it is mapped already.
    #[error("DMA range at {iova} overlaps one that is mapped")]
    Overlap {
        /// First address of the new range.
        iova: Iova,
    },
    /// The part of the file does not exist.
    #[error("{len:#x} bytes at {offset:#x} are outside of the file's {file_len:#x}")]
    OutsideFile {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
        /// Length of the file.
        file_len: u64,
    },
    /// More ranges than we keep.
    #[error("more than {0} DMA ranges")]
    TooManyRanges(usize),
    /// More files than we keep.
    #[error("more than {0} files of guest memory")]
    TooManyFiles(usize),
    /// The client's files would take more of our address space than is theirs.
    #[error("a file of {file_len:#x} bytes, beside {mapped:#x} mapped, passes the limit of {limit:#x}")]
    TooManyBytes {
        /// Of the new file.
        file_len: u64,
        /// Of files mapped already.
        mapped: u64,
        /// Bytes a client may have mapped.
        limit: u64,
    },
    /// Its pages come from where they may be kept from us.
    #[error("a file on a file system of type {magic:#x}: guest memory has to be on tmpfs or hugetlbfs")]
    FileSystem {
        /// As `statfs` tells it.
        magic: u64,
    },
    /// The descriptor cannot be mapped.
    #[error("cannot map the descriptor of a DMA range: {0}")]
    File(#[from] std::io::Error),
}

/// What the device may do with a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permissions {
    /// The device may read.
    pub read: bool,
    /// The device may write.
    pub write: bool,
}

/// Guest memory as the device reaches it. All accesses are bounds-checked; the guest may change the bytes at any
/// time, so everything is copied out once and used from the copy.
#[derive(Debug, Default)]
pub struct GuestMemory {
    /// By first address. They do not overlap.
    windows: BTreeMap<u64, Window>,
    files: Vec<Arc<MappedFile>>,
    limits: Limits,
    blocked: bool,
    /// Of a device that is recorded or replayed.
    tape: Option<Tape>,
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

/// Bytes of one window.
struct Piece<'a> {
    bytes: VolatileSlice<'a>,
    file: &'a MappedFile,
}

type Pieces<'a> = SmallVec<[Piece<'a>; 2]>;

impl GuestMemory {
    /// Nothing yet, and no more than these limits ever.
    pub fn new(limits: Limits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// Records every access from now on, or gives each the outcome that was recorded: then guest memory itself is not
    /// touched. Without a tape neither.
    pub fn set_tape(&mut self, tape: Option<Tape>) {
        self.tape = tape;
    }

    /// Adds a range of `len` bytes at `iova`, backed by a file from an offset on, or by nothing we can reach. The
    /// descriptor is closed: the mapping does not need it.
    ///
    /// # Errors
    /// See [`MapError`]; nothing has changed.
    pub fn map(
        &mut self,
        iova: Iova,
        len: u64,
        permissions: Permissions,
        backing: Option<(OwnedFd, u64)>,
    ) -> Result<(), MapError> {
        let reachable = backing.is_some();
        self.add(iova, len, permissions, backing)?;
        if let Some(tape) = &self.tape {
            tape.map(iova.get(), len, (permissions.read, permissions.write), reachable);
        }
        Ok(())
    }

    fn add(
        &mut self,
        iova: Iova,
        len: u64,
        permissions: Permissions,
        backing: Option<(OwnedFd, u64)>,
    ) -> Result<(), MapError> {
        let first = iova.get();
        if !first.is_multiple_of(PAGE_LEN) {
            return Err(MapError::Invalid { what: "address", value: first });
        }
        if len == 0 || !len.is_multiple_of(PAGE_LEN) {
            return Err(MapError::Invalid { what: "size", value: len });
        }
        let last = first.checked_add(len - 1).ok_or(MapError::Invalid { what: "size", value: len })?;
        if !permissions.read && !permissions.write {
            return Err(MapError::Invalid { what: "permissions", value: 0 });
        }
        if self.windows.range(..=last).next_back().is_some_and(|(_, window)| window.last >= first) {
            return Err(MapError::Overlap { iova });
        }

        let host = match backing {
            None => None,
            Some((_, offset)) if !offset.is_multiple_of(PAGE_LEN) => {
                return Err(MapError::Invalid { what: "offset", value: offset });
            }
            Some((fd, offset)) => {
                Some(HostRange { file: self.file(fd, offset, len, permissions.write)?, offset })
            }
        };
        self.insert(first, Window { last, permissions, host })
    }

    /// Ranges that are mapped.
    pub fn ranges(&self) -> u64 {
        self.windows.len() as u64
    }

    /// Forgets whatever is mapped between `iova` and `iova + len`, which need not be what was mapped at once; `len`
    /// may reach beyond the address space. Nothing inside is touched after this returns.
    ///
    /// # Errors
    /// [`MapError::TooManyRanges`]: the rest would be one range too many; nothing has changed.
    pub fn unmap(&mut self, iova: Iova, len: u64) -> Result<(), MapError> {
        let Some(reach) = len.checked_sub(1) else { return Ok(()) };
        let first = iova.get() & !(PAGE_LEN - 1);
        let last = iova.get().saturating_add(reach) | (PAGE_LEN - 1);
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
        if let Some(tape) = &self.tape {
            tape.unmap(iova.get(), len);
        }
        Ok(())
    }

    /// Forgets everything.
    pub fn unmap_all(&mut self) {
        self.windows.clear();
        self.files.clear();
        if let Some(tape) = &self.tape {
            tape.unmap_all();
        }
    }

    /// Makes every access fail until called again, as for a function that is no bus master. The map stays.
    pub fn set_blocked(&mut self, blocked: bool) {
        self.blocked = blocked;
    }

    /// Ranges there are, after merging.
    pub fn window_count(&self) -> usize {
        self.windows.len()
    }

    /// Whether the host could not give a page of the client's files: one was truncated, its file system is full, or
    /// there is no huge page left. Its client cannot be served any more.
    pub fn is_lost(&self) -> bool {
        self.files.iter().any(|file| file.is_lost())
    }

    /// Copies bytes out of guest memory. The range may cross mappings that adjoin.
    ///
    /// # Errors
    /// Some of the range is not mapped readable; `out` is then unchanged. Or a page is lost; `out` then has zeros for it.
    pub fn read(&self, iova: Iova, out: &mut [u8]) -> Result<(), DmaError> {
        match &self.tape {
            None => self.copy_out(iova, out),
            Some(tape) => {
                let error = DmaError { iova, len: out.len(), access: "read" };
                tape.read(iova.get(), out, error, |out| self.copy_out(iova, out))
            }
        }
    }

    pub(super) fn copy_out(&self, iova: Iova, out: &mut [u8]) -> Result<(), DmaError> {
        let error = DmaError { iova, len: out.len(), access: "read" };
        let mut rest = out;
        let pieces = self.pieces(iova, rest.len(), |permissions| permissions.read).ok_or(error)?;
        for piece in &pieces {
            let (now, later) = rest.split_at_mut(piece.bytes.len());
            piece.bytes.copy_to(now);
            rest = later;
        }
        all_there(&pieces, error)
    }

    /// Appends `len` bytes of guest memory to `out`, which nobody has to clear first. The range may cross mappings that
    /// adjoin.
    ///
    /// # Errors
    /// Some of the range is not mapped readable, or a page is lost; `out` is then unchanged.
    pub fn append(&self, iova: Iova, len: usize, out: &mut Vec<u8>) -> Result<(), DmaError> {
        let error = DmaError { iova, len, access: "read" };
        match &self.tape {
            None => self.gather(iova, len, out),
            Some(tape) => tape.append(iova.get(), len, out, error, |out| self.gather(iova, len, out)),
        }
    }

    fn gather(&self, iova: Iova, len: usize, out: &mut Vec<u8>) -> Result<(), DmaError> {
        let error = DmaError { iova, len, access: "read" };
        let before = out.len();
        let pieces = self.pieces(iova, len, |permissions| permissions.read).ok_or(error)?;
        for piece in &pieces {
            out.write_all_volatile(&piece.bytes).map_err(|_| error)?;
        }
        all_there(&pieces, error).inspect_err(|_| out.truncate(before))
    }

    /// Copies bytes into guest memory.
    ///
    /// # Errors
    /// Some of the range is not mapped writable; then nothing was written. Or a page is lost; then the rest was.
    pub fn write(&self, iova: Iova, data: &[u8]) -> Result<(), DmaError> {
        let error = DmaError { iova, len: data.len(), access: "write" };
        match &self.tape {
            None => self.copy_in(iova, data),
            Some(tape) => tape.write(iova.get(), data, error, || self.copy_in(iova, data)),
        }
    }

    pub(super) fn copy_in(&self, iova: Iova, data: &[u8]) -> Result<(), DmaError> {
        let error = DmaError { iova, len: data.len(), access: "write" };
        let mut rest = data;
        let pieces = self.pieces(iova, rest.len(), |permissions| permissions.write).ok_or(error)?;
        for piece in &pieces {
            let (now, later) = rest.split_at(piece.bytes.len());
            piece.bytes.copy_from(now);
            rest = later;
        }
        all_there(&pieces, error)
    }

    /// Writes an entry whose last byte hands it to software: all bytes but the last first, then the last with
    /// release order, so that whoever sees the last sees the rest and all earlier writes. `entry` is not empty and
    /// does not cross a page.
    ///
    /// # Errors
    /// As `write`, or the entry is empty or crosses a page.
    pub fn publish(&self, iova: Iova, entry: &[u8]) -> Result<(), DmaError> {
        let error = DmaError { iova, len: entry.len(), access: "write" };
        match &self.tape {
            None => self.hand_over(iova, entry),
            Some(tape) => tape.write(iova.get(), entry, error, || self.hand_over(iova, entry)),
        }
    }

    fn hand_over(&self, iova: Iova, entry: &[u8]) -> Result<(), DmaError> {
        let error = DmaError { iova, len: entry.len(), access: "write" };
        let (&owner, body) = entry.split_last().ok_or(error)?;
        let slot = self.slot(iova, entry.len()).ok_or(error)?;
        slot.bytes
            .write_slice(body, 0)
            .and_then(|()| slot.bytes.store(owner, body.len(), Ordering::Release))
            .map_err(|_| error)?;
        all_there(&[slot], error)
    }

    /// Replaces the naturally aligned 64-bit word at `iova` atomically: `update` gets the current value and gives
    /// the new one, or `None` to leave it. Returns the value that was there. Host byte order, which is the guest's.
    ///
    /// # Errors
    /// As `write`, or `iova` is not a multiple of 8.
    pub fn update_u64(&self, iova: Iova, update: impl FnMut(u64) -> Option<u64>) -> Result<u64, DmaError> {
        let error = DmaError { iova, len: 8, access: "write" };
        match &self.tape {
            None => self.exchange(iova, update),
            Some(tape) => tape.update(iova.get(), update, error, |update| self.exchange(iova, update)),
        }
    }

    fn exchange(&self, iova: Iova, update: impl FnMut(u64) -> Option<u64>) -> Result<u64, DmaError> {
        let error = DmaError { iova, len: 8, access: "write" };
        let slot = self.slot(iova, 8).ok_or(error)?;
        let word = slot.bytes.get_atomic_ref::<AtomicU64>(0).map_err(|_| error)?;
        let (Ok(before) | Err(before)) = word.fetch_update(Ordering::AcqRel, Ordering::Acquire, update);
        all_there(&[slot], error)?;
        Ok(before)
    }

    /// The writable bytes of something inside one page. Ranges are whole pages, so it is inside one of them.
    fn slot(&self, iova: Iova, len: usize) -> Option<Piece<'_>> {
        let mut pieces = self.pieces(iova, len, |permissions| permissions.write)?;
        if pieces.len() == 1 { pieces.pop() } else { None }
    }

    /// All of a range, in order, or nothing. The number of pieces is bounded by `len` and the size of a page.
    fn pieces(&self, iova: Iova, len: usize, allowed: impl Fn(Permissions) -> bool) -> Option<Pieces<'_>> {
        if self.blocked {
            return None;
        }
        let mut pieces = SmallVec::new();
        let (mut at, mut rest) = (iova.get(), len);
        while rest > 0 {
            let (first, window) = self.windows.range(..=at).next_back()?;
            if at > window.last || !allowed(window.permissions) {
                return None;
            }
            let host = window.host.as_ref()?;
            let here =
                usize::try_from(window.last - at).map_or(rest, |tail| rest.min(tail.saturating_add(1)));
            pieces
                .push(Piece { bytes: host.file.slice(host.offset + (at - first), here)?, file: &host.file });
            rest -= here;
            if rest > 0 {
                at = window.last.checked_add(1)?;
            }
        }
        Some(pieces)
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

/// Says after an access whether it met a page that the host could not give.
fn all_there(pieces: &[Piece<'_>], error: DmaError) -> Result<(), DmaError> {
    if pieces.iter().any(|piece| piece.file.is_lost()) { Err(error) } else { Ok(()) }
}
