//! Message layouts, in host byte order.

use vfio_bindings::bindings::vfio::{
    VFIO_PCI_BAR0_REGION_INDEX, VFIO_PCI_BAR1_REGION_INDEX, VFIO_PCI_BAR2_REGION_INDEX,
    VFIO_PCI_BAR3_REGION_INDEX, VFIO_PCI_BAR4_REGION_INDEX, VFIO_PCI_BAR5_REGION_INDEX,
    VFIO_PCI_CONFIG_REGION_INDEX,
};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::vfio::Bar;

/// Maximum number of bytes that one region access may transfer. This is also the protocol's default.
pub const MAX_TRANSFER_LEN: u32 = 1 << 20;

/// Maximum number of writes in one REGION_WRITE_MULTI. QEMU sends at most 200. A limit is needed because each write may
/// start a command, and other sockets are not served until all writes are done.
pub(super) const MAX_SMALL_WRITES: usize = 256;

/// Maximum number of file descriptors per message. QEMU does not send more.
pub(super) const MAX_FDS: usize = 16;

pub(super) const HEADER_LEN: usize = size_of::<Header>();

/// Maximum message length in bytes, including the header.
pub(super) const MAX_MESSAGE_LEN: usize = HEADER_LEN + size_of::<RegionAccess>() + MAX_TRANSFER_LEN as usize;

/// Type bits of [`Header::flags`].
pub(super) const FLAG_TYPE: u32 = 0xf;
pub(super) const FLAG_REPLY: u32 = 1;
pub(super) const FLAG_NO_REPLY: u32 = 1 << 4;
pub(super) const FLAG_ERROR: u32 = 1 << 5;

/// Header of every message.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(super) struct Header {
    pub(super) id: u16,
    pub(super) command: u16,
    /// Length of the whole message.
    pub(super) size: u32,
    pub(super) flags: u32,
    pub(super) error: u32,
}

/// Command number of REGION_WRITE_MULTI, which is in the protocol specification but not in the `vfio_user` crate.
const REGION_WRITE_MULTI: u16 = 15;

/// Client commands that this server supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Command {
    Version,
    DmaMap,
    DmaUnmap,
    GetInfo,
    GetRegionInfo,
    GetIrqInfo,
    SetIrqs,
    RegionRead,
    RegionWrite,
    Reset,
    RegionWriteMulti,
}

impl Command {
    /// Returns the command with number `raw`, or `None` if it is not supported. The server supports neither
    /// DEVICE_GET_REGION_IO_FDS nor DIRTY_PAGES, which is for migration. DMA_READ and DMA_WRITE are sent only by
    /// servers.
    pub(super) fn from_raw(raw: u16) -> Option<Self> {
        use vfio_user::Command as Known;
        Some(match Known::n(raw) {
            Some(Known::Version) => Self::Version,
            Some(Known::DmaMap) => Self::DmaMap,
            Some(Known::DmaUnmap) => Self::DmaUnmap,
            Some(Known::DeviceGetInfo) => Self::GetInfo,
            Some(Known::DeviceGetRegionInfo) => Self::GetRegionInfo,
            Some(Known::GetIrqInfo) => Self::GetIrqInfo,
            Some(Known::SetIrqs) => Self::SetIrqs,
            Some(Known::RegionRead) => Self::RegionRead,
            Some(Known::RegionWrite) => Self::RegionWrite,
            Some(Known::DeviceReset) => Self::Reset,
            None if raw == REGION_WRITE_MULTI => Self::RegionWriteMulti,
            _ => return None,
        })
    }
}

/// Fixed part of VERSION; a JSON string follows.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(super) struct Version {
    pub(super) major: u16,
    pub(super) minor: u16,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(super) struct DmaMap {
    pub(super) argsz: u32,
    pub(super) flags: u32,
    pub(super) offset: u64,
    pub(super) address: u64,
    pub(super) size: u64,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(super) struct DmaUnmap {
    pub(super) argsz: u32,
    pub(super) flags: u32,
    pub(super) address: u64,
    pub(super) size: u64,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(super) struct DeviceInfo {
    pub(super) argsz: u32,
    pub(super) flags: u32,
    pub(super) num_regions: u32,
    pub(super) num_irqs: u32,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(super) struct RegionInfo {
    pub(super) argsz: u32,
    pub(super) flags: u32,
    pub(super) index: u32,
    pub(super) cap_offset: u32,
    pub(super) size: u64,
    pub(super) offset: u64,
}

/// Sparse mmap capability with one area, which follows [`RegionInfo`]: `vfio_region_info_cap_sparse_mmap`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(super) struct SparseMmap {
    pub(super) id: u16,
    pub(super) version: u16,
    /// Offset of the next capability, or 0 if there is none.
    pub(super) next: u32,
    pub(super) areas: u32,
    pub(super) reserved: u32,
    pub(super) offset: u64,
    pub(super) size: u64,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(super) struct IrqInfo {
    pub(super) argsz: u32,
    pub(super) flags: u32,
    pub(super) index: u32,
    pub(super) count: u32,
}

/// Fixed part of SET_IRQS; one byte for each interrupt may follow.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(super) struct IrqSet {
    pub(super) argsz: u32,
    pub(super) flags: u32,
    pub(super) index: u32,
    pub(super) start: u32,
    pub(super) count: u32,
}

/// Fixed part of REGION_READ, REGION_WRITE and their replies; data may follow.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(super) struct RegionAccess {
    pub(super) offset: u64,
    pub(super) region: u32,
    pub(super) count: u32,
}

/// One write of a REGION_WRITE_MULTI. The message starts with the number of writes as a 64-bit value.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(super) struct SmallWrite {
    pub(super) access: RegionAccess,
    pub(super) data: [u8; 8],
}

/// A region of the device, as in `linux/vfio.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Region {
    /// Memory of a base address register.
    Bar(Bar),
    Config,
}

impl Region {
    /// Returns the region's index in `linux/vfio.h`.
    pub const fn index(self) -> u8 {
        match self {
            Self::Bar(bar) => bar.number(),
            Self::Config => 7,
        }
    }

    /// Returns the region with index `index` in `linux/vfio.h`.
    pub const fn from_index(index: u32) -> Option<Self> {
        Some(match index {
            VFIO_PCI_BAR0_REGION_INDEX => Self::Bar(Bar::Bar0),
            VFIO_PCI_BAR1_REGION_INDEX => Self::Bar(Bar::Bar1),
            VFIO_PCI_BAR2_REGION_INDEX => Self::Bar(Bar::Bar2),
            VFIO_PCI_BAR3_REGION_INDEX => Self::Bar(Bar::Bar3),
            VFIO_PCI_BAR4_REGION_INDEX => Self::Bar(Bar::Bar4),
            VFIO_PCI_BAR5_REGION_INDEX => Self::Bar(Bar::Bar5),
            VFIO_PCI_CONFIG_REGION_INDEX => Self::Config,
            _ => return None,
        })
    }
}
