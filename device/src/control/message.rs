//! Requests and responses, one JSON object a line each.
//!
//! `{"list":{"device":1,"table":"qps"}}` gets `{"page":{"rows":{"qps":[…]},"next":null}}`. Field names are an interface:
//! they are added, not changed.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU16;
use std::path::PathBuf;

use engine::{Durations, QpStates, Stats};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::config::UdpPeerEntry;
use crate::fabric::FabricStats;
use crate::fabric::impair::{ImpairmentRow, RuleEntry};
use crate::fabric::ring::MemberRow;
use crate::fabric::switch::PeerRow;
use crate::frontend::FrontendCounters;
use crate::frontend::snapshot::{Page, Table};
use crate::hca::Explanation;
use crate::net::{DropReason, PortStats, Traffic};
use crate::telemetry::filter::{CaptureFilter, TraceFilter};
use crate::telemetry::monitor::Monitor;
use crate::telemetry::store::RingBytes;
use crate::telemetry::trace::TraceFormat;
use crate::vfio::msix;
use crate::vfio::server::MessageStats;

/// What a client wants. `device` is the number of an HCA, its `id` in the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Which devices there are: [`Response::Devices`].
    Devices {},
    /// Where the configuration was read: [`Response::Configuration`].
    Configuration {},
    /// One device more, until it is removed or the daemon ends: [`Response::Added`].
    DeviceAdd {
        /// As in `devices` of the configuration.
        entry: Map<String, Value>,
    },
    /// One device less. Its VMM loses its connection: [`Response::Done`].
    DeviceRemove {
        /// Which.
        device: u16,
    },
    /// Have the devices that a configuration says: [`Response::Reloaded`].
    Reload {
        /// The whole file.
        text: String,
    },
    /// Objects of one kind: [`Response::Page`].
    List {
        /// Of which device.
        device: u16,
        /// Which kind.
        table: Table,
        /// 0, or the `next` of the page before.
        #[serde(default)]
        from: u64,
    },
    /// What a queue pair waits for: [`Response::Explanation`].
    Explain {
        /// Of which device.
        device: u16,
        /// Its number.
        qpn: u32,
    },
    /// What was counted since the daemon started: [`Response::Counters`].
    Counters {
        /// By which device.
        device: u16,
    },
    /// Write every frame to a pcapng file from now on: [`Response::Done`].
    CaptureOn {
        /// Frames of which device.
        device: u16,
        /// A file that does not exist yet; relative to the daemon's folder.
        path: PathBuf,
        /// Which frames.
        #[serde(default)]
        filter: CaptureFilter,
        /// Length of a file at the most; without it as configured.
        #[serde(default)]
        max_bytes: Option<u64>,
        /// Files that take turns.
        #[serde(default = "one_file")]
        files: NonZeroU16,
    },
    /// Keep the newest frames in memory from now on: [`Response::Done`].
    CaptureRing {
        /// Frames of which device.
        device: u16,
        /// How many bytes of them.
        bytes: RingBytes,
        /// Which of them.
        #[serde(default)]
        filter: CaptureFilter,
    },
    /// Write what memory holds of a capture to a file: [`Response::Done`]. The capture goes on.
    CaptureDump {
        /// Frames of which device.
        device: u16,
        /// A file that does not exist yet; relative to the daemon's folder.
        path: PathBuf,
    },
    /// Plug the cable in or pull it out: [`Response::Done`]. The guest is told.
    SetPort {
        /// Of which device.
        device: u16,
        /// What the port is to be.
        state: PortState,
    },
    /// Have an internal error: [`Response::Done`]. The guest is told as such devices do.
    Fail {
        /// Which device.
        device: u16,
    },
    /// End the capture; its file is complete when [`Response::Done`] comes.
    CaptureOff {
        /// Of which device.
        device: u16,
    },
    /// Record register accesses, commands and queue entries from now on: [`Response::Done`].
    TraceOn {
        /// Of which device.
        device: u16,
        /// A file that does not exist yet, relative to the daemon's folder, or "-" for the daemon's standard error.
        path: PathBuf,
        /// Form of a record.
        #[serde(default)]
        format: TraceFormat,
        /// Which records.
        #[serde(default)]
        filter: TraceFilter,
        /// Length of a file at the most; without it as configured.
        #[serde(default)]
        max_bytes: Option<u64>,
        /// Files that take turns.
        #[serde(default = "one_file")]
        files: NonZeroU16,
    },
    /// Keep the newest records in memory from now on: [`Response::Done`].
    TraceRing {
        /// Of which device.
        device: u16,
        /// How many bytes of them.
        bytes: RingBytes,
        /// Form of a record.
        #[serde(default)]
        format: TraceFormat,
        /// Which of them.
        #[serde(default)]
        filter: TraceFilter,
    },
    /// Write what memory holds of a trace to a file: [`Response::Done`]. The trace goes on.
    TraceDump {
        /// Of which device.
        device: u16,
        /// A file that does not exist yet; relative to the daemon's folder.
        path: PathBuf,
    },
    /// End the trace; its file is complete when [`Response::Done`] comes.
    TraceOff {
        /// Of which device.
        device: u16,
    },
    /// Make the device anew, and keep all that reaches it from then on: [`Response::Done`]. Not while a VMM is connected.
    RecordOn {
        /// Of which device.
        device: u16,
        /// A file that does not exist yet; relative to the daemon's folder.
        path: PathBuf,
    },
    /// End the record; its file is complete when [`Response::Done`] comes.
    RecordOff {
        /// Of which device.
        device: u16,
    },
    /// What is done to frames on their way: [`Response::Impairments`].
    Impairments {
        /// Of which device.
        device: u16,
    },
    /// One impairment more: [`Response::Impairment`].
    ImpairAdd {
        /// Of which device.
        device: u16,
        /// What it does.
        rule: RuleEntry,
    },
    /// Who is on its fabric: [`Response::Peers`], or [`Response::Members`] on a ring.
    Peers {
        /// Of which device.
        device: u16,
    },
    /// One peer more: [`Response::Done`].
    PeerAdd {
        /// Of which device.
        device: u16,
        /// As in the configuration.
        peer: UdpPeerEntry,
    },
    /// One peer less: [`Response::Done`].
    PeerRemove {
        /// Of which device.
        device: u16,
        /// Its address and port.
        addr: SocketAddr,
    },
    /// One impairment less, or none any more: [`Response::Done`]. Frames that are held back still go on.
    ImpairClear {
        /// Of which device.
        device: u16,
        /// Its number; all without.
        id: Option<u32>,
    },
}

