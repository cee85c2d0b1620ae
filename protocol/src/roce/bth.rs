//! Base transport header.

use bitfield_struct::bitfield;
use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::Opcode;
use crate::ids::{Pkey, Qpn};
use crate::view::view;
use crate::{Psn, WireError};

/// The base transport header as its 12 bytes.
///
/// # Spec
/// IBTA volume 1, section 9.2.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct RawBth {
    /// OpCode.
    pub opcode: u8,
    /// SE, M, PadCnt, TVer.
    pub flags: BthFlags,
    /// P_Key.
    pub pkey: U16,
    /// F, B and DestQP.
    pub dest: BthDest,
    /// A and PSN.
    pub sequence: BthSequence,
}

const _: () = assert!(size_of::<RawBth>() == 12);

/// Second byte of the BTH; the standard counts its bits from 7 (SE) down.
#[bitfield(u8)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct BthFlags {
    /// TVer, bits 3:0.
    #[bits(4)]
    pub tver: u8,
    /// PadCnt, bits 5:4.
    #[bits(2)]
    pub pad_count: u8,
    /// M, bit 6.
    pub mig_req: bool,
    /// SE, bit 7.
    pub solicited: bool,
}

/// Second word of the BTH.
#[bitfield(u32, repr = U32, from = U32::new, into = U32::get)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct BthDest {
    /// DestQP, bits 23:0.
    #[bits(24)]
    pub qpn: u32,
    #[bits(6)]
    __: u8,
    /// B, bit 30.
    pub becn: bool,
    /// F, bit 31.
    pub fecn: bool,
}

/// Third word of the BTH.
#[bitfield(u32, repr = U32, from = U32::new, into = U32::get)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct BthSequence {
    /// PSN, bits 23:0.
    #[bits(24)]
    pub psn: u32,
    #[bits(7)]
    __: u8,
    /// A, bit 31.
    pub ack_req: bool,
}

/// Base transport header, parsed. The pad count belongs to the payload and is handled with it.
///
/// # Spec
/// IBTA volume 1, section 9.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bth {
    /// Service and operation.
    pub opcode: Opcode,
    /// The receiver should raise a solicited event.
    pub solicited: bool,
    /// Migration request (1 = migrated).
    pub mig_req: bool,
    /// Partition.
    pub pkey: Pkey,
    /// Forward congestion notification.
    pub fecn: bool,
    /// Backward congestion notification.
    pub becn: bool,
    /// Destination QP.
    pub dest_qp: Qpn,
    /// The sender asks for an acknowledgement.
    pub ack_req: bool,
    /// Packet sequence number.
    pub psn: Psn,
}

impl Bth {
    /// Reads the header at the front of `bytes`; also gives the pad count (0 to 3) and what follows. Reserved bits
    /// are ignored.
    ///
    /// # Errors
    /// [`WireError::Short`]; [`WireError::Invalid`] for a transport version other than 0, whose layout may differ.
    pub fn parse(bytes: &[u8]) -> Result<(Self, usize, &[u8]), WireError> {
        let (raw, rest) = view::<RawBth>(bytes, "BTH")?;
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

    /// The header's bytes, for a payload followed by `pad` bytes (of which the two low bits count).
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

    /// Made by scapy 2.8.0: BTH(opcode=0x27, solicited=1, migreq=1, padcount=2, version=0, pkey=0x7fff, fecn=1,
    /// becn=0, dqpn=0xabcdef, ackreq=1, psn=0x123456).
    const GOLDEN: [u8; 12] = [0x27, 0xe0, 0x7f, 0xff, 0x80, 0xab, 0xcd, 0xef, 0x80, 0x12, 0x34, 0x56];

    #[test]
    fn golden_fields_read_and_write() {
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
    fn golden_header_parses_and_emits() {
        let meant = Bth {
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
        assert_eq!(Bth::parse(&GOLDEN), Ok((meant, 2, &[][..])));
        assert_eq!(meant.emit(2).as_bytes(), GOLDEN);
    }

    #[test]
    fn reserved_bits_are_ignored() {
        let mut bytes = GOLDEN;
        bytes[4] |= 0x3f;
        bytes[8] |= 0x7f;
        assert_eq!(Bth::parse(&bytes), Bth::parse(&GOLDEN));
    }
}
