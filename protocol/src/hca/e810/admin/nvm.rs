//! Reads of the flash and its checksum: 0701, 0706.
//!
//! # Spec
//! E810 interface, section 5.3.

use crate::layout;

layout! {
    /// "NVM read".
    pub struct ReadNvm[16] {
        /// First byte.
        @0[23:0]  offset: u32 => Hex,
        /// No other read follows.
        @3[0]     last: bool,
        /// Of the flash as a whole, not of the shadow RAM.
        @3[7]     flash_only: bool,
        /// Module; 0 for the whole.
        @4        module: u16,
        /// Bytes.
        @6        len: u16,
    }
}

layout! {
    /// "NVM checksum", and its answer.
    pub struct NvmChecksum[16] {
        /// Verify the checksum.
        @0[0]     verify: bool,
        /// Compute and store it anew.
        @0[1]     recalculate: bool,
        /// In an answer: [`CHECKSUM`](crate::hca::e810::nvm::CHECKSUM) if it is right.
        @2        checksum: u16 => Hex,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first 0701 of `probe-synth-fd.aq.gz`.
    #[test]
    fn the_size_of_the_flash_is_looked_for_from_its_middle() {
        let read = ReadNvm::parse(&[0, 0, 0x80, 0x81, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0xb0, 0x4a, 3]);
        let expected = ReadNvm { offset: 0x80_0000, last: true, flash_only: true, module: 0, len: 1 };
        assert_eq!(read, expected);
    }
}
