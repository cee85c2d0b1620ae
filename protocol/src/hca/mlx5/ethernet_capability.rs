//! Capabilities of a device with an Ethernet port, in addition to the general and atomic ones.
//!
//! # Spec
//! mlx5 interface, sections 6.1 and 6.4.

use super::capability::{AREA_LEN, GeneralCaps, PortType, in_area};
use crate::layout;

impl GeneralCaps {
    /// Returns these capabilities with an Ethernet port instead of an InfiniBand port.
    #[must_use]
    pub fn with_ethernet_port(self) -> Self {
        Self {
            modify_rq_counter_set: true,
            port_type: PortType::Ethernet.code(),
            nic_flow_table: true,
            ethernet_offloads: true,
            roce: true,
            log_max_counter_query: 10,
            log_max_rqs: 10,
            log_max_sqs: 10,
            log_max_tirs: 10,
            log_max_tises: 10,
            cyclic_rq: true,
            log_max_rmps: 10,
            log_max_rqts: 10,
            log_max_rqt_entries: 8,
            log_max_tises_per_sq: 3,
            log_max_rq_stride: 9,
            log_min_rq_stride: 4,
            log_max_sq_stride: 9,
            log_min_sq_stride: 4,
            log_max_wq_entries: 14,
            log_max_vlan_list: 7,
            log_max_multicast_list: 7,
            log_max_unicast_list: 7,
            // DPDK creates its CQs with CQE compression. This device permits that, but never compresses CQEs.
            cqe_compression: true,
            max_mini_cqes: 64,
            ..self
        }
    }
}

layout! {
    /// Ethernet offload capabilities. The driver does not create a network device unless checksums, VLAN tags, LSO and
    /// RSS are supported.
    pub struct EthernetCaps[16] big_endian {
        /// Whether the device computes and verifies checksums.
        @0x00[31]     checksum: bool,
        /// Whether the device strips VLAN tags.
        @0x00[30]     vlan: bool,
        /// Whether the device coalesces received TCP segments (LRO).
        @0x00[29]     lro: bool,
        /// Whether the Ethernet segment of a WQE can contain a VLAN tag to insert.
        @0x00[24]     wqe_vlan_insert: bool,
        /// Whether MODIFY_TIR can change the loopback bits of a TIR.
        @0x00[23]     self_loopback_modifiable: bool,
        /// Log2 of the maximum length of an LSO message in bytes.
        @0x00[20:16]  log_max_lso: u8,
        /// Headers that a send WQE must have inline: 0 for the layer 2 headers, 1 for the headers that the vport
        /// context specifies, 2 for none.
        @0x00[13:12]  inline_mode: u8,
        /// Log2 of the maximum number of entries in an RQT for RSS.
        @0x00[11:8]   log_max_rss_entries: u8,
    }
}

impl EthernetCaps {
    /// Returns this device's maximum capabilities.
    pub fn largest() -> Self {
        Self {
            checksum: true,
            vlan: true,
            self_loopback_modifiable: true,
            log_max_lso: 16,
            inline_mode: 2,
            log_max_rss_entries: 8,
            ..Self::default()
        }
    }

    /// Returns the area as it appears in the QUERY_HCA_CAP output.
    pub fn area(&self) -> [u8; AREA_LEN] {
        in_area(&self.emit())
    }
}

layout! {
    /// RoCE capabilities of an Ethernet port.
    pub struct RoceCaps[32] big_endian {
        /// Mask of network layers: bit 1 for IPv4, bit 2 for IPv6. The driver rejects a device with only one of them.
        @0x10[19:16]  l3_types: u8 => Hex,
        /// Mask of RoCE versions: bit 0 for version 1, bit 2 for version 2.
        @0x10[7:0]    versions: u8 => Hex,
        /// UDP destination port of RoCEv2 packets.
        @0x16         udp_port: u16,
        /// Highest UDP source port of RoCEv2 packets.
        @0x18         max_source_port: u16,
        /// Lowest UDP source port of RoCEv2 packets.
        @0x1a         min_source_port: u16,
        /// Number of entries in the GID table.
        @0x1e         gids: u16,
    }
}

impl RoceCaps {
    /// Returns the maximum capabilities of a device with `gids` entries in its GID table.
    pub fn with_gids(gids: u16) -> Self {
        Self {
            l3_types: 0b110,
            versions: 0b100,
            udp_port: 4791,
            max_source_port: 0xffff,
            min_source_port: 0xc000,
            gids,
        }
    }

