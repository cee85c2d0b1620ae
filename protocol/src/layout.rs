//! Table-driven definitions of device interface objects. A table lists the position, name and type of every field.
//!
//! ```
//! protocol::layout! {
//!     /// A node of a tree.
//!     pub struct Node[12] {
//!         /// Index of the parent node.
//!         @0       parent: u32,
//!         /// Bits 3 to 1 of byte 4.
//!         @4[3:1]  priority: u8,
//!         /// Bits 88 to 40 of the whole object.
//!         [88:40]  base: u64 => Hex,
//!         /// Bit 95 of the whole object.
//!         [95]     valid: bool,
//!     }
//! }
//! let node = Node::parse(&[1, 0, 0, 0, 0b1010, 2, 0, 0, 0, 0, 0, 0x80]);
//! assert_eq!((node.parent, node.priority, node.base, node.valid), (1, 5, 2, true));
//! assert_eq!(node.emit()[4], 0b1010);
//! ```
//!
//! From the table, the macro generates a struct with a field for each row, the constant `LEN`, the functions `parse`,
//! `parse_prefix` and `emit`, and a description for traces. Fields, `LEN` and the functions have the visibility of the
//! struct. The position of a field has one of three forms:
//!
//! - `@4`: the field begins at byte 4 and has the width of its type.
//! - `@4[3:1]`, `@4[0]`: bits of the object, numbered from the lowest bit of byte 4.
//! - `[88:40]`: bits of the whole object. Bit 0 is the lowest bit of byte 0, as in most device manuals.
//!
//! `parse` ignores unnamed bits, and `emit` sets them to zero. A position is rejected at compile time if it is outside
//! the object, overlaps another position, or is wider than its type.
//!
//! Objects are little-endian unless `big_endian` follows the length. In a big-endian object, `@4[3:1]` means bits 3 to
//! 1 of the big-endian 32-bit word at byte 4, and every position must start with a byte offset.
//!
//! ```
//! protocol::layout! {
//!     /// A queue.
//!     pub struct Queue[8] big_endian {
//!         /// Log2 of the number of entries.
//!         @0[28:24]  log_entries: u8,
//!         /// Queue number, 24 bits.
//!         @0[23:0]   number: u32 => Hex,
//!         /// Interrupt vector.
//!         @6         vector: u16,
//!     }
//! }
//! let queue = Queue::parse(&[0xe8, 0, 0, 0x42, 0, 0, 0, 3]);
//! assert_eq!((queue.log_entries, queue.number, queue.vector), (8, 0x42, 3));
//! ```
//!
//! A field is an integer, a `bool`, an array of integers or another object. `field: Type as u32` is stored as an
//! integer and converted to and from `Type`. The type determines how a value appears in traces, unless the row
//! overrides it: `=> Hex` shows an integer in hexadecimal, `=> function` shows the result of applying a function to the
//! value, and `=> _` omits the field.

use crate::ids::MacAddr;

/// Bit numbering of an object.
pub trait BitOrder {
    /// Reads `width` bits, at most 64, starting at bit `first`.
    fn take_bits(object: &[u8], first: usize, width: usize) -> u64;

    /// Writes `width` bits, at most 64, starting at bit `first`. The bits must be zero before the call.
    fn put_bits(object: &mut [u8], first: usize, width: usize, value: u64);
}

/// Numbering of little-endian objects: bit 0 is the lowest bit of byte 0.
#[derive(Clone, Copy, Debug)]
pub struct LittleEndian;

/// Numbering of big-endian objects: bit 0 is the highest bit of byte 0. The macro `layout` converts the bit
/// numbers in a table, which count from the lowest bit of a 32-bit word.
#[derive(Clone, Copy, Debug)]
pub struct BigEndian;

/// A type that a field can have.
pub trait Value: Sized {
    /// Width in bits of a field whose position is only a byte offset.
    const WIDTH: usize;

    /// Reads the value from `width` bits, starting at bit `first`. The object must contain these bits.
    fn take<O: BitOrder>(object: &[u8], first: usize, width: usize) -> Self;

