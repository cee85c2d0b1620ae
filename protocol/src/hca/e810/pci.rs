//! PCI identity and BAR layout.
//!
//! # Spec
//! E810 interface, section 1.1.

/// Intel's PCI vendor ID.
pub const VENDOR_ID: u16 = 0x8086;
/// Device ID: E810-C for QSFP. The driver derives the MAC type from this ID.
pub const DEVICE_ID: u16 = 0x1592;
/// Subsystem ID. For some other values, drivers assume a board with a precision clock.
pub const SUBSYSTEM_ID: u16 = 0x0001;
/// PCI revision. Drivers only display it.
pub const REVISION: u8 = 0x02;
/// Class code: Ethernet controller.
pub const CLASS_CODE: [u8; 3] = [0x02, 0x00, 0x00];

/// BAR that contains the device registers.
pub const REGISTERS_BAR: u8 = 0;
/// Length of BAR0 in bytes. The user-space doorbell page is at its end.
pub const BAR0_LEN: u64 = 8 << 20;
/// BAR that contains the MSI-X table and pending bit array.
pub const MSIX_BAR: u8 = 3;
/// Length of BAR3 in bytes.
pub const MSIX_BAR_LEN: u64 = 64 << 10;
/// Offset of the MSI-X table in BAR3.
pub const MSIX_TABLE: u32 = 0;
/// Offset of the MSI-X pending bit array in BAR3.
pub const MSIX_PBA: u32 = 0x8000;
/// Maximum number of vectors in an MSI-X capability.
pub const MAX_MSIX_VECTORS: u16 = 2048;
