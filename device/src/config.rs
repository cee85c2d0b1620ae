//! The configuration file: JSON with unknown keys rejected, turned into values that need no more checking.

mod access;
mod confinement;
mod fabric;
mod files;
mod host;
mod memory;
mod metrics;
mod peer_addr;

use std::collections::HashMap;
use std::fmt;
use std::io::Read as _;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use protocol::ids::{Lid, MacAddr};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use thiserror::Error;
use tracing_subscriber::EnvFilter;

use self::access::AccessEntry;
pub use self::access::GroupEntry;
pub use self::confinement::ConfinementEntry;
pub use self::fabric::{FabricConfig, FabricEntry, LocalEntry, TapEntry, UdpEntry, UdpPeerEntry};
pub(crate) use self::files::Use;
pub use self::memory::GuestMemoryEntry;
pub use self::metrics::MetricsConfig;
pub use self::peer_addr::PeerAddr;
use crate::fabric::impair::{self, Rule, RuleEntry};
use crate::frontend::FrontendEntry;
use crate::identity::Identity;
use crate::management;
use crate::memory::Limits;
use crate::memory::limits::MAX_BYTES_OF_ALL;
use crate::telemetry::subscriber::LogConfig;
use crate::telemetry::trace::TraceFormat;
use crate::vfio::server::Access;

/// The whole file.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "hcad configuration")]
pub struct ConfigFile {
    /// What goes to standard error.
    #[serde(default)]
    pub log: LogConfig,
    /// The HCAs this process serves, one thread each.
    pub devices: Vec<DeviceEntry>,
    /// Unix socket that `hcactl` connects to, for the user of this process only. Without it there is none, unless
    /// `--control-socket` is given.
    pub control_socket: Option<PathBuf>,
    /// Where `GET /metrics` answers with figures for Prometheus: an address of this host with its port, such as
    /// "127.0.0.1:9474", for whoever reaches it, or the path of a Unix socket, for the user of this process only. Without
    /// it nowhere.
    pub metrics: Option<String>,
    /// Permissions of the devices' sockets, for those that have none of their own. In octal, "0600" by default, "0660"
    /// with a `socket_group`.
    pub socket_mode: Option<String>,
    /// Group of the devices' sockets, for those that have none of their own.
    pub socket_group: Option<GroupEntry>,
    /// What the process may still do once it serves.
    #[serde(default)]
    pub confinement: ConfinementEntry,
}

/// One HCA as the file describes it.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeviceEntry {
    /// Number of this HCA on its fabric, 1..=49150. It is the LID, and gives the MAC 02:00:00:00:hi:lo and the IPv4
    /// address 10.77.hi.lo unless they are set.
    pub id: u16,
    /// Unix socket that the VMM connects to. Without it, it is `hca<ID>.sock` in $RUNTIME_DIRECTORY, $XDG_RUNTIME_DIR/hcad or
    /// /run/hcad. `--socket-path` and `--fd` override it for a single device. A socket that systemd passes is used if it has
    /// this path, or if there is one device that has none.
    pub socket_path: Option<PathBuf>,
    /// Permissions of that socket, in octal.
    pub socket_mode: Option<String>,
    /// Group of that socket, by name or number: QEMU's, if that runs as another user.
    pub socket_group: Option<GroupEntry>,
    /// Device interface.
    pub frontend: FrontendEntry,
    /// Ethernet address.
    pub mac: Option<String>,
    /// IPv4 address.
    pub ipv4: Option<Ipv4Addr>,
    /// IPv6 address, beside the link-local one that follows from the MAC.
    pub ipv6: Option<Ipv6Addr>,
    /// Where packets go whose work request or context names no destination. The public JingZhao driver never names one
    /// for a connection, and gives every port the LID 4112 (1010h): a default peer with that id also gets datagrams.
    pub default_peer: Option<PeerEntry>,
    /// Others whose addresses do not follow from their number, so that software can name them by it.
    #[serde(default)]
    pub peers: Vec<PeerEntry>,
    /// How frames reach others.
    pub fabric: FabricEntry,
    /// Write every frame to this pcapng file. `--capture` overrides it for a single device.
    pub capture: Option<PathBuf>,
    /// Bound of a capture, bytes: it ends when its file is so long, and the HCA goes on without.
    #[serde(default = "default_capture_max_bytes")]
    pub capture_max_bytes: u64,
    /// Record register accesses, commands and queue entries. `--trace` overrides it for a single device.
    pub trace: Option<TraceConfig>,
    /// Bound of a trace, bytes: it ends when its file is so long, and the HCA goes on without.
    #[serde(default = "default_trace_max_bytes")]
    pub trace_max_bytes: u64,
    /// Report what the driver does against the interface though the device tolerates it: a log line each, limited, a
    /// record in the trace, and counters. Costs time.
    #[serde(default)]
    pub strict: bool,
    /// How long the thread of this HCA looks for more work before it sleeps, microseconds up to 1000, while data are moved
    /// in bulk and pauses are short. It keeps a processor busy meanwhile. 0: it sleeps at once.
    #[serde(default = "default_linger_us")]
    pub linger_us: u16,
    /// What the VMM may lend as guest memory.
    #[serde(default)]
    pub guest_memory: GuestMemoryEntry,
    /// What is done to frames between this HCA and its fabric, to see how guests and peers take it.
    #[serde(default)]
    pub impairments: Vec<RuleEntry>,
    /// Keep everything that reaches this HCA from its start on in this file, with what of guest memory it read, so that
    /// `hcad replay` can run the HCA again without a guest. It holds what guests send.
    pub record: Option<PathBuf>,
    /// Bound of a record, bytes: it ends when its file is so long, and the HCA goes on without.
    #[serde(default = "default_record_max_bytes")]
    pub record_max_bytes: u64,
}

