//! Tests of the device through its driver interface.

mod admin;
mod completions;
mod extremes;
mod interrupts;
mod lan;
mod limits;
mod link;
mod package;
mod rdma;
mod registers;
mod replay;
mod sessions;
mod strict;
mod trace;

use drivers::Bus as _;

use super::testing::{AdminCommand, AdminReply, Driver, powered_on, started};
