//! Rows for flow tables, their groups and their entries.

use card::frontend::table::{Row, TableSpec, or_dash, yes};
use protocol::hca::mlx5::flow_entry::Destination;
use serde::Serialize;

use super::matches::{matches, selects};
use crate::steering::Steering;
use crate::steering::rule::{Fate, Rule};
use crate::steering::table::{Entry, Group, Table};

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct FlowTableRow {
    pub(super) table: u32,
    pub(super) level: u8,
    /// Whether the evaluation of a frame starts in this table.
    pub(super) root: bool,
    /// Maximum number of entries.
    pub(super) size: u32,
    pub(super) groups: usize,
    pub(super) entries: usize,
    /// Table for frames without a matching entry; `None` if they are dropped.
    pub(super) miss: Option<u32>,
    /// Number of frames without a matching entry.
    pub(super) missed: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct FlowGroupRow {
    pub(super) table: u32,
    pub(super) group: u32,
    /// Lowest index in the group's range.
    pub(super) first: u32,
    /// Highest index in the group's range.
    pub(super) last: u32,
    /// Fields that all entries of the group compare.
    pub(super) fields: Vec<String>,
    pub(super) entries: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct FlowEntryRow {
    pub(super) table: u32,
    pub(super) index: u32,
    pub(super) group: u32,
    /// Fields that the entry compares, with their values. If empty, the entry matches every frame.
    pub(super) matches: Vec<String>,
    /// VLAN edits, followed by `allow`, `drop` or the frame's destinations.
    pub(super) actions: Vec<String>,
    /// Tag in the CQEs of frames that the entry forwards.
    pub(super) tag: u32,
    /// Number of frames that the entry was applied to.
    pub(super) frames: u64,
    pub(super) counters: Vec<FlowCount>,
}

/// A flow counter of an entry. Entries can share counters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct FlowCount {
    pub(super) counter: u32,
    pub(super) packets: u64,
    pub(super) bytes: u64,
}

pub(super) fn tables(steering: &Steering, from: u32) -> impl Iterator<Item = (u32, FlowTableRow)> {
    steering.tables_from(from).map(|(number, table)| {
        let context = table.context();
        let row = FlowTableRow {
            table: number,
            level: table.level(),
            root: steering.root().is_some_and(|root| root.get() == number),
            size: 1_u32.checked_shl(context.log_size.into()).unwrap_or(0),
            groups: table.groups().len(),
            entries: table.groups().iter().map(Group::entry_count).sum(),
            miss: table.miss().map(|miss| miss.get()),
            missed: table.missed(),
        };
        (number, row)
    })
}

/// Splits the position of a group or entry into its table and index.
#[allow(clippy::cast_possible_truncation, reason = "the halves of a position")]
const fn split(position: u64) -> (u32, u32) {
    ((position >> 32) as u32, position as u32)
}

fn position(table: u32, index: u32) -> u64 {
    u64::from(table) << 32 | u64::from(index)
}

/// Returns the groups that end at or after `from`, the position at which a page of rows starts. Each group comes with
/// the number of its table and the index in that table from which entries belong to the page.
fn groups_from(steering: &Steering, from: u64) -> impl Iterator<Item = (u32, u32, &Group)> {
    let (first_table, first_index) = split(from);
    steering.tables_from(first_table).flat_map(move |(number, table): (u32, &Table)| {
        let first = if number == first_table { first_index } else { 0 };
        let groups = table.groups().iter().filter(move |group| group.range()[1] >= first);
        groups.map(move |group| (number, first, group))
    })
}

pub(super) fn groups(steering: &Steering, from: u64) -> impl Iterator<Item = (u64, FlowGroupRow)> {
    groups_from(steering, from).map(|(table, _, group)| {
        let [first, last] = group.range();
        let row = FlowGroupRow {
            table,
            group: group.id().get(),
            first,
            last,
            fields: selects(&group.mask().headers()),
            entries: group.entry_count(),
        };
        // The position of a group's row is the group's last index. A page that starts at that position includes the
        // group.
        (position(table, last), row)
    })
}

pub(super) fn entries(steering: &Steering, from: u64) -> impl Iterator<Item = (u64, FlowEntryRow)> {
    groups_from(steering, from).flat_map(move |(table, first, group)| {
        let entries = group.entries_from(first);
        entries.map(move |(index, entry)| {
            (position(table, index), FlowEntryRow::new(steering, (table, index), group, entry))
        })
    })
}

impl FlowEntryRow {
    fn new(steering: &Steering, (table, index): (u32, u32), group: &Group, entry: &Entry) -> Self {
        let counters = entry.rule.counters().iter().filter_map(|id| {
            let traffic = steering.traffic(*id)?;
            Some(FlowCount { counter: id.get(), packets: traffic.packets, bytes: traffic.bytes })
        });
        Self {
            table,
            index,
            group: group.id().get(),
            matches: matches(&group.mask().headers(), &entry.value().headers()),
            actions: actions(&entry.rule),
            tag: entry.rule.tag.get(),
            frames: entry.matched(),
            counters: counters.collect(),
        }
    }
}

fn actions(rule: &Rule) -> Vec<String> {
    let mut actions = Vec::new();
    if rule.pop_vlan {
        actions.push("pop_vlan".to_owned());
    }
    if let Some(tag) = rule.push_vlan {
        actions.push(format!("push_vlan={}", tag.tci.vid()));
    }
    match &rule.fate {
        Fate::Allow => actions.push("allow".to_owned()),
        Fate::Drop => actions.push("drop".to_owned()),
        Fate::Forward(destinations) => actions.extend(destinations.iter().map(|to| match to {
            Destination::Table(table) => format!("table={}", table.get()),
            Destination::Tir(tirn) => format!("tir={}", tirn.get()),
        })),
    }
    actions
}

impl Row for FlowTableRow {
    const TABLE: &'static TableSpec = &TableSpec {
        name: "flow-tables",
        help: "flow tables: level, entries, what happens to frames that match none",
        columns: &["TABLE", "LEVEL", "ROOT", "SIZE", "GROUPS", "ENTRIES", "MISS", "MISSED"],
    };

    fn cells(&self) -> Vec<String> {
        vec![
            self.table.to_string(),
            self.level.to_string(),
            yes(self.root),
            self.size.to_string(),
            self.groups.to_string(),
            self.entries.to_string(),
            self.miss.map_or_else(|| "drop".to_owned(), |miss| format!("table={miss}")),
            self.missed.to_string(),
        ]
    }
}

