//! Send WQEs.
//!
//! # Spec
//! JingZhao interface, sections 6.1 and 7.3.

use zerocopy::{FromBytes, LittleEndian};

use super::super::qpc::ServiceType;
use super::{DataSegment, DataSegments, NextUnit, RawData, UdUnit, WqeError};
use crate::describe::{Describe, Field, Hex, Visitor};
pub use crate::hca::opcode::WqeOpcode;
use crate::hca::segment::{INLINE, Segments, check_data, emit_inline};

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
    Segments(DataSegments),
    /// In the WQE itself.
    Inline(&'a [u8]),
}

impl<'a> WqeData<'a> {
    fn parse(rest: &'a [u8]) -> Result<Self, WqeError> {
        if let Some((head, bytes)) = rest.split_first_chunk::<INLINE_HEAD>() {
            let head = u32::from_le_bytes(*head);
            if head & INLINE != 0 {
                let len = (head & !INLINE) as usize;
                return bytes.get(..len).map(Self::Inline).ok_or(WqeError::Truncated("inline data"));
            }
        }
        let units = <[RawData]>::ref_from_bytes(rest).map_err(|_| WqeError::Truncated("data unit"))?;
        Ok(Self::Segments(units.iter().map(DataSegment::parse).collect::<Result<_, _>>()?))
    }

    fn segments(&self) -> Option<&[DataSegment]> {
        match self {
            Self::Segments(list) => Some(list),
            Self::Inline(_) => None,
        }
    }
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
        let mut rest = Segments(wqe);
        let next = NextUnit::parse(rest.take("next unit")?);
        let operation = rest.operation::<LittleEndian, _>(code, service, next.imm, |rest| {
            rest.take("ud unit").map(UdUnit::parse)
        })?;
        let data = match code {
            // What follows the next unit means nothing.
            WqeOpcode::Nop => WqeData::Segments(DataSegments::new()),
            _ => WqeData::parse(rest.0)?,
        };
        check_data(code, data.segments())?;
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
        self.operation.emit::<LittleEndian>(&mut wqe, |to, wqe| wqe.extend_from_slice(&to.emit()));
        match &self.data {
            WqeData::Segments(units) => units.iter().for_each(|unit| wqe.extend_from_slice(&unit.emit_le())),
            WqeData::Inline(bytes) => emit_inline::<LittleEndian>(bytes, &mut wqe),
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
            WqeData::Segments(units) => {
                to.objects("sge", &mut units.iter().map(|unit| unit as &dyn Describe))
            }
            WqeData::Inline(bytes) => bytes.len().show("inline_len", to),
        }
    }
}
