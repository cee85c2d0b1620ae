//! Segments that make up a WQE.
//!
//! # Spec
//! mthca interface, section 7.1.

use bitfield_struct::bitfield;
use zerocopy::big_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, transmute};

use super::super::path::{self, AddressVector};
use super::GRANULE;
use crate::ids::{Qkey, Qpn};
use crate::roce::Imm;

/// Link to the next WQE, with its opcode and size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Link {
    /// Byte offset of the next WQE, a multiple of 64.
    pub address: u32,
    /// Opcode of the next WQE, five bits.
    pub opcode: u8,
    /// Size of the next WQE in granules, six bits.
    pub size: u8,
    /// Fence bit of the next WQE.
    pub fence: bool,
}

/// First segment of every WQE.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct NextSegment {
    /// Link to the next WQE.
    pub link: Link,
    /// Whether the driver requests a CQE for this WQE.
    pub signalled: bool,
    /// Whether to request a solicited event at the receiver.
    pub solicited: bool,
    /// Immediate data of this WQE.
    pub imm: Imm,
}

impl NextSegment {
    /// Parses the segment from its bytes.
    pub fn parse(segment: &[u8; GRANULE]) -> Self {
        let raw: RawNext = transmute!(*segment);
        let (address, size) = (raw.address, raw.size);
        Self {
            link: Link {
                address: address.nda() << 6,
                opcode: address.opcode(),
                size: size.size(),
                fence: size.fence(),
            },
            signalled: raw.flags.signalled(),
            solicited: raw.flags.solicited(),
            imm: Imm(raw.imm),
        }
    }

    /// Returns the segment in wire format, as a driver writes it. Values that exceed their fields are truncated.
    pub fn emit(&self) -> [u8; GRANULE] {
        transmute!(RawNext {
            address: RawAddress::new().with_nda(self.link.address >> 6).with_opcode(self.link.opcode & 0x1f),
            size: RawSize::new().with_size(self.link.size & 0x3f).with_fence(self.link.fence).with_dbd(true),
            flags: RawFlags::new()
                .with_one(true)
                .with_signalled(self.signalled)
                .with_solicited(self.solicited),
            imm: self.imm.0,
        })
    }
}

/// UD segment: the receiver's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct UdSegment {
    /// Address vector of the receiver.
    pub vector: AddressVector,
    /// QP number of the receiver.
    pub dqpn: Qpn,
    /// Q_Key of the receiver. If bit 31 is set, the Q_Key of the sending QP is used instead.
    pub qkey: Qkey,
}

impl UdSegment {
    /// Length of the segment in bytes.
    pub const LEN: usize = 3 * GRANULE;

    /// Parses the segment from its bytes.
    pub fn parse(segment: &[u8; Self::LEN]) -> Self {
        let raw: RawUd = transmute!(*segment);
        Self {
            vector: AddressVector::parse(&raw.vector),
            dqpn: Qpn::new(raw.dqpn.get()),
            qkey: Qkey::new(raw.qkey.get()),
        }
    }

    /// Returns the segment in wire format.
    pub fn emit(&self) -> [u8; Self::LEN] {
        transmute!(RawUd {
            vector: self.vector.emit(),
            dqpn: self.dqpn.get().into(),
            qkey: self.qkey.get().into(),
            reserved_28: [0; 8],
        })
    }
}

#[bitfield(u32, repr = U32, from = U32::new, into = U32::get)]
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
struct RawAddress {
    #[bits(5)]
    opcode: u8,
    /// Drivers set this bit in receive queues. The device ignores it.
    #[bits(1)]
    __: u8,
    #[bits(26)]
    nda: u32,
}

#[bitfield(u32, repr = U32, from = U32::new, into = U32::get)]
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
struct RawSize {
    #[bits(6)]
    size: u8,
    fence: bool,
    dbd: bool,
    #[bits(24)]
    __: u32,
}

#[bitfield(u32, repr = U32, from = U32::new, into = U32::get)]
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
struct RawFlags {
    one: bool,
    solicited: bool,
    event: bool,
    signalled: bool,
    #[bits(28)]
    __: u32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawNext {
    address: RawAddress,
    size: RawSize,
    flags: RawFlags,
    imm: [u8; 4],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawUd {
    vector: [u8; path::LEN],
    dqpn: U32,
    qkey: U32,
    reserved_28: [u8; 8],
}