const fn one_file() -> NonZeroU16 {
    NonZeroU16::MIN
}

/// What a request led to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Response {
    /// All devices, in the order in which they came.
    Devices(Vec<DeviceRow>),
    /// The file, if there was one.
    Configuration(Option<PathBuf>),
    /// The device is there.
    Added {
        /// Its number.
        device: u16,
        /// Its socket.
        socket: Option<PathBuf>,
    },
    /// What a reload has changed.
    Reloaded(Reloaded),
    /// Objects.
    Page(Page),
    /// What a queue pair waits for.
    Explanation(Box<Explanation>),
    /// Counters.
    Counters(Box<Counters>),
    /// All impairments.
    Impairments(Vec<ImpairmentRow>),
    /// All peers.
    Peers(Vec<PeerRow>),
    /// All members of the ring that the device is on.
    Members(Vec<MemberRow>),
    /// Number of the impairment that was added.
    Impairment(u32),
    /// It is done.
    Done {},
    /// It is not, and nothing has changed. One line for people.
    Error(String),
}

/// What a reload has changed, by numbers of devices.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reloaded {
    /// Those that are new.
    pub added: Vec<u16>,
    /// Those that are gone.
    pub removed: Vec<u16>,
    /// Those whose entries say something else now; they were made anew, and their VMMs have lost their connections.
    pub changed: Vec<u16>,
    /// Those that did not notice.
    pub unchanged: Vec<u16>,
    /// Keys of what changes only when the daemon starts anew.
    pub not_changed: Vec<String>,
    /// What went wrong on the way.
    pub problems: Vec<String>,
}

/// Link of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PortState {
    /// Frames pass.
    Up,
    /// Frames are lost, both ways.
    Down,
}

/// What a device is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceState {
    /// It serves.
    Running,
    /// It failed, and will be made anew after a pause.
    Restarting,
    /// Its thread does not answer.
    NotAnswering,
}

/// A device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceRow {
    /// Its number.
    pub id: u16,
    /// Device interface, by its key in the configuration.
    pub interface: String,
    /// Ethernet address.
    pub mac: String,
    /// IPv4 address.
    pub ipv4: Ipv4Addr,
    /// IPv6 address: the configured one, else the link-local one of its MAC.
    pub ipv6: Ipv6Addr,
    /// Socket of the VMM, unless it was inherited.
    pub socket: Option<PathBuf>,
    /// A VMM is connected.
    pub connected: bool,
    /// What it is at.
    pub state: DeviceState,
    /// Times it failed and was made anew.
    pub restarts: u64,
    /// Why it failed, the last time.
    pub problem: Option<String>,
    /// Its link; nobody knows while it does not answer.
    pub port: Option<PortState>,
    /// Software has disabled the port, so that it is down whatever the link could be. Ends with a reset of the device.
    #[serde(default)]
    pub port_disabled: bool,
    /// File that frames are written to.
    pub capture: Option<PathBuf>,
    /// File that the trace is written to, or "-" for standard error.
    pub trace: Option<PathBuf>,
    /// File that the record is written to.
    #[serde(default)]
    pub record: Option<PathBuf>,
}

