//! The memory mapped for the device. It is mapped once, at bus addresses that differ from its virtual addresses.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering, fence};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use super::device::Device;
use crate::alloc::Units;
use crate::error::bad_step;

/// Size of a page in bytes.
pub(crate) const PAGE: usize = 4096;

/// First bus address. It is above 4 GiB, so that truncated addresses are detected, and far from the MSI window.
const IOVA: u64 = 0x1_4000_0000;
/// Alignment of the arena, both in the process and on the bus.
const ALIGN: usize = 2 << 20;

/// Memory shared with the device. The device may write any part of it at any time, so no Rust references into it exist.
/// Data is copied, and words that both sides poll are accessed atomically.
#[derive(Debug)]
pub(crate) struct Arena {
    base: NonNull<u8>,
    len: usize,
    pages: Units,
    map_time: Duration,
}

// SAFETY: the arena owns its mapping, and every access to it is atomic or a copy.
unsafe impl Send for Arena {}

impl Arena {
    pub(crate) fn new(device: &Device, len: usize, huge_pages: bool) -> Result<Self> {
        let len = len.next_multiple_of(ALIGN);
        let file = if device.wants_file() {
            Some(memory_file(len + ALIGN).context("cannot create a file for the device's memory")?)
        } else {
            None
        };
        let (base, skipped) =
            reserve(len, huge_pages, file.as_ref()).context("cannot allocate memory for the device")?;
        let pages = Units::new(0..u32::try_from(len / PAGE)?);
        let started = Instant::now();
        let mut arena = Self { base, len, pages, map_time: Duration::ZERO };
        let vaddr = arena.base.as_ptr().addr() as u64;
        let place = file.as_ref().map(|file| (file, skipped as u64));
        device
            .map_dma(vaddr, place, IOVA, len as u64)
            .with_context(|| format!("cannot map {len:#x} bytes for the device"))?;
        arena.map_time = started.elapsed();
        Ok(arena)
    }

    /// Creates an arena that is not mapped for any device.
    #[cfg(test)]
    pub(crate) fn detached(len: usize) -> Self {
        let (base, _) = reserve(len, false, None).unwrap();
        let pages = Units::new(0..u32::try_from(len / PAGE).unwrap());
        Self { base, len, pages, map_time: Duration::ZERO }
    }

    pub(crate) const fn map_time(&self) -> Duration {
        self.map_time
    }

    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Returns the bus address of the byte at `offset`.
    pub(crate) const fn iova(&self, offset: usize) -> u64 {
        IOVA + offset as u64
    }

    /// Allocates `count` consecutive pages whose first bus address is a multiple of `align` bytes. Returns the offset
    /// of the first page.
    pub(crate) fn alloc(&mut self, count: usize, align: usize) -> Result<usize> {
        ensure!(align <= ALIGN, bad_step(format!("the arena is not aligned to {align:#x} bytes")));
        let align = align.div_ceil(PAGE);
        let first = u32::try_from(count)
            .ok()
            .and_then(|count| self.pages.alloc(count, u32::try_from(align).ok()?))
            .ok_or_else(|| {
                bad_step(format!(
                    "{count} free pages requested, but the arena of {} MiB is full",
                    self.len >> 20
                ))
            })?;
        let offset = first as usize * PAGE;
        self.set(offset, 0, count * PAGE);
        Ok(offset)
    }

    /// Frees pages returned by [`Arena::alloc`].
    pub(crate) fn free(&mut self, offset: usize, count: usize) {
        let unit = |n| u32::try_from(n).expect("offsets come from alloc, whose units are 32 bits wide");
        self.pages.free(unit(offset / PAGE), unit(count));
    }

    pub(crate) fn free_all(&mut self) -> Result<()> {
        self.pages = Units::new(0..u32::try_from(self.len / PAGE)?);
        Ok(())
    }

