//! The admin queue: commands that execute inside the store to the tail of the send ring, and events in the receive ring.
//!
//! [`ring`] has the registers, [`command`] what a handler sees of a command, [`dispatch`] which handler a command has. A file
//! for each group of commands follows.
//!
//! # Spec
//! E810 interface, sections 4 and 5.

mod capabilities;
pub mod command;
mod control;
pub mod dispatch;
mod link;
mod mac;
mod package;
mod queues;
pub mod ring;
pub(super) mod scheduler;
pub(super) mod switching;

pub use command::Command;
pub(super) use link::post_link_event;
pub use ring::{RingRegister, Rings};
