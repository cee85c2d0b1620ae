//! Declares MAD attributes as in the tables of the specification: each field has an offset and a length in bits.

use crate::ids::{Lid, Pkey, Qkey, Qpn};

/// Position of a field. Bits are numbered from the most significant bit of the first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BitField {
    /// Offset of the first bit.
    pub offset: usize,
    /// Length of the field in bits.
    pub len: usize,
}

impl BitField {
    /// Returns the offset of the first bit after the field.
    pub const fn end(&self) -> usize {
        self.offset + self.len
    }

    /// Returns whether the field is inside an attribute of `attribute_len` bytes and fits the type `T`.
    pub(crate) const fn fits<T>(&self, attribute_len: usize) -> bool {
        self.end() <= 8 * attribute_len && self.len <= 8 * size_of::<T>()
    }

    /// Reads a field of up to 128 bits. Bits past the end of `bytes` read as 0.
    pub(crate) fn get(&self, bytes: &[u8]) -> u128 {
        (self.offset..self.end()).fold(0, |value, bit| value << 1 | u128::from(bit_at(bytes, bit)))
    }

    /// Writes a field of up to 128 bits. Bits past the end of `bytes` are dropped.
    pub(crate) fn put(&self, bytes: &mut [u8], value: u128) {
        for (above, bit) in (self.offset..self.end()).rev().enumerate() {
            let mask = 0x80 >> (bit % 8);
            let Some(byte) = bytes.get_mut(bit / 8) else { continue };
            if value >> above & 1 != 0 { *byte |= mask } else { *byte &= !mask }
        }
    }

    /// Returns whether the field has the same value in `a` and `b`.
    pub fn equal(&self, a: &[u8], b: &[u8]) -> bool {
        (self.offset..self.end()).all(|bit| bit_at(a, bit) == bit_at(b, bit))
    }
}

fn bit_at(bytes: &[u8], bit: usize) -> bool {
    bytes.get(bit / 8).is_some_and(|byte| byte & 0x80 >> (bit % 8) != 0)
}

/// A type that a field can have.
pub(crate) trait FieldValue: Copy {
    /// Decodes a field from the low bits of `bits`.
    fn from_bits(bits: u128) -> Self;
    /// Encodes the value in the low bits. [`BitField::put`] drops bits that do not fit in the field.
    fn to_bits(self) -> u128;
}

macro_rules! integers {
    ($($int:ty),*) => {$(
        impl FieldValue for $int {
            #[expect(clippy::cast_possible_truncation, reason = "a field is declared with a type that holds it")]
            fn from_bits(bits: u128) -> Self {
                bits as Self
            }

            fn to_bits(self) -> u128 {
                self.into()
            }
        }
    )*};
}
integers!(u8, u16, u32, u64);

macro_rules! ids {
    ($($id:ty, $int:ty);*) => {$(
        impl FieldValue for $id {
            fn from_bits(bits: u128) -> Self {
                Self::new(<$int>::from_bits(bits))
            }

            fn to_bits(self) -> u128 {
                self.get().to_bits()
            }
        }
    )*};
}
ids!(Lid, u16; Pkey, u16; Qkey, u32; Qpn, u32);

impl FieldValue for bool {
    fn from_bits(bits: u128) -> Self {
        bits & 1 != 0
    }

    fn to_bits(self) -> u128 {
        self.into()
    }
}

impl FieldValue for [u8; 16] {
    fn from_bits(bits: u128) -> Self {
        bits.to_be_bytes()
    }

    fn to_bits(self) -> u128 {
        u128::from_be_bytes(self)
    }
}

/// Declares an attribute of `LEN` bytes, as in `attribute! { pub struct Name[LEN] { field: Type = offset, bits; … } }`.
/// `parse` accepts every input, and `emit` writes reserved bits as 0.
macro_rules! attribute {
    (
        $(#[$doc:meta])*
        pub struct $name:ident[$len:expr] {
            $($(#[$field_doc:meta])* $field:ident: $type:ty = $offset:expr, $bits:expr;)*
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name {
            $($(#[$field_doc])* #[allow(missing_docs)] pub $field: $type,)*
        }

        impl $name {
            /// Length of the attribute in bytes.
            pub const LEN: usize = $len;

            /// Reads the fields. Every bit pattern is accepted.
            pub fn parse(bytes: &[u8; Self::LEN]) -> Self {
                use $crate::mad::field::{BitField, FieldValue};

                $(const { assert!(BitField { offset: $offset, len: $bits }.fits::<$type>($name::LEN)); })*
                Self {
                    $($field: FieldValue::from_bits(BitField { offset: $offset, len: $bits }.get(bytes)),)*
                }
            }

            /// Returns the attribute in wire format. Reserved bits are 0.
            pub fn emit(&self) -> [u8; Self::LEN] {
                use $crate::mad::field::{BitField, FieldValue};

                let mut bytes = [0; Self::LEN];
                $(BitField { offset: $offset, len: $bits }.put(&mut bytes, FieldValue::to_bits(self.$field));)*
                bytes
            }
        }
    };
}
pub(crate) use attribute;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bit_zero_is_most_significant() {
        let bytes = [0x12, 0x34, 0x56];
        assert_eq!(BitField { offset: 4, len: 12 }.get(&bytes), 0x234);
        assert_eq!(BitField { offset: 23, len: 1 }.get(&bytes), 0);
        let mut out = [0xff; 3];
        BitField { offset: 4, len: 12 }.put(&mut out, 0xf_f001);
        assert_eq!(out, [0xf0, 0x01, 0xff]);
    }

    #[test]
    fn bits_past_end_are_zero() {
        let field = BitField { offset: 12, len: 16 };
        assert_eq!(field.get(&[0xff, 0xff]), 0xf000);
        let mut out = [0; 2];
        field.put(&mut out, 0xffff);
        assert_eq!(out, [0, 0x0f]);
    }
}
