//! Commands for transmit queues and RDMA queue sets: 0C30 to 0C33. Their buffers contain groups, each of which consists
//! of a header with the parent in the scheduler tree, followed by queues or queue sets.
//!
//! # Spec
//! E810 interface, section 5.9.

use super::scheduler::{ElementData, Teid};
use crate::hca::e810::tx_context::TxContext;
use crate::layout;

/// Flag that marks an ID in "disable queues" as the ID of an RDMA queue set.
pub const RDMA: u16 = 1 << 15;

layout! {
    /// Parameters of "add transmit queues" and "add RDMA queue sets".
    pub struct AddParameters[16] {
        /// Number of groups in the buffer.
        @0  groups: u8,
    }
}

layout! {
    /// Parameters of "disable queues".
    pub struct DisableParameters[16] {
        /// Type of reset that the command belongs to; 0 for none.
        @0[1:0]  reset: u8,
        /// Whether the command continues the previous one.
        @0[2]    continued: bool,
        /// Whether to drop pending frames.
        @0[3]    flush: bool,
        /// Number of groups in the buffer.
        @1       groups: u8,
    }
}

layout! {
    /// Header of a group of transmit queues.
    pub struct QueueGroup[8] {
        /// Scheduler parent of the queues.
        @0  parent: Teid as u32,
        @4  count: u8,
    }
}

layout! {
    /// A transmit queue to add.
    pub struct AddQueue[48] {
        @0   queue: u16,
        /// The queue's scheduler leaf, chosen by the device.
        @4   teid: Teid as u32,
        /// The transmit queue's context.
        @8   context: TxContext,
        /// Scheduling parameters of the leaf.
        @32  element: ElementData,
    }
}

layout! {
    /// Header of a group of RDMA queue sets.
    pub struct RdmaSetGroup[8] {
        /// Scheduler parent of the queue sets.
        @0  parent: Teid as u32,
        /// Number of queue sets.
        @4  count: u16,
    }
}

layout! {
    /// An RDMA queue set to add.
    pub struct AddRdmaSet[24] {
        /// Handle of the queue set.
        @0  set: u16,
        /// Scheduler leaf of the queue set, chosen by the device.
        @4  teid: Teid as u32,
        /// Scheduling parameters of the leaf.
        @8  element: ElementData,
    }
}

layout! {
    /// Header of a group of IDs to disable. Groups are padded to a multiple of four bytes.
    pub struct DisableGroup[6] {
        /// Scheduler parent of the queues and queue sets.
        @0  parent: Teid as u32,
        /// Number of IDs, 16 bits each.
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

    /// Recorded while a driver added a queue to a second VSI. The driver accepted the response.
    #[test]
    fn parses_recorded_add_tx_queue_exchange() {
        let group = QueueGroup::parse(&bytes("1400000001000000"));
        assert_eq!((group.parent, group.count), (Teid::new(0x14), 1));
        let request = "010000000000000000908e00000000000080020000000000\
                       008000031000000000070000000004000000040000000000";
        let response = "010000001500000000908e00000000000080020000000000\
                        008000031000000000070000000004000000040000000000";
        let queue = AddQueue::parse(&bytes(request));
        assert_eq!((queue.queue, queue.context.vsi), (1, 2));
        assert_eq!(queue.context.ring.first(), Iova::new(0x4748_0000));
        assert!(queue.element.generic_valid && queue.element.committed_valid && queue.element.excess_valid);
        assert_eq!((queue.element.committed_weight, queue.element.excess_weight), (4, 4));
        let leaf = ElementData { kind: ElementKind::Leaf, ..queue.element };
        assert_eq!(leaf.emit()[0], 5);
        let expected = AddQueue { teid: Teid::new(0x15), ..queue };
        assert_eq!(AddQueue::parse(&bytes(response)), expected);
    }

    /// Recorded while a driver added a queue set. The driver accepted the response.
    #[test]
    fn parses_recorded_add_rdma_qset_exchange() {
        let group = RdmaSetGroup::parse(&bytes("1800000001000000"));
        assert_eq!((group.parent, group.count), (Teid::new(0x18), 1));
        let set = AddRdmaSet::parse(&bytes("010000000000000000070000000004000000040000000000"));
        assert_eq!(set.set, 1);
        let response = AddRdmaSet { teid: Teid::new(0x19), ..set };
        assert_eq!(response.emit(), bytes("010000001900000000070000000004000000040000000000"));
    }

    /// Recorded while a driver disabled queue 1.
    #[test]
    fn parses_recorded_queue_disable() {
        let parameters = DisableParameters::parse(&bytes("08010014000000000000000000605240"));
        assert_eq!(
            (parameters.reset, parameters.continued, parameters.flush, parameters.groups),
            (0, false, true, 1)
        );
        let group = DisableGroup::parse(&bytes("140000000100"));
        assert_eq!((group.parent, group.count), (Teid::new(0x14), 1));
    }
}
