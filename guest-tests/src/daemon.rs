//! The daemon under test, started with a configuration for the run.

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

/// Text that the daemon logs when guests can be attached.
const READY: &str = " ready";
/// Text that the daemon logs when a guest has disconnected and its device has been reset.
const GONE: &str = "device reset";
const READY_TIMEOUT: Duration = Duration::from_secs(240);
const STOP_TIMEOUT: Duration = Duration::from_secs(240);
const CONTROL_TIMEOUT: Duration = Duration::from_secs(240);

/// A device interface that the daemon can present to a guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Interface {
    #[default]
    Jingzhao,
    /// The device interface for Linux's `ib_mthca` driver.
    Mthca,
    /// The device interface for Linux's `ice` driver.
    E810,
    /// The device interface for Linux's `mlx5_core` driver, with an Ethernet port.
    Connectx,
    /// The device interface for Linux's `mlx5_core` driver, with an InfiniBand port.
    ConnectxIb,
}

impl Interface {
    /// Returns the interface's key in a configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Jingzhao => "jingzhao",
            Self::Mthca => "mthca",
            Self::E810 => "e810",
            Self::Connectx | Self::ConnectxIb => "connectx",
        }
    }

    /// Returns `options` merged with the options that the interface implies.
    fn options(self, options: &Value) -> Value {
        let mut options = options.clone();
        if let (Self::ConnectxIb, Value::Object(all)) = (self, &mut options) {
            all.insert("port".to_owned(), json!("infiniband"));
        }
        options
    }
}

/// Settings for one HCA.
#[derive(Clone, Debug)]
pub struct HcaSpec {
    /// Name of the guest that uses the HCA.
    pub name: String,
    /// HCA number on the fabric. The HCA's addresses are derived from this number.
    pub id: u16,
    /// HCA number of the default peer, which receives packets without a destination.
    pub default_peer: u16,
    /// Whether packets to the default peer use IPv6. If software specifies the peer's IPv4 address, they use IPv4.
    pub prefer_ipv6: bool,
    /// UDP address at which the HCA receives frames.
    pub bind: SocketAddr,
    pub peers: Vec<Peer>,
    /// Fabric that transports the HCA's frames.
    pub fabric: Fabric,
    /// Device interface that the guest's driver uses.
    pub interface: Interface,
    /// Options of the device interface, as a configuration object.
    pub options: Value,
    /// Whether to write all frames to a capture file.
    pub capture: bool,
    /// Whether to write the actions of the driver and the device to a trace file.
    pub trace: bool,
    /// Whether to write all inputs and outputs to a recording.
    pub record: bool,
    /// Whether to enable strict mode. Only the violations in `explained` are permitted.
    pub strict: bool,
    /// Whether doorbells are mapped, so that the guest writes them without a VM exit.
    pub mapped: bool,
    /// Strict rules that may be violated.
    pub explained: &'static [Explained],
}

/// A strict rule that correct drivers or deliberately faulty programs may violate.
#[derive(Clone, Copy, Debug)]
pub struct Explained {
    /// Name of the rule in counters.
    pub rule: &'static str,
    /// What triggers the violation, and why the driver is not at fault.
    pub why: &'static str,
}

/// The fabric that connects HCAs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Fabric {
    /// UDP datagrams between the HCAs' sockets.
    #[default]
    Udp,
    /// The memory of a single process that serves all HCAs.
    Local,
    /// Shared memory between all processes that use the same directory.
    Ring(PathBuf),
    /// The tap interface with this name.
    Tap(String),
    /// UDP datagrams to the peers that a name server returns for this name, instead of those in [`HcaSpec::peers`].
    Named { name: String, server: SocketAddr },
}

impl Fabric {
    fn name_server(&self) -> Option<SocketAddr> {
        match self {
            Self::Named { server, .. } => Some(*server),
            Self::Udp | Self::Local | Self::Ring(_) | Self::Tap(_) => None,
        }
    }
}

