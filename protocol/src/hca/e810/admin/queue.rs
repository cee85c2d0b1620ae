//! Commands for transmit queues and the queue sets of RDMA: 0C30 to 0C33. Their buffers hold groups, of a header that names
//! the parent in the scheduler's tree and what follows it.
//!
//! # Spec
//! E810 interface, section 5.9.

use super::scheduler::{ElementData, Teid};
use crate::hca::e810::tx_context::TxContext;
use crate::layout;

/// Set in an id of "disable queues" that is one of a set of RDMA.
pub const RDMA: u16 = 1 << 15;

layout! {
    /// Parameters of "add transmit queues" and "add RDMA queue sets".
    pub struct AddParameters[16] {
        /// Groups in the buffer.
        @0  groups: u8,
    }
}

layout! {
    /// Parameters of "disable queues".
    pub struct DisableParameters[16] {
        /// Whose reset it is a part of; 0 for none.
        @0[1:0]  reset: u8,
        /// It continues a command before it.
        @0[2]    continued: bool,
        /// What is on its way is to be flushed.
        @0[3]    flush: bool,
        /// Groups in the buffer.
        @1       groups: u8,
    }
}

layout! {
    /// In front of transmit queues to add.
    pub struct QueueGroup[8] {
        /// Their parent.
        @0  parent: Teid as u32,
        /// Queues that follow.
        @4  count: u8,
    }
}

layout! {
    /// A transmit queue to add.
    pub struct AddQueue[48] {
        /// Its number.
        @0   queue: u16,
        /// The leaf that it becomes; the device's to say.
        @4   teid: Teid as u32,
        /// Its context.
        @8   context: TxContext,
        /// What the leaf is.
        @32  element: ElementData,
    }
}

layout! {
    /// In front of RDMA queue sets to add.
    pub struct RdmaSetGroup[8] {
        /// Their parent.
        @0  parent: Teid as u32,
        /// Sets that follow.
        @4  count: u16,
    }
}

layout! {
    /// An RDMA queue set to add.
    pub struct AddRdmaSet[24] {
        /// Its handle.
        @0  set: u16,
        /// The leaf that it becomes; the device's to say.
        @4  teid: Teid as u32,
        /// What the leaf is.
        @8  element: ElementData,
    }
}

layout! {
    /// In front of the ids of queues and sets to disable. A group is padded to a multiple of four bytes.
    pub struct DisableGroup[6] {
        /// Their parent.
        @0  parent: Teid as u32,
        /// Ids that follow, of 16 bits each.
        @4  count: u8,
    }
}

#[cfg(test)]
mod tests {
    use super::super::scheduler::ElementKind;
    use super::*;
    use crate::ids::Iova;

    fn bytes<const N: usize>(hex: &str) -> [u8; N] {
        let digit = |at: usize| u8::from_str_radix(&hex[at * 2..at * 2 + 2], 16).unwrap();
        assert_eq!(hex.len(), N * 2);
        std::array::from_fn(digit)
    }

    /// What the driver sent for the queue of a second VSI, and what it took for an answer.
    #[test]
    fn the_driver_s_queue_gets_its_leaf() {
        let group = QueueGroup::parse(&bytes("1400000001000000"));
        assert_eq!((group.parent, group.count), (Teid::new(0x14), 1));
        let sent = "010000000000000000908e00000000000080020000000000\
                    008000031000000000070000000004000000040000000000";
        let taken = "010000001500000000908e00000000000080020000000000\
                     008000031000000000070000000004000000040000000000";
        let queue = AddQueue::parse(&bytes(sent));
        assert_eq!((queue.queue, queue.context.vsi), (1, 2));
        assert_eq!(queue.context.ring.first(), Iova::new(0x4748_0000));
        assert!(queue.element.generic_valid && queue.element.committed_valid && queue.element.excess_valid);
        assert_eq!((queue.element.committed_weight, queue.element.excess_weight), (4, 4));
        let leaf = ElementData { kind: ElementKind::Leaf, ..queue.element };
        assert_eq!(leaf.emit()[0], 5);
        let answer = AddQueue { teid: Teid::new(0x15), ..queue };
        assert_eq!(AddQueue::parse(&bytes(taken)), answer);
    }

    /// What the driver sent, and what it took.
    #[test]
    fn the_driver_s_rdma_set_gets_its_leaf() {
        let group = RdmaSetGroup::parse(&bytes("1800000001000000"));
        assert_eq!((group.parent, group.count), (Teid::new(0x18), 1));
        let set = AddRdmaSet::parse(&bytes("010000000000000000070000000004000000040000000000"));
        assert_eq!(set.set, 1);
        let answer = AddRdmaSet { teid: Teid::new(0x19), ..set };
        assert_eq!(answer.emit(), bytes("010000001900000000070000000004000000040000000000"));
    }

    /// What the driver sent to disable queue 1.
    #[test]
    fn a_queue_to_disable_is_read() {
        let parameters = DisableParameters::parse(&bytes("08010014000000000000000000605240"));
        assert_eq!(
            (parameters.reset, parameters.continued, parameters.flush, parameters.groups),
            (0, false, true, 1)
        );
        let group = DisableGroup::parse(&bytes("140000000100"));
        assert_eq!((group.parent, group.count), (Teid::new(0x14), 1));
    }
}
