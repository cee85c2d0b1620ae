//! Work queue entries: the units they are made of, and whole send and receive WQEs.
//!
//! A WQE is a sequence of 16-byte granules. It does not hold its own opcode and size: they come from the doorbell or
//! from the next unit of the WQE before it, so [`SendWqe::parse`] takes both from its caller.
//!
//! # Spec
//! JingZhao interface, sections 6.1 to 6.6, 6.8 and 7.3.

use std::net::Ipv4Addr;

use bitfield_struct::bitfield;
use smallvec::SmallVec;
use thiserror::Error;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, transmute};

use super::doorbell::{PositionUnit, wrap};
use super::qpc::{ServiceType, mac};
use crate::ids::{Lid, Lkey, MacAddr, Qkey, Qpn, Rkey, Va};
use crate::roce::Imm;

/// Bytes of a unit, and the unit of sizes and positions.
pub const GRANULE: usize = 16;

/// The valid bit of a receive WQE in its first byte, see [`NextUnit::valid`].
pub const RECV_VALID: u8 = 1 << 5;

/// Most granules of a send WQE.
pub const MAX_SIZE: u8 = 64;

/// What a send WQE does.
#[allow(missing_docs)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WqeOpcode {
    Nop,
    Write,
    WriteImm,
    Send,
    SendImm,
    Read,
    CompareSwap,
    FetchAdd,
}

impl WqeOpcode {
    /// The operation with this code; `None` for a code that is not supported.
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            0x00 => Self::Nop,
            0x08 => Self::Write,
            0x09 => Self::WriteImm,
            0x0a => Self::Send,
            0x0b => Self::SendImm,
            0x10 => Self::Read,
            0x11 => Self::CompareSwap,
            0x12 => Self::FetchAdd,
            _ => return None,
        })
    }

    /// The code.
    pub const fn code(self) -> u8 {
        match self {
            Self::Nop => 0x00,
            Self::Write => 0x08,
            Self::WriteImm => 0x09,
            Self::Send => 0x0a,
            Self::SendImm => 0x0b,
            Self::Read => 0x10,
            Self::CompareSwap => 0x11,
            Self::FetchAdd => 0x12,
        }
    }

    const fn is_atomic(self) -> bool {
        matches!(self, Self::CompareSwap | Self::FetchAdd)
    }

    /// Whether a QP of this service can execute it.
    pub const fn supported(self, service: ServiceType) -> bool {
        match service {
            ServiceType::Rc => true,
            ServiceType::Uc => !matches!(self, Self::Read) && !self.is_atomic(),
            ServiceType::Ud => matches!(self, Self::Nop | Self::Send | Self::SendImm),
        }
    }
}

/// Why a WQE cannot be executed. It completes with LOCAL_QP_OP_ERR.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum WqeError {
    /// The opcode is unknown, or the service does not have it.
    #[error("opcode {0:#04x} is not supported")]
    Opcode(u8),
    /// The WQE ends inside a unit that its operation needs.
    #[error("the WQE ends inside its {0}")]
    Truncated(&'static str),
    /// Inline data where the operation scatters, or behind another data unit.
    #[error("inline data is not allowed here")]
    Inline,
    /// An atomic operation needs exactly one data unit of eight bytes.
    #[error("the result of an atomic operation is not one unit of eight bytes")]
    AtomicResult,
}

/// Where the next WQE of a chain is, and what it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Position, 26 bits; see [`Link::position`].
    pub address: u32,
    /// Opcode, five bits.
    pub opcode: u8,
    /// Size in granules, 1 to 63.
    pub size: u8,
    /// Fence.
    pub fence: bool,
    /// Set by software with a link; has no effect.
    pub dbd: bool,
}

impl Link {
    /// Byte offset of the next WQE in a queue of `len` bytes; `None` for an empty queue.
    pub fn position(&self, unit: PositionUnit, len: u32) -> Option<u32> {
        let unit = match unit {
            PositionUnit::Granule => GRANULE as u64,
            PositionUnit::Slot => 64,
        };
        wrap(u64::from(self.address) * unit, len)
    }
}

