//! A device's configuration: its entry in the configuration file and the validated form.

use std::collections::HashMap;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU16;
use std::path::{Path, PathBuf};
use std::time::Duration;

use card::fabric::impair::{self, Rule, RuleEntry};
use card::identity::Identity;
use card::management;
use card::memory::Limits;
use card::memory::limits::MAX_BYTES_OF_ALL;
use card::telemetry::filter::{CaptureFilter, TraceFilter};
use card::telemetry::store::{Keep, MAX_FILES, RingBytes};
use card::telemetry::trace::{STANDARD_ERROR, TraceFormat};
use card::vfio::server::Access;
use protocol::ids::{Lid, MacAddr};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::access::{AccessEntry, GroupEntry, SocketsEntry};
use super::choice;
use super::fabric::{FabricConfig, FabricEntry, binds_overlap};
use super::json_error::in_terms_of_json;
use super::memory::GuestMemoryEntry;
use super::{ConfigError, value};
use crate::interfaces::FrontendEntry;

/// An emulated device that hcad serves.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeviceEntry {
    /// Device number on the fabric, 1 to 49150. This number is also the port's LID. By default, the MAC
    /// address (02:00:00:00:hi:lo) and the IPv4 address (10.77.hi.lo) are derived from the high and low bytes
    /// of this number.
    pub id: u16,
    /// Path to the Unix socket that the VMM connects to. Default: `hca<ID>.sock` in the runtime directory
    /// ($RUNTIME_DIRECTORY if set, otherwise $XDG_RUNTIME_DIR/hcad if $XDG_RUNTIME_DIR is set, otherwise /run/hcad). If
    /// systemd passes a socket with this path to hcad, the device uses that socket. If only one device is configured,
    /// `--socket-path` and `--fd` override this path. If that device has no configured path, it uses the socket that
    /// systemd passes, whatever the socket's path.
    pub socket_path: Option<PathBuf>,
    /// Permissions of the VMM socket, in octal, such as "0660". Default: the `socket_mode` at the top level of this
    /// file.
    pub socket_mode: Option<String>,
    /// Group that owns the VMM socket, by name or number. If QEMU and hcad run as different users, set this to a group
    /// that the QEMU user belongs to. Default: the `socket_group` at the top level of this file.
    pub socket_group: Option<GroupEntry>,
    /// Device model to present to the guest, and its options.
    #[serde(deserialize_with = "choice::deserialize")]
    pub frontend: FrontendEntry,
    /// The device's MAC address. Default: derived from `id`.
    pub mac: Option<String>,
    /// The device's IPv4 address. Default: derived from `id`.
    pub ipv4: Option<Ipv4Addr>,
    /// Additional IPv6 address. The device also has a link-local IPv6 address derived from its MAC. Default:
    /// none.
    pub ipv6: Option<Ipv6Addr>,
    /// Default destination of packets, used if the work request and the QP context specify no destination. The
    /// public JingZhao driver never specifies a destination for its connections, so it can connect only to this
    /// peer. The driver sends all datagrams to LID 4112 (1010h), so this peer receives them only if its `id` is
    /// 4112.
    pub default_peer: Option<PeerEntry>,
    /// Other devices on the fabric whose addresses are not derived from their device numbers. Listing a device
    /// here lets guest software address it by device number.
    #[serde(default)]
    pub peers: Vec<PeerEntry>,
    /// Fabric that connects the device to its peers.
    #[serde(deserialize_with = "choice::deserialize")]
    pub fabric: FabricEntry,
    /// Path to the pcapng file that the device writes captured frames to. Default: no capture. If only one device is
    /// configured, `--capture` overrides this path.
    pub capture: Option<PathBuf>,
    /// Maximum size of a capture file, in bytes. When a file reaches this size, the capture continues in the
    /// next file if `capture_files` is greater than 1. Otherwise, the capture stops, but the device keeps
    /// running.
    #[serde(default = "default_capture_max_bytes")]
    pub capture_max_bytes: u64,
    /// Number of capture files to rotate through, 1 to 64. Each file can grow to `capture_max_bytes`. The first
    /// file has the path given by `capture`, and the others have `.1`, `.2` and so on appended to that path.
    #[serde(default = "one_file")]
    pub capture_files: u16,
    /// Size, in bytes (65536 to 67108864), of an in-memory ring that keeps the most recent frames. `hcactl
    /// capture dump` writes these frames to a file. Cannot be combined with `capture`. Default: no ring.
    pub capture_ring_bytes: Option<u64>,
    /// Filter that selects the frames to capture. Default: all frames.
    #[serde(default)]
    pub capture_filter: CaptureFilter,
    /// Where and how to trace register accesses, commands and queue entries. Default: no trace. If only one
    /// device is configured, `--trace` overrides this setting.
    pub trace: Option<TraceEntry>,
    /// Maximum size of a trace file, in bytes. When a file reaches this size, the trace continues in the next
    /// file if `trace.files` is greater than 1. Otherwise, the trace stops, but the device keeps running.
    #[serde(default = "default_trace_max_bytes")]
    pub trace_max_bytes: u64,
    /// Report all violations of the device interface by the guest driver, including those that the device
    /// tolerates. Each violation is counted, traced and, at a limited rate, logged. Strict mode slows the device
    /// down.
    #[serde(default)]
    pub strict: bool,
    /// How long, in microseconds (0 to 1000), the device's thread busy-polls for more work before it sleeps.
    /// 0 disables busy-polling. The thread polls only while recent idle periods have been short, and it
    /// yields the CPU between polls. If a yield takes too long because the CPUs are oversubscribed, the
    /// thread polls only during bulk transfers.
    #[serde(default = "default_linger_us")]
    pub linger_us: u16,
    /// How long, in microseconds (0 to 1000), the device collects messages from the VMM before processing them
    /// as a batch. 0 disables coalescing, so every message wakes the device's thread. Coalescing is
    /// adaptive: it pauses whenever it does not improve the message rate.
    #[serde(default = "default_coalesce_us")]
    pub coalesce_us: u16,
    /// How the guest driver's doorbells reach the device.
    #[serde(default)]
    pub doorbells: Doorbells,
    /// Limits on the guest memory that the VMM can map.
    #[serde(default)]
    pub guest_memory: GuestMemoryEntry,
    /// Network faults to inject between the device and its fabric, for testing guests and peers.
    #[serde(default)]
    pub impairments: Vec<RuleEntry>,
    /// Path to the session record to write. `hcad replay` can replay the record without a guest. The device
    /// records all its input from startup on, including all guest memory that it reads, so the file contains
    /// guest data. Default: no recording.
    pub record: Option<PathBuf>,
    /// Maximum size of the session record, in bytes. When the record reaches this size, recording stops, but
    /// the device keeps running.
    #[serde(default = "default_record_max_bytes")]
    pub record_max_bytes: u64,
}

