//! Guest memory for tests.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::os::fd::OwnedFd;

use protocol::ids::Iova;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

use super::{GuestMemory, Permissions};

/// Returns guest memory with `pages` zeroed pages, readable and writable, starting at `iova`.
pub fn guest_memory(iova: u64, pages: u64) -> GuestMemory {
    let mut memory = GuestMemory::default();
    memory.map_zeros(iova, pages * super::dma::PAGE_LEN);
    memory
}

/// Returns two mappings of the same memory, one for the device and one for a software thread. Each mapping must be used
/// by only one thread.
pub fn shared_memory(iova: u64, pages: u64) -> [GuestMemory; 2] {
    let len = pages * super::dma::PAGE_LEN;
    let fd = zeros(len);
    [fd.try_clone().unwrap(), fd].map(|fd| {
        let mut memory = GuestMemory::default();
        memory.map(Iova::new(iova), len, ALL, Some((fd, 0))).unwrap();
        memory
    })
}

const ALL: Permissions = Permissions { read: true, write: true };

fn zeros(len: u64) -> OwnedFd {
    let fd = memfd_create("guest", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&fd, len).unwrap();
    fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
    fd
}

impl GuestMemory {
    /// Maps zeroed memory, readable and writable. Host memory is allocated only for pages that are touched.
    pub fn map_zeros(&mut self, iova: u64, len: u64) {
        self.map(Iova::new(iova), len, ALL, Some((zeros(len), 0))).unwrap();
    }

    /// Returns the bytes at an address, which must be mapped.
    pub fn peek<const N: usize>(&self, iova: u64) -> [u8; N] {
        let mut bytes = [0; N];
        self.look(iova, &mut bytes);
        bytes
    }

    /// Like [`peek`](Self::peek), but for a length that is known only at run time.
    pub fn look(&self, iova: u64, out: &mut [u8]) {
        self.copy_out(Iova::new(iova), out).unwrap();
    }

    /// Stores bytes at an address, which must be mapped.
    pub fn poke(&self, iova: u64, bytes: &[u8]) {
        self.copy_in(Iova::new(iova), bytes).unwrap();
    }
}