fn joined(texts: &[String]) -> String {
    or_dash(Some(texts.join(",")).filter(|text| !text.is_empty()))
}

impl Row for FlowGroupRow {
    const TABLE: &'static TableSpec = &TableSpec {
        name: "flow-groups",
        help: "groups of the flow tables: range of entries, fields that they compare",
        columns: &["TABLE", "GROUP", "FIRST", "LAST", "FIELDS", "ENTRIES"],
    };

    fn cells(&self) -> Vec<String> {
        vec![
            self.table.to_string(),
            self.group.to_string(),
            self.first.to_string(),
            self.last.to_string(),
            joined(&self.fields),
            self.entries.to_string(),
        ]
    }
}

impl Row for FlowEntryRow {
    const TABLE: &'static TableSpec = &TableSpec {
        name: "flow-entries",
        help: "entries of the flow tables: match, actions, frame counts",
        columns: &["TABLE", "INDEX", "GROUP", "MATCH", "ACTIONS", "TAG", "FRAMES", "COUNTERS"],
    };

    fn cells(&self) -> Vec<String> {
        let counters: Vec<_> = self
            .counters
            .iter()
            .map(|FlowCount { counter, packets, bytes }| format!("{counter}:{packets}/{bytes}"))
            .collect();
        vec![
            self.table.to_string(),
            self.index.to_string(),
            self.group.to_string(),
            joined(&self.matches),
            self.actions.join(","),
            format!("{:#x}", self.tag),
            self.frames.to_string(),
            joined(&counters),
        ]
    }
}
