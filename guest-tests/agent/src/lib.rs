//! What runs inside a guest: the step runner, and a userspace driver for the JingZhao HCA over vfio-pci.
//!
//! The host harness compiles [`wire`] too, so that both ends speak the same types. The driver knows the device only
//! from its interface specification and shares no code with the device: it is the device's independent judge.

mod alloc;
mod error;
mod exec;
mod guest;
mod hca;
pub mod init;
pub mod pattern;
pub mod serve;
mod vfio;
pub mod wire;
