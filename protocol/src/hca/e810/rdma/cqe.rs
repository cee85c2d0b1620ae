//! Entries of a completion queue.
//!
//! # Spec
//! E810 interface, section 12.1.

use super::number::MacNumber;
use crate::ids::Qpn;
use crate::layout;

layout! {
    /// A completion.
    pub struct Cqe[32] {
        /// Receive: bytes that were placed, the 40 in front of a datagram included.
        @0          len: u32,
        /// What the context of the QP has for it.
        @8          context: u64 => Hex,
        /// Datagram: QP that sent it. Connection: STag that the peer has invalidated.
        @16         source: u32 => Hex,
        /// QP.
        @20[23:0]   qpn: Qpn,
        /// Why it failed.
        @24         minor: u16,
        /// Class of that, not 0 if it failed.
        @26         major: u16,
        /// First quantum of the WQE.
        @24[46:32]  wqe_index: u16,
        /// The next entry belongs to this one.
        @24[50]     extended: bool,
        /// Connection: the peer has invalidated an STag. Datagram: it came over IPv4.
        @24[53]     invalidated_or_ipv4: bool,
        /// The peer wanted it to be noticed.
        @24[54]     solicited: bool,
        /// It failed.
        @24[55]     error: bool,
        /// Send: operation of the WQE. Receive: low bits of the packet's opcode.
        @24[61:56]  opcode: u8 => Hex,
        /// Of a send queue.
        @24[62]     send: bool,
        /// Polarity.
        @24[63]     valid: bool,
    }
}

layout! {
    /// More of a completion, in the slot behind its own.
    pub struct ExtendedCqe[32] {
        /// Immediate data, a number.
        @0          imm: u32 => Hex,
        /// MAC that a datagram came from.
        @16[47:0]   source_mac: MacNumber as u64,
        /// Tag control information that a datagram came with.
        @22         tag: u16 => Hex,
        /// It has a VLAN tag.
        @24[60]     has_tag: bool,
        /// It has a source MAC.
        @24[61]     has_source_mac: bool,
        /// It has immediate data.
        @24[62]     has_imm: bool,
        /// Polarity.
        @24[63]     valid: bool,
    }
}

/// Bytes of an entry.
pub const LEN: usize = Cqe::LEN;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hca::e810::rdma::testing::words;
    use crate::ids::MacAddr;

    /// Section 16.3, "CQE send".
    #[test]
    fn a_send_is_emitted_as_published() {
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

    /// Section 16.3, "CQE receive" and "CQE flush, SQ".
    #[test]
    fn receives_and_failures_are_emitted_as_published() {
        let receive = Cqe { opcode: 4, valid: true, ..Cqe::default() };
        assert_eq!(receive.emit(), words(&[(24, 0x8400_0000_0000_0000)]));
        let flush = Cqe { error: true, major: 1, minor: 1, send: true, valid: true, ..Cqe::default() };
        assert_eq!(flush.emit(), words(&[(24, 0xc080_0000_0001_0001)]));
    }

    /// Section 16.3, "CQE UD receive".
    #[test]
    fn a_datagram_takes_two_entries() {
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

    /// By the table of the specification.
    #[test]
    fn the_other_fields_are_at_their_bits() {
        let cqe = Cqe { wqe_index: 0x7fff, solicited: true, ..Cqe::default() };
        assert_eq!(cqe.emit(), words(&[(24, 0x0040_7fff_0000_0000)]));
        let more =
            ExtendedCqe { imm: 0x1122_3344, tag: 0x6005, has_tag: true, has_imm: true, ..Default::default() };
        assert_eq!(more.emit(), words(&[(0, 0x1122_3344), (16, 0x6005 << 48), (24, 0x5000_0000_0000_0000)]));
    }
}
