//! WQE segments common to the HCR interfaces. A WQE is a sequence of 16-byte granules, the first of which is the *next
//! segment*, a link to the next WQE. The type parameter `O` is the byte order of the interface.
//!
//! # Spec
//! JingZhao interface, sections 6.2 to 6.6, where segments are called units; mthca interface, section 7.1.

use smallvec::SmallVec;
use thiserror::Error;
use zerocopy::byteorder::{BigEndian, ByteOrder, LittleEndian, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, transmute};

use super::opcode::WqeOpcode;
use super::operation::{Operation, RemoteAddress};
use super::qp::ServiceType;
use crate::describe::describe;
use crate::ids::{Lkey, Rkey, Va};
use crate::roce::Imm;

/// Length of a granule, in bytes. WQE sizes are given in granules.
pub const GRANULE: usize = 16;

/// Flag in the first word of an inline segment. The other bits contain the length in bytes.
pub(super) const INLINE: u32 = 1 << 31;

/// Error in a WQE. The WQE completes with LOCAL_QP_OP_ERR.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum WqeError {
    /// The opcode is unknown or not supported by the service type.
    #[error("unsupported opcode {0:#04x}")]
    Opcode(u8),
    /// The WQE ends inside a required segment.
    #[error("the WQE is too short for its {0}")]
    Truncated(&'static str),
    /// The WQE has inline data although its operation returns data, or it mixes inline data and data segments.
    #[error("inline data is not supported in this WQE")]
    Inline,
    /// The result buffer of an atomic operation is not a single 8-byte segment.
    #[error("the result buffer of an atomic operation must be a single 8-byte segment")]
    AtomicResult,
}

/// One entry of a gather or scatter list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataSegment {
    /// Length in bytes, 31 bits; 0 for an empty entry.
    pub len: u32,
    /// L_Key of the region.
    pub lkey: Lkey,
    /// Virtual address of the first byte, within the region.
    pub va: Va,
}

describe!(DataSegment { len, lkey, va });

/// A gather or scatter list. Up to four entries are stored without allocation.
pub type DataSegments = SmallVec<[DataSegment; 4]>;

impl DataSegment {
    pub(super) fn parse<O: ByteOrder>(raw: &RawData<O>) -> Result<Self, WqeError> {
        let len = raw.len.get();
        if len & INLINE != 0 {
            return Err(WqeError::Inline);
        }
        Ok(Self { len, lkey: Lkey::new(raw.lkey.get()), va: Va::new(raw.va.get()) })
    }

    /// Returns the segment in little-endian wire format.
    pub fn emit_le(&self) -> [u8; GRANULE] {
        self.emit::<LittleEndian>()
    }

    /// Returns the segment in big-endian wire format.
    pub fn emit_be(&self) -> [u8; GRANULE] {
        self.emit::<BigEndian>()
    }

    fn emit<O: ByteOrder>(&self) -> [u8; GRANULE] {
        transmute!(RawData::<O> {
            len: U32::new(self.len & !INLINE),
            lkey: U32::new(self.lkey.get()),
            va: U64::new(self.va.get()),
        })
    }
}

/// The unparsed remainder of a send WQE.
pub(super) struct Segments<'a>(pub(super) &'a [u8]);