/// Where the trace of a device goes, see [`crate::telemetry::trace`].
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TraceConfig {
    /// File to write, or "-" for standard error.
    pub file: PathBuf,
    /// Form of a record.
    #[serde(default)]
    pub format: TraceFormat,
}

/// An HCA or NIC on the fabric.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PeerEntry {
    /// Its number; gives the addresses that are not set.
    pub id: u16,
    /// Ethernet address.
    pub mac: Option<String>,
    /// IPv4 address.
    pub ipv4: Option<Ipv4Addr>,
    /// IPv6 address, beside the link-local one that follows from the MAC.
    pub ipv6: Option<Ipv6Addr>,
    /// Reach it over IPv6 when software names it by number or MAC.
    #[serde(default)]
    pub prefer_ipv6: bool,
}

/// A configuration that can be run.
#[derive(Clone, Debug)]
pub struct Config {
    /// Log settings.
    pub log: LogConfig,
    /// At least one.
    pub devices: Vec<DeviceConfig>,
    /// Socket for `hcactl`.
    pub control_socket: Option<PathBuf>,
    /// Where figures for Prometheus are served.
    pub metrics: Option<MetricsConfig>,
    /// What the process takes from itself.
    pub confinement: ConfinementEntry,
}

/// One HCA, checked.
#[derive(Clone, Debug)]
pub struct DeviceConfig {
    /// Own addresses.
    pub identity: Identity,
    /// Destination of last resort.
    pub default_peer: Option<Identity>,
    /// Others whose addresses do not follow from their LID.
    pub peers: Vec<Identity>,
    /// Socket for the VMM, if the file names one.
    pub socket_path: Option<PathBuf>,
    /// Who may connect to it.
    pub socket_access: Access,
    /// Device interface.
    pub frontend: FrontendEntry,
    /// How frames travel.
    pub fabric: FabricConfig,
    /// Capture file.
    pub capture: Option<PathBuf>,
    /// Bound of a capture file, also of one that begins at run time.
    pub capture_max_bytes: u64,
    /// Where its trace goes.
    pub trace: Option<TraceConfig>,
    /// Bound of a trace file, also of one that begins at run time.
    pub trace_max_bytes: u64,
    /// Report what the driver does against the interface.
    pub strict: bool,
    /// How long its thread looks for more work before it sleeps.
    pub linger: Duration,
    /// What its client may have mapped.
    pub memory: Limits,
    /// At most [`impair::MAX_RULES`].
    pub impairments: Vec<Rule>,
    /// Record file.
    pub record: Option<PathBuf>,
    /// Bound of the record file.
    pub record_max_bytes: u64,
    /// The entry as the file has it, without what names files and sockets of the host: the device that a record describes.
    pub entry: Map<String, Value>,
}

