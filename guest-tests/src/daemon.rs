//! The daemon under test, with a configuration made for the run.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
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
const READY_TIMEOUT: Duration = Duration::from_secs(60);
const STOP_TIMEOUT: Duration = Duration::from_secs(60);
const CONTROL_TIMEOUT: Duration = Duration::from_secs(60);

/// A device interface, by its name in configurations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Interface {
    /// The JingZhao document's.
    #[default]
    Jingzhao,
    /// That of Linux's `ib_mthca`.
    Mthca,
    /// That of Linux's `ice`.
    E810,
}

impl Interface {
    /// Its key in a configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Jingzhao => "jingzhao",
            Self::Mthca => "mthca",
            Self::E810 => "e810",
        }
    }
}

/// One HCA, as the lab wants it.
#[derive(Clone, Debug)]
pub struct HcaSpec {
    /// Name of its guest.
    pub name: String,
    /// Number on the fabric; addresses follow from it.
    pub id: u16,
    /// Number of the HCA packets without a destination go to.
    pub default_peer: u16,
    /// Packets go to that peer by IPv6, unless software names its IPv4 address.
    pub prefer_ipv6: bool,
    /// Where it receives frames.
    pub bind: SocketAddr,
    /// The others.
    pub peers: Vec<Peer>,
    /// What carries its frames.
    pub fabric: Fabric,
    /// What its guest's driver sees.
    pub interface: Interface,
    /// Options of its device interface, an object of the configuration.
    pub options: Value,
    /// Write what it sends and receives to a file.
    pub capture: bool,
    /// Write what its driver does and what it answers to a file.
    pub trace: bool,
    /// Write all that reaches it, and what it does, to a file.
    pub record: bool,
    /// Look for what its driver does against the interface, of which there must be nothing but what is explained.
    pub strict: bool,
    /// Its guest stores doorbells without an exit.
    pub mapped: bool,
    /// Rules that may be reported of it.
    pub explained: &'static [Explained],
}

/// A rule of an interface that may be reported of a driver that is right, or of programs that are to do wrong.
#[derive(Clone, Copy, Debug)]
pub struct Explained {
    /// The rule, as it is counted.
    pub rule: &'static str,
    /// Who breaks it, and why that is no fault of the driver.
    pub why: &'static str,
}

/// What carries frames between HCAs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Fabric {
    /// UDP datagrams, from the HCA's own socket to those of its peers.
    #[default]
    Udp,
    /// Memory of the process that serves them all.
    Local,
    /// Memory that processes share which know the same folder.
    Ring(PathBuf),
    /// A tap interface of this name.
    Tap(String),
}

/// Another user of a fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Where it receives frames.
    pub addr: SocketAddr,
    /// It is the NIC of a guest and knows only this HCA, which passes its frames on.
    pub leaf: bool,
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
            prefer_ipv6: false,
            bind,
            peers: vec![Peer { addr: peer, leaf: false }],
            fabric: Fabric::Udp,
            interface: Interface::Jingzhao,
            options: json!({}),
            capture: true,
            trace: false,
            record: false,
            strict: false,
            mapped: false,
            explained: &[],
        };
        Ok([spec("a", 1, 2, a, b), spec("b", 2, 1, b, a)])
    }

    /// HCAs numbered from 1 on, each of which knows all the others.
    ///
    /// # Errors
    /// When there are no free ports.
    pub fn mesh<const N: usize>() -> Result<[Self; N]> {
        Self::mesh_of(N)?.try_into().map_err(|_| anyhow!("a mesh of {N} devices"))
    }

    /// The same, as many as are wanted.
    ///
    /// # Errors
    /// When there are no free ports.
    pub fn mesh_of(count: usize) -> Result<Vec<Self>> {
        let ports = free_ports(count)?;
        let [example, _] = Self::pair()?;
        let mut specs: Vec<Self> = ports.iter().map(|&bind| Self { bind, ..example.clone() }).collect();
        for (id, spec) in (1..).zip(&mut specs) {
            let others = ports.iter().filter(|addr| **addr != spec.bind);
            spec.peers = others.map(|&addr| Peer { addr, leaf: false }).collect();
            (spec.name, spec.id, spec.default_peer) = (id.to_string(), id, 1 + u16::from(id == 1));
        }
        Ok(specs)
    }
}

