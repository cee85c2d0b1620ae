//! Transmit scheduler commands: 0400 to 0415.
//!
//! # Spec
//! E810 interface, section 5.5.

use crate::describe::{Field, Value, Visitor};
use crate::layout;

/// Transmit scheduler element ID (TEID).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Teid(u32);

impl Teid {
    /// No element; used as the root's parent.
    pub const NONE: Self = Self(u32::MAX);

    /// Creates a TEID from its number.
    pub const fn new(raw: u32) -> Self {
        Self(raw)
    }

    /// Returns the TEID as an integer.
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
    /// Parameters of commands whose buffer contains a list, and their responses.
    pub struct ListParameters[16] {
        /// Number of groups, elements or profiles in the buffer.
        @0  count: u16,
        /// Number of entries processed.
        @2  processed: u16,
    }
}

layout! {
    /// Response to "get default topology".
    pub struct TopologyParameters[16] {
        /// Number of branches in the buffer, each with a [`Group`] header.
        @1  branches: u8,
    }
}

layout! {
    /// Header of a group of elements to add or delete, or of a branch in the default topology.
    pub struct Group[8] {
        /// Common parent of the elements.
        @0  parent: Teid as u32,
        @4  count: u16,
    }
}

layout! {
    /// Header of a list of elements to move, followed by their TEIDs.
    pub struct Move[12] {
        /// Parent before the move.
        @0  source: Teid as u32,
        /// Parent after the move.
        @4  destination: Teid as u32,
        @8  count: u16,
    }
}

layout! {
    /// An element of the scheduler tree.
    pub struct Element[24] {
        /// Parent of this element.
        @0  parent: Teid as u32,
        /// The element's TEID, chosen by the device.
        @4  teid: Teid as u32,
        /// Type and scheduling parameters.
        @8  data: ElementData,
    }
}

layout! {
    /// An element's type and its share of the bandwidth.
    pub struct ElementData[16] {
        @0     kind: ElementKind as u8,
        /// Whether the generic section is valid.
        @1[0]  generic_valid: bool,
        /// Whether the committed rate (CIR) is valid.
        @1[1]  committed_valid: bool,
        /// Whether the excess rate (EIR) is valid.
        @1[2]  excess_valid: bool,
        /// Whether the shared rate is valid.
        @1[3]  shared_valid: bool,
        /// Generic section: mode, and priority among siblings.
        @2     generic: u8 => Hex,
        /// Whether the element is suspended.
        @3[0]  suspended: bool,
        /// Rate profile of the committed rate; 0 for none.
        @4     committed_profile: u16,
        /// Weight for the committed rate.
        @6     committed_weight: u16,
        /// Rate profile of the excess rate; 0 for none.
        @8     excess_profile: u16,
        /// Weight for the excess rate.
        @10    excess_weight: u16,
        /// Rate profile of the shared rate.
        @12    shared_profile: u16,
    }
}

/// Types of scheduler elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum ElementKind {
    /// Root of a port.
    RootPort,
    TrafficClass,
    /// A generic node, added by the driver.
    Generic,
    /// Entry point: drivers can add nodes below it.
    EntryPoint,
    /// A transmit queue or RDMA queue set.
    Leaf,
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
    /// Returns the name used in traces.
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
    /// First part of the response to "query scheduler resources".
    pub struct SchedulerResources[32] {
        /// Number of layers in the hardware tree.
        @0  physical_levels: u16,
        /// Number of layers visible to drivers.
        @2  logical_levels: u16,
        /// Flattening bitmap, which determines the elements that are reset together.
        @4  flattening: u8 => Hex,
        /// Maximum number of elements that a device reset handles.
        @5  max_device_reset: u8,
        /// Maximum number of elements that a function reset handles.
        @6  max_function_reset: u8,
        /// Ports that are permanently assigned.
        @7  port_owner: u8,
        /// Maximum number of elements in a command.
        @8  max_command_elements: u16,
    }
}

layout! {
    /// Capacity of a tree layer.
    pub struct LevelResources[32] {
        /// Layer number; 0 for the root.
        @0   level: u8,
        /// Sections supported by the layer's elements.
        @1   sections: u8 => Hex,
        /// Maximum number of elements per device.
        @2   max_device_elements: u16,
        /// Maximum number of elements per function.
        @4   max_function_elements: u16,
        /// Maximum number of elements of this layer with the same parent.
        @10  max_siblings: u16,
        /// Maximum number of committed rate profiles.
        @12  max_committed_profiles: u16,
        /// Maximum number of excess rate profiles.
        @14  max_excess_profiles: u16,
        /// Maximum number of shared rate profiles.
        @16  max_shared_profiles: u16,
    }
}

layout! {
    /// A rate limiter profile.
    pub struct RateProfile[12] {
        /// Layer of the elements that use the profile.
        @0       level: u8,
        /// Kind of rate: 0 for committed, 1 for excess, 2 for shared.
        @1[1:0]  kind: u8,
        /// Profile ID, chosen by the device.
        @2       profile: u16,
        /// Burst size in bytes.
        @4       burst: u16,
        /// Multiplier of the rate.
        @6       multiplier: u16,
        /// Wake-up time of the rate limiter.
        @8       wake_up: u16,
        /// The rate in the device's encoding.
        @10      encoding: u16,
    }
}

layout! {
    /// Parameters of "query port ETS".
    pub struct PortEtsParameters[16] {
        /// The port's root element.
        @0  port: Teid as u32,
    }
}

layout! {
    /// Response to "query port ETS", with the elements of the traffic classes.
    pub struct PortEts[64] {
        /// Valid traffic classes, one bit each.
        @0   valid_classes: u8 => Hex,
        /// TEID of each traffic class; all ones for a class without an element.
        @32  classes: [u32; 8] => _,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Uses the first 0401 command from the recording `run73-all.aq.gz`.
    #[test]
    fn parses_recorded_node_addition() {
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

    /// Uses command 0408 from the recording `run73-all.aq.gz`.
    #[test]
    fn parses_recorded_node_move() {
        let command = [0x0c, 0, 0, 0, 0x11, 0, 0, 0, 0x01, 0, 0, 0];
        let moved = Move { source: Teid(0x0c), destination: Teid(0x11), count: 1 };
        assert_eq!((Move::parse(&command), moved.emit()), (moved, command));
    }
}
