//! Send queues (SQ) for Ethernet frames.
//!
//! # Spec
//! mlx5 interface, section 16.1.

use super::code::codes;
use super::srq::WorkQueue;
use crate::ids::{Cqn, Sqn, Tisn, UserIndex};
use crate::layout;

codes! {
    /// State of an SQ or an RQ.
    pub enum WorkQueueState(u8) {
        /// The queue is empty and ignores doorbells.
        Reset = 0 "reset",
        /// The queue executes work requests.
        Ready = 1 "ready",
        /// The queue does not execute any more work requests.
        Error = 3 "error",
    }
}

layout! {
    /// Context of an SQ, without its list of pages.
    pub struct SqContext[0xf0] big_endian {
        /// Whether key 0 addresses guest memory directly.
        @0x00[31]     reserved_lkey: bool,
        /// Whether requests complete with an error while the SQ is in the error state.
        @0x00[28]     flush_in_error: bool,
        /// Whether WQEs with several frames are allowed. Not supported.
        @0x00[27]     multi_packet: bool,
        /// Headers that the driver must put inline. Not enforced.
        @0x00[26:24]  min_inline_mode: u8,
        /// A value of [`WorkQueueState`].
        @0x00[23:20]  state: u8 => WorkQueueState::word,
        /// Whether UMRs are allowed. Not supported.
        @0x00[19]     umr: bool,
        /// Format of the timestamps in CQEs.
        @0x00[5:4]    timestamp_format: u8,
        @0x04[23:0]   user_index: UserIndex,
        @0x08[23:0]   cqn: Cqn,
        /// Number of TISes, 0 or 1. An SQ without a TIS does not send frames.
        @0x20[31:16]  tis_count: u16,
        @0x2c[23:0]   tisn: Tisn,
        @0x30         queue: WorkQueue,
    }
}

impl SqContext {
    /// Returns the TIS of the SQ, if it has one.
    pub fn tis(&self) -> Option<Tisn> {
        (self.tis_count != 0).then_some(self.tisn)
    }
}

layout! {
    /// Fixed part of the CREATE_SQ input. The page addresses of the queue follow.
    pub struct CreateSq[0x110] big_endian {
        @0x20  context: SqContext,
    }
}

layout! {
    /// Input of the MODIFY_SQ command.
    pub struct ModifySq[0x110] big_endian {
        /// Current state of the SQ, as assumed by the driver.
        @0x08[31:28]  present_state: u8 => WorkQueueState::word,
        @0x08[23:0]   sqn: Sqn,
        /// Selects fields to change. None of them has an effect on this device.
        @0x10         fields: u64 => Hex,
        /// Context with the new state.
        @0x20         context: SqContext,
    }
}

layout! {
    /// Output of the QUERY_SQ command.
    pub struct QueriedSq[0x110] big_endian {
        @0x20  context: SqContext,
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::words;
    use super::*;

    /// The SQ of the first channel in golden trace eth-3.
    #[test]
    fn recorded_sq_context_round_trips() {
        let words = [
            (0x20, 0x1000_0000),
            (0x28, 0x45),
            (0x40, 0x0001_0000),
            (0x4c, 1),
            (0x50, 0x1000_0000),
            (0x58, 1),
            (0x5c, 0x10),
            (0x64, 0x367a_a300),
            (0x70, 0x0006_000a),
        ];
        let bytes = self::words(&words);
        let CreateSq { context } = CreateSq::parse(&bytes);
        assert!(context.flush_in_error && !context.reserved_lkey);
        assert_eq!((context.cqn, context.tis()), (Cqn::new(0x45), Some(Tisn::new(1))));
        assert_eq!((context.queue.kind, context.queue.log_stride, context.queue.log_entries), (1, 6, 10));
        assert_eq!(CreateSq { context }.emit(), bytes);
    }
}
