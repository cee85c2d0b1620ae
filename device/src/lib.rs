//! The hcad daemon as a library: an HCA behind a vfio-user socket, connected to a fabric.
//!
//! `main` parses arguments into a [`config`] value and runs it. All other code is here, so that tests do not
//! depend on the command line. `ARCHITECTURE.md` next to this crate describes threads, trust and the life of
//! a SEND.

pub mod builder;
pub mod capabilities;
pub mod capture;
pub mod cli;
pub mod config;
pub mod confinement;
pub mod control;
pub mod daemon;
pub mod descriptors;
pub mod fabric;
pub mod fleet;
pub mod frontend;
pub mod hca;
pub mod identity;
pub mod inherited;
pub mod management;
pub mod manual;
pub mod memory;
pub mod metrics;
pub mod net;
pub mod nic;
pub mod notify;
pub mod rate;
pub mod record;
pub mod replay;
pub mod runtime_folder;
pub mod sanitize;
pub mod shared_memory;
pub mod sparse;
pub mod supervisor;
pub mod telemetry;
pub mod text_file;
pub mod vfio;
pub mod worker;
