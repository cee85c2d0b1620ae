//! Reasons for ignoring a doorbell, shared by all HCR interfaces.

use card::telemetry::reason::IgnoreReason;

/// The QP is in RESET.
pub const QP_RESET: IgnoreReason = IgnoreReason::guest_bug("qp_reset");
/// The QP is in INIT and cannot send yet.
pub const QP_INIT: IgnoreReason = IgnoreReason::guest_bug("qp_init");
/// The QP is in RTR and cannot send yet.
pub const QP_RTR: IgnoreReason = IgnoreReason::guest_bug("qp_rtr");
/// No CQ has this number.
pub const NO_CQ: IgnoreReason = IgnoreReason::guest_bug("no_cq");
/// No EQ has this number.
pub const NO_EQ: IgnoreReason = IgnoreReason::guest_bug("no_eq");
/// The object belongs to a different doorbell page.
pub const FOREIGN_PAGE: IgnoreReason = IgnoreReason::guest_bug("foreign_page");
/// The doorbell covers more requests than the queue has slots.
pub const OVERFLOW: IgnoreReason = IgnoreReason::guest_bug("overflow");
/// Software has not initialised the device.
pub const NOT_INITIALISED: IgnoreReason = IgnoreReason::guest_bug("not_initialised");

pub const ALL: &[IgnoreReason] =
    &[QP_RESET, QP_INIT, QP_RTR, NO_CQ, NO_EQ, FOREIGN_PAGE, OVERFLOW, NOT_INITIALISED];
