//! Requests and responses of the control socket, one JSON object per line.
//!
//! For example, the response to `{"list":{"device":1,"table":"qps"}}` is
//! `{"page":{"rows":{"qps":[…]},"next":null}}`. Field names are a stable interface: fields can be added, but
//! existing ones do not change.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU16;
use std::path::PathBuf;

use card::fabric::FabricStats;
use card::fabric::impair::{ImpairmentRow, RuleEntry};
use card::fabric::ring::MemberRow;
use card::fabric::switch::PeerRow;
use card::frontend::table::{Page, TableSpec};
use card::hca::Explanation;
use card::net::{DropReason, PortStats, Traffic};
use card::telemetry::filter::{CaptureFilter, TraceFilter};
use card::telemetry::monitor::Monitor;
use card::telemetry::store::RingBytes;
use card::telemetry::trace::TraceFormat;
use card::vfio::msix;
use card::vfio::server::MessageStats;
use engine::{Durations, QpStates, Stats};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::named::Named;
use crate::peer::UdpPeerEntry;
use crate::unique_keys;

/// A request. Each variant's description links to the response. The field `device` is the device's `id` in the
/// configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Lists the devices: [`Response::Devices`].
    Devices {},
    /// Returns the path of the configuration file: [`Response::Configuration`].
    Configuration {},
    /// Adds a device, which exists until it is removed or hcad exits: [`Response::Added`].
    DeviceAdd {
        /// A device entry, in the format of `devices` in the configuration.
        #[serde(deserialize_with = "unique_keys::object")]
        entry: Map<String, Value>,
    },
    /// Removes a device and disconnects its VMM: [`Response::Done`].
    DeviceRemove { device: u16 },
    /// Applies a configuration: [`Response::Reloaded`].
    Reload {
        /// Contents of the configuration file.
        text: String,
    },
    /// Lists the tables: [`Response::Tables`].
    Tables {},
    /// Lists the rows of a table: [`Response::Page`] or [`Response::Text`].
    List {
        device: u16,
        table: String,
        /// Where the page starts: 0 for the first page, or the previous page's `next`.
        #[serde(default)]
        from: u64,
        /// Whether to return the cells of each row as text instead of JSON.
        #[serde(default)]
        text: bool,
    },
    /// Explains what a queue pair is waiting for: [`Response::Explanation`].
    Explain { device: u16, qpn: u32 },
    /// Returns the counters since hcad started: [`Response::Counters`].
    Counters { device: u16 },
    /// Starts capturing to a pcapng file: [`Response::Done`].
    CaptureOn {
        device: u16,
        /// Path of the new file, relative to hcad's working directory. The file must not exist.
        path: PathBuf,
        #[serde(default)]
        filter: CaptureFilter,
        /// Maximum size of a file in bytes. Default: the value in the configuration.
        #[serde(default)]
        max_bytes: Option<u64>,
        /// Number of files that the capture rotates through.
        #[serde(default = "one_file")]
        files: NonZeroU16,
    },
    /// Starts capturing to a ring in memory: [`Response::Done`].
    CaptureRing {
        device: u16,
        bytes: RingBytes,
        /// Filter that selects the frames to capture.
        #[serde(default)]
        filter: CaptureFilter,
    },
    /// Writes the capture ring to a file: [`Response::Done`]. The capture continues.
    CaptureDump {
        device: u16,
        /// Path of the new file, relative to hcad's working directory. The file must not exist.
        path: PathBuf,
    },
    /// Sets the link up or down and notifies the guest driver: [`Response::Done`].
    SetPort { device: u16, state: PortState },
    /// Injects a catastrophic device error, which the device reports to the guest driver: [`Response::Done`].
    Fail { device: u16 },
    /// Stops the capture. [`Response::Done`] is sent when the file is complete.
    CaptureOff { device: u16 },
    /// Starts tracing register accesses, commands and queue entries: [`Response::Done`].
    TraceOn {
        device: u16,
        /// Path of the new file, relative to hcad's working directory, or "-" for hcad's standard error. The file must
        /// not exist.
        path: PathBuf,
        #[serde(default)]
        format: TraceFormat,
        /// Filter that selects the trace entries to write.
        #[serde(default)]
        filter: TraceFilter,
        /// Maximum size of a file in bytes. Default: the value in the configuration.
        #[serde(default)]
        max_bytes: Option<u64>,
        /// Number of files that the trace rotates through.
        #[serde(default = "one_file")]
        files: NonZeroU16,
    },
    /// Starts tracing to a ring in memory: [`Response::Done`].
    TraceRing {
        device: u16,
        bytes: RingBytes,
        #[serde(default)]
        format: TraceFormat,
        /// Filter that selects the trace entries to write.
        #[serde(default)]
        filter: TraceFilter,
    },
    /// Writes the trace ring to a file: [`Response::Done`]. The trace continues.
    TraceDump {
        device: u16,
        /// Path of the new file, relative to hcad's working directory. The file must not exist.
        path: PathBuf,
    },
    /// Stops the trace. [`Response::Done`] is sent when the file is complete.
    TraceOff { device: u16 },
    /// Restarts the device and records its session from that point on: [`Response::Done`]. Fails while a VMM is
    /// connected.
    RecordOn {
        device: u16,
        /// Path of the new file, relative to hcad's working directory. The file must not exist.
        path: PathBuf,
    },
    /// Stops recording. [`Response::Done`] is sent when the file is complete.
    RecordOff { device: u16 },
    /// Lists a device's impairments: [`Response::Impairments`].
    Impairments { device: u16 },
    /// Adds an impairment: [`Response::Impairment`].
    ImpairAdd { device: u16, rule: RuleEntry },
    /// Lists a device's peers: [`Response::Peers`], or [`Response::Members`] on the ring fabric.
    Peers { device: u16 },
    /// Adds a peer: [`Response::Done`].
    PeerAdd {
        device: u16,
        /// A peer entry, in the format of `peers` in the configuration.
        peer: UdpPeerEntry,
    },
    /// Removes a peer: [`Response::Done`].
    PeerRemove { device: u16, addr: SocketAddr },
    /// Removes one or all impairments: [`Response::Done`]. Frames that are already held or delayed are still
    /// delivered.
    ImpairClear {
        device: u16,
        /// ID of the impairment. Default: all impairments.
        id: Option<u32>,
    },
}