impl<'a> Segments<'a> {
    pub(super) fn take<const N: usize>(&mut self, what: &'static str) -> Result<&'a [u8; N], WqeError> {
        let (segment, rest) = self.0.split_first_chunk().ok_or(WqeError::Truncated(what))?;
        self.0 = rest;
        Ok(segment)
    }

    /// Parses the segments between the *next segment* and the data. `datagram` parses the address segment of a
    /// datagram.
    pub(super) fn operation<O: ByteOrder, To>(
        &mut self,
        code: WqeOpcode,
        service: ServiceType,
        imm: Imm,
        datagram: impl FnOnce(&mut Self) -> Result<To, WqeError>,
    ) -> Result<Operation<To>, WqeError> {
        let imm = code.has_imm().then_some(imm);
        Ok(match code {
            WqeOpcode::Nop => Operation::Nop,
            WqeOpcode::Send | WqeOpcode::SendImm if service == ServiceType::Ud => {
                Operation::Datagram { imm, to: datagram(self)? }
            }
            WqeOpcode::Send | WqeOpcode::SendImm => Operation::Send { imm },
            WqeOpcode::Write | WqeOpcode::WriteImm => Operation::Write { remote: self.remote::<O>()?, imm },
            WqeOpcode::Read => Operation::Read { remote: self.remote::<O>()? },
            WqeOpcode::CompareSwap => {
                let remote = self.remote::<O>()?;
                let operands = self.operands::<O>()?;
                Operation::CompareSwap {
                    remote,
                    compare: operands.compare.get(),
                    swap: operands.swap_add.get(),
                }
            }
            WqeOpcode::FetchAdd => {
                let remote = self.remote::<O>()?;
                Operation::FetchAdd { remote, add: self.operands::<O>()?.swap_add.get() }
            }
        })
    }

    fn remote<O: ByteOrder>(&mut self) -> Result<RemoteAddress, WqeError> {
        let raw: RawRemote<O> = transmute!(*self.take::<GRANULE>("remote address segment")?);
        Ok(RemoteAddress { va: Va::new(raw.va.get()), rkey: Rkey::new(raw.rkey.get()) })
    }

    fn operands<O: ByteOrder>(&mut self) -> Result<RawAtomic<O>, WqeError> {
        Ok(transmute!(*self.take::<GRANULE>("atomic segment")?))
    }
}

/// Checks that the data is valid for the operation. `list` is `None` for inline data.
pub(super) fn check_data(code: WqeOpcode, list: Option<&[DataSegment]>) -> Result<(), WqeError> {
    match list {
        None if code.is_atomic() || code == WqeOpcode::Read => Err(WqeError::Inline),
        Some(list) if code.is_atomic() && !matches!(list, [DataSegment { len: 8, .. }]) => {
            Err(WqeError::AtomicResult)
        }
        _ => Ok(()),
    }
}

impl<To> Operation<To> {
    /// Appends the segments between the *next segment* and the data. `datagram` appends the address segment of a
    /// datagram.
    pub(super) fn emit<O: ByteOrder>(&self, wqe: &mut Vec<u8>, datagram: impl FnOnce(&To, &mut Vec<u8>)) {
        let operands =
            |compare, swap_add| RawAtomic::<O> { swap_add: U64::new(swap_add), compare: U64::new(compare) };
        match self {
            Self::Nop | Self::Send { .. } => {}
            Self::Datagram { to, .. } => datagram(to, wqe),
            Self::Write { remote, .. } | Self::Read { remote } => remote.emit::<O>(wqe),
            Self::CompareSwap { remote, compare, swap } => {
                remote.emit::<O>(wqe);
                wqe.extend_from_slice(operands(*compare, *swap).as_bytes());
            }
            Self::FetchAdd { remote, add } => {
                remote.emit::<O>(wqe);
                wqe.extend_from_slice(operands(0, *add).as_bytes());
            }
        }
    }
}

impl RemoteAddress {
    fn emit<O: ByteOrder>(self, wqe: &mut Vec<u8>) {
        let raw =
            RawRemote::<O> { va: U64::new(self.va.get()), rkey: U32::new(self.rkey.get()), reserved: [0; 4] };
        wqe.extend_from_slice(raw.as_bytes());
    }
}

/// Appends an inline segment, zero-padded to a multiple of 16 bytes.
pub(super) fn emit_inline<O: ByteOrder>(bytes: &[u8], wqe: &mut Vec<u8>) {
    // The fallback is never used, since data longer than `u32::MAX` bytes does not fit in a WQE.
    let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    wqe.extend_from_slice(U32::<O>::new(len | INLINE).as_bytes());
    wqe.extend_from_slice(bytes);
    wqe.resize(wqe.len().next_multiple_of(GRANULE), 0);
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawRemote<O> {
    va: U64<O>,
    rkey: U32<O>,
    reserved: [u8; 4],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawAtomic<O> {
    swap_add: U64<O>,
    compare: U64<O>,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawData<O> {
    pub(super) len: U32<O>,
    pub(super) lkey: U32<O>,
    pub(super) va: U64<O>,
}
