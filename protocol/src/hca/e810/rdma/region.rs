//! CQP operations on memory regions and windows. An STag identifies a region or window: its lowest byte is a key, and
//! the other bytes are an index.
//!
//! # Spec
//! E810 interface, sections 10.3 and 13.7.

use bitflags::bitflags;

use super::index::PbleIndex;
use super::page_list::ListLevel;
use crate::describe::{Code, Field, Value, Visitor};
use crate::ids::{Iova, Pdn, Va};
use crate::layout;

bitflags! {
    /// Access rights of a region or window.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct StagRights: u8 {
        /// Local requests can read.
        const LOCAL_READ = 1 << 0;
        /// Local requests can write.
        const LOCAL_WRITE = 1 << 1;
        /// Peers can execute RDMA READ.
        const REMOTE_READ = 1 << 2;
        /// Peers can execute RDMA WRITE.
        const REMOTE_WRITE = 1 << 3;
        /// Memory windows can be bound to the region.
        const BIND = 1 << 4;
    }
}

impl From<u8> for StagRights {
    fn from(bits: u8) -> Self {
        Self::from_bits_retain(bits)
    }
}

impl From<StagRights> for u8 {
    fn from(rights: StagRights) -> Self {
        rights.bits()
    }
}

impl Field for StagRights {
    fn show(&self, name: &str, to: &mut dyn Visitor) {
        let mut names = self.iter_names();
        let known: smallvec::SmallVec<[_; 8]> = names.by_ref().map(|(name, _)| name).collect();
        to.value(name, Value::Set(&known, names.remaining().bits().into()));
    }
}

/// Page size of a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum HostPage {
    /// Pages of 4 KiB.
    #[default]
    Small,
    /// Pages of 2 MiB.
    Large,
    /// Pages of 1 GiB.
    Huge,
    Reserved,
}

impl HostPage {
    /// Returns the log2 of the page size in bytes, or `None` for the reserved code.
    pub const fn shift(self) -> Option<u8> {
        match self {
            Self::Small => Some(12),
            Self::Large => Some(21),
            Self::Huge => Some(30),
            Self::Reserved => None,
        }
    }
}

impl From<u8> for HostPage {
    fn from(code: u8) -> Self {
        match code {
            0 => Self::Small,
            1 => Self::Large,
            2 => Self::Huge,
            _ => Self::Reserved,
        }
    }
}

impl From<HostPage> for u8 {
    fn from(page: HostPage) -> Self {
        match page {
            HostPage::Small => 0,
            HostPage::Large => 1,
            HostPage::Huge => 2,
            HostPage::Reserved => 3,
        }
    }
}

impl Field for HostPage {
    fn show(&self, name: &str, to: &mut dyn Visitor) {
        let word = match self {
            Self::Small => Some("4K"),
            Self::Large => Some("2M"),
            Self::Huge => Some("1G"),
            Self::Reserved => None,
        };
        Code(u8::from(*self).into(), word).show(name, to);
    }
}

layout! {
    /// CQP WQE of "Allocate STag". The STag is for a window or for a region that a send WQE will register.
    pub struct AllocateStag[64] {
        /// Maximum length of the region in bytes.
        @8[45:0]    len: u64,
        @8[63:46]   pd: Pdn,
        /// Index of the STag.
        @16[31:8]   index: u32 => Hex,
        /// Whether the window is type 1: tied to a protection domain rather than a QP.
        @24[42]     wide: bool,
        /// Whether the STag is for a region rather than a window.
        @24[43]     region: bool,
        @24[45:44]  level: ListLevel as u8,
        @24[47:46]  page: HostPage as u8,
        /// Rights that the region can grant.
        @24[52:48]  rights: StagRights as u8,
        /// Whether remote access is allowed.
        @24[53]     remote: bool,
        /// First PBLE of the page list.
        @48[27:0]   first_page: PbleIndex,
    }
}

layout! {
    /// CQP WQE of "Register MR".
    pub struct RegisterMr[64] {
        /// First virtual address or, for a zero-based region, offset in the first page.
        @0          start: Va,
        /// Length in bytes, or 0 for all memory.
        @8[45:0]    len: u64,
        @8[63:46]   pd: Pdn,
        /// The STag with its key byte.
        @16         stag: u32 => Hex,
        /// Whether the STag is for a region; always set.
        @24[43]     region: bool,
        @24[45:44]  level: ListLevel as u8,
        @24[47:46]  page: HostPage as u8,
        /// Access rights of the region.
        @24[52:48]  rights: StagRights as u8,
        /// Whether remote access is allowed.
        @24[53]     remote: bool,
        /// Whether virtual addresses begin at `start` rather than at 0.
        @24[59]     virtual_address: bool,
        /// Address of the memory, if it is contiguous.
        @32         address: Iova,
        /// First PBLE of the page list.
        @48[27:0]   first_page: PbleIndex,
    }
}

layout! {
    /// CQP WQE of "Deallocate STag".
    pub struct DeallocateStag[64] {
        @8[63:46]  pd: Pdn,
        /// Index of the STag.
        @16[31:8]  index: u32 => Hex,
        /// Whether the STag belongs to a region rather than a window.
        @24[43]    region: bool,
    }
}
