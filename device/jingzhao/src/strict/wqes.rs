//! Checks work queue entries.

use protocol::hca::jingzhao::wqe::{GRANULE, SendWqe, WqeData};
use protocol::ids::Qpn;
use smallvec::SmallVec;

use super::Findings;
use super::rules::{RECV_UNMARKED, WQE_RESERVED, WQE_SLOT};
use crate::qp::QueuePair;
use crate::send_queue::FetchedWqe;

pub(in super::super) fn send_wqe(qpn: Qpn, fetched: &FetchedWqe<'_>) -> Findings {
    /// Length of the fields nda and nds, where software may leave stale links.
    const LINK_LEN: usize = 8;
    let mut found = Findings::default();
    let entry = fetched.entry;
    let slot = 1u64 << fetched.log_slot.min(31);
    let at = u64::from(entry.position);
    let len = u64::from(entry.size) * GRANULE as u64;
    if !at.is_multiple_of(slot) || len > slot {
        found.add(
            &WQE_SLOT,
            format!("WQE of {len} bytes at {at:#x} in the send queue of QP {qpn} does not fit in one slot of {slot} bytes"),
        );
    }
    if let Some(Ok(wqe)) = fetched.wqe {
        // Compare only the units before the data. Data units have no reserved bits, and the bytes after inline data are
        // undefined.
        let head = SendWqe { data: WqeData::Segments(SmallVec::new()), ..wqe.clone() }.emit();
        let mut bytes = fetched.bytes.iter().zip(&head).enumerate().skip(LINK_LEN);
        if let Some((at_byte, (given, kept))) = bytes.find(|(_, (given, kept))| **given & !**kept != 0) {
            let bits = given & !kept;
            found.add(
                &WQE_RESERVED,
                format!(
                    "reserved bits {bits:#04x} set in byte {at_byte:#x} of the WQE at {at:#x} of QP {qpn}"
                ),
            );
        }
    }
    found
}

/// Checks the WQE last fetched from a receive queue. `at` is its byte offset in the queue.
pub(in super::super) fn recv_wqe(qp: &QueuePair, at: u64) -> Findings {
    let mut found = Findings::default();
    // J-23: only user queues are checked, as the kernel driver does not use the valid bit.
    let of_user = qp.key.context().image.usr_page != 0;
    if of_user && !qp.recv.was_marked() {
        found.add(
            &RECV_UNMARKED,
            format!("WQE at {at:#x} in the receive queue of QP {} has no valid bit", qp.qpn),
        );
    }
    found
}
