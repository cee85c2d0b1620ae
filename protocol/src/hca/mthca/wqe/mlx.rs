//! Send WQEs for QP0 and QP1. The driver writes the packet headers.
//!
//! # Spec
//! mthca interface, section 8.3.

use bitfield_struct::bitfield;
use zerocopy::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, transmute};

use super::send::{Data, next_data};
use super::{DataSegments, GRANULE, WqeError};
use crate::hca::segment::Segments;
use crate::ids::Lid;

/// Length of the ICRC in bytes. Drivers append a placeholder for it to the payload.
const ICRC_LEN: u32 = 4;

/// A MAD to send.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct MlxWqe {
    /// Whether to send on VL 15, as required for SMPs.
    pub vl15: bool,
    /// Whether to send the source LID in the header unchanged, as required for directed-route SMPs with the permissive
    /// LID.
    pub keep_source_lid: bool,
    /// Service level, four bits.
    pub service_level: u8,
    /// Whether the driver requests a CQE.
    pub signalled: bool,
    pub dlid: Lid,
    /// Gather list for the headers and the payload, without the ICRC placeholder.
    pub data: DataSegments,
}

impl MlxWqe {
    /// Parses a WQE. `wqe` must contain exactly the bytes of the WQE.
    ///
    /// # Errors
    /// [`WqeError::Truncated`] if a segment is incomplete.
    pub fn parse(wqe: &[u8]) -> Result<Self, WqeError> {
        let mut rest = Segments(wqe);
        let raw: Raw = transmute!(*rest.take::<GRANULE>("MLX segment")?);
        let mut data = DataSegments::new();
        let mut inline_len = 0;
        while !rest.0.is_empty() {
            match next_data(&mut rest)? {
                Data::Region(segment) => data.push(segment),
                Data::Inline(bytes) => inline_len += bytes.len(),
            }
        }
        // Linux appends the ICRC placeholder as an inline segment; iPXE includes it in the payload segment.
        trim_end(&mut data, ICRC_LEN.saturating_sub(u32::try_from(inline_len).unwrap_or(u32::MAX)))?;
        Ok(Self {
            vl15: raw.flags.vl15(),
            keep_source_lid: raw.flags.keep_source_lid(),
            service_level: raw.flags.service_level(),
            signalled: raw.flags.signalled(),
            dlid: Lid::new(raw.dlid.get()),
            data,
        })
    }
}

fn trim_end(data: &mut DataSegments, mut excess: u32) -> Result<(), WqeError> {
    while excess > 0 {
        let last = data.last_mut().ok_or(WqeError::Truncated("ICRC"))?;
        let removed = last.len.min(excess);
        last.len -= removed;
        excess -= removed;
        if last.len == 0 {
            data.pop();
        }
    }
    Ok(())
}

#[bitfield(u32, repr = U32, from = U32::new, into = U32::get)]
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
struct Flags {
    #[bits(2)]
    __: u8,
    event: bool,
    signalled: bool,
    #[bits(4)]
    __: u8,
    #[bits(4)]
    service_level: u8,
    #[bits(3)]
    static_rate: u8,
    #[bits(1)]
    __: u8,
    keep_source_lid: bool,
    vl15: bool,
    #[bits(14)]
    __: u16,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    /// Link to the next WQE, as in other send WQEs.
    link: [u8; 8],
    flags: Flags,
    dlid: U16,
    vcrc: U16,
}
