//! Cells of the RDMA tables of a NIC, other than queues and regions.

use device::frontend::snapshot::{ControlRow, ControlState, GroupRow, HandleRow};

use super::{hex, or_dash};

pub(super) const HANDLE_HEAD: &[&str] =
    &["HANDLE", "PD", "DESTINATION", "SOURCE", "MAC", "TAG", "TRAFFIC-CLASS", "HOP-LIMIT"];

pub(super) const GROUP_HEAD: &[&str] = &["GROUP", "ADDRESS", "VLAN", "MEMBERS"];

pub(super) const CONTROL_HEAD: &[&str] =
    &["STATE", "RING", "ENTRIES", "NEXT", "ERROR", "PBLES", "NEIGHBOURS", "HANDLES", "GROUPS", "NODES"];

pub(super) fn handle(row: &HandleRow) -> Vec<String> {
    vec![
        row.handle.to_string(),
        hex(row.pd),
        row.destination.to_string(),
        row.source.to_string(),
        or_dash(row.mac.as_ref()),
        or_dash(row.tag.map(hex)),
        hex(row.traffic_class),
        row.hop_limit.to_string(),
    ]
}

pub(super) fn group(row: &GroupRow) -> Vec<String> {
    let members: Vec<_> = row.members.iter().map(|qpn| hex(*qpn)).collect();
    vec![
        row.group.to_string(),
        row.address.to_string(),
        or_dash(row.vlan),
        or_dash(Some(members.join(",")).filter(|text| !text.is_empty())),
    ]
}

pub(super) fn control(row: &ControlRow) -> Vec<String> {
    vec![
        match row.state {
            ControlState::Stopped => "stopped",
            ControlState::Refused => "refused",
            ControlState::Running => "running",
        }
        .to_owned(),
        hex(row.ring),
        row.entries.to_string(),
        row.next.to_string(),
        hex(row.error),
        row.pbles.to_string(),
        row.neighbours.to_string(),
        row.handles.to_string(),
        row.groups.to_string(),
        row.nodes.to_string(),
    ]
}
