//! A region that the client may map in part. Stores to the mapped parts do not need a message to the server.

use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd as _;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, Result};
use vfio_user::Region;

#[derive(Debug)]
pub(super) struct MappedRegion {
    base: NonNull<u8>,
    len: usize,
    /// Ranges of offsets that the server lets the client map, in whole pages.
    areas: Vec<Range<u64>>,
}

// SAFETY: the region owns its mapping, and every access to it is atomic.
unsafe impl Send for MappedRegion {}
// SAFETY: as for `Send`.
unsafe impl Sync for MappedRegion {}

impl MappedRegion {
    /// Maps a region. Returns `None` if the server does not share it.
    pub(super) fn new(region: &Region) -> Option<Result<Self>> {
        let file = region.file_offset.as_ref()?;
        let mut areas: Vec<_> = region
            .sparse_areas
            .iter()
            .map(|area| area.offset..area.offset.saturating_add(area.size))
            .collect();
        if areas.is_empty() {
            areas.push(0..region.size);
        }
        let map = || -> Result<Self> {
            let (len, start) = (usize::try_from(region.size)?, libc::off_t::try_from(file.start())?);
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            // SAFETY: a new mapping does not affect existing memory.
            let base = unsafe {
                libc::mmap(
                    std::ptr::null_mut(),
                    len,
                    protection,
                    libc::MAP_SHARED,
                    file.file().as_raw_fd(),
                    start,
                )
            };
            if base == libc::MAP_FAILED {
                return Err(io::Error::last_os_error().into());
            }
            let base = NonNull::new(base.cast()).context("mmap returned address zero")?;
            Ok(Self { base, len, areas })
        };
        Some(map().context("cannot map a region"))
    }

    /// Stores eight bytes atomically. Returns `false` if they are not aligned or not inside a mapped area; the caller
    /// must then send a message instead.
    pub(super) fn store(&self, offset: u64, bytes: [u8; 8]) -> bool {
        let is_shared = |area: &Range<u64>| area.contains(&offset) && area.end - offset >= 8;
        let Ok(at) = usize::try_from(offset) else { return false };
        let is_inside = at.is_multiple_of(8) && self.len.checked_sub(8).is_some_and(|last| at <= last);
        if !is_inside || !self.areas.iter().any(is_shared) {
            return false;
        }
        // SAFETY: the word is aligned and inside the mapping, and both sides access it atomically.
        let word = unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(at).cast()) };
        word.store(u64::from_ne_bytes(bytes), Ordering::Release);
        true
    }
}

impl Drop for MappedRegion {
    fn drop(&mut self) {
        // SAFETY: the range is the mapping created in `new`, and no reference into it exists.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}
