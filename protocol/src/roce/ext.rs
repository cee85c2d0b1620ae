//! Extended transport headers. Each header has its own type; [`Ext`] combines the headers that an opcode requires.
//!
//! The XRCETH is not part of [`Ext`]. It precedes the other extension headers, which are the same with and without an
//! XRCETH.

use bitfield_struct::bitfield;
use zerocopy::byteorder::network_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::WireError;
use crate::ids::{Msn, Qkey, Qpn, Rkey, Srqn, Va};
use crate::view::view;

/// Immediate data: four bytes that are never byte-swapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Imm(pub [u8; 4]);

/// RDMA extended transport header (RETH), 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reth {
    /// Remote address of the first byte.
    pub va: Va,
    /// R_Key of the remote region.
    pub rkey: Rkey,
    /// Length of the whole message in bytes.
    pub dma_len: u32,
}

/// Atomic extended transport header (AtomicETH), 28 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicEth {
    /// Remote address of the 64-bit operand.
    pub va: Va,
    /// R_Key of the remote region.
    pub rkey: Rkey,
    /// Value to store (CmpSwap) or to add (FetchAdd).
    pub swap_add: u64,
    /// Value to compare with; ignored by FetchAdd.
    pub compare: u64,
}

/// Datagram extended transport header (DETH), 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deth {
    /// Q_Key, which the receiver checks against its own.
    pub qkey: Qkey,
    /// QP number of the sender.
    pub src_qp: Qpn,
}

/// NAK codes, the low five bits of AETH syndrome 011xxxxx.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NakCode {
    /// Code 0: PSN sequence error.
    PsnSequence,
    /// Code 1: invalid request.
    InvalidRequest,
    /// Code 2: remote access error.
    RemoteAccess,
    /// Code 3: remote operational error.
    RemoteOperational,
    /// Code 4: invalid RD request.
    InvalidRdRequest,
    /// A reserved code, which is preserved.
    Reserved(u8),
}

/// Syndrome of an AETH.
///
/// # Spec
/// IBTA volume 1, section 9.7.5.1 (tables 43 to 46).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syndrome {
    /// An acknowledgement with a credit count.
    Ack {
        /// Encoded credit count, five bits. 31 means that end-to-end flow control is not in use.
        credits: u8,
    },
    /// The receiver is not ready (RNR).
    RnrNak {
        /// Encoded RNR NAK timer, five bits.
        timer: u8,
    },
    /// A negative acknowledgement (NAK) with its code.
    Nak(NakCode),
    /// A reserved syndrome, as the whole byte.
    Reserved(u8),
}

/// ACK extended transport header (AETH), 4 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aeth {
    /// Type of response: ACK, RNR NAK or NAK.
    pub syndrome: Syndrome,
    /// Number of messages that the responder has completed, modulo 2^24.
    pub msn: Msn,
}

/// Extension headers of a packet. The opcode determines the variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ext {
    /// The packet has no extension header.
    None,
    /// SEND or RDMA WRITE packet with immediate data.
    Imm(Imm),
    /// RDMA WRITE or RDMA READ request.
    Reth(Reth),
    /// RDMA WRITE Only with immediate data.
    RethImm(Reth, Imm),
    /// Acknowledgement or RDMA READ response.
    Aeth(Aeth),
    /// ATOMIC acknowledgement with the original 64-bit value.
    AtomicAck(Aeth, u64),
    /// CmpSwap or FetchAdd request.
    Atomic(AtomicEth),
    /// Datagram without immediate data.
    Deth(Deth),
    /// Datagram with immediate data.
    DethImm(Deth, Imm),
    /// SEND with Invalidate. The IETH carries the R_Key to invalidate.
    Invalidate(Rkey),
}

/// The kind of an [`Ext`].
#[allow(missing_docs)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExtKind {
    None,
    Imm,
    Reth,
    RethImm,
    Aeth,
    AtomicAck,
    Atomic,
    Deth,
    DethImm,
    Invalidate,
}

