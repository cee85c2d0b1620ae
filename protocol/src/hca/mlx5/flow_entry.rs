//! Commands that set, query and delete flow table entries.
//!
//! # Spec
//! mlx5 interface, section 16.4.

use std::fmt;

use bitflags::bitflags;

use super::code::codes;
use super::flow_table::TableType;
use super::match_parameters::MatchParameters;
use crate::describe::{Describe, Field, Value, Visitor, show_flags};
use crate::ids::{FlowCounterId, FlowGroupId, FlowTableId, Tirn, id};
use crate::layout;

id! {
    /// Tag of a flow table entry, 24 bits. It appears in the CQE of each frame that the entry forwards.
    pub struct FlowTag(u32, mask 0xff_ffff, "tag");
}

bitflags! {
    /// Actions of a flow table entry.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct FlowActions: u16 {
        /// Ends the evaluation with the table type's default action.
        const ALLOW = 1 << 0;
        /// Drops the frame and ends the evaluation.
        const DROP = 1 << 1;
        /// Forwards the frame to every destination.
        const FORWARD = 1 << 2;
        /// Counts the frame in each of the entry's counters.
        const COUNT = 1 << 3;
        /// Removes the outermost VLAN tag.
        const POP_VLAN = 1 << 7;
        /// Inserts a VLAN tag in front of any existing tags.
        const PUSH_VLAN = 1 << 8;
        const _ = !0;
    }
}

bitflags! {
    /// Parts of an entry that SET_FLOW_TABLE_ENTRY changes if its op_mod is [`EntryChange::Modify`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct EntryFields: u8 {
        /// The actions of the entry.
        const ACTIONS = 1 << 0;
        /// The tag of the entry.
        const TAG = 1 << 1;
        /// The list of destinations.
        const DESTINATIONS = 1 << 2;
        /// The list of counters.
        const COUNTERS = 1 << 3;
        const _ = !0;
    }
}

macro_rules! flags {
    ($($name:ident($int:ty),)*) => {$(
        impl From<$int> for $name {
            fn from(bits: $int) -> Self {
                Self::from_bits_retain(bits)
            }
        }

        impl From<$name> for $int {
            fn from(flags: $name) -> Self {
                flags.bits()
            }
        }

        impl Field for $name {
            fn show(&self, name: &str, to: &mut dyn Visitor) {
                show_flags(self, name, to);
            }
        }
    )*};
}
flags! { FlowActions(u16), EntryFields(u8), }

codes! {
    /// Change that SET_FLOW_TABLE_ENTRY makes, selected by its op_mod.
    pub enum EntryChange(u16) {
        /// Sets the entire entry.
        Set = 0 "set",
        /// Changes the parts selected by [`EntryFields`].
        Modify = 1 "modify",
    }
}

layout! {
    /// VLAN tag that an entry inserts. Its EtherType identifies it as a C-TAG or an S-TAG.
    pub struct PushedTag[4] big_endian {
        @0x00  ether_type: u16 => Hex,
        /// Priority, drop eligibility and VLAN identifier.
        @0x02  tci: u16 => Hex,
    }
}

layout! {
    /// Context of a flow table entry.
    pub struct FlowContext[0x300] big_endian {
        /// Group whose range contains the entry.
        @0x04         group: FlowGroupId,
        @0x08[23:0]   tag: FlowTag,
        @0x0c[15:0]   actions: FlowActions as u16,
        /// Number of destinations in the list after the context.
        @0x10[23:0]   destination_count: u32,
        /// Number of counters in the list after the destinations.
        @0x14[23:0]   counter_count: u32,
        /// Tag for [`FlowActions::PUSH_VLAN`]; see [`PushedTag`].
        @0x20         pushed_tag: PushedTag,
        /// Values of the fields that the group's mask selects.
        @0x40         value: MatchParameters,
    }
}

codes! {
    /// Kind of destination that an entry forwards frames to.
    pub enum DestinationKind(u8) {
        /// The evaluation continues in another flow table.
        Table = 1 "table",
        /// The frame is delivered to a TIR.
        Tir = 2 "tir",
    }
}

layout! {
    /// Element of an entry's destination list.
    pub struct FlowDestination[8] big_endian {
        /// A value of [`DestinationKind`].
        @0x00[31:24]  kind: u8 => DestinationKind::word,
        /// Number of the table or TIR.
        @0x00[23:0]   number: u32 => Hex,
    }
}

/// Destination of a flow table entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "as for DestinationKind")]
pub enum Destination {
    Table(FlowTableId),
    Tir(Tirn),
}

impl FlowDestination {
    /// Returns the destination, or `None` if its kind is unknown.
    pub const fn destination(&self) -> Option<Destination> {
        match DestinationKind::from_code(self.kind) {
            Some(DestinationKind::Table) => Some(Destination::Table(FlowTableId::new(self.number))),
            Some(DestinationKind::Tir) => Some(Destination::Tir(Tirn::new(self.number))),
            None => None,
        }
    }
}

