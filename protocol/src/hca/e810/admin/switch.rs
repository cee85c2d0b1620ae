//! Commands for the switch between the port and the VSIs: 0200, 02A0, 02A1, 02A2.
//!
//! # Spec
//! E810 interface, sections 5.4 and 5.8.

use crate::describe::{Field, Value, Visitor};
use crate::layout;

layout! {
    /// Parameters of "get switch configuration" and its response.
    pub struct SwitchParameters[16] {
        /// Flags of the request.
        @0  flags: u16 => Hex,
        /// First element to list. In the response, the next element, or 0 if there are no more.
        @2  next: u16,
        /// Number of elements in the response buffer.
        @4  count: u16,
    }
}

layout! {
    /// An element connected to the switch.
    pub struct SwitchElement[6] {
        /// Element number, ten bits.
        @0[9:0]    number: u16,
        /// Element type: 0 for a physical port, 1 for a virtual port, 2 for a VSI.
        @0[15:14]  kind: u8,
        /// Switch ID, 16 bits.
        @2         switch_id: u16,
        /// Function that owns the element.
        @4         function: u16,
    }
}

layout! {
    /// Header of a switch rule.
    pub struct RuleHeader[4] {
        @0  kind: RuleKind as u16,
        /// In the response, the status code if this rule was rejected, otherwise 0.
        @2  status: u16,
    }
}

/// Types of switch rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum RuleKind {
    /// Lookup rule for frames from a port.
    LookupReceive,
    /// Lookup rule for frames from a VSI.
    LookupTransmit,
    /// List of actions (large action).
    LargeAction,
    /// Adds VSIs to a forwarding list.
    VsiListSet,
    /// Removes VSIs from a forwarding list.
    VsiListClear,
    /// Adds VSIs to a VLAN prune list.
    PruneListSet,
    /// Removes VSIs from a VLAN prune list.
    PruneListClear,
    Other(u16),
}

impl From<u16> for RuleKind {
    fn from(code: u16) -> Self {
        match code {
            0 => Self::LookupReceive,
            1 => Self::LookupTransmit,
            2 => Self::LargeAction,
            3 => Self::VsiListSet,
            4 => Self::VsiListClear,
            5 => Self::PruneListSet,
            6 => Self::PruneListClear,
            other => Self::Other(other),
        }
    }
}

impl From<RuleKind> for u16 {
    fn from(kind: RuleKind) -> Self {
        match kind {
            RuleKind::LookupReceive => 0,
            RuleKind::LookupTransmit => 1,
            RuleKind::LargeAction => 2,
            RuleKind::VsiListSet => 3,
            RuleKind::VsiListClear => 4,
            RuleKind::PruneListSet => 5,
            RuleKind::PruneListClear => 6,
            RuleKind::Other(code) => code,
        }
    }
}

impl Field for RuleKind {
    fn show(&self, name: &str, to: &mut dyn Visitor) {
        let value = match *self {
            Self::LookupReceive => Value::Name("lookup_receive"),
            Self::LookupTransmit => Value::Name("lookup_transmit"),
            Self::LargeAction => Value::Name("large_action"),
            Self::VsiListSet => Value::Name("vsi_list_set"),
            Self::VsiListClear => Value::Name("vsi_list_clear"),
            Self::PruneListSet => Value::Name("prune_list_set"),
            Self::PruneListClear => Value::Name("prune_list_clear"),
            Self::Other(code) => Value::Hex(code.into()),
        };
        to.value(name, value);
    }
}

layout! {
    /// A lookup rule, which follows the [`RuleHeader`]. The packet header to match follows the rule.
    pub struct Lookup[12] {
        /// Recipe number, which selects the header fields to compare.
        @0   recipe: u16,
        /// Source port or VSI of the frames.
        @2   source: u16,
        /// Action for matching frames; see [`SingleAction`].
        @4   action: u32 => Hex,
        /// Rule number, chosen by the device.
        @8   index: u16,
        /// Length of the header that follows, in bytes.
        @10  header_len: u16,
    }
}

/// Header fields that a rule compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Recipe {
    EtherType,
    Mac,
    /// Destination MAC address and VLAN.
    MacVlan,
    /// Unicast, multicast or broadcast destination.
    Promiscuous,
    Vlan,
    /// No field; matches every frame.
    Default,
    /// EtherType and destination MAC address.
    EtherTypeMac,
    /// Unicast, multicast or broadcast destination, and VLAN.
    PromiscuousVlan,
}

impl Recipe {
    /// Number of recipes in the switch.
    pub const COUNT: usize = 8;