const fn one_file() -> NonZeroU16 {
    NonZeroU16::MIN
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Response {
    /// All devices, in the order they were added.
    Devices(Vec<DeviceRow>),
    /// Path of the configuration file, if there is one.
    Configuration(Option<PathBuf>),
    /// The device was added.
    Added {
        device: u16,
        socket: Option<PathBuf>,
    },
    /// Outcome of a reload.
    Reloaded(Reloaded),
    Tables(Vec<TableRow>),
    /// One page of a list.
    Page(ListPage),
    /// One page of a list as text.
    Text(TextPage),
    /// What a queue pair is waiting for.
    Explanation(Box<Explanation>),
    Counters(Box<Counters>),
    Impairments(Vec<ImpairmentRow>),
    Peers(Vec<PeerRow>),
    /// All members of the ring.
    Members(Vec<MemberRow>),
    /// ID of the impairment that was added.
    Impairment(u32),
    Done {},
    /// The request failed without any effect. Contains a one-line message.
    Error(String),
}

/// A table offered by one or more device interfaces.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableRow {
    pub name: String,
    /// One-line description of the table's contents.
    pub help: String,
    /// Column headings of the text form.
    pub columns: Vec<String>,
}

impl From<&TableSpec> for TableRow {
    fn from(spec: &TableSpec) -> Self {
        let owned = |text: &str| text.to_owned();
        let columns = spec.columns.iter().map(|column| owned(column)).collect();
        Self { name: owned(spec.name), help: owned(spec.help), columns }
    }
}

/// Consecutive rows of a table as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListPage {
    /// An array of at most [`PAGE_ROWS`](card::frontend::table::PAGE_ROWS) rows, under the name of the table.
    pub rows: Named,
    pub next: Option<u64>,
}

impl From<&Page> for ListPage {
    fn from(page: &Page) -> Self {
        Self { rows: Named::new(page.rows.table().name, &page.rows), next: page.next }
    }
}

/// Consecutive rows of a table as text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TextPage {
    /// Column headings of the table.
    pub columns: Vec<String>,
    /// The rows' cells as text. There are at most [`PAGE_ROWS`](card::frontend::table::PAGE_ROWS) rows.
    pub lines: Vec<Vec<String>>,
    pub next: Option<u64>,
}

impl From<&Page> for TextPage {
    fn from(page: &Page) -> Self {
        let TableRow { columns, .. } = page.rows.table().into();
        Self { columns, lines: page.rows.cells(), next: page.next }
    }
}

