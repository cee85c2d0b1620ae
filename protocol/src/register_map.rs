//! Table-driven definitions of the registers and register arrays of a BAR.
//!
//! ```
//! protocol::register_map! {
//!     /// Registers of a timer block.
//!     pub enum Register {
//!         /// Starts and stops the timers.
//!         Control            "TMR_CONTROL" at 0x000;
//!         /// Interval of one timer.
//!         Interval(u16)      "TMR_INTERVAL" at 0x100 [16 by 4];
//!         /// Count of one timer in one bank, 64 bits.
//!         Count(u16, u16)    "TMR_COUNT" at 0x200 [2 by 0x80][16 by 8] wide;
//!     }
//! }
//! assert_eq!(Register::at(0x108), Some((Register::Interval(2), 0)));
//! assert_eq!(Register::at(0x28c), Some((Register::Count(1, 1), 4)));
//! assert_eq!(Register::at(0x140), None);
//! assert_eq!(Register::Count(1, 1).to_string(), "TMR_COUNT[1][1]");
//! assert_eq!(Register::Interval(2).offset(), 0x108);
//! ```
//!
//! Rows must be in ascending address order and must not overlap, which is checked at compile time.

use std::fmt;

/// One row of the table: a register, or a one- or two-dimensional array of registers `R`.
#[derive(Debug)]
pub struct Row<R> {
    /// Offset of the first register.
    pub base: u32,
    /// Element count and stride in bytes of the outer and inner dimensions. A missing dimension has 1 element and a
    /// stride of 0.
    pub dimensions: [(u16, u32); 2],
    /// Width of a register in bytes: 4 or 8.
    pub width: u32,
    /// Name of the row in the interface specification.
    pub name: &'static str,
    /// Creates the register from its outer and inner indices. The index of a missing dimension is ignored.
    pub make: fn(u16, u16) -> R,
}

impl<R> Row<R> {
    /// Returns the number of bytes from the start of the first register to the end of the last.
    const fn span(&self) -> u32 {
        let [(outer, outer_stride), (inner, inner_stride)] = self.dimensions;
        (outer as u32 - 1) * outer_stride + (inner as u32 - 1) * inner_stride + self.width
    }

    /// Returns the register that contains byte `within` of the row, and the byte's offset in the register.
    fn register(&self, within: u32) -> Option<(R, u32)> {
        let [(outer, outer_stride), (inner, inner_stride)] = self.dimensions;
        let (first, rest) = divide(within, outer, outer_stride)?;
        let (second, byte) = divide(rest, inner, inner_stride)?;
        (byte < self.width).then(|| ((self.make)(first, second), byte))
    }

    /// Returns the BAR offset of the register with the given indices.
    pub const fn offset(&self, outer: u16, inner: u16) -> u32 {
        self.base + outer as u32 * self.dimensions[0].1 + inner as u32 * self.dimensions[1].1
    }

    /// Writes the name, followed by an index in brackets for each array dimension.
    pub fn show(&self, outer: u16, inner: u16, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)?;
        for (index, (count, _)) in [outer, inner].into_iter().zip(self.dimensions) {
            if count > 1 {
                write!(f, "[{index}]")?;
            }
        }
        Ok(())
    }
}

fn divide(within: u32, count: u16, stride: u32) -> Option<(u16, u32)> {
    if count == 1 {
        return Some((0, within));
    }
    let index = u16::try_from(within / stride).ok().filter(|index| *index < count)?;
    Some((index, within % stride))
}

/// Returns whether the rows are in ascending order and do not overlap.
pub const fn in_order<R>(rows: &[Row<R>]) -> bool {
    let mut i = 1;
    while i < rows.len() {
        if rows[i - 1].base + rows[i - 1].span() > rows[i].base {
            return false;
        }
        i += 1;
    }
    true
}

/// Returns the register that contains the byte at `offset`, and the byte's offset in the register.
pub fn find<R>(rows: &[Row<R>], offset: u64) -> Option<(R, u32)> {
    let offset = u32::try_from(offset).ok()?;
    let after = rows.partition_point(|row| row.base <= offset);
    let row = rows.get(after.checked_sub(1)?)?;
    row.register(offset - row.base)
}

/// Defines the registers of a BAR in a table; see [the module](mod@crate::register_map).
#[macro_export]
macro_rules! register_map {
    (
        $(#[$meta:meta])*
        pub enum $register:ident {
            $(
                $(#[$doc:meta])*
                $name:ident $(($($index:ident),+))? $spec:literal at $base:literal
                    $([$count:literal by $stride:literal])* $($wide:ident)?;
            )*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $register {
            $($(#[$doc])* #[allow(missing_docs)] $name $(($($index),+))?,)*
        }

        impl $register {
            const ROWS: &[$crate::register_map::Row<Self>] = &[$(
                $crate::register_map::Row {
                    base: $base,
                    dimensions: $crate::register_map!(@dimensions $([$count by $stride])*),
                    width: $crate::register_map!(@width $($wide)?),
                    name: $spec,
                    make: $crate::register_map!(@make $register $name $(($($index),+))?),
                },
            )*];

            /// Returns the register that contains the byte at `offset`, and the byte's offset in the register.
            pub fn at(offset: u64) -> Option<(Self, u32)> {
                $crate::register_map::find(Self::ROWS, offset)
            }

            /// Returns the offset of the register's first byte in the BAR.
            pub fn offset(self) -> u32 {
                let (row, [outer, inner]) = self.place();
                row.offset(outer, inner)
            }

            /// Returns the width of the register in bytes.
            pub fn width(self) -> u32 {
                self.place().0.width
            }

            fn place(self) -> (&'static $crate::register_map::Row<Self>, [u16; 2]) {
                enum Order { $($name),* }
                match self {
                    $($crate::register_map!(@pattern $register a b $name $(($($index),+))?) => {
                        let indices = $crate::register_map!(@indices a b $(($($index),+))?);
                        (&Self::ROWS[Order::$name as usize], indices)
                    })*
                }
            }
        }

        impl std::fmt::Display for $register {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let (row, [outer, inner]) = self.place();
                row.show(outer, inner, f)
            }
        }

        const _: () = assert!(
            $crate::register_map::in_order($register::ROWS),
            "registers overlap or are out of order"
        );
    };

    (@dimensions) => { [(1, 0), (1, 0)] };
    (@dimensions [$count:literal by $stride:literal]) => { [($count, $stride), (1, 0)] };
    (@dimensions [$outer:literal by $outer_stride:literal] [$inner:literal by $inner_stride:literal]) => {
        [($outer, $outer_stride), ($inner, $inner_stride)]
    };
    (@width) => { 4 };
    (@width wide) => { 8 };
    (@make $register:ident $name:ident) => { |_, _| $register::$name };
    (@make $register:ident $name:ident ($a:ident)) => { |outer, _| $register::$name(outer) };
    (@make $register:ident $name:ident ($a:ident, $b:ident)) => { |outer, inner| $register::$name(outer, inner) };
    (@pattern $register:ident $x:ident $y:ident $name:ident) => { $register::$name };
    (@pattern $register:ident $x:ident $y:ident $name:ident ($a:ident)) => { $register::$name($x) };
    (@pattern $register:ident $x:ident $y:ident $name:ident ($a:ident, $b:ident)) => { $register::$name($x, $y) };
    (@indices $x:ident $y:ident) => { [0, 0] };
    (@indices $x:ident $y:ident ($a:ident)) => { [$x, 0] };
    (@indices $x:ident $y:ident ($a:ident, $b:ident)) => { [$x, $y] };
}
