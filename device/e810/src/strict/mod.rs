//! Strict mode: detects driver violations that the device tolerates.
//!
//! Strict mode never changes behaviour. Violations that stop a LAN queue are reported by malicious driver detection
//! instead.
//!
//! # Spec
//! E810 interface; [`rules`] cites the sections.

mod commands;
mod registers;
pub mod rules;

use protocol::hca::e810::admin::control::ResourceId;

pub(super) use self::commands::check_command;
pub(super) use self::registers::{View, read, write};

#[derive(Debug, Default)]
pub(super) struct Strict {
    /// Set when the driver posts commands and cleared when the driver reads the head.
    head_unread: bool,
    /// Locks held by the driver, at most three.
    locks: Vec<ResourceId>,
}
