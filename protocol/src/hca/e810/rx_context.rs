//! Receive queue context: eight registers that the driver writes before it enables the queue.
//!
//! # Spec
//! E810 interface, section 8.3.

use super::ring_address::RingAddress;
use crate::describe::{Field, Value, Visitor};
use crate::layout;

/// Number of registers that make up a context.
pub const WORDS: usize = RxContext::LEN / 4;

layout! {
    /// Context of a receive queue.
    pub struct RxContext[32] {
        /// Index of the first descriptor that the device uses.
        [12:0]     head: u16,
        [88:32]    ring: RingAddress as u64,
        /// Number of descriptors in the ring.
        [101:89]   ring_len: u16,
        /// Size of a data buffer in units of 128 bytes.
        [108:102]  data_units: u8,
        /// Size of a header buffer in units of 64 bytes.
        [113:109]  header_units: u8,
        /// Header split mode of the queue.
        [115:114]  split: Split as u8,
        /// Whether descriptors are 32 bytes long rather than 16.
        [116]      long_descriptors: bool,
        /// Whether to strip the frame check sequence.
        [117]      strip_crc: bool,
        /// Whether to write a stripped VLAN tag to the first tag field of the descriptor.
        [119]      tag_in_first_field: bool,
        /// Whether headers can end after the Ethernet header and the VLAN tags.
        [120]      split_ethernet: bool,
        /// Whether headers can end after the IP header.
        [121]      split_ip: bool,
        /// Whether headers can end after the TCP or UDP header.
        [122]      split_tcp_udp: bool,
        /// Whether headers can end after the SCTP header.
        [123]      split_sctp: bool,
        /// Maximum frame length in bytes.
        [187:174]  max_frame: u16,
    }
}

/// Header split mode of a receive queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Split {
    /// Type 0: headers and data share a buffer.
    #[default]
    No,
    /// Type 1: headers go to the header buffer. The context selects the layers after which they can end.
    Headers,
    /// Type 2: headers go to the header buffer if the device recognises where they end.
    Known,
    /// Type 3 is reserved.
    Reserved,
}

impl Field for Split {
    fn show(&self, name: &str, to: &mut dyn Visitor) {
        to.value(
            name,
            Value::Name(match self {
                Self::No => "NO",
                Self::Headers => "HEADERS",
                Self::Known => "KNOWN",
                Self::Reserved => "RESERVED",
            }),
        );
    }
}

impl From<u8> for Split {
    fn from(bits: u8) -> Self {
        match bits & 3 {
            0 => Self::No,
            1 => Self::Headers,
            2 => Self::Known,
            _ => Self::Reserved,
        }
    }
}

impl From<Split> for u8 {
    fn from(split: Split) -> Self {
        match split {
            Split::No => 0,
            Split::Headers => 1,
            Split::Known => 2,
            Split::Reserved => 3,
        }
    }
}

impl RxContext {
    /// Decodes a context from its registers, lowest first.
    pub fn from_registers(registers: &[u32; WORDS]) -> Self {
        let mut bytes = [0; Self::LEN];
        for (bytes, register) in bytes.chunks_exact_mut(4).zip(registers) {
            bytes.copy_from_slice(&register.to_le_bytes());
        }
        Self::parse(&bytes)
    }

    /// Returns the data buffer size in bytes.
    pub fn data_len(&self) -> u16 {
        u16::from(self.data_units) * 128
    }

    /// Returns the header buffer size in bytes.
    pub fn header_len(&self) -> u16 {
        u16::from(self.header_units) * 64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Iova;

    /// The expected values were generated independently from the specification's table.
    #[test]
    fn rx_context_fields_are_in_specified_bits() {
        let usual = [0xa000, 0x008e_92a0, 0, 0x00b0_0310, 0, 0x0180_0000, 0x0240, 0];
        let expected = RxContext {
            head: 0,
            ring: RingAddress::new(Iova::new(0x4749_5000)),
            ring_len: 2048,
            data_units: 12,
            header_units: 0,
            split: Split::No,
            long_descriptors: true,
            strip_crc: true,
            tag_in_first_field: true,
            split_ethernet: false,
            split_ip: false,
            split_tcp_udp: false,
            split_sctp: false,
            max_frame: 1536,
        };
        let context = RxContext::from_registers(&usual);
        assert_eq!(context, expected);
        assert_eq!((context.data_len(), context.header_len()), (1536, 0));

        let split = [0, 0x0246_8acf, 0, 0x2794_8604, 0, 0x0980_0000, 0x0240, 0];
        let expected = RxContext {
            head: 0,
            ring: RingAddress::new(Iova::new(0x1_2345_6780)),
            ring_len: 512,
            data_units: 24,
            header_units: 4,
            split: Split::Headers,
            long_descriptors: true,
            strip_crc: false,
            tag_in_first_field: true,
            split_ethernet: true,
            split_ip: true,
            split_tcp_udp: true,
            split_sctp: false,
            max_frame: 9728,
        };
        let context = RxContext::from_registers(&split);
        assert_eq!(context, expected);
        assert_eq!((context.data_len(), context.header_len()), (3072, 256));
    }
}
