//! InfiniBand transport engine: the requester and responder state machines for RC, XRC, UC and UD queue pairs.
//!
//! The engine is sans-I/O: it has no device interface, sockets, threads or clock. Its owner
//!
//! - reports inputs: a doorbell ([`Engine::notify_send`]), a packet ([`Engine::handle_packet`]), an expired deadline
//!   ([`Engine::handle_timeout`]) or a modified QP ([`Engine::modify_qp`]);
//! - provides memory and work queues through [`Host`], which the engine calls only while handling those inputs and in
//!   [`Engine::poll_transmit`] or [`Engine::poll_burst`];
//! - then drains the outputs, in the order described at [`Engine`].
//!
//! The engine is deterministic: the same inputs at the same instants produce the same outputs.
//!
//! # Spec
//! IBTA volume 1, sections 9 (transport) and 10 (software transport interface).
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod by_opcode;
mod dispatch;
mod drops;
mod durations;
mod engine;
mod error_qps;
mod event;
mod explain;
mod gather;
mod host;
mod limits;
mod local;
mod payload_ref;
mod pkeys;
mod pooled_slots;
pub(crate) mod qp;
mod recovery;
mod rights;
mod segment;
mod states;
mod stats;
mod table;
mod time;
mod timers;
mod work;

pub use by_opcode::ByOpcode;
pub use drops::{DropReason, Dropped, Drops};
pub use durations::Durations;
pub use engine::{Config, DetachedPayload, Engine, QpError, Room, Transmit, TxOffloads};
pub use event::{AsyncEvent, Completion, Event, Queue, RecvDone, SendDone, Status, Success};
pub use explain::{Ended, EndedBy, Expecting, QpStatus, Unanswered, WaitReason};
pub use host::{
    Access, AccessError, AtomicOp, Fetch, GroupDatagram, Host, Initiator, PeerRequest, RecvSource, XrcError,
};
pub use local::{LocalOp, LocalToken};
pub use payload_ref::{PayloadRef, ReceivedPacket};
pub use pooled_slots::PooledSlots;
pub use protocol::roce::Mtu;
pub use qp::attr::{
    AckTimeout, Flush, GrhArea, Modify, QpAttrs, QpSnapshot, RemoteAccess, RnrRetry, RnrTimer, Service, State,
};
pub use recovery::{NakKind, ReceivedNak, Retry, RetryCause};
pub use rights::Rights;
pub use states::QpStates;
pub use stats::{ByVersion, Congestion, IpTraffic, Messages, Naks, Recovery, Stats};
pub use time::Instant;
pub use work::{
    Fence, Payload, Piece, ReadyHeader, RecvRequest, Remote, SendOp, SendRequest, Sge, SgeList, UdDestination,
};
