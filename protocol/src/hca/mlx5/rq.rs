//! Receive queues (RQ) for Ethernet frames.
//!
//! # Spec
//! mlx5 interface, section 16.2.

use super::code::codes;
use super::sq::WorkQueueState;
use super::srq::WorkQueue;
use crate::ids::{CounterSet, Cqn, Rqn, Srqn, UserIndex};
use crate::layout;

codes! {
    /// Where an RQ takes its entries from.
    pub enum RqMemory(u8) {
        /// The RQ has its own entries.
        Inline = 0 "inline",
        /// The RQ takes entries from an RMP. Not supported.
        Rmp = 1 "rmp",
    }
}

/// Bits of MODIFY_RQ that select fields to change.
pub mod rq_fields {
    /// Whether the RQ strips VLAN tags.
    pub const VLAN_STRIP: u64 = 1 << 1;
    /// The Q counter set of the RQ.
    pub const COUNTER_SET: u64 = 1 << 3;
}

layout! {
    /// Context of an RQ, without its list of pages.
    pub struct RqContext[0xf0] big_endian {
        /// Whether key 0 addresses guest memory directly.
        @0x00[31]     reserved_lkey: bool,
        /// Whether C-TAGs stay in the frame. If not, they are reported only in the CQE.
        @0x00[28]     keep_vlan: bool,
        /// A value of [`RqMemory`].
        @0x00[27:24]  memory: u8 => RqMemory::word,
        /// A value of [`WorkQueueState`].
        @0x00[23:20]  state: u8 => WorkQueueState::word,
        /// Whether receives complete with an error when the RQ enters the error state.
        @0x00[18]     flush_in_error: bool,
        @0x04[23:0]   user_index: UserIndex,
        @0x08[23:0]   cqn: Cqn,
        /// Q counter set that counts the frames dropped for lack of a receive buffer, or 0 for none.
        @0x0c[31:24]  counter_set: CounterSet,
        /// RMP that the RQ takes its entries from.
        @0x10[23:0]   rmpn: Srqn,
        @0x30         queue: WorkQueue,
    }
}

layout! {
    /// Fixed part of the CREATE_RQ input. The page addresses of the queue follow.
    pub struct CreateRq[0x110] big_endian {
        @0x20  context: RqContext,
    }
}

layout! {
    /// Input of the MODIFY_RQ command.
    pub struct ModifyRq[0x110] big_endian {
        /// Current state of the RQ, as assumed by the driver.
        @0x08[31:28]  present_state: u8 => WorkQueueState::word,
        @0x08[23:0]   rqn: Rqn,
        /// Selects fields to change; see [`rq_fields`].
        @0x10         fields: u64 => Hex,
        /// Context with the new state and the new fields.
        @0x20         context: RqContext,
    }
}

layout! {
    /// Output of the QUERY_RQ command.
    pub struct QueriedRq[0x110] big_endian {
        @0x20  context: RqContext,
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::words;
    use super::*;

    /// The RQ of the first channel in golden trace eth-3.
    #[test]
    fn recorded_rq_context_round_trips() {
        let words = [
            (0x28, 0x46),
            (0x2c, 0x0100_0000),
            (0x50, 0x1000_0000),
            (0x58, 1),
            (0x64, 0x367a_a340),
            (0x70, 0x0004_000a),
        ];
        let bytes = self::words(&words);
        let CreateRq { context } = CreateRq::parse(&bytes);
        assert!(!context.keep_vlan);
        assert_eq!((context.cqn, context.counter_set), (Cqn::new(0x46), CounterSet::new(1)));
        assert_eq!((context.queue.log_stride, context.queue.log_entries), (4, 10));
        assert_eq!(CreateRq { context }.emit(), bytes);
    }
}
