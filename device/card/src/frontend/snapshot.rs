//! Snapshots of a device's objects for an operator, in generic RDMA terms.
//!
//! The control socket shows rows as JSON, which makes field names part of the public interface. A front-end that needs
//! other types of rows defines them in its own module.

mod nic;
mod rdma;
mod switch;

use std::fmt;
use std::net::IpAddr;

use engine::RemoteAccess;
use protocol::ids::Qpn;
use protocol::roce::{Encap, IpAddrs};
use serde::{Deserialize, Serialize};

pub use self::nic::{LinkRow, QueueDirection, QueueRow, QueueState};
pub use self::rdma::{ControlRow, ControlState, GroupRow, HandleRow};
pub use self::switch::{
    NodeKind, NodeRow, ROW_VSIS, ReceivedTag, RuleAction, RuleCast, RuleOrigin, RuleRecipe, RuleRow,
    SpreadBy, VsiRow,
};
use crate::frontend::table::{Row, TableSpec, hex, or_dash, yes};
use crate::memory::region::{MemoryRegion, Rights, Translation};
use crate::telemetry::monitor::{IgnoredRow, Monitor};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QpRow {
    /// QPN used by software.
    pub qpn: u32,
    pub state: QpState,
    pub service: Service,
    pub pd: u32,
    /// Next PSN to send.
    pub send_psn: u32,
    /// Oldest unacknowledged PSN; equal to `send_psn` if nothing is outstanding.
    pub unacked_psn: u32,
    /// PSN expected from the peer.
    pub expected_psn: u32,
    /// Connected peer; `None` if there is no peer or the peer's address is unknown.
    pub peer: Option<Peer>,
    /// CQN of the CQ for send completions.
    pub send_cqn: u32,
    /// CQN of the CQ for receive completions.
    pub recv_cqn: u32,
    /// Number of slots in the send queue.
    pub send_slots: u32,
    /// Posted send work that has not been started: requests, WQE blocks or doorbells, depending on the
    /// interface.
    pub send_waiting: u32,
    /// Number of slots in the receive queue.
    pub recv_slots: u32,
    /// Operations permitted to the peer, provided that the memory regions also permit them.
    pub remote_rights: Vec<Right>,
    /// Maximum number of outstanding READs and atomics as the requester.
    pub max_rd_atomic: u8,
    /// Maximum number of outstanding READs and atomics as the responder.
    pub max_dest_rd_atomic: u8,
    /// Counters since the QP left RESET.
    pub counters: QpCounters,
    /// Reasons why doorbells or packets were ignored, if any were.
    #[serde(default)]
    pub ignored: Option<IgnoredRow>,
}

/// Activity of a queue pair since it left RESET.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QpCounters {
    /// Accepted doorbells for the send queue.
    pub doorbells: u64,
    /// Work requests taken from the send queue.
    pub sends: u64,
    /// Work requests taken from the receive queue.
    pub receives: u64,
    /// Send requests that completed, successfully or not.
    pub sends_completed: u64,
    /// Receive requests that completed, successfully or not.
    pub receives_completed: u64,
    /// Requests in either queue that failed or were flushed.
    pub failed: u64,
}

/// Converts a QP's remote access rights to a list.
pub fn remote_rights(remote: RemoteAccess) -> Vec<Right> {
    [
        (remote.write, Right::RemoteWrite),
        (remote.read, Right::RemoteRead),
        (remote.atomic, Right::RemoteAtomic),
    ]
    .into_iter()
    .filter_map(|(granted, right)| granted.then_some(right))
    .collect()
}

impl QpCounters {
    /// Returns the number of send requests that were taken from the queue and have not completed.
    pub const fn sends_outstanding(&self) -> u64 {
        self.sends.saturating_sub(self.sends_completed)
    }
}

/// The peer of a connected QP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    /// QPN of the peer.
    pub qpn: u32,
    /// MAC address, such as `02:00:00:00:00:02`.
    pub mac: String,
    pub ip: IpAddr,
}

impl Peer {
    /// Creates the peer from its QPN and the path to it.
    pub fn new(qpn: Qpn, path: &Encap) -> Self {
        let ip = match path.ip {
            IpAddrs::V4 { dst, .. } => IpAddr::V4(dst),
            IpAddrs::V6 { dst, .. } => IpAddr::V6(dst),
        };
        Self { qpn: qpn.get(), mac: path.dst_mac.to_string(), ip }
    }
}

/// State of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum QpState {
    Reset,
    Init,
    Rtr,
    Rts,
    Sqe,
    /// SQD with a drained send queue.
    Sqd,
    /// SQD while the send queue drains.
    Draining,
    Err,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Service {
    Rc,
    XrcIni,
    XrcTgt,
    Uc,
    Ud,
    Smi,
    Gsi,
}

