//! Memory regions and windows, and the accesses that they permit.
//!
//! # Spec
//! IBTA volume 1, sections 10.6.3 (key checks) and 10.6.7 (windows).

pub use engine::Rights;
use engine::{Access, AccessError, Initiator};
use protocol::ids::{Iova, Lkey, Pdn, Qpn, Va};

pub use super::key_op::PageShift;
use super::key_op::{Pages, WindowKind};

/// How the bytes of a region or window map to bus addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Translation {
    /// The bytes are contiguous on the bus.
    Contiguous {
        /// Bus address of the first byte.
        bus: Iova,
    },
    /// Pages listed in a page table.
    Paged {
        page_shift: PageShift,
        /// Page table entry of the first page.
        first_entry: u64,
        /// Offset of the first byte from the start of the first page. For a window, it may exceed the page
        /// size.
        offset: u64,
    },
    /// Pages in lists of 512. The page table has an entry for each list.
    TwoLevel {
        page_shift: PageShift,
        /// Page table entry of the first list.
        first_entry: u64,
        /// Offset into the first page, as in `Paged`.
        offset: u64,
    },
    /// Ranges addressed through other keys. The page table has an entry for each range.
    Indirect {
        entry_len: EntryLen,
        count: u32,
        first_entry: u64,
        /// Offset of the first byte from the start of the first range.
        offset: u64,
    },
}

/// Length of the ranges in a list of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryLen {
    /// Each entry has its own length.
    PerEntry,
    /// All entries have this length. Lengths in the entries are ignored.
    Fixed(PageShift),
    /// Each entry has its own length, and the whole list is repeated. The first entry is a header, which
    /// [`PageTable::pattern`] returns.
    ///
    /// [`PageTable::pattern`]: super::translate::PageTable::pattern
    Strided,
}

impl Translation {
    /// Creates a paged translation. The first byte has the same page offset as `start`.
    pub const fn paged(page_shift: PageShift, first_entry: u64, start: Va) -> Self {
        Self::Paged { page_shift, first_entry, offset: start.get() & page_shift.offset_mask() }
    }

    /// Creates the translation for the pages in a work request. The first byte has the same page offset as `start`.
    pub const fn of(pages: &Pages, start: Va) -> Self {
        match *pages {
            Pages::Contiguous { base, page_shift } => {
                let mask = page_shift.offset_mask();
                Self::Contiguous { bus: Iova::new((base.get() & !mask) | (start.get() & mask)) }
            }
            Pages::List { first, page_shift } => Self::paged(page_shift, first, start),
            Pages::TwoLevel { first, page_shift } => {
                let offset = start.get() & page_shift.offset_mask();
                Self::TwoLevel { page_shift, first_entry: first, offset }
            }
        }
    }

    /// Skips the first `by` bytes. Returns `None` if the result is beyond the address space.
    fn advance(self, by: u64) -> Option<Self> {
        Some(match self {
            Self::Contiguous { bus } => Self::Contiguous { bus: Iova::new(bus.get().checked_add(by)?) },
            Self::Paged { page_shift, first_entry, offset } => {
                Self::Paged { page_shift, first_entry, offset: offset.checked_add(by)? }
            }
            Self::TwoLevel { page_shift, first_entry, offset } => {
                Self::TwoLevel { page_shift, first_entry, offset: offset.checked_add(by)? }
            }
            Self::Indirect { entry_len, count, first_entry, offset } => {
                Self::Indirect { entry_len, count, first_entry, offset: offset.checked_add(by)? }
            }
        })
    }
}

/// The origin of the addresses in a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Addresses are absolute: the first byte of the region is at `start`.
    Zero,
    /// Addresses are offsets from the first byte of the region.
    Start,
}

/// How a valid key was created, which determines how it can be invalidated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A region registered by a command, which only a command can deregister.
    Registered,
    /// A region registered by a work request. Work requests and peers can invalidate it.
    FastRegistered {
        /// Maximum length of a registration, in bytes.
        most: u64,
    },
    /// A window onto part of a region.
    Window {
        kind: WindowKind,
        /// For type 2, the only QP whose peer may use the window.
        owner: Option<Qpn>,
        /// Index of the region's key.
        parent: u32,
    },
}

/// A memory region or window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryRegion {
    /// The whole key. Some of its bits are the index into the key table.
    pub key: Lkey,
    pub pd: Pdn,
    /// First address, which need not be page-aligned.
    pub start: Va,
    pub len: u64,
    /// Origin of the addresses in requests.
    pub origin: Origin,
    pub rights: Rights,
    pub translation: Translation,
    pub kind: Kind,
}

impl MemoryRegion {
    /// Creates an identity-mapped region of all memory that the device can access.
    pub const fn whole_memory(key: Lkey, pd: Pdn, rights: Rights) -> Self {
        Self {
            key,
            pd,
            start: Va::new(0),
            len: u64::MAX,
            origin: Origin::Zero,
            rights,
            translation: Translation::Contiguous { bus: Iova::new(0) },
            kind: Kind::Registered,
        }
    }

    /// Returns the offset of `va` in the region if `initiator` may perform `access` on `len` bytes there. The kind,
    /// PD, QP, right and bounds are checked, in that order. If `len` is 0, `va` may also be the end of the region.
    ///
    /// # Errors
    /// Returns the error of the first check that fails.
    pub fn grant(
        &self,
        initiator: Initiator,
        va: Va,
        origin: Origin,
        len: u64,
        access: Access,
    ) -> Result<u64, AccessError> {
        if access.is_local() && matches!(self.kind, Kind::Window { .. }) {
            return Err(AccessError::Kind);
        }
        self.admit(initiator)?;
        if !self.rights.permit(access) {
            return Err(AccessError::Right);
        }
        self.offset(va, origin, len)
    }

    /// Checks whether `initiator` may use the key at all.
    ///
    /// # Errors
    /// Fails if the key belongs to another protection domain or QP.
    pub(super) fn admit(&self, initiator: Initiator) -> Result<(), AccessError> {
        if self.pd != initiator.pd {
            return Err(AccessError::Pd);
        }
        match self.kind {
            Kind::Window { owner: Some(owner), .. } if owner != initiator.qpn => Err(AccessError::Qp),
            _ => Ok(()),
        }
    }

    /// Returns the offset of `va` in the region if the `len` bytes starting at `va` are inside the region.
    ///
    /// # Errors
    /// Fails with [`AccessError::Bounds`] if any of these bytes is outside the region.
    pub(super) fn offset(&self, va: Va, origin: Origin, len: u64) -> Result<u64, AccessError> {
        let offset = match (origin, self.origin) {
            (Origin::Start, _) | (_, Origin::Start) => Some(va.get()),
            (Origin::Zero, Origin::Zero) => va.get().checked_sub(self.start.get()),
        };
        match offset {
            Some(offset) if offset <= self.len && len <= self.len - offset => Ok(offset),
            _ => Err(AccessError::Bounds),
        }
    }

    /// Returns the translation of the bytes starting at `offset`.
    ///
    /// # Errors
    /// Fails with [`AccessError::Bounds`] if the address space ends before `offset`.
    pub(super) fn translation_at(&self, offset: u64) -> Result<Translation, AccessError> {
        self.translation.advance(offset).ok_or(AccessError::Bounds)
    }
}
