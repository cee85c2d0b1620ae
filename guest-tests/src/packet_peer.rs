//! A RoCEv2 peer that sends and receives single packets. A separate process (`peer/peer.py`) builds and parses the
//! packets with scapy.
//!
//! The peer does not keep queue pair state. Tests define every packet to send, and inspect every packet received.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use agent::wire::Hex;
use anyhow::{Context as _, Result, ensure};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Timeout for an expected packet.
const PACKET_TIMEOUT: Duration = Duration::from_secs(60);

/// Returns the default MAC address and IP address of HCA number `id`.
fn identity(id: u16) -> [String; 2] {
    let [high, low] = id.to_be_bytes();
    [format!("02:00:00:00:{high:02x}:{low:02x}"), format!("10.77.{high}.{low}")]
}

/// An opcode: its name in scapy, such as `RC_SEND_ONLY`, or its code if scapy has no name for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Op {
    /// Name of the opcode in scapy.
    Name(String),
    /// Code of the opcode in the BTH.
    Code(u8),
}

impl From<&str> for Op {
    fn from(name: &str) -> Self {
        Self::Name(name.into())
    }
}

/// RDMA extended transport header (RETH).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reth {
    pub va: u64,
    pub rkey: u32,
    pub len: u32,
}

/// Atomic extended transport header (AtomicETH).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Atomic {
    pub va: u64,
    pub rkey: u32,
    pub swap_add: u64,
    pub compare: u64,
}

/// ACK extended transport header (AETH).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Aeth {
    pub syndrome: u8,
    pub msn: u32,
}

/// One packet, either sent or received.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Packet {
    pub op: Op,
    pub qpn: u32,
    pub psn: u32,
    pub ack_req: bool,
    pub solicited: bool,
    pub mig_req: bool,
    pub pkey: u16,
    /// The two ECN bits of the IP header.
    pub ecn: u8,
    /// Whether to send a wrong ICRC. This field and the following ones up to `cut` apply only to sent packets.
    pub bad_icrc: bool,
    pub tver: u8,
    pub fecn: bool,
    pub becn: bool,
    /// Whether to set the reserved bits of the BTH.
    pub reserved: bool,
    pub ttl: u8,
    /// Source IP address, or `None` for the peer's own address.
    pub source: Option<Ipv4Addr>,
    /// Incorrect pad count, or `None` for the correct one.
    pub pad: Option<u8>,
    /// Number of bytes removed from the end of the frame.
    pub cut: u8,
    /// RETH of a WRITE or a READ request.
    pub reth: Option<Reth>,
    /// AtomicETH of an atomic request.
    pub atomic: Option<Atomic>,
    /// AETH of an acknowledgement or a response.
    pub aeth: Option<Aeth>,
    /// Original remote data from the AtomicAckETH.
    pub original: Option<u64>,
    pub imm: Option<Hex>,
    /// Payload without its padding.
    pub payload: Hex,
}

impl Default for Packet {
    fn default() -> Self {
        Self {
            op: Op::Code(0),
            qpn: 0,
            psn: 0,
            ack_req: false,
            solicited: false,
            mig_req: true,
            pkey: 0xffff,
            ecn: 0,
            bad_icrc: false,
            tver: 0,
            fecn: false,
            becn: false,
            reserved: false,
            ttl: 64,
            source: None,
            pad: None,
            cut: 0,
            reth: None,
            atomic: None,
            aeth: None,
            original: None,
            imm: None,
            payload: Hex(Vec::new()),
        }
    }
}

impl Packet {
    /// Returns whether the packet has the opcode `name`.
    pub fn is(&self, name: &str) -> bool {
        self.op == Op::from(name)
    }
}

/// The peer's process, which is killed on drop.
#[derive(Debug)]
pub struct Peer {
    child: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Peer {
    /// Starts a peer that has the addresses of HCA number `id` and receives frames at `bind`. It sends all frames to
    /// HCA number `other` at `to`.
    ///
    /// # Errors
    /// Fails if Python is missing or scapy cannot be fetched.
    pub fn start(id: u16, bind: SocketAddr, other: u16, to: SocketAddr) -> Result<Self> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("peer");
        let output = Command::new(folder.join("python"))
            .output()
            .context("cannot run the scapy peer's setup script")?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "cannot set up a Python environment with scapy: {stderr}");
        let python = String::from_utf8(output.stdout)?;
        let mut child = Command::new(python.trim())
            .arg(folder.join("peer.py"))
            .args([bind.port().to_string(), to.port().to_string()])
            .args(identity(id))
            .args(identity(other))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {python}"))?;
        let requests = child.stdin.take().context("the scapy peer's standard input is not a pipe")?;
        let answers =
            BufReader::new(child.stdout.take().context("the scapy peer's standard output is not a pipe")?);
        let mut peer = Self { child, requests, answers };
        peer.answer::<Value>()?;
        Ok(peer)
    }

    /// Sends a packet.
    ///
    /// # Errors
    /// Fails if the peer cannot build the packet.
    pub fn send(&mut self, packet: &Packet) -> Result<()> {
        self.ask::<Value>(&json!({ "send": packet })).map(drop)
    }

    /// Receives the next packet.
    ///
    /// # Errors
    /// Fails if no packet arrives within a minute or if the packet's ICRC is wrong.
    pub fn receive(&mut self) -> Result<Packet> {
        self.receive_within(PACKET_TIMEOUT)?
            .with_context(|| format!("no packet arrived within {PACKET_TIMEOUT:?}"))
    }

    /// Receives the next packet or returns `None` if none arrives within `limit`.
    ///
    /// # Errors
    /// Fails if the ICRC of the packet is wrong.
    pub fn receive_within(&mut self, limit: Duration) -> Result<Option<Packet>> {
        let limit = u64::try_from(limit.as_millis())?;
        self.ask(&json!({ "receive": { "timeout_ms": limit } }))
    }

    /// Returns all packets that the HCA sends in response to the packets it has received so far. Packets triggered by
    /// timers may follow later.
    ///
    /// # Errors
    /// Fails if the HCA no longer answers ARP requests or sends a wrong ICRC.
    pub fn rest(&mut self) -> Result<Vec<Packet>> {
        self.ask(&json!({ "barrier": null }))
    }

    fn ask<T: for<'de> Deserialize<'de>>(&mut self, request: &Value) -> Result<T> {
        writeln!(self.requests, "{request}").context("cannot write to the scapy peer")?;
        self.answer()
    }

    fn answer<T: for<'de> Deserialize<'de>>(&mut self) -> Result<T> {
        #[derive(Deserialize)]
        #[serde(rename_all = "snake_case")]
        enum Answer<T> {
            Ok(T),
            Error(String),
        }
        let mut line = String::new();
        ensure!(self.answers.read_line(&mut line)? > 0, "the scapy peer exited");
        match serde_json::from_str(&line)
            .with_context(|| format!("cannot parse the reply from the scapy peer: {line}"))?
        {
            Answer::Ok(value) => Ok(value),
            Answer::Error(message) => {
                Err(anyhow::Error::msg(message)).context("the scapy peer reported an error")
            }
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // The process may already have exited, so errors are ignored.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
