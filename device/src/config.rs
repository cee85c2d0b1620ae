//! Parses the configuration file (JSON). Unknown keys are rejected, and parsed values do not need further checks.

mod access;
mod choice;
mod confinement;
mod device;
mod dns;
mod fabric;
mod files;
mod host;
mod json_error;
mod memory;
mod metrics;
mod named_peer;

use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use card::identity::Identity;
use card::memory::limits::MAX_BYTES_OF_ALL;
use card::telemetry::subscriber::LogConfig;
use control_api::text_file;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use thiserror::Error;
use tracing_subscriber::EnvFilter;

pub use self::access::{GroupEntry, SocketsEntry};
pub(crate) use self::choice::keys_of;
pub use self::confinement::ConfinementEntry;
pub(crate) use self::device::MAX_QPN;
pub use self::device::{
    ADDED, CaptureConfig, DeviceConfig, DeviceEntry, Doorbells, PeerEntry, TraceConfig, TraceEntry,
};
pub use self::dns::DnsEntry;
use self::fabric::binds_overlap;
pub(crate) use self::fabric::is_unicast;
pub use self::fabric::{FabricConfig, FabricEntry, LocalEntry, RingEntry, TapEntry, UdpEntry, check_peer};
pub(crate) use self::files::{Use, check_paths, configuration_file};
use self::json_error::in_terms_of_json;
pub use self::memory::GuestMemoryEntry;
pub use self::metrics::MetricsConfig;
pub use self::named_peer::{NamedPeer, PeerName};

/// The hcad configuration file.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "hcad configuration")]
pub struct ConfigFile {
    /// Log settings. hcad writes its log to standard error.
    #[serde(default)]
    pub log: LogConfig,
    /// Devices to serve (at least one). Each device runs in its own thread.
    pub devices: Vec<DeviceEntry>,
    /// Path to the Unix socket that `hcactl` connects to. Only the user that runs hcad can use this socket.
    /// Default: no control socket, unless `--control-socket` is given.
    pub control_socket: Option<PathBuf>,
    /// Listen address for Prometheus metrics (`GET /metrics`): ADDRESS:PORT, such as "127.0.0.1:9474", or the
    /// path to a Unix socket. If this is a network address, anyone who can reach the address can read the
    /// metrics. If this is a Unix socket, only the user that runs hcad can read them. Default: metrics are
    /// not served.
    pub metrics: Option<String>,
    /// Permissions of the devices' VMM sockets, in octal. A device can override them with its own
    /// `socket_mode`. Default: "0660" for sockets with a `socket_group`, and "0600" for all others.
    pub socket_mode: Option<String>,
    /// Group that owns the devices' VMM sockets, by name or number. A device can override this with its own
    /// `socket_group`. Default: the group of the hcad process.
    pub socket_group: Option<GroupEntry>,
    /// DNS settings.
    #[serde(default)]
    pub dns: DnsEntry,
    /// Sandbox settings: restrictions that hcad applies to itself.
    #[serde(default)]
    pub confinement: ConfinementEntry,
}

#[derive(Clone, Debug)]
pub struct Config {
    pub log: LogConfig,
    /// Devices to serve, at least one.
    pub devices: Vec<DeviceConfig>,
    pub control_socket: Option<PathBuf>,
    pub metrics: Option<MetricsConfig>,
    pub dns: DnsEntry,
    pub confinement: ConfinementEntry,
    /// Default socket permissions for devices that do not set their own.
    pub sockets: SocketsEntry,
    /// Process-wide settings in the file, by key. A reload cannot change them; a restart is required.
    pub process_settings: Vec<(&'static str, Value)>,
}

/// Keys of the settings that cannot change while the process runs.
const PROCESS_KEYS: [&str; 5] = ["log", "control_socket", "metrics", "dns", "confinement"];

/// A configuration error, described by a one-line message that names the key.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {}", shown(path))]
    Read { path: PathBuf, source: std::io::Error },
    /// The file is not valid JSON, has the wrong structure, or contains an invalid value.
    #[error("{}: {problem}", shown(path))]
    File {
        path: PathBuf,
        /// Description of the problem, including the key.
        problem: String,
    },
    /// The text is not valid JSON or has the wrong structure.
    #[error("{problem}")]
    Text {
        /// Description of the problem, including the key.
        problem: String,
    },
    /// A value is out of range or conflicts with another value.
    #[error("{key}: {problem}")]
    Value {
        /// Path of the key, such as `devices[0].mac`.
        key: String,
        problem: String,
    },
}

