//! Unreliable services: packets go out and are forgotten, and what arrives broken is dropped.

mod grh;
mod receiver;
mod sender;

pub(crate) use receiver::{Receiver, udp_len};
pub(crate) use sender::Sender;