/// The next unit, with which every WQE begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct NextUnit {
    /// The WQE that follows in the chain.
    pub link: Option<Link>,
    /// Receive WQE: posted.
    pub valid: bool,
    /// Software wants a completion. The device always gives one (J-21).
    pub signalled: bool,
    /// Ask for a solicited event at the receiver.
    pub solicited: bool,
    /// Immediate data of this WQE.
    pub imm: Imm,
}

impl NextUnit {
    /// Reads the unit.
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

    /// The unit. Values wider than their field lose their high bits.
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

/// One element of a gather or scatter list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataUnit {
    /// Bytes, 31 bits. 0 contributes nothing.
    pub len: u32,
    /// Key of the region.
    pub lkey: Lkey,
    /// First address inside the region.
    pub va: Va,
}

/// A gather or scatter list; short ones need no allocation.
pub type DataUnits = SmallVec<[DataUnit; 4]>;

/// Set in the first word of an inline unit.
const INLINE: u32 = 1 << 31;
/// Bytes of the head of an inline unit, before its data.
const INLINE_HEAD: usize = 4;
/// The key of a terminator, besides 0.
const INVALID_LKEY: u32 = 0x100;

impl DataUnit {
    /// Ends a scatter list, as the public kernel driver writes it.
    pub const TERMINATOR: [u8; GRANULE] = [0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

    fn from_raw(raw: &RawData) -> Result<Self, WqeError> {
        let len = raw.len.get();
        if len & INLINE != 0 {
            return Err(WqeError::Inline);
        }
        Ok(Self { len, lkey: Lkey::new(raw.lkey.get()), va: Va::new(raw.va.get()) })
    }

    /// The unit.
    pub fn emit(&self) -> [u8; GRANULE] {
        transmute!(RawData {
            len: (self.len & !INLINE).into(),
            lkey: self.lkey.get().into(),
            va: self.va.get().into(),
        })
    }
}

/// Target of an RDMA or atomic operation: the raddr unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteUnit {
    /// First address in the peer's region.
    pub va: Va,
    /// Key of the region.
    pub rkey: Rkey,
}

/// Destination of a datagram: the ud unit. The user library of the public driver leaves what it does not know
/// (MACs, IP addresses) as the buffer held it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct UdUnit {
    /// 00h: egress port; the public driver puts it in the top byte and its PD in the rest. The device has one port
    /// and ignores it.
    pub port: u32,
    /// 04h: source LID, or the low half of the source MAC.
    pub slid: Lid,
    /// 06h: destination LID, or the low half of [`UdUnit::dmac`].
    pub dlid: Lid,
    /// 08h: source MAC [47:16].
    pub smac_high: u32,
    /// 0Ch: destination MAC [47:16].
    pub dmac_high: u32,
    /// 10h: source IPv4 address.
    pub source_ip: u32,
    /// 14h: destination IPv4 address.
    pub dest_ip: u32,
    /// 20h: destination QP.
    pub dqpn: Qpn,
    /// 24h: Q_Key.
    pub qkey: Qkey,
}

impl UdUnit {
    /// Bytes of the unit.
    pub const LEN: usize = 3 * GRANULE;

    /// Reads the unit.
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

    /// The unit.
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

    /// Destination MAC, if its high part is set.
    pub const fn dmac(&self) -> Option<MacAddr> {
        mac(self.dmac_high, self.dlid)
    }

    /// Destination IPv4 address, if set.
    pub const fn dip(&self) -> Option<Ipv4Addr> {
        if self.dest_ip == 0 { None } else { Some(Ipv4Addr::from_bits(self.dest_ip)) }
    }
}

