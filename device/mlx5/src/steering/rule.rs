//! Flow rules: the actions of flow table entries.
//!
//! # Spec
//! mlx5 interface, section 16.4.

use protocol::hca::mlx5::flow_entry::{
    Destination, EntryFields, FlowActions, FlowContext, FlowDestination, FlowTag, ListedCounter, PushedTag,
};
use protocol::ids::{FlowCounterId, FlowTableId, Tirn};
use protocol::net::layers::{TagKind, Tci, VlanTag};
use smallvec::SmallVec;

use super::vlan::VlanEdit;
use crate::check::{Check, Rejection};
use crate::limits::flow::{MAX_ENTRY_COUNTERS, MAX_ENTRY_DESTINATIONS};
use crate::uses::{Object, Used};

/// Actions that [`Rule`] supports.
const SUPPORTED: FlowActions = FlowActions::from_bits_retain(0x18f);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub tag: FlowTag,
    pub fate: Fate,
    pub pop_vlan: bool,
    pub push_vlan: Option<VlanTag>,
    /// At most [`MAX_ENTRY_COUNTERS`] counters, or `None` if the entry does not count frames.
    pub counters: Option<SmallVec<[FlowCounterId; MAX_ENTRY_COUNTERS]>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The default action. In receive tables, it drops the frame, because there is no destination.
    Allow,
    Drop,
    /// One to [`MAX_ENTRY_DESTINATIONS`] destinations.
    Forward(SmallVec<[Destination; 2]>),
}

/// The entry fields that [`EntryFields`] can select, not yet checked.
#[derive(Clone, Debug, Default)]
pub struct Parts {
    actions: FlowActions,
    tag: FlowTag,
    pushed_tag: PushedTag,
    destinations: SmallVec<[FlowDestination; 2]>,
    counters: SmallVec<[FlowCounterId; MAX_ENTRY_COUNTERS]>,
}

impl Parts {
    /// Reads the context of an entry and the lists that follow it.
    ///
    /// # Errors
    /// Fails if a list is too long or incomplete.
    pub fn parse(context: &FlowContext, lists: &[u8]) -> Result<Self, Rejection> {
        let incomplete = || Check::FlowLists.rejects(lists.len() as u64);
        let [destinations, counters] = context.lists(lists).ok_or_else(incomplete)?;
        if destinations.len() > MAX_ENTRY_DESTINATIONS {
            return Err(Check::FlowDestinationLimit.rejects(destinations.len() as u64));
        }
        if counters.len() > MAX_ENTRY_COUNTERS {
            return Err(Check::FlowEntryCounters.rejects(counters.len() as u64));
        }
        Ok(Self {
            actions: context.actions,
            tag: context.tag,
            pushed_tag: context.pushed_tag,
            destinations: destinations.iter().map(FlowDestination::parse).collect(),
            counters: counters.iter().map(|listed| ListedCounter::parse(listed).counter).collect(),
        })
    }

    /// Returns the objects referred to by the lists.
    pub fn references(&self) -> Used {
        let destinations = self.destinations.iter().filter_map(FlowDestination::destination);
        let destinations = destinations.map(|destination| match destination {
            Destination::Table(table) => Object::FlowTable(table.get()),
            Destination::Tir(tirn) => Object::Tir(tirn.get()),
        });
        let counters = self.counters.iter().map(|counter| Object::FlowCounter(counter.get()));
        destinations.chain(counters).collect()
    }

    /// Replaces the selected parts with those of `new`.
    ///
    /// # Errors
    /// Fails if an unknown part is selected.
    pub fn modify(&mut self, fields: EntryFields, new: Self) -> Result<(), Rejection> {
        let known =
            EntryFields::ACTIONS | EntryFields::TAG | EntryFields::DESTINATIONS | EntryFields::COUNTERS;
        if !known.contains(fields) {
            return Err(Check::FlowEntryFields.rejects(fields.bits()));
        }
        if fields.contains(EntryFields::ACTIONS) {
            (self.actions, self.pushed_tag) = (new.actions, new.pushed_tag);
        }
        if fields.contains(EntryFields::TAG) {
            self.tag = new.tag;
        }
        if fields.contains(EntryFields::DESTINATIONS) {
            self.destinations = new.destinations;
        }
        if fields.contains(EntryFields::COUNTERS) {
            self.counters = new.counters;
        }
        Ok(())
    }
}

impl TryFrom<&Parts> for Rule {
    type Error = Rejection;

