//! Match keys and actions of switch rules.

use protocol::hca::e810::admin::AdminError;
use protocol::hca::e810::admin::resource::ResourceKind;
use protocol::hca::e810::admin::switch::{Lookup, LookupHeader, Recipe, SingleAction};
use protocol::ids::MacAddr;
use protocol::net::layers::Tci;

use super::{PORT, RuleScope};
use crate::vsi::{VsiNumber, Vsis};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Direction {
    /// Received from the port.
    Receive,
    /// Transmitted by a VSI.
    Transmit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Origin {
    Port,
    Vsi(VsiNumber),
}

impl Origin {
    pub(super) const fn direction(self) -> Direction {
        match self {
            Self::Port => Direction::Receive,
            Self::Vsi(_) => Direction::Transmit,
        }
    }
}

/// Kind of destination MAC address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Cast {
    Unicast,
    Multicast,
    Broadcast,
}

impl Cast {
    pub(super) fn of(mac: MacAddr) -> Self {
        match mac {
            MacAddr::BROADCAST => Self::Broadcast,
            mac if mac.is_multicast() => Self::Multicast,
            _ => Self::Unicast,
        }
    }
}

/// Match key of a rule.
///
/// The source of a frame is compared only if the key contains one. A MAC rule specifies its VSI as the source, but
/// matches frames from any source, including the wire. A promiscuous or default rule with direction `Transmit` matches
/// frames sent by any VSI.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Key {
    EtherType(Origin, u16),
    Mac(MacAddr),
    /// Destination MAC address and VLAN.
    MacVlan(MacAddr, u16),
    /// Kind of destination MAC address.
    Promiscuous(Direction, Cast),
    Vlan(u16),
    /// Any frame in this direction.
    Default(Direction),
    /// Source, EtherType and destination MAC address.
    EtherTypeMac(Origin, u16, MacAddr),
    /// Kind of destination MAC address, and VLAN.
    PromiscuousVlan(Direction, Cast, u16),
}

impl Key {
    /// Parses the key from a lookup rule and its Ethernet header. The header contains the values that frames are
    /// compared with.
    pub(super) fn parse(
        direction: Direction,
        lookup: &Lookup,
        header: &[u8],
        vsis: &Vsis,
    ) -> Result<Self, AdminError> {
        /// Length of an untagged Ethernet header.
        const SHORTEST: usize = 14;
        let Some(recipe) = Recipe::from_number(lookup.recipe) else {
            return Err(AdminError::invalid("recipe", lookup.recipe.into()));
        };
        if header.len() < SHORTEST {
            return Err(AdminError::invalid("packet header length of the rule", header.len() as u64));
        }
        let origin = match direction {
            Direction::Receive if lookup.source == PORT => Origin::Port,
            Direction::Receive => return Err(AdminError::no_entry("port", lookup.source.into())),
            Direction::Transmit => {
                let vsi = VsiNumber::new(lookup.source);
                if vsis.get(vsi).is_none() {
                    return Err(AdminError::no_entry("VSI", lookup.source.into()));
                }
                Origin::Vsi(vsi)
            }
        };
        let mut bytes = [0; LookupHeader::LEN];
        bytes.iter_mut().zip(header).for_each(|(to, from)| *to = *from);
        let header = LookupHeader::parse(&bytes);
        let mac = MacAddr(header.dst);
        let ether_type = u16::from_be_bytes(header.ether_type);
        let vid = Tci::from_bits(u16::from_be_bytes(header.tci)).vid();
        Ok(match recipe {
            Recipe::EtherType => Self::EtherType(origin, ether_type),
            Recipe::Mac => Self::Mac(mac),
            Recipe::MacVlan => Self::MacVlan(mac, vid),
            Recipe::Promiscuous => Self::Promiscuous(direction, Cast::of(mac)),
            Recipe::Vlan => Self::Vlan(vid),
            Recipe::Default => Self::Default(direction),
            Recipe::EtherTypeMac => Self::EtherTypeMac(origin, ether_type, mac),
            Recipe::PromiscuousVlan => Self::PromiscuousVlan(direction, Cast::of(mac), vid),
        })
    }

