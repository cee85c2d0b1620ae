//! Guest memory for tests.

use protocol::ids::Iova;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

use super::{GuestMemory, Permissions};

/// `pages` pages of zeros, readable and writable, from `iova` on.
pub(crate) fn guest_memory(iova: u64, pages: u64) -> GuestMemory {
    let mut memory = GuestMemory::default();
    memory.lend(iova, pages * super::dma::PAGE_LEN);
    memory
}

impl GuestMemory {
    /// Maps zeros, readable and writable. They take memory where they are touched only.
    pub(crate) fn lend(&mut self, iova: u64, len: u64) {
        let fd = memfd_create("guest", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&fd, len).unwrap();
        fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
        let all = Permissions { read: true, write: true };
        self.map(Iova::new(iova), len, all, Some((fd, 0))).unwrap();
    }

    /// The bytes at an address, which must be there.
    pub(crate) fn peek<const N: usize>(&self, iova: u64) -> [u8; N] {
        let mut bytes = [0; N];
        self.look(iova, &mut bytes);
        bytes
    }

    /// The same, of any length. The guest looks, and not the device.
    pub(crate) fn look(&self, iova: u64, out: &mut [u8]) {
        self.copy_out(Iova::new(iova), out).unwrap();
    }

    /// Puts bytes at an address, which must be there.
    pub(crate) fn poke(&self, iova: u64, bytes: &[u8]) {
        self.copy_in(Iova::new(iova), bytes).unwrap();
    }
}
