//! Command mailboxes, decoded for traces.

use super::caps::{Adapter, DevLim};
use super::cmd::Op;
use super::cqc::{Cqc, ResizeCq};
use super::eqc::Eqc;
use super::icm::{self, MapEntry};
use super::init::InitHca;
use super::mpt::Mpt;
use super::mtt::WriteMtt;
use super::qpc::{self, Qpc};
use super::transition::Transition;
use crate::describe::{Describe, Visitor};

/// Contents of an inbox or outbox.
#[allow(missing_docs)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mailbox {
    DevLim(DevLim),
    Adapter(Adapter),
    InitHca(InitHca),
    MapIcm(Vec<MapEntry>),
    Mpt(Mpt),
    WriteMtt(WriteMtt),
    Eqc(Eqc),
    Cqc(Cqc),
    ResizeCq(ResizeCq),
    Qpc(Box<Qpc>),
}

impl Mailbox {
    /// Parses an inbox. Returns `None` if the command has no inbox or `bytes` cannot be parsed.
    pub fn inbox(op: Op, in_modifier: u32, bytes: &[u8]) -> Option<Self> {
        let fixed = bytes.first_chunk::<0x40>();
        Some(match op {
            Op::InitHca => Self::InitHca(InitHca::parse(fixed?).ok()?),
            Op::MapIcm => Self::MapIcm(icm::parse(bytes, in_modifier).ok()?),
            Op::Sw2HwMpt => Self::Mpt(Mpt::parse(fixed?).ok()?),
            Op::WriteMtt => Self::WriteMtt(WriteMtt::parse(bytes, in_modifier).ok()?),
            Op::Sw2HwEq => Self::Eqc(Eqc::parse(fixed?).ok()?),
            // Parse a CQ of any size, so that a trace can show a CQ that the command rejects as too large.
            Op::Sw2HwCq => Self::Cqc(Cqc::parse(fixed?, u16::MAX).ok()?),
            Op::ResizeCq => Self::ResizeCq(ResizeCq::parse(bytes.first_chunk()?, u16::MAX).ok()?),
            op => {
                Transition::from_op(op)?;
                Self::Qpc(Box::new(Qpc::parse(bytes.first_chunk::<{ qpc::LEN }>()?)))
            }
        })
    }

    /// Parses an outbox of QUERY_DEV_LIM, QUERY_ADAPTER or QUERY_QP. Returns `None` for any other command, or if
    /// `bytes` is too short.
    pub fn outbox(op: Op, bytes: &[u8]) -> Option<Self> {
        Some(match op {
            Op::QueryDevLim => Self::DevLim(DevLim::parse(bytes.first_chunk()?)),
            Op::QueryAdapter => Self::Adapter(Adapter::parse(bytes.first_chunk()?)),
            Op::QueryQp => Self::Qpc(Box::new(Qpc::parse(bytes.first_chunk()?))),
            _ => return None,
        })
    }
}

impl Mailbox {
    /// Returns the mailbox in wire format. Bytes that the decoded form does not contain are 0.
    pub fn emit(&self) -> Vec<u8> {
        match self {
            Self::DevLim(limits) => limits.emit().to_vec(),
            Self::Adapter(adapter) => adapter.emit().to_vec(),
            Self::InitHca(init) => init.emit().to_vec(),
            Self::MapIcm(entries) => icm::emit(entries),
            Self::Mpt(mpt) => mpt.emit().to_vec(),
            Self::WriteMtt(write) => write.emit(),
            Self::Eqc(eqc) => eqc.emit().to_vec(),
            Self::Cqc(cqc) => cqc.emit().to_vec(),
            Self::ResizeCq(resize) => resize.emit().to_vec(),
            Self::Qpc(qpc) => qpc.emit().to_vec(),
        }
    }
}

impl Describe for Mailbox {
    fn describe(&self, to: &mut dyn Visitor) {
        match self {
            Self::DevLim(limits) => limits.describe(to),
            Self::Adapter(adapter) => adapter.describe(to),
            Self::InitHca(init) => init.describe(to),
            Self::MapIcm(entries) => {
                to.objects("chunks", &mut entries.iter().map(|entry| entry as &dyn Describe));
            }
            Self::Mpt(mpt) => mpt.describe(to),
            Self::WriteMtt(write) => write.describe(to),
            Self::Eqc(eqc) => eqc.describe(to),
            Self::Cqc(cqc) => cqc.describe(to),
            Self::ResizeCq(resize) => resize.describe(to),
            Self::Qpc(qpc) => qpc.describe(to),
        }
    }
}
