//! The control socket, which `hcactl` connects to.
//!
//! A client sends one JSON object per line ([`Request`](control_api::message::Request)) and receives one line per
//! request ([`Response`](control_api::message::Response)), in the same order. [`server`] runs on the daemon's main
//! thread. A request to a device is passed to the device's thread as a [`call::Call`], which the thread answers between
//! two turns of its event loop, without locks.

pub mod call;
pub mod impair;
pub mod named_peers;
pub mod peers;
pub mod registry;
pub mod server;
