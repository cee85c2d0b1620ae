//! What a rule compares, and what it does.

use protocol::hca::e810::admin::AdminError;
use protocol::hca::e810::admin::resource::ResourceKind;
use protocol::hca::e810::admin::switch::{Lookup, LookupHeader, Recipe, SingleAction};
use protocol::ids::MacAddr;
use protocol::net::layers::Tci;

use super::{Named, PORT};
use crate::frontend::e810::vsi::{VsiNumber, Vsis};

/// Which way a frame comes into the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Direction {
    /// From the port.
    Receive,
    /// From a VSI.
    Transmit,
}

/// Where a frame comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Origin {
    /// The port.
    Port,
    /// A VSI.
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

/// Whom a frame is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Cast {
    /// One station.
    Unicast,
    /// Some.
    Multicast,
    /// All.
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

/// What a rule compares.
///
/// Whence a frame comes matters only where it is said. A rule for an address says a VSI as its source and is yet about
/// whoever sends to that address, the wire included; a promiscuous or default rule of a VSI is about what other VSIs send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Key {
    /// Origin and EtherType.
    EtherType(Origin, u16),
    /// Destination.
    Mac(MacAddr),
    /// Destination and VLAN.
    MacVlan(MacAddr, u16),
    /// Cast of the destination.
    Promiscuous(Direction, Cast),
    /// VLAN.
    Vlan(u16),
    /// Nothing but the direction.
    Default(Direction),
    /// Origin, EtherType and destination.
    EtherTypeMac(Origin, u16, MacAddr),
    /// Cast of the destination, and VLAN.
    PromiscuousVlan(Direction, Cast, u16),
}

impl Key {
    /// Reads what a look-up compares out of its Ethernet header.
    pub(super) fn parse(
        direction: Direction,
        lookup: &Lookup,
        header: &[u8],
        vsis: &Vsis,
    ) -> Result<Self, AdminError> {
        /// Without a tag.
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

    /// The recipe it follows.
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

    /// Whether it compares that frames come from this VSI.
    pub(super) fn is_about(&self, vsi: VsiNumber) -> bool {
        match self {
            Self::EtherType(origin, _) | Self::EtherTypeMac(origin, ..) => *origin == Origin::Vsi(vsi),
            _ => false,
        }
    }
}

/// Whom an action means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// A VSI.
    Vsi(VsiNumber),
    /// A list of them.
    List(u16),
}

impl Target {
    /// From the fields of an action.
    pub(super) const fn new(number: u16, list: bool) -> Self {
        if list { Self::List(number) } else { Self::Vsi(VsiNumber::new(number)) }
    }

    /// Whether it exists; a list is one of `kind`.
    pub(super) fn check(self, kind: ResourceKind, named: Named<'_>) -> Result<(), AdminError> {
        let (exists, error) = match self {
            Self::Vsi(vsi) => (named.vsis.get(vsi).is_some(), AdminError::no_entry("VSI", vsi.get().into())),
            Self::List(list) => {
                (named.resources.is_allocated(kind, list), AdminError::no_entry("VSI list", list.into()))
            }
        };
        if exists { Ok(()) } else { Err(error) }
    }
}

/// What a rule does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Gives the frame to VSIs.
    Forward {
        /// To whom.
        to: Target,
        /// From VSIs too.
        loopback: bool,
        /// And what VSIs send goes to the wire as well.
        lan: bool,
    },
    /// The same to those of a large action.
    Large {
        /// Which one.
        index: u16,
        /// From VSIs too.
        loopback: bool,
        /// And what VSIs send goes to the wire as well.
        lan: bool,
    },
    /// Gives the frame to nobody.
    Drop,
    /// Lets these VSIs take the VLAN, if they take only VLANs that they are let take.
    Prune {
        /// Whom.
        by: Target,
        /// What they receive.
        ingress: bool,
        /// What they send.
        egress: bool,
    },
    /// Nothing: whom it was about is no more.
    Nothing,
}

impl Action {
    /// Reads the action of a look-up with this recipe.
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

    /// Whether it is for this VSI alone.
    pub(super) fn names(&self, vsi: VsiNumber) -> bool {
        match self {
            Self::Forward { to: target, .. } | Self::Prune { by: target, .. } => *target == Target::Vsi(vsi),
            Self::Large { .. } | Self::Drop | Self::Nothing => false,
        }
    }
}