    /// Writes the value. The bits must be zero before the call. High bits that do not fit in `width` are dropped.
    fn put<O: BitOrder>(&self, object: &mut [u8], first: usize, width: usize);
}

macro_rules! integers {
    ($($int:ty),*) => {$(
        impl Value for $int {
            const WIDTH: usize = size_of::<$int>() * 8;

            #[inline]
            fn take<O: BitOrder>(object: &[u8], first: usize, width: usize) -> Self {
                // The cast is lossless because `is_sound` rejects fields that are wider than their types.
                #[allow(clippy::cast_possible_truncation, reason = "as above")]
                { O::take_bits(object, first, width) as $int }
            }

            #[inline]
            fn put<O: BitOrder>(&self, object: &mut [u8], first: usize, width: usize) {
                O::put_bits(object, first, width, u64::from(*self));
            }
        }
    )*};
}
integers!(u8, u16, u32, u64);

impl Value for bool {
    const WIDTH: usize = 1;

    #[inline]
    fn take<O: BitOrder>(object: &[u8], first: usize, width: usize) -> Self {
        O::take_bits(object, first, width) != 0
    }

    #[inline]
    fn put<O: BitOrder>(&self, object: &mut [u8], first: usize, width: usize) {
        O::put_bits(object, first, width, u64::from(*self));
    }
}

/// The elements are adjacent, and the first element has the lowest bit numbers.
impl<T: Value + Copy + Default, const N: usize> Value for [T; N] {
    const WIDTH: usize = T::WIDTH * N;

    // Inlining makes the positions constants, so that short arrays compile to plain loads. `array::from_fn` is not
    // always inlined.
    #[inline(always)]
    fn take<O: BitOrder>(object: &[u8], first: usize, _: usize) -> Self {
        let mut values = [T::default(); N];
        for (at, value) in values.iter_mut().enumerate() {
            *value = T::take::<O>(object, first + at * T::WIDTH, T::WIDTH);
        }
        values
    }

    #[inline]
    fn put<O: BitOrder>(&self, object: &mut [u8], first: usize, _: usize) {
        for (at, value) in self.iter().enumerate() {
            value.put::<O>(object, first + at * T::WIDTH, T::WIDTH);
        }
    }
}

/// The address is in network byte order.
impl Value for MacAddr {
    const WIDTH: usize = 48;

    #[inline]
    fn take<O: BitOrder>(object: &[u8], first: usize, width: usize) -> Self {
        Self(Value::take::<O>(object, first, width))
    }

    #[inline]
    fn put<O: BitOrder>(&self, object: &mut [u8], first: usize, width: usize) {
        self.0.put::<O>(object, first, width);
    }
}

/// Maximum number of bytes that a field of up to 64 bits can span.
const MAX_FIELD_BYTES: usize = 9;

/// Returns the aligned 32-bit word that contains a field, and the number of the field's first bit in that word. Returns
/// `None` if no such word contains the whole field. Most fields are inside one word, and a word takes fewer
/// instructions to access than separate bytes.
#[inline(always)]
fn word_of(object: &[u8], first: usize, width: usize) -> Option<(u32, usize)> {
    let within = first % 32;
    let word = object.get(first / 32 * 4..).and_then(<[u8]>::first_chunk)?;
    (width != 0 && within + width <= 32).then(|| (u32::from_ne_bytes(*word), within))
}

/// Sets bits of the aligned 32-bit word that contains bit `first` of an object. `bits` is in the object's byte order.
/// Returns false if the object ends inside the word.
#[inline(always)]
fn set_in_word(object: &mut [u8], first: usize, bits: u32) -> bool {
    match object.get_mut(first / 32 * 4..).and_then(<[u8]>::first_chunk_mut) {
        Some(word) => {
            *word = (u32::from_ne_bytes(*word) | bits).to_ne_bytes();
            true
        }
        None => false,
    }
}

