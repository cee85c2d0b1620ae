//! Flash read (0701) and checksum (0706) commands.
//!
//! # Spec
//! E810 interface, section 5.3.

use crate::layout;

layout! {
    /// Parameters of "NVM read".
    pub struct ReadNvm[16] {
        @0[23:0]  offset: u32 => Hex,
        /// Whether this read is the last of a sequence.
        @3[0]     last: bool,
        /// Whether to read the flash directly instead of the shadow RAM.
        @3[7]     flash_only: bool,
        /// Module number; 0 for the whole flash.
        @4        module: u16,
        @6        len: u16,
    }
}

layout! {
    /// Parameters of "NVM checksum" and its response.
    pub struct NvmChecksum[16] {
        @0[0]     verify: bool,
        /// Whether to recalculate and store the checksum.
        @0[1]     recalculate: bool,
        /// In the response, [`CHECKSUM`](crate::hca::e810::nvm::CHECKSUM) if the checksum is correct.
        @2        checksum: u16 => Hex,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Uses the first 0701 command from the recording `probe-synth-fd.aq.gz`. The driver determines the flash
    /// size with such reads, by bisection.
    #[test]
    fn parses_recorded_flash_size_probe() {
        let read = ReadNvm::parse(&[0, 0, 0x80, 0x81, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0xb0, 0x4a, 3]);
        let expected = ReadNvm { offset: 0x80_0000, last: true, flash_only: true, module: 0, len: 1 };
        assert_eq!(read, expected);
    }
}
