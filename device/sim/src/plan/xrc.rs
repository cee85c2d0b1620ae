//! Numbers the XRC SRQs on each node and draws an SRQ for each XRC request.

use protocol::ids::{Pdn, Srqn};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use super::draw::pick;
use super::{Op, PDS, Pair};
use crate::host::XrcSrq;
use engine::{SendOp, Status};

/// Number of XRC domains on a node.
const DOMAINS: u32 = 2;
/// Number of SRQs in an XRC domain. Consecutive SRQs alternate between the protection domains.
const PER_DOMAIN: u32 = 4;
/// SRQ number of the first XRC SRQ. Lower numbers belong to ordinary SRQs.
const FIRST: usize = 0x10;
pub const XRC_SRQS: u32 = DOMAINS * PER_DOMAIN;

/// Location of an XRC SRQ, as encoded in its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XrcSrqId {
    pub node: usize,
    /// Index of the SRQ on its node.
    pub index: u32,
}

impl XrcSrqId {
    /// Decodes an SRQ number. Returns `None` for the number of an ordinary SRQ and for an unused number.
    pub fn of(srq: usize) -> Option<Self> {
        let from_first = srq.checked_sub(FIRST)?;
        let (node, index) = (from_first / XRC_SRQS as usize, from_first % XRC_SRQS as usize);
        (node < super::draw::NODES)
            .then(|| Self { node, index: u32::try_from(index).expect("there are few SRQs") })
    }

    pub fn number(self) -> usize {
        FIRST + self.node * XRC_SRQS as usize + self.index as usize
    }

    /// Returns the number as it appears in the XRCETH.
    pub fn srqn(self) -> Srqn {
        Srqn::new(u32::try_from(self.number()).expect("there are few SRQs"))
    }

    pub fn domain(self) -> u32 {
        self.index / PER_DOMAIN
    }

    pub fn pd(self) -> u32 {
        self.index % PDS + 1
    }

    pub fn properties(self) -> XrcSrq {
        XrcSrq { domain: self.domain(), pd: Pdn::new(self.pd()) }
    }
}

pub(super) fn draw_domain(rng: &mut ChaCha8Rng) -> u32 {
    rng.random_range(0..DOMAINS)
}

/// Returns the SRQs on the target's node that satisfy `condition`.
fn srqs(pair: &Pair, condition: impl Fn(XrcSrqId) -> bool) -> Vec<Srqn> {
    let all = (0..XRC_SRQS).map(|index| XrcSrqId { node: pair.ends[1].node, index });
    all.filter(|id| condition(*id)).map(XrcSrqId::srqn).collect()
}

/// Draws an SRQ in the target's XRC domain and in the protection domain of its memory.
pub(crate) fn draw_target_srq(rng: &mut ChaCha8Rng, pair: &Pair) -> Srqn {
    *pick(rng, &srqs(pair, |id| id.domain() == pair.xrc_domain && id.pd() == pair.pd))
}

/// Draws an SRQ in the target's XRC domain for a request. A SEND can use any such SRQ. Other requests also access the
/// target's memory, so the protection domain must match.
pub(super) fn draw_srq_for(rng: &mut ChaCha8Rng, pair: &Pair, op: &Op) -> Srqn {
    match op.request.op {
        SendOp::Send { .. } => *pick(rng, &srqs(pair, |id| id.domain() == pair.xrc_domain)),
        _ => draw_target_srq(rng, pair),
    }
}

/// Makes a request fail by changing its SRQ. Returns false if the request does not send packets.
pub(super) fn poison(rng: &mut ChaCha8Rng, pair: &Pair, op: &mut Op) -> bool {
    if op.packets(pair.mtu) == 0 {
        return false;
    }
    let other_domain = srqs(pair, |id| id.domain() != pair.xrc_domain);
    let (srqn, fails) = match rng.random_range(0..5) {
        // An unused number, or the number of an ordinary SRQ.
        0 => (Srqn::new(0xff_ff00), Status::RemoteInvalidRequest),
        1 => (Srqn::new(rng.random_range(0..4)), Status::RemoteInvalidRequest),
        2 => (*pick(rng, &other_domain), Status::RemoteInvalidRequest),
        // An SRQ in a protection domain other than the memory's.
        3 if op.len > 0 && !matches!(op.request.op, SendOp::Send { .. } | SendOp::SendInvalidate { .. }) => {
            let other_pd = srqs(pair, |id| id.domain() == pair.xrc_domain && id.pd() != pair.pd);
            (*pick(rng, &other_pd), Status::RemoteAccess)
        }
        _ if op.len as usize > pair.mtu.bytes() && !op.returns_data() => {
            let named = op.request.remote_srq;
            let others = srqs(pair, |id| Some(id.srqn()) != named);
            op.changes_srq = Some(*pick(rng, &others));
            op.fails = vec![Status::RemoteInvalidRequest];
            return true;
        }
        _ => (*pick(rng, &other_domain), Status::RemoteInvalidRequest),
    };
    op.request.remote_srq = Some(srqn);
    op.fails = vec![fails];
    op.to = Vec::new();
    true
}
