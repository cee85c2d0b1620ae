//! Identity and BARs of the PCI function.
//!
//! # Spec
//! E810 interface, section 1.1.

/// Vendor ID.
pub const VENDOR_ID: u16 = 0x8086;
/// Device ID: E810-C with a QSFP cage. From it the driver takes the kind of MAC.
pub const DEVICE_ID: u16 = 0x1592;
/// Subsystem ID; some others mean boards with clocks.
pub const SUBSYSTEM_ID: u16 = 0x0001;
/// Revision; software shows it.
pub const REVISION: u8 = 0x02;
/// Class code: Ethernet controller.
pub const CLASS_CODE: [u8; 3] = [0x02, 0x00, 0x00];

/// BAR of the registers.
pub const REGISTERS_BAR: u8 = 0;
/// Bytes of BAR0, which has the doorbell page of user space at its end.
pub const BAR0_LEN: u64 = 8 << 20;
/// BAR of the MSI-X structures.
pub const MSIX_BAR: u8 = 3;
/// Bytes of BAR3.
pub const MSIX_BAR_LEN: u64 = 64 << 10;
/// Offset of the MSI-X table in BAR3.
pub const MSIX_TABLE: u32 = 0;
/// Offset of the MSI-X pending bits in BAR3.
pub const MSIX_PBA: u32 = 0x8000;
/// Most vectors an MSI-X capability can have.
pub const MAX_MSIX_VECTORS: u16 = 2048;
