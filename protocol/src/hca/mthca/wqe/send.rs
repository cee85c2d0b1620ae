//! Send WQEs of ordinary QPs.
//!
//! # Spec
//! mthca interface, sections 7.1 and 7.2.

use smallvec::SmallVec;
use zerocopy::{FromBytes, IntoBytes, transmute};

use super::segments::{INLINE, RawAtomic, RawData, RawRemote};
use super::{DataSegment, DataSegments, GRANULE, NextSegment, UdSegment, WqeError};
use crate::hca::opcode::WqeOpcode;
use crate::hca::operation::RemoteAddress;
use crate::hca::qp::ServiceType;
use crate::ids::{Rkey, Va};
use crate::roce::Imm;

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
        let imm = Some(next.imm);
        let operation = match code {
            // What follows means nothing.
            WqeOpcode::Nop => {
                let data = WqeData::Segments(DataSegments::new());
                return Ok(Self { next, operation: Operation::Nop, data });
            }
            WqeOpcode::Send => rest.send(service, None)?,
            WqeOpcode::SendImm => rest.send(service, imm)?,
            WqeOpcode::Write => Operation::Write { remote: rest.remote()?, imm: None },
            WqeOpcode::WriteImm => Operation::Write { remote: rest.remote()?, imm },
            WqeOpcode::Read => Operation::Read { remote: rest.remote()? },
            WqeOpcode::CompareSwap | WqeOpcode::FetchAdd => rest.atomic(code)?,
        };
        let data = rest.data()?;
        match &data {
            WqeData::Inline(_) if code.is_atomic() || code == WqeOpcode::Read => {
                return Err(WqeError::Inline);
            }
            WqeData::Segments(list)
                if code.is_atomic() && !matches!(list[..], [DataSegment { len: 8, .. }]) =>
            {
                return Err(WqeError::AtomicResult);
            }
            _ => {}
        }
        Ok(Self { next, operation, data })
    }

    /// The WQE as software writes it, a whole number of granules.
    pub fn emit(&self) -> Vec<u8> {
        let mut wqe = self.next.emit().to_vec();
        let remote = |remote: RemoteAddress| RawRemote {
            va: remote.va.get().into(),
            rkey: remote.rkey.get().into(),
            reserved: [0; 4],
        };
        match self.operation {
            Operation::Nop | Operation::Send { .. } => {}
            Operation::Datagram { to, .. } => wqe.extend_from_slice(&to.emit()),
            Operation::Write { remote: to, .. } | Operation::Read { remote: to } => {
                wqe.extend_from_slice(remote(to).as_bytes());
            }
            Operation::CompareSwap { remote: to, compare, swap } => {
                wqe.extend_from_slice(remote(to).as_bytes());
                wqe.extend_from_slice(
                    RawAtomic { swap_add: swap.into(), compare: compare.into() }.as_bytes(),
                );
            }
            Operation::FetchAdd { remote: to, add } => {
                wqe.extend_from_slice(remote(to).as_bytes());
                wqe.extend_from_slice(RawAtomic { swap_add: add.into(), compare: 0.into() }.as_bytes());
            }
        }
        match &self.data {
            WqeData::Segments(list) => list.iter().for_each(|data| wqe.extend_from_slice(&data.emit())),
            WqeData::Inline(bytes) => {
                // A WQE has at most 63 granules, so longer data has no encoding at all.
                let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
                wqe.extend_from_slice(&(len | INLINE).to_be_bytes());
                wqe.extend_from_slice(bytes);
                wqe.resize(wqe.len().next_multiple_of(GRANULE), 0);
            }
        }
        wqe
    }
}

/// The segments of a send WQE that were not taken yet.
pub(super) struct Segments<'a>(pub(super) &'a [u8]);

impl<'a> Segments<'a> {
    pub(super) fn take<const N: usize>(&mut self, what: &'static str) -> Result<&'a [u8; N], WqeError> {
        let (segment, rest) = self.0.split_first_chunk().ok_or(WqeError::Truncated(what))?;
        self.0 = rest;
        Ok(segment)
    }

    fn send(&mut self, service: ServiceType, imm: Option<Imm>) -> Result<Operation, WqeError> {
        Ok(match service {
            ServiceType::Ud => {
                Operation::Datagram { imm, to: self.take("UD segment").map(UdSegment::parse)? }
            }
            ServiceType::Rc | ServiceType::Uc => Operation::Send { imm },
        })
    }

    fn remote(&mut self) -> Result<RemoteAddress, WqeError> {
        let raw: RawRemote = transmute!(*self.take::<GRANULE>("remote address segment")?);
        Ok(RemoteAddress { va: Va::new(raw.va.get()), rkey: Rkey::new(raw.rkey.get()) })
    }

    fn atomic(&mut self, code: WqeOpcode) -> Result<Operation, WqeError> {
        let remote = self.remote()?;
        let raw: RawAtomic = transmute!(*self.take::<GRANULE>("atomic segment")?);
        let (swap_add, compare) = (raw.swap_add.get(), raw.compare.get());
        Ok(match code {
            WqeOpcode::CompareSwap => Operation::CompareSwap { remote, compare, swap: swap_add },
            _ => Operation::FetchAdd { remote, add: swap_add },
        })
    }

    /// Data to the end: in regions, or all of it inline.
    fn data(self) -> Result<WqeData, WqeError> {
        let mut inline = SmallVec::new();
        let mut list = DataSegments::new();
        let mut rest = self;
        while !rest.0.is_empty() {
            match rest.next_data()? {
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

    /// The next element of a gather list.
    pub(super) fn next_data(&mut self) -> Result<Data<'a>, WqeError> {
        const HEAD: usize = 4;
        let head = self.0.first_chunk::<HEAD>().map_or(0, |head| u32::from_be_bytes(*head));
        if head & INLINE == 0 {
            let raw = RawData::read_from_bytes(self.take::<GRANULE>("data segment")?);
            let raw = raw.map_err(|_| WqeError::Truncated("data segment"))?;
            return DataSegment::from_raw(&raw).map(Data::Region);
        }
        let truncated = WqeError::Truncated("inline data");
        let len = (head & !INLINE) as usize;
        let end = HEAD.checked_add(len).ok_or(truncated)?;
        let bytes = self.0.get(HEAD..end).ok_or(truncated)?;
        self.0 = self.0.get(end.next_multiple_of(GRANULE)..).unwrap_or_default();
        Ok(Data::Inline(bytes))
    }
}

/// An element of a gather list.
pub(super) enum Data<'a> {
    Region(DataSegment),
    Inline(&'a [u8]),
}
