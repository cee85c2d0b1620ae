//! PCI identity and BAR layout.
//!
//! # Spec
//! mthca interface, sections 1.2 and 1.3.

/// PCI vendor ID of the device.
pub const VENDOR_ID: u16 = 0x15b3;
/// Device ID of the variant with one port and no local memory.
pub const DEVICE_ID: u16 = 0x6274;
/// PCI revision ID; drivers do not check it.
pub const REVISION: u8 = 0x20;
/// Class code: InfiniBand controller.
pub const CLASS_CODE: [u8; 3] = [0x0c, 0x06, 0x00];

/// Length of BAR0 in bytes. The driver rejects any other length.
pub const BAR0_LEN: u64 = 1 << 20;
/// Length of BAR2 in bytes: 2048 UAR pages.
pub const BAR2_LEN: u64 = 8 << 20;

/// Number of MSI-X vectors; the driver uses the first three.
pub const MSIX_VECTORS: u16 = 32;
/// Offset of the MSI-X table in BAR0.
pub const MSIX_TABLE: u32 = 0x8_2000;
/// Offset of the MSI-X pending bit array in BAR0.
pub const MSIX_PBA: u32 = 0x8_2200;
