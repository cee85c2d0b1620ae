//! A guest without a VMM: memory and a connection to a device.

use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;

use drivers::Bus;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::{pread, pwrite};
use vfio_bindings::bindings::vfio::VFIO_PCI_CONFIG_REGION_INDEX;
use vfio_user::Client;

/// A guest that can run the drivers in the `drivers` crate.
pub(crate) struct Guest {
    pub(crate) client: Client,
    pub(crate) memory: OwnedFd,
}

impl Guest {
    /// Connects to the device that listens on `socket`, and maps `len` bytes of memory at bus address 0.
    pub(crate) fn attach(socket: &Path, len: u64) -> Self {
        let mut client = Client::new(socket).unwrap();
        let memory = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&memory, len).unwrap();
        client.dma_map(0, 0, len, memory.as_raw_fd()).unwrap();
        Self { client, memory }
    }
}

impl Bus for Guest {
    fn configure(&mut self, offset: u64, bytes: &[u8]) {
        self.client.region_write(VFIO_PCI_CONFIG_REGION_INDEX, offset, bytes).unwrap();
    }

    fn store(&mut self, bar: u8, offset: u64, bytes: &[u8]) {
        self.client.region_write(bar.into(), offset, bytes).unwrap();
    }

    fn load<const LEN: usize>(&mut self, bar: u8, offset: u64) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        self.client.region_read(bar.into(), offset, &mut bytes).unwrap();
        bytes
    }

    fn poke(&mut self, at: u64, bytes: &[u8]) {
        assert_eq!(pwrite(&self.memory, bytes, at), Ok(bytes.len()));
    }

    fn peek(&mut self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        assert_eq!(pread(&self.memory, &mut bytes, at), Ok(len));
        bytes
    }
}
