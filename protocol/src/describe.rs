//! Field names and display formats, for traces.
//!
//! Each layout declares its fields once with `describe!`. A [`Visitor`] can render any described object, regardless of
//! its type.

use std::fmt;
use std::net::Ipv4Addr;

use crate::Psn;
use crate::ids::MacAddr;
use crate::roce::Imm;

/// A field value and its display format.
#[derive(Clone, Copy, Debug)]
pub enum Value<'a> {
    /// Quantity, exponent or position, in decimal.
    Number(u64),
    /// Identifier, address or bit mask, in hexadecimal.
    Hex(u64),
    /// A flag that is one bit wide.
    Flag(bool),
    /// Symbolic name from the specification.
    Name(&'a str),
    /// Names of the flags that are set, and a mask of the set bits that have no name.
    Set(&'a [&'static str], u64),
    /// Bytes without further structure.
    Bytes(&'a [u8]),
    /// Text that has already been formatted.
    Text(fmt::Arguments<'a>),
}

impl Value<'_> {
    /// Returns whether the value is zero, as in an unused field. Names and text are never zero.
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

/// Receives an object's fields in order.
pub trait Visitor {
    /// Receives a field with a single value.
    fn value(&mut self, name: &str, value: Value<'_>);

    /// Receives a field that is a nested object.
    fn object(&mut self, name: &str, object: &dyn Describe);

    /// Receives a field that is a list of objects.
    fn objects(&mut self, name: &str, objects: &mut dyn Iterator<Item = &dyn Describe>);

    /// Receives a field that is a list of addresses.
    fn addresses(&mut self, name: &str, addresses: &mut dyn Iterator<Item = u64>);
}

/// An object whose fields can be visited.
pub trait Describe {
    /// Passes every field to the visitor, in order.
    fn describe(&self, to: &mut dyn Visitor);
}

/// A type that can be a field of a described object.
pub trait Field {
    /// Passes this field to the visitor under `name`.
    fn show(&self, name: &str, to: &mut dyn Visitor);
}

/// An integer shown in hexadecimal.
#[derive(Clone, Copy, Debug)]
pub struct Hex<T>(pub T);

/// An encoded value and its symbolic name, if it has one.
#[derive(Clone, Copy, Debug)]
pub struct Code(pub u64, pub Option<&'static str>);

/// Passes the flags of a `bitflags` type to the visitor as [`Value::Set`].
pub fn show_flags<F: bitflags::Flags<Bits: Into<u64>>>(flags: &F, name: &str, to: &mut dyn Visitor) {
    let mut names = flags.iter_names();
    let known: smallvec::SmallVec<[_; 8]> = names.by_ref().map(|(name, _)| name).collect();
    to.value(name, Value::Set(&known, names.remaining().bits().into()));
}

/// Implements [`Describe`] and [`Field`] for a struct, as in `describe!(Type { field, other as Wrapper, … })`. Every
/// field must be listed. `as` passes a copy of the field to a function and shows the result.
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

/// Omits the field if it is `None`.
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
