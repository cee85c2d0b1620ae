//! Inbox of MAP_ICM, the command that maps ICM pages to bus pages.
//!
//! # Spec
//! JingZhao interface, section 3.5.

use zerocopy::big_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::PAGE;
use super::cmd::{CmdError, Op};
use crate::describe::{Field, Visitor, describe};
use crate::ids::{IcmAddr, Iova};

/// Maximum number of entries in a MAP_ICM inbox, limited by the mailbox length.
pub const MAX_ENTRIES: u32 = 256;

/// One of the two ICM translation tables. Each has its own address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IcmTable {
    /// op_modifier 1: QPC, CQC and EQC.
    Context,
    /// op_modifier 2: MPT and MTT.
    Tpt,
}

impl IcmTable {
    /// Returns the table selected by an op_modifier.
    ///
    /// # Errors
    /// BAD_PARAM if the op_modifier is neither 1 nor 2.
    pub const fn from_op_modifier(op_modifier: u8) -> Result<Self, CmdError> {
        match op_modifier {
            1 => Ok(Self::Context),
            2 => Ok(Self::Tpt),
            other => Err(CmdError::param("op_modifier", other as u64)),
        }
    }

    /// Returns the table that a command accesses, if any.
    pub fn of(op: Op, op_modifier: u8) -> Option<Self> {
        let selects = matches!(op, Op::MapIcm | Op::UnmapIcm);
        Self::from_op_modifier(op_modifier).ok().filter(|_| selects)
    }

    /// Returns the op_modifier that selects the table; the inverse of [`IcmTable::from_op_modifier`].
    pub const fn op_modifier(self) -> u8 {
        match self {
            Self::Context => 1,
            Self::Tpt => 2,
        }
    }
}

impl Field for IcmTable {
    fn show(&self, name: &str, to: &mut dyn Visitor) {
        let word = match self {
            Self::Context => "context",
            Self::Tpt => "tpt",
        };
        word.show(name, to);
    }
}

/// A contiguous range of pages to map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapEntry {
    /// ICM address of the first page, page-aligned.
    pub virt: IcmAddr,
    /// Bus address of the first page, page-aligned.
    pub bus: Iova,
    /// Number of 4 KiB pages, 1 to 4095.
    pub pages: u16,
}

describe!(MapEntry { virt, bus, pages });

/// Returns the length in bytes of a MAP_ICM inbox with `entries` entries.
///
/// # Errors
/// BAD_PARAM if there are no entries or more than [`MAX_ENTRIES`].
pub fn inbox_len(entries: u32) -> Result<usize, CmdError> {
    if entries == 0 || entries > MAX_ENTRIES {
        return Err(CmdError::param("MAP_ICM entry count", entries.into()));
    }
    Ok((entries as usize).div_ceil(2) * size_of::<Group>())
}

/// Parses the inbox of MAP_ICM. If any entry is invalid, the whole command is rejected.
///
/// # Errors
/// BAD_PARAM for an invalid count, an inbox shorter than the count requires, an entry without pages, an ICM address
/// that is not page-aligned, or a range that extends past the end of the 64-bit address space.
pub fn parse(inbox: &[u8], entries: u32) -> Result<Vec<MapEntry>, CmdError> {
    let len = inbox_len(entries)?;
    let groups = inbox
        .get(..len)
        .and_then(|bytes| <[Group]>::ref_from_bytes(bytes).ok())
        .ok_or(CmdError::param("MAP_ICM inbox length", inbox.len() as u64))?;
    groups
        .iter()
        .flat_map(|group| [&group.even, &group.odd])
        .take(entries as usize)
        .map(parse_entry)
        .collect()
}

/// Builds the inbox of MAP_ICM as a driver does. Entries beyond [`MAX_ENTRIES`] are dropped.
pub fn emit(entries: &[MapEntry]) -> Vec<u8> {
    let emit_entry = |entry: &MapEntry| Raw {
        virt: entry.virt.get().into(),
        page: (entry.bus.get() & !0xfff | u64::from(entry.pages & 0xfff)).into(),
    };
    let unused = Raw { virt: U64::ZERO, page: U64::ZERO };
    let mut inbox = Vec::with_capacity(PAGE);
    for pair in entries.chunks(2).take(MAX_ENTRIES as usize / 2) {
        let even = pair.first().map_or(unused, emit_entry);
        let odd = pair.get(1).map_or(unused, emit_entry);
        inbox.extend_from_slice(Group { odd, even }.as_bytes());
    }
    inbox
}

