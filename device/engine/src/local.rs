//! Work on keys that a send queue orders: registration, invalidation and windows without a command.
//!
//! # Spec
//! IBTA volume 1, sections 10.6.5 (fast registration, local invalidate), 10.6.7 (memory windows) and 10.8.3.3 (ordering).

use std::fmt;

use bitflags::bitflags;
use protocol::ids::{Iova, Lkey, Rkey, Va};

use crate::Access;

bitflags! {
    /// What a key permits besides local reads, which a region always permits.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct Rights: u8 {
        /// The owner may scatter into it.
        const LOCAL_WRITE = 1 << 0;
        /// A peer may write it.
        const REMOTE_WRITE = 1 << 1;
        /// A peer may read it.
        const REMOTE_READ = 1 << 2;
        /// A peer may execute atomics on it.
        const REMOTE_ATOMIC = 1 << 3;
        /// Windows may be bound to it.
        const BIND = 1 << 4;
    }
}

impl Rights {
    /// Whether `access` is permitted.
    pub const fn permit(self, access: Access) -> bool {
        match access {
            Access::LocalRead => true,
            Access::LocalWrite => self.contains(Self::LOCAL_WRITE),
            Access::RemoteWrite => self.contains(Self::REMOTE_WRITE),
            Access::RemoteRead => self.contains(Self::REMOTE_READ),
            Access::RemoteAtomic => self.contains(Self::REMOTE_ATOMIC),
        }
    }
}

/// log2 of a region's page size in bytes, 12 to 31.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageShift(u8);

impl PageShift {
    /// Pages of 4096 bytes.
    pub const MIN: Self = Self(12);

    /// `None` outside 12..=31.
    pub const fn new(shift: u8) -> Option<Self> {
        if matches!(shift, 12..=31) { Some(Self(shift)) } else { None }
    }

    /// The exponent.
    pub const fn get(self) -> u8 {
        self.0
    }

    /// Bytes of a page less one: the mask of an offset inside a page.
    pub const fn offset_mask(self) -> u64 {
        (1 << self.0) - 1
    }
}

/// How they are found, where that begins, and the exponent of a page's size: one word.
impl fmt::Display for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Contiguous { base, page_shift } => {
                write!(f, "contiguous,base={base},page={}", page_shift.get())
            }
            Self::List { first, page_shift } => write!(f, "list,first={first:#x},page={}", page_shift.get()),
            Self::TwoLevel { first, page_shift } => {
                write!(f, "two_level,first={first:#x},page={}", page_shift.get())
            }
        }
    }
}

/// Where the pages of a region are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// They follow each other on the bus.
    Contiguous {
        /// Bus address of the page that contains the region's first byte.
        base: Iova,
        /// Size of every page.
        page_shift: PageShift,
    },
    /// Entries of the page table that follow each other name them.
    List {
        /// Entry of the page that contains the region's first byte.
        first: u64,
        /// Size of every page.
        page_shift: PageShift,
    },
    /// Entries of the page table that follow each other name lists of 512 pages each.
    TwoLevel {
        /// Entry that names the list with the page that contains the region's first byte, which is the list's first.
        first: u64,
        /// Size of every page.
        page_shift: PageShift,
    },
}

/// Makes the key of an allocated region valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FastRegister {
    /// The whole new key. It differs from the one at allocation in the part that software owns.
    pub key: Lkey,
    /// First address. Its offset in a page is that of the region's first byte, whatever addresses count from.
    pub start: Va,
    /// Bytes.
    pub len: u64,
    /// What is permitted.
    pub rights: Rights,
    /// Addresses count from the region's first byte instead of 0.
    pub zero_based: bool,
    /// Its pages.
    pub pages: Pages,
}

/// Kinds of memory windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowKind {
    /// Type 1: of all QPs of its protection domain; bound again at will.
    Type1,
    /// Type 2B: of the QP that bound it; bound once, then invalidated.
    Type2B,
}

/// Gives a window a range of a region, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bind {
    /// The window's whole new key. It differs from the one before in the part that software owns.
    pub window: Rkey,
    /// The region.
    pub parent: Lkey,
    /// First address, in the region's addresses.
    pub va: Va,
    /// Bytes; 0 takes the range away.
    pub len: u64,
    /// What peers may do.
    pub rights: Rights,
    /// Peers' addresses count from the window's first byte instead of 0.
    pub zero_based: bool,
    /// What software takes the window for.
    pub kind: WindowKind,
}

/// Work on keys.
///
/// An invalidation waits until all older requests are done, since they may be gathered again. The others are executed
/// once, after the older requests began and before any younger one does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalOp {
    /// Ends what a key permits: of a region that was fast-registered, or of a window of type 2.
    Invalidate(Lkey),
    /// Fast registration.
    FastRegister(FastRegister),
    /// Binding of a window.
    Bind(Bind),
}
