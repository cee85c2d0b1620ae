//! Flow tables: rules for where received frames go.
//!
//! A frame enters the root table. In each table, the matching entry with the lowest index determines what happens to
//! it. Entries with the same mask form a group, and finding the entry for a frame takes one look-up per group. A frame
//! without a matching entry goes to the miss table or is dropped.
//!
//! Tables forward frames only to tables at higher levels, which rules out loops. All tables are bounded
//! ([`limits::flow`](crate::limits::flow)); [`crate::resources`] lists the memory that they can use.
//!
//! # Spec
//! mlx5 interface, section 16.4.

pub mod evaluate;
pub mod fields;
pub mod rule;
pub mod table;
#[cfg(test)]
pub(crate) mod tests;
pub mod vlan;

use protocol::hca::mlx5::counter::TrafficCounter;
use protocol::hca::mlx5::flow_table::{FlowTableContext, MissAction};
use protocol::ids::{FlowCounterId, FlowGroupId, FlowTableId};

use self::fields::Fields;
use self::rule::Rule;
use self::table::{Group, Table};
use super::check::{Check, Rejection};
use super::limits::flow::{MAX_COUNTERS, MAX_DESTINATIONS, MAX_ENTRIES, MAX_GROUPS, MAX_TABLES};
use super::numbered::Numbered;

#[derive(Debug)]
pub struct Steering {
    tables: Numbered<Box<Table>>,
    /// Allocated group numbers, which are unique across all tables.
    groups: Numbered<()>,
    root: Option<FlowTableId>,
    counters: Numbered<Counter>,
    /// Number of entries in all tables.
    entries: usize,
    /// Total number of destinations in all entries.
    destinations: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counter {
    traffic: TrafficCounter,
    /// Number of references to the counter in all entries.
    references: usize,
}

/// Table, group and index of an entry.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub table: FlowTableId,
    pub group: FlowGroupId,
    pub index: u32,
}

impl Default for Steering {
    fn default() -> Self {
        Self {
            tables: Numbered::new(1, MAX_TABLES),
            groups: Numbered::new(1, MAX_GROUPS),
            root: None,
            counters: Numbered::new(1, MAX_COUNTERS),
            entries: 0,
            destinations: 0,
        }
    }
}

impl Steering {
    /// Returns the number of tables.
    pub fn tables(&self) -> usize {
        self.tables.count()
    }

    /// Returns the number of counters.
    pub fn counters(&self) -> usize {
        self.counters.count()
    }

    pub const fn root(&self) -> Option<FlowTableId> {
        self.root
    }

    /// Returns the tables in ascending order of their numbers, starting at `first`.
    pub fn tables_from(&self, first: u32) -> impl Iterator<Item = (u32, &Table)> {
        self.tables.iter_from(first).map(|(number, table)| (number, &**table))
    }

    /// Returns a counter's packets and bytes, or `None` if it does not exist.
    pub fn traffic(&self, id: FlowCounterId) -> Option<TrafficCounter> {
        Some(self.counters.get(id.get())?.traffic)
    }

    /// # Errors
    /// Fails if the table does not exist.
    pub fn table(&self, id: FlowTableId) -> Result<&Table, Rejection> {
        let table = self.tables.get(id.get()).ok_or_else(|| Check::FlowTable.rejects(id.get()))?;
        Ok(table)
    }

    fn table_mut(&mut self, id: FlowTableId) -> Result<&mut Table, Rejection> {
        let table = self.tables.get_mut(id.get()).ok_or_else(|| Check::FlowTable.rejects(id.get()))?;
        Ok(table)
    }

    /// Adds a reference to each of the tables, which must exist.
    fn add_references(&mut self, to: impl IntoIterator<Item = FlowTableId>) {
        for table in to {
            if let Ok(table) = self.table_mut(table) {
                table.references += 1;
            }
        }
    }

    fn drop_references(&mut self, to: impl IntoIterator<Item = FlowTableId>) {
        for table in to {
            if let Ok(table) = self.table_mut(table) {
                table.references -= 1;
            }
        }
    }

