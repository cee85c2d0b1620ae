//! Reasons why this interface ignores a doorbell or a frame.

use card::telemetry::reason::IgnoreReason;

/// No QP has this number.
pub const NO_QP: IgnoreReason = IgnoreReason::expected("no_qp");
/// No CQ has this number.
pub const NO_CQ: IgnoreReason = IgnoreReason::guest_bug("no_cq");
/// No NIC queue has this number, or the queue is not enabled.
pub const NO_QUEUE: IgnoreReason = IgnoreReason::expected("no_queue");
/// The frame exceeds the maximum frame size of the MAC.
pub const OVERSIZE: IgnoreReason = IgnoreReason::expected("oversize");
/// The headers of the frame cannot be parsed.
pub const UNPARSED: IgnoreReason = IgnoreReason::expected("unparsed");
/// No VSI accepts the frame.
pub const NO_TAKER: IgnoreReason = IgnoreReason::expected("no_taker");
/// The receive queue has no free buffer.
pub const NO_BUFFER: IgnoreReason = IgnoreReason::expected("no_buffer");
/// The frame exceeds the maximum frame size of its receive queue.
pub const LONGER_THAN_QUEUE: IgnoreReason = IgnoreReason::expected("longer_than_queue");
/// The VSI is not allowed to send this frame.
pub const MAY_NOT_SEND: IgnoreReason = IgnoreReason::expected("may_not_send");
/// The RDMA ARP table has no free entry for another neighbour.
pub const ARP_TABLE_FULL: IgnoreReason = IgnoreReason::guest_bug("arp_table_full");

pub const ALL: &[IgnoreReason] = &[
    NO_QP,
    NO_CQ,
    NO_QUEUE,
    OVERSIZE,
    UNPARSED,
    NO_TAKER,
    NO_BUFFER,
    LONGER_THAN_QUEUE,
    MAY_NOT_SEND,
    ARP_TABLE_FULL,
];
