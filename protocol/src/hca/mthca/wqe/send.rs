//! Send WQEs of ordinary QPs.
//!
//! # Spec
//! mthca interface, sections 7.1 and 7.2.

use smallvec::SmallVec;
use zerocopy::{BigEndian, FromBytes};

use super::{DataSegment, DataSegments, GRANULE, NextSegment, RawData, UdSegment, WqeError};
use crate::hca::opcode::WqeOpcode;
use crate::hca::qp::ServiceType;
use crate::hca::segment::{INLINE, Segments, check_data, emit_inline};

/// Operation of a send WQE.
pub type Operation = crate::hca::operation::Operation<UdSegment>;

/// Message data of a send WQE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WqeData {
    /// Data segments, which refer to memory regions.
    Segments(DataSegments),
    /// Data in the WQE itself.
    Inline(SmallVec<[u8; 64]>),
}

impl WqeData {
    /// Parses the remaining segments, which must be all inline segments or all data segments.
    fn parse(mut rest: Segments<'_>) -> Result<Self, WqeError> {
        let mut inline = SmallVec::new();
        let mut list = DataSegments::new();
        while !rest.0.is_empty() {
            match next_data(&mut rest)? {
                Data::Inline(bytes) => inline.extend_from_slice(bytes),
                Data::Region(data) => list.push(data),
            }
        }
        match (inline.is_empty(), list.is_empty()) {
            (true, _) => Ok(WqeData::Segments(list)),
            (false, true) => Ok(WqeData::Inline(inline)),
            (false, false) => Err(WqeError::Inline),
        }
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
pub struct SendWqe {
    /// Flags and immediate data of this WQE, and the link to the next WQE.
    pub next: NextSegment,
    pub operation: Operation,
    /// Gather list or inline data of the message, or scatter list of a READ or atomic.
    pub data: WqeData,
}

impl SendWqe {
    /// Parses a WQE. `wqe` must contain exactly the bytes of the WQE, and `opcode` is its opcode.
    ///
    /// # Errors
    /// Fails if the opcode is not supported, a segment is truncated, or the data is invalid for the opcode.
    pub fn parse(wqe: &[u8], opcode: u8, service: ServiceType) -> Result<Self, WqeError> {
        let supported = WqeOpcode::from_code(opcode).filter(|code| code.supported(service));
        let code = supported.ok_or(WqeError::Opcode(opcode))?;
        let mut rest = Segments(wqe);
        let next = NextSegment::parse(rest.take("next segment")?);
        let operation = rest.operation::<BigEndian, _>(code, service, next.imm, |rest| {
            rest.take("UD segment").map(UdSegment::parse)
        })?;
        let data = match code {
            // In a NOP, everything after the `NextSegment` is undefined and ignored.
            WqeOpcode::Nop => WqeData::Segments(DataSegments::new()),
            _ => WqeData::parse(rest)?,
        };
        check_data(code, data.segments())?;
        Ok(Self { next, operation, data })
    }

    /// Returns the WQE in wire format, as a driver writes it. Its length is a multiple of the granule.
    pub fn emit(&self) -> Vec<u8> {
        let mut wqe = self.next.emit().to_vec();
        self.operation.emit::<BigEndian>(&mut wqe, |to, wqe| wqe.extend_from_slice(&to.emit()));
        match &self.data {
            WqeData::Segments(list) => list.iter().for_each(|data| wqe.extend_from_slice(&data.emit_be())),
            WqeData::Inline(bytes) => emit_inline::<BigEndian>(bytes, &mut wqe),
        }
        wqe
    }
}

/// Parses the next data segment or inline segment.
pub(super) fn next_data<'a>(rest: &mut Segments<'a>) -> Result<Data<'a>, WqeError> {
    const HEAD: usize = 4;
    let head = rest.0.first_chunk::<HEAD>().map_or(0, |head| u32::from_be_bytes(*head));
    if head & INLINE == 0 {
        let raw = RawData::read_from_bytes(rest.take::<GRANULE>("data segment")?);
        let raw = raw.map_err(|_| WqeError::Truncated("data segment"))?;
        return DataSegment::parse(&raw).map(Data::Region);
    }
    let truncated = WqeError::Truncated("inline data");
    let len = (head & !INLINE) as usize;
    let end = HEAD.checked_add(len).ok_or(truncated)?;
    let bytes = rest.0.get(HEAD..end).ok_or(truncated)?;
    rest.0 = rest.0.get(end.next_multiple_of(GRANULE)..).unwrap_or_default();
    Ok(Data::Inline(bytes))
}

/// A data segment or an inline segment's content.
pub(super) enum Data<'a> {
    Region(DataSegment),
    Inline(&'a [u8]),
}
