//! What the fields of an object are called and how their values read.
//!
//! A type says it once, beside its layout, with `describe!`. What shows an object to people or programs is a
//! [`Visitor`], and knows no object.

use std::fmt;
use std::net::Ipv4Addr;

use crate::Psn;
use crate::ids::MacAddr;
use crate::roce::Imm;

/// A value and how people write it.
#[derive(Clone, Copy, Debug)]
pub enum Value<'a> {
    /// An amount, an exponent, a position: decimal.
    Number(u64),
    /// A number that names something, an address, bits: hexadecimal.
    Hex(u64),
    /// Yes or no.
    Flag(bool),
    /// A word of the specification.
    Name(&'a str),
    /// Those bits that are set, by name, and what has no name.
    Set(&'a [&'static str], u64),
    /// Opaque bytes.
    Bytes(&'a [u8]),
    /// Any other text.
    Text(fmt::Arguments<'a>),
}

impl Value<'_> {
    /// Whether it is what a field holds that nobody set.
    pub fn is_zero(&self) -> bool {
        match self {
            Self::Number(number) | Self::Hex(number) => *number == 0,
            Self::Flag(flag) => !*flag,
            Self::Set(names, rest) => names.is_empty() && *rest == 0,
            Self::Bytes(bytes) => bytes.iter().all(|byte| *byte == 0),
            Self::Name(_) | Self::Text(_) => false,
        }
    }
}

/// Is told the fields of an object in their order.
pub trait Visitor {
    /// A plain field.
    fn value(&mut self, name: &str, value: Value<'_>);

    /// A field that has fields.
    fn object(&mut self, name: &str, object: &dyn Describe);

    /// A field that is a list of objects.
    fn objects(&mut self, name: &str, objects: &mut dyn Iterator<Item = &dyn Describe>);

    /// A field that is a list of addresses.
    fn addresses(&mut self, name: &str, addresses: &mut dyn Iterator<Item = u64>);
}

/// An object with named fields.
pub trait Describe {
    /// Tells all fields.
    fn describe(&self, to: &mut dyn Visitor);
}

/// The value of a field.
pub trait Field {
    /// Tells it under this name.
    fn show(&self, name: &str, to: &mut dyn Visitor);
}

/// An integer that reads better in hexadecimal.
#[derive(Clone, Copy, Debug)]
pub struct Hex<T>(pub T);

/// A code and the word for it, if there is one.
#[derive(Clone, Copy, Debug)]
pub struct Code(pub u64, pub Option<&'static str>);

/// Shows the flags of a `bitflags` type.
pub fn show_flags<F: bitflags::Flags<Bits = u32>>(flags: &F, name: &str, to: &mut dyn Visitor) {
    let mut names = flags.iter_names();
    let known: smallvec::SmallVec<[_; 8]> = names.by_ref().map(|(name, _)| name).collect();
    to.value(name, Value::Set(&known, names.remaining().bits().into()));
}

/// `describe!(Type { field, other as Wrapper, … })` implements [`Describe`] and [`Field`] for a struct. Every field must
/// be there; `as` passes a copy of the field through a function first, and `_` leaves it out.
macro_rules! describe {
    ($type:ty { $($field:ident $(as $through:expr)?),* $(,)? }) => {
        impl $crate::describe::Describe for $type {
            fn describe(&self, to: &mut dyn $crate::describe::Visitor) {
                let Self { $($field),* } = self;
                $($crate::describe::describe!(@show to, $field $(, $through)?);)*
            }
        }
        $crate::describe::describe!(@field $type);
    };
    (@show $to:ident, $field:ident) => {
        $crate::describe::Field::show($field, stringify!($field), $to)
    };
    (@show $to:ident, $field:ident, $through:expr) => {
        $crate::describe::Field::show(&$through(*$field), stringify!($field), $to)
    };
    (@field $type:ty) => {
        impl $crate::describe::Field for $type {
            fn show(&self, name: &str, to: &mut dyn $crate::describe::Visitor) {
                to.object(name, self);
            }
        }
    };
}
pub(crate) use describe;

macro_rules! numbers {
    ($($int:ty),*) => {$(
        impl Field for $int {
            fn show(&self, name: &str, to: &mut dyn Visitor) {
                to.value(name, Value::Number(u64::from(*self)));
            }
        }
    )*};
}
numbers!(u8, u16, u32, u64);

impl Field for usize {
    fn show(&self, name: &str, to: &mut dyn Visitor) {
        to.value(name, Value::Number(*self as u64));
    }
}

impl<T: Copy + Into<u64>> Field for Hex<T> {
    fn show(&self, name: &str, to: &mut dyn Visitor) {
        to.value(name, Value::Hex(self.0.into()));
    }
}

impl Field for bool {
    fn show(&self, name: &str, to: &mut dyn Visitor) {
        to.value(name, Value::Flag(*self));
    }
}

impl Field for Code {
    fn show(&self, name: &str, to: &mut dyn Visitor) {
        to.value(name, self.1.map_or(Value::Hex(self.0), Value::Name));
    }
}

impl Field for &str {
    fn show(&self, name: &str, to: &mut dyn Visitor) {
        to.value(name, Value::Name(self));
    }
}

impl Field for fmt::Arguments<'_> {
    fn show(&self, name: &str, to: &mut dyn Visitor) {
        to.value(name, Value::Text(*self));
    }
}

impl<const N: usize> Field for [u8; N] {
    fn show(&self, name: &str, to: &mut dyn Visitor) {
        to.value(name, Value::Bytes(self));
    }
}

/// A field that is not there is not shown.
impl<T: Field> Field for Option<T> {
    fn show(&self, name: &str, to: &mut dyn Visitor) {
        if let Some(field) = self {
            field.show(name, to);
        }
    }
}

impl Field for Psn {
    fn show(&self, name: &str, to: &mut dyn Visitor) {
        to.value(name, Value::Hex(self.get().into()));
    }
}

impl Field for Imm {
    fn show(&self, name: &str, to: &mut dyn Visitor) {
        self.0.show(name, to);
    }
}

impl Field for MacAddr {
    fn show(&self, name: &str, to: &mut dyn Visitor) {
        to.value(name, Value::Text(format_args!("{self}")));
    }
}

impl Field for Ipv4Addr {
    fn show(&self, name: &str, to: &mut dyn Visitor) {
        to.value(name, Value::Text(format_args!("{self}")));
    }
}
