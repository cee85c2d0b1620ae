//! What the RDMA half says of itself: an array of words, the first of which says how many there are.
//!
//! # Spec
//! E810 interface, section 10.6.

use crate::ids::Iova;
use crate::layout;

layout! {
    /// "Query features".
    pub struct QueryFeatures[64] {
        /// Bytes of the buffer.
        @24[31:0]  len: u32,
        /// The buffer.
        @32        buffer: Iova,
    }
}

layout! {
    /// First word: version of the firmware.
    pub struct FirmwareFeature[8] {
        /// Minor version.
        @0  minor: u16,
        /// Major version.
        @2  major: u16,
        /// Words that there are, this one included.
        @4  count: u16,
        /// Kind of word, which is 0.
        @6  kind: u16,
    }
}

layout! {
    /// Version of the hardware.
    pub struct HardwareFeature[8] {
        /// Minor version.
        @0  minor: u16,
        /// Major version.
        @2  major: u16,
        /// Kind of word, [`HARDWARE_VERSION`].
        @6  kind: u16,
    }
}

/// Kind of the word that has the version of the hardware.
pub const HARDWARE_VERSION: u16 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    /// The words of section 10.6, which drivers show as "1.70".
    #[test]
    fn versions_are_in_their_words() {
        let firmware = FirmwareFeature { minor: 70, major: 1, count: 2, kind: 0 };
        assert_eq!(u64::from_le_bytes(firmware.emit()), 0x0000_0002_0001_0046);
        let hardware = HardwareFeature { minor: 0, major: 2, kind: HARDWARE_VERSION };
        assert_eq!(u64::from_le_bytes(hardware.emit()), 0x0001_0000_0002_0000);
    }
}
