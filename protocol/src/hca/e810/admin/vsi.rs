//! Commands for virtual station interfaces (VSI): 0210, 0211, 0213.
//!
//! # Spec
//! E810 interface, section 5.7.

use bitflags::bitflags;

use crate::describe::{Field, Value, Visitor};
use crate::layout;

layout! {
    /// Parameters for "add VSI", "update VSI" and "free VSI".
    pub struct VsiParameters[16] {
        /// VSI number, which the device chooses in "add VSI".
        @0[9:0]  number: u16,
        /// Whether the VSI number is valid.
        @0[15]   number_valid: bool,
        /// In "free VSI", bit 0 keeps the resources allocated.
        @2       flags: u16 => Hex,
        /// Virtual function that owns the VSI.
        @4       function: u8,
        /// VSI type: 0 for a virtual function, 1 for VMDq, 2 for a physical function, 3 for embedded management.
        @6[1:0]  kind: u8,
    }
}

layout! {
    /// Response to "add VSI", "update VSI" and "free VSI".
    pub struct VsiResponse[16] {
        @0  number: u16,
        /// Number of VSIs in use.
        @4  used: u16,
        /// Number of free VSIs.
        @6  free: u16,
    }
}

layout! {
    /// VSI context in the "add VSI" and "update VSI" buffers.
    pub struct VsiContext[128] {
        @0   sections: Sections as u16,
        /// Connection to the switch.
        @2   switch: SwitchSection,
        /// Restrictions on sent frames.
        @6   security: SecuritySection,
        /// Handling of VLAN tags.
        @8   vlan: VlanSection,
        /// Priority mapping of received frames, three bits per priority.
        @16  ingress_priorities: u32 => Hex,
        /// Priority mapping of sent frames, three bits per priority.
        @20  egress_priorities: u32 => Hex,
        /// Handling of outer tags; unused in single VLAN mode.
        @24  outer_tags: u32 => Hex,
        /// Queues of the VSI.
        @28  queues: QueueSection,
        /// Queue selection for received frames.
        @78  options: OptionsSection,
        /// Priority mapping of outer tags.
        @84  outer_priorities: u32 => Hex,
        @90  flow_director: FlowDirectorSection,
    }
}

bitflags! {
    /// The valid sections of a [`VsiContext`].
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Sections: u16 {
        /// The section [`SwitchSection`] is valid.
        const SWITCH = 1 << 0;
        /// The section [`SecuritySection`] is valid.
        const SECURITY = 1 << 1;
        /// The section [`VlanSection`] is valid.
        const VLAN = 1 << 2;
        /// The outer tag handling is valid.
        const OUTER_TAGS = 1 << 3;
        /// The priority mapping of received frames is valid.
        const INGRESS_PRIORITIES = 1 << 4;
        /// The priority mapping of sent frames is valid.
        const EGRESS_PRIORITIES = 1 << 5;
        /// The section [`QueueSection`] is valid.
        const QUEUES = 1 << 6;
        /// The section [`OptionsSection`] is valid.
        const OPTIONS = 1 << 7;
        /// The priority mapping of outer tags is valid.
        const OUTER_PRIORITIES = 1 << 8;
        /// The section [`FlowDirectorSection`] is valid.
        const FLOW_DIRECTOR = 1 << 11;
    }
}

impl From<u16> for Sections {
    fn from(bits: u16) -> Self {
        Self::from_bits_retain(bits)
    }
}

impl From<Sections> for u16 {
    fn from(sections: Sections) -> Self {
        sections.bits()
    }
}

impl Field for Sections {
    fn show(&self, name: &str, to: &mut dyn Visitor) {
        let mut names = self.iter_names();
        let known: smallvec::SmallVec<[_; 16]> = names.by_ref().map(|(name, _)| name).collect();
        to.value(name, Value::Set(&known, names.remaining().bits().into()));
    }
}

layout! {
    /// A VSI's connection to the switch.
    pub struct SwitchSection[4] {
        /// Switch ID, eight bits.
        @0     switch_id: u8,
        /// Whether frames can reach other VSIs.
        @1[5]  allow_loopback: bool,
        /// Whether frames can be looped back to the sending VSI.
        @1[6]  local_loopback: bool,
        /// Whether the VSI discards its own frames on receive.
        @1[7]  source_prune: bool,
        /// Whether the VSI receives only frames in VLANs whose prune list contains the VSI.
        @2[0]  vlan_prune: bool,
        /// Selects additional prune lists.
        @2[3:1]  other_prune: u8 => Hex,
        /// Whether frames can reach the wire.
        @2[4]  lan: bool,
    }
}

