//! What operators see of a running device.

pub mod log;
pub mod subscriber;
