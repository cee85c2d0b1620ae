//! Commands of the transmit scheduler: 0400 to 0415.
//!
//! # Spec
//! E810 interface, section 5.5.

use crate::describe::{Field, Value, Visitor};
use crate::layout;

/// Identifier of an element of the tree.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Teid(u32);

impl Teid {
    /// The element that there is not: parent of the root.
    pub const NONE: Self = Self(u32::MAX);

    /// Identifier with this number.
    pub const fn new(raw: u32) -> Self {
        Self(raw)
    }

    /// The plain number.
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl From<u32> for Teid {
    fn from(raw: u32) -> Self {
        Self(raw)
    }
}

impl From<Teid> for u32 {
    fn from(teid: Teid) -> Self {
        teid.0
    }
}

impl std::fmt::Debug for Teid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "teid:{:#x}", self.0)
    }
}

impl std::fmt::Display for Teid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl Field for Teid {
    fn show(&self, name: &str, to: &mut dyn Visitor) {
        to.value(name, Value::Hex(self.0.into()));
    }
}

layout! {
    /// Parameters of the commands that list things in their buffer, and their answer.
    pub struct ListParameters[16] {
        /// Groups, elements or profiles in the buffer.
        @0  count: u16,
        /// How many of them were processed.
        @2  processed: u16,
    }
}

layout! {
    /// Answer of "get default topology".
    pub struct TopologyParameters[16] {
        /// Branches in the buffer, each behind a [`Group`].
        @1  branches: u8,
    }
}

layout! {
    /// In front of elements to add or delete, and of a branch.
    pub struct Group[8] {
        /// Their parent.
        @0  parent: Teid as u32,
        /// Elements that follow.
        @4  count: u16,
    }
}

layout! {
    /// In front of the TEIDs of elements to move.
    pub struct Move[12] {
        /// Where they are.
        @0  source: Teid as u32,
        /// Where they go.
        @4  destination: Teid as u32,
        /// TEIDs that follow.
        @8  count: u16,
    }
}

layout! {
    /// An element of the tree.
    pub struct Element[24] {
        /// Its parent.
        @0  parent: Teid as u32,
        /// Its own identifier; the device's to choose.
        @4  teid: Teid as u32,
        /// What it is.
        @8  data: ElementData,
    }
}

layout! {
    /// What an element is and how it shares the line with its siblings.
    pub struct ElementData[16] {
        /// Kind of element.
        @0     kind: ElementKind as u8,
        /// The generic section means something.
        @1[0]  generic_valid: bool,
        /// The committed rate means something.
        @1[1]  committed_valid: bool,
        /// The excess rate means something.
        @1[2]  excess_valid: bool,
        /// The shared rate means something.
        @1[3]  shared_valid: bool,
        /// Generic section: priority among siblings, mode.
        @2     generic: u8 => Hex,
        /// It sends nothing.
        @3[0]  suspended: bool,
        /// Rate profile of the committed rate; 0 for none.
        @4     committed_profile: u16,
        /// Share of the committed rate.
        @6     committed_weight: u16,
        /// Rate profile of the excess rate; 0 for none.
        @8     excess_profile: u16,
        /// Share of the excess rate.
        @10    excess_weight: u16,
        /// Rate profile that it shares with others.
        @12    shared_profile: u16,
    }
}

/// Kinds of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElementKind {
    /// The port.
    RootPort,
    /// A traffic class.
    TrafficClass,
    /// A node of the driver's.
    Generic,
    /// Where software may begin to add nodes.
    EntryPoint,
    /// A queue or a set of queue pairs.
    Leaf,
    /// None of them.
    Other(u8),
}

impl From<u8> for ElementKind {
    fn from(code: u8) -> Self {
        match code {
            1 => Self::RootPort,
            2 => Self::TrafficClass,
            3 => Self::Generic,
            4 => Self::EntryPoint,
            5 => Self::Leaf,
            other => Self::Other(other),
        }
    }
}

impl From<ElementKind> for u8 {
    fn from(kind: ElementKind) -> Self {
        match kind {
            ElementKind::RootPort => 1,
            ElementKind::TrafficClass => 2,
            ElementKind::Generic => 3,
            ElementKind::EntryPoint => 4,
            ElementKind::Leaf => 5,
            ElementKind::Other(code) => code,
        }
    }
}