    /// Returns the miss table selected by a context for a table at level `level`.
    fn miss(&self, context: &FlowTableContext, level: u8) -> Result<Option<FlowTableId>, Rejection> {
        let id = context.miss_table;
        match MissAction::from_code(context.miss_action) {
            Some(MissAction::Default) => Ok(None),
            Some(MissAction::Table) => {
                let table =
                    self.tables.get(id.get()).ok_or_else(|| Check::FlowMissTable.rejects(id.get()))?;
                if table.level() <= level {
                    return Err(Check::FlowMissLevel.rejects(table.level()));
                }
                Ok(Some(id))
            }
            None => Err(Check::FlowMissAction.rejects(context.miss_action)),
        }
    }

    /// # Errors
    /// Fails if the context is invalid or there are too many tables.
    pub fn create_table(&mut self, context: &FlowTableContext) -> Result<FlowTableId, Rejection> {
        let miss = self.miss(context, context.level)?;
        let table = Box::new(Table::new(context, miss)?);
        let full = Check::FlowTableLimit.rejects(self.tables.count() as u64);
        let id = self.tables.insert(table).ok_or(full)?;
        self.add_references(miss);
        Ok(FlowTableId::new(id))
    }

    /// Changes a table's miss action to the one in the context.
    ///
    /// # Errors
    /// Fails if the table does not exist or the context is invalid.
    pub fn set_miss(&mut self, id: FlowTableId, context: &FlowTableContext) -> Result<(), Rejection> {
        let miss = self.miss(context, self.table(id)?.level())?;
        let old = std::mem::replace(&mut self.table_mut(id)?.miss, miss);
        self.add_references(miss);
        self.drop_references(old);
        Ok(())
    }

    /// Destroys a table, which may be the root. On unload, the driver destroys its last table while it is still the
    /// root.
    ///
    /// # Errors
    /// Fails if the table does not exist, has groups, or is a destination or miss table.
    pub fn destroy_table(&mut self, id: FlowTableId) -> Result<(), Rejection> {
        let table = self.table(id)?;
        let (uses, miss) = (table.uses(), table.miss);
        if uses != 0 {
            return Err(Check::FlowTableInUse.rejects(uses as u64));
        }
        self.tables.remove(id.get());
        self.drop_references(miss);
        if self.root == Some(id) {
            self.root = None;
        }
        Ok(())
    }

    /// Selects the root. Without a root, all frames are dropped.
    ///
    /// # Errors
    /// Fails if the table does not exist.
    pub fn set_root(&mut self, root: Option<FlowTableId>) -> Result<(), Rejection> {
        root.map_or(Ok(()), |id| self.table(id).map(drop))?;
        self.root = root;
        Ok(())
    }

    /// # Errors
    /// Fails if the table does not exist, the group's range is invalid, or a limit is reached.
    pub fn create_group(&mut self, table: FlowTableId, group: Group) -> Result<FlowGroupId, Rejection> {
        let place = self.table(table)?.place(&group)?;
        let full = Check::FlowGroupLimit.rejects(self.groups.count() as u64);
        let id = FlowGroupId::new(self.groups.insert(()).ok_or(full)?);
        self.table_mut(table)?.insert(place, group, id);
        Ok(id)
    }

    /// # Errors
    /// Fails if the group does not exist in this table or has entries.
    pub fn destroy_group(&mut self, table: FlowTableId, group: FlowGroupId) -> Result<(), Rejection> {
        self.table_mut(table)?.remove(group)?;
        self.groups.remove(group.get());
        Ok(())
    }

    /// Checks that a rule's counters and tables exist, and that the tables are at levels above `level`.
    fn check_rule(&self, rule: &Rule, level: u8) -> Result<(), Rejection> {
        for id in rule.tables() {
            let unknown = || Check::FlowDestinationTable.rejects(id.get());
            let table = self.tables.get(id.get()).ok_or_else(unknown)?;
            if table.level() <= level {
                return Err(Check::FlowDestinationLevel.rejects(table.level()));
            }
        }
        match rule.counters().iter().find(|counter| !self.counters.contains(counter.get())) {
            Some(unknown) => Err(Check::FlowEntryCounter.rejects(unknown.get())),
            None => Ok(()),
        }
    }

