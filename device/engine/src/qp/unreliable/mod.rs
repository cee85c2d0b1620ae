//! Unreliable services (UC, UD, QP0, QP1): nothing is retransmitted, and an incomplete message is dropped.

mod grh;
mod receiver;
mod sender;

pub(crate) use receiver::{Receiver, udp_len};
pub(crate) use sender::Sender;
