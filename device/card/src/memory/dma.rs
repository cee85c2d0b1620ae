//! The DMA map: ranges of bus addresses mapped by the client. Only this module accesses guest memory.
//!
//! The client specifies each range as part of a file. Each file is mapped once, as a whole, no matter how many ranges
//! and descriptors refer to it. With an emulated IOMMU, each 4 KiB page is a separate range, and one mapping per range
//! would exceed the host's limit on mappings. Ranges that are contiguous on the bus and in the file are merged into one
//! window. [`Limits`] restricts what a client may map.
//!
//! Since the guest runs concurrently, its memory is only copied or, for a compare-and-swap, accessed atomically. No
//! Rust reference to it exists outside this module. If the host cannot provide a page, the access and every later
//! access to that file fail; see [`GuestMemory::is_lost`].

mod file;
mod guest_range;
mod load;
mod map;
mod mapping;
mod store;
#[cfg(test)]
mod tests;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use engine::PayloadRef;
use protocol::ids::Iova;
use smallvec::SmallVec;
use thiserror::Error;
use vm_memory::{Bytes, VolatileMemory, VolatileSlice};

use self::file::MappedFile;
pub use self::guest_range::GuestRange;
use self::load::{append, take};
use self::map::{DmaMap, Location};
use self::store::{put, put_shared};
use super::limits::Limits;
use crate::record::RecordSink;

/// Granularity of ranges in bytes.
pub const PAGE_LEN: u64 = 4096;

/// Part of the accessed range is not mapped with the required permission, or the host cannot provide one of its pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("guest memory at {iova} ({len} bytes) is not mapped for {access} access")]
pub struct DmaError {
    /// First address of the access.
    pub iova: Iova,
    /// Length of the access.
    pub len: usize,
    pub access: &'static str,
}

/// Why a range was not mapped.
#[derive(Debug, Error)]
pub enum MapError {
    /// The range is empty, exceeds the address space, does not consist of whole pages, or does not permit any access.
    #[error("invalid DMA range {what}: {value:#x}")]
    Invalid { what: &'static str, value: u64 },
    #[error("the DMA range at {iova} overlaps a range that is already mapped")]
    Overlap {
        /// First address of the new range.
        iova: Iova,
    },
    #[error(
        "the DMA range of {len:#x} bytes at file offset {offset:#x} exceeds the file length of {file_len:#x} bytes"
    )]
    OutsideFile { offset: u64, len: u64, file_len: u64 },
    #[error("too many DMA ranges (maximum {0})")]
    TooManyRanges(usize),
    #[error("too many guest memory files (maximum {0})")]
    TooManyFiles(usize),
    #[error(
        "a file of {file_len:#x} bytes, with {mapped:#x} bytes already mapped, exceeds the limit of {limit:#x} bytes; raise `guest_memory.max_gib`"
    )]
    TooManyBytes {
        /// Length of the new file.
        file_len: u64,
        /// Total length of the files that are already mapped.
        mapped: u64,
        limit: u64,
    },
    /// The file is on a file system that may fail to provide pages.
    #[error("the guest memory file must be on tmpfs or hugetlbfs, not on a file system of type {magic:#x}")]
    FileSystem {
        /// `f_type` as returned by statfs(2).
        magic: u64,
    },
    #[error("cannot map the file that backs the DMA range: {0}")]
    File(#[from] std::io::Error),
}

/// Kinds of access permitted by a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permissions {
    /// The device may read.
    pub read: bool,
    /// The device may write.
    pub write: bool,
}

/// Guest memory as the device accesses it. All accesses are bounds-checked. As the guest may change the bytes at any
/// time, data is copied out once and only the copy is used.
#[derive(Debug, Default)]
pub struct GuestMemory {
    map: DmaMap,
    blocked: bool,
    /// Set while the device is recorded or replayed.
    sink: Option<RecordSink>,
}

/// The part of an access that lies inside one window.
struct Piece<'a> {
    bytes: VolatileSlice<'a>,
    file: &'a Arc<MappedFile>,
    /// Offset in the file.
    offset: u64,
}

type Pieces<'a> = SmallVec<[Piece<'a>; 2]>;

impl GuestMemory {
    pub fn new(limits: Limits) -> Self {
        Self { map: DmaMap::new(limits), ..Self::default() }
    }

    /// Starts recording every access, or replaying recorded results without accessing guest memory. `None` ends
    /// either mode.
    pub fn set_record_sink(&mut self, sink: Option<RecordSink>) {
        self.sink = sink;
    }

