//! The hcad daemon as a library: devices behind vfio-user sockets, connected to fabrics.
//!
//! `main` turns the arguments into a [`config::Config`] and runs the daemon with it. All other code is here, so that
//! tests do not depend on the command line. `ARCHITECTURE.md` next to this crate describes threads, trust and the
//! life of a SEND.

pub mod builder;
pub mod cli;
mod clock;
pub mod config;
pub mod confinement;
pub mod control;
pub mod daemon;
pub mod descriptors;
pub mod fleet;
pub mod inherited;
pub mod interfaces;
pub mod metrics;
pub mod notify;
pub mod peer_names;
pub mod replay;
pub mod supervisor;
pub mod worker;