impl Service {
    /// Returns the service's name in IBTA volume 1.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rc => "RC",
            Self::XrcIni => "XRC INI",
            Self::XrcTgt => "XRC TGT",
            Self::Uc => "UC",
            Self::Ud => "UD",
            Self::Smi => "SMI",
            Self::Gsi => "GSI",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CqRow {
    /// CQN used by software.
    pub cqn: u32,
    /// Number of entries in the buffer.
    pub entries: u64,
    /// Entries written since the CQ was created, modulo 2^32.
    pub producer: u32,
    /// Kind of completion that raises the next event.
    pub armed: Armed,
    /// EQ that receives the queue's events.
    pub eqn: u32,
    /// Fault that put the queue into the error state, or `None`.
    pub fault: Option<Fault>,
}

/// Kind of completion that raises a CQ's next event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Armed {
    No,
    Any,
    /// A solicited or failed completion.
    Solicited,
}

/// Why a completion queue is in the error state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// The queue was full.
    Overrun,
    /// The buffer was not accessible.
    Access,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Overrun => "overrun",
            Self::Access => "access",
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EqRow {
    pub eqn: u32,
    /// Number of entries in the buffer.
    pub entries: u64,
    /// Entries written, modulo 2^32.
    pub producer: u32,
    /// Whether the next event raises an interrupt.
    pub armed: bool,
    /// MSI-X vector; `None` if the EQ does not use one.
    pub vector: Option<u16>,
    /// Asynchronous events that the EQ receives. Bit t stands for event type t in the interface's numbering.
    pub mask: u64,
    /// Whether events were lost in an overflow that has not been reported yet.
    pub overflowed: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MrRow {
    /// The key, including its variant bits.
    pub key: u32,
    pub pd: u32,
    pub start: u64,
    pub length: u64,
    /// Access rights in addition to local read.
    pub rights: Vec<Right>,
    /// Page size in bytes; `None` if the region is physically contiguous or indirect.
    pub page_bytes: Option<u64>,
}

/// Access rights of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Right {
    LocalWrite,
    RemoteWrite,
    RemoteRead,
    RemoteAtomic,
}

/// A range of context memory that is contiguous in ICM and on the bus.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IcmRow {
    /// Address map that contains the range.
    pub table: IcmTable,
    pub start: u64,
    pub length: u64,
    /// Bus address of the first byte.
    pub bus: u64,
}

/// An address map of context memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IcmTable {
    /// Contexts of QPs, CQs and EQs.
    Context,
    /// Memory protection and translation tables.
    Tpt,
    /// All tables, for a device with a single address map.
    All,
}

impl Row for QpRow {
    const TABLE: &'static TableSpec = &TableSpec {
        name: "qps",
        help: "queue pairs: state, PSNs, peer, queues",
        columns: &[
            "QPN",
            "STATE",
            "SERVICE",
            "PD",
            "SEND-PSN",
            "UNACKED",
            "EXPECTED",
            "PEER",
            "SEND-CQ",
            "RECV-CQ",
            "SQ-SLOTS",
            "SQ-PENDING",
            "RQ-SLOTS",
            "REMOTE",
            "RD-ATOMIC",
            "DOORBELLS",
            "SENDS",
            "RECEIVES",
            "COMPLETED",
            "FAILED",
            "IGNORED",
        ],
    };

    fn cells(&self) -> Vec<String> {
        let counters = &self.counters;
        vec![
            hex(self.qpn),
            self.state.to_string(),
            self.service.name().to_owned(),
            hex(self.pd),
            hex(self.send_psn),
            hex(self.unacked_psn),
            hex(self.expected_psn),
            or_dash(self.peer.as_ref().map(|Peer { qpn, ip, .. }| format!("{ip} {qpn:#x}"))),
            hex(self.send_cqn),
            hex(self.recv_cqn),
            self.send_slots.to_string(),
            self.send_waiting.to_string(),
            self.recv_slots.to_string(),
            rights(&self.remote_rights),
            format!("{}/{}", self.max_rd_atomic, self.max_dest_rd_atomic),
            counters.doorbells.to_string(),
            counters.sends.to_string(),
            counters.receives.to_string(),
            (counters.sends_completed + counters.receives_completed).to_string(),
            counters.failed.to_string(),
            or_dash(self.ignored.as_ref().map(|ignored| format!("{} {}", ignored.count, ignored.last))),
        ]
    }

    fn add_observed(&mut self, monitor: &Monitor) {
        self.ignored = monitor.ignored_of(Qpn::new(self.qpn)).map(IgnoredRow::from);
    }
}

impl Row for CqRow {
    const TABLE: &'static TableSpec = &TableSpec {
        name: "cqs",
        help: "completion queues",
        columns: &["CQN", "ENTRIES", "PRODUCER", "ARMED", "EQ", "FAULT"],
    };

    fn cells(&self) -> Vec<String> {
        vec![
            hex(self.cqn),
            self.entries.to_string(),
            self.producer.to_string(),
            match self.armed {
                Armed::No => "no",
                Armed::Any => "any",
                Armed::Solicited => "solicited",
            }
            .to_owned(),
            hex(self.eqn),
            or_dash(self.fault.map(|fault| match fault {
                Fault::Overrun => "overrun",
                Fault::Access => "access",
            })),
        ]
    }
}