impl ConfigError {
    /// Adds the name of the file to the error.
    #[must_use]
    pub fn in_file(self, path: &Path) -> Self {
        match self {
            Self::Value { key, problem } => {
                Self::File { path: path.into(), problem: format!("{key}: {problem}") }
            }
            Self::Text { problem } => Self::File { path: path.into(), problem },
            named => named,
        }
    }
}

/// Why a configuration cannot be parsed.
enum ReadError {
    /// The text is not valid JSON or has the wrong structure.
    Shape(String),
    Content(ConfigError),
}

impl From<ConfigError> for ReadError {
    fn from(error: ConfigError) -> Self {
        Self::Content(error)
    }
}

/// Name of standard input on the command line.
const STANDARD_INPUT: &str = "-";

/// Returns the name of a configuration file for use in messages.
pub fn shown(path: &Path) -> impl fmt::Display {
    if path == Path::new(STANDARD_INPUT) { Path::new("standard input") } else { path }.display()
}

impl Config {
    /// Reads and checks a file, or standard input if `path` is `-`.
    ///
    /// # Errors
    /// Fails if the file cannot be read or is invalid.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let text = if path == Path::new(STANDARD_INPUT) {
            text_file::read_standard_input()
        } else {
            text_file::read(path)
        };
        let text = text.map_err(|source| ConfigError::Read { path: path.into(), source })?;
        Self::from_text(&text, path)
    }

    /// Parses and checks the text of a file. Errors refer to the file as `path`.
    ///
    /// # Errors
    /// Fails if the text is invalid.
    pub fn from_text(text: &str, path: &Path) -> Result<Self, ConfigError> {
        Self::from_unnamed_text(text).map_err(|error| error.in_file(path))
    }

    /// Like [`Config::from_text`], but errors do not name a file.
    ///
    /// # Errors
    /// Fails if the text is invalid.
    pub fn from_unnamed_text(text: &str) -> Result<Self, ConfigError> {
        Self::read(text).map_err(|error| match error {
            ReadError::Shape(problem) => ConfigError::Text { problem },
            ReadError::Content(error) => error,
        })
    }

    /// Returns a configuration with a single device, given its [`DeviceConfig::entry`].
    ///
    /// # Errors
    /// Fails if the entry is invalid.
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
        let said = |key: &'static str| (key, whole.get(key).cloned().unwrap_or_default());
        config.process_settings = PROCESS_KEYS.map(said).into();
        let entries = whole.get_mut("devices").and_then(Value::as_array_mut).into_iter().flatten();
        for (device, entry) in config.devices.iter_mut().zip(entries) {
            if let Some(entry) = entry.as_object_mut() {
                device.keep(std::mem::take(entry));
            }
        }
        Ok(config)
    }

    fn parse(text: &str) -> Result<ConfigFile, String> {
        let mut json = serde_json::Deserializer::from_str(text);
        let file = serde_path_to_error::deserialize(&mut json)
            .map_err(|error| in_terms_of_json(&error.to_string()))?;
        json.end().map_err(|error| error.to_string())?;
        Ok(file)
    }
}

impl TryFrom<ConfigFile> for Config {
    type Error = ConfigError;

    fn try_from(file: ConfigFile) -> Result<Self, ConfigError> {
        if file.devices.is_empty() {
            return Err(value("devices", "at least one device is required"));
        }
        let sockets = SocketsEntry { mode: file.socket_mode, group: file.socket_group };
        let all = sockets.entry();
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
        let named: Vec<_> =
            devices.iter().enumerate().map(|(index, device)| (format!("devices[{index}]"), device)).collect();
        check_together(&named)?;
        EnvFilter::try_new(&file.log.filter)
            .map_err(|error| value("log.filter", format!("{:?}: {error}", file.log.filter)))?;
        file.dns.check()?;
        let config = Self {
            log: file.log,
            devices,
            control_socket: file.control_socket,
            metrics: file.metrics.map(|text| MetricsConfig::check(&text, "metrics")).transpose()?,
            dns: file.dns,
            confinement: file.confinement,
            sockets,
            process_settings: Vec::new(),
        };
        config.check_paths()?;
        Ok(config)
    }
}

