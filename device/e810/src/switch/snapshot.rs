//! Switch rules as table rows for the control socket.

use card::frontend::snapshot::{ROW_VSIS, RuleAction, RuleCast, RuleOrigin, RuleRecipe, RuleRow};

use super::rule::{Action, Cast, Direction, Key, Origin, Target};
use super::{Switch, VsiSet};

impl Switch {
    /// Returns the rules in ascending order, starting at index `first`. Returns no rules if `first` is
    /// `None`.
    pub(in super::super) fn rows(&self, first: Option<u16>) -> impl Iterator<Item = RuleRow> {
        let keys = first.map(|first| self.keys.range(first..));
        keys.into_iter().flatten().filter_map(|(index, key)| {
            let rule = self.tables[key.recipe() as usize].get(key)?;
            Some(self.row(*index, key, &rule.action))
        })
    }

    fn row(&self, rule: u16, key: &Key, action: &Action) -> RuleRow {
        let members = self.members(action);
        let (what, loopback, lan) = match *action {
            Action::Forward { loopback, lan, .. } | Action::Large { loopback, lan, .. } => {
                (RuleAction::Forward, loopback, lan)
            }
            Action::Drop => (RuleAction::Drop, false, false),
            Action::Prune { .. } => (RuleAction::Admit, false, false),
            Action::Inactive => (RuleAction::Nothing, false, false),
        };
        let row = RuleRow {
            rule,
            recipe: RuleRecipe::Default,
            from: None,
            mac: None,
            vlan: None,
            ether_type: None,
            cast: None,
            action: what,
            vsi_count: members.iter().count(),
            vsis: members.iter().take(ROW_VSIS).map(super::VsiNumber::get).collect(),
            loopback,
            lan,
        };
        match *key {
            Key::EtherType(origin, ether_type) => RuleRow {
                recipe: RuleRecipe::EtherType,
                from: Some(origin.into()),
                ether_type: Some(ether_type),
                ..row
            },
            Key::EtherTypeMac(origin, ether_type, mac) => RuleRow {
                recipe: RuleRecipe::EtherTypeMac,
                from: Some(origin.into()),
                ether_type: Some(ether_type),
                mac: Some(mac.to_string()),
                ..row
            },
            Key::Mac(mac) => RuleRow { recipe: RuleRecipe::Mac, mac: Some(mac.to_string()), ..row },
            Key::MacVlan(mac, vid) => {
                RuleRow { recipe: RuleRecipe::MacVlan, mac: Some(mac.to_string()), vlan: Some(vid), ..row }
            }
            Key::Promiscuous(direction, cast) => RuleRow {
                recipe: RuleRecipe::Promiscuous,
                from: Some(direction.into()),
                cast: Some(cast.into()),
                ..row
            },
            Key::PromiscuousVlan(direction, cast, vid) => RuleRow {
                recipe: RuleRecipe::PromiscuousVlan,
                from: Some(direction.into()),
                cast: Some(cast.into()),
                vlan: Some(vid),
                ..row
            },
            Key::Vlan(vid) => RuleRow { recipe: RuleRecipe::Vlan, vlan: Some(vid), ..row },
            Key::Default(direction) => RuleRow { from: Some(direction.into()), ..row },
        }
    }

    /// Returns the VSIs that an action applies to.
    fn members(&self, action: &Action) -> VsiSet {
        let mut members = VsiSet::default();
        match action {
            Action::Forward { to, .. } => self.extend(&mut members, *to),
            Action::Large { index, .. } => {
                let targets = self.large_actions.get(index).into_iter().flatten();
                targets.for_each(|target| self.extend(&mut members, *target));
            }
            Action::Prune { by: Target::Vsi(vsi), .. } => members.insert(*vsi),
            Action::Prune { by: Target::List(list), .. } => {
                members = self.prune_lists.get(list).copied().unwrap_or_default();
            }
            Action::Drop | Action::Inactive => {}
        }
        members
    }
}

impl From<Origin> for RuleOrigin {
    fn from(origin: Origin) -> Self {
        match origin {
            Origin::Port => Self::Port,
            Origin::Vsi(vsi) => Self::Vsi(vsi.get()),
        }
    }
}

impl From<Direction> for RuleOrigin {
    fn from(direction: Direction) -> Self {
        match direction {
            Direction::Receive => Self::Port,
            Direction::Transmit => Self::AnyVsi,
        }
    }
}

impl From<Cast> for RuleCast {
    fn from(cast: Cast) -> Self {
        match cast {
            Cast::Unicast => Self::Unicast,
            Cast::Multicast => Self::Multicast,
            Cast::Broadcast => Self::Broadcast,
        }
    }
}
