//! Interface-specific reasons for ignoring a doorbell. [`hcr::reason`] has the common ones.

use card::telemetry::reason::IgnoreReason;

/// The QPN is that of an earlier QP with the same index.
pub const STALE_QPN: IgnoreReason = IgnoreReason::guest_bug("stale_qpn");

pub const ALL: &[IgnoreReason] = &[STALE_QPN];
