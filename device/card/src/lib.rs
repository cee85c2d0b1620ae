//! The parts of a device that all device interfaces share.
//!
//! [`hca::Hca`] is one device. It connects the vfio-user server, guest memory, the engine, the port and the fabric to a
//! front-end, which implements [`frontend::Frontend`]. The crate depends on `protocol` and `engine`, but not on any
//! front-end. `ARCHITECTURE.md` in the parent folder describes the crate's modules.
//!
//! The feature `testing` adds simulated guests and similar helpers for the unit tests of this and other crates.

pub mod capabilities;
pub mod capture;
pub mod fabric;
pub mod frontend;
pub mod hca;
pub mod identity;
pub mod management;
pub mod memory;
pub mod net;
pub mod nic;
pub mod rate;
pub mod record;
pub mod replay;
pub mod sanitize;
pub mod shared_memory;
pub mod sparse;
pub mod telemetry;
pub mod vfio;
