//! Local key operations in a send queue: fast registration, local invalidate and memory windows.
//!
//! # Spec
//! IBTA volume 1, sections 10.6.5 (fast registration, local invalidate), 10.6.7 (memory windows), 10.8.3.3
//! (ordering).

use std::fmt;

use bitflags::bitflags;
use protocol::ids::{Iova, Lkey, Rkey, Va};

use crate::Access;

bitflags! {
    /// Permissions of a key. Local read is always permitted.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct Rights: u8 {
        /// Local requests can write.
        const LOCAL_WRITE = 1 << 0;
        /// Peers can write with RDMA WRITE.
        const REMOTE_WRITE = 1 << 1;
        /// Peers can read with RDMA READ.
        const REMOTE_READ = 1 << 2;
        /// Peers can execute atomic operations.
        const REMOTE_ATOMIC = 1 << 3;
        /// Memory windows can be bound to the region.
        const BIND = 1 << 4;
    }
}

impl Rights {
    /// Returns whether `access` is permitted.
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

    /// Creates a page size; `None` if `shift` is outside 12..=31.
    pub const fn new(shift: u8) -> Option<Self> {
        if matches!(shift, 12..=31) { Some(Self(shift)) } else { None }
    }

    /// Returns log2 of the page size.
    pub const fn get(self) -> u8 {
        self.0
    }

    /// Returns the mask of the offset inside a page: page size minus one.
    pub const fn offset_mask(self) -> u64 {
        (1 << self.0) - 1
    }
}

/// Formats the layout, first page or entry, and page shift without spaces, as in trace lines.
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

/// Page layout of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// One contiguous range of bus addresses.
    Contiguous {
        /// Bus address of the page with the first byte of the region.
        base: Iova,
        /// Size of each page.
        page_shift: PageShift,
    },
    /// Consecutive page table (MTT) entries, each naming a page.
    List {
        /// Entry of the page with the first byte of the region.
        first: u64,
        /// Size of each page.
        page_shift: PageShift,
    },
    /// Consecutive page table (MTT) entries, each naming a list of 512 pages.
    TwoLevel {
        /// Entry of the list whose first page holds the first byte of the region.
        first: u64,
        /// Size of each page.
        page_shift: PageShift,
    },
}

/// Fast registration: maps an allocated region and makes its key valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FastRegister {
    /// New key, in full. It differs from the allocated key only in the bits that software owns.
    pub key: Lkey,
    /// Virtual address of the first byte. Its page offset is that of the region, even if the region is zero-based.
    pub start: Va,
    /// Length of the region in bytes.
    pub len: u64,
    /// Permissions that the region grants.
    pub rights: Rights,
    /// Zero-based: addresses are offsets from the first byte.
    pub zero_based: bool,
    /// Location of the region's pages.
    pub pages: Pages,
}

/// Type of a memory window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowKind {
    /// Type 1: usable by all QPs of its PD; can be bound again at any time.
    Type1,
    /// Type 2B: usable by the QP that bound it; bound once, then invalidated.
    Type2B,
}

/// Binds a memory window to a range of a region, or unbinds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bind {
    /// New key of the window, in full. It differs from the previous key only in the bits that software owns.
    pub window: Rkey,
    /// L_Key of the region.
    pub parent: Lkey,
    /// Virtual address of the first byte in the region.
    pub va: Va,
    /// Length in bytes; 0 unbinds the window.
    pub len: u64,
    /// Permissions of the peer.
    pub rights: Rights,
    /// Zero-based: remote addresses are offsets from the first byte of the window.
    pub zero_based: bool,
    /// Window type expected by software.
    pub kind: WindowKind,
}

/// A local key operation.
///
/// An invalidation waits until all earlier requests are done, because these may be retransmitted and gathered again.
/// The other operations execute once, after all earlier requests have started and before any later one starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalOp {
    /// Invalidates the key of a fast-registered region or of a type 2 window.
    Invalidate(Lkey),
    /// Fast registration of a memory region.
    FastRegister(FastRegister),
    /// Memory window bind or unbind.
    Bind(Bind),
}
