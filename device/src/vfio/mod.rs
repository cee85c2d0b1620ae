//! The PCI function as a vfio-user client sees it: socket protocol, config space, BARs, interrupts.

pub mod msix;
pub mod pci;
pub mod server;

/// Base address registers a front-end can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bar {
    /// BAR 0 (with BAR 1 as its upper half): registers.
    Bar0,
    /// BAR 2 (with BAR 3 as its upper half): doorbells.
    Bar2,
}

/// What config space says about a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PciIdentity {
    /// Vendor ID.
    pub vendor: u16,
    /// Device ID.
    pub device: u16,
    /// Subsystem vendor ID.
    pub subsystem_vendor: u16,
    /// Subsystem ID.
    pub subsystem: u16,
    /// Revision.
    pub revision: u8,
    /// Class, subclass, programming interface.
    pub class: [u8; 3],
    /// Bytes of the 64-bit memory BAR 0, a power of two.
    pub bar0_len: u64,
    /// Bytes of the 64-bit memory BAR 2, a power of two.
    pub bar2_len: u64,
    /// MSI-X vectors, 1..=2048.
    pub msix_vectors: u16,
    /// Offset of the MSI-X table in BAR 0.
    pub msix_table: u32,
    /// Offset of the MSI-X pending bits in BAR 0.
    pub msix_pba: u32,
}

impl PciIdentity {
    /// Bytes of a BAR.
    pub const fn bar_len(&self, bar: Bar) -> u64 {
        match bar {
            Bar::Bar0 => self.bar0_len,
            Bar::Bar2 => self.bar2_len,
        }
    }
}
