//! Command mailboxes, decoded for traces.

use super::caps::{Adapter, DevLim, QueryFw};
use super::cmd::Op;
use super::cqc::{Cqc, ResizeCq};
use super::eqc::Eqc;
use super::icm::{self, Block};
use super::init::InitHca;
use super::modify::ModifyQp;
use super::mpt::Mpt;
use super::port::SetIb;
use super::srqc::Srqc;
use crate::describe::{Describe, Visitor};

/// Contents of an inbox or outbox.
#[allow(missing_docs)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mailbox {
    QueryFw(QueryFw),
    DevLim(Box<DevLim>),
    Adapter(Adapter),
    InitHca(InitHca),
    /// Inbox of MAP_ICM, MAP_ICM_AUX or MAP_FA.
    Blocks(Vec<Block>),
    SetIb(SetIb),
    Mpt(Mpt),
    Eqc(Eqc),
    Cqc(Cqc),
    ResizeCq(ResizeCq),
    ModifyQp(Box<ModifyQp>),
    Srqc(Srqc),
}

impl Mailbox {
    /// Parses an inbox. Returns `None` if it is invalid or `op` has no decodable inbox.
    pub fn inbox(op: Op, bytes: &[u8]) -> Option<Self> {
        Some(match op {
            Op::InitHca => Self::InitHca(InitHca::parse(bytes.first_chunk()?).ok()?),
            Op::MapIcm | Op::MapIcmAux | Op::MapFa => Self::Blocks(icm::parse(bytes).ok()?),
            Op::SetIb => Self::SetIb(SetIb::parse(bytes.first_chunk()?)),
            Op::Sw2HwMpt => Self::Mpt(Mpt::parse(bytes.first_chunk()?).ok()?),
            Op::Sw2HwEq => Self::Eqc(Eqc::parse(bytes.first_chunk()?).ok()?),
            // Parse without a size limit, so that traces also show oversized queues, which the device rejects.
            Op::Sw2HwCq => Self::Cqc(Cqc::parse(bytes.first_chunk()?, u8::MAX).ok()?),
            Op::ResizeCq => Self::ResizeCq(ResizeCq::parse(bytes.first_chunk()?, u8::MAX).ok()?),
            Op::Sw2HwSrq => Self::Srqc(Srqc::parse(bytes.first_chunk()?, u8::MAX).ok()?),
            Op::Modify(_) => Self::ModifyQp(Box::new(ModifyQp::parse(bytes.first_chunk()?))),
            _ => return None,
        })
    }

    /// Parses an outbox. Returns `None` if `op` has no decodable outbox.
    pub fn outbox(op: Op, bytes: &[u8]) -> Option<Self> {
        Some(match op {
            Op::QueryFw => Self::QueryFw(QueryFw::parse(bytes.first_chunk()?)),
            Op::QueryDevLim => Self::DevLim(Box::new(DevLim::parse(bytes.first_chunk()?))),
            Op::QueryAdapter => Self::Adapter(Adapter::parse(bytes.first_chunk()?)),
            Op::QueryQp | Op::Modify(_) => Self::ModifyQp(Box::new(ModifyQp::parse(bytes.first_chunk()?))),
            Op::QuerySrq | Op::Hw2SwSrq => Self::Srqc(Srqc::parse(bytes.first_chunk()?, u8::MAX).ok()?),
            _ => return None,
        })
    }
}

impl Describe for Mailbox {
    fn describe(&self, to: &mut dyn Visitor) {
        match self {
            Self::QueryFw(firmware) => firmware.describe(to),
            Self::DevLim(limits) => limits.describe(to),
            Self::Adapter(adapter) => adapter.describe(to),
            Self::InitHca(init) => init.describe(to),
            Self::Blocks(blocks) => {
                to.objects("blocks", &mut blocks.iter().map(|block| block as &dyn Describe));
            }
            Self::SetIb(set) => set.describe(to),
            Self::Mpt(mpt) => mpt.describe(to),
            Self::Eqc(eqc) => eqc.describe(to),
            Self::Cqc(cqc) => cqc.describe(to),
            Self::ResizeCq(resize) => resize.describe(to),
            Self::ModifyQp(modify) => modify.describe(to),
            Self::Srqc(srqc) => srqc.describe(to),
        }
    }
}