/// Outcome of a reload. Devices are listed by ID.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reloaded {
    pub added: Vec<u16>,
    pub removed: Vec<u16>,
    /// Devices that were recreated because their entries changed. Their VMMs were disconnected.
    pub changed: Vec<u16>,
    /// Devices that were not affected.
    pub unchanged: Vec<u16>,
    /// Configuration keys whose new values take effect only when hcad restarts.
    pub not_changed: Vec<String>,
    /// Problems that occurred, one line each.
    pub problems: Vec<String>,
}

/// State of a port's link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PortState {
    Up,
    /// Frames are dropped in both directions.
    Down,
}

/// State of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceState {
    /// The device is running.
    Running,
    /// The device failed and will restart after a delay.
    Restarting,
    /// The device's thread is not responding.
    NotAnswering,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceRow {
    /// The device's `id` in the configuration.
    pub id: u16,
    /// Configuration key of the device interface.
    pub interface: String,
    pub mac: String,
    pub ipv4: Ipv4Addr,
    /// IPv6 address: the configured one, or the link-local address derived from the MAC.
    pub ipv6: Ipv6Addr,
    /// Path of the socket for the VMM. Absent if the socket was inherited.
    pub socket: Option<PathBuf>,
    /// Whether a VMM is connected.
    pub connected: bool,
    pub state: DeviceState,
    /// Number of restarts after failures.
    pub restarts: u64,
    /// Reason for the latest failure.
    pub problem: Option<String>,
    /// State of the link. Unknown while the device is not responding.
    pub port: Option<PortState>,
    /// Whether the guest driver has disabled the port. A disabled port is down regardless of the link. A device reset
    /// enables the port again.
    #[serde(default)]
    pub port_disabled: bool,
    /// File or ring that receives the capture.
    pub capture: Option<PathBuf>,
    /// File or ring that receives the trace, or "-" for standard error.
    pub trace: Option<PathBuf>,
    /// File that receives the session recording.
    #[serde(default)]
    pub record: Option<PathBuf>,
}

/// Counters of one device, by component.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Counters specific to the device interface, stored under the interface's configuration key.
    pub frontend: Named,
    pub engine: Stats,
    /// Current number of queue pairs in each state.
    #[serde(default)]
    pub qps: QpStates,
    pub port: PortCounters,
    pub fabric: FabricStats,
    pub vfio: VfioCounters,
    pub interface: InterfaceCounters,
    /// Log counters, which are shared by all devices.
    pub log: LogCounters,
}

/// Counters of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogCounters {
    /// Log lines that were lost because standard error was blocked.
    pub lines_lost: u64,
}

/// Counters of the vfio-user server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VfioCounters {
    pub clients: u64,
    /// Message counters, summed over all clients.
    pub messages: MessageStats,
    /// DMA ranges that are currently mapped.
    pub dma_ranges: u64,
    pub interrupts: msix::Stats,
}

/// Counters of the device interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterfaceCounters {
    /// Commands by name and status.
    pub commands: BTreeMap<String, BTreeMap<String, u64>>,
    /// Durations of the commands.
    #[serde(default)]
    pub command_time: Durations,
    /// Doorbells that were executed, by kind.
    pub doorbells: BTreeMap<String, u64>,
    /// Ignored doorbells, register writes and NIC frames, by reason. Ignored packets are counted by the transport; all
    /// other ignored frames are counted by the port.
    #[serde(default)]
    pub ignored: BTreeMap<String, u64>,
    /// Requests that failed because memory access was denied, by cause.
    #[serde(default)]
    pub refused: BTreeMap<String, u64>,
    /// Driver violations, by rule. Counted only in strict mode.
    pub violations: BTreeMap<String, u64>,
}

