//! InfiniBand transport as state machines: requester and responder of RC, UC and UD queue pairs.
//!
//! The engine knows no device interface, no socket, no thread and no clock. Its owner
//!
//! - tells it what happens: a doorbell rang ([`Engine::ring`]), a packet came ([`Engine::handle_packet`]), a
//!   deadline passed ([`Engine::handle_timeout`]), software modified a QP ([`Engine::modify_qp`]);
//! - lends it memory and work queues through [`Host`], which the engine calls only inside those inputs and inside
//!   [`Engine::poll_transmit`];
//! - then drains its outputs: see [`Engine`].
//!
//! The same inputs at the same instants give the same outputs, always.
//!
//! # Spec
//! IBTA volume 1, sections 9 (transport) and 10 (software transport interface).
#![forbid(unsafe_code)]

mod arrival;
mod by_opcode;
mod drops;
mod durations;
mod engine;
mod event;
mod explain;
mod gather;
mod held;
mod host;
mod limits;
mod local;
mod pkeys;
pub(crate) mod qp;
mod segment;
#[cfg(feature = "sim")]
pub mod sim;
mod states;
mod stats;
mod table;
mod time;
mod timers;
mod work;

pub use by_opcode::ByOpcode;
pub use drops::{DropReason, Dropped, Drops};
pub use durations::Durations;
pub use engine::{Config, Engine, QpError, Transmit};
pub use event::{AsyncEvent, Completion, Event, Queue, RecvDone, SendDone, Status, Success};
pub use explain::{Blocked, Ended, EndedBy, Expecting, Situation, Unanswered};
pub use host::{Access, AccessError, Accessor, AtomicOp, Fetch, GroupDatagram, Host};
pub use local::{Bind, FastRegister, LocalOp, PageShift, Pages, Rights, WindowKind};
pub use qp::attr::{
    AckTimeout, Flush, GrhArea, Modify, Mtu, QpAttrs, QpSnapshot, RemoteAccess, RnrRetry, RnrTimer, Service,
    State,
};
pub use states::QpStates;
pub use stats::{ByVersion, Congestion, IpTraffic, Messages, Naks, Recovery, Stats};
pub use time::Instant;
pub use work::{
    Fence, Payload, ReadyHeader, RecvRequest, Remote, SendOp, SendRequest, Sge, SgeList, UdDestination,
};
