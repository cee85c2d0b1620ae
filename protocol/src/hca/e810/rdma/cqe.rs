//! Completion queue entries (CQE).
//!
//! # Spec
//! E810 interface, section 12.1.

use super::number::MacNumber;
use crate::ids::Qpn;
use crate::layout;

layout! {
    /// A completion queue entry.
    pub struct Cqe[32] {
        /// Receive: message length in bytes. For a datagram, it includes the 40-byte GRH area.
        @0          len: u32,
        /// Completion context of the QP.
        @8          context: u64 => Hex,
        /// Datagram: QP number of the sender. Connection: STag invalidated by the peer.
        @16         source: u32 => Hex,
        @20[23:0]   qpn: Qpn,
        @24         minor: u16,
        /// Major error code; 0 on success.
        @26         major: u16,
        /// Index of the first quantum of the WQE.
        @24[46:32]  wqe_index: u16,
        /// Whether the next entry is an [`ExtendedCqe`] with more data for this CQE.
        @24[50]     extended: bool,
        /// Connection: whether the peer invalidated an STag. Datagram: whether the datagram arrived over IPv4.
        @24[53]     invalidated_or_ipv4: bool,
        /// Whether the peer requested a solicited event.
        @24[54]     solicited: bool,
        /// Whether the work request failed.
        @24[55]     error: bool,
        /// Send: opcode of the WQE. Receive: low bits of the BTH opcode.
        @24[61:56]  opcode: u8 => Hex,
        /// Set for a send queue, clear for a receive queue.
        @24[62]     send: bool,
        /// Polarity, which toggles on each pass through the ring.
        @24[63]     valid: bool,
    }
}

layout! {
    /// Additional data for a CQE, stored in the entry that follows it.
    pub struct ExtendedCqe[32] {
        /// Immediate data in host byte order.
        @0          imm: u32 => Hex,
        /// Source MAC address of a datagram.
        @16[47:0]   source_mac: MacNumber as u64,
        /// VLAN tag control information of a datagram.
        @22         tag: u16 => Hex,
        @24[60]     has_tag: bool,
        @24[61]     has_source_mac: bool,
        @24[62]     has_imm: bool,
        /// Polarity, which toggles on each pass through the ring.
        @24[63]     valid: bool,
    }
}

/// Length of a CQE in bytes.
pub const LEN: usize = Cqe::LEN;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hca::e810::rdma::testing::words;
    use crate::ids::MacAddr;

    /// Example "CQE send" from section 16.3.
    #[test]
    fn send_cqe_matches_published_example() {
        let cqe = Cqe {
            len: 4096,
            context: 0x55ec_bd10_d510,
            qpn: Qpn::new(3),
            opcode: 3,
            send: true,
            valid: true,
            ..Cqe::default()
        };
        let expected = [(0, 0x1000), (8, 0x55ec_bd10_d510), (16, 3 << 32), (24, 0xc300_0000_0000_0000)];
        assert_eq!(cqe.emit(), words(&expected));
    }

    /// Examples "CQE receive" and "CQE flush, SQ" from section 16.3.
    #[test]
    fn receive_and_flush_cqes_match_published_examples() {
        let receive = Cqe { opcode: 4, valid: true, ..Cqe::default() };
        assert_eq!(receive.emit(), words(&[(24, 0x8400_0000_0000_0000)]));
        let flush = Cqe { error: true, major: 1, minor: 1, send: true, valid: true, ..Cqe::default() };
        assert_eq!(flush.emit(), words(&[(24, 0xc080_0000_0001_0001)]));
    }

    /// Example "CQE UD receive" from section 16.3.
    #[test]
    fn datagram_completion_uses_two_entries() {
        let cqe = Cqe {
            len: 1040,
            source: 7,
            qpn: Qpn::new(7),
            extended: true,
            invalidated_or_ipv4: true,
            opcode: 4,
            valid: true,
            ..Cqe::default()
        };
        let expected = [(0, 0x410), (16, 0x0000_0007_0000_0007), (24, 0x8424_0000_0000_0000)];
        assert_eq!(cqe.emit(), words(&expected));
        let source_mac = MacNumber(MacAddr([2, 0xe8, 0x10, 0, 0, 2]));
        let more = ExtendedCqe { source_mac, has_source_mac: true, valid: true, ..ExtendedCqe::default() };
        assert_eq!(more.emit(), words(&[(16, 0x0000_02e8_1000_0002), (24, 0xa000_0000_0000_0000)]));
    }

    /// Covers fields that the examples in section 16.3 do not set.
    #[test]
    fn remaining_cqe_fields_are_in_specified_bits() {
        let cqe = Cqe { wqe_index: 0x7fff, solicited: true, ..Cqe::default() };
        assert_eq!(cqe.emit(), words(&[(24, 0x0040_7fff_0000_0000)]));
        let more =
            ExtendedCqe { imm: 0x1122_3344, tag: 0x6005, has_tag: true, has_imm: true, ..Default::default() };
        assert_eq!(more.emit(), words(&[(0, 0x1122_3344), (16, 0x6005 << 48), (24, 0x5000_0000_0000_0000)]));
    }
}