/// Checks that devices can run together in one process. Each device is paired with its name for error messages.
///
/// # Errors
/// [`ConfigError::Value`] if two devices conflict or if the sum of their guest memory limits is too high.
pub fn check_together(devices: &[(String, &DeviceConfig)]) -> Result<(), ConfigError> {
    let mut numbers = HashMap::new();
    let mut macs = HashMap::new();
    // The UDP addresses in use, indexed by port.
    let mut binds: HashMap<u16, Vec<(SocketAddr, &str)>> = HashMap::new();
    for (name, device) in devices {
        let key = |part| format!("{name}.{part}");
        let Identity { lid, mac, .. } = device.identity;
        if let Some(other) = numbers.insert(lid, name) {
            return Err(value(&key("id"), format!("{} is already used by {other}", lid.get())));
        }
        if let Some(other) = macs.insert(mac, name) {
            return Err(value(&key("mac"), format!("{mac} is already used by {other}")));
        }
        if let FabricConfig::Udp { bind, .. } = device.fabric
            && bind.port() != 0
        {
            let used = binds.entry(bind.port()).or_default();
            // Whether an IPv6 socket also uses the port's IPv4 addresses depends on net.ipv6.bindv6only.
            let overlaps = |addr: SocketAddr| addr.is_ipv4() == bind.is_ipv4() && binds_overlap(addr, bind);
            if let Some((addr, other)) = used.iter().find(|(addr, _)| overlaps(*addr)) {
                return Err(value(&key("fabric.udp.bind"), format!("{addr} is already used by {other}")));
            }
            used.push((bind, name.as_str()));
        }
    }
    let bytes = devices.iter().try_fold(0_u64, |sum, (_, device)| sum.checked_add(device.memory.bytes));
    match bytes {
        Some(bytes) if bytes <= MAX_BYTES_OF_ALL => Ok(()),
        _ => Err(value(
            "guest_memory",
            format!(
                "the sum of max_gib over all devices exceeds the maximum of {} GiB",
                MAX_BYTES_OF_ALL >> 30
            ),
        )),
    }
}