/// What a send WQE asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Nothing.
    Nop,
    /// SEND on a connected QP.
    Send {
        /// Immediate data.
        imm: Option<Imm>,
    },
    /// SEND of a datagram.
    Datagram {
        /// Immediate data.
        imm: Option<Imm>,
        /// Destination.
        to: UdUnit,
    },
    /// RDMA WRITE.
    Write {
        /// Target.
        remote: RemoteUnit,
        /// Immediate data.
        imm: Option<Imm>,
    },
    /// RDMA READ; the data units are the scatter list.
    Read {
        /// Source.
        remote: RemoteUnit,
    },
    /// Compare and swap; the data unit takes the original value.
    CompareSwap {
        /// Target.
        remote: RemoteUnit,
        /// Value that must be there.
        compare: u64,
        /// Value to store then.
        swap: u64,
    },
    /// Fetch and add; the data unit takes the original value.
    FetchAdd {
        /// Target.
        remote: RemoteUnit,
        /// Value to add.
        add: u64,
    },
}

impl Operation {
    /// The opcode that goes with it in a doorbell or link.
    pub const fn opcode(&self) -> WqeOpcode {
        match self {
            Self::Nop => WqeOpcode::Nop,
            Self::Send { imm: None } | Self::Datagram { imm: None, .. } => WqeOpcode::Send,
            Self::Send { imm: Some(_) } | Self::Datagram { imm: Some(_), .. } => WqeOpcode::SendImm,
            Self::Write { imm: None, .. } => WqeOpcode::Write,
            Self::Write { imm: Some(_), .. } => WqeOpcode::WriteImm,
            Self::Read { .. } => WqeOpcode::Read,
            Self::CompareSwap { .. } => WqeOpcode::CompareSwap,
            Self::FetchAdd { .. } => WqeOpcode::FetchAdd,
        }
    }
}

/// The bytes of a send WQE's message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WqeData<'a> {
    /// In regions.
    Units(DataUnits),
    /// In the WQE itself.
    Inline(&'a [u8]),
}

/// A send WQE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SendWqe<'a> {
    /// Link, flags and immediate data.
    pub next: NextUnit,
    /// What to do.
    pub operation: Operation,
    /// Gather list, scatter list (READ, atomics) or inline data.
    pub data: WqeData<'a>,
}

impl<'a> SendWqe<'a> {
    /// Reads a WQE, all of whose bytes are in `wqe`.
    ///
    /// # Errors
    /// A [`WqeError`]. The next unit, with the link to the rest of the chain, can still be had with
    /// [`NextUnit::parse`].
    pub fn parse(wqe: &'a [u8], opcode: u8, service: ServiceType) -> Result<Self, WqeError> {
        let unsupported = WqeError::Opcode(opcode);
        let code = WqeOpcode::from_code(opcode).filter(|code| code.supported(service)).ok_or(unsupported)?;
        let mut units = Units { rest: wqe };
        let next = NextUnit::parse(units.take("next unit")?);
        let imm = Some(next.imm);
        let operation = match (code, service) {
            // What follows the next unit means nothing.
            (WqeOpcode::Nop, _) => {
                return Ok(Self { next, operation: Operation::Nop, data: WqeData::Units(SmallVec::new()) });
            }
            (WqeOpcode::Send, ServiceType::Ud) => Operation::Datagram { imm: None, to: units.ud()? },
            (WqeOpcode::SendImm, ServiceType::Ud) => Operation::Datagram { imm, to: units.ud()? },
            (WqeOpcode::Send, _) => Operation::Send { imm: None },
            (WqeOpcode::SendImm, _) => Operation::Send { imm },
            (WqeOpcode::Write, _) => Operation::Write { remote: units.remote()?, imm: None },
            (WqeOpcode::WriteImm, _) => Operation::Write { remote: units.remote()?, imm },
            (WqeOpcode::Read, _) => Operation::Read { remote: units.remote()? },
            (WqeOpcode::CompareSwap, _) => {
                let remote = units.remote()?;
                let RawAtomic { swap_add, compare } = units.atomic()?;
                Operation::CompareSwap { remote, compare: compare.get(), swap: swap_add.get() }
            }
            (WqeOpcode::FetchAdd, _) => {
                let remote = units.remote()?;
                Operation::FetchAdd { remote, add: units.atomic()?.swap_add.get() }
            }
        };
        let data = units.data()?;
        let scatters = code == WqeOpcode::Read || code.is_atomic();
        match &data {
            WqeData::Inline(_) if scatters => return Err(WqeError::Inline),
            WqeData::Units(units) if code.is_atomic() && !matches!(units[..], [DataUnit { len: 8, .. }]) => {
                return Err(WqeError::AtomicResult);
            }
            _ => {}
        }
        Ok(Self { next, operation, data })
    }

