//! NodeInfo and NodeDescription.
//!
//! # Spec
//! IBTA volume 1, sections 14.2.5.2 and 14.2.5.3.

use super::field::attribute;
use super::smp::DATA_LEN;
use crate::ids::MacAddr;

/// `NodeType` of a channel adapter.
pub const CHANNEL_ADAPTER: u8 = 1;
/// `NodeType` of a switch.
pub const SWITCH: u8 = 2;

attribute! {
    /// A node's NodeInfo attribute.
    pub struct NodeInfo[40] {
        /// Supported MAD base version.
        base_version: u8 = 0, 8;
        /// Supported version of the subnet management class.
        class_version: u8 = 8, 8;
        /// Either [`CHANNEL_ADAPTER`] or [`SWITCH`].
        node_type: u8 = 16, 8;
        /// Number of physical ports.
        ports: u8 = 24, 8;
        /// GUID shared by all nodes in the system.
        system_image_guid: u64 = 32, 64;
        node_guid: u64 = 96, 64;
        /// GUID of the port that received the request, or of port 0 on a switch.
        port_guid: u64 = 160, 64;
        /// Size of the P_Key table, in entries.
        partition_cap: u16 = 224, 16;
        device_id: u16 = 240, 16;
        revision: u32 = 256, 32;
        /// Port that received the request.
        local_port: u8 = 288, 8;
        /// Vendor OUI, 24 bits.
        vendor_id: u32 = 296, 24;
    }
}

/// Returns a NodeDescription: `text` truncated or zero-padded to 64 bytes.
pub fn description(text: &str) -> [u8; DATA_LEN] {
    let mut bytes = [0; DATA_LEN];
    for (to, from) in bytes.iter_mut().zip(text.bytes()) {
        *to = from;
    }
    bytes
}

/// Returns the port GUID for a MAC address: its modified EUI-64, as in the link-local IPv6 address of a RoCE port.
///
/// # Spec
/// RFC 4291, appendix A.
pub const fn guid_of_mac(mac: MacAddr) -> u64 {
    let [a, b, c, d, e, f] = mac.0;
    u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}

/// Returns the MAC address that a GUID was formed from; the inverse of [`guid_of_mac`]. Returns `None` if the GUID is
/// not the modified EUI-64 of a unicast MAC address.
pub const fn mac_of_guid(guid: u64) -> Option<MacAddr> {
    match guid.to_be_bytes() {
        [a, b, c, 0xff, 0xfe, d, e, f] if a & 1 == 0 => Some(MacAddr([a ^ 2, b, c, d, e, f])),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guid_from_mac_matches_rfc_4291() {
        // The example is from RFC 4291, appendix A.
        let mac = MacAddr([0x34, 0x56, 0x78, 0x9a, 0xbc, 0xde]);
        assert_eq!(guid_of_mac(mac), 0x3656_78ff_fe9a_bcde);
        assert_eq!(mac_of_guid(0x3656_78ff_fe9a_bcde), Some(mac));
        assert_eq!(mac_of_guid(0x3656_78ff_ff9a_bcde), None);
        assert_eq!(mac_of_guid(0x0156_78ff_fe9a_bcde), None, "no GUID is formed from a multicast address");
    }

    #[test]
    fn node_description_is_padded_and_truncated() {
        assert_eq!(description("hcad")[..6], *b"hcad\0\0");
        assert_eq!(description(&"x".repeat(70)), [b'x'; 64]);
    }
}
