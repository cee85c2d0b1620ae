//! Strict mode: what a driver does against the interface though the device tolerates it.
//!
//! Nothing here changes what the device does. What queues of a faulty driver lose, the interface itself has reports for.
//!
//! # Spec
//! E810 interface; [`rules`] names the sections.

mod commands;
mod registers;
pub mod rules;

use protocol::hca::e810::admin::control::ResourceId;

pub(super) use self::commands::examine;
pub(super) use self::registers::{View, read, write};

/// What strict mode remembers of a function.
#[derive(Debug, Default)]
pub(super) struct Strict {
    /// Commands were started, and the head not read since.
    unseen_commands: bool,
    /// Locks that the driver has taken. Bound: those of which there are three.
    locks: Vec<ResourceId>,
}
