//! Checks send WQEs and failed work requests.

use card::frontend::strict::Findings;
use card::memory::GuestMemory;
use card::memory::translate::{AccessTarget, Denied};
use engine::{Access, AccessError, Completion, Fetch, Initiator, Queue, SendRequest, Status};
use protocol::hca::mlx5::wqe::{ControlSegment, DataItem, DataSegment, SendWqe, WqeError};
use protocol::ids::Pdn;

use super::rules::{WQE_INDEX, WQE_KEY, WQE_MALFORMED};
use super::wqe_at;
use crate::queue_pair::QueuePair;
use crate::resources::Resources;
use crate::send_queue::SendTag;

/// Checks a WQE that the device has fetched from a send queue.
pub(in super::super) fn send_wqe(qp: &QueuePair, fetch: &Fetch<SendRequest>, dma: &GuestMemory) -> Findings {
    let mut found = Findings::default();
    let (wr_id, is_refused) = match fetch {
        Fetch::Ready(request) => (request.wr_id, false),
        Fetch::Refused { wr_id, .. } => (*wr_id, true),
        Fetch::Empty | Fetch::Broken => return found,
    };
    let index = SendTag::from_bits(wr_id).index();
    let Ok(bytes) = qp.reread(index, dma) else { return found };
    if is_refused {
        found.add(&WQE_MALFORMED, format!("{}: {}", wqe_at(index, qp.qpn), defect(qp, &bytes)));
    } else if let Some(control) = ControlSegment::parse_prefix(&bytes)
        && control.index != index
    {
        found.add(&WQE_INDEX, format!("{} has index {:#x}", wqe_at(index, qp.qpn), control.index));
    }
    found
}

fn defect(qp: &QueuePair, bytes: &[u8]) -> String {
    if bytes.is_empty() {
        return WqeError::Empty.to_string();
    }
    match SendWqe::parse(bytes, qp.service(), qp.qpn) {
        Err(error) => error.to_string(),
        Ok(_) => "the WQE is longer than the posted blocks".to_owned(),
    }
}

/// The local memory accesses of a work request.
pub(super) struct LocalAccess {
    pub(super) place: String,
    pub(super) initiator: Initiator,
    pub(super) access: Access,
    pub(super) list: Vec<DataSegment>,
}

/// Returns a message that explains a work request's local protection error.
pub(super) fn denial(
    resources: &Resources,
    accessed: &LocalAccess,
    cause: AccessError,
    dma: &GuestMemory,
) -> String {
    let LocalAccess { place, initiator, access, list } = accessed;
    let memory = resources.mkeys.access(dma);
    let denied = list.iter().enumerate().find_map(|(n, data)| {
        let target = AccessTarget::address(*initiator, data.lkey, data.va);
        Some((n, data, memory.explain(target, data.byte_count as usize, *access).err()?))
    });
    let pd = initiator.pd;
    match denied {
        Some((n, DataSegment { byte_count, lkey, va }, Denied { error, listed_key })) => {
            // An indirect key grants the access, but one of the keys in its list does not.
            let listed = listed_key.map_or_else(String::new, |key| format!(", through listed key {key}"));
            format!(
                "element {n} of {place}: {access} of {byte_count} bytes at {va} with key {lkey}{listed} \
                 in PD {pd}: {error}"
            )
        }
        None => format!("{place}: {cause}"),
    }
}

/// Checks a completed request. Must be called before the CQE is written, since software may reuse the WQE afterwards.
pub(in super::super) fn completion(
    resources: &Resources,
    completion: &Completion,
    dma: &GuestMemory,
) -> Findings {
    let mut found = Findings::default();
    let Err(Status::LocalProtection(cause)) = completion.result else { return found };
    let qpn = completion.qpn;
    let Some(qp) = resources.qps.get(qpn.get()) else { return found };
    let accessed = match completion.queue {
        Queue::Send => sent(qp, completion, dma),
        Queue::Recv => received(resources, qp, completion, dma),
    };
    let what = match accessed {
        Some(access) => denial(resources, &access, cause, dma),
        None => format!("a request of QP {qpn}: {cause}"),
    };
    found.add(&WQE_KEY, what);
    found
}

/// Returns the initiator of a QP's local memory accesses.
const fn initiator(qp: &QueuePair, pd: Pdn) -> Initiator {
    Initiator { pd, qpn: qp.qpn, reserved_lkey: qp.context.reserved_lkey }
}

fn sent(qp: &QueuePair, completion: &Completion, dma: &GuestMemory) -> Option<LocalAccess> {
    let index = SendTag::from_bits(completion.wr_id).index();
    let bytes = qp.reread(index, dma).ok()?;
    let wqe = SendWqe::parse(&bytes, qp.service(), qp.qpn).ok()?;
    let pointer = |item: &DataItem<'_>| match item {
        DataItem::Pointer(data) => Some(*data),
        DataItem::Inline(_) => None,
    };
    Some(LocalAccess {
        place: wqe_at(index, qp.qpn),
        initiator: initiator(qp, qp.context.pd),
        access: if wqe.opcode.scatters() { Access::LocalWrite } else { Access::LocalRead },
        list: wqe.data.iter().filter_map(pointer).collect(),
    })
}

fn received(
    resources: &Resources,
    qp: &QueuePair,
    completion: &Completion,
    dma: &GuestMemory,
) -> Option<LocalAccess> {
    let (qpn, number) = (qp.qpn, SendTag::from_bits(completion.wr_id).index());
    let access = Access::LocalWrite;
    Some(match completion.srqn.or_else(|| qp.srqn()) {
        Some(srqn) => {
            let srq = resources.srqs.get(srqn.get())?;
            let place = format!("entry {number:#x} of SRQ {srqn}");
            let initiator = initiator(qp, srq.pd());
            LocalAccess { place, initiator, access, list: srq.entry(number, dma)?.wqe.scatter.into_vec() }
        }
        None => {
            let place = format!("receive {number:#x} of QP {qpn}");
            let wqe = qp.recv_queue().read(number, &qp.buffer, dma).ok()?;
            let initiator = initiator(qp, qp.context.pd);
            LocalAccess { place, initiator, access, list: wqe.scatter.into_vec() }
        }
    })
}
