//! The admin queue: commands execute synchronously on a write to the send tail, and events are posted to the
//! receive ring.
//!
//! [`ring`] implements the descriptor rings and their registers. [`command`] defines a command as seen by its
//! handler, and [`dispatch`] selects the handler. Each remaining module implements one group of commands.
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
