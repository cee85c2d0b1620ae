//! Rows about the switch and the transmit scheduler of a NIC.

use serde::{Deserialize, Serialize};

/// Maximum number of VSIs listed in a [`RuleRow`].
///
/// Bound: as for [`PAGE_ROWS`](super::PAGE_ROWS); a rule may apply to every VSI.
pub const ROW_VSIS: usize = 32;

/// A virtual station interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VsiRow {
    pub vsi: u16,
    /// First receive queue, numbered across the device.
    pub first_queue: u16,
    /// Number of receive queues.
    pub queues: u16,
    /// RSS table in use; `None` if the driver has not set a hash key.
    pub spread_by: Option<SpreadBy>,
    /// Whether the VLAN tag of a received frame is stripped.
    pub received_tag: ReceivedTag,
    /// Port VLAN: tag control information inserted into every frame sent.
    pub port_tag: Option<u16>,
    /// Receives only the VLANs that a rule admits.
    pub vlan_prune: bool,
    /// Source pruning: does not receive its own frames.
    pub source_prune: bool,
    /// Frames it sends may reach other VSIs.
    pub loopback: bool,
    /// Frames it sends may reach the wire.
    pub lan: bool,
    /// Anti-spoofing: sends only from addresses that it receives.
    pub anti_spoof: bool,
    /// RoCE packets that it receives are passed to the RDMA half.
    pub rdma_filter: bool,
}

/// RSS table that spreads the flows of a VSI over its queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SpreadBy {
    /// The VSI's own table.
    Vsi,
    /// The table of the function.
    Function,
}

/// Handling of the VLAN tag of a received frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReceivedTag {
    /// Removed from the frame and reported in the descriptor.
    Stripped,
    /// Left in the frame.
    Kept,
}

/// A switch rule. A field that the rule does not match on is `None`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleRow {
    /// Rule number, as software knows it.
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
    /// The first [`ROW_VSIS`] of them.
    pub vsis: Vec<u16>,
    /// Also applies to frames sent by VSIs.
    pub loopback: bool,
    /// Frames sent by VSIs also go to the wire.
    pub lan: bool,
}

/// The combination of fields that a rule matches on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "columns say them")]
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

/// Source of the frames that a rule matches.
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
    /// Admits VSIs that prune by VLAN.
    Admit,
    /// None: the VSI has been removed.
    Nothing,
}

/// An element of the scheduler's tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRow {
    /// TEID, the identifier of the element.
    pub teid: u32,
    /// TEID of the parent; `None` for the root.
    pub parent: Option<u32>,
    pub kind: NodeKind,
    /// Layer of the tree, 0 for the port.
    pub layer: u8,
    pub suspended: bool,
    /// Weight for bandwidth up to the committed rate.
    pub committed_weight: u16,
    /// Weight for bandwidth beyond the committed rate.
    pub excess_weight: u16,
}

/// Kind of an element of the scheduler's tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeKind {
    Port,
    Class,
    /// A node added by the driver.
    Generic,
    /// The node below which drivers add their own.
    EntryPoint,
    Queue,
}
