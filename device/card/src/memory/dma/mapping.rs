//! Mappings of the client's files and the handling of lost pages.
//!
//! The client may truncate a file. When a page of a sparse file is touched for the first time, the file system may be
//! full, or no huge page may be left. In each of these cases, the kernel raises SIGBUS during an access. At the first
//! SIGBUS, the handler replaces the whole mapping with zeros, marks it as lost, and returns. The access then continues
//! without another fault. Its caller checks [`Mapping::is_lost`] and discards the result, and the mapping is never
//! accessed again. The kernel still counts the replaced mapping as a single mapping, which keeps clients within the
//! per-process limit (`vm.max_map_count`). A SIGBUS anywhere else kills the process, as it would without a handler.
//!
//! The handler finds the mapping in a process-wide table, without a lock. The faulting thread is inside an access,
//! which keeps its mapping alive and the mapping's slot unchanged. Slots that change in the meantime belong to other
//! mappings.

use std::io;
use std::os::fd::AsFd;
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use libc::{c_int, c_void, siginfo_t};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use vm_memory::{MmapRegion, VolatileMemory as _, VolatileSlice};
use vmm_sys_util::signal::register_signal_handler;

/// Maximum number of files that can be mapped at the same time, across the clients of all devices. Linux permits 65,530
/// mappings per process, and half of them are left for other purposes.
const MAX_MAPPINGS: usize = 32_768;

/// Maximum number of times that one mapping is replaced. A single thread triggers only one replacement. Further
/// replacements occur only if several threads access lost pages concurrently or if the host cannot provide pages for
/// the zeros either.
const MAX_LOSSES: usize = 16;

/// Maximum number of bytes that one system call releases. Each call holds the address space lock for 2 to 4 ms if every
/// page that it releases is in use. Meanwhile, other devices may be waiting to map memory.
const RELEASE_LEN: usize = 64 << 20;

/// A file mapped from its first byte.
#[derive(Debug)]
pub(super) struct Mapping {
    region: MmapRegion,
    page_len: usize,
    slot: &'static Slot,
}

impl Mapping {
    /// Maps `len` bytes of a file with pages of `page_len` bytes.
    pub(super) fn new(file: impl AsFd, len: usize, page_len: usize, writable: bool) -> io::Result<Self> {
        watch_for_lost_pages()?;
        let slot = Slot::claim().ok_or(io::Error::from_raw_os_error(libc::ENOSPC))?;
        let mut protection = ProtFlags::READ;
        protection.set(ProtFlags::WRITE, writable);
        // Huge pages are not reserved here. The client has reserved them only for the ranges that it maps, and
        // reserving them for the whole file could fail.
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: the kernel chooses the address, and the new mapping does not affect other memory.
        let start = match unsafe { mmap(null_mut(), len, protection, flags, file, 0) } {
            Ok(start) => start,
            Err(error) => {
                slot.release();
                return Err(error.into());
            }
        };
        let (raw_protection, raw_flags) = (protection.bits().cast_signed(), flags.bits().cast_signed());
        // SAFETY: these bytes were just mapped, and stay mapped until the region is dropped (see `drop`).
        match unsafe { MmapRegion::build_raw(start.cast(), len, raw_protection, raw_flags) } {
            Ok(region) => {
                slot.fill(start.addr(), len);
                Ok(Self { region, page_len, slot })
            }
            Err(error) => {
                slot.release();
                // SAFETY: the mapping is new, and no other code has a reference to it.
                let _ = unsafe { munmap(start, len) };
                Err(io::Error::other(error))
            }
        }
    }

    pub(super) fn len(&self) -> usize {
        self.region.size()
    }