    /// Maps `len` bytes at `iova`. `backing` is a file and the file offset of the range. Without a file, the range is
    /// inaccessible. Closes the descriptor, which the mapping does not need.
    ///
    /// # Errors
    /// Fails with a [`MapError`]. On error, nothing has changed.
    pub fn map(
        &mut self,
        iova: Iova,
        len: u64,
        permissions: Permissions,
        backing: Option<(OwnedFd, u64)>,
    ) -> Result<(), MapError> {
        let reachable = backing.is_some();
        self.add(iova, len, permissions, backing)?;
        if let Some(sink) = &self.sink {
            sink.map(iova.get(), len, (permissions.read, permissions.write), reachable);
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
        self.map.change().add(first, last, permissions, backing)
    }

    /// Returns the number of mapped ranges after merging.
    pub fn ranges(&self) -> u64 {
        self.map.window_count() as u64
    }

    /// Unmaps everything between `iova` and `iova + len`. These bounds need not match the mapped ranges, and
    /// `len` may exceed the address space. The range is not accessed after this function has returned.
    ///
    /// # Errors
    /// Fails with [`MapError::TooManyRanges`] if splitting a range would exceed the limit. On error, nothing has
    /// changed.
    pub fn unmap(&mut self, iova: Iova, len: u64) -> Result<(), MapError> {
        let Some(distance) = len.checked_sub(1) else { return Ok(()) };
        let first = iova.get() & !(PAGE_LEN - 1);
        let last = iova.get().saturating_add(distance) | (PAGE_LEN - 1);
        self.map.change().remove(first, last)?;
        if let Some(sink) = &self.sink {
            sink.unmap(iova.get(), len);
        }
        Ok(())
    }

    pub fn unmap_all(&mut self) {
        self.map.change().clear();
        if let Some(sink) = &self.sink {
            sink.unmap_all();
        }
    }

    /// Blocks or allows all accesses. Blocked accesses fail, as they do for a function without bus mastering. The map
    /// is kept.
    pub fn set_blocked(&mut self, blocked: bool) {
        self.blocked = blocked;
    }

    /// Returns the number of ranges after merging.
    pub fn window_count(&self) -> usize {
        self.map.window_count()
    }

    /// Returns whether the host failed to provide a page of the client's files: a file was truncated, its file system
    /// is full or no huge page is left. The client must then be disconnected.
    pub fn is_lost(&self) -> bool {
        self.map.is_lost()
    }

    /// Copies bytes out of guest memory. The range may span adjoining mappings.
    ///
    /// # Errors
    /// If the range is not entirely readable, or its file is lost, `out` is unchanged. If a page is lost during this
    /// access, `out` contains zeros in place of that page, and possibly in place of the rest of the file.
    // Always inlined, because a call costs as much as copying a short range.
    #[inline(always)]
    pub fn read(&self, iova: Iova, out: &mut [u8]) -> Result<(), DmaError> {
        if let Some(piece) = self.in_one_window(iova, out.len(), readable)
            && take(&piece.bytes, out)
            && !piece.file.is_lost()
        {
            return Ok(());
        }
        self.read_in_pieces(iova, out)
    }

    #[cold]
    fn read_in_pieces(&self, iova: Iova, out: &mut [u8]) -> Result<(), DmaError> {
        match &self.sink {
            None => self.copy_out(iova, out),
            Some(sink) => {
                let error = DmaError { iova, len: out.len(), access: "read" };
                sink.read(iova.get(), out, error, |out| self.copy_out(iova, out))
            }
        }
    }

    pub(super) fn copy_out(&self, iova: Iova, out: &mut [u8]) -> Result<(), DmaError> {
        let error = DmaError { iova, len: out.len(), access: "read" };
        let mut rest = out;
        let pieces = self.pieces(iova, rest.len(), readable).ok_or(error)?;
        for piece in &pieces {
            let (now, later) = rest.split_at_mut(piece.bytes.len());
            take(&piece.bytes, now);
            rest = later;
        }
        check_all(&pieces, error)
    }

    /// Appends `len` bytes of guest memory to `out` without zeroing the new part of `out` first. The range
    /// may span adjoining mappings.
    ///
    /// # Errors
    /// Fails if the range is not entirely readable or a page is lost. In either case, `out` is unchanged.
    #[inline]
    pub fn append(&self, iova: Iova, len: usize, out: &mut Vec<u8>) -> Result<(), DmaError> {
        let before = out.len();
        if let Some(piece) = self.in_one_window(iova, len, readable)
            && append(&piece.bytes, out)
            && !piece.file.is_lost()
        {
            return Ok(());
        }
        out.truncate(before);
        self.append_in_pieces(iova, len, out)
    }

    /// Appends [`GuestRange`]s that cover `len` bytes of guest memory to `ranges`. The caller must drop them before it
    /// returns to code that may change the map. Returns false, without any effect, while accesses are being recorded or
    /// replayed.
    ///
    /// # Errors
    /// Fails if the range is not entirely readable. In that case, some ranges may have been appended.
    pub fn locate(&self, iova: Iova, len: usize, ranges: &mut Vec<GuestRange>) -> Result<bool, DmaError> {
        if self.sink.is_some() {
            return Ok(false);
        }
        let error = DmaError { iova, len, access: "read" };
        let pieces = self.pieces(iova, len, readable).ok_or(error)?;
        ranges.extend(
            pieces.iter().map(|piece| GuestRange::new(piece.file.clone(), piece.offset, piece.bytes.len())),
        );
        Ok(true)
    }

    #[cold]
    fn append_in_pieces(&self, iova: Iova, len: usize, out: &mut Vec<u8>) -> Result<(), DmaError> {
        let error = DmaError { iova, len, access: "read" };
        match &self.sink {
            None => self.gather(iova, len, out),
            Some(sink) => sink.append(iova.get(), len, out, error, |out| self.gather(iova, len, out)),
        }
    }

    fn gather(&self, iova: Iova, len: usize, out: &mut Vec<u8>) -> Result<(), DmaError> {
        let error = DmaError { iova, len, access: "read" };
        let before = out.len();
        let pieces = self.pieces(iova, len, readable).ok_or(error)?;
        for piece in &pieces {
            if !append(&piece.bytes, out) {
                return Err(error);
            }
        }
        check_all(&pieces, error).inspect_err(|_| out.truncate(before))
    }

    /// Copies bytes into guest memory.
    ///
    /// # Errors
    /// If the range is not entirely writable, or its file is lost, nothing is written. If a page is lost during this
    /// access, only part of the data may have been written.
    #[inline]
    pub fn write(&self, iova: Iova, data: &[u8]) -> Result<(), DmaError> {
        if let Some(piece) = self.in_one_window(iova, data.len(), writable) {
            put(&piece.bytes, data);
            if !piece.file.is_lost() {
                return Ok(());
            }
        }
        self.write_in_pieces(iova, data)
    }

    /// Copies bytes that another process may change at any time into guest memory.
    ///
    /// # Errors
    /// Fails as `write` does.
    #[inline]
    pub fn write_shared(&self, iova: Iova, data: VolatileSlice<'_>) -> Result<(), DmaError> {
        if let Some(piece) = self.in_one_window(iova, data.len(), writable) {
            put_shared(&piece.bytes, data);
            if !piece.file.is_lost() {
                return Ok(());
            }
        }
        self.write_in_pieces(iova, &PayloadRef::Shared(data).to_vec())
    }

    #[cold]
    fn write_in_pieces(&self, iova: Iova, data: &[u8]) -> Result<(), DmaError> {
        let error = DmaError { iova, len: data.len(), access: "write" };
        match &self.sink {
            None => self.copy_in(iova, data),
            Some(sink) => sink.write(iova.get(), data, error, || self.copy_in(iova, data)),
        }
    }

    pub(super) fn copy_in(&self, iova: Iova, data: &[u8]) -> Result<(), DmaError> {
        let error = DmaError { iova, len: data.len(), access: "write" };
        let mut rest = data;
        let pieces = self.pieces(iova, rest.len(), writable).ok_or(error)?;
        for piece in &pieces {
            let (now, later) = rest.split_at(piece.bytes.len());
            put(&piece.bytes, now);
            rest = later;
        }
        check_all(&pieces, error)
    }

    /// Writes an entry whose last byte transfers ownership to software. All other bytes are written first. The last
    /// byte is then written with release order, so software that sees it also sees the rest and all earlier writes.
    /// `entry` must be non-empty and inside one page.
    ///
    /// # Errors
    /// Fails as `write` does, or if the entry is empty or spans two windows.
    // Always inlined, like `read`.
    #[inline(always)]
    pub fn publish(&self, iova: Iova, entry: &[u8]) -> Result<(), DmaError> {
        if let Some(piece) = self.in_one_window(iova, entry.len(), writable)
            && hand_over(&piece.bytes, entry)
            && !piece.file.is_lost()
        {
            return Ok(());
        }
        self.publish_recorded(iova, entry)
    }

    #[cold]
    fn publish_recorded(&self, iova: Iova, entry: &[u8]) -> Result<(), DmaError> {
        let error = DmaError { iova, len: entry.len(), access: "write" };
        let publish = || {
            let slot = self.writable(iova, entry.len()).ok_or(error)?;
            if hand_over(&slot.bytes, entry) { slot.check(error) } else { Err(error) }
        };
        match &self.sink {
            None => publish(),
            Some(sink) => sink.write(iova.get(), entry, error, publish),
        }
    }

    /// Atomically updates the naturally aligned 64-bit word at `iova`. `update` maps the current value to the new one
    /// or returns `None` to leave the word unchanged. Returns the old value. Values are in host byte order, which is
    /// also the guest's byte order.
    ///
    /// # Errors
    /// Fails as `write` does, or if `iova` is not a multiple of 8.
    pub fn update_u64(&self, iova: Iova, update: impl FnMut(u64) -> Option<u64>) -> Result<u64, DmaError> {
        let error = DmaError { iova, len: 8, access: "write" };
        match &self.sink {
            None => self.exchange(iova, update),
            Some(sink) => sink.update(iova.get(), update, error, |update| self.exchange(iova, update)),
        }
    }

    fn exchange(&self, iova: Iova, update: impl FnMut(u64) -> Option<u64>) -> Result<u64, DmaError> {
        let error = DmaError { iova, len: 8, access: "write" };
        let slot = self.writable(iova, 8).ok_or(error)?;
        let word = slot.bytes.get_atomic_ref::<AtomicU64>(0).map_err(|_| error)?;
        let (Ok(before) | Err(before)) = word.fetch_update(Ordering::AcqRel, Ordering::Acquire, update);
        slot.check(error)?;
        Ok(before)
    }

    /// Returns the writable bytes of a range inside one page. Such a range lies in one window, since windows consist of
    /// whole pages.
    fn writable(&self, iova: Iova, len: usize) -> Option<Piece<'_>> {
        self.piece(iova, len, writable)
    }

