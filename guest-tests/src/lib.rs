//! The lab: boots stock guests on HCAs served by `hcad` and judges what happens.
//!
//! Guests that stay up for somebody else's tests are [`testbed`].
//!
//! A scenario ([`scenario`]) starts daemons ([`daemon`]) and guests ([`vm`]) from what the [`lab`] has gathered, then
//! asks the agents in the guests ([`agent_link`]) to do things and compares their answers with the specification.

pub mod agent_link;
pub mod artifacts;
pub mod daemon;
pub mod initramfs;
pub mod lab;
pub mod limits;
pub mod line_program;
pub mod modules;
pub mod monitor;
pub mod packet_peer;
pub mod process;
mod processors;
pub mod programs;
pub mod qemu;
pub mod report;
pub mod run_dir;
pub mod scenario;
pub mod stock_verbs;
pub mod testbed;
pub mod tools;
pub mod vm;