/// Bound of a capture unless the configuration says another: some seconds at full rate, and no full disk.
const fn default_capture_max_bytes() -> u64 {
    4 << 30
}

/// Bound of a record unless the configuration says another: some seconds at full rate, and no full disk.
const fn default_record_max_bytes() -> u64 {
    4 << 30
}

/// Bound of a trace unless the configuration says another: some ten million records.
const fn default_trace_max_bytes() -> u64 {
    1 << 30
}

/// Longest time a thread may look for work, microseconds.
const MAX_LINGER_US: u16 = 1000;

/// What is wrong with a configuration. One line each, naming the key.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {}", shown(path))]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is not JSON of the right shape, or what it says cannot be.
    #[error("{}: {problem}", shown(path))]
    File {
        /// The file.
        path: PathBuf,
        /// Which key, where and why.
        problem: String,
    },
    /// A value is out of its range or contradicts another.
    #[error("{key}: {problem}")]
    Value {
        /// Path of the key, such as `devices[0].mac`.
        key: String,
        /// What is wrong.
        problem: String,
    },
}

impl ConfigError {
    /// The same, with the name of the file.
    #[must_use]
    pub fn in_file(self, path: &Path) -> Self {
        match self {
            Self::Value { key, problem } => {
                Self::File { path: path.into(), problem: format!("{key}: {problem}") }
            }
            named => named,
        }
    }
}

/// Why the text of a configuration is none.
enum ReadError {
    /// It is not JSON of the right shape.
    Shape(String),
    Content(ConfigError),
}

impl From<ConfigError> for ReadError {
    fn from(error: ConfigError) -> Self {
        Self::Content(error)
    }
}

/// Keys of a device that say what is around it, and nothing of what it does.
const OF_THE_HOST: [&str; 11] = [
    "socket_path",
    "socket_mode",
    "socket_group",
    "capture",
    "capture_max_bytes",
    "trace",
    "trace_max_bytes",
    "record",
    "record_max_bytes",
    "linger_us",
    "guest_memory",
];

/// What stands for standard input where a configuration is named.
const STANDARD_INPUT: &str = "-";

/// How a configuration is called.
pub fn shown(path: &Path) -> impl fmt::Display {
    if path == Path::new(STANDARD_INPUT) { Path::new("standard input") } else { path }.display()
}

impl Config {
    /// Reads and checks a file, or standard input for `-`.
    ///
    /// # Errors
    /// The file cannot be read, or something in it is wrong.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let text = if path == Path::new(STANDARD_INPUT) {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).map(|_| text)
        } else {
            std::fs::read_to_string(path)
        };
        let text = text.map_err(|source| ConfigError::Read { path: path.into(), source })?;
        Self::from_text(&text, path)
    }

    /// Checks what a file says. `path` is what errors call it.
    ///
    /// # Errors
    /// Something in it is wrong.
    pub fn from_text(text: &str, path: &Path) -> Result<Self, ConfigError> {
        Self::read(text).map_err(|error| match error {
            ReadError::Shape(problem) => ConfigError::File { path: path.into(), problem },
            ReadError::Content(error) => error.in_file(path),
        })
    }

    /// Of one device, whose entry is [`DeviceConfig::entry`] of another configuration.
    ///
    /// # Errors
    /// Something in it is wrong.
    pub fn of_device(entry: Map<String, Value>) -> Result<Self, ConfigError> {
        Self::read(&json!({ "devices": [entry] }).to_string()).map_err(|error| match error {
            ReadError::Shape(problem) => value("devices", problem),
            ReadError::Content(error) => error,
        })
    }

    fn read(text: &str) -> Result<Self, ReadError> {
        let mut config =
            Self::parse(text).map_err(ReadError::Shape).and_then(|file| Ok(Self::try_from(file)?))?;
        let mut whole: Value =
            serde_json::from_str(text).map_err(|error| ReadError::Shape(error.to_string()))?;
        let entries = whole.get_mut("devices").and_then(Value::as_array_mut).into_iter().flatten();
        for (device, entry) in config.devices.iter_mut().zip(entries) {
            let Some(entry) = entry.as_object_mut() else { continue };
            OF_THE_HOST.iter().for_each(|key| drop(entry.remove(*key)));
            // Names of hosts mean what they meant here and now.
            if let FabricConfig::Udp { peers, .. } = &device.fabric {
                let entries = entry.get_mut("fabric").and_then(|fabric| fabric.pointer_mut("/udp/peers"));
                let entries = entries.and_then(Value::as_array_mut).into_iter().flatten();
                for (addr, peer) in entries.filter_map(|entry| entry.get_mut("addr")).zip(peers) {
                    *addr = json!(peer.addr);
                }
            }
            device.entry = std::mem::take(entry);
        }
        Ok(config)
    }

    /// The shape of the file.
    fn parse(text: &str) -> Result<ConfigFile, String> {
        let mut json = serde_json::Deserializer::from_str(text);
        let file = serde_path_to_error::deserialize(&mut json).map_err(|error| error.to_string())?;
        json.end().map_err(|error| error.to_string())?;
        Ok(file)
    }
}

