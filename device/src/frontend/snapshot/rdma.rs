//! Rows about objects of the RDMA half of a NIC, beside its queues and memory regions.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// An address handle: the destination of datagrams.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandleRow {
    /// Handle, as software knows it.
    pub handle: u32,
    pub pd: u32,
    pub destination: IpAddr,
    pub source: IpAddr,
    /// Destination MAC; `None` while the neighbour is unresolved.
    pub mac: Option<String>,
    /// VLAN tag control information of datagrams, if they are tagged.
    pub tag: Option<u16>,
    /// IPv4 TOS or IPv6 traffic class.
    pub traffic_class: u8,
    /// TTL or hop limit.
    pub hop_limit: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupRow {
    /// Group number, as software knows it.
    pub group: u16,
    pub address: IpAddr,
    /// VLAN of its datagrams, if they are tagged.
    pub vlan: Option<u16>,
    /// QPNs of the attached queue pairs.
    pub members: Vec<u32>,
}

/// The control queue (CQP), and the number of objects created through it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlRow {
    /// State of the queue.
    pub state: ControlState,
    /// Bus address of its ring.
    pub ring: u64,
    /// Number of entries of the ring.
    pub entries: u16,
    /// Index of the entry that the device executes next.
    pub next: u16,
    /// Error codes of the last failed operation, major code in the upper half; 0 if none failed.
    pub error: u32,
    /// Number of page table entries (PBLEs) that context memory has room for.
    pub pbles: u32,
    /// Number of ARP table entries.
    pub neighbours: usize,
    /// Number of address handles.
    pub handles: usize,
    /// Number of multicast groups.
    pub groups: usize,
    /// Number of scheduler nodes.
    pub nodes: usize,
}

/// State of a control queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ControlState {
    /// Not started, or stopped by software.
    Stopped,
    /// Started with an invalid context.
    Refused,
    Running,
}
