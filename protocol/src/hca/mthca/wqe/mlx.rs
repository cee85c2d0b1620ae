//! Send WQEs of QP0 and QP1: software brings the headers with the payload.
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

/// A management datagram to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MlxWqe {
    /// Travels on VL 15: a datagram of subnet management.
    pub vl15: bool,
    /// The source LID in the header is to be sent as it is: the permissive one of a directed route.
    pub keep_source_lid: bool,
    /// Service level.
    pub service_level: u8,
    /// Software wants a completion.
    pub signalled: bool,
    /// Destination.
    pub dlid: Lid,
    /// Gather list: headers, then payload. The place holder of the CRC is not in it.
    pub data: DataSegments,
}

impl MlxWqe {
    /// Reads a WQE, all of whose bytes are in `wqe`.
    ///
    /// # Errors
    /// [`WqeError::Truncated`].
    pub fn parse(wqe: &[u8]) -> Result<Self, WqeError> {
        let mut rest = Segments(wqe);
        let raw: Raw = transmute!(*rest.take::<GRANULE>("MLX segment")?);
        let mut data = DataSegments::new();
        while !rest.0.is_empty() {
            if let Data::Region(segment) = next_data(&mut rest)? {
                data.push(segment);
            }
        }
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
    /// As in other WQEs: about the next one.
    link: [u8; 8],
    flags: Flags,
    dlid: U16,
    vcrc: U16,
}