layout! {
    /// Restrictions on the frames sent by a VSI.
    pub struct SecuritySection[2] {
        /// Whether context descriptors can override the destination of a frame.
        @0[0]  destination_override: bool,
        /// MAC anti-spoofing: whether the VSI can send only from addresses at which it receives frames.
        @0[2]  mac_anti_spoof: bool,
        /// Whether the VSI can send only frames in VLANs whose prune list contains the VSI.
        @0[4]  vlan_prune: bool,
        /// Selects additional prune lists.
        @0[7:5]  other_prune: u8 => Hex,
    }
}

layout! {
    /// A VSI's VLAN tag handling.
    pub struct VlanSection[8] {
        @0       port_tag: u16 => Hex,
        /// Frames that the driver may send: untagged (bit 0), tagged (bit 1).
        @4[1:0]  transmit: u8 => Hex,
        /// Whether to insert the port VLAN tag into every sent frame.
        @4[2]    insert_port_tag: bool,
        /// Tag stripping on receive.
        @4[4:3]  strip: Strip as u8,
    }
}

/// Handling of VLAN tags in received frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strip {
    /// Strip the tag; report VLAN and priority in the descriptor.
    VlanAndPriority,
    /// Strip the tag; report the priority in the descriptor.
    Priority,
    /// Strip the tag without reporting it.
    Remove,
    /// Keep the tag in the frame.
    Keep,
}

impl From<u8> for Strip {
    fn from(bits: u8) -> Self {
        match bits & 3 {
            0 => Self::VlanAndPriority,
            1 => Self::Priority,
            2 => Self::Remove,
            _ => Self::Keep,
        }
    }
}

impl From<Strip> for u8 {
    fn from(strip: Strip) -> Self {
        match strip {
            Strip::VlanAndPriority => 0,
            Strip::Priority => 1,
            Strip::Remove => 2,
            Strip::Keep => 3,
        }
    }
}

impl Field for Strip {
    fn show(&self, name: &str, to: &mut dyn Visitor) {
        let word = match self {
            Self::VlanAndPriority => "vlan_and_priority",
            Self::Priority => "priority",
            Self::Remove => "remove",
            Self::Keep => "keep",
        };
        to.value(name, Value::Name(word));
    }
}

layout! {
    /// Queues of a VSI.
    pub struct QueueSection[50] {
        /// Whether the queues are listed individually rather than as a range.
        @0[0]  scattered: bool,
        /// For a range, the first queue and the number of queues. For a list, all queues.
        @2     mapping: [u16; 16] => _,
        /// Queues of each traffic class.
        @34    classes: [ClassQueues; 8] => _,
    }
}

layout! {
    /// Queues of a traffic class.
    pub struct ClassQueues[2] {
        /// First queue, relative to the first queue of the VSI.
        [10:0]   first: u16,
        /// Log2 of the number of queues.
        [14:11]  log2_count: u8,
    }
}

layout! {
    /// Queue selection for received frames.
    pub struct OptionsSection[6] {
        /// RSS indirection table used by the VSI.
        @0[1:0]  table: TableKind as u8,
        /// Index of the global table.
        @0[5:2]  global_table: u8,
        @0[7:6]  hash: HashKind as u8,
        /// Traffic class of all frames, if bit 7 is set.
        @1       class_override: u8 => Hex,
        /// Whether received RDMA packets are passed to the RDMA block.
        @2[0]    rdma_filter: bool,
    }
}

/// RSS indirection table used by a VSI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum TableKind {
    /// Table that belongs to the VSI.
    Vsi,
    /// Table that belongs to the function.
    Function,
    /// Global table, shared by the VSIs of different functions.
    Global,
    Reserved,
}

impl From<u8> for TableKind {
    fn from(bits: u8) -> Self {
        match bits & 3 {
            0 => Self::Vsi,
            2 => Self::Function,
            3 => Self::Global,
            _ => Self::Reserved,
        }
    }
}