    /// The WQE, a whole number of granules.
    pub fn emit(&self) -> Vec<u8> {
        let mut wqe = Vec::new();
        let imm = match self.operation {
            Operation::Send { imm } | Operation::Datagram { imm, .. } | Operation::Write { imm, .. } => imm,
            _ => None,
        };
        wqe.extend_from_slice(&NextUnit { imm: imm.unwrap_or(self.next.imm), ..self.next }.emit());
        let mut remote_unit = |remote: RemoteUnit| {
            let raw =
                RawRemote { va: remote.va.get().into(), rkey: remote.rkey.get().into(), reserved: [0; 4] };
            wqe.extend_from_slice(raw.as_bytes());
        };
        match self.operation {
            Operation::Nop | Operation::Send { .. } => {}
            Operation::Datagram { to, .. } => wqe.extend_from_slice(&to.emit()),
            Operation::Write { remote, .. } | Operation::Read { remote } => remote_unit(remote),
            Operation::CompareSwap { remote, compare, swap } => {
                remote_unit(remote);
                let raw = RawAtomic { swap_add: swap.into(), compare: compare.into() };
                wqe.extend_from_slice(raw.as_bytes());
            }
            Operation::FetchAdd { remote, add } => {
                remote_unit(remote);
                let raw = RawAtomic { swap_add: add.into(), compare: U64::ZERO };
                wqe.extend_from_slice(raw.as_bytes());
            }
        }
        match &self.data {
            WqeData::Units(units) => units.iter().for_each(|unit| wqe.extend_from_slice(&unit.emit())),
            WqeData::Inline(bytes) => {
                // A WQE has at most 63 granules, so longer data has no encoding at all.
                let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
                wqe.extend_from_slice(&(len | INLINE).to_le_bytes());
                wqe.extend_from_slice(bytes);
                wqe.resize(wqe.len().next_multiple_of(GRANULE), 0);
            }
        }
        wqe
    }
}

/// Whether a slot of a receive queue holds a WQE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Posted {
    /// No.
    No,
    /// Yes.
    Yes,
    /// It is marked, but its first data unit is still zero: either a receive without data, or software, which marks
    /// a slot before it fills it, is not done. Read it again.
    Unsettled,
}

/// A receive WQE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecvWqe {
    /// Scatter list.
    pub data: DataUnits,
}

impl RecvWqe {
    /// Whether a slot is posted. `first_pass`: no slot of the queue was used since the QP left RESET, so that a slot
    /// whose next unit was never written can still tell by its data (J-23).
    pub fn posted(slot: &[u8], first_pass: bool) -> Posted {
        let Some((next, rest)) = slot.split_first_chunk::<GRANULE>() else { return Posted::No };
        let first = RawData::ref_from_prefix(rest).ok().map(|(unit, _)| unit);
        let has_data = first.is_some_and(|unit| !unit.is_terminator());
        if NextUnit::parse(next).valid {
            let zero = first.is_none_or(|unit| unit.as_bytes().iter().all(|byte| *byte == 0));
            return if zero { Posted::Unsettled } else { Posted::Yes };
        }
        let marked = first_pass || next.iter().any(|byte| *byte != 0);
        if marked && has_data { Posted::Yes } else { Posted::No }
    }

