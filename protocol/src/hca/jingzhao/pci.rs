//! PCI identity and BAR layout.
//!
//! # Spec
//! JingZhao interface, sections 1 and 12 (J-02).

/// PCI vendor ID of Xilinx.
pub const VENDOR_ID: u16 = 0x10ee;
/// PCI device ID that the public driver matches.
pub const DEVICE_ID: u16 = 0x7028;
/// PCI subsystem vendor ID; not checked by drivers.
pub const SUBSYSTEM_VENDOR_ID: u16 = 0x10ee;
/// PCI subsystem ID; not checked by drivers.
pub const SUBSYSTEM_ID: u16 = 0x0007;
/// PCI revision ID; not checked by drivers.
pub const REVISION: u8 = 1;
/// Class code: InfiniBand network controller.
pub const CLASS_CODE: [u8; 3] = [0x02, 0x07, 0x00];

/// Length of BAR0 in bytes. The public driver rejects any other length.
pub const BAR0_LEN: u64 = 1 << 20;
/// Default length of BAR2 in bytes: 2048 UAR pages.
pub const BAR2_LEN: u64 = 8 << 20;
/// Maximum length of BAR2 in bytes: 4096 UAR pages, the number that the public driver allocates (J-02).
pub const BAR2_LEN_MAX: u64 = 16 << 20;

/// Number of MSI-X vectors.
pub const MSIX_VECTORS: u16 = 64;
/// Offset of the MSI-X table in BAR0.
pub const MSIX_TABLE: u32 = 0x2_0000;
/// Offset of the MSI-X pending bit array in BAR0.
pub const MSIX_PBA: u32 = 0x3_0000;