/// How the guest driver's doorbells reach the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Doorbells {
    /// The VMM sends a message for each doorbell.
    #[default]
    Trapped,
    /// The doorbell pages are mapped into the guest, so that a doorbell causes no VM exit. Instead, the
    /// device polls these pages and guest memory. The polling interval is 20 microseconds during traffic. It
    /// then grows with the idle time, to 1 millisecond after 8 milliseconds and to 10 milliseconds after one
    /// second. Available only for interfaces whose doorbells merely repeat information in guest memory,
    /// currently `mthca` and `connectx`. The event queue doorbells of `connectx` are not mapped.
    Mapped,
}

/// Destination, format and filter of a device's trace.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TraceEntry {
    /// Path to the trace file, or "-" for standard error. Either `file` or `ring_bytes` is required.
    pub file: Option<PathBuf>,
    /// Number of trace files to rotate through, 1 to 64. Each file can grow to `trace_max_bytes`. The first file
    /// has the path given by `file`, and the others have `.1`, `.2` and so on appended to that path.
    #[serde(default = "one_file")]
    pub files: u16,
    /// Size, in bytes (65536 to 67108864), of an in-memory ring that keeps the most recent trace entries.
    /// `hcactl trace dump` writes these entries to a file. Cannot be combined with `file`.
    pub ring_bytes: Option<u64>,
    /// Format of the trace entries.
    #[serde(default)]
    pub format: TraceFormat,
    /// Filter that selects the trace entries to write. Default: all entries.
    #[serde(default)]
    pub filter: TraceFilter,
}

/// Validated destination, format and filter of a device trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceConfig {
    /// Destination of the trace: files or an in-memory ring.
    pub keep: Keep,
    pub format: TraceFormat,
    pub filter: TraceFilter,
}

/// Validated destination and filter of a capture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaptureConfig {
    /// Destination of the capture: files or an in-memory ring.
    pub keep: Keep,
    pub filter: CaptureFilter,
}

