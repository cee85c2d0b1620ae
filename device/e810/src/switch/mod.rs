//! The switch between the port and the VSIs: its rules, VSI lists, prune lists and large actions.
//!
//! [`forward`] applies the rules to frames. Each recipe has its own table, keyed by the fields that the recipe
//! compares, so each frame needs one lookup per recipe, regardless of the number of rules.
//!
//! # Spec
//! E810 interface, sections 5.4 and 5.8.

mod forward;
mod rule;
mod snapshot;
mod vsi_set;

use std::collections::BTreeMap;

use protocol::hca::e810::admin::resource::ResourceKind;
use protocol::hca::e810::admin::switch::{
    LargeAction, Lookup, Recipe, RuleHeader, RuleKind, RuleList, SwitchElement,
};
use protocol::hca::e810::admin::{AdminError, AdminStatus};

pub(super) use self::forward::{Destination, DiscardError, Route};
use self::rule::{Action, Direction, Key, Target};
pub(super) use self::vsi_set::VsiSet;
use super::buffer::Buffer;
use super::id_pool::IdPool;
use super::limits::{MAX_ACTIONS, MAX_LARGE_ACTIONS, MAX_RULES};
use super::resources::Resources;
use super::vsi::{VsiNumber, Vsis};

/// ID of the only switch.
const SWITCH_ID: u16 = 1;

/// Port number of the only port.
const PORT: u16 = 0;

/// The rules and the lists they reference.
#[derive(Debug)]
pub(super) struct Switch {
    indices: IdPool,
    /// Match key of each rule, by rule index.
    keys: BTreeMap<u16, Key>,
    /// Rules by match key, one table per recipe.
    tables: [BTreeMap<Key, Rule>; Recipe::COUNT],
    vsi_lists: BTreeMap<u16, VsiSet>,
    prune_lists: BTreeMap<u16, VsiSet>,
    /// Targets of each large action.
    large_actions: BTreeMap<u16, Vec<Target>>,
}

/// A rule in the table of its recipe.
#[derive(Clone, Copy, Debug)]
struct Rule {
    index: u16,
    action: Action,
}

/// Objects that a rule may reference.
#[derive(Clone, Copy, Debug)]
pub(super) struct RuleScope<'a> {
    pub(super) vsis: &'a Vsis,
    pub(super) resources: &'a Resources,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RuleCommand {
    /// "Add switch rules", opcode 02A0.
    Add,
    /// "Update switch rules", opcode 02A1.
    Update,
    /// "Remove switch rules", opcode 02A2.
    Remove,
}

impl Default for Switch {
    fn default() -> Self {
        Self {
            indices: IdPool::new(1, MAX_RULES),
            keys: BTreeMap::new(),
            tables: Default::default(),
            vsi_lists: BTreeMap::new(),
            prune_lists: BTreeMap::new(),
            large_actions: BTreeMap::new(),
        }
    }
}

impl Switch {
    /// Executes "Get switch configuration". The elements are the port and all VSIs. Starting at element `first`, writes
    /// as many elements as fit in the buffer. Returns the number of elements written and the index of the next one (0
    /// if none is left).
    ///
    /// # Errors
    /// EINVAL if the buffer is too short for one element or if `first` is past the last element.
    pub(super) fn configuration(
        vsis: &Vsis,
        first: u16,
        buffer: &mut [u8],
    ) -> Result<(u16, u16), AdminError> {
        const PHYSICAL_PORT: u8 = 0;
        const VSI: u8 = 2;
        let element = |number, kind| SwitchElement { number, kind, switch_id: SWITCH_ID, function: 0 };
        let all = std::iter::once(element(PORT, PHYSICAL_PORT))
            .chain(vsis.iter().map(|(number, _)| element(number.get(), VSI)));
        let mut left = all.skip(first.into()).peekable();
        if left.peek().is_none() {
            return Err(AdminError::invalid("first switch element", first.into()));
        }
        let mut places = Buffer::new(buffer);
        let mut count = 0;
        while let Some(element) = left.peek() {
            match places.next() {
                Ok(place) => *place = element.emit(),
                Err(error) if count == 0 => return Err(error),
                Err(_) => return Ok((count, first + count)),
            }
            left.next();
            count += 1;
        }
        Ok((count, 0))
    }

