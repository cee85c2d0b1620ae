//! Messages between commands and a supervisor. Each is a JSON object on a single line.

use std::net::Ipv4Addr;
use std::path::PathBuf;

use agent::wire::exec::Start;
use anyhow::{Context as _, Result, bail};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufRead, AsyncBufReadExt as _, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use super::kind::Kind;
use super::name::{GuestName, TestbedName};

/// Maximum length of a line in bytes. The longest lines contain kernel messages.
const LONGEST_LINE: u64 = 16 << 20;

/// A request from a command to the supervisor. Each connection carries one request.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// Requests a description of the testbed.
    Describe,
    /// Runs a command. Frames follow the reply [`Reply::Go`].
    Exec { guest: GuestName, start: Start },
    /// Requests all of a guest's kernel messages.
    Messages { guest: GuestName },
    /// Stops guests and daemons. The reply is sent after they have stopped.
    Down,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    Description(Description),
    /// Reply to [`Request::Exec`]. The command is being started.
    Go,
    Messages(Vec<String>),
    /// Reply to [`Request::Down`], with the problems found while stopping, such as driver violations.
    Down {
        /// Error messages for the user.
        complaints: Vec<String>,
        /// Whether the devices were in strict mode. If so, violations are among the complaints.
        #[serde(default)]
        strict: bool,
    },
    /// The request is rejected for the given reason.
    Refused(String),
}

/// An event that the supervisor sends to `up` through the lease.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// A guest has reached a stage.
    Guest { name: GuestName, stage: Stage },
    /// All guests are ready.
    Up(Description),
    /// The guests did not boot, and everything has been stopped.
    Failed {
        /// Why the guests did not boot.
        reason: String,
        /// Directory with console output and logs, if it exists.
        folder: Option<PathBuf>,
    },
}

/// A message that `up` sends to the supervisor through the lease.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Keep {
    /// Makes the supervisor keep the guests running when the lease closes.
    Keep,
}

/// Progress and state of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// The guest's kernel is booting.
    Booting,
    /// The guest's kernel is running. Network, shared directories and drivers are being set up.
    SettingUp,
    /// The guest accepts commands.
    Ready,
    /// QEMU is suspended by a signal or a debugger.
    Suspended,
    /// The guest accepts commands, but `hcad` has exited or QEMU has lost its connection to the device. The guests must
    /// be restarted before the device works again.
    DeviceLost,
    /// QEMU has exited, which also ended the guest.
    Ended,
}

impl Stage {
    /// Describes the stage in words for the user.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Booting => "booting",
            Self::SettingUp => "setting up",
            Self::Ready => "ready",
            Self::Suspended => "suspended",
            Self::DeviceLost => "device lost",
            Self::Ended => "ended",
        }
    }
}

/// A running testbed, as printed by `ps --json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    pub name: TestbedName,
    pub kind: Kind,
    /// Name of the template, if the guests run its services.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// Release of the guests' kernel.
    pub kernel: String,
    /// Directory of the kernel's modules on the host.
    pub modules: PathBuf,
    /// Directory with console output, logs, traces and captures.
    pub folder: PathBuf,
    /// Process ID of the supervisor.
    pub supervisor: u32,
    /// Seconds since the testbed was started.
    pub seconds: u64,
    pub guests: Vec<GuestDescription>,
    /// Values of `--impair`, with the seeds that were chosen.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub impairments: Vec<String>,
}

/// A guest, as printed by `ps --json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestDescription {
    pub name: GuestName,
    /// Kind of the guest's RDMA device.
    pub device: String,
    /// Boot stage, or state of the booted guest.
    pub stage: Stage,
    /// Address on the Ethernet between the guests. Traffic to it uses the RDMA device only with soft-RoCE.
    pub ip: Ipv4Addr,
    /// IP address of the RDMA device's network interface, if the device has one.
    pub rdma_ip: Option<Ipv4Addr>,
    /// The RDMA device's name, if a stock driver creates one.
    pub rdma_device: Option<String>,
    /// Time from the start of QEMU to the agent's first reply, in milliseconds.
    pub boot_ms: u64,
    /// Number of commands that are running in the guest.
    pub commands: usize,
    /// Process ID of QEMU while it is running.
    pub qemu: Option<u32>,
    /// Control socket of the HCA's daemon, for use by hcactl.
    pub control_socket: Option<PathBuf>,
}

/// Writes a message as one line.
///
/// # Errors
/// Fails if the other end has disconnected.
pub async fn send(output: &mut (impl AsyncWrite + Unpin), message: &impl Serialize) -> Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    Ok(output.write_all(&line).await?)
}

/// Reads a message from one line. Returns `None` at the end of the input.
///
/// # Errors
/// Fails if the line is too long or invalid.
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
