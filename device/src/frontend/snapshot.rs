//! What an operator may see of a device's objects, in terms that every RDMA device has.
//!
//! Rows are copies: nothing in them keeps the device from going on. They are also the wire form of the control socket,
//! so a field's name is part of an interface.

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
use crate::telemetry::monitor::Ignored;

/// Most rows of a [`Page`].
///
/// Bound: rows are copied on the device's own thread, between two turns of its traffic.
pub const PAGE_ROWS: usize = 256;

/// Objects of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Table {
    /// Queue pairs that left RESET.
    Qps,
    /// Completion queues.
    Cqs,
    /// Event queues.
    Eqs,
    /// Memory regions.
    Mrs,
    /// Ranges of context memory that the guest lends; a device without any has no rows.
    Icm,
    /// Queues of a NIC.
    Queues,
    /// The link of a NIC as its driver sees it: one row.
    Link,
    /// Virtual station interfaces of a NIC.
    Vsis,
    /// Rules by which a NIC's switch filters.
    Rules,
    /// Elements of a NIC's transmit scheduler.
    Scheduler,
    /// Address handles of a NIC's RDMA half.
    Handles,
    /// Multicast groups of a NIC's RDMA half.
    Groups,
    /// The control queue of a NIC's RDMA half: one row.
    Control,
}

/// Some rows of a [`Table`], in the order of the table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Page {
    /// At most [`PAGE_ROWS`].
    pub rows: Rows,
    /// Where the next page begins, if there are more rows. Pages are of different moments: a row that comes or goes
    /// in between may be in none.
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
    /// No rows of this kind.
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
    /// Number, as software knows it.
    pub qpn: u32,
    /// State, live.
    pub state: QpState,
    /// Transport service.
    pub service: Service,
    /// Protection domain.
    pub pd: u32,
    /// Next PSN to send.
    pub send_psn: u32,
    /// Oldest PSN without acknowledgement; `send_psn` when nothing is outstanding.
    pub unacked_psn: u32,
    /// PSN expected from the peer.
    pub expected_psn: u32,
    /// Connected peer, if the QP has one and knows the way.
    pub peer: Option<Peer>,
    /// Completion queue of sends.
    pub send_cqn: u32,
    /// Completion queue of receives.
    pub recv_cqn: u32,
    /// Slots of the send queue.
    pub send_slots: u32,
    /// Doorbells whose requests were not begun.
    pub send_waiting: u32,
    /// Slots of the receive queue.
    pub recv_slots: u32,
    /// What the peer may ask for, as far as memory regions grant it.
    pub remote_rights: Vec<Right>,
    /// READs and atomics it may have under way.
    pub max_rd_atomic: u8,
    /// READs and atomics its peer may have under way.
    pub max_dest_rd_atomic: u8,
    /// What it did since RESET.
    pub counters: QpCounters,
    /// What was ignored of it, if anything was.
    #[serde(default)]
    pub ignored: Option<Ignored>,
}

/// What a queue pair did since it left RESET.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QpCounters {
    /// Doorbells of its send queue that were obeyed.
    pub doorbells: u64,
    /// Work requests taken from its send queue.
    pub sends: u64,
    /// Work requests taken from its receive queue.
    pub receives: u64,
    /// Of the sends, those that completed, well or not.
    pub sends_completed: u64,
    /// Of the receives, those that completed, well or not.
    pub receives_completed: u64,
    /// Of those of both queues, those that failed or were flushed.
    pub failed: u64,
}

/// What a QP lets its peer ask for, as a row has it.
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
    /// Requests taken from the send queue that have not completed.
    pub const fn sends_outstanding(&self) -> u64 {
        self.sends.saturating_sub(self.sends_completed)
    }
}

/// The far end of a connected QP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    /// Its QP.
    pub qpn: u32,
    /// Ethernet address, `02:00:00:00:00:02`.
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
    /// SQD, with nothing left to finish.
    Sqd,
    /// SQD, still finishing what was begun.
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
    /// Number, as software knows it.
    pub cqn: u32,
    /// Entries of its buffer.
    pub entries: u64,
    /// Entries written since its creation, modulo 2^32.
    pub producer: u32,
    /// What raises its next event.
    pub armed: Armed,
    /// Event queue of its events.
    pub eqn: u32,
    /// Why it takes no more entries, if it does not.
    pub fault: Option<Fault>,
}