    /// Returns recipe `number`, or `None` if it is not supported.
    pub const fn from_number(number: u16) -> Option<Self> {
        Some(match number {
            0 => Self::EtherType,
            1 => Self::Mac,
            2 => Self::MacVlan,
            3 => Self::Promiscuous,
            4 => Self::Vlan,
            5 => Self::Default,
            8 => Self::EtherTypeMac,
            9 => Self::PromiscuousVlan,
            _ => return None,
        })
    }
}

layout! {
    /// Action of a lookup rule: the common fields, and the fields of forward and prune actions.
    pub struct SingleAction[4] {
        /// Kind of action: 0 for forward, 1 for forward to a queue, 2 for prune (or, with bit 18, a large action), 3
        /// for any other.
        [1:0]   kind: u8,
        /// Whether frames from a VSI can be looped back.
        [2]     loopback: bool,
        /// Whether frames from a VSI also go to the wire.
        [3]     lan: bool,
        /// Target VSI or VSI list.
        [13:4]  target: u16,
        /// Whether `target` is a VSI list.
        [14]    list: bool,
        /// Prune: whether the action applies to frames from VSIs.
        [15]    egress: bool,
        /// Prune: whether the action applies to frames to VSIs.
        [16]    ingress: bool,
        /// Forward: whether the action is valid.
        [17]    valid: bool,
        /// Forward: whether to drop the frame. Prune: whether this is a large action; see [`SingleAction::large`].
        [18]    drop: bool,
    }
}

impl SingleAction {
    /// Returns the index of a large action from bits 16:4 of `action`, which must have kind 2 and bit 18 set.
    pub const fn large(action: u32) -> u16 {
        #[allow(clippy::cast_possible_truncation, reason = "13 bits")]
        let index = (action >> 4 & 0x1fff) as u16;
        index
    }
}

layout! {
    /// Header of a large action or VSI list, between the [`RuleHeader`] and the entries. An action entry is four bytes
    /// long, and a VSI entry is two bytes long.
    pub struct RuleList[4] {
        /// Index of the large action or VSI list.
        @0  index: u16,
        /// Number of entries that follow.
        @2  count: u16,
    }
}

layout! {
    /// One of the actions in a large action.
    pub struct LargeAction[4] {
        /// Kind of action: 0 for forward. Other kinds do not affect forwarding.
        [2:0]   kind: u8,
        /// Target VSI or VSI list.
        [12:3]  target: u16,
        /// Whether `target` is a VSI list.
        [13]    list: bool,
        /// Whether the action is valid.
        [16]    valid: bool,
    }
}

layout! {
    /// Ethernet header of a lookup rule, with a VLAN tag. The fields are in network byte order.
    pub struct LookupHeader[16] {
        @0   dst: [u8; 6],
        @6   src: [u8; 6],
        /// EtherType, or TPID of the tag.
        @12  ether_type: [u8; 2],
        @14  tci: [u8; 2],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Uses an example from section 16.3, a rule that matches the function's MAC address.
    #[test]
    fn parses_mac_rule_example() {
        let rule = [
            0x01, 0, 0, 0, 0x01, 0, 0x01, 0, 0x14, 0, 0x02, 0, 0, 0, 0x10, 0, //
            0x02, 0xe8, 0x10, 0, 0, 0x01, 0x02, 0, 0, 0, 0, 0, 0x81, 0, 0, 0,
        ];
        let header = RuleHeader::parse_prefix(&rule).unwrap();
        assert_eq!(header, RuleHeader { kind: RuleKind::LookupTransmit, status: 0 });
        let lookup = Lookup::parse_prefix(&rule[4..]).unwrap();
        assert_eq!(lookup, Lookup { recipe: 1, source: 1, action: 0x20014, index: 0, header_len: 16 });
        let action = SingleAction { loopback: true, target: 1, valid: true, ..SingleAction::default() };
        assert_eq!(SingleAction::parse(&lookup.action.to_le_bytes()), action);
        assert_eq!(action.emit(), lookup.action.to_le_bytes());
        let match_header = LookupHeader::parse_prefix(&rule[16..]).unwrap();
        assert_eq!((match_header.dst, match_header.ether_type), ([0x02, 0xe8, 0x10, 0, 0, 0x01], [0x81, 0]));
        assert_eq!(Recipe::from_number(lookup.recipe), Some(Recipe::Mac));
    }

    /// Uses a VLAN rule from the recording `run73-all.aq.gz`.
    #[test]
    fn parses_recorded_vlan_prune_action() {
        let action = SingleAction {
            kind: 2,
            lan: true,
            target: 0x52,
            list: true,
            egress: true,
            ingress: true,
            ..SingleAction::default()
        };
        assert_eq!(SingleAction::parse(&0x0001_c52a_u32.to_le_bytes()), action);
    }
}
