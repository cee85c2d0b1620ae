//! Guests that stay up for somebody else's tests: booted by one command, used and ended by others.
//!
//! # Processes
//! `guest-lab up` fetches what is missing and checks what can be checked, then starts a [`supervisor`] in a session of its
//! own, which boots the guests and owns them, their daemons and the `switch` that joins their Ethernet. Whatever ends the
//! supervisor ends them: they die with it, by its hand or the kernel's ([`crate::process`]). Between the two is a socket, the
//! lease. When it closes before `up` has said [`protocol::Keep`], the supervisor ends everything: so do Ctrl-C and SIGKILL.
//! With `--foreground` that is never said, and with `--for-pid` the end of another process ends everything too.
//!
//! # State
//! A testbed has a folder (`state`) with a lock that the supervisor holds as long as it lives, its socket, and what goes
//! with it. A folder whose lock is free is of a supervisor that was killed; whoever comes across it removes it. Logs are
//! elsewhere, and stay.
//!
//! # Conversation
//! A command connects to the supervisor's socket, sends a line ([`protocol::Request`]) and reads one. For a command to run
//! in a guest, frames of [`agent::wire::exec`] follow in both directions, which the supervisor passes on to a port of the
//! guest, and looks at no more than it must (`commands`).

mod boot;
pub mod client;
mod commands;
mod frames;
pub mod kind;
pub mod name;
pub mod progress;
pub mod protocol;
pub mod share;
mod state;
pub mod supervisor;
mod switch;

use std::num::NonZeroU32;

use crate::lab::Options;
use kind::Kind;
use name::TestbedName;
use share::SharedFolder;

/// Bound: guests of one testbed. They are named by letters, and each has a QEMU.
pub const MOST_GUESTS: u8 = 8;

/// Folder of the cache with the logs of testbeds.
const LOGS: &str = "testbeds";

/// Options of `up`: the guests to boot.
#[derive(Clone, Debug, clap::Args)]
pub struct Wanted {
    /// Type of RDMA device in the guests
    #[arg(value_enum, default_value = "mthca")]
    pub kind: Kind,
    /// Name of the testbed, for use in later commands [default: KIND; for `ci`, a unique name]
    #[arg(long, value_name = "NAME")]
    pub name: Option<TestbedName>,
    /// Number of guests (1 to 8), which are named a, b, c and so on
    #[arg(long, default_value_t = 2, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=i64::from(MOST_GUESTS)))]
    pub count: u8,
    /// Mount the host directory DIR at /AT in all guests, read-only with `:ro` (repeatable)
    #[arg(long = "share", value_name = "DIR:/AT[:ro]")]
    pub shares: Vec<SharedFolder>,
    /// Enable strict mode: report driver violations, and make `guest-lab down` fail if any occurred
    #[arg(long)]
    pub strict: bool,
    /// Capture each RDMA device's frames to a pcapng file next to the logs
    #[arg(long)]
    pub capture: bool,
    /// Write each RDMA device's session record next to the logs, for use with `hcad replay`
    #[arg(long)]
    pub record: bool,
    /// Stop the guests when the process with this ID exits (for example, `$$` in a CI job's shell)
    #[arg(long, value_name = "PID")]
    pub for_pid: Option<NonZeroU32>,
    /// Options that select QEMU, the kernel and other guest components
    #[command(flatten)]
    pub options: Options,
}

/// The folder with the state of running testbeds, created if it does not exist.
///
/// # Errors
/// When it cannot be created, or others may write to it.
pub fn state_dir() -> anyhow::Result<std::path::PathBuf> {
    Ok(state::States::open()?.folder().to_owned())
}

impl Wanted {
    /// Memory of the guest that has the least, in MiB.
    fn memory_mib(&self) -> u32 {
        let least = |number| self.kind.of_guest(number).least().1;
        (1..=u16::from(self.count)).map(least).min().unwrap_or_default().max(self.options.memory)
    }
}
