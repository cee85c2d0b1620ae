//! Why this interface ignores a doorbell, beside the reasons of the HCR lineage.

use crate::telemetry::reason::IgnoreReason;

/// The device had already found the request in guest memory and executed it.
pub const ALREADY_TAKEN: IgnoreReason = IgnoreReason::expected("already_taken");

/// All of them.
pub const ALL: &[IgnoreReason] = &[ALREADY_TAKEN];
