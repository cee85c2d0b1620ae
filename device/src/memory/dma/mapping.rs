//! Mappings of the client's files, and what becomes of one when the host has no page for it.
//!
//! The client may truncate a file; a page of a sparse file may find its file system full, or no huge page left. The kernel
//! tells of it by SIGBUS in the middle of an access. The handler puts a page of zeros where the page is missing, notes
//! that the mapping is lost, and returns: the access goes on, and its caller learns by [`Mapping::is_lost`] that it is
//! worth nothing. A SIGBUS anywhere else ends the process, as it does without a handler.
//!
//! The handler finds the mapping in a table of the whole process. It takes no lock: the thread that faults is inside an
//! access, which keeps its own mapping, and so that mapping's slot, as it is. Slots that change meanwhile are of others.

use std::io;
use std::os::fd::AsFd;
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use libc::{c_int, c_void, siginfo_t};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use vm_memory::{MmapRegion, VolatileMemory as _, VolatileSlice};
use vmm_sys_util::signal::register_signal_handler;

/// Bound: files that the clients of all devices may have mapped together. Linux allows a process 65,530 mappings, and
/// half of them are for everything else.
const MAX_MAPPINGS: usize = 32_768;

/// A file in our address space, from its first byte on.
#[derive(Debug)]
pub(super) struct Mapping {
    region: MmapRegion,
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
                slot.fill(start.addr(), len, page_len);
                Ok(Self { region, slot })
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
        self.slot.lost.load(Ordering::Relaxed)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // First, so that the address is not another's while the slot has it.
        self.slot.release();
        // SAFETY: made by `new` and not undone since. Slices borrow `self`, so there are none.
        let _ = unsafe { munmap(self.region.as_ptr().cast(), self.region.size()) };
    }
}

/// What the handler knows of a mapping.
#[derive(Debug)]
struct Slot {
    /// First address. [`Slot::FREE`] and [`Slot::CLAIMED`] are no addresses of mappings.
    start: AtomicUsize,
    len: AtomicUsize,
    page_len: AtomicUsize,
    lost: AtomicBool,
}

static SLOTS: [Slot; MAX_MAPPINGS] = [const { Slot::new() }; MAX_MAPPINGS];

impl Slot {
    const FREE: usize = 0;
    const CLAIMED: usize = 1;

    const fn new() -> Self {
        Self {
            start: AtomicUsize::new(Self::FREE),
            len: AtomicUsize::new(0),
            page_len: AtomicUsize::new(0),
            lost: AtomicBool::new(false),
        }
    }

    fn claim() -> Option<&'static Self> {
        SLOTS.iter().find(|slot| {
            slot.start
                .compare_exchange(Self::FREE, Self::CLAIMED, Ordering::SeqCst, Ordering::Relaxed)
                .is_ok()
        })
    }

    fn fill(&self, start: usize, len: usize, page_len: usize) {
        self.len.store(len, Ordering::SeqCst);
        self.page_len.store(page_len, Ordering::SeqCst);
        self.lost.store(false, Ordering::SeqCst);
        self.start.store(start, Ordering::SeqCst);
    }

    fn release(&self) {
        self.start.store(Self::FREE, Ordering::SeqCst);
    }

    /// The first address and the length of the page of this mapping that has the address.
    fn page_of(&self, address: usize) -> Option<(usize, usize)> {
        let start = self.start.load(Ordering::SeqCst);
        let (len, page_len) = (self.len.load(Ordering::SeqCst), self.page_len.load(Ordering::SeqCst));
        // Another thread may have used the slot anew between the loads. If its mapping begins at the same address, all
        // three are that mapping's; else they belong to none.
        let whole = self.start.load(Ordering::SeqCst) == start && start > Self::CLAIMED;
        let within = address.checked_sub(start).filter(|within| whole && *within < len)?;
        Some((address - within % page_len, page_len))
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
    if code > 0 && SLOTS.iter().any(|slot| replace(slot, address)) {
        return;
    }
    // SAFETY: both are system calls a handler may make. The signal waits until this returns, and then ends the process.
    unsafe {
        libc::signal(libc::SIGBUS, libc::SIG_DFL);
        libc::raise(libc::SIGBUS);
    }
}

/// Puts zeros in place of the page that has the address, if it is of this mapping.
fn replace(slot: &Slot, address: usize) -> bool {
    let Some((page, len)) = slot.page_of(address) else { return false };
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
    // SAFETY: the page is inside a mapping of this file's that the access under way keeps in place. All that looks at it
    // are volatile accesses, for which its bytes may change at any time.
    let zeros = unsafe { mmap_anonymous(without_provenance_mut(page), len, protection, flags) };
    if zeros.is_ok() {
        slot.lost.store(true, Ordering::SeqCst);
    }
    zeros.is_ok()
}
