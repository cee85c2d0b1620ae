//! The control queue itself (CQP): how it is started, what its registers hold, and how its operations complete.
//!
//! # Spec
//! E810 interface, sections 9.1, 10.1, 10.2 and 10.4.

use crate::ids::Iova;
use crate::layout;

layout! {
    /// What software hands over when it starts the queue.
    pub struct HostContext[64] {
        /// Entries of the ring: 2 << `size`.
        @0[11:8]    size: u8,
        /// Protocol; 2 is RoCE.
        @0[4:3]     protocol: u8,
        /// Version of this structure.
        @0[31:24]   version: u8,
        /// Completion event queues of each virtual function.
        @0[39:32]   vf_ceqs: u8,
        /// The ring.
        @8          ring: Iova,
        /// Which division of the device's objects software wants.
        @16[2:0]    profile: u8,
        /// Virtual functions.
        @16[37:32]  vfs: u8,
        /// Comes back in every completion. Drivers take it for a pointer.
        @24         cookie: u64 => Hex,
        /// Version of the hardware that software expects.
        @32[31:16]  hardware_major: u16,
        /// The same.
        @32[15:0]   hardware_minor: u16,
    }
}

impl HostContext {
    /// Entries of the ring.
    pub const fn entries(&self) -> u32 {
        2 << self.size
    }
}

layout! {
    /// PFPE_CCQPSTATUS.
    pub struct Status[4] {
        /// The queue runs.
        [0]   done: bool,
        /// It could not be started.
        [31]  error: bool,
    }
}

layout! {
    /// PFPE_CQPTAIL.
    pub struct Tail[4] {
        /// The entry that the device takes next.
        [10:0]  next: u16,
        /// The last operation failed.
        [31]    error: bool,
    }
}

layout! {
    /// PFPE_CQPDB.
    pub struct Doorbell[4] {
        /// The entry that software fills next.
        [10:0]  next: u16,
    }
}

layout! {
    /// PFPE_CQPERRCODES, and the end of a completion that failed.
    pub struct ErrorCodes[4] {
        /// What was wrong.
        @0  minor: u16 => Hex,
        /// Where; 0 for nowhere.
        @2  major: u16 => Hex,
    }
}

layout! {
    /// Completion of an operation, in CQ 0.
    pub struct Completion[32] {
        /// That of the host context.
        @8          cookie: u64 => Hex,
        /// What the operation returns.
        @16         value: u32,
        /// Why it failed.
        @24         codes: ErrorCodes,
        /// Entry of the ring that it was in.
        @24[46:32]  index: u16,
        /// It failed.
        @24[55]     error: bool,
        /// The polarity of the queue's current round.
        @24[63]     valid: bool,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `irdma-probe.cqp.gz`.
    #[test]
    fn the_host_context_is_as_the_driver_writes_it() {
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

    /// The words of section 10.4.
    #[test]
    fn a_completion_has_its_words_in_their_places() {
        let codes = ErrorCodes { minor: 2, major: 0xffff };
        let done = Completion { cookie: 0x1234, value: 7, codes, index: 0x7ff, error: true, valid: true };
        let bytes = done.emit();
        let (words, _) = bytes.as_chunks::<8>();
        let words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
        assert_eq!(words, [0, 0x1234, 7, 1 << 63 | 1 << 55 | 0x7ff << 32 | 0xffff << 16 | 2]);
    }
}
