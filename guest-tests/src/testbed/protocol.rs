//! What commands and a supervisor say to each other: a JSON object a line.

use std::net::Ipv4Addr;
use std::path::PathBuf;

use agent::wire::exec::Start;
use anyhow::{Context as _, Result, bail};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufRead, AsyncBufReadExt as _, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use super::kind::Kind;
use super::name::{GuestName, TestbedName};

/// Bound: bytes of a line. Kernel messages are the longest.
const LONGEST_LINE: u64 = 16 << 20;

/// From a command to the supervisor, once a connection.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// Requests a description of the testbed.
    Describe,
    /// Run a command. Frames follow when the reply is [`Reply::Go`].
    Exec { guest: GuestName, start: Start },
    /// All messages of a guest's kernel.
    Messages { guest: GuestName },
    /// End guests and daemons. The reply comes when they have ended.
    Down,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    Description(Description),
    /// Of [`Request::Exec`]: the command is being started.
    Go,
    Messages(Vec<String>),
    /// Of [`Request::Down`], with what went wrong meanwhile, such as rules that drivers broke.
    Down {
        /// Error messages for the user.
        complaints: Vec<String>,
    },
    /// It cannot be done, for this reason.
    Refused(String),
}

/// From the supervisor to `up`, through the lease.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// A guest has come this far.
    Guest { name: GuestName, stage: Stage },
    /// All guests are ready.
    Up(Description),
    /// They will not be. Everything has ended.
    Failed {
        /// Reason why the guest ended.
        reason: String,
        /// Consoles and logs, as far as it came.
        folder: Option<PathBuf>,
    },
}

/// From `up` to the supervisor, through the lease: what follows is no reason to end.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Keep {
    /// The lease may close.
    Keep,
}

/// How far a guest has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// The kernel of the guest boots.
    Booting,
    /// Its kernel runs; network, folders and drivers are being set up.
    SettingUp,
    /// The guest accepts commands.
    Ready,
    /// It is no more.
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
    /// Release of their kernel.
    pub kernel: String,
    /// The kernel's modules, on the host.
    pub modules: PathBuf,
    /// Consoles, logs, traces, captures.
    pub folder: PathBuf,
    /// Process ID of the supervisor.
    pub supervisor: u32,
    /// Seconds since it began.
    pub seconds: u64,
    pub guests: Vec<GuestDescription>,
}

/// A guest, as `ps --json` prints it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestDescription {
    pub name: GuestName,
    /// What RDMA device it has.
    pub device: String,
    /// How far it is.
    pub stage: Stage,
    /// Its address on the Ethernet between the guests, which has nothing to do with the HCA (but under soft-RoCE).
    pub ip: Ipv4Addr,
    /// Its address through the HCA, where the driver makes a network device of it.
    pub rdma_ip: Option<Ipv4Addr>,
    /// Its RDMA device, if a stock driver makes one.
    pub rdma_device: Option<String>,
    /// Milliseconds from QEMU's start to the agent's first answer.
    pub boot_ms: u64,
    /// Commands that run in it.
    pub commands: usize,
    /// QEMU's process, while there is one.
    pub qemu: Option<u32>,
    /// The HCA's control socket, for hcactl.
    pub control_socket: Option<PathBuf>,
}

/// Writes a line.
///
/// # Errors
/// When the other end is gone.
pub async fn send(output: &mut (impl AsyncWrite + Unpin), message: &impl Serialize) -> Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    Ok(output.write_all(&line).await?)
}

/// Reads a line; none at the end of the input.
///
/// # Errors
/// When it is longer than any, or not understood.
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
