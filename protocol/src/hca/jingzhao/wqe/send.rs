//! Send WQEs.
//!
//! # Spec
//! JingZhao interface, sections 6.1 and 7.3.

use smallvec::SmallVec;
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, IntoBytes, transmute};

use super::super::qpc::ServiceType;
use super::units::{INLINE, RawAtomic, RawData, RawRemote};
use super::{DataUnit, DataUnits, GRANULE, NextUnit, UdUnit, WqeError};
use crate::describe::{Describe, Field, Hex, Visitor};
pub use crate::hca::opcode::WqeOpcode;
use crate::hca::operation::RemoteAddress;
use crate::ids::{Rkey, Va};

/// Most granules of a send WQE.
pub const MAX_SIZE: u8 = 64;

/// Bytes of the head of an inline unit, before its data.
const INLINE_HEAD: usize = 4;

/// What a send WQE asks for.
pub type Operation = crate::hca::operation::Operation<UdUnit>;

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
        let mut remote_unit = |remote: RemoteAddress| {
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

/// Without inline data, of which only the length is told: the rest is what the wire carries.
impl Describe for SendWqe<'_> {
    fn describe(&self, to: &mut dyn Visitor) {
        self.next.show("next", to);
        match self.operation {
            Operation::Nop | Operation::Send { .. } => {}
            Operation::Datagram { to: ud, .. } => ud.show("ud", to),
            Operation::Write { remote, .. } | Operation::Read { remote } => remote.show("raddr", to),
            Operation::CompareSwap { remote, compare, swap } => {
                remote.show("raddr", to);
                Hex(compare).show("compare", to);
                Hex(swap).show("swap", to);
            }
            Operation::FetchAdd { remote, add } => {
                remote.show("raddr", to);
                Hex(add).show("add", to);
            }
        }
        match &self.data {
            WqeData::Units(units) => to.objects("sge", &mut units.iter().map(|unit| unit as &dyn Describe)),
            WqeData::Inline(bytes) => bytes.len().show("inline_len", to),
        }
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

    fn remote(&mut self) -> Result<RemoteAddress, WqeError> {
        let raw: RawRemote = transmute!(*self.take::<GRANULE>("raddr unit")?);
        Ok(RemoteAddress { va: Va::new(raw.va.get()), rkey: Rkey::new(raw.rkey.get()) })
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