impl TryFrom<ConfigFile> for Config {
    type Error = ConfigError;

    fn try_from(file: ConfigFile) -> Result<Self, ConfigError> {
        if file.devices.is_empty() {
            return Err(value("devices", "at least one device is needed"));
        }
        let all = AccessEntry { mode: file.socket_mode.as_deref(), group: file.socket_group.as_ref() };
        all.check("")?;
        let count = file.devices.len();
        let mut memory_left = MAX_BYTES_OF_ALL;
        let devices = file
            .devices
            .into_iter()
            .enumerate()
            .map(|(index, entry)| {
                let key = format!("devices[{index}]");
                let memory =
                    entry.guest_memory.check(count, &mut memory_left, &format!("{key}.guest_memory"))?;
                DeviceConfig::from_entry(entry, memory, all, &key)
            })
            .collect::<Result<Vec<_>, _>>()?;
        let mut numbers = HashMap::new();
        let mut macs = HashMap::new();
        let mut binds: HashMap<SocketAddr, usize> = HashMap::new();
        for (index, device) in devices.iter().enumerate() {
            let key = |name| format!("devices[{index}].{name}");
            let Identity { lid, mac, .. } = device.identity;
            if let Some(other) = numbers.insert(lid, index) {
                return Err(value(
                    &key("id"),
                    format!("{} is the number of devices[{other}] already", lid.get()),
                ));
            }
            if let Some(other) = macs.insert(mac, index) {
                return Err(value(&key("mac"), format!("{mac} is the MAC of devices[{other}] already")));
            }
            if let FabricConfig::Udp { bind, .. } = device.fabric
                && bind.port() != 0
                && let Some(other) = binds.insert(bind, index)
            {
                let problem = format!("devices[{other}] receives on {bind} already");
                return Err(value(&key("fabric.udp.bind"), problem));
            }
        }
        EnvFilter::try_new(&file.log.filter)
            .map_err(|error| value("log.filter", format!("{:?}: {error}", file.log.filter)))?;
        let config = Self {
            log: file.log,
            devices,
            control_socket: file.control_socket,
            metrics: file.metrics.map(|text| MetricsConfig::check(&text, "metrics")).transpose()?,
            confinement: file.confinement,
        };
        config.check_paths()?;
        Ok(config)
    }
}

