//! The admin queue: commands execute synchronously on a write to the send tail, and events are posted to the
//! receive ring.
//!
//! [`ring`] implements the registers, [`command`] the view of a handler, and [`dispatch`] the selection of
//! handlers. The other modules implement one group of commands each.
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
pub(super) mod switch;

pub use command::Command;
pub(super) use link::post_link_event;
