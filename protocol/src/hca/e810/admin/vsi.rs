//! Virtual station interfaces: 0210, 0211, 0213.
//!
//! # Spec
//! E810 interface, section 5.7.

use bitflags::bitflags;

use crate::describe::{Field, Value, Visitor};
use crate::layout;

layout! {
    /// "Add VSI", "update VSI", "free VSI".
    pub struct VsiParameters[16] {
        /// Which one; the device's to choose when it is added.
        @0[9:0]  number: u16,
        /// The number means something.
        @0[15]   number_valid: bool,
        /// When it is freed: bit 0, keep its resources.
        @2       flags: u16 => Hex,
        /// Virtual function it is for.
        @4       function: u8,
        /// What it is for: 0 a virtual function, 1 VMDq, 2 the physical function, 3 the embedded management.
        @6[1:0]  kind: u8,
    }
}

layout! {
    /// Their answer.
    pub struct VsiAnswer[16] {
        /// Which one.
        @0  number: u16,
        /// VSIs that there are.
        @4  used: u16,
        /// VSIs that there is room for.
        @6  free: u16,
    }
}

layout! {
    /// Buffer of "add" and "update".
    pub struct VsiContext[128] {
        /// Sections that are to be taken.
        @0   sections: Sections as u16,
        /// Its place in the switch.
        @2   switch: SwitchSection,
        /// What it must not send.
        @6   security: SecuritySection,
        /// Its VLAN tags.
        @8   vlan: VlanSection,
        /// Priority that a received priority becomes, three bits each.
        @16  ingress_priorities: u32 => Hex,
        /// Priority that a sent priority becomes, three bits each.
        @20  egress_priorities: u32 => Hex,
        /// Its outer tags, of which there are none in single VLAN mode.
        @24  outer_tags: u32 => Hex,
        /// Its queues.
        @28  queues: QueueSection,
        /// How frames find their queue.
        @78  options: OptionsSection,
        /// Priority that an outer priority becomes.
        @84  outer_priorities: u32 => Hex,
        /// Flow director.
        @90  flow_director: FlowDirectorSection,
    }
}

bitflags! {
    /// Sections of a [`VsiContext`].
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Sections: u16 {
        /// [`SwitchSection`].
        const SWITCH = 1 << 0;
        /// [`SecuritySection`].
        const SECURITY = 1 << 1;
        /// [`VlanSection`].
        const VLAN = 1 << 2;
        /// Outer tags.
        const OUTER_TAGS = 1 << 3;
        /// Priorities of received frames.
        const INGRESS_PRIORITIES = 1 << 4;
        /// Priorities of sent frames.
        const EGRESS_PRIORITIES = 1 << 5;
        /// [`QueueSection`].
        const QUEUES = 1 << 6;
        /// [`OptionsSection`].
        const OPTIONS = 1 << 7;
        /// Priorities of outer tags.
        const OUTER_PRIORITIES = 1 << 8;
        /// [`FlowDirectorSection`].
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
    /// A VSI's place in the switch.
    pub struct SwitchSection[4] {
        /// Which switch.
        @0     switch_id: u8,
        /// What it sends may reach other VSIs.
        @1[5]  allow_loopback: bool,
        /// What it sends may reach itself.
        @1[6]  local_loopback: bool,
        /// It does not receive what it sent.
        @1[7]  source_prune: bool,
        /// It receives only frames of VLANs whose prune list it is in.
        @2[0]  vlan_prune: bool,
        /// Prune lists of other kinds.
        @2[3:1]  other_prune: u8 => Hex,
        /// What it sends may reach the wire.
        @2[4]  lan: bool,
    }
}

layout! {
    /// What a VSI must not send.
    pub struct SecuritySection[2] {
        /// Its context descriptors may say where a frame goes.
        @0[0]  destination_override: bool,
        /// It sends only from addresses that it receives.
        @0[2]  mac_anti_spoof: bool,
        /// It sends only frames of VLANs whose prune list it is in.
        @0[4]  vlan_prune: bool,
        /// Prune lists of other kinds.
        @0[7:5]  other_prune: u8 => Hex,
    }
}

layout! {
    /// VLAN tags of a VSI.
    pub struct VlanSection[8] {
        /// The port's own tag.
        @0       port_tag: u16 => Hex,
        /// Frames that software may send, as it says them: bit 0 untagged, bit 1 tagged.
        @4[1:0]  transmit: u8 => Hex,
        /// The port's own tag goes into every frame sent.
        @4[2]    insert_port_tag: bool,
        /// What becomes of a received frame's tag.
        @4[4:3]  strip: Strip as u8,
    }
}

/// What becomes of a received frame's tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strip {
    /// It is taken out; VLAN and priority go to the descriptor.
    VlanAndPriority,
    /// It is taken out; the priority goes to the descriptor.
    Priority,
    /// It is taken out.
    Remove,
    /// It stays.
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
        /// The queues are listed one by one instead of being consecutive.
        @0[0]  scattered: bool,
        /// Consecutive queues: the first, and how many. Otherwise each.
        @2     mapping: [u16; 16] => _,
        /// Of each traffic class.
        @34    classes: [ClassQueues; 8] => _,
    }
}

layout! {
    /// Queues of a traffic class.
    pub struct ClassQueues[2] {
        /// The first, among the VSI's.
        [10:0]   first: u16,
        /// How many, as a power of two.
        [14:11]  log2_count: u8,
    }
}

layout! {
    /// How frames find their queue.
    pub struct OptionsSection[6] {
        /// Whose indirection table is used.
        @0[1:0]  table: TableKind as u8,
        /// Number of the global table.
        @0[5:2]  global_table: u8,
        /// Hash of its flows.
        @0[7:6]  hash: HashKind as u8,
        /// Traffic class of all frames, if there is a bit 7.
        @1       class_override: u8 => Hex,
        /// RDMA takes its packets out of what is received.
        @2[0]    rdma_filter: bool,
    }
}

/// Whose indirection table a VSI uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableKind {
    /// Its own.
    Vsi,
    /// The function's.
    Function,
    /// One that VSIs of several functions share.
    Global,
    /// None of them.
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

/// How a VSI hashes the flows of what it receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HashKind {
    /// Toeplitz.
    Toeplitz,
    /// Toeplitz, the same for both directions of a flow.
    SymmetricToeplitz,
    /// Exclusive or.
    Xor,
    /// Jenkins.
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
    /// Flow director of a VSI.
    pub struct FlowDirectorSection[10] {
        /// Filters are applied to what it receives.
        @0[0]    enable: bool,
        /// Its queues may program filters.
        @0[3]    program: bool,
        /// Filters of its own.
        @2       own_filters: u16,
        /// Filters of what all share.
        @4       shared_filters: u16,
        /// Queue of frames whose filter names none.
        @6       default_queue: u16 => Hex,
        /// Queue of reports.
        @8       report_queue: u16 => Hex,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Buffer of the first 0210 of `run73-vlan.aq.gz`, a function with two queues, up to where it is zero.
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
    fn the_first_vsi_of_a_driver_is_read_as_recorded() {
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
