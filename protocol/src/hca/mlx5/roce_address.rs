//! Entries of the GID table: SET_ROCE_ADDRESS and QUERY_ROCE_ADDRESS.
//!
//! # Spec
//! mlx5 interface, section 15.3.

use super::code::codes;
use crate::ids::MacAddr;
use crate::layout;

codes! {
    /// Network layer of packets that use an entry.
    pub enum L3Type(u8) {
        Ipv4 = 0 "ipv4",
        Ipv6 = 1 "ipv6",
    }
}

codes! {
    /// RoCE version of packets that use an entry.
    pub enum RoceVersion(u8) {
        V1 = 0 "v1",
        V2 = 2 "v2",
    }
}

layout! {
    /// Entry of the GID table: an address that the port can send packets from and accepts packets for.
    pub struct RoceEntry[32] big_endian {
        /// IP address. IPv4 addresses are in the last four bytes.
        @0x00         gid: [u8; 16],
        /// Whether packets have a VLAN tag.
        @0x10[28]     vlan_valid: bool,
        /// VLAN identifier of packets.
        @0x10[27:16]  vlan: u16,
        @0x12         mac: MacAddr,
        /// A value of [`L3Type`].
        @0x18[11:8]   l3_type: u8 => L3Type::word,
        /// A value of [`RoceVersion`].
        @0x18[7:0]    version: u8 => RoceVersion::word,
    }
}

impl RoceEntry {
    /// Returns whether the entry is unused. A driver deletes an entry by setting its address to zero.
    pub fn is_empty(&self) -> bool {
        self.gid == [0; 16]
    }
}

layout! {
    /// Input of the SET_ROCE_ADDRESS command.
    pub struct SetRoceAddress[48] big_endian {
        /// Index in the GID table.
        @0x08  index: u16,
        @0x10  entry: RoceEntry,
    }
}

layout! {
    /// Input of the QUERY_ROCE_ADDRESS command.
    pub struct QueryRoceAddress[16] big_endian {
        /// Index in the GID table.
        @0x08  index: u16,
    }
}

layout! {
    /// Output of the QUERY_ROCE_ADDRESS command.
    pub struct QueriedRoceAddress[48] big_endian {
        @0x10  entry: RoceEntry,
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::words;
    use super::*;

    /// The examples from section 15.3.
    #[test]
    fn roce_entries_match_traces() {
        let mac = MacAddr([2, 0, 0, 0x55, 0, 1]);
        let mut gid = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xfe, 0x55, 0, 1];
        let (l3_type, version) = (L3Type::Ipv6.code(), RoceVersion::V2.code());
        let entry = RoceEntry { gid, mac, l3_type, version, ..RoceEntry::default() };
        let mut expected = words(&[(0x10, 0x200), (0x14, 0x0055_0001), (0x18, 0x102)]);
        expected[..16].copy_from_slice(&gid);
        assert_eq!(entry.emit(), expected);
        gid = [0; 16];
        let deleted = RoceEntry { gid, mac: MacAddr::default(), ..entry };
        assert!(deleted.is_empty() && !entry.is_empty());
        let tagged = RoceEntry { vlan_valid: true, vlan: 5, l3_type: L3Type::Ipv4.code(), ..entry };
        assert_eq!(tagged.emit()[0x10..], [0x10, 5, 2, 0, 0, 0x55, 0, 1, 0, 0, 0, 2, 0, 0, 0, 0]);
        let set = SetRoceAddress { index: 3, entry }.emit();
        assert_eq!((set[9], &set[0x10..]), (3, &expected[..]));
    }
}
