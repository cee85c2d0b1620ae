//! Context of a receive queue: eight registers that software writes before it enables the queue.
//!
//! # Spec
//! E810 interface, section 8.3.

use super::ring_address::RingAddress;
use crate::describe::{Field, Value, Visitor};
use crate::layout;

/// Registers of a context.
pub const WORDS: usize = RxContext::LEN / 4;

layout! {
    /// What the device has to know of a receive queue.
    pub struct RxContext[32] {
        /// The entry that the device begins with.
        [12:0]     head: u16,
        /// The ring.
        [88:32]    ring: RingAddress as u64,
        /// Descriptors of the ring.
        [101:89]   ring_len: u16,
        /// Bytes of a buffer for data, in units of 128.
        [108:102]  data_units: u8,
        /// Bytes of a buffer for headers, in units of 64.
        [113:109]  header_units: u8,
        /// Whether headers go to buffers of their own.
        [115:114]  split: Split as u8,
        /// Descriptors have 32 bytes.
        [116]      long_descriptors: bool,
        /// The frame check sequence stays out of the buffers.
        [117]      strip_crc: bool,
        /// A tag that is stripped goes to the first of the descriptor's fields for tags.
        [119]      tag_in_first_field: bool,
        /// Longest frame, bytes.
        [187:174]  max_frame: u16,
    }
}

/// Whether headers go to buffers of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Split {
    /// Type 0: headers and data go to the same buffer.
    #[default]
    No,
    /// Type 1: headers always go to a buffer of their own.
    Headers,
    /// Type 2: headers go to a buffer of their own where the device knows where they end.
    Known,
    /// Type 3 has no meaning.
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
    /// The context that registers have, the lowest first.
    pub fn from_registers(registers: &[u32; WORDS]) -> Self {
        let mut bytes = [0; Self::LEN];
        for (bytes, register) in bytes.chunks_exact_mut(4).zip(registers) {
            bytes.copy_from_slice(&register.to_le_bytes());
        }
        Self::parse(&bytes)
    }

    /// Bytes of a buffer for data.
    pub fn data_len(&self) -> u16 {
        u16::from(self.data_units) * 128
    }

    /// Bytes of a buffer for headers.
    pub fn header_len(&self) -> u16 {
        u16::from(self.header_units) * 64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Iova;

    /// The bits of the specification's table put together by a program of a few lines that is not this one.
    #[test]
    fn fields_are_at_their_bits() {
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
            max_frame: 9728,
        };
        let context = RxContext::from_registers(&split);
        assert_eq!(context, expected);
        assert_eq!((context.data_len(), context.header_len()), (3072, 256));
    }
}