/// A peer of an HCA on the fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// UDP address at which the peer receives frames.
    pub addr: SocketAddr,
    /// Whether the peer is a guest's NIC. Such a NIC is connected only to this HCA, which forwards its frames.
    pub leaf: bool,
    /// HCA number of the peer. If set, no other peer can use that HCA's MAC address.
    pub id: Option<u16>,
}

impl HcaSpec {
    /// Returns settings for two HCAs, `a` and `b`, that use free UDP ports on the loopback interface.
    ///
    /// # Errors
    /// Fails if no ports are free.
    pub fn pair() -> Result<[Self; 2]> {
        let [a, b] = free_udp_ports()?;
        let spec = |name: &str, id, default_peer, bind, peer| Self {
            name: name.into(),
            id,
            default_peer,
            prefer_ipv6: false,
            bind,
            peers: vec![Peer { addr: peer, leaf: false, id: None }],
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

    /// Returns settings for HCAs numbered from 1, each a peer of all others.
    ///
    /// # Errors
    /// Fails if no ports are free.
    pub fn mesh<const N: usize>() -> Result<[Self; N]> {
        Self::mesh_of(N)?.try_into().map_err(|_| anyhow!("expected {N} HCAs in the mesh"))
    }

    /// Returns settings for `count` HCAs numbered from 1, each a peer of all others.
    ///
    /// # Errors
    /// Fails if no ports are free.
    pub fn mesh_of(count: usize) -> Result<Vec<Self>> {
        let ports = free_ports(count)?;
        let [example, _] = Self::pair()?;
        let mut specs: Vec<Self> = ports.iter().map(|&bind| Self { bind, ..example.clone() }).collect();
        for (id, spec) in (1..).zip(&mut specs) {
            let others = ports.iter().filter(|addr| **addr != spec.bind);
            spec.peers = others.map(|&addr| Peer { addr, leaf: false, id: None }).collect();
            (spec.name, spec.id, spec.default_peer) = (id.to_string(), id, 1 + u16::from(id == 1));
        }
        Ok(specs)
    }
}

/// A running daemon. If it serves several HCAs, most methods refer to the first one.
#[derive(Debug)]
pub struct Daemon {
    process: Process,
    sockets: Vec<PathBuf>,
    control: Control,
    /// Numbers of the HCAs in strict mode, each with its permitted violations.
    strict: Vec<(u16, &'static [Explained])>,
    capture: PathBuf,
}

/// A handle that controls a daemon through `hcactl`. It can be used independently of the [`Daemon`].
#[derive(Clone, Debug)]
pub struct Control {
    socket: PathBuf,
    /// The device to select, or `None` for all devices.
    device: Option<u16>,
}

impl Daemon {
    /// Starts `hcad` for one HCA and waits until guests can be attached.
    ///
    /// # Errors
    /// Fails if the daemon does not become ready.
    pub async fn start(hcad: &Path, spec: &HcaSpec, run: &RunDir) -> Result<Self> {
        Self::start_by(Command::new(hcad), std::slice::from_ref(spec), run).await
    }

    /// Starts `hcad` for one or more HCAs by running the given command and waits until guests can be attached.
    ///
    /// # Errors
    /// Fails if the daemon does not become ready or if no HCA is given.
    pub async fn start_by(mut command: Command, specs: &[HcaSpec], run: &RunDir) -> Result<Self> {
        let first = specs.first().context("hcad requires at least one device")?;
        let path_of = |spec: &HcaSpec| run.socket(&format!("hcad-{}.sock", spec.name));
        let capture_of = |spec: &HcaSpec| run.file(format!("hcad-{}.pcapng", spec.name));
        let name = format!("hcad-{}", first.name);
        let control = Control { socket: run.socket(&format!("{name}.control")), device: Some(first.id) };
        let devices: Vec<Value> =
            specs.iter().map(|spec| device_of(spec, &path_of(spec), &capture_of(spec))).collect();
        let name_servers: BTreeSet<SocketAddr> =
            specs.iter().filter_map(|spec| spec.fabric.name_server()).collect();
        let text = json!({
            "log": { "filter": "info" },
            "control_socket": control.socket,
            "confinement": { "writable": [run.path()] },
            "dns": { "servers": name_servers },
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

    /// Runs `hcactl` with the given arguments. Returns its JSON output, or null if it prints nothing.
    ///
    /// # Errors
    /// Fails if the daemon rejects the command or has exited.
    pub async fn control(&self, arguments: &[&str]) -> Result<Value> {
        self.control.ask(arguments).await
    }

    /// Returns a separate control handle for the same HCA.
    pub fn controls(&self) -> Control {
        self.control.clone()
    }

    /// Returns a control handle for HCA number `device`.
    pub fn controls_of(&self, device: u16) -> Control {
        Control { device: Some(device), ..self.control.clone() }
    }

    /// Returns a control handle for all HCAs of the daemon.
    pub fn controls_of_all(&self) -> Control {
        Control { device: None, ..self.control.clone() }
    }

    /// Returns the path of the socket for the VMM.
    pub fn socket(&self) -> &Path {
        self.sockets.first().map_or(Path::new(""), PathBuf::as_path)
    }

    /// Returns the paths of the sockets for VMMs, in the same order as the HCAs.
    pub fn sockets(&self) -> &[PathBuf] {
        &self.sockets
    }

    /// Returns the path of the capture file.
    pub fn capture(&self) -> &Path {
        &self.capture
    }

    /// Returns the path of the trace file, which exists if tracing is enabled.
    pub fn trace(&self) -> PathBuf {
        self.capture.with_extension("trace")
    }

    /// Returns the path of the recording, which exists if recording is enabled.
    pub fn record(&self) -> PathBuf {
        self.capture.with_extension("record")
    }

    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Returns the number of times the driver has violated each strict rule. Rules that were not violated are omitted.
    ///
    /// # Errors
    /// Fails if the daemon does not respond.
    pub async fn violations(&self) -> Result<BTreeMap<String, u64>> {
        self.control.violations().await
    }

    /// Returns the counter at a path in the output of `hcactl counters`, such as `/engine/drops/wrong_qkey`.
    ///
    /// # Errors
    /// Fails if the counter does not exist or if the daemon does not respond.
    pub async fn counter(&self, place: &str) -> Result<u64> {
        self.control.counter(place).await
    }

    /// Waits until the daemon reports that its guest has disconnected.
    ///
    /// # Errors
    /// Fails if the log line does not appear in time.
    pub async fn wait_for_disconnect(&mut self) -> Result<()> {
        self.process.line(GONE, READY_TIMEOUT).await.map(drop)
    }

    /// Shuts the daemon down cleanly, with SIGTERM.
    ///
    /// # Errors
    /// Fails if the daemon does not exit or exits with an error, or if the driver of an HCA in strict mode has violated
    /// a rule.
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
            "the drivers violated these rules: {}; see {} for details",
            broken.join(", "),
            self.process.log().display()
        );
        Ok(())
    }
}

impl Control {
    /// Returns a control handle for all HCAs of the daemon with the given control socket.
    pub fn at(socket: &Path) -> Self {
        Self { socket: socket.to_owned(), device: None }
    }

    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Runs `hcactl` as [`Daemon::control`] does.
    ///
    /// # Errors
    /// Fails if `hcactl` reports an error or its output is not JSON.
    pub async fn ask(&self, arguments: &[&str]) -> Result<Value> {
        let mut command = Command::new(programs::hcactl()?);
        command.arg("--socket").arg(&self.socket);
        command.args(["--timeout", &CONTROL_TIMEOUT.as_secs().to_string()]);
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

    /// Returns the same counts as [`Daemon::violations`].
    ///
    /// # Errors
    /// Fails if `hcactl` reports an error or its output lacks these counters.
    pub async fn violations(&self) -> Result<BTreeMap<String, u64>> {
        let mut counters = self.ask(&["counters"]).await?;
        let rules = counters.pointer_mut("/interface/violations").map(Value::take);
        let rules =
            rules.with_context(|| format!("hcactl printed no strict-mode violation counts: {counters}"))?;
        serde_json::from_value(rules).context("cannot parse the strict-mode violation counts")
    }

    /// Returns whether a VMM is connected to the HCA. Returns `false` if the HCA has been removed from the daemon.
    ///
    /// # Errors
    /// Fails if `hcactl` reports an error or if its output has an unexpected form.
    pub async fn has_vmm(&self) -> Result<bool> {
        // With a device number, `hcactl` would report an error for a device that was removed.
        let all = Self { device: None, ..self.clone() };
        is_connected(&all.ask(&["devices"]).await?, self.device)
    }

    /// Returns the same counter as [`Daemon::counter`].
    ///
    /// # Errors
    /// Fails if `hcactl` reports an error or the counter does not exist.
    pub async fn counter(&self, place: &str) -> Result<u64> {
        let counters = self.ask(&["counters"]).await?;
        let value = counters.pointer(place).and_then(Value::as_u64);
        value.with_context(|| format!("hcactl printed no counter at {place}: {counters}"))
    }
}

/// Returns whether a VMM is connected to device `number`, or to any device if `number` is `None`, according to `hcactl
/// --json devices`.
fn is_connected(devices: &Value, number: Option<u16>) -> Result<bool> {
    let rows = devices.as_array().context("'hcactl devices' did not print a JSON array")?;
    let selected = |row: &&Value| number.is_none_or(|number| row["id"] == number);
    Ok(rows.iter().filter(selected).any(|row| row["connected"] == true))
}

fn device_of(spec: &HcaSpec, socket: &Path, capture: &Path) -> Value {
    let peer = |peer: &Peer| json!({ "addr": peer.addr, "leaf": peer.leaf, "id": peer.id });
    let peers: Vec<Value> = spec.peers.iter().map(peer).collect();
    let fabric = match &spec.fabric {
        Fabric::Udp => json!({ "udp": { "bind": spec.bind, "peers": peers } }),
        Fabric::Local => json!({ "local": {} }),
        Fabric::Ring(folder) => json!({ "ring": { "folder": folder } }),
        Fabric::Tap(interface) => json!({ "tap": { "interface": interface } }),
        Fabric::Named { name, .. } => json!({ "udp": { "bind": spec.bind, "peers": [{ "addr": name }] } }),
    };
    json!({
        "id": spec.id,
        "socket_path": socket,
        "frontend": { spec.interface.name(): spec.interface.options(&spec.options) },
        "default_peer": { "id": spec.default_peer, "prefer_ipv6": spec.prefer_ipv6 },
        "fabric": fabric,
        "strict": spec.strict,
        "doorbells": if spec.mapped { "mapped" } else { "trapped" },
        "capture": spec.capture.then_some(capture),
        "trace": spec.trace.then(|| json!({ "file": capture.with_extension("trace") })),
        "record": spec.record.then(|| capture.with_extension("record")),
    })
}

/// Returns free ports. Ports returned by earlier calls may not be bound yet, so they are not returned again. If another
/// program binds a returned port first, the daemon reports this and exits.
///
/// # Errors
/// Fails if no ports are free.
pub fn free_udp_ports<const N: usize>() -> Result<[SocketAddr; N]> {
    free_ports(N)?.try_into().map_err(|_| anyhow!("expected {N} UDP ports"))
}

/// Returns `count` free ports that have not been returned before.
///
/// # Errors
/// Fails if no ports are free.
pub fn free_ports(count: usize) -> Result<Vec<SocketAddr>> {
    static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut ports = Vec::with_capacity(count);
    // Keep all sockets open until the end, so that the system does not return a port twice.
    let mut held = Vec::new();
    while ports.len() < count {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).context("cannot find a free UDP port")?;
        let addr = socket.local_addr()?;
        held.push(socket);
        if given.insert(addr.port()) {
            ports.push(addr);
        }
    }
    Ok(ports)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removed_device_has_no_vmm() {
        let devices = json!([{ "id": 1, "connected": true }, { "id": 2, "connected": false }]);
        let connected = |number| is_connected(&devices, number).unwrap();
        assert!(connected(Some(1)) && connected(None));
        assert!(!connected(Some(2)) && !connected(Some(3)));
        is_connected(&json!({}), Some(1)).unwrap_err();
    }
}
