//! Test agent that runs in a guest. It executes commands for the host and contains user-space drivers that use
//! vfio-pci: one for the JingZhao HCA, and a small one for ConnectX.
//!
//! The host harness compiles [`wire`] too, so that both ends use the same types. The drivers follow only the interface
//! specifications and share no code with the devices, so that a mistake in a device is not repeated in its test.

mod alloc;
mod error;
mod exec;
mod guest;
mod hca;
mod idle;
pub mod init;
mod mlx5;
pub mod pattern;
pub mod serve;
mod vfio;
pub mod wire;
