//! Prometheus metrics on a configured address.
//!
//! [`server`] runs on the daemon's main thread. Device counters are requested through mailboxes, as for the control
//! socket. A scrape costs a device one copy of its counters between two turns of its event loop. However many clients
//! scrape, this happens at most once per [`server::FRESH`]. A device that does not answer in time is reported as down,
//! and does not delay other devices.
//!
//! Labels never come from guests or peers, and no metric is per QP. The number of series is therefore bounded
//! regardless of guest activity.

pub mod exposition;
pub mod families;
pub mod process;
pub mod server;
