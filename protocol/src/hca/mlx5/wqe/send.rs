//! Parses and emits send WQEs.

use thiserror::Error;

use super::segments::{
    AtomicSegment, ControlSegment, DataItem, DataItems, DataSegment, DatagramSegment, RemoteSegment,
    XrcSegment,
};
use super::{MAX_SEND, Opcode, UNIT};
use crate::describe::{Describe, Field as _, Value, Visitor};
use crate::hca::mlx5::mkey::MkeyContext;
use crate::hca::mlx5::qp::Service;
use crate::hca::mlx5::strided::StridedList;
use crate::hca::mlx5::syndrome::Syndrome;
use crate::hca::mlx5::umr::UmrControl;
use crate::ids::{Qpn, Srqn};

/// Error in a send WQE. The WQE fails with [`WqeError::SYNDROME`], and the QP enters the error state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum WqeError {
    /// The size of the WQE is 0.
    #[error("the WQE size is 0")]
    Empty,
    /// The WQE ends inside a segment.
    #[error("the WQE is too short for its {0}")]
    Truncated(&'static str),
    /// The WQE contains the QPN of a different QP.
    #[error("QP number {0} in the WQE does not match the QP")]
    Queue(Qpn),
    /// The opcode is unknown or not supported by the service.
    #[error("unsupported opcode {0:#04x}")]
    Opcode(u8),
    /// The WQE has inline data, but its operation returns data.
    #[error("an operation that returns data cannot use inline data")]
    Inline,
    /// The result buffer of an atomic operation is not a single 8-byte segment.
    #[error("the result buffer of an atomic operation must be a single 8-byte segment")]
    AtomicResult,
    /// The segment size of an LSO is 0.
    #[error("the segment size of an LSO is 0")]
    SegmentSize,
}

impl WqeError {
    /// Syndrome that the error CQE reports.
    pub const SYNDROME: Syndrome = Syndrome::LocalQpOperation;
}

/// Translation list of a UMR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Translation<'a> {
    /// The UMR has no list: its control segment specifies 0 units.
    None,
    /// The list is in the WQE. [`SendWqe::emit`] pads it to a multiple of 64 bytes.
    Inline(&'a [u8]),
    /// The list is in memory, at the address in the segment.
    Pointer(DataSegment),
}

/// A UMR, a work request that changes a memory key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Umr<'a> {
    /// Fields to change and conditions to check.
    pub control: UmrControl,
    /// New values for the context of the key.
    pub mkey: MkeyContext,
    /// New translation list for the key.
    pub translation: Translation<'a>,
}

/// Operation of a send WQE. Immediate data and the key to invalidate or change are in the control segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Operation<'a> {
    Nop,
    /// SEND. The opcode determines whether it has immediate data or invalidates a key.
    Send,
    /// SEND of a datagram.
    Datagram(DatagramSegment),
    Write(RemoteSegment),
    Read(RemoteSegment),
    /// Compare and swap, or fetch and add, depending on the opcode.
    Atomic(RemoteSegment, AtomicSegment),
    /// UMR: changes a memory key.
    Umr(Umr<'a>),
}

/// A parsed send WQE.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct SendWqe<'a> {
    pub control: ControlSegment,
    /// Opcode in the control segment.
    pub opcode: Opcode,
    /// SRQ of the peer, if the service is XRC.
    pub xrc_srqn: Option<Srqn>,
    pub operation: Operation<'a>,
    /// Data to gather or scatter. Empty for [`Operation::Nop`] and [`Operation::Umr`].
    pub data: DataItems<'a>,
}

/// The unparsed rest of a WQE.
pub(super) struct Segments<'a>(pub(super) &'a [u8]);

