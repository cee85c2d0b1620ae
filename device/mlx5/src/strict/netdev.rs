//! Checks the send WQEs in SQs and the receive WQEs in RQs.

use card::frontend::strict::Findings;
use card::memory::GuestMemory;
use engine::{Access, Fetch, Status};
use protocol::hca::mlx5::sq::WorkQueueState;
use protocol::hca::mlx5::wqe::{DataItem, DataSegment, FrameOperation, FrameWqe};
use protocol::ids::{Rqn, Sqn};

use super::rules::{LSO_HEADER, RECORD_BACK, RQ_OVERRUN, SQ_WITHOUT_TIS, WQE_INDEX, WQE_KEY, WQE_MALFORMED};
use super::work::{LocalAccess, denial};
use super::{has_moved_back, wqe_of};
use crate::limits::netdev::MAX_LSO_PAYLOAD;
use crate::netdev::offload;
use crate::netdev::rq::{Rq, RxError};
use crate::netdev::sq::{Done, ETHERNET_LEN, Sq};
use crate::resources::Resources;
use crate::send_queue::{FetchedWqe, SendTag};

/// Checks a WQE that the device has fetched from an SQ. A failed SQ's WQEs are neither executed nor checked.
pub(in super::super) fn frame_wqe(sq: &Sq, fetch: &Fetch<FetchedWqe<'_>>) -> Findings {
    let mut found = Findings::default();
    let (tag, wqe) = match fetch {
        Fetch::Ready(wqe) => {
            (wqe.tag, FrameWqe::parse(wqe.bytes, sq.sqn()).map_err(|error| error.to_string()))
        }
        Fetch::Refused { wr_id, .. } => {
            (SendTag::from_bits(*wr_id), Err("its size is 0 or exceeds the posted blocks".to_owned()))
        }
        Fetch::Empty | Fetch::Broken => return found,
    };
    if sq.state() != WorkQueueState::Ready {
        return found;
    }
    let place = wqe_of(tag.index(), &name(sq.sqn()));
    match wqe {
        Err(defect) => found.add(&WQE_MALFORMED, format!("{place}: {defect}")),
        Ok(wqe) if wqe.control.index != tag.index() => {
            found.add(&WQE_INDEX, format!("{place} has index {:#x}", wqe.control.index));
        }
        Ok(wqe) => operation(sq, &wqe, &place, &mut found),
    }
    found
}

fn operation(sq: &Sq, wqe: &FrameWqe<'_>, place: &str, found: &mut Findings) {
    let FrameOperation::Send { segment, mss, header, data } = &wqe.operation else { return };
    if sq.context().tis().is_none() {
        return found.add(&SQ_WITHOUT_TIS, format!("{place} sends a frame, but the SQ has no TIS"));
    }
    let payload: u64 = data.iter().map(|item| item.len() as u64).sum();
    if mss.is_none() {
        let len = header.len() as u64 + payload;
        if len < ETHERNET_LEN as u64 {
            found
                .add(&WQE_MALFORMED, format!("{place} sends {len} bytes, fewer than an Ethernet header has"));
        }
    } else if segment.insert_vlan || !offload::is_segmentable(header) {
        let len = header.len();
        found.add(
            &LSO_HEADER,
            format!("{place}: the {len} inline header bytes do not end with a TCP or UDP header"),
        );
    } else if payload == 0 || payload > MAX_LSO_PAYLOAD.into() {
        found.add(&LSO_HEADER, format!("{place} has {payload} bytes of payload"));
    }
}

fn name(sqn: Sqn) -> String {
    format!("SQ {sqn}")
}

/// Checks a completed WQE. Must be called before software sees the CQE, since software may reuse the WQE afterwards.
pub(in super::super) fn frame_done(
    resources: &Resources,
    sqn: Sqn,
    done: &Done,
    dma: &GuestMemory,
) -> Findings {
    let mut found = Findings::default();
    let Err(Status::LocalProtection(cause)) = done.result else { return found };
    let Some(sq) = resources.netdev.sq(sqn) else { return found };
    let index = done.tag.index();
    let bytes = sq.queue().reread(index, sq.buffer(), dma).unwrap_or_default();
    let pointers = match FrameWqe::parse(&bytes, sqn).map(|wqe| wqe.operation) {
        Ok(FrameOperation::Send { data, .. }) => data.iter().filter_map(pointer).collect(),
        _ => Vec::new(),
    };
    let access = LocalAccess {
        place: wqe_of(index, &name(sqn)),
        initiator: sq.initiator(),
        access: Access::LocalRead,
        list: pointers,
    };
    found.add(&WQE_KEY, denial(resources, &access, cause, dma));
    found
}

fn pointer(item: &DataItem<'_>) -> Option<DataSegment> {
    match item {
        DataItem::Pointer(data) => Some(*data),
        DataItem::Inline(_) => None,
    }
}

/// Checks an RQ before the device writes a frame to it.
pub(in super::super) fn frame_receives(rq: &Rq, dma: &GuestMemory) -> Findings {
    let mut found = Findings::default();
    let Some(record) = rq.record(dma).filter(|_| rq.state() == WorkQueueState::Ready) else { return found };
    let (rqn, taken, entries) = (rq.rqn(), rq.queue().taken(), rq.queue().entries());
    let posted = record.received.wrapping_sub(taken);
    if has_moved_back(record.received, taken) {
        found.add(
            &RECORD_BACK,
            format!(
                "RQ {rqn}: the receive counter in its doorbell record is {:#x}, but {taken:#x} receives are consumed",
                record.received
            ),
        );
    } else if u32::from(posted) > entries {
        found.add(&RQ_OVERRUN, format!("RQ {rqn} has {entries} entries, but {posted} posted requests"));
    }
    found
}

/// After a failed receive, checks whether the RQ may access the buffers in the WQE.
pub(in super::super) fn frame_not_received(
    resources: &Resources,
    rqn: Rqn,
    error: RxError,
    dma: &GuestMemory,
) -> Findings {
    let mut found = Findings::default();
    let RxError::Protection(number, cause) = error else { return found };
    let Some(rq) = resources.netdev.rq(rqn) else { return found };
    let list = rq.queue().read(number, rq.buffer(), dma).map(|wqe| wqe.scatter.into_vec());
    let access = LocalAccess {
        place: format!("receive {number:#x} of RQ {rqn}"),
        initiator: rq.initiator(),
        access: Access::LocalWrite,
        list: list.unwrap_or_default(),
    };
    found.add(&WQE_KEY, denial(resources, &access, cause, dma));
    found
}
