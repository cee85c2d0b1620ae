//! Testbeds: guests that users boot, use and stop with separate commands.
//!
//! # Processes
//! `guest-lab up` fetches missing components and performs all checks that are possible before booting. It then starts a
//! [`supervisor`] in a new session. The supervisor boots and owns the guests, their daemons, and the `switch` that
//! connects the guests by Ethernet. All of them stop together with the supervisor. If it is killed, the kernel kills
//! them ([`crate::process`]).
//!
//! `up` and the supervisor are connected by a socket, the lease. If the lease closes before `up` has sent
//! [`protocol::Keep`], for example because of Ctrl-C or SIGKILL, the supervisor stops everything. With `--foreground`,
//! `up` never sends that message. With `--for-pid`, the supervisor also stops everything when the given process exits.
//!
//! # State
//! A testbed has a directory (`state`) that contains its socket, temporary files, and a lock held by the supervisor. If
//! the lock is free, the supervisor was killed, and the next command that finds the directory removes it. Logs are
//! stored elsewhere and kept.
//!
//! # Protocol
//! A command connects to the supervisor's socket, sends one line ([`protocol::Request`]) and reads one line. If the
//! request runs a command in a guest, [`agent::wire::exec`] frames follow in both directions. The supervisor relays
//! them to one of the guest's ports, inspecting them only as far as necessary (`commands`).

mod boot;
pub mod client;
mod commands;
mod frames;
mod guest;
pub mod host_root;
pub mod impair;
pub mod kind;
pub mod name;
mod node;
pub mod progress;
pub mod protocol;
mod providers;
pub mod share;
mod slurm;
mod state;
pub mod supervisor;
mod switch;
pub mod template;

use std::num::NonZeroU32;

use crate::arch::Arch;
use crate::lab::Options;
use host_root::HostRoot;
use impair::Impairment;
use kind::Kind;
use name::TestbedName;
use node::Node;
use share::SharedFolder;
use template::{Choice, Template};

/// Maximum number of guests in a testbed. Each guest has its own QEMU and its own daemon.
pub const MOST_GUESTS: u8 = 32;

/// Cache subdirectory that contains testbed logs.
const LOGS: &str = "testbeds";

/// Options of `up`, `ci`, `here` and `node`: the guests to boot.
#[derive(Clone, Debug, clap::Args)]
pub struct UpOptions {
    /// Type of RDMA device in the guests, or a template whose guests already run services over RDMA
    #[arg(value_enum, value_name = "KIND", default_value = "connectx")]
    pub choice: Choice,
    /// Name of the testbed, for use in later commands [default: KIND for `guest-lab up`, otherwise a unique name]
    #[arg(long, value_name = "NAME")]
    pub name: Option<TestbedName>,
    /// Number of guests (1 to 32); they are named a, b, c, ... [default: 1 for `guest-lab here`, otherwise 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=i64::from(MOST_GUESTS)))]
    pub count: Option<u8>,
    /// Mount the host directory DIR at /AT in all guests; append `:ro` to mount it read-only (repeatable)
    #[arg(long = "share", value_name = "DIR:/AT[:ro]")]
    pub shares: Vec<SharedFolder>,
    /// Enable strict mode: report driver violations of the device interface, and make `guest-lab down`,
    /// `guest-lab ci` and `guest-lab here` fail if any occurred
    #[arg(long)]
    pub strict: bool,
    /// Capture each RDMA device's frames to a pcapng file next to the logs
    #[arg(long)]
    pub capture: bool,
    /// Write a session record for each RDMA device next to the logs, for use with `hcad replay`
    #[arg(long)]
    pub record: bool,
    /// Network of the RDMA devices
    #[arg(long, value_enum, value_name = "FABRIC", default_value = "udp")]
    pub fabric: DeviceFabric,
    /// Impair the network of the RDMA devices: lossy, slow, reordering, flapping, partition, congested, corrupting,
    /// random or random:SEED (repeatable)
    #[arg(long = "impair", value_name = "PROFILE")]
    pub impairments: Vec<Impairment>,
    /// Stop the guests when the process with this ID exits (for example, `$$` in a CI job's shell)
    #[arg(long, value_name = "PID")]
    pub for_pid: Option<NonZeroU32>,
    /// Options that select QEMU, the kernel and other guest components
    #[command(flatten)]
    pub options: Options,
    /// Set by `guest-lab here`, whose guests do not have the lab's root file system.
    #[arg(skip)]
    pub host_root: Option<HostRoot>,
    /// Set by `guest-lab node`, which boots only one of the testbed's guests.
    #[arg(skip)]
    node: Option<Node>,
}