    /// Executes "Add switch rules", "Update switch rules" or "Remove switch rules". The buffer contains `count` rules,
    /// back to back. Fills in the index of each added lookup rule, and the status of the first rejected rule.
    ///
    /// # Errors
    /// EINVAL for an invalid rule; ENOENT for a rule that references an unknown object; EEXIST for a
    /// duplicate key; ENOSPC if a limit is reached. Rules before the rejected one remain in effect.
    pub(super) fn rules(
        &mut self,
        command: RuleCommand,
        scope: RuleScope<'_>,
        count: u16,
        buffer: &mut [u8],
    ) -> Result<(), AdminError> {
        let mut left = Buffer::new(buffer);
        for _ in 0..count {
            let bytes: &mut [u8; RuleHeader::LEN] = left.next()?;
            let header = RuleHeader::parse(bytes);
            let outcome = self.rule(command, header.kind, scope, &mut left);
            let status = outcome.map_or_else(|error| error.status.code(), |()| 0);
            *bytes = RuleHeader { status, ..header }.emit();
            outcome?;
        }
        Ok(())
    }

    fn rule(
        &mut self,
        command: RuleCommand,
        kind: RuleKind,
        scope: RuleScope<'_>,
        left: &mut Buffer<'_>,
    ) -> Result<(), AdminError> {
        match kind {
            RuleKind::LookupReceive => self.lookup(command, Direction::Receive, scope, left),
            RuleKind::LookupTransmit => self.lookup(command, Direction::Transmit, scope, left),
            RuleKind::LargeAction => self.large_action(command, scope, left),
            RuleKind::VsiListSet | RuleKind::VsiListClear => {
                let set = kind == RuleKind::VsiListSet && command != RuleCommand::Remove;
                update_list(&mut self.vsi_lists, ResourceKind::VsiList, set, scope, left)
            }
            RuleKind::PruneListSet | RuleKind::PruneListClear => {
                let set = kind == RuleKind::PruneListSet && command != RuleCommand::Remove;
                update_list(&mut self.prune_lists, ResourceKind::PruneList, set, scope, left)
            }
            RuleKind::Other(code) => Err(AdminError::invalid("rule type", code.into())),
        }
    }

    fn lookup(
        &mut self,
        command: RuleCommand,
        direction: Direction,
        scope: RuleScope<'_>,
        left: &mut Buffer<'_>,
    ) -> Result<(), AdminError> {
        let bytes: &mut [u8; Lookup::LEN] = left.next()?;
        let lookup = Lookup::parse(bytes);
        let header = left.next_all::<1>(lookup.header_len)?.as_flattened();
        // Section 5.8: each rule starts at an even offset.
        left.skip(header.len() % 2);
        match command {
            RuleCommand::Add => {
                let key = Key::parse(direction, &lookup, header, scope.vsis)?;
                let action = Action::parse(key.recipe(), lookup.action)?;
                self.check(&action, scope)?;
                let index = self.add(key, action)?;
                *bytes = Lookup { index, ..lookup }.emit();
            }
            RuleCommand::Update => {
                let key = *self.keys.get(&lookup.index).ok_or(unknown_rule(lookup.index))?;
                let action = Action::parse(key.recipe(), lookup.action)?;
                self.check(&action, scope)?;
                self.tables[key.recipe() as usize].insert(key, Rule { index: lookup.index, action });
            }
            RuleCommand::Remove => {
                let key = self.keys.remove(&lookup.index).ok_or(unknown_rule(lookup.index))?;
                self.tables[key.recipe() as usize].remove(&key);
                self.indices.release(lookup.index);
            }
        }
        Ok(())
    }

    fn add(&mut self, key: Key, action: Action) -> Result<u16, AdminError> {
        let table = &mut self.tables[key.recipe() as usize];
        if let Some(old) = table.get(&key).copied() {
            // A new rule may replace a rule that has the same key and became inactive when its VSI was freed.
            if !matches!(old.action, Action::Inactive) {
                return Err(AdminError::new(AdminStatus::Exists, "rule", old.index.into()));
            }
            self.keys.remove(&old.index);
            self.indices.release(old.index);
        }
        let Some(index) = self.indices.allocate() else {
            return Err(AdminError::new(
                AdminStatus::NoSpace,
                "limit of rules reached at",
                self.indices.used().into(),
            ));
        };
        table.insert(key, Rule { index, action });
        self.keys.insert(index, key);
        Ok(index)
    }