impl ElementKind {
    /// The word for it.
    pub const fn name(self) -> Option<&'static str> {
        match self {
            Self::RootPort => Some("root_port"),
            Self::TrafficClass => Some("tc"),
            Self::Generic => Some("generic"),
            Self::EntryPoint => Some("entry_point"),
            Self::Leaf => Some("leaf"),
            Self::Other(_) => None,
        }
    }
}

impl Field for ElementKind {
    fn show(&self, name: &str, to: &mut dyn Visitor) {
        to.value(name, self.name().map_or(Value::Hex(u8::from(*self).into()), Value::Name));
    }
}

layout! {
    /// First part of the answer to "query scheduler resources".
    pub struct SchedulerResources[32] {
        /// Layers of the hardware's tree.
        @0  physical_levels: u16,
        /// Layers software sees.
        @2  logical_levels: u16,
        /// Bits by which elements are reset together.
        @4  flattening: u8 => Hex,
        /// Elements the device can reset at once.
        @5  max_device_reset: u8,
        /// Elements a function can reset at once.
        @6  max_function_reset: u8,
        /// Ports that cannot be taken away.
        @7  port_owner: u8,
        /// Elements of one command.
        @8  max_command_elements: u16,
    }
}

layout! {
    /// What a layer of the tree has room for.
    pub struct LevelResources[32] {
        /// Number of the layer, 0 for the root.
        @0   level: u8,
        /// Sections that its elements may have.
        @1   sections: u8 => Hex,
        /// Elements of the device.
        @2   max_device_elements: u16,
        /// Elements of a function.
        @4   max_function_elements: u16,
        /// Siblings: children of one element of the layer above.
        @10  max_siblings: u16,
        /// Profiles of committed rates.
        @12  max_committed_profiles: u16,
        /// Profiles of excess rates.
        @14  max_excess_profiles: u16,
        /// Profiles of shared rates.
        @16  max_shared_profiles: u16,
    }
}

layout! {
    /// A rate that elements of a layer can be held to.
    pub struct RateProfile[12] {
        /// Layer.
        @0       level: u8,
        /// 0 committed, 1 excess, 2 shared.
        @1[1:0]  kind: u8,
        /// Identifier, the device's to choose.
        @2       profile: u16,
        /// Bytes that may go at once.
        @4       burst: u16,
        /// Multiplier of the rate.
        @6       multiplier: u16,
        /// Wake-up time.
        @8       wake_up: u16,
        /// Encoding of the rate.
        @10      encoding: u16,
    }
}

layout! {
    /// "Query port ETS".
    pub struct PortEtsParameters[16] {
        /// The port's element.
        @0  port: Teid as u32,
    }
}

layout! {
    /// Its answer: which element is which traffic class.
    pub struct PortEts[64] {
        /// Bit t: traffic class t exists.
        @0   valid_classes: u8 => Hex,
        /// Their elements, all ones for none.
        @32  classes: [u32; 8] => _,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 0401 of `run73-all.aq.gz`, the first.
    #[test]
    fn a_driver_adds_a_node_as_recorded() {
        let command = [
            0x02, 0, 0, 0, 0x01, 0, 0, 0, //
            0x02, 0, 0, 0, 0, 0, 0, 0, 0x03, 0x07, 0, 0, 0, 0, 0x04, 0, 0, 0, 0x04, 0, 0, 0, 0, 0,
        ];
        let group = Group::parse_prefix(&command).unwrap();
        assert_eq!(group, Group { parent: Teid(2), count: 1 });
        let element = Element::parse_prefix(&command[Group::LEN..]).unwrap();
        let data = ElementData {
            kind: ElementKind::Generic,
            generic_valid: true,
            committed_valid: true,
            excess_valid: true,
            committed_weight: 4,
            excess_weight: 4,
            ..ElementData::default()
        };
        assert_eq!(element, Element { parent: Teid(2), teid: Teid(0), data });
        assert_eq!([&group.emit()[..], &element.emit()].concat(), command);
    }

    /// 0408 of `run73-all.aq.gz`.
    #[test]
    fn a_driver_moves_a_node_as_recorded() {
        let command = [0x0c, 0, 0, 0, 0x11, 0, 0, 0, 0x01, 0, 0, 0];
        let moved = Move { source: Teid(0x0c), destination: Teid(0x11), count: 1 };
        assert_eq!((Move::parse(&command), moved.emit()), (moved, command));
    }
}
