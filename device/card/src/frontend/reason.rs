//! Reasons for ignoring a store, common to all interfaces. They follow from PCI rules and the register layout.

use crate::telemetry::reason::IgnoreReason;

/// No register exists at this address.
pub const NO_REGISTER: IgnoreReason = IgnoreReason::expected("no_register");
/// The width or alignment of the store is not supported by the registers.
pub const WIDTH: IgnoreReason = IgnoreReason::guest_bug("width");
/// Memory space is disabled in the PCI command register.
pub const MEMORY_SPACE_OFF: IgnoreReason = IgnoreReason::expected("memory_space_off");

pub const ALL: &[IgnoreReason] = &[NO_REGISTER, WIDTH, MEMORY_SPACE_OFF];
