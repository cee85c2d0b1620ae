//! Inbox of WRITE_MTT: bus addresses of memory region pages.
//!
//! # Spec
//! JingZhao interface, sections 3.8, 4.7 and 12 (J-11).

use zerocopy::big_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::PAGE;
use super::cmd::CmdError;
use crate::describe::{Describe, Field, Visitor};
use crate::ids::Iova;

/// Maximum number of entries in a mailbox. A driver that passes a larger count sends the remaining entries in another
/// command (J-11).
pub const MAX_ENTRIES: usize = 508;

/// Length in bytes of an entry in ICM: a big-endian bus address.
pub const ENTRY_LEN: usize = 8;

/// Values of consecutive MTT entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteMtt {
    /// Index of the first entry, relative to the table base.
    pub start: u64,
    /// Bus address of each page. The low bits are kept as the driver wrote them.
    pub pages: Vec<Iova>,
}

/// Returns the length in bytes of a WRITE_MTT inbox with `entries` entries. Entries beyond [`MAX_ENTRIES`] are not
/// counted.
///
/// # Errors
/// BAD_PARAM if there are no entries.
pub fn inbox_len(entries: u32) -> Result<usize, CmdError> {
    Ok(size_of::<Head>() + clamp(entries)?.div_ceil(4) * size_of::<Group>())
}

impl WriteMtt {
    /// Parses an inbox. `entries` is the in_modifier.
    ///
    /// # Errors
    /// BAD_PARAM for a count of 0, an inbox shorter than the count requires, or a range whose table addresses exceed
    /// 2^64.
    pub fn parse(inbox: &[u8], entries: u32) -> Result<Self, CmdError> {
        let count = clamp(entries)?;
        let short = CmdError::param("WRITE_MTT inbox length", inbox.len() as u64);
        let inbox = inbox.get(..inbox_len(entries)?).ok_or(short)?;
        let (head, groups) = Head::ref_from_prefix(inbox).map_err(|_| short)?;
        let groups = <[Group]>::ref_from_bytes(groups).map_err(|_| short)?;
        let start = head.start.get();
        if start > u64::MAX / ENTRY_LEN as u64 - count as u64 {
            return Err(CmdError::param("MTT start index", start));
        }
        let pages = groups.iter().flat_map(|group| group.reversed.iter().rev());
        Ok(Self { start, pages: pages.take(count).map(|page| Iova::new(page.get())).collect() })
    }

    /// Returns the inbox in wire format, as a driver builds it. Pages beyond [`MAX_ENTRIES`] are dropped.
    pub fn emit(&self) -> Vec<u8> {
        let mut inbox = Vec::with_capacity(PAGE);
        inbox.extend_from_slice(Head { reserved_00: [0; 0x18], start: self.start.into() }.as_bytes());
        let (pages, _) = self.pages.split_at(self.pages.len().min(MAX_ENTRIES));
        for four in pages.chunks(4) {
            let mut group = Group { reversed: [U64::ZERO; 4] };
            for (slot, page) in group.reversed.iter_mut().rev().zip(four) {
                slot.set(page.get());
            }
            inbox.extend_from_slice(group.as_bytes());
        }
        inbox
    }
}

impl Describe for WriteMtt {
    fn describe(&self, to: &mut dyn Visitor) {
        self.start.show("start", to);
        to.addresses("pages", &mut self.pages.iter().map(|page| page.get()));
    }
}

fn clamp(entries: u32) -> Result<usize, CmdError> {
    if entries == 0 {
        return Err(CmdError::param("WRITE_MTT entry count", 0));
    }
    Ok((entries as usize).min(MAX_ENTRIES))
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Head {
    reserved_00: [u8; 0x18],
    start: U64,
}

/// Four entries in reverse order.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Group {
    reversed: [U64; 4],
}

const _: () = assert!(size_of::<Head>() + MAX_ENTRIES / 4 * size_of::<Group>() == PAGE);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Example inbox from section 14.4.
    const INBOX: [u8; 0x60] = [
        0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
        0x00, //
        0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
        0x10, //
        0x00, 0x00, 0x00, 0x02, 0x00, 0x00, 0x40, 0x00, 0x00, 0x00, 0x00, 0x02, 0x00, 0x00, 0x30,
        0x00, //
        0x00, 0x00, 0x00, 0x02, 0x00, 0x00, 0x20, 0x00, 0x00, 0x00, 0x00, 0x02, 0x00, 0x00, 0x10,
        0x00, //
        0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
        0x00, //
        0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x02, 0x00, 0x00, 0x50, 0x00,
    ];

    fn five() -> WriteMtt {
        WriteMtt { start: 0x10, pages: (1..=5).map(|n| Iova::new(0x2_0000_0000 + n * 0x1000)).collect() }
    }

    #[test]
    fn mtt_entries_are_reversed_within_group() {
        assert_eq!(WriteMtt::parse(&INBOX, 5), Ok(five()));
        assert_eq!(five().emit(), INBOX);
    }

    #[test]
    fn entry_count_is_capped_at_mailbox_size() {
        let full = WriteMtt { start: 0, pages: (0..508).map(|n| Iova::new(n << 12)).collect() };
        let inbox = full.emit();
        assert_eq!(inbox.len(), PAGE);
        assert_eq!(WriteMtt::parse(&inbox, 512), Ok(full));
    }

    #[test]
    fn rejects_empty_and_short_inbox() {
        assert!(WriteMtt::parse(&INBOX, 0).is_err());
        assert!(WriteMtt::parse(&INBOX, 9).is_err());
        let wraps = WriteMtt { start: u64::MAX, ..five() };
        assert!(WriteMtt::parse(&wraps.emit(), 5).is_err());
    }

    proptest! {
        #[test]
        fn parse_never_panics(inbox in prop::collection::vec(any::<u8>(), 0..=PAGE), n: u32) {
            let _ = WriteMtt::parse(&inbox, n);
        }

        #[test]
        fn emitted_inbox_round_trips(
            start in 0u64..1 << 60, pages in prop::collection::vec(any::<u64>(), 1..=508)
        ) {
            let write = WriteMtt { start, pages: pages.into_iter().map(Iova::new).collect() };
            let count = u32::try_from(write.pages.len()).unwrap();
            prop_assert_eq!(WriteMtt::parse(&write.emit(), count), Ok(write));
        }
    }
}
