//! Identity and BARs of the PCI function.
//!
//! # Spec
//! JingZhao interface, section 1.

/// Vendor ID.
pub const VENDOR_ID: u16 = 0x10ee;
/// Device ID.
pub const DEVICE_ID: u16 = 0x7028;
/// Subsystem vendor ID; software does not look at it.
pub const SUBSYSTEM_VENDOR_ID: u16 = 0x10ee;
/// Subsystem ID; software does not look at it.
pub const SUBSYSTEM_ID: u16 = 0x0007;
/// Revision; software does not look at it.
pub const REVISION: u8 = 1;
/// Class code: InfiniBand network controller.
pub const CLASS_CODE: [u8; 3] = [0x02, 0x07, 0x00];

/// Bytes of BAR0: the public driver refuses any other length.
pub const BAR0_LEN: u64 = 1 << 20;
/// Bytes of BAR2 by default: 2048 UAR pages.
pub const BAR2_LEN: u64 = 8 << 20;
/// Bytes of BAR2 with as many UAR pages as the public driver hands out (J-02).
pub const BAR2_LEN_MAX: u64 = 16 << 20;

/// MSI-X vectors.
pub const MSIX_VECTORS: u16 = 64;
/// Offset of the MSI-X table in BAR0.
pub const MSIX_TABLE: u32 = 0x2_0000;
/// Offset of the MSI-X pending bits in BAR0.
pub const MSIX_PBA: u32 = 0x3_0000;
