//! Units that make up a WQE.
//!
//! # Spec
//! JingZhao interface, sections 6.2 to 6.6 and 12 (J-21).

use std::net::Ipv4Addr;

use bitfield_struct::bitfield;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, transmute};

use super::super::doorbell::{PositionUnit, wrap};
use super::super::qpc::mac;
use super::{GRANULE, WqeOpcode};
use crate::describe::{Hex, describe};
use crate::ids::{Lid, MacAddr, Qkey, Qpn};
use crate::roce::Imm;

/// Position, opcode and size of the next WQE in a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Position, 26 bits; see [`Link::position`].
    pub address: u32,
    /// Opcode of the next WQE, five bits.
    pub opcode: u8,
    /// Size of the next WQE in granules, 1 to 63.
    pub size: u8,
    /// Fence bit of the next WQE.
    pub fence: bool,
    /// DBD bit, which drivers set whenever they set a link. It has no effect.
    pub dbd: bool,
}

impl Link {
    /// Returns the byte offset of the next WQE in a queue of `len` bytes, or `None` if `len` is 0.
    pub fn position(&self, unit: PositionUnit, len: u32) -> Option<u32> {
        let unit = match unit {
            PositionUnit::Granule => GRANULE as u64,
            PositionUnit::Slot => 64,
        };
        wrap(u64::from(self.address) * unit, len)
    }
}

/// First unit of every WQE.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct NextUnit {
    /// Link to the next WQE in the chain.
    pub link: Option<Link>,
    /// In a receive WQE, whether the slot is posted.
    pub valid: bool,
    /// Whether the driver requests a CQE. By default, the device writes a CQE even if the bit is clear (J-21).
    pub signalled: bool,
    /// Whether to request a solicited event at the receiver.
    pub solicited: bool,
    /// Immediate data for this WQE.
    pub imm: Imm,
}

impl NextUnit {
    /// Parses the unit from its bytes.
    pub fn parse(unit: &[u8; GRANULE]) -> Self {
        let raw: RawNext = transmute!(*unit);
        let link = (raw.size.nds() != 0).then(|| Link {
            address: raw.address.nda(),
            opcode: raw.address.nop(),
            size: raw.size.nds(),
            fence: raw.size.fence(),
            dbd: raw.size.dbd(),
        });
        Self {
            link,
            valid: raw.address.valid(),
            signalled: raw.flags.signalled(),
            solicited: raw.flags.solicited(),
            imm: Imm(raw.imm),
        }
    }

    /// Returns the unit in wire format. Values that exceed their fields are truncated.
    pub fn emit(&self) -> [u8; GRANULE] {
        let (mut address, mut size) = (NextAddress::new().with_valid(self.valid), NextSize::new());
        if let Some(link) = self.link {
            address = address.with_nda(link.address & 0x3ff_ffff).with_nop(link.opcode & 0x1f);
            size = size.with_nds(link.size & 0x3f).with_fence(link.fence).with_dbd(link.dbd);
        }
        let flags = NextFlags::new().with_signalled(self.signalled).with_solicited(self.solicited);
        transmute!(RawNext { address, size, flags, imm: self.imm.0 })
    }
}

/// UD unit: the destination of a datagram. The public driver's user library neither initialises nor uses the MAC and IP
/// addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct UdUnit {
    /// 00h: egress port. The public driver puts the port in the top byte and the PD in the other bytes. The device has
    /// only one port and ignores this field.
    pub port: u32,
    /// 04h: source LID, or bits 15:0 of the source MAC.
    pub slid: Lid,
    /// 06h: destination LID, or bits 15:0 of the destination MAC; see [`UdUnit::dmac`].
    pub dlid: Lid,
    /// 08h: source MAC, bits 47:16.
    pub smac_high: u32,
    /// 0Ch: destination MAC, bits 47:16.
    pub dmac_high: u32,
    /// 10h: source IPv4 address.
    pub source_ip: u32,
    /// 14h: destination IPv4 address.
    pub dest_ip: u32,
    /// 20h: destination QP number.
    pub dqpn: Qpn,
    /// 24h: Q_Key of the destination QP.
    pub qkey: Qkey,
}

impl UdUnit {
    /// Length of the unit in bytes.
    pub const LEN: usize = 3 * GRANULE;

    /// Parses the unit from its bytes.
    pub fn parse(unit: &[u8; Self::LEN]) -> Self {
        let raw: RawUd = transmute!(*unit);
        Self {
            port: raw.port.get(),
            slid: Lid::new(raw.slid.get()),
            dlid: Lid::new(raw.dlid.get()),
            smac_high: raw.smac_high.get(),
            dmac_high: raw.dmac_high.get(),
            source_ip: raw.source_ip.get(),
            dest_ip: raw.dest_ip.get(),
            dqpn: Qpn::new(raw.dqpn.get()),
            qkey: Qkey::new(raw.qkey.get()),
        }
    }

    /// Returns the unit in wire format.
    pub fn emit(&self) -> [u8; Self::LEN] {
        transmute!(RawUd {
            port: self.port.into(),
            slid: self.slid.get().into(),
            dlid: self.dlid.get().into(),
            smac_high: self.smac_high.into(),
            dmac_high: self.dmac_high.into(),
            source_ip: self.source_ip.into(),
            dest_ip: self.dest_ip.into(),
            reserved_18: [0; 8],
            dqpn: self.dqpn.get().into(),
            qkey: self.qkey.get().into(),
            reserved_28: [0; 8],
        })
    }

    /// Returns the destination MAC address, if its high part is nonzero.
    pub const fn dmac(&self) -> Option<MacAddr> {
        mac(self.dmac_high, self.dlid)
    }

    /// Returns the destination IPv4 address, if nonzero.
    pub const fn dip(&self) -> Option<Ipv4Addr> {
        if self.dest_ip == 0 { None } else { Some(Ipv4Addr::from_bits(self.dest_ip)) }
    }
}

describe!(Link { address as Hex, opcode as WqeOpcode::word, size, fence, dbd });
describe!(NextUnit { link, valid, signalled, solicited, imm });
describe!(UdUnit {
    port as Hex,
    slid,
    dlid,
    smac_high as Hex,
    dmac_high as Hex,
    source_ip as Ipv4Addr::from_bits,
    dest_ip as Ipv4Addr::from_bits,
    dqpn,
    qkey,
});

/// Word at 00h of a [`NextUnit`].
#[bitfield(u32, repr = U32, from = U32::new, into = U32::get)]
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
struct NextAddress {
    #[bits(5)]
    nop: u8,
    valid: bool,
    #[bits(26)]
    nda: u32,
}

/// Word at 04h of a [`NextUnit`].
#[bitfield(u32, repr = U32, from = U32::new, into = U32::get)]
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
struct NextSize {
    #[bits(6)]
    nds: u8,
    fence: bool,
    dbd: bool,
    #[bits(24)]
    nee: u32,
}

/// Word at 08h of a [`NextUnit`].
#[bitfield(u32, repr = U32, from = U32::new, into = U32::get)]
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
struct NextFlags {
    #[bits(1)]
    __: u8,
    solicited: bool,
    event: bool,
    signalled: bool,
    #[bits(28)]
    __: u32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawNext {
    address: NextAddress,
    size: NextSize,
    flags: NextFlags,
    imm: [u8; 4],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawUd {
    port: U32,
    slid: U16,
    dlid: U16,
    smac_high: U32,
    dmac_high: U32,
    source_ip: U32,
    dest_ip: U32,
    reserved_18: [u8; 8],
    dqpn: U32,
    qkey: U32,
    reserved_28: [u8; 8],
}