impl ExtKind {
    /// Returns the length of the headers in bytes, 0 to 28.
    pub const fn len_bytes(self) -> usize {
        match self {
            Self::None => 0,
            Self::Imm | Self::Aeth | Self::Invalidate => 4,
            Self::Deth => 8,
            Self::DethImm | Self::AtomicAck => 12,
            Self::Reth => 16,
            Self::RethImm => 20,
            Self::Atomic => 28,
        }
    }
}

impl Ext {
    /// Returns the kind of this value.
    pub const fn kind(&self) -> ExtKind {
        match self {
            Self::None => ExtKind::None,
            Self::Imm(_) => ExtKind::Imm,
            Self::Reth(_) => ExtKind::Reth,
            Self::RethImm(..) => ExtKind::RethImm,
            Self::Aeth(_) => ExtKind::Aeth,
            Self::AtomicAck(..) => ExtKind::AtomicAck,
            Self::Atomic(_) => ExtKind::Atomic,
            Self::Deth(_) => ExtKind::Deth,
            Self::DethImm(..) => ExtKind::DethImm,
            Self::Invalidate(_) => ExtKind::Invalidate,
        }
    }

    /// Returns the immediate data, if the packet carries any.
    pub const fn imm(&self) -> Option<Imm> {
        match self {
            Self::Imm(imm) | Self::RethImm(_, imm) | Self::DethImm(_, imm) => Some(*imm),
            _ => None,
        }
    }

    /// Parses the headers of `kind` at the front of `bytes`. Returns the headers and the remaining bytes.
    ///
    /// # Errors
    /// [`WireError::Short`] if a header is truncated.
    #[inline]
    pub fn parse(kind: ExtKind, bytes: &[u8]) -> Result<(Self, &[u8]), WireError> {
        Ok(match kind {
            ExtKind::None => (Self::None, bytes),
            ExtKind::Imm => {
                let (imm, rest) = Imm::parse(bytes)?;
                (Self::Imm(imm), rest)
            }
            ExtKind::Reth => {
                let (reth, rest) = Reth::parse(bytes)?;
                (Self::Reth(reth), rest)
            }
            ExtKind::RethImm => {
                let (reth, rest) = Reth::parse(bytes)?;
                let (imm, rest) = Imm::parse(rest)?;
                (Self::RethImm(reth, imm), rest)
            }
            ExtKind::Aeth => {
                let (aeth, rest) = Aeth::parse(bytes)?;
                (Self::Aeth(aeth), rest)
            }
            ExtKind::AtomicAck => {
                let (aeth, rest) = Aeth::parse(bytes)?;
                let (original, rest) = view::<U64>(rest, "atomicacketh")?;
                (Self::AtomicAck(aeth, original.get()), rest)
            }
            ExtKind::Atomic => {
                let (atomic, rest) = AtomicEth::parse(bytes)?;
                (Self::Atomic(atomic), rest)
            }
            ExtKind::Deth => {
                let (deth, rest) = Deth::parse(bytes)?;
                (Self::Deth(deth), rest)
            }
            ExtKind::DethImm => {
                let (deth, rest) = Deth::parse(bytes)?;
                let (imm, rest) = Imm::parse(rest)?;
                (Self::DethImm(deth, imm), rest)
            }
            ExtKind::Invalidate => {
                let (rkey, rest) = view::<U32>(bytes, "ieth")?;
                (Self::Invalidate(Rkey::new(rkey.get())), rest)
            }
        })
    }

    /// Appends the headers in wire format to `out`.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let mut put = |bytes: &[u8]| out.extend_from_slice(bytes);
        match self {
            Self::None => {}
            Self::Imm(imm) => put(&imm.0),
            Self::Reth(reth) => put(reth.emit().as_bytes()),
            Self::RethImm(reth, imm) => {
                put(reth.emit().as_bytes());
                put(&imm.0);
            }
            Self::Aeth(aeth) => put(aeth.emit().as_bytes()),
            Self::AtomicAck(aeth, original) => {
                put(aeth.emit().as_bytes());
                put(&original.to_be_bytes());
            }
            Self::Atomic(atomic) => put(atomic.emit().as_bytes()),
            Self::Deth(deth) => put(deth.emit().as_bytes()),
            Self::DethImm(deth, imm) => {
                put(deth.emit().as_bytes());
                put(&imm.0);
            }
            Self::Invalidate(rkey) => put(&rkey.get().to_be_bytes()),
        }
    }
}

