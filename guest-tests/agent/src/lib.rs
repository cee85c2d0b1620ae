//! The program that runs in a guest. It executes steps for the host, and contains a user-space driver for the JingZhao
//! HCA over vfio-pci.
//!
//! The host harness compiles [`wire`] too, so that both ends use the same types. The driver follows only the interface
//! specification and shares no code with the device, so that the tests are independent of the device.

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
