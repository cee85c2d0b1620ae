//! Snapshots of a device's objects for an operator, in the terms of RDMA in general.
//!
//! Rows are copies, so the device is not blocked while they are read. They are also the wire format of the control
//! socket, so field names are part of an interface.

mod rdma;
mod switch;

use std::fmt;
use std::net::IpAddr;

use engine::RemoteAccess;
use protocol::ids::Qpn;
use protocol::roce::{Encap, IpAddrs};
use serde::{Deserialize, Serialize};

pub use self::rdma::{ControlRow, ControlState, GroupRow, HandleRow};
pub use self::switch::{
    NodeKind, NodeRow, ROW_VSIS, ReceivedTag, RuleAction, RuleCast, RuleOrigin, RuleRecipe, RuleRow,
    SpreadBy, VsiRow,
};
use crate::memory::region::{MemoryRegion, Rights, Translation};
use crate::telemetry::monitor::IgnoredRow;

/// Maximum number of rows of a [`Page`].
///
/// Bound: rows are copied on the device's own thread, between two turns of its traffic.
pub const PAGE_ROWS: usize = 256;

/// Kinds of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Table {
    /// Queue pairs that have left RESET.
    Qps,
    /// Completion queues.
    Cqs,
    /// Event queues.
    Eqs,
    /// Memory regions.
    Mrs,
    /// Ranges of context memory that the guest has mapped; empty for a device without context memory.
    Icm,
    /// Queues of a NIC.
    Queues,
    /// The link of a NIC as its driver sees it. One row.
    Link,
    /// Virtual station interfaces of a NIC.
    Vsis,
    /// Filter rules of a NIC's switch.
    Rules,
    /// Elements of a NIC's transmit scheduler.
    Scheduler,
    /// Address handles of a NIC's RDMA half.
    Handles,
    /// Multicast groups of a NIC's RDMA half.
    Groups,
    /// The control queue of a NIC's RDMA half. One row.
    Control,
}

/// Consecutive rows of a [`Table`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Page {
    /// At most [`PAGE_ROWS`] rows.
    pub rows: Rows,
    /// Index at which the next page starts; `None` if this is the last page. Pages are taken at different times, so a
    /// row that appears or disappears in between may be missing.
    pub next: Option<u64>,
}

/// Rows of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "as Table")]
pub enum Rows {
    Qps(Vec<QpRow>),
    Cqs(Vec<CqRow>),
    Eqs(Vec<EqRow>),
    Mrs(Vec<MrRow>),
    Icm(Vec<IcmRow>),
    Queues(Vec<QueueRow>),
    Link(Vec<LinkRow>),
    Vsis(Vec<VsiRow>),
    Rules(Vec<RuleRow>),
    Scheduler(Vec<NodeRow>),
    Handles(Vec<HandleRow>),
    Groups(Vec<GroupRow>),
    Control(Vec<ControlRow>),
}

impl Rows {
    /// Returns an empty list of rows.
    pub const fn none(table: Table) -> Self {
        match table {
            Table::Qps => Self::Qps(Vec::new()),
            Table::Cqs => Self::Cqs(Vec::new()),
            Table::Eqs => Self::Eqs(Vec::new()),
            Table::Mrs => Self::Mrs(Vec::new()),
            Table::Icm => Self::Icm(Vec::new()),
            Table::Queues => Self::Queues(Vec::new()),
            Table::Link => Self::Link(Vec::new()),
            Table::Vsis => Self::Vsis(Vec::new()),
            Table::Rules => Self::Rules(Vec::new()),
            Table::Scheduler => Self::Scheduler(Vec::new()),
            Table::Handles => Self::Handles(Vec::new()),
            Table::Groups => Self::Groups(Vec::new()),
            Table::Control => Self::Control(Vec::new()),
        }
    }
}

/// A queue pair.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QpRow {
    /// QPN, as software knows it.
    pub qpn: u32,
    /// Current state.
    pub state: QpState,
    /// Transport service.
    pub service: Service,
    /// Protection domain.
    pub pd: u32,
    /// Next PSN to send.
    pub send_psn: u32,
    /// Oldest unacknowledged PSN; equal to `send_psn` if nothing is outstanding.
    pub unacked_psn: u32,
    /// PSN expected from the peer.
    pub expected_psn: u32,
    /// Connected peer; `None` if there is none or its address is unknown.
    pub peer: Option<Peer>,
    /// CQN of the send queue.
    pub send_cqn: u32,
    /// CQN of the receive queue.
    pub recv_cqn: u32,
    /// Number of slots of the send queue.
    pub send_slots: u32,
    /// Pending doorbells, whose requests have not been started.
    pub send_waiting: u32,
    /// Number of slots of the receive queue.
    pub recv_slots: u32,
    /// Operations that the peer may request, as far as memory regions permit them.
    pub remote_rights: Vec<Right>,
    /// Maximum number of outstanding READs and atomics as requester.
    pub max_rd_atomic: u8,
    /// Maximum number of outstanding READs and atomics as responder.
    pub max_dest_rd_atomic: u8,
    /// Activity since RESET.
    pub counters: QpCounters,
    /// Reasons why doorbells or packets were ignored, if any were.
    #[serde(default)]
    pub ignored: Option<IgnoredRow>,
}

