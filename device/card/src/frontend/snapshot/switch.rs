//! Rows for a NIC's switch and its transmit scheduler.

use serde::{Deserialize, Serialize};

use crate::frontend::table::{Row, TableSpec, hex, or_dash, yes};

/// Maximum number of VSIs listed in a [`RuleRow`].
///
/// The list is limited because a rule may apply to every VSI and the device's thread copies the list; see
/// [`PAGE_ROWS`](crate::frontend::table::PAGE_ROWS).
pub const ROW_VSIS: usize = 32;

/// A virtual station interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VsiRow {
    pub vsi: u16,
    /// First receive queue, numbered device-wide.
    pub first_queue: u16,
    /// Number of receive queues.
    pub queues: u16,
    /// RSS table in use; `None` if the driver has not set a hash key.
    pub spread_by: Option<SpreadBy>,
    /// Handling of VLAN tags in received frames.
    pub received_tag: ReceivedTag,
    /// Tag control information of the port VLAN, which is inserted into every frame sent by the VSI.
    pub port_tag: Option<u16>,
    /// Whether the VSI receives only frames on VLANs admitted by a rule.
    pub vlan_prune: bool,
    /// Whether the VSI is prevented from receiving its own frames (source pruning).
    pub source_prune: bool,
    /// Whether frames that the VSI sends may reach other VSIs.
    pub loopback: bool,
    /// Whether frames that the VSI sends may reach the wire.
    pub lan: bool,
    /// Whether the VSI may send only from addresses that it receives frames for (anti-spoofing).
    pub anti_spoof: bool,
    /// Whether RoCE packets received by the VSI are passed to the RDMA engine.
    pub rdma_filter: bool,
}

/// RSS table that spreads a VSI's flows across its queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SpreadBy {
    /// The VSI's own table.
    Vsi,
    /// The table shared by the whole function.
    Function,
}

/// What happens to the VLAN tag of a received frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReceivedTag {
    /// Removed from the frame and reported in the descriptor.
    Stripped,
    /// Left in the frame.
    Kept,
}

/// A switch rule. A field is `None` if the rule does not match on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleRow {
    /// Rule number used by software.
    pub rule: u16,
    /// Recipe: the combination of fields that the rule matches on.
    pub recipe: RuleRecipe,
    /// Source of the frames.
    pub from: Option<RuleOrigin>,
    /// Destination MAC, such as `02:00:00:00:00:02`.
    pub mac: Option<String>,
    pub vlan: Option<u16>,
    pub ether_type: Option<u16>,
    /// Kind of destination address.
    pub cast: Option<RuleCast>,
    /// Action on a match.
    pub action: RuleAction,
    /// Number of VSIs that the rule applies to.
    pub vsi_count: usize,
    /// The first [`ROW_VSIS`] of these VSIs.
    pub vsis: Vec<u16>,
    /// Whether the rule also applies to frames that VSIs send.
    pub loopback: bool,
    /// Whether frames sent by VSIs also go to the wire.
    pub lan: bool,
}

/// The combination of fields that a rule matches on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "the variants are named after the fields")]
pub enum RuleRecipe {
    EtherType,
    Mac,
    MacVlan,
    Promiscuous,
    Vlan,
    Default,
    EtherTypeMac,
    PromiscuousVlan,
}

/// Source of the frames matched by a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RuleOrigin {
    Port,
    AnyVsi,
    /// The VSI with this number.
    Vsi(u16),
}

/// Kind of destination address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum RuleCast {
    Unicast,
    Multicast,
    Broadcast,
}

/// Action of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RuleAction {
    /// Forwards frames to VSIs.
    Forward,
    Drop,
    /// Allows VSIs that prune by VLAN to receive the frames.
    Admit,
    /// No action, because the VSI has been removed.
    Nothing,
}

/// An element of the scheduler tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRow {
    /// ID of the scheduler element (TEID).
    pub teid: u32,
    /// TEID of the parent; `None` for the root.
    pub parent: Option<u32>,
    pub kind: NodeKind,
    /// Layer in the tree; the port is in layer 0.
    pub layer: u8,
    pub suspended: bool,
    /// Weight for bandwidth up to the committed rate.
    pub committed_weight: u16,
    /// Weight for bandwidth beyond the committed rate.
    pub excess_weight: u16,
}