fn value(key: &str, problem: impl Into<String>) -> ConfigError {
    ConfigError::Value { key: key.into(), problem: problem.into() }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use protocol::ids::Lid;

    use super::*;
    use crate::interfaces;

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
    fn addresses_are_derived_from_device_id() {
        let config = check(&device(r#", "default_peer": {"id": 3, "ipv4": "192.0.2.1"}"#)).unwrap();
        let device = &config.devices[0];
        assert_eq!(device.identity.mac.to_string(), "02:00:00:00:01:02");
        assert_eq!(device.identity.ipv4, Ipv4Addr::new(10, 77, 1, 2));
        let peer = device.default_peer.unwrap();
        assert_eq!((peer.lid, peer.ipv4), (Lid::new(3), Ipv4Addr::new(192, 0, 2, 1)));
    }

    #[test]
    fn errors_mention_configuration_key() {
        for (devices, message) in [
            (String::new(), "devices: at least one device is required"),
            (device(r#", "mac": "2:0""#), "devices[0].mac: \"2:0\": expected a MAC address"),
            (device(r#", "mac": "01:00:00:00:00:01""#), "devices[0].mac: 01:00:00:00:00:01 is not a unicast"),
            (
                device(r#", "default_peer": {"id": 0}"#),
                "devices[0].default_peer.id: 0 is not between 1 and 49150",
            ),
            (
                device(r#", "capture": "c", "capture_filter": {"qpns": [16777215, 16777216]}"#),
                "devices[0].capture_filter.qpns[1]: 16777216 does not fit in 24 bits",
            ),
            (
                device(r#", "capture": "c", "capture_filter": {"opcodes": ["SEND", "nak"]}"#),
                "devices[0].capture_filter.opcodes[1]: no opcode name contains \"nak\"",
            ),
            (
                device(r#", "trace": {"file": "t", "filter": {"qpns": [16777216]}}"#),
                "devices[0].trace.filter.qpns[0]: 16777216 does not fit in 24 bits",
            ),
            (
                device("").replace(
                    r#"{"udp": {"bind": "127.0.0.1:7000", "peers": []}}"#,
                    r#"{"ring": {"folder": ""}}"#,
                ),
                "devices[0].fabric.ring.folder: the path is empty",
            ),
            (device(r#", "linger_us": 1001"#), "devices[0].linger_us: 1001 is not between 0 and 1000"),
            (device(r#", "coalesce_us": 1001"#), "devices[0].coalesce_us: 1001 is not between 0 and 1000"),
            (format!("{},{}", device(""), device("")), "devices[1].id: 258 is already used by devices[0]"),
            (
                format!("{},{}", device(""), device(r#", "mac": "02:00:00:00:01:02""#).replace("258", "259")),
                "devices[1].mac: 02:00:00:00:01:02 is already used by devices[0]",
            ),
            (
                format!("{},{}", device(""), device("").replace("258", "259")),
                "devices[1].fabric.udp.bind: 127.0.0.1:7000 is already used by devices[0]",
            ),
            (
                format!(
                    "{},{}",
                    device("").replace("127.0.0.1:", "0.0.0.0:"),
                    device("").replace("258", "259")
                ),
                "devices[1].fabric.udp.bind: 0.0.0.0:7000 is already used by devices[0]",
            ),
            (
                device(r#", "peers": [{"id": 1}, {"id": 2, "mac": "02:00:00:00:00:01"}]"#),
                "devices[0].peers[1].mac: 02:00:00:00:00:01 is already used by devices[0].peers[0].mac",
            ),
            (device(r#", "peers": [{"id": 258}]"#), "02:00:00:00:01:02 is already used by devices[0].mac"),
            (device(r#", "socket_mode": "rw""#), "devices[0].socket_mode: \"rw\" is not an octal mode"),
            (device(r#", "sockt_path": "x""#), "devices[0].sockt_path: unknown field `sockt_path`"),
            (device(r#", "ipv4": "10.0.0""#), "devices[0].ipv4: invalid IPv4 address syntax"),
            (
                device(r#", "ipv4": "224.0.0.1""#),
                "devices[0].ipv4: 224.0.0.1 is not a usable unicast address",
            ),
            (device(r#", "ipv4": "0.0.0.0""#), "devices[0].ipv4: 0.0.0.0 is not a usable unicast address"),
            (
                device(r#", "ipv4": "255.255.255.255""#),
                "devices[0].ipv4: 255.255.255.255 is not a usable unicast address",
            ),
            (
                device(r#", "ipv4": "127.1.2.3""#),
                "devices[0].ipv4: 127.1.2.3 is not a usable unicast address",
            ),
            (
                device(r#", "default_peer": {"id": 3, "ipv4": "127.0.0.1"}"#),
                "devices[0].default_peer.ipv4: 127.0.0.1 is not a usable unicast address",
            ),
            (device(r#", "ipv6": "ff02::1""#), "devices[0].ipv6: ff02::1 is not a usable unicast address"),
            (
                device(r#", "impairments": [{"direction": "tx", "action": "drop", "nth": 0}]"#),
                "devices[0].impairments[0].nth: must be at least 1",
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
                "devices[0].frontend.jingzhao.limits: max_send_sges: 40 scatter/gather elements do not fit in a WQE of 512 bytes",
            ),
        ] {
            let error = check(&devices).unwrap_err();
            assert!(error.contains(message), "{error:?} should contain {message:?}");
        }
    }

    #[test]
    fn errors_mention_configuration_file() {
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
        let load = |name: &str| Config::load(&Path::new(REPOSITORY).join("configs").join(name)).unwrap();
        for name in ["hgrnic.json", "local.json", "ring.json", "lossy.json", "pair.json"] {
            load(name);
        }
        for interface in interfaces::ALL {
            let config = load(&format!("{}.json", interface.key));
            assert_eq!(config.devices[0].frontend.key(), interface.key);
        }
    }

    /// A replay must not depend on DNS. It needs the MACs of named peers, which are in the device's entry, but not
    /// their addresses.
    #[test]
    fn recorded_configuration_contains_peer_names() {
        let udp = r#"{"udp": {"bind": "127.0.0.1:7000", "peers": [{"addr": "nobody.invalid:9", "id": 9}]}}"#;
        let text =
            format!(r#"{{"devices": [{{"id": 1, "frontend": {{"jingzhao": {{}}}}, "fabric": {udp}}}]}}"#);
        let config = Config::from_text(&text, Path::new("x")).unwrap();
        let again = Config::of_device(config.devices[0].entry.clone()).unwrap();
        assert_eq!(again.devices[0].fabric.named_peers(), config.devices[0].fabric.named_peers());
    }

    /// If this test fails, run it with HCAD_UPDATE_SCHEMA=1 to update the file.
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
