//! Reasons for ignoring a doorbell or a register write, and for dropping a frame.

use card::telemetry::reason::IgnoreReason;

/// The driver has not initialised the device.
pub const NOT_INITIALISED: IgnoreReason = IgnoreReason::guest_bug("not_initialised");
/// The UAR page is not allocated.
pub const NO_UAR: IgnoreReason = IgnoreReason::guest_bug("no_uar");
/// The doorbell is not in the UAR page of its object.
pub const FOREIGN_PAGE: IgnoreReason = IgnoreReason::guest_bug("foreign_page");
/// No EQ has this number.
pub const NO_EQ: IgnoreReason = IgnoreReason::guest_bug("no_eq");
/// No CQ has this number.
pub const NO_CQ: IgnoreReason = IgnoreReason::guest_bug("no_cq");
/// No QP has this number.
pub const NO_QP: IgnoreReason = IgnoreReason::guest_bug("no_qp");
/// The QP cannot send in its current state.
pub const QP_STATE: IgnoreReason = IgnoreReason::guest_bug("qp_state");
/// The doorbell record announces more waiting blocks than the send queue has.
pub const OVERFLOW: IgnoreReason = IgnoreReason::guest_bug("overflow");
/// The driver owns the command slot.
pub const SLOT_NOT_OWNED: IgnoreReason = IgnoreReason::guest_bug("slot_not_owned");
/// The command queue is not in mapped memory.
pub const NO_COMMAND_QUEUE: IgnoreReason = IgnoreReason::guest_bug("no_command_queue");

/// No SQ has this number.
pub const NO_SQ: IgnoreReason = IgnoreReason::guest_bug("no_sq");
/// The SQ is in the reset state.
pub const SQ_STATE: IgnoreReason = IgnoreReason::guest_bug("sq_state");
/// The frame exceeds the port's MTU.
pub const FRAME_OVERSIZE: IgnoreReason = IgnoreReason::expected("oversize");
/// The frame's headers cannot be parsed.
pub const FRAME_UNPARSED: IgnoreReason = IgnoreReason::expected("unparsed");
/// The flow tables do not forward the frame to any TIR.
pub const NO_TIR: IgnoreReason = IgnoreReason::expected("no_tir");
/// The RQ is not in the ready state.
pub const RQ_STATE: IgnoreReason = IgnoreReason::expected("rq_state");
/// The RQ has no posted receive.
pub const RQ_EMPTY: IgnoreReason = IgnoreReason::expected("rq_empty");
/// The frame is longer than the posted receive.
pub const LONGER_THAN_RECEIVE: IgnoreReason = IgnoreReason::expected("longer_than_receive");

pub const ALL: &[IgnoreReason] = &[
    NOT_INITIALISED,
    NO_UAR,
    FOREIGN_PAGE,
    NO_EQ,
    NO_CQ,
    NO_QP,
    QP_STATE,
    OVERFLOW,
    SLOT_NOT_OWNED,
    NO_COMMAND_QUEUE,
    NO_SQ,
    SQ_STATE,
    FRAME_OVERSIZE,
    FRAME_UNPARSED,
    NO_TIR,
    RQ_STATE,
    RQ_EMPTY,
    LONGER_THAN_RECEIVE,
];
