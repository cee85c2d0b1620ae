//! Reasons for which this interface ignores a doorbell, in addition to those of the HCR lineage.

use card::telemetry::reason::IgnoreReason;

/// The device had already found the request in guest memory and executed it.
pub const ALREADY_TAKEN: IgnoreReason = IgnoreReason::expected("already_taken");

pub const ALL: &[IgnoreReason] = &[ALREADY_TAKEN];