/// A running daemon. What is said of its HCA is said of the first, if it serves several.
#[derive(Debug)]
pub struct Daemon {
    process: Process,
    sockets: Vec<PathBuf>,
    control: Control,
    /// Numbers of HCAs whose drivers must keep to the interface, and what is explained of them.
    strict: Vec<(u16, &'static [Explained])>,
    capture: PathBuf,
}

/// What `hcactl` reaches of a daemon, whoever holds the daemon.
#[derive(Clone, Debug)]
pub struct Control {
    socket: PathBuf,
    /// The only one that is spoken of.
    device: Option<u16>,
}

impl Daemon {
    /// Starts `hcad` for one HCA and waits until it takes a guest.
    ///
    /// # Errors
    /// When it does not get that far.
    pub async fn start(hcad: &Path, spec: &HcaSpec, run: &RunDir) -> Result<Self> {
        Self::start_by(Command::new(hcad), std::slice::from_ref(spec), run).await
    }

    /// Starts a program that becomes `hcad`, for one HCA or several, and waits until it takes guests.
    ///
    /// # Errors
    /// When it does not get that far, or is to serve none.
    pub async fn start_by(mut command: Command, specs: &[HcaSpec], run: &RunDir) -> Result<Self> {
        let first = specs.first().context("hcad requires at least one device")?;
        let path_of = |spec: &HcaSpec| run.socket(&format!("hcad-{}.sock", spec.name));
        let capture_of = |spec: &HcaSpec| run.file(format!("hcad-{}.pcapng", spec.name));
        let name = format!("hcad-{}", first.name);
        let control = Control { socket: run.socket(&format!("{name}.control")), device: Some(first.id) };
        let devices: Vec<Value> =
            specs.iter().map(|spec| device_of(spec, &path_of(spec), &capture_of(spec))).collect();
        let text = json!({
            "log": { "filter": "info" },
            "control_socket": control.socket,
            "confinement": { "writable": [run.path()] },
            "devices": devices,
        });
        let config = run.file(format!("{name}.json"));
        std::fs::write(&config, serde_json::to_string_pretty(&text)?)
            .with_context(|| format!("cannot write {}", config.display()))?;
        command.arg("--config").arg(&config);
        let mut process = Process::start(&name, command, run)?;
        process.line(READY, READY_TIMEOUT).await?;
        let sockets = specs.iter().map(path_of).collect();
        let strict = specs.iter().filter(|spec| spec.strict).map(|spec| (spec.id, spec.explained)).collect();
        Ok(Self { process, sockets, control, strict, capture: capture_of(first) })
    }

    /// Does what `hcactl` does with these arguments; its answer, null for a command that answers nothing.
    ///
    /// # Errors
    /// When the daemon refuses or is gone.
    pub async fn control(&self, arguments: &[&str]) -> Result<Value> {
        self.control.ask(arguments).await
    }

    /// The way to ask it from elsewhere.
    pub fn controls(&self) -> Control {
        self.control.clone()
    }

    /// The same for the HCA of this number.
    pub fn controls_of(&self, device: u16) -> Control {
        Control { device: Some(device), ..self.control.clone() }
    }

    /// The same for all that the daemon serves.
    pub fn controls_of_all(&self) -> Control {
        Control { device: None, ..self.control.clone() }
    }

    /// Where a VMM attaches.
    pub fn socket(&self) -> &Path {
        self.sockets.first().map_or(Path::new(""), PathBuf::as_path)
    }

    /// Where VMMs attach, by HCA.
    pub fn sockets(&self) -> &[PathBuf] {
        &self.sockets
    }

    /// The frames it sent and received.
    pub fn capture(&self) -> &Path {
        &self.capture
    }

    /// What its driver did and it answered, if that is traced.
    pub fn trace(&self) -> PathBuf {
        self.capture.with_extension("trace")
    }

    /// All that reached it and what it did, if that is recorded.
    pub fn record(&self) -> PathBuf {
        self.capture.with_extension("record")
    }

    /// The program.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// How often the driver of its HCA has broken each rule of the interface, those that it has.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn violations(&self) -> Result<BTreeMap<String, u64>> {
        self.control.violations().await
    }

