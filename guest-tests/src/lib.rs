//! The lab boots guests with RDMA devices served by `hcad` and runs tests in them.
//!
//! A [`testbed`] is a set of guests that stay up for a user's own tests.
//!
//! A [`fixture`] boots a testbed for a Rust test and stops it when the test ends.
//!
//! A [`scenario`] is one of the project's tests. It starts daemons ([`daemon`]) and guests ([`vm`]) from the programs
//! and images that the [`lab`] provides. It then sends requests to the agents in the guests ([`agent_link`]) and
//! compares the results with the specification.

pub mod agent_link;
pub mod arch;
pub mod artifacts;
mod bounded_log;
pub mod daemon;
pub mod doctor;
pub mod fixture;
pub mod initramfs;
mod kvm;
pub mod lab;
pub mod limits;
pub mod line_program;
pub mod modules;
pub mod monitor;
pub mod packet_peer;
pub mod process;
pub mod programs;
pub mod qemu;
pub mod report;
pub mod run_dir;
pub mod scenario;
mod services;
pub mod stock_verbs;
pub mod testbed;
mod times;
pub mod tools;
pub mod vm;