impl From<&Monitor> for InterfaceCounters {
    fn from(monitor: &Monitor) -> Self {
        let owned = |(name, count): (&&str, &u64)| ((*name).to_owned(), *count);
        let by_status = |(name, statuses): (&&str, &BTreeMap<&str, u64>)| {
            ((*name).to_owned(), statuses.iter().map(owned).collect())
        };
        Self {
            commands: monitor.commands().iter().map(by_status).collect(),
            command_time: *monitor.command_time(),
            doorbells: monitor.doorbells().iter().map(owned).collect(),
            ignored: monitor.ignored_counts().map(|(reason, count)| (reason.to_owned(), count)).collect(),
            refused: monitor.refused().iter().map(owned).collect(),
            violations: monitor.violations().map(|(rule, count)| (rule.to_owned(), count)).collect(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortCounters {
    /// RoCE packets delivered to the transport.
    pub roce: u64,
    /// RoCE packets sent to the fabric.
    pub transmit: Traffic,
    /// RoCE packets received from the fabric and delivered.
    pub receive: Traffic,
    /// Frames that the NIC sent to the fabric.
    pub nic_transmit: Traffic,
    /// Frames from the fabric that were delivered to the NIC.
    pub nic_receive: Traffic,
    /// Number of times the link went down.
    pub link_downed: u64,
    pub arp: u64,
    /// IPv6 neighbour discovery messages processed.
    pub neighbour_discovery: u64,
    /// ICMP and ICMPv6 echo requests answered.
    pub echo: u64,
    /// Outgoing frames dropped because the link was down.
    pub lost_link_down: u64,
    /// Outgoing frames dropped because their destination's MAC could not be resolved.
    pub lost_unresolved: u64,
    /// NIC frames dropped because of an invalid length.
    pub lost_malformed: u64,
    /// Frames dropped, by [`DropReason::name`].
    pub dropped: BTreeMap<String, u64>,
}

impl From<&PortStats> for PortCounters {
    fn from(stats: &PortStats) -> Self {
        let dropped = DropReason::ALL.map(|reason| (reason.name().to_owned(), stats.dropped(reason)));
        Self {
            roce: stats.roce,
            transmit: stats.transmit,
            receive: stats.receive,
            nic_transmit: stats.nic_transmit,
            nic_receive: stats.nic_receive,
            link_downed: stats.link_downed,
            arp: stats.arp,
            neighbour_discovery: stats.neighbour_discovery,
            echo: stats.echo,
            lost_link_down: stats.lost_link_down,
            lost_unresolved: stats.lost_unresolved,
            lost_malformed: stats.lost_malformed,
            dropped: dropped.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Request, serde_json::Error> {
        serde_json::from_str(text)
    }

    #[test]
    fn requests_are_objects_with_one_key() {
        for (text, request) in [
            (r#"{"devices":{}}"#, Request::Devices {}),
            (
                r#"{"list":{"device":1,"table":"mrs"}}"#,
                Request::List { device: 1, table: "mrs".to_owned(), from: 0, text: false },
            ),
            (
                r#"{"list":{"device":1,"table":"qps","from":256}}"#,
                Request::List { device: 1, table: "qps".to_owned(), from: 256, text: false },
            ),
            (r#"{"counters":{"device":2}}"#, Request::Counters { device: 2 }),
            (
                r#"{"capture_on":{"device":2,"path":"/tmp/x"}}"#,
                Request::CaptureOn {
                    device: 2,
                    path: "/tmp/x".into(),
                    filter: CaptureFilter::default(),
                    max_bytes: None,
                    files: NonZeroU16::MIN,
                },
            ),
            (r#"{"capture_off":{"device":2}}"#, Request::CaptureOff { device: 2 }),
        ] {
            assert_eq!(parse(text).unwrap(), request);
        }
    }

    #[test]
    fn requests_with_unknown_fields_are_rejected() {
        for text in [
            "{}",
            r#"{"reboot":{}}"#,
            r#"{"devices":{"all":true}}"#,
            r#"{"list":{"device":1,"table":7}}"#,
            r#"{"list":{"device":65536,"table":"qps"}}"#,
            r#"{"list":{"device":1,"table":"qps","from":-1}}"#,
            r#"{"devices":{}} {"devices":{}}"#,
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn responses_are_objects_with_one_key() {
        for (response, text) in [
            (
                Response::Page(ListPage { rows: Named::new("eqs", &[(); 0]), next: None }),
                r#"{"page":{"rows":{"eqs":[]},"next":null}}"#,
            ),
            (Response::Done {}, r#"{"done":{}}"#),
            (Response::Error("no".into()), r#"{"error":"no"}"#),
        ] {
            assert_eq!(serde_json::to_string(&response).unwrap(), text);
        }
    }

    #[test]
    fn every_drop_reason_is_reported() {
        let counters = PortCounters::from(&PortStats::default());
        assert_eq!(counters.dropped.len(), DropReason::ALL.len());
    }
}
