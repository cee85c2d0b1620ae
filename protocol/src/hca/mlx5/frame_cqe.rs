//! CQEs for frames received by an RQ.
//!
//! # Spec
//! mlx5 interface, sections 9.3 and 16.5.

use super::code::codes;
use super::cqe::{CqeOpcode, LEN};
use crate::describe::{Describe, Field as _, Hex, Visitor};
use crate::ids::UserIndex;
use crate::layout;

codes! {
    /// Transport header of a received frame.
    pub enum L4Type(u8) {
        None = 0 "none",
        TcpWithoutAck = 1 "tcp",
        Udp = 2 "udp",
        TcpEmptyAck = 3 "tcp_empty_ack",
        TcpAckWithData = 4 "tcp_ack_with_data",
    }
}

codes! {
    /// IP header of a received frame.
    pub enum L3Type(u8) {
        None = 0 "none",
        Ipv6 = 1 "ipv6",
        Ipv4 = 2 "ipv4",
    }
}

codes! {
    /// Transport ports that the RSS hash covers.
    pub enum HashedPorts(u8) {
        None = 0 "none",
        Tcp = 1 "tcp",
        Udp = 2 "udp",
        /// The hash covers the IPsec security parameter index.
        Spi = 3 "spi",
    }
}

codes! {
    /// IP addresses that the RSS hash covers.
    pub enum HashedAddresses(u8) {
        None = 0 "none",
        Ipv4 = 1 "ipv4",
        Ipv6 = 2 "ipv6",
    }
}

layout! {
    /// Fields of the CQE for a received frame.
    pub struct FrameFields[64] big_endian {
        /// RSS hash. It is valid unless `hashed_ports` and `hashed_addresses` are both 0.
        @0x0c         rss_hash: u32 => Hex,
        /// A value of [`HashedPorts`].
        @0x10[31:30]  hashed_ports: u8 => HashedPorts::word,
        /// A value of [`HashedAddresses`].
        @0x10[27:26]  hashed_addresses: u8 => HashedAddresses::word,
        /// Ones' complement sum of the IP packet. If the frame is not an IP packet, the sum of everything after its
        /// Ethernet header.
        @0x14[31:16]  checksum: u16 => Hex,
        /// Whether the TCP or UDP checksum is correct.
        @0x1c[26]     l4_ok: bool,
        /// Whether the IP header is correct.
        @0x1c[25]     l3_ok: bool,
        /// Whether the Ethernet frame is correct.
        @0x1c[24]     l2_ok: bool,
        /// A value of [`L4Type`].
        @0x1c[22:20]  l4_type: u8 => L4Type::word,
        /// A value of [`L3Type`].
        @0x1c[19:18]  l3_type: u8 => L3Type::word,
        /// Whether a VLAN tag was removed from the frame.
        @0x1c[16]     vlan_stripped: bool,
        /// Priority and identifier of the removed VLAN tag.
        @0x1c[15:0]   vlan_tag: u16 => Hex,
        @0x20[23:0]   user_index: UserIndex,
        /// Number of bytes written to the buffers.
        @0x2c         byte_count: u32,
        /// Timestamp in ticks of the device's clock, or 0.
        @0x30         timestamp: u64 => Hex,
        /// Tag of the flow table entry that forwarded the frame.
        @0x38[23:0]   flow_tag: u32 => Hex,
        /// Counter of the receive WQE.
        @0x3c[31:16]  wqe_counter: u16,
        /// The opcode is always [`CqeOpcode::Send`].
        @0x3c[7:4]    opcode: u8 => CqeOpcode::word,
        /// Owner bit, as in other CQEs.
        @0x3c[0]      owner: bool,
    }
}

/// The frame-specific part of a CQE: everything except the opcode and the owner bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct FrameReceipt(FrameFields);

impl FrameReceipt {
    /// Creates a receipt from its fields. The opcode and the owner bit are ignored.
    pub const fn new(fields: FrameFields) -> Self {
        Self(FrameFields { opcode: CqeOpcode::Send.code(), owner: false, ..fields })
    }

    /// Parses the CQE for a received frame. Returns its fields, including the owner bit, or `None` for any other
    /// opcode.
    pub fn parse(entry: &[u8; LEN]) -> Option<FrameFields> {
        let fields = FrameFields::parse(entry);
        (fields.opcode == CqeOpcode::Send.code()).then_some(fields)
    }

    /// Returns the fields, with owner bit 0.
    pub const fn fields(&self) -> &FrameFields {
        &self.0
    }

    /// Returns the CQE in wire format, with the given owner bit.
    pub fn emit(&self, owner: bool) -> [u8; LEN] {
        FrameFields { owner, ..self.0 }.emit()
    }
}

impl Describe for FrameReceipt {
    fn describe(&self, to: &mut dyn Visitor) {
        let fields = &self.0;
        fields.wqe_counter.show("wqe_counter", to);
        fields.byte_count.show("byte_count", to);
        Hex(fields.checksum).show("checksum", to);
        L3Type::word(fields.l3_type).show("l3_type", to);
        L4Type::word(fields.l4_type).show("l4_type", to);
        fields.l3_ok.show("l3_ok", to);
        fields.l4_ok.show("l4_ok", to);
        Hex(fields.rss_hash).show("rss_hash", to);
        fields.vlan_stripped.show("vlan_stripped", to);
        Hex(fields.vlan_tag).show("vlan_tag", to);
        Hex(fields.flow_tag).show("flow_tag", to);
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::words;
    use super::*;

    /// The CQE in this test is that of the TCP segment received in golden trace eth-5.
    #[test]
    fn recorded_frame_cqe_round_trips() {
        let bytes = words(&[
            (0x0c, 0xdc2d_11b8),
            (0x10, 0x4400_0000),
            (0x14, 0xebd4_0000),
            (0x1c, 0x0738_0000),
            (0x2c, 0x3c),
            (0x30, 0x03e4_d318),
            (0x34, 0x191f_0400),
            (0x3c, 0x0002_0020),
        ]);
        let fields = FrameReceipt::parse(&bytes).unwrap();
        assert_eq!((fields.l4_type, fields.l3_type), (L4Type::TcpEmptyAck.code(), L3Type::Ipv4.code()));
        assert_eq!((fields.hashed_ports, fields.hashed_addresses), (1, 1));
        assert!(fields.l2_ok && fields.l3_ok && fields.l4_ok && !fields.vlan_stripped);
        assert_eq!((fields.checksum, fields.byte_count, fields.wqe_counter), (0xebd4, 0x3c, 2));
        assert_eq!(FrameReceipt::new(fields).emit(false), bytes);
        assert_eq!(FrameReceipt::parse(&[0; LEN]), None);
    }
}