    /// One of its counters, by its place in `hcactl counters`, such as `/engine/drops/wrong_qkey`.
    ///
    /// # Errors
    /// When there is no such counter, or no answer.
    pub async fn counter(&self, place: &str) -> Result<u64> {
        self.control.counter(place).await
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
    /// When it does not end, or not with success, or the driver of a strict HCA broke rules of the interface.
    pub async fn stop(mut self) -> Result<()> {
        let mut broken = Vec::new();
        for &(device, explained) in &self.strict {
            let rules = self.controls_of(device).violations().await?;
            let unexplained =
                rules.iter().filter(|(rule, _)| !explained.iter().any(|known| known.rule == **rule));
            broken
                .extend(unexplained.map(|(rule, count)| format!("device {device}: {rule} ({count} times)")));
        }
        let status = self.process.stop(STOP_TIMEOUT).await?;
        ensure!(
            status.success(),
            "{} exited with {status} after SIGTERM; see its log at {}",
            self.process.name(),
            self.process.log().display()
        );
        ensure!(
            broken.is_empty(),
            "driver violations: {}; see {} for details",
            broken.join(", "),
            self.process.log().display()
        );
        Ok(())
    }
}

impl Control {
    /// Where it listens.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// See [`Daemon::control`].
    ///
    /// # Errors
    /// hcactl fails, or says what is no JSON.
    pub async fn ask(&self, arguments: &[&str]) -> Result<Value> {
        let mut command = Command::new(programs::hcactl()?);
        command.arg("--socket").arg(&self.socket);
        if let Some(device) = self.device {
            command.args(["--device", &device.to_string()]);
        }
        command.arg("--json").args(arguments).kill_on_drop(true);
        let answer = timeout(CONTROL_TIMEOUT, command.output())
            .await
            .with_context(|| format!("hcactl {arguments:?} did not exit within {CONTROL_TIMEOUT:?}"))?
            .with_context(|| format!("cannot start {command:?}"))?;
        ensure!(
            answer.status.success(),
            "hcactl {arguments:?} failed: {}",
            String::from_utf8_lossy(&answer.stderr).trim_end()
        );
        if answer.stdout.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_slice(&answer.stdout)
            .with_context(|| format!("cannot parse the output of hcactl {arguments:?}"))
    }

    /// See [`Daemon::violations`].
    ///
    /// # Errors
    /// hcactl fails, or tells no such counters.
    pub async fn violations(&self) -> Result<BTreeMap<String, u64>> {
        let mut counters = self.ask(&["counters"]).await?;
        let rules = counters.pointer_mut("/interface/violations").map(Value::take);
        let rules =
            rules.with_context(|| format!("the hcad counters contain no strict-mode rules: {counters}"))?;
        serde_json::from_value(rules).context("cannot parse the strict-mode violation counts")
    }

    /// See [`Daemon::counter`].
    ///
    /// # Errors
    /// hcactl fails, or there is no such counter.
    pub async fn counter(&self, place: &str) -> Result<u64> {
        let counters = self.ask(&["counters"]).await?;
        let value = counters.pointer(place).and_then(Value::as_u64);
        value.with_context(|| format!("the hcad counters contain no {place}: {counters}"))
    }
}

fn device_of(spec: &HcaSpec, socket: &Path, capture: &Path) -> Value {
    let peers: Vec<Value> =
        spec.peers.iter().map(|peer| json!({ "addr": peer.addr, "leaf": peer.leaf })).collect();
    let fabric = match &spec.fabric {
        Fabric::Udp => json!({ "udp": { "bind": spec.bind, "peers": peers } }),
        Fabric::Local => json!({ "local": {} }),
        Fabric::Ring(folder) => json!({ "ring": { "folder": folder } }),
        Fabric::Tap(interface) => json!({ "tap": { "interface": interface } }),
    };
    json!({
        "id": spec.id,
        "socket_path": socket,
        "frontend": { spec.interface.name(): spec.options },
        "default_peer": { "id": spec.default_peer, "prefer_ipv6": spec.prefer_ipv6 },
        "fabric": fabric,
        "strict": spec.strict,
        "doorbells": if spec.mapped { "mapped" } else { "trapped" },
        "capture": spec.capture.then_some(capture),
        "trace": spec.trace.then(|| json!({ "file": capture.with_extension("trace") })),
        "record": spec.record.then(|| capture.with_extension("record")),
    })
}

/// Ports nobody has now, and that were not given out before: what they were for may not have taken them yet, or may be
/// about to come back to them. Another program could take one before the daemon does, which then says so and ends.
///
/// # Errors
/// When there are none.
pub fn free_udp_ports<const N: usize>() -> Result<[SocketAddr; N]> {
    free_ports(N)?.try_into().map_err(|_| anyhow!("not {N} UDP ports"))
}

/// The same, as many as are wanted.
///
/// # Errors
/// When there are none.
pub fn free_ports(count: usize) -> Result<Vec<SocketAddr>> {
    static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut ports = Vec::with_capacity(count);
    // Held until all are found, so that the system names each port once.
    let mut held = Vec::new();
    while ports.len() < count {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).context("cannot bind to a free UDP port")?;
        let addr = socket.local_addr()?;
        held.push(socket);
        if given.insert(addr.port()) {
            ports.push(addr);
        }
    }
    Ok(ports)
}