    /// Returns a part of the mapping, or `None` if the part exceeds the mapping.
    #[inline]
    pub(super) fn slice(&self, offset: usize, len: usize) -> Option<VolatileSlice<'_>> {
        self.region.get_slice(offset, len).ok()
    }

    /// Returns whether the host has failed to provide a page. The failing access read zeros, and its writes were
    /// discarded.
    #[inline]
    pub(super) fn is_lost(&self) -> bool {
        // Relaxed ordering suffices because the handler ran on this thread.
        self.slot.losses.load(Ordering::Relaxed) != 0
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // Release the slot first so that the address cannot be reused while the slot still contains it.
        self.slot.release();
        let start: *mut c_void = self.region.as_ptr().cast();
        let mut done = 0;
        while done < self.region.size() {
            // A huge page can only be unmapped as a whole. Each piece consists of whole pages, because it is at least
            // one page long and both `RELEASE_LEN` and `page_len` are powers of two.
            let len = RELEASE_LEN.max(self.page_len).min(self.region.size() - done);
            // SAFETY: the bytes were mapped by `new` and have not been unmapped since. No slices exist, as they borrow
            // `self`.
            let _ = unsafe { munmap(start.wrapping_byte_add(done), len) };
            done += len;
        }
    }
}

/// A mapping as the handler sees it.
#[derive(Debug)]
struct Slot {
    /// First address. [`Slot::FREE`] and [`Slot::CLAIMED`] are not addresses of mappings.
    start: AtomicUsize,
    len: AtomicUsize,
    /// Number of mappings that have used the slot.
    generation: AtomicUsize,
    /// Number of times the handler has replaced the mapping.
    losses: AtomicUsize,
}

static SLOTS: [Slot; MAX_MAPPINGS] = [const { Slot::new() }; MAX_MAPPINGS];

/// Index of the first slot that has never been used. Since each mapping takes the first free slot, this index is about
/// the peak number of mappings.
static UNUSED_FROM: AtomicUsize = AtomicUsize::new(0);

impl Slot {
    const FREE: usize = 0;
    const CLAIMED: usize = 1;

    const fn new() -> Self {
        Self {
            start: AtomicUsize::new(Self::FREE),
            len: AtomicUsize::new(0),
            generation: AtomicUsize::new(0),
            losses: AtomicUsize::new(0),
        }
    }

    fn claim() -> Option<&'static Self> {
        let (index, slot) = SLOTS.iter().enumerate().find(|(_, slot)| {
            // Load before the exchange, since a load does not take the cache line away from other threads.
            slot.start.load(Ordering::Relaxed) == Self::FREE
                && slot
                    .start
                    .compare_exchange(Self::FREE, Self::CLAIMED, Ordering::SeqCst, Ordering::Relaxed)
                    .is_ok()
        })?;
        UNUSED_FROM.fetch_max(index + 1, Ordering::SeqCst);
        Some(slot)
    }

    /// Returns the slots that may hold a mapping.
    fn used() -> &'static [Self] {
        SLOTS.get(..UNUSED_FROM.load(Ordering::SeqCst)).unwrap_or(&SLOTS)
    }

    fn fill(&self, start: usize, len: usize) {
        self.generation.fetch_add(1, Ordering::SeqCst);
        self.len.store(len, Ordering::SeqCst);
        self.losses.store(0, Ordering::SeqCst);
        self.start.store(start, Ordering::SeqCst);
    }

    fn release(&self) {
        self.start.store(Self::FREE, Ordering::SeqCst);
    }

    /// Returns the start address and the length of the slot's mapping if the mapping contains `address`.
    fn mapping_with(&self, address: usize) -> Option<(usize, usize)> {
        let generation = self.generation.load(Ordering::SeqCst);
        let (start, len) = (self.start.load(Ordering::SeqCst), self.len.load(Ordering::SeqCst));
        // If the generation has changed, another thread has reused this slot between the loads, and the values may
        // not belong together. The slot can be skipped: the slot of the faulting mapping cannot be reused.
        let is_one = self.generation.load(Ordering::SeqCst) == generation && start > Self::CLAIMED;
        address.checked_sub(start).filter(|within| is_one && *within < len)?;
        Some((start, len))
    }
}