impl<'a> Segments<'a> {
    pub(super) fn bytes(&mut self, len: usize, what: &'static str) -> Result<&'a [u8], WqeError> {
        let (bytes, rest) = self.0.split_at_checked(len).ok_or(WqeError::Truncated(what))?;
        self.0 = rest;
        Ok(bytes)
    }

    pub(super) fn take<const N: usize>(&mut self, what: &'static str) -> Result<&'a [u8; N], WqeError> {
        let (segment, rest) = self.0.split_first_chunk().ok_or(WqeError::Truncated(what))?;
        self.0 = rest;
        Ok(segment)
    }

    fn remote(&mut self) -> Result<RemoteSegment, WqeError> {
        Ok(RemoteSegment::parse(self.take("remote address segment")?))
    }

    fn datagram(&mut self) -> Result<DatagramSegment, WqeError> {
        const WHAT: &str = "datagram segment";
        let short: &[u8; DatagramSegment::SHORT_LEN] = self.take(WHAT)?;
        let mut segment = [0; DatagramSegment::LEN];
        segment[..UNIT].copy_from_slice(short);
        if DatagramSegment::parse(&segment).long {
            segment[UNIT..].copy_from_slice(self.take::<{ DatagramSegment::LEN - UNIT }>(WHAT)?);
        }
        Ok(DatagramSegment::parse(&segment))
    }

    fn umr(&mut self) -> Result<Umr<'a>, WqeError> {
        let control = UmrControl::parse(self.take("UMR control segment")?);
        let mkey = MkeyContext::parse(self.take("mkey segment")?);
        let translation = match control {
            UmrControl { units: 0, .. } => Translation::None,
            UmrControl { inline: true, units, .. } => {
                Translation::Inline(self.bytes(usize::from(units) * UNIT, "translation list")?)
            }
            _ => Translation::Pointer(DataSegment::parse(self.take("translation pointer")?)),
        };
        Ok(Umr { control, mkey, translation })
    }

    pub(super) fn data(&mut self) -> Result<DataItems<'a>, WqeError> {
        const INLINE: u8 = 0x80;
        const INLINE_COUNT: u32 = 0x3ff;
        let mut items = DataItems::new();
        while let [first, ..] = self.0 {
            if first & INLINE == 0 {
                items.push(DataItem::Pointer(DataSegment::parse(self.take("data segment")?)));
                continue;
            }
            let count = u32::from_be_bytes(*self.take::<4>("inline segment")?) & INLINE_COUNT;
            let bytes = self.bytes(count as usize, "inline data")?;
            items.push(DataItem::Inline(bytes));
            let padding = (4 + bytes.len()).next_multiple_of(UNIT) - 4 - bytes.len();
            self.bytes(padding, "inline data")?;
        }
        Ok(items)
    }
}

impl<'a> SendWqe<'a> {
    /// Parses the WQE at the beginning of `bytes`, which can be longer than the WQE. `qpn` is the QP number.
    ///
    /// # Errors
    /// Fails if the size is 0, the QP number is wrong, a segment extends past the end of the WQE, or the opcode is not
    /// supported (mlx5 interface, section 11.3). Also fails if the data is invalid for the opcode; see [`WqeError`].
    pub fn parse(bytes: &'a [u8], service: Service, qpn: Qpn) -> Result<Self, WqeError> {
        let control = ControlSegment::parse_prefix(bytes).ok_or(WqeError::Truncated("control segment"))?;
        if control.size == 0 {
            return Err(WqeError::Empty);
        }
        if control.qpn != qpn {
            return Err(WqeError::Queue(control.qpn));
        }
        let len = usize::from(control.size) * UNIT;
        let wqe = bytes.get(UNIT..len).ok_or(WqeError::Truncated("size"))?;
        let unsupported = WqeError::Opcode(control.opcode);
        let opcode = Opcode::from_code(control.opcode)
            .filter(|opcode| opcode.supported(service))
            .ok_or(unsupported)?;
        let mut segments = Segments(wqe);
        let mut bare =
            Self { control, opcode, xrc_srqn: None, operation: Operation::Nop, data: DataItems::new() };
        match opcode {
            // In a NOP, everything after the control segment is undefined and ignored.
            Opcode::Nop => return Ok(bare),
            Opcode::Umr => return Ok(Self { operation: Operation::Umr(segments.umr()?), ..bare }),
            _ => {}
        }
        if service == Service::Xrc {
            bare.xrc_srqn = Some(XrcSegment::parse(segments.take("XRC segment")?).srqn);
        }
        let operation = match opcode {
            Opcode::Write | Opcode::WriteImm => Operation::Write(segments.remote()?),
            Opcode::Read => Operation::Read(segments.remote()?),
            Opcode::CompareSwap | Opcode::FetchAdd => {
                Operation::Atomic(segments.remote()?, AtomicSegment::parse(segments.take("atomic segment")?))
            }
            _ if service.is_datagram() => Operation::Datagram(segments.datagram()?),
            _ => Operation::Send,
        };
        let data = segments.data()?;
        if opcode.scatters() && data.iter().any(|item| matches!(item, DataItem::Inline(_))) {
            return Err(WqeError::Inline);
        }
        if opcode.is_atomic()
            && !matches!(data.as_slice(), [DataItem::Pointer(DataSegment { byte_count: 8, .. })])
        {
            return Err(WqeError::AtomicResult);
        }
        Ok(Self { operation, data, ..bare })
    }