/// Kind of scheduler tree element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeKind {
    Port,
    Class,
    /// A node added by the driver.
    Generic,
    /// The node below which drivers add their own nodes.
    EntryPoint,
    Queue,
}

impl Row for VsiRow {
    const TABLE: &'static TableSpec = &TableSpec {
        name: "vsis",
        help: "virtual station interfaces (VSIs) of the NIC: queues, VLAN tags, filters",
        columns: &[
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
        ],
    };

    fn cells(&self) -> Vec<String> {
        vec![
            self.vsi.to_string(),
            self.first_queue.to_string(),
            self.queues.to_string(),
            or_dash(self.spread_by.map(|by| match by {
                SpreadBy::Vsi => "vsi",
                SpreadBy::Function => "function",
            })),
            match self.received_tag {
                ReceivedTag::Stripped => "stripped",
                ReceivedTag::Kept => "kept",
            }
            .to_owned(),
            or_dash(self.port_tag.map(hex)),
            yes(self.vlan_prune),
            yes(self.source_prune),
            yes(self.loopback),
            yes(self.lan),
            yes(self.anti_spoof),
            yes(self.rdma_filter),
        ]
    }
}

impl Row for RuleRow {
    const TABLE: &'static TableSpec = &TableSpec {
        name: "rules",
        help: "NIC switch rules: addresses, VLANs, EtherTypes, destination VSIs",
        columns: &[
            "RULE", "RECIPE", "FROM", "MAC", "VLAN", "TYPE", "CAST", "ACTION", "VSIS", "LOOPBACK", "LAN",
        ],
    };

    fn cells(&self) -> Vec<String> {
        vec![
            self.rule.to_string(),
            match self.recipe {
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
            or_dash(self.from.map(|from| match from {
                RuleOrigin::Port => "port".to_owned(),
                RuleOrigin::AnyVsi => "any vsi".to_owned(),
                RuleOrigin::Vsi(vsi) => format!("vsi {vsi}"),
            })),
            or_dash(self.mac.as_ref()),
            or_dash(self.vlan),
            or_dash(self.ether_type.map(hex)),
            or_dash(self.cast.map(|cast| match cast {
                RuleCast::Unicast => "unicast",
                RuleCast::Multicast => "multicast",
                RuleCast::Broadcast => "broadcast",
            })),
            match self.action {
                RuleAction::Forward => "forward",
                RuleAction::Drop => "drop",
                RuleAction::Admit => "admit",
                RuleAction::Nothing => "nothing",
            }
            .to_owned(),
            vsis(self),
            yes(self.loopback),
            yes(self.lan),
        ]
    }
}

/// Formats the listed VSIs of a rule and the number of VSIs that are not listed.
fn vsis(row: &RuleRow) -> String {
    let listed = row.vsis.iter().map(u16::to_string).collect::<Vec<_>>().join(",");
    match row.vsi_count.saturating_sub(row.vsis.len()) {
        0 => or_dash(Some(listed).filter(|text| !text.is_empty())),
        more => format!("{listed} and {more} more"),
    }
}

impl Row for NodeRow {
    const TABLE: &'static TableSpec = &TableSpec {
        name: "scheduler",
        help: "the NIC transmit scheduler tree",
        columns: &["TEID", "PARENT", "LAYER", "KIND", "SUSPENDED", "COMMITTED-WEIGHT", "EXCESS-WEIGHT"],
    };

    fn cells(&self) -> Vec<String> {
        vec![
            hex(self.teid),
            or_dash(self.parent.map(hex)),
            self.layer.to_string(),
            match self.kind {
                NodeKind::Port => "port",
                NodeKind::Class => "class",
                NodeKind::Generic => "generic",
                NodeKind::EntryPoint => "entry point",
                NodeKind::Queue => "queue",
            }
            .to_owned(),
            yes(self.suspended),
            self.committed_weight.to_string(),
            self.excess_weight.to_string(),
        ]
    }
}
