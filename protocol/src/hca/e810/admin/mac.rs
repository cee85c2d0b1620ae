//! MAC of the function, and settings of the port's MAC layer: 0107, 0108, 0203, 0603.
//!
//! # Spec
//! E810 interface, section 5.2.

use crate::ids::MacAddr;
use crate::layout;

layout! {
    /// Answer of "manage MAC read".
    pub struct ReadMac[16] {
        /// Which addresses are valid.
        @0   flags: u16 => Hex,
        /// Addresses in the buffer.
        @4   count: u8,
    }
}

/// In [`ReadMac::flags`]: the address of the LAN function is valid.
pub const LAN_ADDRESS_VALID: u16 = 0x10;

layout! {
    /// An address in the buffer of "manage MAC read".
    pub struct MacEntry[8] {
        /// Port.
        @0   port: u8,
        /// Kind of address; 0 for the LAN function.
        @1   kind: u8,
        /// The address.
        @2   mac: MacAddr,
    }
}

layout! {
    /// "Manage MAC write".
    pub struct WriteMac[16] {
        /// What the address is for.
        @1   flags: u8 => Hex,
        /// The address.
        @2   mac: MacAddr,
    }
}

layout! {
    /// "Set port parameters".
    pub struct PortParameters[16] {
        /// How frames between VSIs of the port go.
        @6   local_forwarding: u8,
    }
}

layout! {
    /// "Set MAC configuration".
    pub struct MacConfig[16] {
        /// Longest frame.
        @0   max_frame: u16,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 0107 of `probe-synth-fd.aq.gz`.
    #[test]
    fn the_address_is_answered_as_recorded() {
        let entry = MacEntry { mac: MacAddr([2, 0xe8, 0x10, 0, 0, 1]), ..MacEntry::default() };
        assert_eq!(entry.emit(), [0, 0, 2, 0xe8, 0x10, 0, 0, 1]);
        let answer = ReadMac { flags: LAN_ADDRESS_VALID, count: 1 };
        assert_eq!(answer.emit()[..5], [0x10, 0, 0, 0, 1]);
    }
}
