//! One queue pair: two state machines, a requester for the send queue and a responder for the receive queue, under one
//! state. They share nothing but the path and the number.

pub(crate) mod attr;
mod congestion;
mod context;
mod executed;
mod inbound;
mod queue_pair;
mod reply;
mod requester;
mod responder;
mod state;
mod unreliable;

pub(crate) use congestion::is_marked;
pub(crate) use context::{Core, Ctx, Failure, Frame, Step, ahead};
pub(crate) use queue_pair::Qp;
pub(crate) use unreliable::udp_len;