impl From<Destination> for FlowDestination {
    fn from(destination: Destination) -> Self {
        let (kind, number) = match destination {
            Destination::Table(table) => (DestinationKind::Table, table.get()),
            Destination::Tir(tirn) => (DestinationKind::Tir, tirn.get()),
        };
        Self { kind: kind.code(), number }
    }
}

layout! {
    /// Element of an entry's counter list.
    pub struct ListedCounter[8] big_endian {
        @0x00  counter: FlowCounterId,
    }
}

impl FlowContext {
    /// Splits the bytes after the context into destinations and counters. Returns `None` if there are fewer bytes than
    /// the counts require.
    pub fn lists<'a>(&self, bytes: &'a [u8]) -> Option<[&'a [[u8; 8]]; 2]> {
        let (items, _) = bytes.as_chunks();
        let (destinations, rest) = items.split_at_checked(usize::try_from(self.destination_count).ok()?)?;
        Some([destinations, rest.get(..usize::try_from(self.counter_count).ok()?)?])
    }

    /// Passes the lists after the context to the visitor. If there are fewer bytes than the counts require, both lists
    /// are passed as empty.
    pub fn describe_lists(&self, bytes: &[u8], to: &mut dyn Visitor) {
        let [destinations, counters] = self.lists(bytes).unwrap_or_default();
        let destinations: Vec<_> = destinations.iter().map(FlowDestination::parse).collect();
        to.objects("destinations", &mut destinations.iter().map(|destination| destination as &dyn Describe));
        let counters: Vec<_> = counters.iter().map(ListedCounter::parse).collect();
        to.objects("counters", &mut counters.iter().map(|counter| counter as &dyn Describe));
    }
}

layout! {
    /// Fixed part of the SET_FLOW_TABLE_ENTRY input. The destinations and the counters follow.
    pub struct SetFlowTableEntry[0x340] big_endian {
        /// A value of [`EntryChange`].
        @0x06         change: u16 => EntryChange::word,
        /// A value of [`TableType`].
        @0x10[31:24]  table_type: u8 => TableType::word,
        @0x14[23:0]   table: FlowTableId,
        /// Parts to change for [`EntryChange::Modify`].
        @0x18[7:0]    fields: EntryFields as u8,
        /// Index of the entry in the table.
        @0x20         index: u32,
        @0x40         context: FlowContext,
    }
}

layout! {
    /// Input of QUERY_FLOW_TABLE_ENTRY and DELETE_FLOW_TABLE_ENTRY.
    pub struct FlowEntrySelector[64] big_endian {
        /// A value of [`TableType`].
        @0x10[31:24]  table_type: u8 => TableType::word,
        @0x14[23:0]   table: FlowTableId,
        /// Index of the entry in the table.
        @0x20         index: u32,
    }
}

layout! {
    /// Fixed part of the QUERY_FLOW_TABLE_ENTRY output. The destinations and the counters follow.
    pub struct QueriedFlowEntry[0x340] big_endian {
        @0x40  context: FlowContext,
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::words;
    use super::*;

    #[test]
    fn flow_entry_fields_are_at_specified_offsets() {
        let context = FlowContext {
            group: FlowGroupId::new(0xc),
            tag: FlowTag::new(0x12),
            actions: FlowActions::FORWARD | FlowActions::COUNT,
            destination_count: 1,
            counter_count: 2,
            pushed_tag: PushedTag { ether_type: 0x8100, tci: 5 },
            ..FlowContext::default()
        };
        let set = SetFlowTableEntry {
            table: FlowTableId::new(7),
            change: 1,
            fields: EntryFields::DESTINATIONS,
            index: 3,
            context,
            ..SetFlowTableEntry::default()
        };
        let expected = [
            (0x04, 1),
            (0x14, 7),
            (0x18, 4),
            (0x20, 3),
            (0x44, 0xc),
            (0x48, 0x12),
            (0x4c, 0xc),
            (0x50, 1),
            (0x54, 2),
            (0x60, 0x8100_0005),
        ];
        assert_eq!(set.emit(), words(&expected));
        assert_eq!(QueriedFlowEntry { context }.emit(), words(&expected[4..]));
    }

    #[test]
    fn counters_follow_destinations_in_lists() {
        let context = FlowContext { destination_count: 1, counter_count: 1, ..FlowContext::default() };
        let destination = FlowDestination::from(Destination::Tir(Tirn::new(6)));
        assert_eq!(destination.emit(), [2, 0, 0, 6, 0, 0, 0, 0]);
        let counter = ListedCounter { counter: FlowCounterId::new(9) };
        let bytes = [destination.emit(), counter.emit()].concat();
        assert_eq!(context.lists(&bytes), Some([&[destination.emit()][..], &[counter.emit()]]));
        assert_eq!(context.lists(&bytes[..15]), None);
        assert_eq!(
            FlowDestination::parse(&[1, 0, 0, 7, 0, 0, 0, 0]).destination(),
            Some(Destination::Table(FlowTableId::new(7)))
        );
        assert_eq!(FlowDestination { kind: 0, number: 1 }.destination(), None);
    }
}
