//! Rows about the RDMA half of a NIC: what its control queue has made beside queues and regions.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// An address handle, by which datagrams name their destination.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandleRow {
    /// Number, as software knows it.
    pub handle: u32,
    /// Protection domain.
    pub pd: u32,
    /// Where datagrams go.
    pub destination: IpAddr,
    /// Where they come from.
    pub source: IpAddr,
    /// Ethernet destination, if the neighbour is known.
    pub mac: Option<String>,
    /// Tag control information that datagrams get.
    pub tag: Option<u16>,
    /// IPv4 TOS or IPv6 traffic class.
    pub traffic_class: u8,
    /// TTL or hop limit.
    pub hop_limit: u8,
}

/// A multicast group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupRow {
    /// Number, as software knows it.
    pub group: u16,
    /// Its address.
    pub address: IpAddr,
    /// VLAN of its datagrams, if they have one.
    pub vlan: Option<u16>,
    /// Queue pairs in it.
    pub members: Vec<u32>,
}

/// The control queue, and how much it has made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlRow {
    /// Whether it runs.
    pub state: ControlState,
    /// Bus address of its ring.
    pub ring: u64,
    /// Entries of the ring.
    pub entries: u16,
    /// The entry that comes next.
    pub next: u16,
    /// Codes of the last operation that failed, major above minor; 0 if none did.
    pub error: u32,
    /// Entries of the lists of pages that context memory has room for.
    pub pbles: u32,
    /// Neighbours.
    pub neighbours: usize,
    /// Address handles.
    pub handles: usize,
    /// Multicast groups.
    pub groups: usize,
    /// Nodes of the scheduler.
    pub nodes: usize,
}

/// Whether a control queue runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ControlState {
    /// Software has not started it, or has ended it.
    Stopped,
    /// It was started with a context that makes no sense.
    Refused,
    /// It runs.
    Running,
}
