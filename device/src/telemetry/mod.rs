//! What operators see of a running device.

pub mod file;
pub mod filter;
mod line;
pub mod log;
pub mod monitor;
pub mod outlet;
pub mod reason;
pub mod store;
pub mod subscriber;
pub mod trace;
