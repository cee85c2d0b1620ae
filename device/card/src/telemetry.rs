//! Telemetry: logs, traces, counters and monitoring of running devices.

pub mod file;
pub mod filter;
mod line;
pub mod log;
pub mod monitor;
pub mod non_blocking;
pub mod reason;
pub mod store;
pub mod subscriber;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod trace;
