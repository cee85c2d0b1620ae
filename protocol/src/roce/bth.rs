//! The base transport header (BTH), IBTA 9.2.

use bitfield_struct::bitfield;
use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::Opcode;
use crate::ids::{Pkey, Qpn};
use crate::view::view;
use crate::{Psn, WireError};

/// Wire format of the BTH, 12 bytes.
///
/// # Spec
/// IBTA volume 1, section 9.2.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct RawBth {
    /// Transport service and operation; see [`Opcode`].
    pub opcode: u8,
    /// The flags SE, M, PadCnt and TVer.
    pub flags: BthFlags,
    /// Partition key; see [`Pkey`].
    pub pkey: U16,
    /// The word with FECN, BECN and DestQP.
    pub dest: BthDest,
    /// The word with AckReq and PSN.
    pub sequence: BthSequence,
}

const _: () = assert!(size_of::<RawBth>() == 12);

/// Second byte of the BTH, with bit 7 as the most significant bit.
#[bitfield(u8)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct BthFlags {
    /// TVer, bits 3:0; only version 0 is defined.
    #[bits(4)]
    pub tver: u8,
    /// PadCnt, bits 5:4; number of pad bytes, 0 to 3.
    #[bits(2)]
    pub pad_count: u8,
    /// MigReq, bit 6 of the byte.
    pub mig_req: bool,
    /// Solicited event, bit 7.
    pub solicited: bool,
}

/// Second word of the BTH.
#[bitfield(u32, repr = U32, from = U32::new, into = U32::get)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct BthDest {
    /// DestQP, bits 23:0 of the word.
    #[bits(24)]
    pub qpn: u32,
    #[bits(6)]
    __: u8,
    /// BECN, bit 30 of the word.
    pub becn: bool,
    /// FECN, bit 31 of the word.
    pub fecn: bool,
}

/// Third word of the BTH.
#[bitfield(u32, repr = U32, from = U32::new, into = U32::get)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct BthSequence {
    /// PSN, bits 23:0 of the word.
    #[bits(24)]
    pub psn: u32,
    #[bits(7)]
    __: u8,
    /// AckReq, bit 31 of the word.
    pub ack_req: bool,
}

/// The parsed BTH, without the pad count. `parse` returns the pad count separately, and `emit` takes it as an argument.
///
/// # Spec
/// IBTA volume 1, section 9.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Bth {
    /// Transport service and operation.
    pub opcode: Opcode,
    /// Whether to request a solicited event at the receiver.
    pub solicited: bool,
    /// Migration state: true means Migrated, and false means Armed.
    pub mig_req: bool,
    /// Key of the sender's partition.
    pub pkey: Pkey,
    /// Forward explicit congestion notification (FECN).
    pub fecn: bool,
    /// Backward explicit congestion notification (BECN).
    pub becn: bool,
    /// Destination QP number (DestQP).
    pub dest_qp: Qpn,
    pub ack_req: bool,
    pub psn: Psn,
}

impl Bth {
    /// Parses the header at the front of `bytes`. Returns the header, the pad count (0 to 3) and the remaining bytes.
    /// Reserved bits are ignored.
    ///
    /// # Errors
    /// [`WireError::Short`] if the header is truncated; [`WireError::Invalid`] for a nonzero transport version, whose
    /// layout is unknown.
    // Always inlined, since otherwise the result would be copied once more for every packet.
    #[inline(always)]
    pub fn parse(bytes: &[u8]) -> Result<(Self, usize, &[u8]), WireError> {
        let (raw, rest) = view::<RawBth>(bytes, "BTH")?;
        // IBTA volume 1, section 9.6.1.1 (BTH checks): discard packets with other transport versions.
        if raw.flags.tver() != 0 {
            return Err(WireError::Invalid { what: "BTH TVer", value: raw.flags.tver().into() });
        }
        let bth = Self {
            opcode: Opcode::from_byte(raw.opcode),
            solicited: raw.flags.solicited(),
            mig_req: raw.flags.mig_req(),
            pkey: Pkey::new(raw.pkey.get()),
            fecn: raw.dest.fecn(),
            becn: raw.dest.becn(),
            dest_qp: Qpn::new(raw.dest.qpn()),
            ack_req: raw.sequence.ack_req(),
            psn: Psn::new(raw.sequence.psn()),
        };
        Ok((bth, raw.flags.pad_count().into(), rest))
    }

    /// Returns the header in wire format, for a payload with `pad` pad bytes. Only the low two bits of `pad` are used.
    #[inline]
    pub fn emit(&self, pad: usize) -> RawBth {
        let pad = u8::try_from(pad & 3).unwrap_or_default();
        RawBth {
            opcode: self.opcode.to_byte(),
            flags: BthFlags::new()
                .with_pad_count(pad)
                .with_mig_req(self.mig_req)
                .with_solicited(self.solicited),
            pkey: self.pkey.get().into(),
            dest: BthDest::new().with_qpn(self.dest_qp.get()).with_becn(self.becn).with_fecn(self.fecn),
            sequence: BthSequence::new().with_psn(self.psn.get()).with_ack_req(self.ack_req),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::roce::Operation;

    /// Generated by scapy 2.8.0: BTH(opcode=0x27, solicited=1, migreq=1, padcount=2, version=0, pkey=0x7fff,
    /// fecn=1, becn=0, dqpn=0xabcdef, ackreq=1, psn=0x123456).
    const GOLDEN: [u8; 12] = [0x27, 0xe0, 0x7f, 0xff, 0x80, 0xab, 0xcd, 0xef, 0x80, 0x12, 0x34, 0x56];

    #[test]
    fn raw_fields_match_golden_bytes() {
        let raw = RawBth::read_from_bytes(&GOLDEN).unwrap();
        assert_eq!((raw.opcode, raw.pkey.get()), (0x27, 0x7fff));
        assert_eq!((raw.flags.tver(), raw.flags.pad_count()), (0, 2));
        assert!(raw.flags.mig_req() && raw.flags.solicited());
        assert_eq!((raw.dest.qpn(), raw.dest.fecn(), raw.dest.becn()), (0xab_cdef, true, false));
        assert_eq!((raw.sequence.psn(), raw.sequence.ack_req()), (0x12_3456, true));

        let mut written = RawBth::read_from_bytes(&[0xa5; 12]).unwrap();
        written.opcode = 0x27;
        written.flags =
            BthFlags::new().with_tver(0).with_pad_count(2).with_mig_req(true).with_solicited(true);
        written.pkey = 0x7fff.into();
        written.dest = BthDest::new().with_qpn(0xab_cdef).with_fecn(true).with_becn(false);
        written.sequence = BthSequence::new().with_psn(0x12_3456).with_ack_req(true);
        assert_eq!(written.as_bytes(), GOLDEN);
    }

    #[test]
    fn golden_header_round_trips() {
        let expected = Bth {
            opcode: Opcode::uc(Operation::WriteMiddle),
            solicited: true,
            mig_req: true,
            pkey: Pkey::new(0x7fff),
            fecn: true,
            becn: false,
            dest_qp: Qpn::new(0xab_cdef),
            ack_req: true,
            psn: Psn::new(0x12_3456),
        };
        assert_eq!(Bth::parse(&GOLDEN), Ok((expected, 2, &[][..])));
        assert_eq!(expected.emit(2).as_bytes(), GOLDEN);
    }

    #[test]
    fn reserved_bits_are_ignored() {
        let mut bytes = GOLDEN;
        bytes[4] |= 0x3f;
        bytes[8] |= 0x7f;
        assert_eq!(Bth::parse(&bytes), Bth::parse(&GOLDEN));
    }
}
