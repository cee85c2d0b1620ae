//! Rows about what stands between a NIC's port and its queues.

use serde::{Deserialize, Serialize};

/// Most VSIs that a [`RuleRow`] lists.
///
/// Bound: as for [`PAGE_ROWS`](super::PAGE_ROWS); a rule may be about all VSIs there can be.
pub const ROW_VSIS: usize = 32;

/// A virtual station interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VsiRow {
    /// Number.
    pub vsi: u16,
    /// First of its receive queues, among the device's.
    pub first_queue: u16,
    /// How many it has.
    pub queues: u16,
    /// Whose table spreads flows over them, if its driver gave a key to hash them by.
    pub spread_by: Option<SpreadBy>,
    /// What becomes of the VLAN tag of a received frame.
    pub received_tag: ReceivedTag,
    /// Tag control information that every frame sent gets.
    pub port_tag: Option<u16>,
    /// It receives only VLANs that a rule admits it to.
    pub vlan_prune: bool,
    /// It does not receive what it sent.
    pub source_prune: bool,
    /// What it sends may reach other VSIs.
    pub loopback: bool,
    /// What it sends may reach the wire.
    pub lan: bool,
    /// It sends only from addresses that it receives.
    pub anti_spoof: bool,
    /// RDMA takes its packets out of what it receives.
    pub rdma_filter: bool,
}

/// Whose table spreads the flows of a VSI over its queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SpreadBy {
    /// The VSI's own.
    Vsi,
    /// The function's.
    Function,
}

/// What becomes of the VLAN tag of a received frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReceivedTag {
    /// It goes to the descriptor.
    Stripped,
    /// It stays in the frame.
    Kept,
}

/// A rule of the switch. What it does not compare is `None`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleRow {
    /// Number, as software knows it.
    pub rule: u16,
    /// What it compares, in a word.
    pub recipe: RuleRecipe,
    /// Where frames come from.
    pub from: Option<RuleOrigin>,
    /// Destination, `02:00:00:00:00:02`.
    pub mac: Option<String>,
    /// VLAN.
    pub vlan: Option<u16>,
    /// EtherType.
    pub ether_type: Option<u16>,
    /// Whom frames are for.
    pub cast: Option<RuleCast>,
    /// What it does.
    pub action: RuleAction,
    /// To how many VSIs.
    pub vsi_count: usize,
    /// The first [`ROW_VSIS`] of them.
    pub vsis: Vec<u16>,
    /// With what VSIs send, too.
    pub loopback: bool,
    /// And what VSIs send goes to the wire as well.
    pub lan: bool,
}

/// What a rule compares.
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

/// Where frames of a rule come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RuleOrigin {
    /// The wire.
    Port,
    /// Any VSI.
    AnyVsi,
    /// This VSI.
    Vsi(u16),
}

/// Whom frames are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum RuleCast {
    Unicast,
    Multicast,
    Broadcast,
}

/// What a rule does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RuleAction {
    /// Gives frames to VSIs.
    Forward,
    /// Gives frames to nobody.
    Drop,
    /// Admits VSIs that prune by VLAN.
    Admit,
    /// Nothing any more: its VSI is gone.
    Nothing,
}

/// An element of the scheduler's tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRow {
    /// Identifier.
    pub teid: u32,
    /// Identifier of its parent, if it has one.
    pub parent: Option<u32>,
    /// What it is.
    pub kind: NodeKind,
    /// Layer of the tree, 0 for the port.
    pub layer: u8,
    /// Software suspended it.
    pub suspended: bool,
    /// Share of the committed rate.
    pub committed_weight: u16,
    /// Share of the excess rate.
    pub excess_weight: u16,
}

/// What an element of the scheduler's tree is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeKind {
    /// The port.
    Port,
    /// A traffic class.
    Class,
    /// A node of the driver's.
    Generic,
    /// Where drivers begin.
    EntryPoint,
    /// A queue.
    Queue,
}