impl DeviceConfig {
    fn from_entry(
        entry: DeviceEntry,
        memory: Limits,
        sockets: AccessEntry<'_>,
        key: &str,
    ) -> Result<Self, ConfigError> {
        let own = PeerEntry {
            id: entry.id,
            mac: entry.mac,
            ipv4: entry.ipv4,
            ipv6: entry.ipv6,
            prefer_ipv6: false,
        };
        let identity = identity(&own, key)?;
        let socket = AccessEntry { mode: entry.socket_mode.as_deref(), group: entry.socket_group.as_ref() };
        let default_peer = entry
            .default_peer
            .map(|peer| self::identity(&peer, &format!("{key}.default_peer")))
            .transpose()?;
        let peers = entry
            .peers
            .iter()
            .enumerate()
            .map(|(index, peer)| self::identity(peer, &format!("{key}.peers[{index}]")))
            .collect::<Result<Vec<_>, _>>()?;
        let mut macs = HashMap::from([(identity.mac, format!("{key}.mac"))]);
        for (index, peer) in peers.iter().enumerate() {
            let peer_key = format!("{key}.peers[{index}].mac");
            if let Some(other) = macs.insert(peer.mac, peer_key.clone()) {
                return Err(value(&peer_key, format!("{} is {other} already", peer.mac)));
            }
        }
        let fabric = FabricConfig::check(entry.fabric, identity.mac, &format!("{key}.fabric"))?;
        if entry.impairments.len() > impair::MAX_RULES {
            return Err(value(&format!("{key}.impairments"), impair::TooManyRules.to_string()));
        }
        let rule = |(index, rule): (usize, RuleEntry)| {
            Rule::try_from(rule)
                .map_err(|error| value(&format!("{key}.impairments[{index}].{}", error.key), error.problem))
        };
        Ok(Self {
            identity,
            default_peer,
            peers,
            socket_path: entry.socket_path,
            socket_access: socket.or(sockets).check(&format!("{key}."))?,
            frontend: entry.frontend,
            fabric,
            capture: entry.capture,
            capture_max_bytes: entry.capture_max_bytes,
            trace: entry.trace,
            trace_max_bytes: entry.trace_max_bytes,
            strict: entry.strict,
            linger: linger(entry.linger_us, &format!("{key}.linger_us"))?,
            memory,
            impairments: entry.impairments.into_iter().enumerate().map(rule).collect::<Result<_, _>>()?,
            record: entry.record,
            record_max_bytes: entry.record_max_bytes,
            entry: Map::new(),
        })
    }
}

fn identity(entry: &PeerEntry, key: &str) -> Result<Identity, ConfigError> {
    let derived = Identity::from_lid(lid(entry.id, &format!("{key}.id"))?);
    let mac = entry.mac.as_deref().map(|text| unicast_mac(text, &format!("{key}.mac"))).transpose()?;
    if let Some(ip) = entry
        .ipv4
        .filter(|ip| ip.is_multicast() || ip.is_unspecified() || ip.is_broadcast() || ip.is_loopback())
    {
        return Err(value(&format!("{key}.ipv4"), format!("{ip} is not an address a port can have")));
    }
    if let Some(ip) = entry.ipv6.filter(|ip| ip.is_multicast() || ip.is_unspecified() || ip.is_loopback()) {
        return Err(value(&format!("{key}.ipv6"), format!("{ip} is not an address a port can have")));
    }
    Ok(Identity {
        mac: mac.unwrap_or(derived.mac),
        ipv4: entry.ipv4.unwrap_or(derived.ipv4),
        ipv6: entry.ipv6,
        lid: derived.lid,
        prefer_ipv6: entry.prefer_ipv6,
    })
}

/// The LID of a number.
fn lid(id: u16, key: &str) -> Result<Lid, ConfigError> {
    // Unicast LIDs of IBTA volume 1, section 4.1.3, but for the last, which is of the subnet manager.
    if !(1..management::SM_LID.get()).contains(&id) {
        return Err(value(key, format!("{id} is not in 1..=49150")));
    }
    Ok(Lid::new(id))
}

fn unicast_mac(text: &str, key: &str) -> Result<MacAddr, ConfigError> {
    let mac: MacAddr = text.parse().map_err(|error| value(key, format!("{text:?} is {error}")))?;
    if mac.is_multicast() || mac == MacAddr::default() {
        return Err(value(key, format!("{mac} is not a unicast address")));
    }
    Ok(mac)
}

/// Longer than most pauses in the middle of a message, shorter than waking up takes on a busy host.
const fn default_linger_us() -> u16 {
    50
}

fn linger(micros: u16, key: &str) -> Result<Duration, ConfigError> {
    if micros > MAX_LINGER_US {
        return Err(value(key, format!("{micros} is not in 0..={MAX_LINGER_US}")));
    }
    Ok(Duration::from_micros(micros.into()))
}

