//! Cells of the tables between a NIC's port and its queues.

use device::frontend::snapshot::{
    NodeKind, NodeRow, ReceivedTag, RuleAction, RuleCast, RuleOrigin, RuleRecipe, RuleRow, SpreadBy, VsiRow,
};

use super::{hex, or_dash, yes};

pub(super) const VSI_HEAD: &[&str] = &[
    "VSI",
    "FIRST-QUEUE",
    "QUEUES",
    "SPREAD-BY",
    "RECEIVED-TAG",
    "PORT-TAG",
    "VLAN-PRUNE",
    "SOURCE-PRUNE",
    "LOOPBACK",
    "LAN",
    "ANTI-SPOOF",
    "RDMA",
];

pub(super) const RULE_HEAD: &[&str] =
    &["RULE", "RECIPE", "FROM", "MAC", "VLAN", "TYPE", "CAST", "ACTION", "VSIS", "LOOPBACK", "LAN"];

pub(super) const NODE_HEAD: &[&str] =
    &["TEID", "PARENT", "LAYER", "KIND", "SUSPENDED", "COMMITTED-WEIGHT", "EXCESS-WEIGHT"];

pub(super) fn vsi(row: &VsiRow) -> Vec<String> {
    vec![
        row.vsi.to_string(),
        row.first_queue.to_string(),
        row.queues.to_string(),
        or_dash(row.spread_by.map(|by| match by {
            SpreadBy::Vsi => "vsi",
            SpreadBy::Function => "function",
        })),
        match row.received_tag {
            ReceivedTag::Stripped => "stripped",
            ReceivedTag::Kept => "kept",
        }
        .to_owned(),
        or_dash(row.port_tag.map(hex)),
        yes(row.vlan_prune),
        yes(row.source_prune),
        yes(row.loopback),
        yes(row.lan),
        yes(row.anti_spoof),
        yes(row.rdma_filter),
    ]
}

pub(super) fn rule(row: &RuleRow) -> Vec<String> {
    vec![
        row.rule.to_string(),
        match row.recipe {
            RuleRecipe::EtherType => "ether-type",
            RuleRecipe::Mac => "mac",
            RuleRecipe::MacVlan => "mac+vlan",
            RuleRecipe::Promiscuous => "promiscuous",
            RuleRecipe::Vlan => "vlan",
            RuleRecipe::Default => "default",
            RuleRecipe::EtherTypeMac => "ether-type+mac",
            RuleRecipe::PromiscuousVlan => "promiscuous+vlan",
        }
        .to_owned(),
        or_dash(row.from.map(|from| match from {
            RuleOrigin::Port => "port".to_owned(),
            RuleOrigin::AnyVsi => "any vsi".to_owned(),
            RuleOrigin::Vsi(vsi) => format!("vsi {vsi}"),
        })),
        or_dash(row.mac.as_ref()),
        or_dash(row.vlan),
        or_dash(row.ether_type.map(hex)),
        or_dash(row.cast.map(|cast| match cast {
            RuleCast::Unicast => "unicast",
            RuleCast::Multicast => "multicast",
            RuleCast::Broadcast => "broadcast",
        })),
        match row.action {
            RuleAction::Forward => "forward",
            RuleAction::Drop => "drop",
            RuleAction::Admit => "admit",
            RuleAction::Nothing => "nothing",
        }
        .to_owned(),
        vsis(row),
        yes(row.loopback),
        yes(row.lan),
    ]
}

/// Returns the VSIs of a rule, and how many are omitted.
fn vsis(row: &RuleRow) -> String {
    let listed = row.vsis.iter().map(u16::to_string).collect::<Vec<_>>().join(",");
    match row.vsi_count.saturating_sub(row.vsis.len()) {
        0 => or_dash(Some(listed).filter(|text| !text.is_empty())),
        more => format!("{listed} and {more} more"),
    }
}

pub(super) fn node(row: &NodeRow) -> Vec<String> {
    vec![
        hex(row.teid),
        or_dash(row.parent.map(hex)),
        row.layer.to_string(),
        match row.kind {
            NodeKind::Port => "port",
            NodeKind::Class => "class",
            NodeKind::Generic => "generic",
            NodeKind::EntryPoint => "entry point",
            NodeKind::Queue => "queue",
        }
        .to_owned(),
        yes(row.suspended),
        row.committed_weight.to_string(),
        row.excess_weight.to_string(),
    ]
}