impl Row for EqRow {
    const TABLE: &'static TableSpec = &TableSpec {
        name: "eqs",
        help: "event queues",
        columns: &["EQN", "ENTRIES", "PRODUCER", "ARMED", "VECTOR", "MASK", "OVERFLOWED"],
    };

    fn cells(&self) -> Vec<String> {
        vec![
            hex(self.eqn),
            self.entries.to_string(),
            self.producer.to_string(),
            yes(self.armed),
            self.vector.map_or_else(|| "-".to_owned(), |vector| vector.to_string()),
            hex(self.mask),
            yes(self.overflowed),
        ]
    }
}

impl Row for MrRow {
    const TABLE: &'static TableSpec = &TableSpec {
        name: "mrs",
        help: "memory regions",
        columns: &["KEY", "PD", "START", "LENGTH", "PAGES", "RIGHTS"],
    };

    fn cells(&self) -> Vec<String> {
        vec![
            hex(self.key),
            hex(self.pd),
            hex(self.start),
            hex(self.length),
            self.page_bytes.map_or_else(|| "physical".to_owned(), hex),
            rights(&self.rights),
        ]
    }
}

impl Row for IcmRow {
    const TABLE: &'static TableSpec = &TableSpec {
        name: "icm",
        help: "context memory (ICM) mapped by the guest driver",
        columns: &["TABLE", "START", "LENGTH", "BUS"],
    };

    fn cells(&self) -> Vec<String> {
        let table = match self.table {
            IcmTable::Context => "context",
            IcmTable::Tpt => "tpt",
            IcmTable::All => "all",
        };
        vec![table.to_owned(), hex(self.start), hex(self.length), hex(self.bus)]
    }
}

fn rights(rights: &[Right]) -> String {
    let names: Vec<_> = rights
        .iter()
        .map(|right| match right {
            Right::LocalWrite => "local-write",
            Right::RemoteWrite => "remote-write",
            Right::RemoteRead => "remote-read",
            Right::RemoteAtomic => "remote-atomic",
        })
        .collect();
    or_dash(Some(names.join(",")).filter(|text| !text.is_empty()))
}

impl From<&MemoryRegion> for MrRow {
    fn from(region: &MemoryRegion) -> Self {
        let rights = [
            (Rights::LOCAL_WRITE, Right::LocalWrite),
            (Rights::REMOTE_WRITE, Right::RemoteWrite),
            (Rights::REMOTE_READ, Right::RemoteRead),
            (Rights::REMOTE_ATOMIC, Right::RemoteAtomic),
        ];
        let granted = rights.into_iter().filter(|(right, _)| region.rights.contains(*right));
        Self {
            key: region.key.get(),
            pd: region.pd.get(),
            start: region.start.get(),
            length: region.len,
            rights: granted.map(|(_, name)| name).collect(),
            page_bytes: match region.translation {
                Translation::Contiguous { .. } | Translation::Indirect { .. } => None,
                Translation::Paged { page_shift, .. } | Translation::TwoLevel { page_shift, .. } => {
                    Some(1 << page_shift.get())
                }
            },
        }
    }
}

impl From<engine::Service> for Service {
    fn from(service: engine::Service) -> Self {
        match service {
            engine::Service::Rc => Self::Rc,
            engine::Service::XrcIni => Self::XrcIni,
            engine::Service::XrcTgt => Self::XrcTgt,
            engine::Service::Uc => Self::Uc,
            engine::Service::Ud => Self::Ud,
            engine::Service::Smi => Self::Smi,
            engine::Service::Gsi => Self::Gsi,
        }
    }
}

impl From<&engine::QpSnapshot> for QpState {
    fn from(live: &engine::QpSnapshot) -> Self {
        Self::of(live.state, live.draining)
    }
}

impl QpState {
    /// Converts the engine's state. `draining` distinguishes the two phases of SQD.
    pub const fn of(state: engine::State, draining: bool) -> Self {
        match state {
            engine::State::Reset => Self::Reset,
            engine::State::Init => Self::Init,
            engine::State::Rtr => Self::Rtr,
            engine::State::Rts => Self::Rts,
            engine::State::Sqe => Self::Sqe,
            engine::State::Sqd if draining => Self::Draining,
            engine::State::Sqd => Self::Sqd,
            engine::State::Err => Self::Err,
        }
    }
}

/// Displays a state by its name in the IBTA specification.
impl fmt::Display for QpState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Reset => "RESET",
            Self::Init => "INIT",
            Self::Rtr => "RTR",
            Self::Rts => "RTS",
            Self::Sqe => "SQE",
            Self::Sqd => "SQD",
            Self::Draining => "SQD (draining)",
            Self::Err => "ERR",
        })
    }
}