/// Returns the bytes of a 64-bit field that begins at a byte boundary. Returns `None` for any other field.
#[inline(always)]
fn double_word_at(object: &[u8], first: usize, width: usize) -> Option<[u8; 8]> {
    let bytes = object.get(first / 8..).and_then(<[u8]>::first_chunk)?;
    (width == 64 && first.is_multiple_of(8)).then_some(*bytes)
}

/// Returns the low 32 bits of a value.
#[inline(always)]
#[allow(clippy::cast_possible_truncation, reason = "the high bits are dropped on purpose")]
const fn low_word(value: u64) -> u32 {
    value as u32
}

impl BitOrder for LittleEndian {
    #[inline(always)]
    fn take_bits(object: &[u8], first: usize, width: usize) -> u64 {
        if let Some((word, within)) = word_of(object, first, width) {
            return u64::from(u32::from_le(word) >> within) & mask(width);
        }
        if let Some(bytes) = double_word_at(object, first, width) {
            return u64::from_le_bytes(bytes);
        }
        let bytes = object.get(first / 8..).unwrap_or_default();
        let mut word = [0; 16];
        let there = bytes.len().min(MAX_FIELD_BYTES);
        word[..there].copy_from_slice(&bytes[..there]);
        let value = u128::from_le_bytes(word) >> (first % 8);
        #[allow(clippy::cast_possible_truncation, reason = "the high bits are dropped on purpose")]
        let low = value as u64;
        low & mask(width)
    }

    #[inline(always)]
    fn put_bits(object: &mut [u8], first: usize, width: usize, value: u64) {
        let within = first % 32;
        if within + width <= 32
            && set_in_word(object, first, (low_word(value & mask(width)) << within).to_le())
        {
            return;
        }
        let bits = u128::from(value & mask(width)) << (first % 8);
        let touched = (first % 8 + width).div_ceil(8);
        for (byte, bits) in object.iter_mut().skip(first / 8).take(touched).zip(bits.to_le_bytes()) {
            *byte |= bits;
        }
    }
}

impl BitOrder for BigEndian {
    #[inline(always)]
    fn take_bits(object: &[u8], first: usize, width: usize) -> u64 {
        if let Some((word, within)) = word_of(object, first, width) {
            return u64::from(u32::from_be(word) << within >> (32 - width));
        }
        if let Some(bytes) = double_word_at(object, first, width) {
            return u64::from_be_bytes(bytes);
        }
        let bytes = object.get(first / 8..).unwrap_or_default();
        let mut word = [0; 16];
        let there = bytes.len().min(MAX_FIELD_BYTES);
        word[..there].copy_from_slice(&bytes[..there]);
        // The subtraction does not overflow, because the field starts in the first byte and is at most 64 bits wide.
        let value = u128::from_be_bytes(word) >> (128 - first % 8 - width);
        #[allow(clippy::cast_possible_truncation, reason = "the high bits are dropped on purpose")]
        let low = value as u64;
        low & mask(width)
    }

    #[inline(always)]
    fn put_bits(object: &mut [u8], first: usize, width: usize, value: u64) {
        let within = first % 32;
        if width != 0
            && within + width <= 32
            && set_in_word(object, first, (low_word(value & mask(width)) << (32 - within - width)).to_be())
        {
            return;
        }
        let bits = u128::from(value & mask(width)) << (128 - first % 8 - width);
        let touched = (first % 8 + width).div_ceil(8);
        for (byte, bits) in object.iter_mut().skip(first / 8).take(touched).zip(bits.to_be_bytes()) {
            *byte |= bits;
        }
    }
}

#[inline]
const fn mask(width: usize) -> u64 {
    if width >= 64 { u64::MAX } else { (1 << width) - 1 }
}

/// Position of a field: first bit, number of bits, and width of its type in bits.
pub type FieldSpan = (usize, usize, usize);

