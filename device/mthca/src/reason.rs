//! Interface-specific reasons for ignoring a doorbell. [`hcr::reason`] has the common ones.

use card::telemetry::reason::IgnoreReason;

/// The request has already been found in guest memory and executed.
pub const ALREADY_TAKEN: IgnoreReason = IgnoreReason::expected("already_taken");

pub const ALL: &[IgnoreReason] = &[ALREADY_TAKEN];
