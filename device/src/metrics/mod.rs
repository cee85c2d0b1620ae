//! Figures for Prometheus, on an address that the configuration names.
//!
//! [`server`] answers on the daemon's main thread. What devices counted comes through their mailboxes, as the control socket's
//! answers do: a scrape costs a device a copy of its counters between two turns, and at most once in
//! [`server::FRESH`], however many ask. A device that does not answer in time is told to be down, and holds up nobody.
//!
//! Labels are words of ours, never of a guest or peer, and no metric is of a single queue pair: the number of series
//! has a bound whatever guests do.

pub mod exposition;
pub mod families;
pub mod process;
pub mod server;
