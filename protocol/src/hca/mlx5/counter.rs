//! Port counters and QP counters.
//!
//! # Spec
//! mlx5 interface, sections 17.1 and 17.2.

use crate::ids::CounterSet;
use crate::layout;

layout! {
    /// Input of the QUERY_Q_COUNTER command.
    pub struct QueryQCounter[32] big_endian {
        /// Whether to reset the counters after the query.
        @0x18[31]   clear: bool,
        @0x1c[7:0]  set: CounterSet,
    }
}

layout! {
    /// Output of the QUERY_Q_COUNTER command.
    pub struct QCounters[256] big_endian {
        @0x10  rx_write_requests: u32,
        @0x18  rx_read_requests: u32,
        @0x20  rx_atomic_requests: u32,
        /// DC connect requests received. Not used by this device.
        @0x28  rx_dct_connects: u32,
        /// Messages that arrived while no receive buffer was available.
        @0x30  out_of_buffer: u32,
        /// Packets that arrived out of sequence.
        @0x38  out_of_sequence: u32,
        @0x40  duplicate_request: u32,
        /// Received RNR NAKs that did not exceed the retry count.
        @0x48  rnr_nak_retry_err: u32,
        /// Received NAKs for sequence errors.
        @0x50  packet_seq_err: u32,
        /// Packets whose loss was revealed by a later response.
        @0x58  implied_nak_seq_err: u32,
        @0x60  local_ack_timeout_err: u32,
        @0x70  req_rnr_retries_exceeded: u32,
        @0x78  resp_local_length_error: u32,
        @0x7c  req_local_length_error: u32,
        @0x80  resp_local_qp_error: u32,
        @0x84  req_local_qp_error: u32,
        @0x88  resp_local_protection: u32,
        @0x8c  req_local_protection: u32,
        /// Error CQEs of the responder.
        @0x90  resp_cqe_error: u32,
        /// Error CQEs of the requester.
        @0x94  req_cqe_error: u32,
        /// Failed UMRs of the requester.
        @0x98  req_mw_binding: u32,
        @0x9c  req_bad_response: u32,
        @0xa0  req_remote_invalid_request: u32,
        @0xa4  resp_remote_invalid_request: u32,
        @0xa8  req_remote_access_errors: u32,
        @0xac  resp_remote_access_errors: u32,
        @0xb0  req_remote_operation_errors: u32,
        @0xb4  req_transport_retries_exceeded: u32,
        @0xb8  cq_overflow: u32,
        @0xbc  resp_cqe_flush_error: u32,
        @0xc0  req_cqe_flush_error: u32,
        /// Counters for adaptive retransmission and slow restart in RoCE. InfiniBand ports do not use them.
        @0xc8  roce: [u32; 5] => _,
    }
}

layout! {
    /// Input of the QUERY_VPORT_COUNTER command.
    pub struct QueryVportCounter[32] big_endian {
        /// Whether to reset the counters after the query.
        @0x18[31]  clear: bool,
    }
}

layout! {
    /// Packet and byte counts for one kind of traffic.
    pub struct TrafficCounter[16] big_endian {
        @0x00  packets: u64,
        @0x08  bytes: u64,
    }
}

layout! {
    /// Output of the QUERY_VPORT_COUNTER command.
    pub struct VportCounters[528] big_endian {
        @0x010  rx_errors: TrafficCounter,
        /// Packets and bytes that were not sent because of errors.
        @0x020  tx_errors: TrafficCounter,
        /// Received RDMA unicast packets and bytes.
        @0x030  rx_ib_unicast: TrafficCounter,
        /// Sent RDMA unicast packets and bytes.
        @0x040  tx_ib_unicast: TrafficCounter,
        /// Received RDMA multicast packets and bytes.
        @0x050  rx_ib_multicast: TrafficCounter,
        /// Sent RDMA multicast packets and bytes.
        @0x060  tx_ib_multicast: TrafficCounter,
        @0x070  rx_eth_broadcast: TrafficCounter,
        @0x080  tx_eth_broadcast: TrafficCounter,
        @0x090  rx_eth_unicast: TrafficCounter,
        @0x0a0  tx_eth_unicast: TrafficCounter,
        @0x0b0  rx_eth_multicast: TrafficCounter,
        @0x0c0  tx_eth_multicast: TrafficCounter,
        /// Packets and bytes that were looped back without leaving the port.
        @0x0d0  local_loopback: TrafficCounter,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn q_counters_are_at_specified_offsets() {
        let counters =
            QCounters { out_of_buffer: 1, local_ack_timeout_err: 2, cq_overflow: 3, ..QCounters::default() };
        let bytes = counters.emit();
        assert_eq!((bytes[0x33], bytes[0x63], bytes[0xbb]), (1, 2, 3));
        let query = QueryQCounter { clear: true, set: CounterSet::new(5) }.emit();
        assert_eq!(query[0x18..], [0x80, 0, 0, 0, 0, 0, 0, 5]);
    }

    #[test]
    fn vport_counters_are_at_specified_offsets() {
        let rx_ib_unicast = TrafficCounter { packets: 1, bytes: 102 };
        let counters = VportCounters { rx_ib_unicast, ..VportCounters::default() };
        let bytes = counters.emit();
        assert_eq!((bytes[0x37], bytes[0x3f]), (1, 102));
        assert_eq!(VportCounters::parse(&bytes), counters);
    }
}
