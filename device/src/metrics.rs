//! Prometheus metrics on a configured address.
//!
//! [`server`] runs on the daemon's main thread. It requests counters from the devices through their mailboxes, as the
//! control socket does. A device copies its counters between two turns of its event loop, at most once per
//! [`server::CACHE_TIME`], regardless of the number of clients. A device that does not respond in time is reported as
//! down and does not delay other devices.
//!
//! Labels never come from guests or peers, and no metric is per QP, so guests cannot increase the number of series.

pub mod exposition;
pub mod families;
pub mod process;
pub mod server;
