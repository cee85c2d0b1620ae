//! The daemon under test, with a configuration made for the run.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::time::timeout;

use crate::process::Process;
use crate::programs;
use crate::run_dir::RunDir;

/// What the daemon says once guests can be attached.
const READY: &str = " ready";
/// What it says when a guest is gone and its device is as new.
const GONE: &str = "device reset";
const READY_TIMEOUT: Duration = Duration::from_secs(10);
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
const CONTROL_TIMEOUT: Duration = Duration::from_secs(10);

/// One HCA, as the lab wants it.
#[derive(Clone, Debug)]
pub struct HcaSpec {
    /// Name of its guest.
    pub name: String,
    /// Number on the fabric; addresses follow from it.
    pub id: u16,
    /// Number of the HCA packets without a destination go to.
    pub default_peer: u16,
    /// Where it receives frames.
    pub bind: SocketAddr,
    /// Where the others receive theirs.
    pub peers: Vec<SocketAddr>,
    /// Options of its device interface, an object of the configuration.
    pub options: Value,
}

impl HcaSpec {
    /// Two HCAs, `a` and `b`, wired to each other by UDP ports of the loopback interface that are free now.
    ///
    /// # Errors
    /// When there are no free ports.
    pub fn pair() -> Result<[Self; 2]> {
        let [a, b] = free_udp_ports()?;
        let spec = |name: &str, id, default_peer, bind, peer| Self {
            name: name.into(),
            id,
            default_peer,
            bind,
            peers: vec![peer],
            options: json!({}),
        };
        Ok([spec("a", 1, 2, a, b), spec("b", 2, 1, b, a)])
    }
}

/// A running daemon that serves one HCA.
#[derive(Debug)]
pub struct Daemon {
    process: Process,
    socket: PathBuf,
    control: PathBuf,
    capture: PathBuf,
}

impl Daemon {
    /// Starts `hcad` for one HCA and waits until it takes a guest.
    ///
    /// # Errors
    /// When it does not get that far.
    pub async fn start(hcad: &Path, spec: &HcaSpec, run: &RunDir) -> Result<Self> {
        let name = format!("hcad-{}", spec.name);
        let socket = run.socket(&format!("{name}.sock"));
        let control = run.socket(&format!("{name}.control"));
        let capture = run.file(format!("{name}.pcapng"));
        let config = run.file(format!("{name}.json"));
        let text = serde_json::to_string_pretty(&config_of(spec, &socket, &control, &capture))?;
        std::fs::write(&config, text).with_context(|| format!("writing {}", config.display()))?;
        let mut command = Command::new(hcad);
        command.arg("--config").arg(&config);
        let mut process = Process::start(&name, command, run)?;
        process.line(READY, READY_TIMEOUT).await?;
        Ok(Self { process, socket, control, capture })
    }

    /// Does what `hcactl` does with these arguments; its answer, null for a command that answers nothing.
    ///
    /// # Errors
    /// When the daemon refuses or is gone.
    pub async fn control(&self, arguments: &[&str]) -> Result<Value> {
        let mut command = Command::new(programs::hcactl()?);
        command.arg("--socket").arg(&self.control).arg("--json").args(arguments).kill_on_drop(true);
        let answer = timeout(CONTROL_TIMEOUT, command.output())
            .await
            .with_context(|| format!("no answer to hcactl {arguments:?} within {CONTROL_TIMEOUT:?}"))?
            .with_context(|| format!("starting {command:?}"))?;
        ensure!(
            answer.status.success(),
            "hcactl {arguments:?}: {}",
            String::from_utf8_lossy(&answer.stderr).trim_end()
        );
        if answer.stdout.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_slice(&answer.stdout).with_context(|| format!("answer to hcactl {arguments:?}"))
    }

    /// Where a VMM attaches.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The frames it sent and received.
    pub fn capture(&self) -> &Path {
        &self.capture
    }

    /// The program.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// One of its counters, by its place in `hcactl counters`, such as `/engine/drops/wrong_qkey`.
    ///
    /// # Errors
    /// When there is no such counter, or no answer.
    pub async fn counter(&self, place: &str) -> Result<u64> {
        let counters = self.control(&["counters"]).await?;
        let value = counters.pointer(place).and_then(Value::as_u64);
        value.with_context(|| format!("no counter {place} in {counters}"))
    }

    /// Waits until it has noticed that its guest is gone, and takes the next.
    ///
    /// # Errors
    /// When it does not say so in time.
    pub async fn guest_gone(&mut self) -> Result<()> {
        self.process.line(GONE, READY_TIMEOUT).await.map(drop)
    }

    /// Ends it as an operator would.
    ///
    /// # Errors
    /// When it does not end, or not with success.
    pub async fn stop(mut self) -> Result<()> {
        let status = self.process.stop(STOP_TIMEOUT).await?;
        ensure!(
            status.success(),
            "{} ended with {status} after SIGTERM; see {}",
            self.process.name(),
            self.process.log().display()
        );
        Ok(())
    }
}

fn config_of(spec: &HcaSpec, socket: &Path, control: &Path, capture: &Path) -> Value {
    let peers: Vec<Value> = spec.peers.iter().map(|addr| json!({ "addr": addr })).collect();
    json!({
        "log": { "filter": "info" },
        "control_socket": control,
        "devices": [{
            "id": spec.id,
            "socket_path": socket,
            "frontend": { "jingzhao": spec.options },
            "default_peer": { "id": spec.default_peer },
            "fabric": { "udp": { "bind": spec.bind, "peers": peers } },
            "capture": capture,
        }],
    })
}

/// Ports nobody has now. Another program could take one before the daemon does, which then says so and ends.
fn free_udp_ports<const N: usize>() -> Result<[SocketAddr; N]> {
    let sockets: Vec<UdpSocket> = (0..N)
        .map(|_| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)))
        .collect::<Result<_, _>>()
        .context("looking for a free UDP port")?;
    let mut ports = [SocketAddr::from((Ipv4Addr::LOCALHOST, 0)); N];
    for (port, socket) in ports.iter_mut().zip(&sockets) {
        *port = socket.local_addr()?;
    }
    Ok(ports)
}