/// Addresses of another device on the fabric.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PeerEntry {
    /// Device number, 1 to 49150. Any address that this entry does not set is derived from this number.
    pub id: u16,
    /// The device's MAC address. Default: derived from `id`.
    pub mac: Option<String>,
    /// The device's IPv4 address. Default: derived from `id`.
    pub ipv4: Option<Ipv4Addr>,
    /// Additional IPv6 address. The device also has a link-local IPv6 address derived from its MAC. Default:
    /// none.
    pub ipv6: Option<Ipv6Addr>,
    /// Prefer this peer's IPv6 address to its IPv4 address when the guest specifies only the peer's device
    /// number or MAC address.
    #[serde(default)]
    pub prefer_ipv6: bool,
}

#[derive(Clone, Debug)]
pub struct DeviceConfig {
    /// Addresses of the device.
    pub identity: Identity,
    /// Destination of packets if neither the work request nor the QP context specifies one.
    pub default_peer: Option<Identity>,
    /// Other devices whose addresses are not derived from their LIDs.
    pub peers: Vec<Identity>,
    pub socket_path: Option<PathBuf>,
    pub socket_access: Access,
    pub frontend: FrontendEntry,
    pub fabric: FabricConfig,
    pub capture: Option<CaptureConfig>,
    /// Maximum size of a capture file in bytes. It also applies to captures started at run time.
    pub capture_max_bytes: u64,
    pub trace: Option<TraceConfig>,
    /// Maximum size of a trace file in bytes. It also applies to traces started at run time.
    pub trace_max_bytes: u64,
    pub strict: bool,
    /// How long the device's thread busy-polls before sleeping.
    pub linger: Duration,
    /// How long the device coalesces messages from the VMM.
    pub coalesce: Duration,
    pub doorbells: Doorbells,
    /// Limits on the guest memory that the VMM can map.
    pub memory: Limits,
    /// Impairments to apply from the start, at most [`impair::MAX_RULES`].
    pub impairments: Vec<Rule>,
    pub record: Option<PathBuf>,
    pub record_max_bytes: u64,
    /// The configuration entry as stored in a recording, without the keys that affect only the host.
    pub entry: Map<String, Value>,
    /// The entry exactly as it appears in the configuration file.
    pub said: Map<String, Value>,
}

/// Returns the default maximum size of a capture file. A file of this size holds several seconds of traffic at full
/// rate, but does not fill a typical disk.
const fn default_capture_max_bytes() -> u64 {
    4 << 30
}

const fn one_file() -> u16 {
    1
}

/// Returns the default maximum size of a recording. A recording of this size holds several seconds of traffic at full
/// rate, but does not fill a typical disk.
const fn default_record_max_bytes() -> u64 {
    4 << 30
}

/// Returns the default maximum size of a trace file. A file of this size holds about ten million entries.
const fn default_trace_max_bytes() -> u64 {
    1 << 30
}

/// Largest QP number. The BTH has 24 bits for it (IBTA volume 1, section 9.2).
pub(crate) const MAX_QPN: u32 = 0xff_ffff;

/// Maximum value of `linger_us` and `coalesce_us`, in microseconds.
const MAX_PAUSE_US: u16 = 1000;

/// Keys that affect only the host, not the behaviour of the device.
const HOST_KEYS: [&str; 15] = [
    "socket_path",
    "socket_mode",
    "socket_group",
    "capture",
    "capture_max_bytes",
    "capture_files",
    "capture_ring_bytes",
    "capture_filter",
    "trace",
    "trace_max_bytes",
    "record",
    "record_max_bytes",
    "linger_us",
    "coalesce_us",
    "guest_memory",
];

