//! Mappings of the client's files, and what becomes of one when the host has no page for it.
//!
//! The client may truncate a file; a page of a sparse file may find its file system full, or no huge page left. The kernel
//! reports it by SIGBUS in the middle of an access. At the first one the handler replaces the whole mapping by zeros, marks it
//! as lost, and returns: the access goes on without another fault, its caller learns by [`Mapping::is_lost`] that it is worth
//! nothing, and no access is made to that mapping afterwards. A mapping stays one mapping, so that clients cannot exceed what
//! the kernel allows a process (`vm.max_map_count`). A SIGBUS anywhere else ends the process, as it does without a handler.
//!
//! The handler finds the mapping in a table of the whole process. It takes no lock: the thread that faults is inside an
//! access, which keeps its own mapping, and so that mapping's slot, as it is. Slots that change meanwhile are of others.

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

/// Bound: files that the clients of all devices may have mapped together. Linux allows a process 65,530 mappings, and
/// half of them are for everything else.
const MAX_MAPPINGS: usize = 32_768;

/// Bound: times that one mapping is replaced. Once is enough for a thread; more are of threads that meet the loss at the same
/// moment, or of a host without a single page for the zeros either.
const MAX_LOSSES: usize = 16;

/// Bound: bytes whose pages are released by one system call. Each holds the lock of the address space, for which other
/// devices may wait to map memory: 2 to 4 ms where all of these pages are in use.
const RELEASE_LEN: usize = 64 << 20;

/// A file in our address space, from its first byte on.
#[derive(Debug)]
pub(super) struct Mapping {
    region: MmapRegion,
    page_len: usize,
    slot: &'static Slot,
}

impl Mapping {
    /// Maps `len` bytes of a file whose pages have `page_len` bytes.
    pub(super) fn new(file: impl AsFd, len: usize, page_len: usize, writable: bool) -> io::Result<Self> {
        watch_for_lost_pages()?;
        let slot = Slot::claim().ok_or(io::Error::from_raw_os_error(libc::ENOSPC))?;
        let mut protection = ProtFlags::READ;
        protection.set(ProtFlags::WRITE, writable);
        // Huge pages are not reserved: the client has done that for those it lends, and not for the others.
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address that the kernel chooses takes nothing from anybody.
        let start = match unsafe { mmap(null_mut(), len, protection, flags, file, 0) } {
            Ok(start) => start,
            Err(error) => {
                slot.release();
                return Err(error.into());
            }
        };
        let (raw_protection, raw_flags) = (protection.bits().cast_signed(), flags.bits().cast_signed());
        // SAFETY: these bytes were mapped just now, and stay so for as long as the region lives: see `drop`.
        match unsafe { MmapRegion::build_raw(start.cast(), len, raw_protection, raw_flags) } {
            Ok(region) => {
                slot.fill(start.addr(), len);
                Ok(Self { region, page_len, slot })
            }
            Err(error) => {
                slot.release();
                // SAFETY: nobody has seen the mapping.
                let _ = unsafe { munmap(start, len) };
                Err(io::Error::other(error))
            }
        }
    }

    /// Bytes that are mapped.
    pub(super) fn len(&self) -> usize {
        self.region.size()
    }

    /// Some of the bytes, if they are all there.
    #[inline]
    pub(super) fn slice(&self, offset: usize, len: usize) -> Option<VolatileSlice<'_>> {
        self.region.get_slice(offset, len).ok()
    }

    /// Whether the host had no page for an access. What such an access read is zeros, what it wrote went nowhere.
    #[inline]
    pub(super) fn is_lost(&self) -> bool {
        // The handler ran on this very thread.
        self.slot.losses.load(Ordering::Relaxed) != 0
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // First, so that the address is not another's while the slot has it.
        self.slot.release();
        let start: *mut c_void = self.region.as_ptr().cast();
        let mut done = 0;
        while done < self.region.size() {
            // A huge page is unmapped whole or not at all; both lengths are powers of two.
            let len = RELEASE_LEN.max(self.page_len).min(self.region.size() - done);
            // SAFETY: made by `new` and not undone since. Slices borrow `self`, so there are none.
            let _ = unsafe { munmap(start.wrapping_byte_add(done), len) };
            done += len;
        }
    }
}

/// What the handler knows of a mapping.
#[derive(Debug)]
struct Slot {
    /// First address. [`Slot::FREE`] and [`Slot::CLAIMED`] are no addresses of mappings.
    start: AtomicUsize,
    len: AtomicUsize,
    /// Mappings that the slot has had.
    generation: AtomicUsize,
    /// Times that the handler has replaced it.
    losses: AtomicUsize,
}

static SLOTS: [Slot; MAX_MAPPINGS] = [const { Slot::new() }; MAX_MAPPINGS];

