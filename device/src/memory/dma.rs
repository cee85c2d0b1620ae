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
mod map;
mod mapping;
mod store;
#[cfg(test)]
mod tests;

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use protocol::ids::Iova;
use smallvec::SmallVec;
use thiserror::Error;
use vm_memory::{Bytes, VolatileMemory, VolatileSlice, WriteVolatile as _};

use self::file::MappedFile;
use self::map::{DmaMap, Reach};
use self::store::put;
use super::limits::Limits;
use crate::record::Tape;

/// Granularity of ranges, bytes.
pub const PAGE_LEN: u64 = 4096;

/// A bus address range is not wholly mapped with the needed permission, or the host has no page for some of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("guest memory at {iova} ({len} bytes) is not mapped for {access}")]
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
    #[error("DMA range has an invalid {what}: {value:#x}")]
    Invalid {
        /// Which field.
        what: &'static str,
        /// Its value.
        value: u64,
    },
    /// Some of it is mapped already.
    #[error("DMA range at {iova} overlaps a mapped range")]
    Overlap {
        /// First address of the new range.
        iova: Iova,
    },
    /// The part of the file does not exist.
    #[error(
        "DMA range of {len:#x} bytes at file offset {offset:#x} exceeds the file length of {file_len:#x} bytes"
    )]
    OutsideFile {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
        /// Length of the file.
        file_len: u64,
    },
    /// More ranges than we keep.
    #[error("too many DMA ranges (maximum {0})")]
    TooManyRanges(usize),
    /// More files than we keep.
    #[error("too many guest memory files (maximum {0})")]
    TooManyFiles(usize),
    /// The client's files would take more of our address space than is theirs.
    #[error(
        "a file of {file_len:#x} bytes, with {mapped:#x} bytes already mapped, exceeds the limit of {limit:#x} bytes; raise `guest_memory.max_gib`"
    )]
    TooManyBytes {
        /// Of the new file.
        file_len: u64,
        /// Of files mapped already.
        mapped: u64,
        /// Bytes a client may have mapped.
        limit: u64,
    },
    /// Its pages come from where they may be kept from us.
    #[error("guest memory file is on a file system of type {magic:#x}, expected tmpfs or hugetlbfs")]
    FileSystem {
        /// As `statfs` tells it.
        magic: u64,
    },
    /// The descriptor cannot be mapped.
    #[error("cannot map the file of a DMA range: {0}")]
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
    map: DmaMap,
    blocked: bool,
    /// Of a device that is recorded or replayed.
    tape: Option<Tape>,
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
        Self { map: DmaMap::new(limits), ..Self::default() }
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
        self.map.change().add(first, last, permissions, backing)
    }

    /// Ranges that are mapped.
    pub fn ranges(&self) -> u64 {
        self.map.window_count() as u64
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
        self.map.change().remove(first, last)?;
        if let Some(tape) = &self.tape {
            tape.unmap(iova.get(), len);
        }
        Ok(())
    }

    /// Forgets everything.
    pub fn unmap_all(&mut self) {
        self.map.change().clear();
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
        self.map.window_count()
    }

    /// Whether the host could not give a page of the client's files: one was truncated, its file system is full, or
    /// there is no huge page left. Its client cannot be served any more.
    pub fn is_lost(&self) -> bool {
        self.map.is_lost()
    }

    /// Copies bytes out of guest memory. The range may cross mappings that adjoin.
    ///
    /// # Errors
    /// Some of the range is not mapped readable, or is in a file that is lost; `out` is then unchanged. Or a page is lost
    /// in this access; `out` then has zeros for it.
    #[inline]
    pub fn read(&self, iova: Iova, out: &mut [u8]) -> Result<(), DmaError> {
        if self.at_once(iova, out.len(), readable, |bytes| bytes.copy_to(out) == out.len()) {
            return Ok(());
        }
        self.read_in_pieces(iova, out)
    }

    #[cold]
    fn read_in_pieces(&self, iova: Iova, out: &mut [u8]) -> Result<(), DmaError> {
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
        let pieces = self.pieces(iova, rest.len(), readable).ok_or(error)?;
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
    #[inline]
    pub fn append(&self, iova: Iova, len: usize, out: &mut Vec<u8>) -> Result<(), DmaError> {
        let before = out.len();
        if self.at_once(iova, len, readable, |bytes| out.write_all_volatile(bytes).is_ok()) {
            return Ok(());
        }
        out.truncate(before);
        self.append_in_pieces(iova, len, out)
    }

    #[cold]
    fn append_in_pieces(&self, iova: Iova, len: usize, out: &mut Vec<u8>) -> Result<(), DmaError> {
        let error = DmaError { iova, len, access: "read" };
        match &self.tape {
            None => self.gather(iova, len, out),
            Some(tape) => tape.append(iova.get(), len, out, error, |out| self.gather(iova, len, out)),
        }
    }

    fn gather(&self, iova: Iova, len: usize, out: &mut Vec<u8>) -> Result<(), DmaError> {
        let error = DmaError { iova, len, access: "read" };
        let before = out.len();
        let pieces = self.pieces(iova, len, readable).ok_or(error)?;
        for piece in &pieces {
            out.write_all_volatile(&piece.bytes).map_err(|_| error)?;
        }
        all_there(&pieces, error).inspect_err(|_| out.truncate(before))
    }

    /// Copies bytes into guest memory.
    ///
    /// # Errors
    /// Some of the range is not mapped writable, or is in a file that is lost; then nothing was written. Or a page is lost in
    /// this access; then the rest was.
    #[inline]
    pub fn write(&self, iova: Iova, data: &[u8]) -> Result<(), DmaError> {
        let copy = |bytes: &VolatileSlice<'_>| {
            put(bytes, data);
            true
        };
        if self.at_once(iova, data.len(), writable, copy) {
            return Ok(());
        }
        self.write_in_pieces(iova, data)
    }

    #[cold]
    fn write_in_pieces(&self, iova: Iova, data: &[u8]) -> Result<(), DmaError> {
        let error = DmaError { iova, len: data.len(), access: "write" };
        match &self.tape {
            None => self.copy_in(iova, data),
            Some(tape) => tape.write(iova.get(), data, error, || self.copy_in(iova, data)),
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
        all_there(&pieces, error)
    }

    /// Writes an entry whose last byte hands it to software: all bytes but the last first, then the last with
    /// release order, so that whoever sees the last sees the rest and all earlier writes. `entry` is not empty and
    /// does not cross a page.
    ///
    /// # Errors
    /// As `write`, or the entry is empty or crosses a page.
    #[inline]
    pub fn publish(&self, iova: Iova, entry: &[u8]) -> Result<(), DmaError> {
        if self.at_once(iova, entry.len(), writable, |bytes| hand_over(bytes, entry)) {
            return Ok(());
        }
        self.publish_with_tape(iova, entry)
    }

    #[cold]
    fn publish_with_tape(&self, iova: Iova, entry: &[u8]) -> Result<(), DmaError> {
        let error = DmaError { iova, len: entry.len(), access: "write" };
        let publish = || {
            let slot = self.writable(iova, entry.len()).ok_or(error)?;
            if hand_over(&slot.bytes, entry) { slot.there(error) } else { Err(error) }
        };
        match &self.tape {
            None => publish(),
            Some(tape) => tape.write(iova.get(), entry, error, publish),
        }
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
        let slot = self.writable(iova, 8).ok_or(error)?;
        let word = slot.bytes.get_atomic_ref::<AtomicU64>(0).map_err(|_| error)?;
        let (Ok(before) | Err(before)) = word.fetch_update(Ordering::AcqRel, Ordering::Acquire, update);
        slot.there(error)?;
        Ok(before)
    }

    /// The writable bytes of something inside one page. Ranges are whole pages, so it is inside one of them.
    fn writable(&self, iova: Iova, len: usize) -> Option<Piece<'_>> {
        self.piece(iova, len, writable)
    }

    /// Does an access to a range that is in one window, as almost all are, if there is no tape. False: it is to be done in
    /// pieces, from its beginning, which also finds out why it fails.
    #[inline(always)]
    fn at_once(
        &self,
        iova: Iova,
        len: usize,
        allowed: impl Fn(Permissions) -> bool,
        access: impl FnOnce(&VolatileSlice<'_>) -> bool,
    ) -> bool {
        self.tape.is_none()
            && self
                .piece(iova, len, allowed)
                .is_some_and(|piece| access(&piece.bytes) && !piece.file.is_lost())
    }

    /// All of a range that is not empty, if one window has it, as it does unless the range crosses into another.
    #[inline(always)]
    fn piece(&self, iova: Iova, len: usize, allowed: impl Fn(Permissions) -> bool) -> Option<Piece<'_>> {
        let reach = self.map.reach(iova.get()).filter(|reach| !self.blocked && allowed(reach.permissions))?;
        // The first byte is there, so `behind` are those after it.
        if (len as u64).checked_sub(1)? > reach.behind {
            return None;
        }
        Some(Piece { bytes: reach.file.slice(reach.offset, len)?, file: reach.file })
    }

    /// All of a range, in order, or nothing. The number of pieces is bounded by `len` and the size of a page.
    fn pieces(&self, iova: Iova, len: usize, allowed: impl Fn(Permissions) -> bool) -> Option<Pieces<'_>> {
        if self.blocked {
            return None;
        }
        let mut pieces = SmallVec::new();
        let (mut at, mut rest) = (iova.get(), len);
        while rest > 0 {
            let Reach { file, offset, behind, .. } =
                self.map.reach(at).filter(|reach| allowed(reach.permissions))?;
            let here = usize::try_from(behind).map_or(rest, |behind| rest.min(behind.saturating_add(1)));
            pieces.push(Piece { bytes: file.slice(offset, here)?, file });
            rest -= here;
            if rest > 0 {
                at = at.checked_add(behind)?.checked_add(1)?;
            }
        }
        Some(pieces)
    }
}

impl Piece<'_> {
    /// Says after an access whether it met a page that the host could not give.
    fn there(&self, error: DmaError) -> Result<(), DmaError> {
        if self.file.is_lost() { Err(error) } else { Ok(()) }
    }
}

/// Writes the last byte of an entry behind all others, which whoever sees it sees.
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

/// As [`Piece::there`] of all.
fn all_there(pieces: &[Piece<'_>], error: DmaError) -> Result<(), DmaError> {
    pieces.iter().try_for_each(|piece| piece.there(error))
}
