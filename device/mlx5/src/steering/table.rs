//! Flow tables, their groups and their entries.
//!
//! # Spec
//! mlx5 interface, section 16.4.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

use protocol::hca::mlx5::flow_group::{CreateFlowGroup, QueriedFlowGroup};
use protocol::hca::mlx5::flow_table::{FlowTableContext, MissAction};
use protocol::hca::mlx5::match_parameters::{Criteria, MatchParameters};
use protocol::ids::{FlowGroupId, FlowTableId};

use super::fields::Fields;
use super::rule::Rule;
use crate::check::{Check, Rejection};
use crate::limits::flow::{LOG_MAX_TABLE_SIZE, MAX_TABLE_GROUPS};

#[derive(Debug)]
pub struct Table {
    level: u8,
    log_size: u8,
    pub(super) miss: Option<FlowTableId>,
    /// Groups in ascending order of their index ranges, which do not overlap.
    ///
    /// A table has at most [`MAX_TABLE_GROUPS`] groups.
    groups: Vec<Group>,
    /// Number of miss actions and destinations that refer to the table.
    pub(super) references: usize,
    /// Number of frames without a matching entry.
    missed: Cell<u64>,
}

#[derive(Debug)]
pub struct Group {
    id: FlowGroupId,
    first: u32,
    last: u32,
    criteria: u8,
    mask: Fields,
    entries: BTreeMap<u32, Box<Entry>>,
    /// Values and indices of all entries. Among entries with the same value, the one with the lowest index matches.
    by_value: BTreeSet<(Fields, u32)>,
}

#[derive(Debug)]
pub struct Entry {
    /// Value of the fields that the group's mask selects.
    value: Fields,
    pub rule: Rule,
    /// Number of frames that the entry was applied to.
    matched: Cell<u64>,
}

impl Table {
    /// Creates an empty table. `miss` is the table that the context's miss action refers to.
    ///
    /// # Errors
    /// Fails if the table is too large.
    pub(super) fn new(context: &FlowTableContext, miss: Option<FlowTableId>) -> Result<Self, Rejection> {
        let FlowTableContext { level, log_size, .. } = *context;
        if log_size > LOG_MAX_TABLE_SIZE {
            return Err(Check::FlowTableSize.rejects(log_size));
        }
        Ok(Self { level, log_size, miss, groups: Vec::new(), references: 0, missed: Cell::new(0) })
    }

    pub const fn level(&self) -> u8 {
        self.level
    }

    pub fn context(&self) -> FlowTableContext {
        let action = if self.miss.is_some() { MissAction::Table } else { MissAction::Default };
        FlowTableContext {
            miss_action: action.code(),
            level: self.level,
            log_size: self.log_size,
            miss_table: self.miss.unwrap_or_default(),
        }
    }

    /// Returns the number of groups and references that keep the table from being destroyed.
    pub(super) fn uses(&self) -> usize {
        self.groups.len() + self.references
    }

    /// Returns the insertion position of a new group.
    ///
    /// # Errors
    /// Fails if the range is outside the table or overlaps another group, or if the table has the maximum number of
    /// groups.
    pub(super) fn place(&self, group: &Group) -> Result<usize, Rejection> {
        if group.first > group.last || group.last >> self.log_size != 0 {
            return Err(Check::FlowGroupRange.rejects(group.last));
        }
        if self.groups.len() >= MAX_TABLE_GROUPS {
            return Err(Check::FlowTableGroups.rejects(self.groups.len() as u64));
        }
        let at = self.groups.partition_point(|other| other.last < group.first);
        match self.groups.get(at) {
            Some(next) if next.first <= group.last => Err(Check::FlowGroupOverlap.rejects(next.first)),
            _ => Ok(at),
        }
    }

    pub(super) fn insert(&mut self, at: usize, group: Group, id: FlowGroupId) {
        self.groups.insert(at, Group { id, ..group });
    }

    /// Removes a group without entries.
    ///
    /// # Errors
    /// Fails if the group does not exist or has entries.
    pub(super) fn remove(&mut self, id: FlowGroupId) -> Result<(), Rejection> {
        let at = self.groups.iter().position(|group| group.id == id);
        let at = at.ok_or_else(|| Check::FlowGroup.rejects(id.get()))?;
        match self.groups.get(at).map_or(0, |group| group.entries.len()) {
            0 => {
                self.groups.remove(at);
                Ok(())
            }
            entries => Err(Check::FlowGroupInUse.rejects(entries as u64)),
        }
    }

    /// Returns the group with the given ID.
    ///
    /// # Errors
    /// Fails if the group does not exist.
    pub fn group(&self, id: FlowGroupId) -> Result<&Group, Rejection> {
        let mut groups = self.groups.iter();
        groups.find(|group| group.id == id).ok_or_else(|| Check::FlowGroup.rejects(id.get()))
    }

    /// Returns the group whose range contains an index.
    fn group_at(&self, index: u32) -> Option<&Group> {
        let at = self.groups.partition_point(|group| group.last < index);
        self.groups.get(at).filter(|group| group.contains(index))
    }

    fn group_at_mut(&mut self, index: u32) -> Option<&mut Group> {
        let at = self.groups.partition_point(|group| group.last < index);
        self.groups.get_mut(at).filter(|group| group.contains(index))
    }

    /// Sets an entry, whose index must be in the range of a group. Returns the rule of the replaced entry, if any.
    pub(super) fn set(&mut self, index: u32, value: &Fields, rule: Rule) -> Option<Rule> {
        self.group_at_mut(index)?.set(index, value, rule)
    }