    /// Reads a posted slot: data units up to the first terminator, or to the end of the slot.
    ///
    /// # Errors
    /// [`WqeError::Inline`] for a data unit with the inline bit, [`WqeError::Truncated`] for a slot without next
    /// unit.
    pub fn parse(slot: &[u8]) -> Result<Self, WqeError> {
        let (_, rest) = slot.split_first_chunk::<GRANULE>().ok_or(WqeError::Truncated("next unit"))?;
        let whole = rest.len() - rest.len() % GRANULE;
        let units = rest.get(..whole).and_then(|units| <[RawData]>::ref_from_bytes(units).ok());
        let units = units.unwrap_or_default().iter().take_while(|unit| !unit.is_terminator());
        Ok(Self { data: units.map(DataUnit::from_raw).collect::<Result<_, _>>()? })
    }

    /// A posted slot of `slot_len` bytes as the public user library writes it: valid bit, data units, and a zero
    /// terminator if there is room. Data units beyond the slot are cut off.
    pub fn emit(&self, slot_len: usize) -> Vec<u8> {
        let mut slot = NextUnit { valid: true, ..NextUnit::default() }.emit().to_vec();
        self.data.iter().for_each(|unit| slot.extend_from_slice(&unit.emit()));
        slot.resize(slot_len, 0);
        slot
    }
}

/// The units of a send WQE, one after the other.
struct Units<'a> {
    rest: &'a [u8],
}

impl<'a> Units<'a> {
    fn take<const N: usize>(&mut self, what: &'static str) -> Result<&'a [u8; N], WqeError> {
        let (unit, rest) = self.rest.split_first_chunk().ok_or(WqeError::Truncated(what))?;
        self.rest = rest;
        Ok(unit)
    }

    fn remote(&mut self) -> Result<RemoteUnit, WqeError> {
        let raw: RawRemote = transmute!(*self.take::<GRANULE>("raddr unit")?);
        Ok(RemoteUnit { va: Va::new(raw.va.get()), rkey: Rkey::new(raw.rkey.get()) })
    }

    fn atomic(&mut self) -> Result<RawAtomic, WqeError> {
        Ok(transmute!(*self.take::<GRANULE>("atomic unit")?))
    }

    fn ud(&mut self) -> Result<UdUnit, WqeError> {
        self.take("ud unit").map(UdUnit::parse)
    }

    fn data(self) -> Result<WqeData<'a>, WqeError> {
        if let Some((head, bytes)) = self.rest.split_first_chunk::<INLINE_HEAD>() {
            let head = u32::from_le_bytes(*head);
            if head & INLINE != 0 {
                let len = (head & !INLINE) as usize;
                return bytes.get(..len).map(WqeData::Inline).ok_or(WqeError::Truncated("inline data"));
            }
        }
        let units = <[RawData]>::ref_from_bytes(self.rest).map_err(|_| WqeError::Truncated("data unit"))?;
        Ok(WqeData::Units(units.iter().map(DataUnit::from_raw).collect::<Result<_, _>>()?))
    }
}

/// 00h of the next unit.
#[bitfield(u32, repr = U32, from = U32::new, into = U32::get)]
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
struct NextAddress {
    #[bits(5)]
    nop: u8,
    valid: bool,
    #[bits(26)]
    nda: u32,
}

/// 04h of the next unit.
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

/// 08h of the next unit.
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
struct RawRemote {
    va: U64,
    rkey: U32,
    reserved: [u8; 4],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawAtomic {
    swap_add: U64,
    compare: U64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawData {
    len: U32,
    lkey: U32,
    va: U64,
}

impl RawData {
    /// Key 100h and key 0 are ordinary keys when there is a length (J-22).
    fn is_terminator(&self) -> bool {
        self.len.get() == 0 && matches!(self.lkey.get(), 0 | INVALID_LKEY)
    }
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

#[cfg(test)]
mod tests;
