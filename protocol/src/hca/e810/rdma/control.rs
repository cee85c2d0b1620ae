//! Control queue pair (CQP): its context, registers and completions.
//!
//! # Spec
//! E810 interface, sections 9.1, 10.1, 10.2 and 10.4.

use crate::ids::Iova;
use crate::layout;

layout! {
    /// Host context, which the driver passes when it starts the CQP.
    pub struct HostContext[64] {
        /// The ring has 2 << `size` entries.
        @0[11:8]    size: u8,
        /// Protocol code; 2 is RoCE.
        @0[4:3]     protocol: u8,
        /// Version of this structure.
        @0[31:24]   version: u8,
        /// Number of CEQs per virtual function.
        @0[39:32]   vf_ceqs: u8,
        @8          ring: Iova,
        /// Resource profile, which divides the device's objects among functions.
        @16[2:0]    profile: u8,
        /// Number of virtual functions.
        @16[37:32]  vfs: u8,
        /// Cookie returned in every completion. Drivers store a pointer in it.
        @24         cookie: u64 => Hex,
        /// Major hardware version that the driver expects.
        @32[31:16]  hardware_major: u16,
        /// Minor hardware version that the driver expects.
        @32[15:0]   hardware_minor: u16,
    }
}

impl HostContext {
    /// Returns the number of entries in the ring.
    pub const fn entries(&self) -> u32 {
        2 << self.size
    }
}

layout! {
    /// Register PFPE_CCQPSTATUS: status of the CQP.
    pub struct Status[4] {
        /// Whether the CQP is running.
        [0]   done: bool,
        /// Whether the CQP failed to start.
        [31]  error: bool,
    }
}

layout! {
    /// Register PFPE_CQPTAIL: tail of the CQP ring.
    pub struct Tail[4] {
        /// Index of the next entry that the device will execute.
        [10:0]  next: u16,
        /// Whether the last operation failed.
        [31]    error: bool,
    }
}

layout! {
    /// Register PFPE_CQPDB: doorbell of the CQP.
    pub struct Doorbell[4] {
        /// Index of the next entry that the driver will fill.
        [10:0]  next: u16,
    }
}

layout! {
    /// Register PFPE_CQPERRCODES: codes of the last error. A completion contains the same fields.
    pub struct ErrorCodes[4] {
        /// Cause of the error.
        @0  minor: u16 => Hex,
        /// Class of the error; 0 means no error.
        @2  major: u16 => Hex,
    }
}

layout! {
    /// Completion of a CQP operation, written to CQ 0.
    pub struct Completion[32] {
        /// Cookie from the host context.
        @8          cookie: u64 => Hex,
        @16         value: u32,
        /// Error codes; all zero on success.
        @24         codes: ErrorCodes,
        /// Ring index of the operation.
        @24[46:32]  index: u16,
        /// Whether the operation failed.
        @24[55]     error: bool,
        /// Polarity, which toggles on each pass through the ring.
        @24[63]     valid: bool,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Host context recorded in `irdma-probe.cqp.gz`.
    #[test]
    fn recorded_host_context_round_trips() {
        let mut bytes = [0; 64];
        bytes[..38].copy_from_slice(&[
            0x10, 0x0a, 0, 0, 0, 0, 0, 0, 0, 0, 0x1e, 0x47, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, //
            0x60, 0x6f, 0xe1, 0x06, 0x27, 0x52, 0x25, 0xff, 0, 0, 1, 0, 0, 0,
        ]);
        let context = HostContext::parse(&bytes);
        assert_eq!((context.entries(), context.protocol), (2048, 2));
        assert_eq!(context.ring, Iova::new(0x471e_0000));
        assert_eq!(context.cookie, 0xff25_5227_06e1_6f60);
        assert_eq!((context.hardware_major, context.hardware_minor), (1, 0));
        assert_eq!(context.emit(), bytes);
    }

    /// The expected layout is from section 10.4.
    #[test]
    fn cqp_completion_matches_specified_layout() {
        let codes = ErrorCodes { minor: 2, major: 0xffff };
        let done = Completion { cookie: 0x1234, value: 7, codes, index: 0x7ff, error: true, valid: true };
        let bytes = done.emit();
        let (words, _) = bytes.as_chunks::<8>();
        let words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
        assert_eq!(words, [0, 0x1234, 7, 1 << 63 | 1 << 55 | 0x7ff << 32 | 0xffff << 16 | 2]);
    }
}