    fn large_action(
        &mut self,
        command: RuleCommand,
        scope: RuleScope<'_>,
        left: &mut Buffer<'_>,
    ) -> Result<(), AdminError> {
        let RuleList { index, count } = RuleList::parse(left.next()?);
        let actions: &mut [[u8; LargeAction::LEN]] = left.next_all(count)?;
        if command == RuleCommand::Remove {
            let removed = self.large_actions.remove(&index);
            return removed.map(drop).ok_or(AdminError::no_entry("large action", index.into()));
        }
        if actions.len() > MAX_ACTIONS {
            return Err(AdminError::invalid("large action length", count.into()));
        }
        let forwards =
            actions.iter().map(LargeAction::parse).filter(|action| action.kind == 0 && action.valid);
        let targets: Vec<_> = forwards.map(|action| Target::new(action.target, action.list)).collect();
        targets.iter().try_for_each(|target| target.check(ResourceKind::VsiList, scope))?;
        if !self.large_actions.contains_key(&index) && self.large_actions.len() >= MAX_LARGE_ACTIONS {
            return Err(AdminError::new(
                AdminStatus::NoSpace,
                "limit of large actions reached at",
                MAX_LARGE_ACTIONS as u64,
            ));
        }
        self.large_actions.insert(index, targets);
        Ok(())
    }

    /// Checks that all objects referenced by an action exist.
    fn check(&self, action: &Action, scope: RuleScope<'_>) -> Result<(), AdminError> {
        match action {
            Action::Forward { to, .. } => to.check(ResourceKind::VsiList, scope),
            Action::Prune { by, .. } => by.check(ResourceKind::PruneList, scope),
            Action::Large { index, .. } if !self.large_actions.contains_key(index) => {
                Err(AdminError::no_entry("large action", (*index).into()))
            }
            Action::Large { .. } | Action::Drop | Action::Inactive => Ok(()),
        }
    }

    /// Removes a freed VSI from all lists. Rules that reference it would apply to the next VSI with the same number, so
    /// they are deactivated. They stay in place until the driver removes them.
    pub(super) fn remove_vsi(&mut self, vsi: VsiNumber) {
        for list in self.vsi_lists.values_mut().chain(self.prune_lists.values_mut()) {
            list.remove(vsi);
        }
        for targets in self.large_actions.values_mut() {
            targets.retain(|target| *target != Target::Vsi(vsi));
        }
        for (key, rule) in self.tables.iter_mut().flatten() {
            if key.matches_source(vsi) || rule.action.targets_only(vsi) {
                rule.action = Action::Inactive;
            }
        }
    }

    pub(super) fn remove_freed_lists(&mut self, resources: &Resources) {
        self.vsi_lists.retain(|list, _| resources.is_allocated(ResourceKind::VsiList, *list));
        self.prune_lists.retain(|list, _| resources.is_allocated(ResourceKind::PruneList, *list));
    }
}

/// Adds VSIs to a list or removes them from it.
fn update_list(
    lists: &mut BTreeMap<u16, VsiSet>,
    kind: ResourceKind,
    set: bool,
    scope: RuleScope<'_>,
    left: &mut Buffer<'_>,
) -> Result<(), AdminError> {
    let RuleList { index, count } = RuleList::parse(left.next()?);
    let members: &mut [[u8; 2]] = left.next_all(count)?;
    Target::List(index).check(kind, scope)?;
    let members = members.iter().map(|bytes| VsiNumber::new(u16::from_le_bytes(*bytes)));
    if set {
        members.clone().try_for_each(|vsi| Target::Vsi(vsi).check(kind, scope))?;
    }
    let list = lists.entry(index).or_default();
    members.for_each(|vsi| if set { list.insert(vsi) } else { list.remove(vsi) });
    Ok(())
}

fn unknown_rule(index: u16) -> AdminError {
    AdminError::no_entry("rule", index.into())
}

#[cfg(test)]
mod tests;
