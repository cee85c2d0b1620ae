//! Commands for the function's MAC address and the port's MAC settings: 0107, 0108, 0203, 0603.
//!
//! # Spec
//! E810 interface, section 5.2.

use crate::ids::MacAddr;
use crate::layout;

layout! {
    /// Response to "manage MAC read".
    pub struct ReadMac[16] {
        /// Flags, such as [`LAN_ADDRESS_VALID`], that show which addresses are valid.
        @0   flags: u16 => Hex,
        /// Number of addresses in the buffer.
        @4   count: u8,
    }
}

/// Flag in [`ReadMac::flags`]: the LAN address is valid.
pub const LAN_ADDRESS_VALID: u16 = 0x10;

layout! {
    /// An address in the "manage MAC read" buffer.
    pub struct MacEntry[8] {
        @0   port: u8,
        /// Address type; 0 for the LAN function.
        @1   kind: u8,
        /// MAC address in network byte order.
        @2   mac: MacAddr,
    }
}

layout! {
    /// Parameters of "manage MAC write".
    pub struct WriteMac[16] {
        /// Flags that select the purpose of the address.
        @1   flags: u8 => Hex,
        /// MAC address in network byte order.
        @2   mac: MacAddr,
    }
}

layout! {
    /// Parameters of "set port parameters".
    pub struct PortParameters[16] {
        /// Forwarding mode for frames between the port's VSIs.
        @6   local_forwarding: u8,
    }
}

layout! {
    /// Parameters of "set MAC configuration".
    pub struct MacConfig[16] {
        /// Maximum frame length in bytes.
        @0   max_frame: u16,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Uses the 0107 response from the recording `probe-synth-fd.aq.gz`.
    #[test]
    fn manage_mac_read_response_matches_recorded_bytes() {
        let entry = MacEntry { mac: MacAddr([2, 0xe8, 0x10, 0, 0, 1]), ..MacEntry::default() };
        assert_eq!(entry.emit(), [0, 0, 2, 0xe8, 0x10, 0, 0, 1]);
        let response = ReadMac { flags: LAN_ADDRESS_VALID, count: 1 };
        assert_eq!(response.emit()[..5], [0x10, 0, 0, 0, 1]);
    }
}
