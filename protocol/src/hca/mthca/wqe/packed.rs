//! Packet headers that the driver writes in front of a MAD, in InfiniBand wire format.
//!
//! # Spec
//! mthca interface, section 8.3; IBTA volume 1, sections 7.7 (local route header), 8.3 (global route header) and 9.2 to
//! 9.3.

use bitfield_struct::bitfield;
use zerocopy::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::WireError;
use crate::roce::{Bth, Deth, Ext, ExtKind, Imm, Operation, Transport};
use crate::view::view;

/// Headers of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackedHeaders {
    /// Service level, four bits.
    pub service_level: u8,
    /// Global route header (GRH).
    pub grh: Option<PackedGrh>,
    /// Base transport header. The opcode is SEND Only, with or without immediate data.
    pub bth: Bth,
    /// Datagram extended transport header.
    pub deth: Deth,
    /// Immediate data, in wire byte order.
    pub imm: Option<Imm>,
}

/// The GRH fields used by the device. The source GID always belongs to the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct PackedGrh {
    /// Traffic class of the GRH.
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Hop limit of the GRH.
    pub hop_limit: u8,
    pub dgid: [u8; 16],
}

impl PackedHeaders {
    /// Maximum length of the headers in bytes.
    pub const MAX_LEN: usize = 8 + 40 + 12 + 12;

    /// Parses the headers at the front of `bytes`. Returns the headers and the payload.
    ///
    /// # Errors
    /// [`WireError::Short`] if the headers are truncated; [`WireError::Invalid`] if the packet is not a datagram.
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), WireError> {
        /// Next header codes in the LRH: 2 for a BTH, 3 for a GRH followed by a BTH.
        const LOCAL: u8 = 2;
        const GLOBAL: u8 = 3;
        let (lrh, rest) = view::<RawLrh>(bytes, "LRH")?;
        let (grh, rest) = match lrh.class.next() {
            LOCAL => (None, rest),
            GLOBAL => {
                let (grh, rest) = view::<RawGrh>(rest, "GRH")?;
                (Some(grh.get()), rest)
            }
            other => return Err(WireError::Invalid { what: "LRH next header", value: other.into() }),
        };
        let (bth, _, rest) = Bth::parse(rest)?;
        let kind = match (bth.opcode.transport, bth.opcode.operation) {
            (Transport::Ud, Operation::SendOnly) => ExtKind::Deth,
            (Transport::Ud, Operation::SendOnlyImm) => ExtKind::DethImm,
            _ => return Err(WireError::Invalid { what: "opcode", value: bth.opcode.to_byte().into() }),
        };
        let (ext, rest) = Ext::parse(kind, rest)?;
        let (Ext::Deth(deth) | Ext::DethImm(deth, _)) = ext else {
            return Err(WireError::Invalid { what: "datagram header", value: 0 });
        };
        Ok((Self { service_level: lrh.class.service_level(), grh, bth, deth, imm: ext.imm() }, rest))
    }
}

#[bitfield(u8)]
#[derive(FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
struct Class {
    #[bits(2)]
    next: u8,
    #[bits(2)]
    __: u8,
    #[bits(4)]
    service_level: u8,
}

#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
struct RawLrh {
    lane_version: u8,
    class: Class,
    dlid: U16,
    len: U16,
    slid: U16,
}

#[bitfield(u32, repr = U32, from = U32::new, into = U32::get)]
#[derive(FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
struct Flow {
    #[bits(20)]
    label: u32,
    traffic_class: u8,
    #[bits(4)]
    version: u8,
}

#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
struct RawGrh {
    flow: Flow,
    payload_len: U16,
    next: u8,
    hop_limit: u8,
    sgid: [u8; 16],
    dgid: [u8; 16],
}

impl RawGrh {
    fn get(&self) -> PackedGrh {
        PackedGrh {
            traffic_class: self.flow.traffic_class(),
            flow_label: self.flow.label(),
            hop_limit: self.hop_limit,
            dgid: self.dgid,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Psn;
    use crate::ids::{Pkey, Qkey, Qpn};

    const BTH_DETH: [u8; 20] = [
        0x64, 0x80, 0xff, 0xff, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00, 0x05, //
        0x80, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x01,
    ];

    /// A datagram to QP1 at LID 2 whose packet length is 72 words.
    #[test]
    fn parses_datagram_to_qp1() {
        let lrh = [0x00, 0x32, 0x00, 0x02, 0x00, 0x48, 0x00, 0x00];
        let bytes = [&lrh[..], &BTH_DETH, &[0x5a; 256]].concat();
        let (headers, payload) = PackedHeaders::parse(&bytes).unwrap();
        assert_eq!((headers.service_level, headers.grh), (3, None));
        assert_eq!(
            (headers.bth.dest_qp, headers.bth.psn, headers.bth.pkey),
            (Qpn::new(1), Psn::new(5), Pkey::DEFAULT)
        );
        assert!(headers.bth.solicited);
        assert_eq!(headers.deth, Deth { qkey: Qkey::new(0x8001_0000), src_qp: Qpn::new(1) });
        assert_eq!(payload, [0x5a; 256]);
    }

    #[test]
    fn parses_datagram_with_grh() {
        let lrh = [0x00, 0x03, 0x00, 0x02, 0x00, 0x52, 0x00, 0x00];
        let mut grh = [0; 40];
        grh[..8].copy_from_slice(&[0x61, 0x23, 0x45, 0x67, 0x01, 0x18, 0x1b, 0x40]);
        grh[24..].copy_from_slice(&[9; 16]);
        let bytes = [&lrh[..], &grh, &BTH_DETH].concat();
        let (headers, payload) = PackedHeaders::parse(&bytes).unwrap();
        let expected =
            PackedGrh { traffic_class: 0x12, flow_label: 0x3_4567, hop_limit: 0x40, dgid: [9; 16] };
        assert_eq!((headers.grh, payload.len()), (Some(expected), 0));
    }

    #[test]
    fn rejects_truncated_and_non_datagram_packets() {
        let lrh = [0x00, 0x02, 0x00, 0x02, 0x00, 0x48, 0x00, 0x00];
        let whole = [&lrh[..], &BTH_DETH].concat();
        for len in 0..whole.len() {
            assert!(PackedHeaders::parse(&whole[..len]).is_err(), "{len} bytes");
        }
        for (at, value) in [(1, 0x00), (8, 0x04), (8, 0x66)] {
            let mut bytes = whole.clone();
            bytes[at] = value;
            assert!(matches!(PackedHeaders::parse(&bytes), Err(WireError::Invalid { .. })));
        }
    }
}