fn parse_entry(raw: &Raw) -> Result<MapEntry, CmdError> {
    const PAGE_MASK: u64 = PAGE as u64 - 1;
    let virt = raw.virt.get();
    if virt & PAGE_MASK != 0 {
        return Err(CmdError::param("unaligned ICM address", virt));
    }
    let page = raw.page.get();
    // The mask leaves 12 bits, which fit into `u16`.
    let pages = (page & PAGE_MASK) as u16;
    if pages == 0 {
        return Err(CmdError::param("page count is 0 in entry for ICM address", virt));
    }
    let last = (u64::from(pages) << 12) - 1;
    let bus = page & !PAGE_MASK;
    if virt.checked_add(last).is_none() || bus.checked_add(last).is_none() {
        return Err(CmdError::param("address space exceeded by entry for ICM address", virt));
    }
    Ok(MapEntry { virt: IcmAddr::new(virt), bus: Iova::new(bus), pages })
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    virt: U64,
    /// Bits 63:12: bus address; bits 11:0: number of pages.
    page: U64,
}

/// A pair of entries in swapped order. The entry with the odd index comes first.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Group {
    odd: Raw,
    even: Raw,
}

const _: () = assert!(size_of::<Group>() == 0x20);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entry(virt: u64, bus: u64, pages: u16) -> MapEntry {
        MapEntry { virt: IcmAddr::new(virt), bus: Iova::new(bus), pages }
    }

    /// Example inbox from section 14.3, with one entry.
    const ONE: [u8; 0x20] = [
        0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
        0x00, //
        0x00, 0x00, 0x00, 0x00, 0x02, 0x40, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x12, 0x34, 0x50, 0x01,
    ];

    /// Example inbox from section 14.3, with three entries.
    const THREE: [u8; 0x40] = [
        0x00, 0x00, 0x00, 0x00, 0x00, 0x04, 0x00, 0x00, 0x00, 0x00, 0x00, 0x01, 0x00, 0x04, 0x00,
        0x20, //
        0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00,
        0x40, //
        0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
        0x00, //
        0x00, 0x00, 0x00, 0x00, 0x00, 0x06, 0x00, 0x00, 0x00, 0x00, 0x00, 0x01, 0x00, 0x20, 0x00, 0x20,
    ];

    #[test]
    fn single_entry_uses_second_half_of_group() {
        let entries = [entry(0x240_0000, 0x1234_5000, 1)];
        assert_eq!(parse(&ONE, 1).unwrap(), entries);
        assert_eq!(emit(&entries), ONE);
    }

    #[test]
    fn icm_entries_are_swapped_within_group() {
        let entries = [
            entry(0, 0x1_0000_0000, 64),
            entry(0x4_0000, 0x1_0004_0000, 32),
            entry(0x6_0000, 0x1_0020_0000, 32),
        ];
        assert_eq!(parse(&THREE, 3).unwrap(), entries);
        assert_eq!(emit(&entries), THREE);
    }

    const LAST_PAGE: u64 = !0xfff;

    #[test]
    fn invalid_entry_rejects_whole_command() {
        for bad in [
            entry(0x1000, 0x1000, 0),
            entry(0x1001, 0x1000, 1),
            entry(LAST_PAGE, 0x1000, 2),
            entry(0x1000, LAST_PAGE, 2),
        ] {
            assert!(parse(&emit(&[entry(0, 0x1000, 1), bad]), 2).is_err(), "{bad:?}");
        }
        assert!(parse(&emit(&[entry(LAST_PAGE, 0x1000, 1)]), 1).is_ok());
        assert!(parse(&ONE, 0).is_err());
        assert!(parse(&ONE, 257).is_err());
        assert!(parse(&ONE, 3).is_err());
    }

    proptest! {
        #[test]
        fn parse_never_panics(inbox in prop::collection::vec(any::<u8>(), 0..PAGE), n in 0u32..300) {
            let _ = parse(&inbox, n);
        }

        #[test]
        fn emitted_inbox_round_trips(
            runs in prop::collection::vec((0u64..1 << 50, 0u64..1 << 50, 1u16..4096), 1..=256)
        ) {
            let entries: Vec<_> =
                runs.into_iter().map(|(virt, bus, pages)| entry(virt << 12, bus << 12, pages)).collect();
            let count = u32::try_from(entries.len()).unwrap();
            prop_assert_eq!(parse(&emit(&entries), count).unwrap(), entries);
        }
    }
}
