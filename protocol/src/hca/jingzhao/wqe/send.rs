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

/// Maximum size of a send WQE in granules (section 6.7). Only a doorbell can specify this size, since the size field of
/// a link holds at most 63.
pub const MAX_SIZE: u8 = 64;

/// Length in bytes of an inline unit's header.
const INLINE_HEAD: usize = 4;

/// Operation of a send WQE.
pub type Operation = crate::hca::operation::Operation<UdUnit>;

/// Message data of a send WQE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WqeData<'a> {
    /// Data segments, which refer to memory regions.
    Segments(DataSegments),
    /// Data in the WQE itself.
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

/// A parsed send WQE.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct SendWqe<'a> {
    /// Link to the next WQE, flags and immediate data.
    pub next: NextUnit,
    pub operation: Operation,
    /// Gather list or inline data of the message. For READs and atomics, the scatter list.
    pub data: WqeData<'a>,
}

impl<'a> SendWqe<'a> {
    /// Parses a WQE. `wqe` must contain exactly the bytes of the WQE.
    ///
    /// # Errors
    /// Returns a [`WqeError`] if the WQE is invalid. Even then, [`NextUnit::parse`] returns the link to the next WQE.
    pub fn parse(wqe: &'a [u8], opcode: u8, service: ServiceType) -> Result<Self, WqeError> {
        let unsupported = WqeError::Opcode(opcode);
        let code = WqeOpcode::from_code(opcode).filter(|code| code.supported(service)).ok_or(unsupported)?;
        let mut rest = Segments(wqe);
        let next = NextUnit::parse(rest.take("next unit")?);
        let operation = rest.operation::<LittleEndian, _>(code, service, next.imm, |rest| {
            rest.take("ud unit").map(UdUnit::parse)
        })?;
        let data = match code {
            // In a NOP, everything after the `NextUnit` is undefined and ignored.
            WqeOpcode::Nop => WqeData::Segments(DataSegments::new()),
            _ => WqeData::parse(rest.0)?,
        };
        check_data(code, data.segments())?;
        Ok(Self { next, operation, data })
    }

    /// Returns the WQE in wire format. Its length is a whole number of granules.
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

/// Shows only the length of inline data. The data itself appears in the packet.
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