    /// Returns the WQE in wire format. Computes the size in the control segment.
    ///
    /// Inline data must not exceed 1023 bytes, and the WQE must not exceed [`MAX_SEND`]. Otherwise, the size fields are
    /// truncated.
    pub fn emit(&self) -> Vec<u8> {
        let mut wqe = vec![0; ControlSegment::LEN];
        if let Some(srqn) = self.xrc_srqn {
            wqe.extend_from_slice(&XrcSegment { srqn }.emit());
        }
        match &self.operation {
            Operation::Nop | Operation::Send => {}
            Operation::Datagram(segment) => {
                let bytes = segment.emit();
                let short = &bytes[..DatagramSegment::SHORT_LEN];
                wqe.extend_from_slice(if segment.long { &bytes } else { short });
            }
            Operation::Write(remote) | Operation::Read(remote) => wqe.extend_from_slice(&remote.emit()),
            Operation::Atomic(remote, atomic) => {
                wqe.extend_from_slice(&remote.emit());
                wqe.extend_from_slice(&atomic.emit());
            }
            Operation::Umr(umr) => umr.emit(&mut wqe),
        }
        for item in &self.data {
            match item {
                DataItem::Pointer(segment) => wqe.extend_from_slice(&segment.emit()),
                DataItem::Inline(bytes) => {
                    let count = u32::try_from(bytes.len()).unwrap_or(u32::MAX) & 0x3ff | 1 << 31;
                    wqe.extend_from_slice(&count.to_be_bytes());
                    wqe.extend_from_slice(bytes);
                    wqe.resize(wqe.len().next_multiple_of(UNIT), 0);
                }
            }
        }
        let size = u8::try_from(wqe.len().min(MAX_SEND) / UNIT).unwrap_or(u8::MAX);
        let control = ControlSegment { size, opcode: self.opcode.code(), ..self.control };
        wqe[..ControlSegment::LEN].copy_from_slice(&control.emit());
        wqe
    }

    /// Returns the total length of the data in bytes.
    pub fn data_len(&self) -> usize {
        self.data.iter().map(DataItem::len).sum()
    }
}

impl Umr<'_> {
    fn emit(&self, wqe: &mut Vec<u8>) {
        wqe.extend_from_slice(&self.control.emit());
        wqe.extend_from_slice(&self.mkey.emit());
        match self.translation {
            Translation::None => {}
            Translation::Inline(list) => {
                wqe.extend_from_slice(list);
                wqe.resize(wqe.len().next_multiple_of(super::BLOCK), 0);
            }
            Translation::Pointer(segment) => wqe.extend_from_slice(&segment.emit()),
        }
    }
}

impl Describe for Umr<'_> {
    fn describe(&self, to: &mut dyn Visitor) {
        self.control.show("umr", to);
        self.mkey.show("mkey", to);
        match self.translation {
            Translation::None => {}
            Translation::Inline(list) => match StridedList::parse(list) {
                Some(strided) => to.object("strided", &strided),
                None => to.value("translation", Value::Bytes(list)),
            },
            Translation::Pointer(segment) => segment.show("translation", to),
        }
    }
}

impl Describe for SendWqe<'_> {
    fn describe(&self, to: &mut dyn Visitor) {
        self.control.describe(to);
        self.xrc_srqn.show("xrc_srqn", to);
        match &self.operation {
            Operation::Nop | Operation::Send => {}
            Operation::Datagram(segment) => segment.show("datagram", to),
            Operation::Write(remote) | Operation::Read(remote) => remote.show("remote", to),
            Operation::Atomic(remote, atomic) => {
                remote.show("remote", to);
                atomic.show("atomic", to);
            }
            Operation::Umr(umr) => umr.describe(to),
        }
        to.objects("data", &mut self.data.iter().map(|item| item as &dyn Describe));
    }
}
