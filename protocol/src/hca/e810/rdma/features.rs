//! RDMA features, reported as an array of 64-bit words. The first word contains the number of words.
//!
//! # Spec
//! E810 interface, section 10.6.

use crate::ids::Iova;
use crate::layout;

layout! {
    /// CQP WQE of "Query features".
    pub struct QueryFeatures[64] {
        /// Length of the buffer in bytes.
        @24[31:0]  len: u32,
        @32        buffer: Iova,
    }
}

layout! {
    /// First word of the array: the firmware version and the number of words.
    pub struct FirmwareFeature[8] {
        @0  minor: u16,
        @2  major: u16,
        /// Number of words, including this one.
        @4  count: u16,
        /// Feature type, always 0.
        @6  kind: u16,
    }
}

layout! {
    /// Word that contains the hardware version.
    pub struct HardwareFeature[8] {
        @0  minor: u16,
        @2  major: u16,
        /// Feature type, always [`HARDWARE_VERSION`].
        @6  kind: u16,
    }
}

/// Feature type of the hardware version.
pub const HARDWARE_VERSION: u16 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected words are from section 10.6. Drivers display the firmware version as "1.70".
    #[test]
    fn version_features_match_specified_words() {
        let firmware = FirmwareFeature { minor: 70, major: 1, count: 2, kind: 0 };
        assert_eq!(u64::from_le_bytes(firmware.emit()), 0x0000_0002_0001_0046);
        let hardware = HardwareFeature { minor: 0, major: 2, kind: HARDWARE_VERSION };
        assert_eq!(u64::from_le_bytes(hardware.emit()), 0x0001_0000_0002_0000);
    }
}
