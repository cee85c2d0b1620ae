//! Messages between commands and a supervisor: one JSON object per line.

use std::net::Ipv4Addr;
use std::path::PathBuf;

use agent::wire::exec::Start;
use anyhow::{Context as _, Result, bail};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufRead, AsyncBufReadExt as _, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use super::kind::Kind;
use super::name::{GuestName, TestbedName};

/// Limit of a line in bytes. Kernel messages are the longest.
const LONGEST_LINE: u64 = 16 << 20;

/// A request from a command to the supervisor, one per connection.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// Requests a description of the testbed.
    Describe,
    /// Runs a command. Frames follow the reply [`Reply::Go`].
    Exec { guest: GuestName, start: Start },
    /// Requests all kernel messages of a guest.
    Messages { guest: GuestName },
    /// Stops guests and daemons. The reply follows when they have ended.
    Down,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    Description(Description),
    /// Reply to [`Request::Exec`]: the command is being started.
    Go,
    Messages(Vec<String>),
    /// Reply to [`Request::Down`], with problems found meanwhile, such as driver violations.
    Down {
        /// Error messages for the user.
        complaints: Vec<String>,
    },
    /// The request is rejected for this reason.
    Refused(String),
}

/// An event from the supervisor to `up`, through the lease.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// A guest has reached a stage.
    Guest { name: GuestName, stage: Stage },
    /// All guests are ready.
    Up(Description),
    /// The guests did not boot, and everything was stopped.
    Failed {
        /// Reason why the guest ended.
        reason: String,
        /// Consoles and logs, as far as they exist.
        folder: Option<PathBuf>,
    },
}

/// A message from `up` to the supervisor, through the lease.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Keep {
    /// The guests keep running when the lease closes.
    Keep,
}

/// Progress of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// The kernel of the guest boots.
    Booting,
    /// Its kernel runs; network, folders and drivers are being set up.
    SettingUp,
    /// The guest accepts commands.
    Ready,
    /// The guest has ended.
    Ended,
}

impl Stage {
    /// Describes the stage for the user.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Booting => "booting",
            Self::SettingUp => "setting up",
            Self::Ready => "ready",
            Self::Ended => "ended",
        }
    }
}

/// A testbed, as `ps --json` prints it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    pub name: TestbedName,
    pub kind: Kind,
    /// Release of the guests' kernel.
    pub kernel: String,
    /// Directory of the kernel's modules on the host.
    pub modules: PathBuf,
    /// Directory of consoles, logs, traces and captures.
    pub folder: PathBuf,
    /// Process ID of the supervisor.
    pub supervisor: u32,
    /// Seconds since the testbed was started.
    pub seconds: u64,
    pub guests: Vec<GuestDescription>,
}

/// A guest, as `ps --json` prints it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestDescription {
    pub name: GuestName,
    /// Kind of its RDMA device.
    pub device: String,
    /// Progress of its boot.
    pub stage: Stage,
    /// Address on the Ethernet between the guests. It does not use the HCA, except with soft-RoCE.
    pub ip: Ipv4Addr,
    /// Address on the HCA's network device, if the driver creates one.
    pub rdma_ip: Option<Ipv4Addr>,
    /// Name of the RDMA device, if a stock driver creates one.
    pub rdma_device: Option<String>,
    /// Milliseconds from QEMU's start to the agent's first answer.
    pub boot_ms: u64,
    /// Number of commands that run in it.
    pub commands: usize,
    /// Process ID of QEMU, while it runs.
    pub qemu: Option<u32>,
    /// Control socket of the HCA's daemon, for hcactl.
    pub control_socket: Option<PathBuf>,
}

/// Writes a line.
///
/// # Errors
/// The other end has disconnected.
pub async fn send(output: &mut (impl AsyncWrite + Unpin), message: &impl Serialize) -> Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    Ok(output.write_all(&line).await?)
}

/// Reads a line, or `None` at the end of the input.
///
/// # Errors
/// The line is too long or invalid.
pub async fn receive<T: DeserializeOwned>(input: &mut (impl AsyncBufRead + Unpin)) -> Result<Option<T>> {
    let mut line = Vec::new();
    input.take(LONGEST_LINE).read_until(b'\n', &mut line).await?;
    match line.last() {
        None => Ok(None),
        Some(b'\n') => {
            let text = String::from_utf8_lossy(&line);
            serde_json::from_slice(&line)
                .with_context(|| format!("cannot parse a message from guest-lab: {}", text.trim_end()))
                .map(Some)
        }
        Some(_) => bail!("the connection closed in the middle of a message"),
    }
}