impl DeviceConfig {
    pub(super) fn from_entry(
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
                return Err(value(&peer_key, format!("{} is already used by {other}", peer.mac)));
            }
        }
        let fabric = FabricConfig::check(entry.fabric, identity.mac, &format!("{key}.fabric"))?;
        if entry.impairments.len() > impair::MAX_RULES {
            return Err(value(&format!("{key}.impairments"), impair::TooManyRulesError.to_string()));
        }
        let rule = |(index, rule): (usize, RuleEntry)| {
            Rule::try_from(rule)
                .map_err(|error| value(&format!("{key}.impairments[{index}].{}", error.key), error.problem))
        };
        if let (Doorbells::Mapped, Some(why)) = (entry.doorbells, entry.frontend.needs_traps()) {
            let interface = entry.frontend.key();
            return Err(value(
                &format!("{key}.doorbells"),
                format!("{interface} requires \"trapped\": its doorbells {why}"),
            ));
        }
        let names = ["capture", "capture_ring_bytes", "capture_files"].map(|name| format!("{key}.{name}"));
        let capture = keep((entry.capture, entry.capture_ring_bytes, entry.capture_files), names)?;
        check_qpns(&entry.capture_filter.qpns, &format!("{key}.capture_filter"))?;
        entry.capture_filter.check_opcodes().map_err(|error| {
            value(&format!("{key}.capture_filter.opcodes[{}]", error.index), error.to_string())
        })?;
        let trace = match entry.trace {
            None => None,
            Some(entry) => {
                check_qpns(&entry.filter.qpns, &format!("{key}.trace.filter"))?;
                let names = ["file", "ring_bytes", "files"].map(|name| format!("{key}.trace.{name}"));
                let keep = keep((entry.file, entry.ring_bytes, entry.files), names)?
                    .ok_or_else(|| value(&format!("{key}.trace"), "requires `file` or `ring_bytes`"))?;
                Some(TraceConfig { keep, format: entry.format, filter: entry.filter })
            }
        };
        Ok(Self {
            identity,
            default_peer,
            peers,
            socket_path: entry.socket_path,
            socket_access: socket.or(sockets).check(&format!("{key}."))?,
            frontend: entry.frontend,
            fabric,
            capture: capture.map(|keep| CaptureConfig { keep, filter: entry.capture_filter }),
            capture_max_bytes: entry.capture_max_bytes,
            trace,
            trace_max_bytes: entry.trace_max_bytes,
            strict: entry.strict,
            linger: pause(entry.linger_us, &format!("{key}.linger_us"))?,
            coalesce: pause(entry.coalesce_us, &format!("{key}.coalesce_us"))?,
            doorbells: entry.doorbells,
            memory,
            impairments: entry.impairments.into_iter().enumerate().map(rule).collect::<Result<_, _>>()?,
            record: entry.record,
            record_max_bytes: entry.record_max_bytes,
            entry: Map::new(),
            said: Map::new(),
        })
    }

    /// Creates the configuration of a device that is added at run time. `entry` has the same format as in the file, and
    /// `sockets` contains the default socket settings. `others` are the existing devices, which share the limit on
    /// guest memory with the new one.
    ///
    /// # Errors
    /// Fails if the entry is invalid or exceeds the remaining guest memory. Other conflicts with `others` are not
    /// checked.
    pub fn beside(
        entry: Map<String, Value>,
        sockets: &SocketsEntry,
        others: &[&Self],
    ) -> Result<Self, ConfigError> {
        let shape: DeviceEntry =
            serde_path_to_error::deserialize(Value::Object(entry.clone())).map_err(|error| {
                let key = match error.path().to_string() {
                    path if path == "." => ADDED.to_owned(),
                    path => format!("{ADDED}.{path}"),
                };
                value(&key, in_terms_of_json(&error.into_inner().to_string()))
            })?;
        let taken: u64 = others.iter().map(|device| device.memory.bytes).sum();
        let mut left = MAX_BYTES_OF_ALL.saturating_sub(taken);
        let key = format!("{ADDED}.guest_memory");
        let memory = shape.guest_memory.check(others.len() + 1, &mut left, &key)?;
        let mut device = Self::from_entry(shape, memory, sockets.entry(), ADDED)?;
        device.keep(entry);
        Ok(device)
    }

    /// Stores the entry that the configuration was created from.
    pub(super) fn keep(&mut self, mut entry: Map<String, Value>) {
        self.said.clone_from(&entry);
        HOST_KEYS.iter().for_each(|key| drop(entry.remove(*key)));
        // Store the path MTU, which may have been derived from the interface MTU at startup.
        if let FabricConfig::Tap { path_mtu, .. } = &self.fabric
            && let Some(tap) = entry.get_mut("fabric").and_then(|fabric| fabric.get_mut("tap"))
        {
            tap["path_mtu"] = json!(path_mtu.bytes());
        }
        self.entry = entry;
    }

    /// Returns whether both configurations have the same entry and socket. If they do, the running device need not be
    /// re-created.
    pub fn has_same_entry_as(&self, other: &Self) -> bool {
        self.said == other.said
            && self.socket_path == other.socket_path
            && self.socket_access == other.socket_access
    }

    /// Returns whether the two devices conflict because they have the same LID, MAC, fabric socket, tap interface or
    /// file path.
    pub fn conflicts_with(&self, other: &Self) -> bool {
        let (own, its) = (self.identity, other.identity);
        let fabric = match (&self.fabric, &other.fabric) {
            (FabricConfig::Udp { bind, .. }, FabricConfig::Udp { bind: its, .. }) => {
                binds_overlap(*bind, *its)
            }
            (FabricConfig::Tap { interface, .. }, FabricConfig::Tap { interface: its, .. }) => {
                interface == its
            }
            _ => false,
        };
        let shares_path = || self.paths().any(|(_, path, _)| other.paths().any(|(_, its, _)| path == its));
        own.lid == its.lid || own.mac == its.mac || fabric || shares_path()
    }
}