impl Imm {
    fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), WireError> {
        let (raw, rest) = view::<[u8; 4]>(bytes, "immdt")?;
        Ok((Self(*raw), rest))
    }
}

/// Wire format of the XRC extended transport header (IBTA volume 1, section 9.3 and annex A14).
#[bitfield(u32, repr = U32, from = U32::new, into = U32::get)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct RawXrceth {
    /// XRCSRQ: number of the destination SRQ, bits 23:0.
    #[bits(24)]
    pub srqn: u32,
    #[bits(8)]
    __: u8,
}

/// Length of the XRCETH in bytes.
pub const XRCETH_LEN: usize = 4;

const _: () = assert!(size_of::<RawXrceth>() == XRCETH_LEN);

impl RawXrceth {
    /// Parses the header at the front of `bytes`. Returns the SRQ number and the remaining bytes. Reserved bits are
    /// ignored.
    pub(super) fn parse(bytes: &[u8]) -> Result<(Srqn, &[u8]), WireError> {
        let (raw, rest) = view::<Self>(bytes, "XRCETH")?;
        Ok((Srqn::new(raw.srqn()), rest))
    }

    pub(super) fn of(srqn: Srqn) -> Self {
        Self::new().with_srqn(srqn.get())
    }
}

/// Wire format of the RETH (IBTA volume 1, section 9.3.3).
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[allow(missing_docs)]
pub struct RawReth {
    pub va: U64,
    /// R_Key of the region at `va`.
    pub rkey: U32,
    /// DMALen, the message length in bytes.
    pub dma_len: U32,
}

const _: () = assert!(size_of::<RawReth>() == ExtKind::Reth.len_bytes());

impl Reth {
    fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), WireError> {
        let (raw, rest) = view::<RawReth>(bytes, "RETH")?;
        let reth =
            Self { va: Va::new(raw.va.get()), rkey: Rkey::new(raw.rkey.get()), dma_len: raw.dma_len.get() };
        Ok((reth, rest))
    }

    fn emit(&self) -> RawReth {
        RawReth { va: self.va.get().into(), rkey: self.rkey.get().into(), dma_len: self.dma_len.into() }
    }
}

/// Wire format of the AtomicETH (IBTA volume 1, section 9.3.4).
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct RawAtomicEth {
    /// Virtual address of the operand.
    pub va: U64,
    /// R_Key of the region at `va`.
    pub rkey: U32,
    /// Swap data for CmpSwap, or addend for FetchAdd.
    pub swap_add: U64,
    /// Compare data for CmpSwap.
    pub compare: U64,
}

const _: () = assert!(size_of::<RawAtomicEth>() == ExtKind::Atomic.len_bytes());

impl AtomicEth {
    fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), WireError> {
        let (raw, rest) = view::<RawAtomicEth>(bytes, "atomiceth")?;
        let atomic = Self {
            va: Va::new(raw.va.get()),
            rkey: Rkey::new(raw.rkey.get()),
            swap_add: raw.swap_add.get(),
            compare: raw.compare.get(),
        };
        Ok((atomic, rest))
    }

    fn emit(&self) -> RawAtomicEth {
        RawAtomicEth {
            va: self.va.get().into(),
            rkey: self.rkey.get().into(),
            swap_add: self.swap_add.into(),
            compare: self.compare.into(),
        }
    }
}

/// Wire format of the DETH (IBTA volume 1, section 9.3.2).
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct RawDeth {
    /// Q_Key that the receiver checks.
    pub qkey: U32,
    /// Source QP number (SrcQP).
    pub src: DethSource,
}

const _: () = assert!(size_of::<RawDeth>() == ExtKind::Deth.len_bytes());

/// Second word of the DETH.
#[bitfield(u32, repr = U32, from = U32::new, into = U32::get)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct DethSource {
    /// SrcQP, bits 23:0 of the word.
    #[bits(24)]
    pub qpn: u32,
    #[bits(8)]
    __: u8,
}