    /// A list is ignored if the entry does not have the action that uses it.
    fn try_from(parts: &Parts) -> Result<Self, Rejection> {
        let actions = parts.actions;
        if !SUPPORTED.contains(actions) {
            return Err(Check::FlowActions.rejects(actions.bits()));
        }
        let chosen = actions & (FlowActions::ALLOW | FlowActions::DROP | FlowActions::FORWARD);
        let fate = if chosen == FlowActions::ALLOW {
            Fate::Allow
        } else if chosen == FlowActions::DROP {
            Fate::Drop
        } else if chosen == FlowActions::FORWARD {
            let kind = |listed: &FlowDestination| {
                listed.destination().ok_or_else(|| Check::FlowDestinationKind.rejects(listed.kind))
            };
            let destinations = parts.destinations.iter().map(kind).collect::<Result<SmallVec<_>, _>>()?;
            if destinations.is_empty() {
                return Err(Check::FlowNoDestination.rejects(actions.bits()));
            }
            Fate::Forward(destinations)
        } else {
            return Err(Check::FlowFate.rejects(actions.bits()));
        };
        let PushedTag { ether_type, tci } = parts.pushed_tag;
        let push_vlan = match (actions.contains(FlowActions::PUSH_VLAN), TagKind::from_ether_type(ether_type))
        {
            (false, _) => None,
            (true, Some(kind)) => Some(VlanTag { kind, tci: Tci::from_bits(tci) }),
            (true, None) => return Err(Check::FlowPushedTag.rejects(ether_type)),
        };
        Ok(Self {
            tag: parts.tag,
            fate,
            pop_vlan: actions.contains(FlowActions::POP_VLAN),
            push_vlan,
            counters: actions.contains(FlowActions::COUNT).then(|| parts.counters.clone()),
        })
    }
}

impl From<&Rule> for Parts {
    fn from(rule: &Rule) -> Self {
        let mut actions = match rule.fate {
            Fate::Allow => FlowActions::ALLOW,
            Fate::Drop => FlowActions::DROP,
            Fate::Forward(_) => FlowActions::FORWARD,
        };
        actions.set(FlowActions::COUNT, rule.counters.is_some());
        actions.set(FlowActions::POP_VLAN, rule.pop_vlan);
        actions.set(FlowActions::PUSH_VLAN, rule.push_vlan.is_some());
        let pushed_tag = rule
            .push_vlan
            .map(|tag| PushedTag { ether_type: tag.kind.ether_type(), tci: tag.tci.into_bits() });
        Self {
            actions,
            tag: rule.tag,
            pushed_tag: pushed_tag.unwrap_or_default(),
            destinations: rule.destinations().iter().copied().map(FlowDestination::from).collect(),
            counters: rule.counters().iter().copied().collect(),
        }
    }
}

impl Parts {
    /// Returns an entry's context, without the group and the match value, and the lists that follow it.
    pub fn emit(&self) -> (FlowContext, Vec<u8>) {
        let count = |len: usize| u32::try_from(len).unwrap_or(u32::MAX);
        let context = FlowContext {
            tag: self.tag,
            actions: self.actions,
            destination_count: count(self.destinations.len()),
            counter_count: count(self.counters.len()),
            pushed_tag: self.pushed_tag,
            ..FlowContext::default()
        };
        let destinations = self.destinations.iter().map(FlowDestination::emit);
        let counters = self.counters.iter().map(|counter| ListedCounter { counter: *counter }.emit());
        (context, destinations.chain(counters).flatten().collect())
    }
}

impl Rule {
    pub fn destinations(&self) -> &[Destination] {
        match &self.fate {
            Fate::Forward(destinations) => destinations,
            Fate::Allow | Fate::Drop => &[],
        }
    }

    pub fn counters(&self) -> &[FlowCounterId] {
        self.counters.as_deref().unwrap_or_default()
    }

    /// Returns the tables that the rule forwards frames to.
    pub fn tables(&self) -> impl Iterator<Item = FlowTableId> {
        self.destinations().iter().filter_map(|destination| match destination {
            Destination::Table(table) => Some(*table),
            Destination::Tir(_) => None,
        })
    }

    /// Returns the TIRs that the rule forwards frames to.
    pub fn tirs(&self) -> impl Iterator<Item = Tirn> {
        self.destinations().iter().filter_map(|destination| match destination {
            Destination::Tir(tirn) => Some(*tirn),
            Destination::Table(_) => None,
        })
    }

    /// Returns the TIRs that the rule references. `Steering` itself counts references to tables and counters.
    pub fn uses(&self) -> Used {
        self.tirs().map(|tirn| Object::Tir(tirn.get())).collect()
    }

    /// Returns the VLAN edits that the rule makes. A tag is removed before another tag is inserted.
    pub fn vlan_edits(&self) -> impl Iterator<Item = VlanEdit> {
        let pop = self.pop_vlan.then_some(VlanEdit::Pop);
        pop.into_iter().chain(self.push_vlan.map(VlanEdit::Push))
    }
}
