//! The control socket: what `hcactl` asks and the daemon answers.
//!
//! A client writes one JSON object a line, a [`message::Request`], and gets one line back for each, a
//! [`message::Response`], in order. [`server`] runs on the daemon's main thread; what a device must answer goes to its
//! thread as a [`call::Call`] and is answered between two turns, without locks.

pub mod call;
pub mod explain;
pub mod impair;
pub mod message;
pub mod peers;
pub mod roster;
pub mod server;
