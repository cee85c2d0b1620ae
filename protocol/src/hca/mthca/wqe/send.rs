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

/// What a send WQE asks for.
pub type Operation = crate::hca::operation::Operation<UdSegment>;

/// The bytes of a send WQE's message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WqeData {
    /// In regions.
    Segments(DataSegments),
    /// In the WQE itself.
    Inline(SmallVec<[u8; 64]>),
}

impl WqeData {
    /// Data to the end: in regions, or all of it inline.
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

/// A send WQE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SendWqe {
    /// Flags and immediate data. Its link is not of this WQE.
    pub next: NextSegment,
    /// What to do.
    pub operation: Operation,
    /// Gather list, scatter list (READ, atomics) or inline data.
    pub data: WqeData,
}

impl SendWqe {
    /// Reads a WQE, all of whose bytes are in `wqe`.
    ///
    /// # Errors
    /// A [`WqeError`].
    pub fn parse(wqe: &[u8], opcode: u8, service: ServiceType) -> Result<Self, WqeError> {
        let supported = WqeOpcode::from_code(opcode).filter(|code| code.supported(service));
        let code = supported.ok_or(WqeError::Opcode(opcode))?;
        let mut rest = Segments(wqe);
        let next = NextSegment::parse(rest.take("next segment")?);
        let operation = rest.operation::<BigEndian, _>(code, service, next.imm, |rest| {
            rest.take("UD segment").map(UdSegment::parse)
        })?;
        let data = match code {
            // What follows means nothing.
            WqeOpcode::Nop => WqeData::Segments(DataSegments::new()),
            _ => WqeData::parse(rest)?,
        };
        check_data(code, data.segments())?;
        Ok(Self { next, operation, data })
    }

    /// The WQE as software writes it, a whole number of granules.
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

/// The next element of a gather list.
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

/// An element of a gather list.
pub(super) enum Data<'a> {
    Region(DataSegment),
    Inline(&'a [u8]),
}