impl Deth {
    fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), WireError> {
        let (raw, rest) = view::<RawDeth>(bytes, "DETH")?;
        Ok((Self { qkey: Qkey::new(raw.qkey.get()), src_qp: Qpn::new(raw.src.qpn()) }, rest))
    }

    fn emit(&self) -> RawDeth {
        RawDeth { qkey: self.qkey.get().into(), src: DethSource::new().with_qpn(self.src_qp.get()) }
    }
}

/// Wire format of the AETH (IBTA volume 1, section 9.3.5).
#[bitfield(u32, repr = U32, from = U32::new, into = U32::get)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct RawAeth {
    /// MSN, bits 23:0 of the word.
    #[bits(24)]
    pub msn: u32,
    /// Syndrome, bits 31:24 of the word.
    #[bits(8)]
    pub syndrome: u8,
}

const _: () = assert!(size_of::<RawAeth>() == ExtKind::Aeth.len_bytes());

impl Aeth {
    fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), WireError> {
        let (raw, rest) = view::<RawAeth>(bytes, "AETH")?;
        Ok((Self { syndrome: Syndrome::from_byte(raw.syndrome()), msn: Msn::new(raw.msn()) }, rest))
    }

    fn emit(&self) -> RawAeth {
        RawAeth::new().with_syndrome(self.syndrome.to_byte()).with_msn(self.msn.get())
    }
}

impl Syndrome {
    /// ACK that does not use end-to-end flow control.
    pub const ACK: Self = Self::Ack { credits: 0x1f };

    /// Decodes a syndrome. Every byte is valid.
    pub const fn from_byte(byte: u8) -> Self {
        let value = byte & 0x1f;
        match byte >> 5 {
            0b000 => Self::Ack { credits: value },
            0b001 => Self::RnrNak { timer: value },
            0b011 => Self::Nak(NakCode::from_code(value)),
            _ => Self::Reserved(byte),
        }
    }

    /// Encodes the syndrome; the inverse of [`Syndrome::from_byte`].
    pub const fn to_byte(self) -> u8 {
        match self {
            Self::Ack { credits } => credits & 0x1f,
            Self::RnrNak { timer } => 0x20 | (timer & 0x1f),
            Self::Nak(code) => 0x60 | code.code(),
            Self::Reserved(byte) => byte,
        }
    }
}

impl NakCode {
    const fn from_code(code: u8) -> Self {
        match code {
            0 => Self::PsnSequence,
            1 => Self::InvalidRequest,
            2 => Self::RemoteAccess,
            3 => Self::RemoteOperational,
            4 => Self::InvalidRdRequest,
            reserved => Self::Reserved(reserved),
        }
    }

    const fn code(self) -> u8 {
        match self {
            Self::PsnSequence => 0,
            Self::InvalidRequest => 1,
            Self::RemoteAccess => 2,
            Self::RemoteOperational => 3,
            Self::InvalidRdRequest => 4,
            Self::Reserved(code) => code & 0x1f,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_syndrome_byte_round_trips() {
        for byte in 0..=u8::MAX {
            assert_eq!(Syndrome::from_byte(byte).to_byte(), byte);
        }
    }

    #[test]
    fn syndromes_match_ibta_tables() {
        assert_eq!(Syndrome::from_byte(0x1f), Syndrome::ACK);
        assert_eq!(Syndrome::from_byte(0x2c), Syndrome::RnrNak { timer: 12 });
        assert_eq!(Syndrome::from_byte(0x60), Syndrome::Nak(NakCode::PsnSequence));
        assert_eq!(Syndrome::from_byte(0x61), Syndrome::Nak(NakCode::InvalidRequest));
        assert_eq!(Syndrome::from_byte(0x62), Syndrome::Nak(NakCode::RemoteAccess));
        assert_eq!(Syndrome::from_byte(0x63), Syndrome::Nak(NakCode::RemoteOperational));
        assert_eq!(Syndrome::from_byte(0x64), Syndrome::Nak(NakCode::InvalidRdRequest));
        assert_eq!(Syndrome::from_byte(0x65), Syndrome::Nak(NakCode::Reserved(5)));
        for reserved in [0x40, 0x5f, 0x80, 0xe0, 0xff] {
            assert_eq!(Syndrome::from_byte(reserved), Syndrome::Reserved(reserved));
        }
    }
}