    pub(super) const fn recipe(&self) -> Recipe {
        match self {
            Self::EtherType(..) => Recipe::EtherType,
            Self::Mac(_) => Recipe::Mac,
            Self::MacVlan(..) => Recipe::MacVlan,
            Self::Promiscuous(..) => Recipe::Promiscuous,
            Self::Vlan(_) => Recipe::Vlan,
            Self::Default(_) => Recipe::Default,
            Self::EtherTypeMac(..) => Recipe::EtherTypeMac,
            Self::PromiscuousVlan(..) => Recipe::PromiscuousVlan,
        }
    }

    /// Returns whether the key matches only frames from VSI `vsi`.
    pub(super) fn matches_source(&self, vsi: VsiNumber) -> bool {
        match self {
            Self::EtherType(origin, _) | Self::EtherTypeMac(origin, ..) => *origin == Origin::Vsi(vsi),
            _ => false,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Vsi(VsiNumber),
    List(u16),
}

impl Target {
    pub(super) const fn new(number: u16, list: bool) -> Self {
        if list { Self::List(number) } else { Self::Vsi(VsiNumber::new(number)) }
    }

    /// Checks that the target exists. If the target is a list, the list's type must be `kind`.
    pub(super) fn check(self, kind: ResourceKind, scope: RuleScope<'_>) -> Result<(), AdminError> {
        let (exists, error) = match self {
            Self::Vsi(vsi) => (scope.vsis.get(vsi).is_some(), AdminError::no_entry("VSI", vsi.get().into())),
            Self::List(list) => {
                (scope.resources.is_allocated(kind, list), AdminError::no_entry("VSI list", list.into()))
            }
        };
        if exists { Ok(()) } else { Err(error) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Forward {
        to: Target,
        /// Whether the action also applies to frames from VSIs (loopback enable).
        loopback: bool,
        /// Whether frames from VSIs also go to the wire (LAN enable).
        lan: bool,
    },
    /// Forwards to the targets of a large action.
    Large {
        index: u16,
        /// Whether the action also applies to frames from VSIs (loopback enable).
        loopback: bool,
        /// Whether frames from VSIs also go to the wire (LAN enable).
        lan: bool,
    },
    Drop,
    /// Makes VSIs members of a VLAN. Membership matters only for VSIs with VLAN pruning enabled.
    Prune {
        by: Target,
        /// Whether the action applies to received frames.
        ingress: bool,
        /// Whether the action applies to transmitted frames.
        egress: bool,
    },
    /// No action: the referenced VSI was freed.
    Inactive,
}

impl Action {
    pub(super) fn parse(recipe: Recipe, word: u32) -> Result<Self, AdminError> {
        let action = SingleAction::parse(&word.to_le_bytes());
        let SingleAction { loopback, lan, .. } = action;
        let to = Target::new(action.target, action.list);
        match (recipe, action.kind) {
            (Recipe::Vlan, 2) if !action.drop => {
                Ok(Self::Prune { by: to, ingress: action.ingress, egress: action.egress })
            }
            (Recipe::Vlan, _) => Err(AdminError::invalid("VLAN rule action", word.into())),
            (_, 0) if action.drop => Ok(Self::Drop),
            (_, 0) if action.valid => Ok(Self::Forward { to, loopback, lan }),
            (_, 2) if action.drop => Ok(Self::Large { index: SingleAction::large(word), loopback, lan }),
            _ => Err(AdminError::invalid("rule action", word.into())),
        }
    }

    /// Returns whether `vsi` is the action's only target.
    pub(super) fn targets_only(&self, vsi: VsiNumber) -> bool {
        match self {
            Self::Forward { to: target, .. } | Self::Prune { by: target, .. } => *target == Target::Vsi(vsi),
            Self::Large { .. } | Self::Drop | Self::Inactive => false,
        }
    }
}
