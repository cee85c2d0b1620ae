//! A queue pair: a requester for the send queue and a responder for the receive queue. The two share only the QP state,
//! the path and the QP number.

pub(crate) mod attr;
mod congestion;
mod context;
mod history;
mod inbound;
mod queue_pair;
mod reply;
mod requester;
mod responder;
mod state;
mod unreliable;

pub(crate) use congestion::is_marked;
pub(crate) use context::{
    Core, Ctx, Emitted, FatalError, Frame, Headers, MIN_DETACHED_LEN, RequestContext, Step, ahead,
};
pub(crate) use queue_pair::Qp;
pub(crate) use requester::Request;
pub(crate) use unreliable::udp_len;
