//! Operations on memory regions and windows, which software names by STags: an index and, in the lowest byte, a key.
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
    /// What a region or window permits.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct StagRights: u8 {
        /// The owner may read.
        const LOCAL_READ = 1 << 0;
        /// The owner may write.
        const LOCAL_WRITE = 1 << 1;
        /// A peer may read.
        const REMOTE_READ = 1 << 2;
        /// A peer may write.
        const REMOTE_WRITE = 1 << 3;
        /// Windows may be bound to it.
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

/// Size of a region's pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HostPage {
    /// 4 KiB.
    #[default]
    Small,
    /// 2 MiB.
    Large,
    /// 1 GiB.
    Huge,
    /// Of no meaning.
    Reserved,
}

impl HostPage {
    /// log2 of its bytes.
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
    /// "Allocate STag": reserves a key for a region that will be registered by work requests, or for a window.
    pub struct AllocateStag[64] {
        /// Bytes that the region may have.
        @8[45:0]    len: u64,
        /// Protection domain.
        @8[63:46]   pd: Pdn,
        /// Index of the STag.
        @16[31:8]   index: u32 => Hex,
        /// Of a window: it is bound by the owner of the region, not by a queue pair alone.
        @24[42]     wide: bool,
        /// It is of a region, not of a window.
        @24[43]     region: bool,
        /// Levels of the list of its pages.
        @24[45:44]  level: ListLevel as u8,
        /// Size of its pages.
        @24[47:46]  page: HostPage as u8,
        /// What it may permit.
        @24[52:48]  rights: StagRights as u8,
        /// Peers may be given the STag.
        @24[53]     remote: bool,
        /// The first PBLE of its pages.
        @48[27:0]   first_page: PbleIndex,
    }
}

layout! {
    /// "Register MR".
    pub struct RegisterMr[64] {
        /// Address of the first byte; of a region that counts from 0, its place in the first page.
        @0          start: Va,
        /// Bytes; 0 is all of memory.
        @8[45:0]    len: u64,
        /// Protection domain.
        @8[63:46]   pd: Pdn,
        /// The whole STag.
        @16         stag: u32 => Hex,
        /// It is a region, which it always is.
        @24[43]     region: bool,
        /// Levels of the list of its pages.
        @24[45:44]  level: ListLevel as u8,
        /// Size of its pages.
        @24[47:46]  page: HostPage as u8,
        /// What it permits.
        @24[52:48]  rights: StagRights as u8,
        /// Peers may be given the STag.
        @24[53]     remote: bool,
        /// Addresses count from `start`, not from 0.
        @24[59]     virtual_address: bool,
        /// Where its bytes are, if they are contiguous.
        @32         address: Iova,
        /// The first PBLE of its pages.
        @48[27:0]   first_page: PbleIndex,
    }
}

layout! {
    /// "Deallocate STag".
    pub struct DeallocateStag[64] {
        /// Protection domain.
        @8[63:46]  pd: Pdn,
        /// Index of the STag.
        @16[31:8]  index: u32 => Hex,
        /// It is of a region, not of a window.
        @24[43]    region: bool,
    }
}