/// Installs the SIGBUS handler.
fn watch_for_lost_pages() -> io::Result<()> {
    static DONE: OnceLock<Result<(), i32>> = OnceLock::new();
    DONE.get_or_init(|| register_signal_handler(libc::SIGBUS, on_sigbus).map_err(|error| error.errno()))
        .map_err(io::Error::from_raw_os_error)
}

/// Handles SIGBUS. The handler is async-signal-safe, since it uses only atomic accesses and system calls that do not
/// change `errno`.
extern "C" fn on_sigbus(_: c_int, info: *mut siginfo_t, _: *mut c_void) {
    // SAFETY: the kernel passes a valid siginfo to every handler registered with SA_SIGINFO.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr().addr()) };
    // A code of 0 or less means that the signal was sent by a process rather than caused by a page fault.
    if code > 0 && Slot::used().iter().any(|slot| replace(slot, address)) {
        return;
    }
    // SAFETY: both calls are async-signal-safe. The signal stays pending until this handler returns, and then
    // kills the process.
    unsafe {
        libc::signal(libc::SIGBUS, libc::SIG_DFL);
        libc::raise(libc::SIGBUS);
    }
}

/// Replaces the mapping of a slot with zeros, if the mapping contains the address. Returns whether it was replaced.
fn replace(slot: &Slot, address: usize) -> bool {
    let Some((start, len)) = slot.mapping_with(address) else { return false };
    if slot.losses.fetch_add(1, Ordering::SeqCst) >= MAX_LOSSES {
        return false;
    }
    let at: *mut c_void = without_provenance_mut(start);
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    let fixed = MapFlags::FIXED | MapFlags::NORESERVE;
    // SAFETY: this is one entire mapping of this module, which the ongoing access keeps in place. Its bytes are
    // accessed only through volatile operations and may change at any time.
    unsafe {
        // Release the pages in pieces first to shorten the call below, during which other threads cannot map memory. A
        // huge page that is longer than a piece is not released early, which is harmless.
        for done in (0..len).step_by(RELEASE_LEN) {
            let _ = madvise(at.wrapping_byte_add(done), RELEASE_LEN.min(len - done), Advice::LinuxDontNeed);
        }
        mmap_anonymous(at, len, protection, MapFlags::PRIVATE | fixed).is_ok() || put_file(at, len).is_ok()
    }
}

/// Replaces a mapping with a file of zeros. If the host limits committed memory (`vm.overcommit_memory=2`), the
/// kernel may refuse a private mapping of this length. For a shared file, the kernel counts only the pages that
/// are touched.
///
/// # Safety
/// The range must consist of exactly one mapping of this module, which the file replaces at the same address.
unsafe fn put_file(at: *mut c_void, len: usize) -> rustix::io::Result<()> {
    let zeros = memfd_create(c"hcad-lost", MemfdFlags::CLOEXEC)?;
    ftruncate(&zeros, len as u64)?;
    let flags = MapFlags::SHARED | MapFlags::FIXED | MapFlags::NORESERVE;
    // SAFETY: ensured by the caller.
    unsafe { mmap(at, len, ProtFlags::READ | ProtFlags::WRITE, flags, zeros, 0) }.map(drop)
}

#[cfg(test)]
mod tests {
    use vm_memory::Bytes as _;

    use super::*;

    #[test]
    fn zeros_replace_mapping_without_changing_client_file() {
        let file = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 0x3000).unwrap();
        let mapping = Mapping::new(&file, 0x3000, 0x1000, true).unwrap();
        let bytes = mapping.slice(0x1000, 16).unwrap();
        bytes.write_slice(&[1; 16], 0).unwrap();
        // SAFETY: the mapping belongs to this test and is replaced entirely.
        unsafe { put_file(mapping.region.as_ptr().cast(), 0x3000) }.unwrap();
        let mut found = [7; 16];
        bytes.read_slice(&mut found, 0).unwrap();
        assert_eq!(found, [0; 16]);
        bytes.write_slice(&[2; 16], 0).unwrap();
        rustix::io::pread(&file, &mut found, 0x1000).unwrap();
        assert_eq!(found, [1; 16], "the client's file is unchanged");
    }
}
