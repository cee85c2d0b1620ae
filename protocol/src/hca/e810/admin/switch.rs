//! The switch between port and VSIs: 0200, 02A0, 02A1, 02A2.
//!
//! # Spec
//! E810 interface, sections 5.4 and 5.8.

use crate::describe::{Field, Value, Visitor};
use crate::layout;

layout! {
    /// "Get switch configuration" and its answer.
    pub struct SwitchParameters[16] {
        /// Flags.
        @0  flags: u16 => Hex,
        /// Where to begin; in the answer where to go on, or 0.
        @2  next: u16,
        /// Elements in the buffer of the answer.
        @4  count: u16,
    }
}

layout! {
    /// Something that the switch connects.
    pub struct SwitchElement[6] {
        /// Its number.
        @0[9:0]    number: u16,
        /// 0 a physical port, 1 a virtual port, 2 a VSI.
        @0[15:14]  kind: u8,
        /// Number of the switch.
        @2         switch_id: u16,
        /// Function it belongs to.
        @4         function: u16,
    }
}

layout! {
    /// What every rule begins with.
    pub struct RuleHeader[4] {
        /// Kind of rule.
        @0  kind: RuleKind as u16,
        /// Answer: 0, or why this rule was refused.
        @2  status: u16,
    }
}

/// Kinds of rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleKind {
    /// A look-up for what comes from a port.
    LookupReceive,
    /// A look-up for what comes from a VSI.
    LookupTransmit,
    /// A list of actions.
    LargeAction,
    /// VSIs come to a list of destinations.
    VsiListSet,
    /// VSIs leave it.
    VsiListClear,
    /// VSIs come to a list of those that take a VLAN.
    PruneListSet,
    /// VSIs leave it.
    PruneListClear,
    /// None of them.
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
    /// A look-up, behind its [`RuleHeader`]; the header to match follows.
    pub struct Lookup[12] {
        /// What of the header is compared.
        @0   recipe: u16,
        /// Port or VSI that frames come from.
        @2   source: u16,
        /// What becomes of them.
        @4   action: u32 => Hex,
        /// Number of the rule, the device's to choose.
        @8   index: u16,
        /// Bytes of the header that follow.
        @10  header_len: u16,
    }
}

/// What of a frame's header a rule compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Recipe {
    /// EtherType.
    EtherType,
    /// Destination.
    Mac,
    /// Destination and VLAN.
    MacVlan,
    /// Cast of the destination.
    Promiscuous,
    /// VLAN.
    Vlan,
    /// Nothing.
    Default,
    /// EtherType and destination.
    EtherTypeMac,
    /// Cast of the destination, and VLAN.
    PromiscuousVlan,
}

impl Recipe {
    /// How many there are.
    pub const COUNT: usize = 8;

    /// The recipe of this number, if the device has it.
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
    /// The action of a look-up, as far as all actions have it in common and for forwarding.
    pub struct SingleAction[4] {
        /// 0 forward, 1 to a queue, 2 prune or, with bit 18, a large action, 3 others.
        [1:0]   kind: u8,
        /// What a VSI sent may take this way too.
        [2]     loopback: bool,
        /// What a VSI sent goes to the wire besides.
        [3]     lan: bool,
        /// VSI or list.
        [13:4]  target: u16,
        /// It is a list.
        [14]    list: bool,
        /// Prune: what VSIs send.
        [15]    egress: bool,
        /// Prune: what VSIs receive.
        [16]    ingress: bool,
        /// Forward: the action means something.
        [17]    valid: bool,
        /// Forward: to nobody. Prune: [`SingleAction::large`] is an action.
        [18]    drop: bool,
    }
}

impl SingleAction {
    /// The large action that an action of kind 2 with bit 18 stands for: bits 16:4.
    pub const fn large(action: u32) -> u16 {
        #[allow(clippy::cast_possible_truncation, reason = "13 bits")]
        let index = (action >> 4 & 0x1fff) as u16;
        index
    }
}

layout! {
    /// Behind the header of a large action and of a list: its number, and how many words follow, of four bytes each or of
    /// two.
    pub struct RuleList[4] {
        /// Number.
        @0  index: u16,
        /// How many follow.
        @2  count: u16,
    }
}

layout! {
    /// One action of a large action.
    pub struct LargeAction[4] {
        /// 0 forward; others change nothing about where a frame goes.
        [2:0]   kind: u8,
        /// VSI or list.
        [12:3]  target: u16,
        /// It is a list.
        [13]    list: bool,
        /// It means something.
        [16]    valid: bool,
    }
}

layout! {
    /// The Ethernet header of a look-up with a tag, in network order as on the wire.
    pub struct LookupHeader[16] {
        /// Destination.
        @0   dst: [u8; 6],
        /// Source.
        @6   src: [u8; 6],
        /// EtherType, of the tag if it has one.
        @12  ether_type: [u8; 2],
        /// Tag control information.
        @14  tci: [u8; 2],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Section 16.3: the rule for the own MAC.
    #[test]
    fn the_rule_for_the_own_mac_is_read_as_published() {
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

    /// Action of a VLAN's rule in `run73-all.aq.gz`.
    #[test]
    fn the_rule_of_a_vlan_prunes_both_ways_by_a_list() {
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