/// Slots from this one on have never been used: as mappings take the first free slot, there are about as many before it as
/// there ever were mappings at once.
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
            // A load leaves the slot in the caches of other threads.
            slot.start.load(Ordering::Relaxed) == Self::FREE
                && slot
                    .start
                    .compare_exchange(Self::FREE, Self::CLAIMED, Ordering::SeqCst, Ordering::Relaxed)
                    .is_ok()
        })?;
        UNUSED_FROM.fetch_max(index + 1, Ordering::SeqCst);
        Some(slot)
    }

    /// Slots that may have a mapping.
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

    /// First address and length of the mapping, if it has the address.
    fn mapping_with(&self, address: usize) -> Option<(usize, usize)> {
        let generation = self.generation.load(Ordering::SeqCst);
        let (start, len) = (self.start.load(Ordering::SeqCst), self.len.load(Ordering::SeqCst));
        // Another thread may have used the slot anew between the loads, but not that of the mapping in question.
        let is_one = self.generation.load(Ordering::SeqCst) == generation && start > Self::CLAIMED;
        address.checked_sub(start).filter(|within| is_one && *within < len)?;
        Some((start, len))
    }
}

/// Puts the handler in place.
fn watch_for_lost_pages() -> io::Result<()> {
    static DONE: OnceLock<Result<(), i32>> = OnceLock::new();
    DONE.get_or_init(|| register_signal_handler(libc::SIGBUS, on_sigbus).map_err(|error| error.errno()))
        .map_err(io::Error::from_raw_os_error)
}

/// Only does what a signal handler may: loads and stores of atomics, and system calls that leave `errno` alone.
extern "C" fn on_sigbus(_: c_int, info: *mut siginfo_t, _: *mut c_void) {
    // SAFETY: the kernel gives every SIGBUS handler that was registered with SA_SIGINFO the description of its signal.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr().addr()) };
    // What is not above 0 was sent by a process, not by a page fault.
    if code > 0 && Slot::used().iter().any(|slot| replace(slot, address)) {
        return;
    }
    // SAFETY: both are system calls a handler may make. The signal waits until this returns, and then ends the process.
    unsafe {
        libc::signal(libc::SIGBUS, libc::SIG_DFL);
        libc::raise(libc::SIGBUS);
    }
}

/// Puts zeros in place of the mapping of a slot, if it has the address.
fn replace(slot: &Slot, address: usize) -> bool {
    let Some((start, len)) = slot.mapping_with(address) else { return false };
    if slot.losses.fetch_add(1, Ordering::SeqCst) >= MAX_LOSSES {
        return false;
    }
    let at: *mut c_void = without_provenance_mut(start);
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    let fixed = MapFlags::FIXED | MapFlags::NORESERVE;
    // SAFETY: this is one whole mapping of this file's, which the access under way keeps in place. All that looks at it are
    // volatile accesses, for which its bytes may change at any time.
    unsafe {
        // In pieces, so that little is left for the call that replaces them all, during which nobody else can map memory.
        // It does no harm that a huge page longer than a piece stays.
        for done in (0..len).step_by(RELEASE_LEN) {
            let _ = madvise(at.wrapping_byte_add(done), RELEASE_LEN.min(len - done), Advice::LinuxDontNeed);
        }
        mmap_anonymous(at, len, protection, MapFlags::PRIVATE | fixed).is_ok() || put_file(at, len).is_ok()
    }
}

/// Puts a file of zeros in place of a mapping. Where the host counts memory by what is mapped (`vm.overcommit_memory=2`) there
/// may be no room for so much private memory; of a shared file only the pages that are touched count.
///
/// # Safety
/// As for a mapping at a fixed address: nothing else than the mapping is there.
unsafe fn put_file(at: *mut c_void, len: usize) -> rustix::io::Result<()> {
    let zeros = memfd_create(c"hcad-lost", MemfdFlags::CLOEXEC)?;
    ftruncate(&zeros, len as u64)?;
    let flags = MapFlags::SHARED | MapFlags::FIXED | MapFlags::NORESERVE;
    // SAFETY: the caller's.
    unsafe { mmap(at, len, ProtFlags::READ | ProtFlags::WRITE, flags, zeros, 0) }.map(drop)
}

#[cfg(test)]
mod tests {
    use vm_memory::Bytes as _;

    use super::*;

    #[test]
    fn file_of_zeros_replaces_mapping() {
        let file = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 0x3000).unwrap();
        let mapping = Mapping::new(&file, 0x3000, 0x1000, true).unwrap();
        let bytes = mapping.slice(0x1000, 16).unwrap();
        bytes.write_slice(&[1; 16], 0).unwrap();
        // SAFETY: the mapping is this test's, and all of it is replaced.
        unsafe { put_file(mapping.region.as_ptr().cast(), 0x3000) }.unwrap();
        let mut found = [7; 16];
        bytes.read_slice(&mut found, 0).unwrap();
        assert_eq!(found, [0; 16]);
        bytes.write_slice(&[2; 16], 0).unwrap();
        rustix::io::pread(&file, &mut found, 0x1000).unwrap();
        assert_eq!(found, [1; 16], "the client's file");
    }
}