fn value(key: &str, problem: impl Into<String>) -> ConfigError {
    ConfigError::Value { key: key.into(), problem: problem.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

    pub(super) fn check(devices: &str) -> Result<Config, String> {
        let text = format!(r#"{{"devices": [{devices}]}}"#);
        let file = Config::parse(&text)?;
        Config::try_from(file).map_err(|error| error.to_string())
    }

    pub(super) fn device(extra: &str) -> String {
        format!(
            r#"{{"id": 258, "frontend": {{"jingzhao": {{}}}},
                "fabric": {{"udp": {{"bind": "127.0.0.1:7000", "peers": []}}}} {extra}}}"#
        )
    }

    #[test]
    fn addresses_follow_from_the_id() {
        let config = check(&device(r#", "default_peer": {"id": 3, "ipv4": "192.0.2.1"}"#)).unwrap();
        let device = &config.devices[0];
        assert_eq!(device.identity.mac.to_string(), "02:00:00:00:01:02");
        assert_eq!(device.identity.ipv4, Ipv4Addr::new(10, 77, 1, 2));
        let peer = device.default_peer.unwrap();
        assert_eq!((peer.lid, peer.ipv4), (Lid::new(3), Ipv4Addr::new(192, 0, 2, 1)));
    }

    #[test]
    fn errors_name_the_key() {
        for (devices, message) in [
            (String::new(), "devices: at least one device is needed"),
            (device(r#", "mac": "2:0""#), "devices[0].mac: \"2:0\" is not a MAC address"),
            (device(r#", "mac": "01:00:00:00:00:01""#), "devices[0].mac: 01:00:00:00:00:01 is not a unicast"),
            (device(r#", "default_peer": {"id": 0}"#), "devices[0].default_peer.id: 0 is not in 1..=49150"),
            (
                format!("{},{}", device(""), device("")),
                "devices[1].id: 258 is the number of devices[0] already",
            ),
            (
                format!("{},{}", device(""), device(r#", "mac": "02:00:00:00:01:02""#).replace("258", "259")),
                "devices[1].mac: 02:00:00:00:01:02 is the MAC of devices[0] already",
            ),
            (
                format!("{},{}", device(""), device("").replace("258", "259")),
                "devices[1].fabric.udp.bind: devices[0] receives on 127.0.0.1:7000 already",
            ),
            (
                device(r#", "peers": [{"id": 1}, {"id": 2, "mac": "02:00:00:00:00:01"}]"#),
                "devices[0].peers[1].mac: 02:00:00:00:00:01 is devices[0].peers[0].mac already",
            ),
            (device(r#", "peers": [{"id": 258}]"#), "02:00:00:00:01:02 is devices[0].mac already"),
            (device(r#", "socket_mode": "rw""#), "devices[0].socket_mode: \"rw\" is no permissions"),
            (device(r#", "sockt_path": "x""#), "devices[0].sockt_path: unknown field `sockt_path`"),
            (device(r#", "ipv4": "10.0.0""#), "devices[0].ipv4: invalid IPv4 address syntax"),
            (
                device(r#", "ipv4": "224.0.0.1""#),
                "devices[0].ipv4: 224.0.0.1 is not an address a port can have",
            ),
            (device(r#", "ipv4": "0.0.0.0""#), "devices[0].ipv4: 0.0.0.0 is not an address a port can have"),
            (device(r#", "ipv4": "255.255.255.255""#), "devices[0].ipv4: 255.255.255.255 is not an address"),
            (device(r#", "ipv4": "127.1.2.3""#), "devices[0].ipv4: 127.1.2.3 is not an address a port can"),
            (
                device(r#", "default_peer": {"id": 3, "ipv4": "127.0.0.1"}"#),
                "devices[0].default_peer.ipv4: 127.0.0.1 is not an address a port can have",
            ),
            (device(r#", "ipv6": "ff02::1""#), "devices[0].ipv6: ff02::1 is not an address a port can have"),
            (
                device(r#", "impairments": [{"direction": "tx", "action": "drop", "nth": 0}]"#),
                "devices[0].impairments[0].nth: is counted from 1",
            ),
            (
                device(r#", "impairments": [{"direction": "tx", "action": "drop", "probability": 1.5}]"#),
                "devices[0].impairments[0].probability: ",
            ),
            (
                device("").replace(r#""jingzhao": {}"#, r#""jingzhao": {"limits": {"max_qps": 1000}}"#),
                "devices[0].frontend.jingzhao.limits.max_qps: 1000 is not a power of two from 2 to 131072",
            ),
            (
                device("").replace(r#""jingzhao": {}"#, r#""jingzhao": {"limits": {"max_send_sges": 40}}"#),
                "devices[0].frontend.jingzhao.limits: max_send_sges: 40 do not fit into a WQE of 512 bytes",
            ),
        ] {
            let error = check(&devices).unwrap_err();
            assert!(error.contains(message), "{error:?} should contain {message:?}");
        }
    }

    #[test]
    fn devices_share_what_may_be_mapped() {
        const GIB: u64 = 1 << 30;
        let one = |id: u32, extra: &str| {
            device(extra).replace("258", &id.to_string()).replace("7000", &(7000 + id).to_string())
        };
        let bytes = |devices: &[String]| -> Result<Vec<u64>, String> {
            Ok(check(&devices.join(","))?.devices.iter().map(|device| device.memory.bytes / GIB).collect())
        };
        assert_eq!(bytes(&[device("")]), Ok(vec![1024]));
        assert_eq!(bytes(&[device(r#", "guest_memory": {"max_gib": 65536}"#)]), Ok(vec![65536]));
        let many: Vec<_> = (1..=128).map(|id| one(id, "")).collect();
        assert_eq!(bytes(&many), Ok(vec![512; 128]));
        let large = r#", "guest_memory": {"max_gib": 40000, "files": "any"}"#;
        let error = bytes(&[one(1, large), one(2, large)]).unwrap_err();
        assert!(
            error.contains(
                "devices[1].guest_memory.max_gib: 40000 GiB where the devices before it leave 25536"
            )
        );
        let config = check(&device(large)).unwrap();
        assert_eq!(config.devices[0].memory.file_systems, crate::memory::FileSystems::Any);
    }

    #[test]
    fn a_udp_peer_has_the_mac_of_its_number_or_its_own() {
        let peer = |extra: &str| {
            let peer = format!(r#""peers": [{{"addr": "127.0.0.1:7001" {extra}}}]"#);
            check(&device("").replace(r#""peers": []"#, &peer)).map(|config| {
                match &config.devices[0].fabric {
                    FabricConfig::Udp { peers, .. } => peers[0].mac.map(|mac| mac.to_string()),
                    other => panic!("{other:?}"),
                }
            })
        };
        assert_eq!(peer(""), Ok(None));
        assert_eq!(peer(r#", "id": 259"#), Ok(Some("02:00:00:00:01:03".to_owned())));
        assert_eq!(peer(r#", "mac": "52:54:00:00:00:09""#), Ok(Some("52:54:00:00:00:09".to_owned())));
        for (extra, problem) in [
            (r#", "id": 0"#, "devices[0].fabric.udp.peers[0].id: 0 is not in 1..=49150"),
            (
                r#", "id": 3, "mac": "52:54:00:00:00:09""#,
                "devices[0].fabric.udp.peers[0].mac: id has given a MAC",
            ),
        ] {
            let error = peer(extra).unwrap_err();
            assert!(error.contains(problem), "{error}");
        }
    }

    #[test]
    fn a_tap_has_a_name_an_interface_can_have() {
        let tap = |name: &str| {
            let device = format!(
                r#"{{"id": 1, "frontend": {{"jingzhao": {{}}}}, "fabric": {{"tap": {{"interface": "{name}"}}}}}}"#
            );
            check(&device).map(drop)
        };
        assert_eq!(tap("hca-tap.0"), Ok(()));
        for name in ["", "sixteen-letters-", "a b", "a/b", "..", "tap%d", "a:1", "\u{e4}"] {
            let error = tap(name).unwrap_err();
            assert!(error.starts_with("devices[0].fabric.tap.interface: "), "{error}");
        }
    }

    #[test]
    fn a_peer_is_somebody_else_and_one() {
        let peers = |bind: &str, peers: &str| {
            let entry = device("").replace(
                r#""bind": "127.0.0.1:7000", "peers": []"#,
                &format!(r#""bind": "{bind}", "peers": [{peers}]"#),
            );
            check(&entry).map(drop)
        };
        let ours = r#"{"addr": "127.0.0.1:7000"}"#;
        let others = r#"{"addr": "127.0.0.1:7001"}, {"addr": "127.0.0.1:7002"}"#;
        assert_eq!(peers("127.0.0.1:7000", others), Ok(()));
        assert_eq!(peers("127.0.0.1:7003", ours), Ok(()));
        let key = "devices[0].fabric.udp.peers";
        let mac = r#""mac": "52:54:00:00:00:07""#;
        for (bind, list, message) in [
            ("127.0.0.1:7000", ours.to_owned(), "[0].addr: 127.0.0.1:7000 is where this HCA receives"),
            ("0.0.0.0:7000", ours.to_owned(), "[0].addr: 127.0.0.1:7000 is where this HCA receives"),
            ("127.0.0.1:7003", format!("{ours}, {ours}"), "[1].addr: 127.0.0.1:7000 is a peer already"),
            (
                "127.0.0.1:7000",
                format!(r#"{{"addr": "127.0.0.1:1", {mac}}}, {{"addr": "127.0.0.1:2", {mac}}}"#),
                "[1].mac: 52:54:00:00:00:07 is the MAC of peers[0] already",
            ),
            (
                "127.0.0.1:7000",
                r#"{"addr": "127.0.0.1:1", "mac": "02:00:00:00:01:02"}"#.to_owned(),
                "[0].mac: 02:00:00:00:01:02 is this HCA's own",
            ),
            (
                "127.0.0.1:7000",
                r#"{"addr": "239.1.1.1:1"}"#.to_owned(),
                "[0].addr: 239.1.1.1 is not one host",
            ),
            ("127.0.0.1:7000", r#"{"addr": "0.0.0.0:1"}"#.to_owned(), "[0].addr: 0.0.0.0 is not one host"),
        ] {
            let error = peers(bind, &list).unwrap_err();
            assert!(error.starts_with(&format!("{key}{message}")), "{error:?} should say {message:?}");
        }
    }

    #[test]
    fn every_error_names_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hcad.json");
        for text in ["{", r#"{"devices": []}"#] {
            std::fs::write(&path, text).unwrap();
            let error = Config::load(&path).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{}: ", path.display())), "{error}");
        }
    }

    #[test]
    fn shipped_configurations_are_valid() {
        for name in [
            "e810.json",
            "hgrnic.json",
            "jingzhao.json",
            "local.json",
            "lossy.json",
            "mthca.json",
            "pair.json",
        ] {
            Config::load(&Path::new(REPOSITORY).join("configs").join(name)).unwrap();
        }
    }

    /// Run with HCAD_UPDATE_SCHEMA=1 to write the file anew.
    #[test]
    fn a_record_has_the_address_that_a_name_had() {
        let udp = r#"{"udp": {"bind": "127.0.0.1:7000", "peers": [{"addr": "localhost:9"}]}}"#;
        let text =
            format!(r#"{{"devices": [{{"id": 1, "frontend": {{"jingzhao": {{}}}}, "fabric": {udp}}}]}}"#);
        let config = Config::from_text(&text, Path::new("x")).unwrap();
        assert_eq!(config.devices[0].entry["fabric"]["udp"]["peers"][0]["addr"], "127.0.0.1:9");
    }

    #[test]
    fn schema_file_is_current() {
        let path = Path::new(REPOSITORY).join("configs/config.schema.json");
        let mut schema = serde_json::to_string_pretty(&schemars::schema_for!(ConfigFile)).unwrap();
        schema.push('\n');
        if std::env::var_os("HCAD_UPDATE_SCHEMA").is_some() {
            std::fs::write(&path, &schema).unwrap();
        }
        let stored = std::fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(stored, schema, "HCAD_UPDATE_SCHEMA=1 cargo test -p device schema_file_is_current");
    }
}