/// What raises the next event of a completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Armed {
    /// Nothing.
    No,
    /// Any entry.
    Any,
    /// A solicited or failed one.
    Solicited,
}

/// What broke a completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// It was full.
    Overrun,
    /// Its buffer cannot be reached.
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
    /// Number.
    pub eqn: u32,
    /// Entries of its buffer.
    pub entries: u64,
    /// Entries written, modulo 2^32.
    pub producer: u32,
    /// The next event raises its interrupt.
    pub armed: bool,
    /// MSI-X vector, if it interrupts by one.
    pub vector: Option<u16>,
    /// Bit t: takes asynchronous events of type t, as the device's interface numbers them.
    pub mask: u64,
    /// Events were lost that software has not been told of.
    pub overflowed: bool,
}

/// A memory region.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MrRow {
    /// Whole key.
    pub key: u32,
    /// Protection domain.
    pub pd: u32,
    /// First address.
    pub start: u64,
    /// Bytes.
    pub length: u64,
    /// What it permits besides local reads.
    pub rights: Vec<Right>,
    /// Page size in bytes; `None` if its addresses are bus addresses.
    pub page_bytes: Option<u64>,
}

/// What a region may permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Right {
    LocalWrite,
    RemoteWrite,
    RemoteRead,
    RemoteAtomic,
}

/// A range of context memory that is consecutive on both sides.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IcmRow {
    /// Which of the device's translations it belongs to.
    pub table: IcmTable,
    /// Address in context memory.
    pub start: u64,
    /// Bytes.
    pub length: u64,
    /// Bus address of the first byte.
    pub bus: u64,
}

/// Translations of context memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IcmTable {
    /// Contexts of QPs, CQs and EQs.
    Context,
    /// Memory protection and translation.
    Tpt,
    /// Everything: the device has one translation.
    All,
}

/// A queue of a NIC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueRow {
    /// Number among those of its direction.
    pub queue: u16,
    /// Which way its frames go.
    pub direction: QueueDirection,
    /// What its driver may expect of it.
    pub state: QueueState,
    /// Number of the VSI that its frames come from; of a receive queue the VSI's queues say that.
    pub vsi: Option<u16>,
    /// Bus address of its ring.
    pub ring: u64,
    /// Descriptors of the ring.
    pub entries: u16,
    /// The descriptor that the device takes next.
    pub head: u16,
    /// The descriptor that software writes next.
    pub tail: u16,
    /// MSI-X vector that it interrupts by, if it does.
    pub vector: Option<u16>,
    /// Frames sent or received since it was enabled.
    pub frames: u64,
    /// Their bytes in guest memory, or on the wire.
    pub bytes: u64,
    /// Frames that found no free descriptor, or were longer than the queue takes.
    pub dropped: u64,
}

/// Which way frames of a queue go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QueueDirection {
    /// Out of guest memory.
    Transmit,
    /// Into guest memory.
    Receive,
}

/// What the driver of a queue may expect of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QueueState {
    /// It works.
    Enabled,
    /// Its driver made a mistake; nothing is done for it until it is disabled.
    Stopped,
}

/// The link of a NIC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkRow {
    /// Software wants it to be up.
    pub enabled: bool,
    /// Speed that software is told, Gbit/s.
    pub gbps: u16,
    /// MAC that software is told.
    pub mac: String,
    /// Longest frame, with its check sequence.
    pub max_frame: u16,
    /// Frames received.
    pub received: u64,
    /// Frames sent.
    pub sent: u64,
    /// Frames that were to be sent while the link was down.
    pub lost: u64,
}

/// The first rows of an iterator that gives each with its place in the table.
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
    /// The engine's state; `draining`: in SQD, something is still to be finished.
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

/// In the words of the specification.
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