    /// Deletes an entry and returns its rule.
    pub(super) fn delete(&mut self, index: u32) -> Option<Rule> {
        self.group_at_mut(index)?.delete(index)
    }

    /// Returns an entry and its group.
    ///
    /// # Errors
    /// Fails if the entry does not exist.
    pub fn entry(&self, index: u32) -> Result<(&Group, &Entry), Rejection> {
        let entry = self.group_at(index).and_then(|group| Some((group, &**group.entries.get(&index)?)));
        entry.ok_or_else(|| Check::FlowEntry.rejects(index))
    }

    /// Returns the indices of all entries.
    pub fn entries(&self) -> impl Iterator<Item = u32> {
        self.groups.iter().flat_map(|group| group.entries.keys().copied())
    }

    /// Returns the number of entries.
    pub fn entry_count(&self) -> usize {
        self.groups.iter().map(Group::entry_count).sum()
    }

    /// Finds the first entry, by index, that matches a frame's fields. Returns its rule and counts the frame.
    pub(super) fn find(&self, fields: &Fields) -> Option<&Rule> {
        let found = self.groups.iter().find_map(|group| group.find(fields));
        let counter = found.map_or(&self.missed, |entry| &entry.matched);
        counter.set(counter.get().wrapping_add(1));
        found.map(|entry| &entry.rule)
    }

    /// Returns the groups in ascending order of their indices.
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// Returns the miss table, or `None` if frames without a matching entry are dropped.
    pub const fn miss(&self) -> Option<FlowTableId> {
        self.miss
    }

    /// Returns the number of frames without a matching entry.
    pub fn missed(&self) -> u64 {
        self.missed.get()
    }
}

impl Group {
    /// Creates an empty group that has no ID yet.
    ///
    /// # Errors
    /// Fails if the mask selects fields that the device does not evaluate.
    pub fn new(create: &CreateFlowGroup) -> Result<Self, Rejection> {
        let CreateFlowGroup { first, last, criteria, mask, .. } = create;
        // Match parameters in sets that the criteria do not enable are ignored.
        let (others, _) = mask.others.as_chunks::<{ MatchParameters::SET_LEN }>();
        for (bit, set) in (1..u8::BITS).zip(others) {
            if criteria >> bit & 1 != 0 && set.iter().any(|byte| *byte != 0) {
                return Err(Check::FlowCriteria.rejects(*criteria));
            }
        }
        let mask = if Criteria::Outer.is_in(*criteria) { mask.outer } else { <_>::default() };
        if mask.unsupported != 0 {
            return Err(Check::FlowMask.rejects(mask.unsupported));
        }
        Ok(Self {
            id: FlowGroupId::default(),
            first: *first,
            last: *last,
            criteria: *criteria,
            mask: Fields::from(&mask),
            entries: BTreeMap::new(),
            by_value: BTreeSet::new(),
        })
    }

    pub fn context(&self) -> QueriedFlowGroup {
        QueriedFlowGroup {
            first: self.first,
            last: self.last,
            criteria: self.criteria,
            mask: MatchParameters { outer: self.mask.headers(), ..MatchParameters::default() },
        }
    }

    pub const fn id(&self) -> FlowGroupId {
        self.id
    }

    pub const fn contains(&self, index: u32) -> bool {
        self.first <= index && index <= self.last
    }

    fn set(&mut self, index: u32, value: &Fields, rule: Rule) -> Option<Rule> {
        let value = value.masked(&self.mask);
        let entry = Entry { value, rule, matched: Cell::new(0) };
        let old = self.entries.insert(index, Box::new(entry));
        if let Some(old) = &old {
            self.by_value.remove(&(old.value, index));
        }
        self.by_value.insert((value, index));
        // A modification keeps the match value and therefore the count.
        if let (Some(old), Some(entry)) = (&old, self.entries.get(&index))
            && old.value == value
        {
            entry.matched.set(old.matched());
        }
        old.map(|old| old.rule)
    }

    fn delete(&mut self, index: u32) -> Option<Rule> {
        let entry = self.entries.remove(&index)?;
        self.by_value.remove(&(entry.value, index));
        Some(entry.rule)
    }

    fn find(&self, fields: &Fields) -> Option<&Entry> {
        #[cfg(test)]
        super::tests::steps::count_lookup();
        let value = fields.masked(&self.mask);
        let (found, index) = self.by_value.range((value, 0)..).next()?;
        if *found != value {
            return None;
        }
        self.entries.get(index).map(|entry| &**entry)
    }

    /// Returns the first and the last index of the group.
    pub const fn range(&self) -> [u32; 2] {
        [self.first, self.last]
    }

    pub const fn mask(&self) -> &Fields {
        &self.mask
    }

    /// Returns the number of entries.
    pub fn entry_count(&self) -> usize {
        self.entries.len()
    }

    /// Returns the entries in ascending order of their indices, starting at `first`.
    pub fn entries_from(&self, first: u32) -> impl Iterator<Item = (u32, &Entry)> {
        self.entries.range(first..).map(|(index, entry)| (*index, &**entry))
    }
}

impl Entry {
    pub const fn value(&self) -> &Fields {
        &self.value
    }

    /// Returns the number of frames that the entry was applied to.
    pub fn matched(&self) -> u64 {
        self.matched.get()
    }
}