    /// Sets an entry. Returns the rule of the entry that it replaces.
    ///
    /// # Errors
    /// Fails if the table, group or index is invalid, the rule refers to objects that do not exist, or a limit is
    /// reached.
    pub fn set_entry(&mut self, place: Place, value: &Fields, rule: Rule) -> Result<Option<Rule>, Rejection> {
        let Place { table: id, group, index } = place;
        let table = self.table(id)?;
        if !table.group(group)?.contains(index) {
            return Err(Check::FlowEntryRange.rejects(index));
        }
        self.check_rule(&rule, table.level())?;
        let old = table.entry(index).map_or(0, |(_, entry)| entry.rule.destinations().len());
        let destinations = self.destinations - old + rule.destinations().len();
        if destinations > MAX_DESTINATIONS {
            return Err(Check::FlowDestinationLimit.rejects(self.destinations as u64));
        }
        if self.entries >= MAX_ENTRIES && table.entry(index).is_err() {
            return Err(Check::FlowEntryLimit.rejects(self.entries as u64));
        }
        self.destinations = destinations;
        self.add_references(rule.tables());
        self.count_references(&rule, |count| *count += 1);
        let old = self.table_mut(id)?.set(index, value, rule);
        match &old {
            Some(old) => self.release(old),
            None => self.entries += 1,
        }
        Ok(old)
    }

    /// Deletes an entry and returns its rule.
    ///
    /// # Errors
    /// Fails if the entry does not exist.
    pub fn delete_entry(&mut self, table: FlowTableId, index: u32) -> Result<Rule, Rejection> {
        let rule = self.table_mut(table)?.delete(index).ok_or_else(|| Check::FlowEntry.rejects(index))?;
        self.entries -= 1;
        self.destinations -= rule.destinations().len();
        self.release(&rule);
        Ok(rule)
    }

    /// Drops a rule's references to tables and counters.
    fn release(&mut self, rule: &Rule) {
        self.drop_references(rule.tables());
        self.count_references(rule, |count| *count -= 1);
    }

    fn count_references(&mut self, rule: &Rule, change: impl Fn(&mut usize)) {
        for counter in rule.counters() {
            if let Some(counter) = self.counters.get_mut(counter.get()) {
                change(&mut counter.references);
            }
        }
    }

    /// # Errors
    /// Fails if there are too many counters.
    pub fn alloc_counter(&mut self) -> Result<FlowCounterId, Rejection> {
        let full = Check::FlowCounterLimit.rejects(self.counters.count() as u64);
        self.counters.insert(Counter::default()).map(FlowCounterId::new).ok_or(full)
    }

    /// # Errors
    /// Fails if the counter does not exist or if an entry refers to it.
    pub fn dealloc_counter(&mut self, id: FlowCounterId) -> Result<(), Rejection> {
        let counter = self.counters.get(id.get()).ok_or_else(|| Check::FlowCounter.rejects(id.get()))?;
        if counter.references != 0 {
            return Err(Check::FlowCounterInUse.rejects(id.get()));
        }
        self.counters.remove(id.get());
        Ok(())
    }

    /// Returns a counter's packets and bytes and resets it if `clear` is set.
    ///
    /// # Errors
    /// Fails if the counter does not exist.
    pub fn query_counter(&mut self, id: FlowCounterId, clear: bool) -> Result<TrafficCounter, Rejection> {
        let unknown = || Check::FlowCounter.rejects(id.get());
        let counter = self.counters.get_mut(id.get()).ok_or_else(unknown)?;
        let traffic = counter.traffic;
        if clear {
            counter.traffic = TrafficCounter::default();
        }
        Ok(traffic)
    }
}
