//! A RoCEv2 peer made of single packets, built and read by scapy in a process of its own (`peer/peer.py`).
//!
//! It has no state of a queue pair: a test says each packet, and sees each packet that comes.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use agent::wire::Hex;
use anyhow::{Context as _, Result, ensure};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Bound for an answer that must come; far above anything measured.
const ANSWER: Duration = Duration::from_secs(60);

/// Addresses of an HCA on the fabric, by its number (the default rule for LID n).
fn identity(id: u16) -> [String; 2] {
    let [high, low] = id.to_be_bytes();
    [format!("02:00:00:00:{high:02x}:{low:02x}"), format!("10.77.{high}.{low}")]
}

/// An operation, by scapy's name such as `RC_SEND_ONLY`, or by its code where it has none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Op {
    /// By name.
    Name(String),
    /// By code.
    Code(u8),
}

impl From<&str> for Op {
    fn from(name: &str) -> Self {
        Self::Name(name.into())
    }
}

/// RDMA extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields of the header")]
pub struct Reth {
    pub va: u64,
    pub rkey: u32,
    pub len: u32,
}

/// Atomic extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields of the header")]
pub struct Atomic {
    pub va: u64,
    pub rkey: u32,
    pub swap_add: u64,
    pub compare: u64,
}

/// ACK extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields of the header")]
pub struct Aeth {
    pub syndrome: u8,
    pub msn: u32,
}

/// One packet, sent or received.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Packet {
    /// Operation.
    pub op: Op,
    /// Destination queue pair.
    pub qpn: u32,
    /// PSN.
    pub psn: u32,
    /// AckReq.
    pub ack_req: bool,
    /// Solicited event.
    pub solicited: bool,
    /// `MigReq`.
    pub mig_req: bool,
    /// `P_Key`.
    pub pkey: u16,
    /// The two ECN bits of the IP header.
    pub ecn: u8,
    /// Send it with a wrong ICRC; never set in what was received, like all up to `cut`.
    pub bad_icrc: bool,
    /// Transport version.
    pub tver: u8,
    /// Forward congestion notification.
    pub fecn: bool,
    /// Backward congestion notification.
    pub becn: bool,
    /// Set the reserved bits of the BTH.
    pub reserved: bool,
    /// Hops left.
    pub ttl: u8,
    /// IP address it claims to come from; the peer's own without.
    pub source: Option<Ipv4Addr>,
    /// Pad count; the right one without.
    pub pad: Option<u8>,
    /// Bytes missing at the end of the frame.
    pub cut: u8,
    /// RETH of WRITEs and READ requests.
    pub reth: Option<Reth>,
    /// AtomicETH of atomic requests.
    pub atomic: Option<Atomic>,
    /// AETH of acknowledges and responses.
    pub aeth: Option<Aeth>,
    /// `AtomicAckETH`: what memory held before.
    pub original: Option<u64>,
    /// Immediate.
    pub imm: Option<Hex>,
    /// Payload without pad bytes.
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
    /// Whether it is this operation.
    pub fn is(&self, name: &str) -> bool {
        self.op == Op::from(name)
    }
}

/// The peer's process; it ends with this.
#[derive(Debug)]
pub struct Peer {
    child: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Peer {
    /// Starts HCA number `id` of the fabric at `bind`, to talk to number `other` at `to`.
    ///
    /// # Errors
    /// When there is no Python, or scapy cannot be fetched.
    pub fn start(id: u16, bind: SocketAddr, other: u16, to: SocketAddr) -> Result<Self> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("peer");
        let output = Command::new(folder.join("python")).output().context("cannot run Python with scapy")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "cannot set up a Python environment with scapy: {said}");
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
        let requests = child.stdin.take().context("the packet peer's standard input is not a pipe")?;
        let answers =
            BufReader::new(child.stdout.take().context("the packet peer's standard output is not a pipe")?);
        let mut peer = Self { child, requests, answers };
        peer.answer::<Value>()?;
        Ok(peer)
    }

    /// Sends a packet.
    ///
    /// # Errors
    /// When the peer cannot build it.
    pub fn send(&mut self, packet: &Packet) -> Result<()> {
        self.ask::<Value>(&json!({ "send": packet })).map(drop)
    }

    /// The next packet, which must come.
    ///
    /// # Errors
    /// When none comes, or one with a wrong ICRC.
    pub fn receive(&mut self) -> Result<Packet> {
        self.receive_within(ANSWER)?.with_context(|| format!("no packet arrived within {ANSWER:?}"))
    }

    /// The next packet, if one comes in time.
    ///
    /// # Errors
    /// When one with a wrong ICRC comes.
    pub fn receive_within(&mut self, limit: Duration) -> Result<Option<Packet>> {
        let limit = u64::try_from(limit.as_millis())?;
        self.ask(&json!({ "receive": { "timeout_ms": limit } }))
    }

    /// Everything that the HCA had to say to what it has received so far; what it sends because a timer expires
    /// may come later.
    ///
    /// # Errors
    /// When the HCA does not answer ARP any more, or sends a wrong ICRC.
    pub fn rest(&mut self) -> Result<Vec<Packet>> {
        self.ask(&json!({ "barrier": null }))
    }

    fn ask<T: for<'de> Deserialize<'de>>(&mut self, request: &Value) -> Result<T> {
        writeln!(self.requests, "{request}").context("cannot write to the packet peer")?;
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
        ensure!(self.answers.read_line(&mut line)? > 0, "the packet peer exited");
        match serde_json::from_str(&line)
            .with_context(|| format!("cannot parse the reply from the packet peer: {line}"))?
        {
            Answer::Ok(value) => Ok(value),
            Answer::Error(message) => Err(anyhow::Error::msg(message)).context("the packet peer failed"),
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
