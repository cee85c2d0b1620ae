//! Identity and BARs of the PCI function.
//!
//! # Spec
//! mthca interface, sections 1.2 and 1.3.

/// Vendor ID.
pub const VENDOR_ID: u16 = 0x15b3;
/// Device ID: one port, no memory of its own.
pub const DEVICE_ID: u16 = 0x6274;
/// Revision; software does not look at it.
pub const REVISION: u8 = 0x20;
/// Class code: InfiniBand controller.
pub const CLASS_CODE: [u8; 3] = [0x0c, 0x06, 0x00];

/// Bytes of BAR0: the driver refuses any other length.
pub const BAR0_LEN: u64 = 1 << 20;
/// Bytes of BAR2: 2048 UAR pages.
pub const BAR2_LEN: u64 = 8 << 20;

/// MSI-X vectors; the driver takes the first three.
pub const MSIX_VECTORS: u16 = 32;
/// Offset of the MSI-X table in BAR0.
pub const MSIX_TABLE: u32 = 0x8_2000;
/// Offset of the MSI-X pending bits in BAR0.
pub const MSIX_PBA: u32 = 0x8_2200;