/// Counters of one device by the part that counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Parts of the device that its interface describes.
    pub frontend: FrontendCounters,
    /// Transport.
    pub engine: Stats,
    /// Queue pairs by state, as of this moment.
    #[serde(default)]
    pub qps: QpStates,
    /// What arrived at the port.
    pub port: PortCounters,
    /// What the fabric carried.
    pub fabric: FabricStats,
    /// What the VMM asked for.
    pub vfio: VfioCounters,
    /// What the driver asked for.
    pub interface: InterfaceCounters,
    /// The log, which all devices share.
    pub log: LogCounters,
}

/// Counters of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogCounters {
    /// Lines that standard error did not take.
    pub lines_lost: u64,
}

/// Counters of the vfio-user server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VfioCounters {
    /// Clients that connected.
    pub clients: u64,
    /// Messages of all of them.
    pub messages: MessageStats,
    /// Ranges of memory that are mapped, as of this moment.
    pub dma_ranges: u64,
    /// Interrupts.
    pub interrupts: msix::Stats,
}

/// What the device interface served.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterfaceCounters {
    /// Commands by name and status.
    pub commands: BTreeMap<String, BTreeMap<String, u64>>,
    /// How long they took.
    #[serde(default)]
    pub command_time: Durations,
    /// Doorbells that were obeyed, by kind.
    pub doorbells: BTreeMap<String, u64>,
    /// Doorbells, stores and frames of a NIC for which nothing was done, by reason. Packets and other frames are counted
    /// by the transport and the port.
    #[serde(default)]
    pub ignored: BTreeMap<String, u64>,
    /// Requests that failed for want of access, by cause.
    #[serde(default)]
    pub refused: BTreeMap<String, u64>,
    /// What the driver did against the interface, by rule; of a strict device only.
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
            ignored: monitor.ignorances().map(|(reason, count)| (reason.to_owned(), count)).collect(),
            refused: monitor.refused().iter().map(owned).collect(),
            violations: monitor.violations().map(|(rule, count)| (rule.to_owned(), count)).collect(),
        }
    }
}

/// See [`PortStats`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortCounters {
    /// RoCE packets handed on.
    pub roce: u64,
    /// RoCE packets for the fabric.
    pub transmit: Traffic,
    /// RoCE packets from the fabric that were handed on.
    pub receive: Traffic,
    /// Frames of the NIC for the fabric.
    pub nic_transmit: Traffic,
    /// Frames from the fabric that the NIC was given.
    pub nic_receive: Traffic,
    /// Times the link went down.
    pub link_downed: u64,
    /// ARP messages taken in.
    pub arp: u64,
    /// IPv6 neighbour discovery messages taken in.
    pub neighbour_discovery: u64,
    /// ICMP and ICMPv6 echo requests answered.
    pub echo: u64,
    /// Frames to be sent that were lost because the link is down.
    pub lost_link_down: u64,
    /// Frames to be sent that were lost because nobody told the MAC of their destination.
    pub lost_unresolved: u64,
    /// Frames of the NIC that were lost because they are too short or too long to be frames.
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
    use crate::frontend::snapshot::Rows;

    fn parse(text: &str) -> Result<Request, serde_json::Error> {
        serde_json::from_str(text)
    }

    #[test]
    fn requests_are_objects_with_one_key() {
        for (text, request) in [
            (r#"{"devices":{}}"#, Request::Devices {}),
            (
                r#"{"list":{"device":1,"table":"mrs"}}"#,
                Request::List { device: 1, table: Table::Mrs, from: 0 },
            ),
            (
                r#"{"list":{"device":1,"table":"qps","from":256}}"#,
                Request::List { device: 1, table: Table::Qps, from: 256 },
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
    fn requests_with_unknown_parts_are_refused() {
        for text in [
            "{}",
            r#"{"reboot":{}}"#,
            r#"{"devices":{"all":true}}"#,
            r#"{"list":{"device":1,"table":"srqs"}}"#,
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
                Response::Page(Page { rows: Rows::Eqs(Vec::new()), next: None }),
                r#"{"page":{"rows":{"eqs":[]},"next":null}}"#,
            ),
            (Response::Done {}, r#"{"done":{}}"#),
            (Response::Error("no".into()), r#"{"error":"no"}"#),
        ] {
            assert_eq!(serde_json::to_string(&response).unwrap(), text);
        }
    }

    #[test]
    fn every_reason_of_a_drop_is_reported() {
        let counters = PortCounters::from(&PortStats::default());
        assert_eq!(counters.dropped.len(), DropReason::ALL.len());
    }
}
