//! Rows for a NIC's RDMA objects, except queues and memory regions.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::frontend::table::{Row, TableSpec, hex, or_dash};

/// An address handle: the destination of datagrams.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandleRow {
    /// Handle number used by software.
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
    /// Group number used by software.
    pub group: u16,
    pub address: IpAddr,
    /// VLAN of the group's datagrams, if they are tagged.
    pub vlan: Option<u16>,
    /// QPNs of the attached queue pairs.
    pub members: Vec<u32>,
}

/// The control queue (CQP) and counts of the objects created through it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlRow {
    /// State of the queue.
    pub state: ControlState,
    /// Bus address of the ring.
    pub ring: u64,
    /// Number of entries in the ring.
    pub entries: u16,
    /// Index of the entry that the device executes next.
    pub next: u16,
    /// Error codes of the last failed operation, with the major code in the upper half; 0 if no operation has
    /// failed.
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
    /// Not yet started, or stopped by software.
    Stopped,
    /// Not running, because software tried to start it with an invalid context.
    Refused,
    Running,
}

impl Row for HandleRow {
    const TABLE: &'static TableSpec = &TableSpec {
        name: "handles",
        help: "address handles",
        columns: &["HANDLE", "PD", "DESTINATION", "SOURCE", "MAC", "TAG", "TRAFFIC-CLASS", "HOP-LIMIT"],
    };

    fn cells(&self) -> Vec<String> {
        vec![
            self.handle.to_string(),
            hex(self.pd),
            self.destination.to_string(),
            self.source.to_string(),
            or_dash(self.mac.as_ref()),
            or_dash(self.tag.map(hex)),
            hex(self.traffic_class),
            self.hop_limit.to_string(),
        ]
    }
}

impl Row for GroupRow {
    const TABLE: &'static TableSpec = &TableSpec {
        name: "groups",
        help: "multicast groups and their queue pairs",
        columns: &["GROUP", "ADDRESS", "VLAN", "MEMBERS"],
    };

    fn cells(&self) -> Vec<String> {
        let members: Vec<_> = self.members.iter().map(|qpn| hex(*qpn)).collect();
        vec![
            self.group.to_string(),
            self.address.to_string(),
            or_dash(self.vlan),
            or_dash(Some(members.join(",")).filter(|text| !text.is_empty())),
        ]
    }
}

impl Row for ControlRow {
    const TABLE: &'static TableSpec = &TableSpec {
        name: "control",
        help: "the RDMA control queue and its object counts",
        columns: &[
            "STATE",
            "RING",
            "ENTRIES",
            "NEXT",
            "ERROR",
            "PBLES",
            "NEIGHBOURS",
            "HANDLES",
            "GROUPS",
            "NODES",
        ],
    };

    fn cells(&self) -> Vec<String> {
        vec![
            match self.state {
                ControlState::Stopped => "stopped",
                ControlState::Refused => "refused",
                ControlState::Running => "running",
            }
            .to_owned(),
            hex(self.ring),
            self.entries.to_string(),
            self.next.to_string(),
            hex(self.error),
            self.pbles.to_string(),
            self.neighbours.to_string(),
            self.handles.to_string(),
            self.groups.to_string(),
            self.nodes.to_string(),
        ]
    }
}