/// Network that connects the RDMA devices of a testbed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum DeviceFabric {
    /// UDP datagrams
    Udp,
    /// Shared memory, which is faster but does not support soft-RoCE
    Ring,
}

/// Returns the directory that contains the state of running testbeds, creating it if it does not exist.
///
/// # Errors
/// Fails if the directory cannot be created or if other users can write to it.
pub fn state_dir() -> anyhow::Result<std::path::PathBuf> {
    Ok(state::States::open()?.folder().to_owned())
}

impl UpOptions {
    /// Returns the kind of the guests' RDMA devices.
    fn kind(&self) -> Kind {
        self.choice.kind()
    }

    /// Returns the number of guests.
    fn count(&self) -> u8 {
        match &self.node {
            Some(node) => node.size(),
            None => self.count.unwrap_or(if self.host_root.is_some() { 1 } else { 2 }),
        }
    }

    /// Checks options that depend on each other.
    ///
    /// # Errors
    /// Fails if the network of a guest cannot be impaired, the fabric does not support a guest's device, or the guests
    /// cannot run the template's services or this machine's programs.
    fn check(&self) -> anyhow::Result<()> {
        anyhow::ensure!(
            self.choice.template().is_none() || self.host_root.is_none(),
            "the services of '{}' need the lab's root filesystem; use 'guest-lab up' or 'guest-lab ci'",
            self.choice.name()
        );
        anyhow::ensure!(
            self.host_root.is_none() || self.options.arch.is_none_or(|arch| arch == Arch::HOST),
            "the guests of 'guest-lab here' run this machine's programs, which are for {}; use 'guest-lab up' or \
             'guest-lab ci' for guests of another architecture",
            Arch::HOST
        );
        anyhow::ensure!(
            self.node.is_none() || (self.count.is_none() && self.impairments.is_empty()),
            "'guest-lab node' supports neither --count nor --impair; the number of guests is that of the hosts"
        );
        let on_hosts = match self.choice.template() {
            None => !matches!(self.kind(), Kind::Rxe | Kind::Mixed),
            Some(template) => template == Template::Ucx,
        };
        anyhow::ensure!(
            self.node.is_none() || on_hosts,
            "'guest-lab node' does not support '{}'; choose a kind of RDMA device, or ucx",
            self.choice.name()
        );
        let has_hca = |number| self.kind().of_guest(number).interface().is_some();
        let only_hcas = (1..=u16::from(self.count())).all(has_hca);
        anyhow::ensure!(
            self.fabric == DeviceFabric::Udp || (only_hcas && self.node.is_none()),
            "--fabric ring connects only RDMA devices of hcad on one host; omit it for '{}'",
            if self.node.is_some() { "guest-lab node" } else { self.choice.name() }
        );
        anyhow::ensure!(
            self.impairments.is_empty() || only_hcas,
            "--impair needs an RDMA device in each guest, but some guests of '{}' use soft-RoCE; to impair the network of \
             soft-RoCE, run 'tc qdisc add ... netem' in the guests",
            self.choice.name()
        );
        Ok(())
    }

    /// Returns the memory size of the smallest guest, in MiB.
    fn memory_mib(&self) -> u32 {
        let least = |number| self.kind().of_guest(number).least().1;
        (1..=u16::from(self.count())).map(least).min().unwrap_or_default().max(self.options.memory)
    }
}