    /// Fast path: returns the piece for a range that lies in one window, as almost all ranges do. If this returns
    /// `None`, or the access to the piece fails or loses a page, the caller accesses the range in pieces. Always
    /// returns `None` while accesses are being recorded or replayed.
    #[inline(always)]
    fn in_one_window(
        &self,
        iova: Iova,
        len: usize,
        allowed: impl Fn(Permissions) -> bool,
    ) -> Option<Piece<'_>> {
        if self.sink.is_some() { None } else { self.piece(iova, len, allowed) }
    }

    /// Returns the piece for a non-empty range that lies entirely in one window, or `None` for any other range.
    #[inline(always)]
    fn piece(&self, iova: Iova, len: usize, allowed: impl Fn(Permissions) -> bool) -> Option<Piece<'_>> {
        let found =
            self.map.locate(iova.get()).filter(|found| !self.blocked && allowed(found.permissions))?;
        // `following` counts only the bytes after the one at `iova`.
        if (len as u64).checked_sub(1)? > found.following {
            return None;
        }
        Some(Piece { bytes: found.file.slice(found.offset, len)?, file: found.file, offset: found.offset })
    }

    /// Returns the pieces of a range in order, or `None` if any part of the range is inaccessible. The number of
    /// pieces is bounded by `len` and the page size.
    fn pieces(&self, iova: Iova, len: usize, allowed: impl Fn(Permissions) -> bool) -> Option<Pieces<'_>> {
        if self.blocked {
            return None;
        }
        let mut pieces = SmallVec::new();
        let (mut at, mut rest) = (iova.get(), len);
        while rest > 0 {
            let Location { file, offset, following, .. } =
                self.map.locate(at).filter(|found| allowed(found.permissions))?;
            let here = usize::try_from(following).map_or(rest, |after| rest.min(after.saturating_add(1)));
            pieces.push(Piece { bytes: file.slice(offset, here)?, file, offset });
            rest -= here;
            if rest > 0 {
                at = at.checked_add(following)?.checked_add(1)?;
            }
        }
        Some(pieces)
    }
}

impl Piece<'_> {
    /// Checks whether a page was lost during an access.
    fn check(&self, error: DmaError) -> Result<(), DmaError> {
        if self.file.is_lost() { Err(error) } else { Ok(()) }
    }
}

/// Stores the last byte of an entry after all others, with release order. Returns false if the entry is empty or does
/// not fit.
fn hand_over(to: &VolatileSlice<'_>, entry: &[u8]) -> bool {
    let Some((&owner, body)) = entry.split_last() else { return false };
    to.copy_from(body);
    to.store(owner, body.len(), Ordering::Release).is_ok()
}

fn readable(permissions: Permissions) -> bool {
    permissions.read
}

fn writable(permissions: Permissions) -> bool {
    permissions.write
}

fn check_all(pieces: &[Piece<'_>], error: DmaError) -> Result<(), DmaError> {
    pieces.iter().try_for_each(|piece| piece.check(error))
}