/// Activity of a queue pair since it left RESET.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QpCounters {
    /// Accepted doorbells of the send queue.
    pub doorbells: u64,
    /// Work requests taken from its send queue.
    pub sends: u64,
    /// Work requests taken from its receive queue.
    pub receives: u64,
    /// Send requests that completed, successfully or not.
    pub sends_completed: u64,
    /// Receive requests that completed, successfully or not.
    pub receives_completed: u64,
    /// Requests of both queues that failed or were flushed.
    pub failed: u64,
}

/// Converts the remote access rights of a QP.
pub(super) fn remote_rights(remote: RemoteAccess) -> Vec<Right> {
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
    /// Number of send requests taken and not completed.
    pub const fn sends_outstanding(&self) -> u64 {
        self.sends.saturating_sub(self.sends_completed)
    }
}

/// The peer of a connected QP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    /// QPN of the peer.
    pub qpn: u32,
    /// MAC, such as `02:00:00:00:00:02`.
    pub mac: String,
    /// IP address.
    pub ip: IpAddr,
}

impl Peer {
    /// The QP with this number at the end of a path.
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
    /// SQD, drained.
    Sqd,
    /// SQD, still draining.
    Draining,
    Err,
}

/// Transport service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Service {
    Rc,
    Uc,
    Ud,
    Smi,
    Gsi,
}

/// A completion queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CqRow {
    /// CQN, as software knows it.
    pub cqn: u32,
    /// Number of entries of the buffer.
    pub entries: u64,
    /// Entries written since its creation, modulo 2^32.
    pub producer: u32,
    /// Completions that raise the next event.
    pub armed: Armed,
    /// EQ of its events.
    pub eqn: u32,
    /// Fault that broke the queue; `None` while it works.
    pub fault: Option<Fault>,
}

/// Completions that raise the next event of a CQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Armed {
    /// Nothing.
    No,
    /// Any completion.
    Any,
    /// A solicited or failed completion.
    Solicited,
}

/// Fault that broke a completion queue.
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

/// An event queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EqRow {
    /// EQ number.
    pub eqn: u32,
    /// Number of entries of the buffer.
    pub entries: u64,
    /// Entries written, modulo 2^32.
    pub producer: u32,
    /// Whether the next event raises an interrupt.
    pub armed: bool,
    /// MSI-X vector; `None` if it uses none.
    pub vector: Option<u16>,
    /// Mask of asynchronous events: bit t for type t, as the interface numbers them.
    pub mask: u64,
    /// Events were lost, and the overflow is not reported yet.
    pub overflowed: bool,
}

/// A memory region.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MrRow {
    /// The key, including its variant bits.
    pub key: u32,
    /// Protection domain.
    pub pd: u32,
    /// Start address.
    pub start: u64,
    /// Length in bytes.
    pub length: u64,
    /// Access rights beside local read.
    pub rights: Vec<Right>,
    /// Page size in bytes; `None` if the region is physically contiguous.
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
    /// Translation that the range belongs to.
    pub table: IcmTable,
    /// ICM address.
    pub start: u64,
    /// Length in bytes.
    pub length: u64,
    /// Bus address of the first byte.
    pub bus: u64,
}

/// Address translations of context memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IcmTable {
    /// Contexts of QPs, CQs and EQs.
    Context,
    /// Memory protection and translation tables.
    Tpt,
    /// All tables: the device has a single translation.
    All,
}

/// A queue of a NIC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueRow {
    /// Queue number within its direction.
    pub queue: u16,
    /// Direction of its frames.
    pub direction: QueueDirection,
    /// Current state.
    pub state: QueueState,
    /// VSI that its frames come from; `None` for a receive queue, which is found in the rows of VSIs.
    pub vsi: Option<u16>,
    /// Bus address of its ring.
    pub ring: u64,
    /// Number of descriptors.
    pub entries: u16,
    /// Index of the descriptor that the device processes next.
    pub head: u16,
    /// Index of the descriptor that software writes next.
    pub tail: u16,
    /// MSI-X vector; `None` if it does not interrupt.
    pub vector: Option<u16>,
    /// Frames sent or received since it was enabled.
    pub frames: u64,
    /// Bytes of these frames, in guest memory or on the wire.
    pub bytes: u64,
    /// Frames dropped because there was no free descriptor or they exceeded the maximum length.
    pub dropped: u64,
}

/// Direction of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QueueDirection {
    /// From guest memory to the wire.
    Transmit,
    /// From the wire to guest memory.
    Receive,
}

/// State of a NIC queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QueueState {
    /// Processing descriptors.
    Enabled,
    /// Stopped after a violation by the driver, until it disables the queue.
    Stopped,
}

/// The link of a NIC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkRow {
    /// Whether software has enabled the link.
    pub enabled: bool,
    /// Reported speed in Gbit/s.
    pub gbps: u16,
    /// Reported MAC.
    pub mac: String,
    /// Maximum frame length, including the frame check sequence.
    pub max_frame: u16,
    /// Frames received.
    pub received: u64,
    /// Frames sent.
    pub sent: u64,
    /// Frames dropped on transmission because the link was down.
    pub lost: u64,
}

/// Builds a page from an iterator of rows with their indices.
pub(super) fn page<P: Into<u64>, T>(entries: impl Iterator<Item = (P, T)>, rows: fn(Vec<T>) -> Rows) -> Page {
    let mut entries = entries;
    let first = entries.by_ref().take(PAGE_ROWS).map(|(_, row)| row).collect();
    Page { rows: rows(first), next: entries.next().map(|(place, _)| place.into()) }
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
                Translation::Contiguous { .. } => None,
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

/// State names of the IBTA specification.
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
