//! Flow counters: frames and bytes that match flow table entries.
//!
//! # Spec
//! mlx5 interface, section 16.4.

use super::counter::TrafficCounter;
use crate::ids::FlowCounterId;
use crate::layout;

layout! {
    /// Input of the ALLOC_FLOW_COUNTER command.
    pub struct AllocFlowCounter[16] big_endian {
        /// Number of counters in units of 128, or 0 for a single counter. Drivers allocate several counters at once
        /// only if a capability advertises support for it.
        @0x0c[7:0]  bulk: u8,
    }
}

layout! {
    /// Output of ALLOC_FLOW_COUNTER and input of DEALLOC_FLOW_COUNTER.
    pub struct FlowCounterNumber[16] big_endian {
        @0x08  counter: FlowCounterId,
    }
}

layout! {
    /// Input of the QUERY_FLOW_COUNTER command.
    pub struct QueryFlowCounter[32] big_endian {
        /// Whether to reset the counter after the query.
        @0x18[31]    clear: bool,
        /// Number of consecutive counters to query. 0 means 1.
        @0x18[15:0]  count: u16,
        /// The first counter to query.
        @0x1c        counter: FlowCounterId,
    }
}

layout! {
    /// Output of the QUERY_FLOW_COUNTER command for a single counter. If several are queried, the traffic of the others
    /// follows.
    pub struct QueriedFlowCounter[32] big_endian {
        @0x10  traffic: TrafficCounter,
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::words;
    use super::*;

    #[test]
    fn flow_counter_fields_are_at_specified_offsets() {
        let query = QueryFlowCounter { clear: true, count: 1, counter: FlowCounterId::new(7) };
        assert_eq!(query.emit(), words(&[(0x18, 0x8000_0001), (0x1c, 7)]));
        let queried = QueriedFlowCounter { traffic: TrafficCounter { packets: 2, bytes: 120 } };
        assert_eq!(queried.emit(), words(&[(0x14, 2), (0x1c, 120)]));
        assert_eq!(AllocFlowCounter { bulk: 1 }.emit(), words(&[(0xc, 1)]));
    }
}