impl From<TableKind> for u8 {
    fn from(kind: TableKind) -> Self {
        match kind {
            TableKind::Vsi => 0,
            TableKind::Reserved => 1,
            TableKind::Function => 2,
            TableKind::Global => 3,
        }
    }
}

impl Field for TableKind {
    fn show(&self, name: &str, to: &mut dyn Visitor) {
        let word = match self {
            Self::Vsi => "vsi",
            Self::Function => "function",
            Self::Global => "global",
            Self::Reserved => "reserved",
        };
        to.value(name, Value::Name(word));
    }
}

/// A VSI's RSS hash function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum HashKind {
    Toeplitz,
    /// Symmetric Toeplitz: both directions of a flow have the same hash.
    SymmetricToeplitz,
    /// XOR of the input words.
    Xor,
    Jenkins,
}

impl From<u8> for HashKind {
    fn from(bits: u8) -> Self {
        match bits & 3 {
            0 => Self::Toeplitz,
            1 => Self::SymmetricToeplitz,
            2 => Self::Xor,
            _ => Self::Jenkins,
        }
    }
}

impl From<HashKind> for u8 {
    fn from(kind: HashKind) -> Self {
        match kind {
            HashKind::Toeplitz => 0,
            HashKind::SymmetricToeplitz => 1,
            HashKind::Xor => 2,
            HashKind::Jenkins => 3,
        }
    }
}

impl Field for HashKind {
    fn show(&self, name: &str, to: &mut dyn Visitor) {
        let word = match self {
            Self::Toeplitz => "toeplitz",
            Self::SymmetricToeplitz => "symmetric_toeplitz",
            Self::Xor => "xor",
            Self::Jenkins => "jenkins",
        };
        to.value(name, Value::Name(word));
    }
}

layout! {
    /// A VSI's flow director settings.
    pub struct FlowDirectorSection[10] {
        /// Whether filters apply to received frames.
        @0[0]    enable: bool,
        /// Whether queues of the VSI can program filters.
        @0[3]    program: bool,
        /// Number of guaranteed filters.
        @2       own_filters: u16,
        /// Number of shared filters.
        @4       shared_filters: u16,
        /// Queue for filters that do not specify one.
        @6       default_queue: u16 => Hex,
        /// Queue that receives programming status reports.
        @8       report_queue: u16 => Hex,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the buffer of the first "add VSI" command (0210) in the recording `run73-vlan.aq.gz`. The recorded
    /// function has two queues.
    fn recorded() -> [u8; VsiContext::LEN] {
        let mut context = [0; VsiContext::LEN];
        let head = [
            0x02, 0x08, 0x01, 0xa0, 0x10, 0, 0x01, 0, 0, 0, 0, 0, 0x03, 0, 0, 0, 0x88, 0xc6, 0xfa, 0, 0x88,
            0xc6, 0xfa,
        ];
        context[..head.len()].copy_from_slice(&head);
        context[32] = 2;
        context[63] = 0x08;
        context[78] = 0x02;
        context[84..91].copy_from_slice(&[0x88, 0xc6, 0xfa, 0, 0, 0, 0x09]);
        context[93..97].copy_from_slice(&[0x02, 0, 0x02, 0]);
        context
    }

    #[test]
    fn parses_recorded_add_vsi_context() {
        let context = VsiContext::parse(&recorded());
        assert_eq!(context.sections, Sections::SECURITY | Sections::FLOW_DIRECTOR);
        let switch = SwitchSection {
            switch_id: 1,
            allow_loopback: true,
            source_prune: true,
            lan: true,
            ..SwitchSection::default()
        };
        assert_eq!(context.switch, switch);
        let security = SecuritySection { destination_override: true, ..SecuritySection::default() };
        assert_eq!(context.security, security);
        assert_eq!((context.vlan.transmit, context.vlan.strip), (3, Strip::VlanAndPriority));
        assert_eq!(context.queues.mapping[..2], [0, 2]);
        assert_eq!(context.queues.classes[0], ClassQueues { first: 0, log2_count: 1 });
        assert_eq!(context.options.table, TableKind::Function);
        assert!(!context.options.rdma_filter);
        assert_eq!((context.flow_director.own_filters, context.flow_director.shared_filters), (512, 512));
        assert_eq!(context.emit(), recorded());
    }
}
