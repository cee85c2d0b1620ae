//! Interface-specific reasons for ignoring a doorbell. [`hcr::reason`] has the common ones.

use card::telemetry::reason::IgnoreReason;

/// The device had already found the request in guest memory and executed it.
pub const ALREADY_TAKEN: IgnoreReason = IgnoreReason::expected("already_taken");

pub const ALL: &[IgnoreReason] = &[ALREADY_TAKEN];