    pub(crate) fn read(&self, offset: usize, into: &mut [u8]) {
        let from = self.at(offset, into.len());
        // SAFETY: the source is inside the mapping, and the destination is a slice outside it. If the device writes
        // concurrently, either old or new bytes are copied. Callers accept both.
        unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) };
    }

    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) {
        let to = self.at(offset, bytes.len());
        // SAFETY: as in `read`, with source and destination exchanged.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }

    pub(crate) fn set(&self, offset: usize, value: u8, len: usize) {
        let to = self.at(offset, len);
        // SAFETY: the range is inside the mapping.
        unsafe { to.write_bytes(value, len) };
    }

    /// Stores a little-endian word with release ordering. A device that sees the word also sees all earlier writes.
    pub(crate) fn store_word(&self, offset: usize, value: u32) {
        assert!(offset.is_multiple_of(4), "word at {offset:#x} is not aligned");
        let at = self.at(offset, 4).cast::<u32>();
        // SAFETY: the word is aligned and inside the mapping, and this process accesses it only through atomics or
        // copies.
        unsafe { AtomicU32::from_ptr(at) }.store(value.to_le(), Ordering::Release);
    }

    /// Like [`Arena::store_word`], but also orders the store before the doorbell that follows.
    pub(crate) fn publish_word(&self, offset: usize, value: u32) {
        self.store_word(offset, value);
        // The doorbell that follows is a store to uncached memory. Order it after this store, as a driver does.
        fence(Ordering::SeqCst);
    }

    /// Reads an owner byte with acquire ordering. The device's earlier writes are visible afterwards.
    pub(crate) fn observe_byte(&self, offset: usize) -> u8 {
        let at = self.at(offset, 1);
        // SAFETY: the byte is inside the mapping, and bytes are always aligned.
        unsafe { AtomicU8::from_ptr(at) }.load(Ordering::Acquire)
    }

    /// Stores an owner byte with release ordering, so that all earlier reads and writes complete first.
    pub(crate) fn publish_byte(&self, offset: usize, value: u8) {
        let at = self.at(offset, 1);
        // SAFETY: the byte is inside the mapping, and bytes are always aligned.
        unsafe { AtomicU8::from_ptr(at) }.store(value, Ordering::Release);
    }

    fn at(&self, offset: usize, len: usize) -> *mut u8 {
        let fits = self.len.checked_sub(len).is_some_and(|last| offset <= last);
        assert!(fits, "{len} bytes at {offset:#x} are outside the arena of {:#x} bytes", self.len);
        // SAFETY: the offset was just checked to be inside the mapping.
        unsafe { self.base.as_ptr().add(offset) }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: the range is the mapping created in `reserve`, and no reference into it exists.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

fn memory_file(len: usize) -> io::Result<File> {
    // SAFETY: the name is a C string. The returned descriptor is checked, and the `File` becomes its only owner.
    let file = unsafe {
        let fd = libc::memfd_create(c"arena".as_ptr(), libc::MFD_CLOEXEC);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        File::from_raw_fd(fd)
    };
    file.set_len(len as u64)?;
    Ok(file)
}

/// Reserves `len` bytes of memory aligned to [`ALIGN`], either anonymous or from a file whose length is `len` plus
/// [`ALIGN`]. Also returns the memory's offset in the file.
fn reserve(len: usize, huge_pages: bool, file: Option<&File>) -> io::Result<(NonNull<u8>, usize)> {
    let advice = if huge_pages { libc::MADV_HUGEPAGE } else { libc::MADV_NOHUGEPAGE };
    let (sharing, fd) = match file {
        Some(file) => (libc::MAP_SHARED, file.as_raw_fd()),
        None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1),
    };
    // SAFETY: a new mapping does not affect existing memory. The parts that are unmapped lie inside the new mapping, of
    // which only the aligned part is kept.
    unsafe {
        let raw =
            libc::mmap(std::ptr::null_mut(), len + ALIGN, libc::PROT_READ | libc::PROT_WRITE, sharing, fd, 0);
        if raw == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let skip = raw.addr().next_multiple_of(ALIGN) - raw.addr();
        let base = raw.byte_add(skip);
        if skip > 0 {
            libc::munmap(raw, skip);
        }
        if skip < ALIGN {
            libc::munmap(base.byte_add(len), ALIGN - skip);
        }
        // If the kernel does not support huge pages, the call fails, which affects only performance.
        libc::madvise(base, len, advice);
        let base = NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mmap returned address zero"))?;
        Ok((base, skip))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fresh_pages_are_zero_and_writes_persist() {
        let mut arena = Arena::detached(ALIGN);
        let first = arena.alloc(2, PAGE).unwrap();
        arena.write(first + PAGE - 2, &[1, 2, 3, 4]);
        let mut bytes = [0; 6];
        arena.read(first + PAGE - 3, &mut bytes);
        assert_eq!(bytes, [0, 1, 2, 3, 4, 0]);
        arena.free(first, 2);
        let again = arena.alloc(2, PAGE).unwrap();
        arena.read(again + PAGE - 3, &mut bytes);
        assert_eq!(bytes, [0; 6]);
    }

    #[test]
    #[should_panic(expected = "outside the arena")]
    fn access_past_end_is_rejected() {
        let arena = Arena::detached(ALIGN);
        arena.write(ALIGN - 1, &[0, 0]);
    }
}