/// Name of a device added at run time, used in messages in place of a configuration key.
pub const ADDED: &str = "device";

/// Returns the destination of a trace or capture, if one is configured. The second argument contains the configuration
/// keys of the three settings in the first argument, for error messages.
fn keep(
    (file, ring, files): (Option<PathBuf>, Option<u64>, u16),
    [file_key, ring_key, files_key]: [String; 3],
) -> Result<Option<Keep>, ConfigError> {
    let count = NonZeroU16::new(files)
        .filter(|count| count.get() <= MAX_FILES)
        .ok_or_else(|| value(&files_key, format!("{files} is not between 1 and {MAX_FILES}")))?;
    match (file, ring) {
        (Some(_), Some(_)) => Err(value(&ring_key, format!("conflicts with {file_key}; remove one of them"))),
        (Some(path), None) if path == Path::new(STANDARD_ERROR) && files > 1 => {
            Err(value(&files_key, "must be 1 when writing to standard error"))
        }
        (Some(path), None) => Ok(Some(Keep::Files { path, count })),
        (None, _) if files > 1 => Err(value(&files_key, format!("requires {file_key}"))),
        (None, Some(bytes)) => RingBytes::try_from(bytes)
            .map(|bytes| Some(Keep::Memory(bytes)))
            .map_err(|why| value(&ring_key, why)),
        (None, None) => Ok(None),
    }
}

fn identity(entry: &PeerEntry, key: &str) -> Result<Identity, ConfigError> {
    let derived = Identity::from_lid(lid(entry.id, &format!("{key}.id"))?);
    let mac = entry.mac.as_deref().map(|text| unicast_mac(text, &format!("{key}.mac"))).transpose()?;
    if let Some(ip) = entry
        .ipv4
        .filter(|ip| ip.is_multicast() || ip.is_unspecified() || ip.is_broadcast() || ip.is_loopback())
    {
        return Err(value(&format!("{key}.ipv4"), format!("{ip} is not a usable unicast address")));
    }
    if let Some(ip) = entry.ipv6.filter(|ip| ip.is_multicast() || ip.is_unspecified() || ip.is_loopback()) {
        return Err(value(&format!("{key}.ipv6"), format!("{ip} is not a usable unicast address")));
    }
    Ok(Identity {
        mac: mac.unwrap_or(derived.mac),
        ipv4: entry.ipv4.unwrap_or(derived.ipv4),
        ipv6: entry.ipv6,
        lid: derived.lid,
        prefer_ipv6: entry.prefer_ipv6,
    })
}

/// Checks the QP numbers of a filter. `key` is the key of the filter.
fn check_qpns(qpns: &[u32], key: &str) -> Result<(), ConfigError> {
    match qpns.iter().enumerate().find(|(_, qpn)| **qpn > MAX_QPN) {
        Some((index, qpn)) => {
            Err(value(&format!("{key}.qpns[{index}]"), format!("{qpn} does not fit in 24 bits")))
        }
        None => Ok(()),
    }
}

/// Checks a device number and returns its LID.
pub(super) fn lid(id: u16, key: &str) -> Result<Lid, ConfigError> {
    // IBTA volume 1, section 4.1.3: unicast LIDs. The last one belongs to the subnet manager.
    if !(1..management::SM_LID.get()).contains(&id) {
        return Err(value(key, format!("{id} is not between 1 and 49150")));
    }
    Ok(Lid::new(id))
}

pub(super) fn unicast_mac(text: &str, key: &str) -> Result<MacAddr, ConfigError> {
    let mac: MacAddr = text.parse().map_err(|error| value(key, format!("{text:?}: {error}")))?;
    if mac.is_multicast() || mac == MacAddr::default() {
        return Err(value(key, format!("{mac} is not a unicast address")));
    }
    Ok(mac)
}

/// Returns the default value of `linger_us`, which is longer than most pauses within a message but shorter than a
/// wake-up on a busy host.
const fn default_linger_us() -> u16 {
    50
}

/// Returns the default value of `coalesce_us`, which is long enough for ten doorbells from an emulated guest but no
/// longer than the interrupt coalescing delay of NICs.
const fn default_coalesce_us() -> u16 {
    60
}

fn pause(micros: u16, key: &str) -> Result<Duration, ConfigError> {
    if micros > MAX_PAUSE_US {
        return Err(value(key, format!("{micros} is not between 0 and {MAX_PAUSE_US}")));
    }
    Ok(Duration::from_micros(micros.into()))
}
