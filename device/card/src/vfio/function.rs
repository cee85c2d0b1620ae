//! Description of a PCI function: its IDs, BARs and MSI-X layout.

use std::ops::Range;

/// A base address register. A 64-bit BAR is identified by the lower of its two registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bar {
    Bar0,
    Bar1,
    Bar2,
    Bar3,
    Bar4,
    Bar5,
}

impl Bar {
    /// All BARs, in config space order.
    pub const ALL: [Self; 6] = [Self::Bar0, Self::Bar1, Self::Bar2, Self::Bar3, Self::Bar4, Self::Bar5];

    /// Returns the BAR number, 0 to 5.
    pub const fn number(self) -> u8 {
        self as u8
    }
}

/// A 64-bit memory BAR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryBar {
    /// Length in bytes, a power of two and at least 16.
    pub len: u64,
    /// Whether reads have no side effects and a bridge may merge writes.
    pub prefetchable: bool,
}

/// The BARs of a function. Each BAR occupies two registers, and none begins at [`Bar::Bar5`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bars([Option<MemoryBar>; Bar::ALL.len()]);

impl Bars {
    /// Creates the set of BARs.
    ///
    /// # Panics
    /// Panics if two BARs overlap or a length is invalid. Either is a bug in the front-end.
    pub fn new<const N: usize>(bars: [(Bar, MemoryBar); N]) -> Self {
        let mut table = Self::default();
        let mut taken = 0_u8;
        for (bar, memory) in bars {
            let registers = 0b11 << bar.number();
            assert!(registers & !0b11_1111 == 0 && taken & registers == 0, "{bar:?} has no room");
            assert!(memory.len.is_power_of_two() && memory.len >= 16, "{bar:?} of {} bytes", memory.len);
            taken |= registers;
            table.0[usize::from(bar.number())] = Some(memory);
        }
        table
    }

    /// Returns the length of a BAR in bytes, or 0 if the BAR does not exist.
    pub fn len_of(&self, bar: Bar) -> u64 {
        self.0[usize::from(bar.number())].map_or(0, |memory| memory.len)
    }

    pub fn iter(&self) -> impl Iterator<Item = (Bar, MemoryBar)> {
        Bar::ALL.into_iter().zip(self.0).filter_map(|(bar, memory)| Some((bar, memory?)))
    }
}

/// Part of a BAR that a client may map. It begins and ends on page boundaries and does not contain MSI-X structures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BarRange {
    pub bar: Bar,
    /// Offsets in the BAR, in bytes.
    pub offsets: Range<u64>,
}

/// Location of the MSI-X structures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MsixLayout {
    /// Number of vectors, 1 to 2048.
    pub vectors: u16,
    /// BAR and offset of the table. Offsets are multiples of 8.
    pub table: (Bar, u32),
    /// BAR and offset of the pending bit array.
    pub pending: (Bar, u32),
}

/// A PCI function, as described by its config space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PciFunction {
    pub vendor: u16,
    pub device: u16,
    pub subsystem_vendor: u16,
    pub subsystem: u16,
    pub revision: u8,
    pub class: [u8; 3],
    pub bars: Bars,
    pub msix: MsixLayout,
    /// Device Serial Number capability, if present (PCI Express Base 4.0, section 7.9.3).
    pub serial_number: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMORY: MemoryBar = MemoryBar { len: 4096, prefetchable: false };

    #[test]
    fn bar_may_start_at_odd_register() {
        let bars = Bars::new([(Bar::Bar0, MEMORY), (Bar::Bar3, MemoryBar { len: 64, ..MEMORY })]);
        assert_eq!(Bar::ALL.map(|bar| bars.len_of(bar)), [4096, 0, 0, 64, 0, 0]);
        assert_eq!(bars.iter().map(|(bar, _)| bar.number()).collect::<Vec<_>>(), [0, 3]);
    }

    #[test]
    #[should_panic(expected = "Bar1 has no room")]
    fn bars_cannot_share_a_register() {
        let _ = Bars::new([(Bar::Bar0, MEMORY), (Bar::Bar1, MEMORY)]);
    }

    #[test]
    #[should_panic(expected = "Bar5 has no room")]
    fn last_register_cannot_hold_64_bit_bar() {
        let _ = Bars::new([(Bar::Bar5, MEMORY)]);
    }
}
