//! Memory regions and windows: what a key stands for, and what it permits.
//!
//! # Spec
//! IBTA volume 1, sections 10.6.3 (checks of keys) and 10.6.7 (windows).

use engine::{Access, AccessError, Initiator, Pages, WindowKind};
pub use engine::{PageShift, Rights};
use protocol::ids::{Iova, Lkey, Pdn, Qpn, Va};

/// How the bytes behind a key are found on the bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Translation {
    /// They follow each other.
    Contiguous {
        /// Bus address of the first byte.
        bus: Iova,
    },
    /// Page after page through a page table.
    Paged {
        /// Size of every page.
        page_shift: PageShift,
        /// Page table entry of the first page.
        first_entry: u64,
        /// The first byte, counted from the beginning of the first page. A window's can be in a later one.
        offset: u64,
    },
    /// Page after page through lists that a page table lists.
    TwoLevel {
        /// Size of every page.
        page_shift: PageShift,
        /// Page table entry that names the first list.
        first_entry: u64,
        /// As of `Paged`.
        offset: u64,
    },
}

impl Translation {
    /// Page after page, where the first byte has the place in its page that `start` has.
    pub const fn paged(page_shift: PageShift, first_entry: u64, start: Va) -> Self {
        Self::Paged { page_shift, first_entry, offset: start.get() & page_shift.offset_mask() }
    }

    /// The pages of a work request, whose first byte has the place in its page that `start` has.
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

    /// The same bytes without the first `by`; `None` where addresses end.
    fn advance(self, by: u64) -> Option<Self> {
        Some(match self {
            Self::Contiguous { bus } => Self::Contiguous { bus: Iova::new(bus.get().checked_add(by)?) },
            Self::Paged { page_shift, first_entry, offset } => {
                Self::Paged { page_shift, first_entry, offset: offset.checked_add(by)? }
            }
            Self::TwoLevel { page_shift, first_entry, offset } => {
                Self::TwoLevel { page_shift, first_entry, offset: offset.checked_add(by)? }
            }
        })
    }
}

/// What the address of an access counts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Address 0: addresses run from the region's `start`.
    Zero,
    /// The region's first byte.
    Start,
}

/// How a valid key came to be, and what can end it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A region, registered by a command; only a command ends it.
    Registered,
    /// A region, registered by a work request; work requests and peers end it.
    FastRegistered {
        /// Bytes that a registration may have at the most.
        most: u64,
    },
    /// A window: its range is part of a region's.
    Window {
        /// Its type.
        kind: WindowKind,
        /// The only QP whose peer may use it, of type 2.
        owner: Option<Qpn>,
        /// Index of the region's key.
        parent: u32,
    },
}

/// A range of memory under a key: a region, or a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryRegion {
    /// The whole key; some of its bits are the index in the key table.
    pub key: Lkey,
    /// Protection domain.
    pub pd: Pdn,
    /// First address. Need not be page aligned.
    pub start: Va,
    /// Bytes.
    pub len: u64,
    /// What addresses in requests count from.
    pub origin: Origin,
    /// What is permitted.
    pub rights: Rights,
    /// Where the bytes are.
    pub translation: Translation,
    /// What can end it.
    pub kind: Kind,
}

impl MemoryRegion {
    /// All that the device can reach, whose addresses are bus addresses.
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

    /// Offset of `va` in the region if `who` may do `access` to `len` bytes there. The checks come in the order kind, PD,
    /// QP, right, bounds; `len` 0 needs the first four only.
    ///
    /// # Errors
    /// The first check that fails.
    pub fn grant(
        &self,
        who: Initiator,
        va: Va,
        origin: Origin,
        len: u64,
        access: Access,
    ) -> Result<u64, AccessError> {
        if access.is_local() && matches!(self.kind, Kind::Window { .. }) {
            return Err(AccessError::Kind);
        }
        self.admit(who)?;
        if !self.rights.permit(access) {
            return Err(AccessError::Right);
        }
        self.offset(va, origin, len)
    }

    /// Whether `who` may have to do with the key at all.
    ///
    /// # Errors
    /// It is of another protection domain, or of another QP.
    pub(super) fn admit(&self, who: Initiator) -> Result<(), AccessError> {
        if self.pd != who.pd {
            return Err(AccessError::Pd);
        }
        match self.kind {
            Kind::Window { owner: Some(owner), .. } if owner != who.qpn => Err(AccessError::Qp),
            _ => Ok(()),
        }
    }

    /// Offset of `va`, from which on `len` bytes are in the region.
    ///
    /// # Errors
    /// [`AccessError::Bounds`]: they are not.
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

    /// Where the bytes from `offset` on are.
    ///
    /// # Errors
    /// [`AccessError::Bounds`]: addresses end before.
    pub(super) fn translation_at(&self, offset: u64) -> Result<Translation, AccessError> {
        self.translation.advance(offset).ok_or(AccessError::Bounds)
    }
}