/// Returns whether every field is inside the object, fits its type and overlaps no other field.
pub const fn is_sound(object_len: usize, spans: &[FieldSpan]) -> bool {
    let mut i = 0;
    while i < spans.len() {
        let (first, width, room) = spans[i];
        if width == 0 || width > room || first + width > object_len * 8 {
            return false;
        }
        let mut j = 0;
        while j < i {
            let (other, other_width, _) = spans[j];
            if first < other + other_width && other < first + width {
                return false;
            }
            j += 1;
        }
        i += 1;
    }
    true
}

/// Defines an object from its table; see [the module](mod@crate::layout).
#[macro_export]
macro_rules! layout {
    ($(#[$meta:meta])* $vis:vis struct $name:ident[$len:expr] { $($fields:tt)* }) => {
        $crate::layout!(@define [] $(#[$meta])* $vis struct $name[$len] { $($fields)* });
    };
    ($(#[$meta:meta])* $vis:vis struct $name:ident[$len:expr] big_endian { $($fields:tt)* }) => {
        $crate::layout!(@define [big_endian] $(#[$meta])* $vis struct $name[$len] { $($fields)* });
    };
    (
        @define $order:tt
        $(#[$meta:meta])*
        $vis:vis struct $name:ident[$len:expr] {
            $(
                $(#[$doc:meta])*
                $(@ $byte:literal)? $([ $($bits:tt)+ ])?
                $field:ident: $type:ty $(as $raw:ty)? $(=> $show:tt $(:: $word:ident)?)?
            ),* $(,)?
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        $vis struct $name {
            $($(#[$doc])* #[allow(missing_docs)] $vis $field: $type,)*
        }

        impl $name {
            /// Length of the object in bytes.
            $vis const LEN: usize = $len;

            /// Reads the fields. Every bit pattern is accepted.
            #[inline]
            #[must_use]
            $vis fn parse(object: &[u8; Self::LEN]) -> Self {
                let object = object.as_slice();
                Self {
                    $($field: $crate::layout!(
                        @take $order object, ($crate::layout!(@place $order ($crate::layout!(@raw $type $(, $raw)?)) $(@ $byte)? $([ $($bits)+ ])?)),
                        $type $(, $raw)?
                    ),)*
                }
            }

            /// Reads the object at the front of `bytes`. Returns `None` if `bytes` is shorter than [`Self::LEN`].
            #[inline]
            #[must_use]
            $vis fn parse_prefix(bytes: &[u8]) -> Option<Self> {
                bytes.first_chunk().map(Self::parse)
            }

            /// Writes every field. Unnamed bits are zero.
            #[inline]
            #[must_use]
            $vis fn emit(&self) -> [u8; Self::LEN] {
                let mut object = [0; Self::LEN];
                $($crate::layout!(
                    @put $order self.$field, &mut object, ($crate::layout!(@place $order ($crate::layout!(@raw $type $(, $raw)?)) $(@ $byte)? $([ $($bits)+ ])?))
                    $(, $raw)?
                );)*
                object
            }

            const SPANS: &[$crate::layout::FieldSpan] = &[$(
                {
                    let (first, width) =
                        $crate::layout!(@place $order ($crate::layout!(@raw $type $(, $raw)?)) $(@ $byte)? $([ $($bits)+ ])?);
                    (first, width, <$crate::layout!(@raw $type $(, $raw)?) as $crate::layout::Value>::WIDTH)
                }
            ),*];
        }

        const _: () = assert!(
            $crate::layout::is_sound($name::LEN, $name::SPANS),
            "a field is outside of its object, overlaps another or is wider than its type"
        );

        /// Returns the object with all bits zero.
        impl Default for $name {
            fn default() -> Self {
                Self::parse(&[0; Self::LEN])
            }
        }

        impl $crate::layout::Value for $name {
            const WIDTH: usize = Self::LEN * 8;

            fn take<O: $crate::layout::BitOrder>(object: &[u8], first: usize, _: usize) -> Self {
                object.get(first / 8..).and_then(Self::parse_prefix).unwrap_or_default()
            }

            fn put<O: $crate::layout::BitOrder>(&self, object: &mut [u8], first: usize, _: usize) {
                for (byte, value) in object.iter_mut().skip(first / 8).zip(self.emit()) {
                    *byte = value;
                }
            }
        }

        impl $crate::describe::Describe for $name {
            fn describe(&self, to: &mut dyn $crate::describe::Visitor) {
                let _ = &to;
                $($crate::layout!(@show self.$field, to, stringify!($field) $(, $show $(:: $word)?)?);)*
            }
        }

        impl $crate::describe::Field for $name {
            fn show(&self, name: &str, to: &mut dyn $crate::describe::Visitor) {
                to.object(name, self);
            }
        }
    };

    (@raw $type:ty) => { $type };
    (@raw $type:ty, $raw:ty) => { $raw };

    (@order []) => { $crate::layout::LittleEndian };
    (@order [big_endian]) => { $crate::layout::BigEndian };

    (@place [] ($raw:ty) @ $byte:literal) => { ($byte * 8, <$raw as $crate::layout::Value>::WIDTH) };
    (@place [] ($raw:ty) $(@ $byte:literal)? [ $high:literal : $low:literal ]) => {
        ($($byte * 8 +)? $low, $high - $low + 1)
    };
    (@place [] ($raw:ty) $(@ $byte:literal)? [ $bit:literal ]) => { ($($byte * 8 +)? $bit, 1) };
    (@place [big_endian] ($raw:ty) @ $byte:literal) => { ($byte * 8, <$raw as $crate::layout::Value>::WIDTH) };
    (@place [big_endian] ($raw:ty) @ $byte:literal [ $high:literal : $low:literal ]) => {
        ($byte * 8 + 31 - $high, $high - $low + 1)
    };
    (@place [big_endian] ($raw:ty) @ $byte:literal [ $bit:literal ]) => { ($byte * 8 + 31 - $bit, 1) };

    (@take $order:tt $object:expr, $place:expr, $type:ty) => {{
        let (first, width) = $place;
        <$type as $crate::layout::Value>::take::<$crate::layout!(@order $order)>($object, first, width)
    }};
    (@take $order:tt $object:expr, $place:expr, $type:ty, $raw:ty) => {{
        let (first, width) = $place;
        <$type as From<$raw>>::from(
            <$raw as $crate::layout::Value>::take::<$crate::layout!(@order $order)>($object, first, width)
        )
    }};

    (@put $order:tt $value:expr, $object:expr, $place:expr) => {{
        let (first, width) = $place;
        $crate::layout::Value::put::<$crate::layout!(@order $order)>(&$value, $object, first, width)
    }};
    (@put $order:tt $value:expr, $object:expr, $place:expr, $raw:ty) => {{
        let (first, width) = $place;
        $crate::layout::Value::put::<$crate::layout!(@order $order)>(
            &<$raw>::from($value), $object, first, width
        )
    }};

    (@show $value:expr, $to:expr, $name:expr) => { $crate::describe::Field::show(&$value, $name, $to) };
    (@show $value:expr, $to:expr, $name:expr, _) => { () };
    (@show $value:expr, $to:expr, $name:expr, Hex) => {
        $crate::describe::Field::show(&$crate::describe::Hex($value), $name, $to)
    };
    (@show $value:expr, $to:expr, $name:expr, $through:path) => {
        $crate::describe::Field::show(&$through($value), $name, $to)
    };
}

#[cfg(test)]
mod tests {
    use super::is_sound;
    use crate::ids::MacAddr;

    layout! {
        /// An object with fields of every form.
        struct Sample[24] {
            /// A field that crosses a byte boundary.
            [12:3]    narrow: u16,
            /// A field that crosses a 64-bit word boundary.
            [88:32]   base: u64 => Hex,
            /// A flag in the top bit of the 32-bit word at byte 12.
            @12[31]   flag: bool,
            /// A field with the width of its type.
            @16       mac: MacAddr,
            /// A `Letter` that is stored as an integer.
            @22[7:4]  letter: Letter as u8 => _,
            /// A field that is an array.
            @2        pair: [u8; 2],
        }
    }

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Letter(char);

    impl From<u8> for Letter {
        fn from(code: u8) -> Self {
            Self(char::from(b'a' + code))
        }
    }

    impl From<Letter> for u8 {
        fn from(letter: Letter) -> Self {
            u8::try_from(letter.0).unwrap() - b'a'
        }
    }

    const SAMPLE: Sample = Sample {
        narrow: 0b11_0000_0001,
        base: 0x1ff_0000_1234_5678,
        flag: true,
        mac: MacAddr([1, 2, 3, 4, 5, 6]),
        letter: Letter('c'),
        pair: [0xaa, 0xbb],
    };
    const BYTES: [u8; 24] = [
        0x08, 0x18, 0xaa, 0xbb, 0x78, 0x56, 0x34, 0x12, 0x00, 0x00, 0xff, 0x01, 0, 0, 0, 0x80, //
        1, 2, 3, 4, 5, 6, 0x20, 0,
    ];

    #[test]
    fn little_endian_fields_match_table() {
        assert_eq!(Sample::parse(&BYTES), SAMPLE);
        assert_eq!(SAMPLE.emit(), BYTES);
    }

    layout! {
        struct Big[24] big_endian {
            /// A field inside a word.
            @0[28:24]  narrow: u8,
            /// A field that crosses a byte boundary.
            @0[13:3]   wide: u16,
            /// A flag in the lowest bit of a word.
            @4[0]      flag: bool,
            /// A field with a 64-bit value.
            @8         base: u64 => Hex,
            @16        mac: MacAddr,
            @22        pair: [u8; 2],
        }
    }

    #[test]
    fn big_endian_fields_round_trip_in_declared_bits() {
        let big = Big {
            narrow: 0x1f,
            wide: 0x401,
            flag: true,
            base: 0x0102_0304_0506_0708,
            mac: MacAddr([1, 2, 3, 4, 5, 6]),
            pair: [0xaa, 0xbb],
        };
        let bytes = [
            0x1f, 0x00, 0x20, 0x08, 0, 0, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8, //
            1, 2, 3, 4, 5, 6, 0xaa, 0xbb,
        ];
        assert_eq!(big.emit(), bytes);
        assert_eq!(Big::parse(&bytes), big);
        assert_eq!(Big::parse(&[0xff; 24]).emit()[..8], [0x1f, 0x00, 0x3f, 0xf8, 0, 0, 0, 1]);
    }

    #[test]
    fn unnamed_bits_are_emitted_as_zero() {
        let mut bytes = [0xff; 24];
        bytes[22] = 0x2f;
        assert_eq!(Sample::parse(&bytes).emit()[22..], [0x20, 0]);
        assert_eq!(Sample::parse(&bytes).emit()[..2], [0xf8, 0x1f]);
    }

    #[test]
    fn oversized_value_leaves_other_fields_intact() {
        let large = Sample { narrow: 0xffff, ..Sample::default() };
        assert_eq!(large.emit()[..3], [0xf8, 0x1f, 0]);
    }

    #[test]
    fn parse_prefix_rejects_short_input() {
        assert_eq!(Sample::parse_prefix(&BYTES[..23]), None);
        let longer = [&BYTES[..], &[1]].concat();
        assert_eq!(Sample::parse_prefix(&longer), Some(SAMPLE));
    }

    #[test]
    fn overlapping_or_oversized_fields_are_rejected() {
        assert!(is_sound(4, &[(0, 16, 16), (16, 16, 16)]));
        assert!(!is_sound(4, &[(0, 16, 16), (15, 2, 8)]), "overlapping fields are rejected");
        assert!(!is_sound(4, &[(24, 9, 16)]), "a field outside the object is rejected");
        assert!(!is_sound(4, &[(0, 9, 8)]), "a field wider than its type is rejected");
        assert!(!is_sound(4, &[(0, 0, 8)]), "a field without bits is rejected");
    }
}