    /// Returns the area as it appears in the QUERY_HCA_CAP output.
    pub fn area(&self) -> [u8; AREA_LEN] {
        in_area(&self.emit())
    }
}

layout! {
    /// Receive flow table capabilities. Those of all other table types are 0.
    pub struct FlowTableCaps[0x80] big_endian {
        /// Whether the device has receive flow tables.
        @0x40[31]     supported: bool,
        /// Whether entries can have flow counters.
        @0x40[29]     flow_counters: bool,
        /// Whether existing entries can be modified.
        @0x40[28]     modify_entries: bool,
        /// Whether SET_FLOW_TABLE_ROOT can change the root table.
        @0x40[27]     modify_root: bool,
        /// Whether a table can have a miss table for frames that match no entry.
        @0x40[26]     miss_table: bool,
        /// Whether MODIFY_FLOW_TABLE can change the miss table.
        @0x40[25]     modify_tables: bool,
        /// Log2 of the maximum number of entries in a table. With 12, the driver cannot create its tables (section 20,
        /// M-9).
        @0x44[29:24]  log_max_table: u8,
        @0x44[7:0]    max_level: u8,
        @0x4c[7:0]    log_max_tables: u8,
        /// Log2 of the maximum number of destinations per entry.
        @0x50[7:0]    log_max_destinations: u8,
        /// Log2 of the maximum total number of entries in all tables.
        @0x54[7:0]    log_max_entries: u8,
        /// Mask of outer header fields that entries can match.
        @0x60         match_fields: u32 => Hex,
    }
}

impl FlowTableCaps {
    /// Fields that entries can match: destination MAC, source MAC, EtherType, IP version, the fields of a VLAN tag, TTL,
    /// source and destination IP addresses, fragment, IP protocol, ECN, DSCP, UDP and TCP ports, and TCP flags.
    const MATCH_FIELDS: u32 = 0xff0f_fe00;

    /// Returns this device's maximum capabilities.
    pub fn largest() -> Self {
        Self {
            supported: true,
            modify_entries: true,
            modify_root: true,
            miss_table: true,
            modify_tables: true,
            log_max_table: 24,
            max_level: 64,
            log_max_tables: 8,
            log_max_destinations: 5,
            log_max_entries: 12,
            match_fields: Self::MATCH_FIELDS,
            ..Self::default()
        }
    }

    /// Returns the area as it appears in the QUERY_HCA_CAP output.
    pub fn area(&self) -> [u8; AREA_LEN] {
        in_area(&self.emit())
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::words;
    use super::*;

    /// The expected words are from golden trace eth-1, minus the bits that are set for both port types. The recorded
    /// device offered neither changes to an RQ's counter set nor queries of several flow counters.
    #[test]
    fn ethernet_port_adds_published_bits() {
        let added: [u8; GeneralCaps::LEN] = words(&[
            (0x30, 0x0800_0000),
            (0x34, 0x0200_0100),
            (0x40, 0x0000_000c),
            (0x68, 0x000a_0000),
            (0x6c, 0x0a0a_0a0a),
            (0x70, 0x8a0a_0803),
            (0x74, 0x0904_0904),
            (0x78, 14),
            (0x7c, 0x0007_0707),
            (0xb4, 1),
            (0xb8, 64),
        ]);
        let mut expected = GeneralCaps::infiniband().emit();
        expected.iter_mut().zip(added).for_each(|(byte, bits)| *byte |= bits);
        assert_eq!(GeneralCaps::infiniband().with_ethernet_port().emit(), expected);
    }

    #[test]
    fn ethernet_capability_areas_match_published_values() {
        assert_eq!(EthernetCaps::largest().emit(), words(&[(0, 0xc090_2800)]));
        let roce = [(0x10, 0x0006_0004), (0x14, 0x12b7), (0x18, 0xffff_c000), (0x1c, 16)];
        assert_eq!(RoceCaps::with_gids(16).emit(), words(&roce));
        let tables = [(0x40, 0x9e00_0000), (0x44, 0x1800_0040), (0x4c, 8), (0x50, 5), (0x54, 12)];
        let mut expected: [u8; FlowTableCaps::LEN] = words(&tables);
        expected[0x60..0x64].copy_from_slice(&[0xff, 0x0f, 0xfe, 0]);
        assert_eq!(FlowTableCaps::largest().emit(), expected);
    }
}
