//! Transport statistics for the "gather statistics" operation.
//!
//! At each read, the driver adds the increase since the last read to its own totals. It assumes that all counters start
//! at zero, so the device zeroes them when the control queue is created. Fields that the specification names after TCP
//! report the corresponding RoCE counters.
//!
//! # Spec
//! E810 interface, section 10.7.

use card::memory::GuestMemory;
use card::memory::key_op::KeyOp;
use engine::Stats;
use protocol::hca::e810::rdma::error::{CqpError, CqpErrorCode};
use protocol::hca::e810::rdma::statistics::{GatherStatistics, Statistics};

use super::dispatch::{Done, Outcome};

/// Counters that the engine does not keep, and the baseline for the engine's counters.
#[derive(Clone, Copy, Debug, Default)]
pub(in super::super) struct Counts {
    baseline: Stats,
    binds: u64,
    invalidates: u64,
}

impl Counts {
    /// Creates counters that start at zero, with the engine's current statistics as the baseline.
    pub(super) fn new(baseline: &Stats) -> Self {
        Self { baseline: *baseline, ..Self::default() }
    }

    /// Counts a successful operation on a key.
    pub(super) const fn count_key_op(&mut self, op: &KeyOp) {
        match op {
            KeyOp::Bind(_) => self.binds += 1,
            KeyOp::Invalidate(_) => self.count_invalidate(),
            KeyOp::FastRegister(_) => {}
        }
    }

    pub(super) const fn count_invalidate(&mut self) {
        self.invalidates += 1;
    }

    /// Executes "Gather statistics".
    ///
    /// # Errors
    /// Fails if the buffer is not in mapped memory.
    pub(super) fn gather(&self, dma: &GuestMemory, now: &Stats, command: &GatherStatistics) -> Outcome {
        let unreachable = |_| CqpError::new(CqpErrorCode::Unreachable, "buffer at", command.buffer.get());
        dma.write(command.buffer, &self.since(now).emit()).map_err(unreachable)?;
        Ok(Done::Plain)
    }

    fn since(&self, now: &Stats) -> Statistics {
        // Fields narrower than 64 bits wrap, which the driver handles.
        let count = |of: fn(&Stats) -> u64| of(now).wrapping_sub(of(&self.baseline));
        let baseline = &self.baseline;
        let (v4_in, v6_in) = (
            now.received_ip.v4.since(&baseline.received_ip.v4),
            now.received_ip.v6.since(&baseline.received_ip.v6),
        );
        let (v4_out, v6_out) =
            (now.sent_ip.v4.since(&baseline.sent_ip.v4), now.sent_ip.v6.since(&baseline.sent_ip.v6));
        Statistics {
            ipv4_bytes_received: wide(v4_in.octets),
            ipv4_packets_received: wide(v4_in.packets),
            ipv4_discarded: narrow(v4_in.discarded),
            ipv4_multicast_bytes_received: wide(v4_in.multicast_octets),
            ipv4_multicast_packets_received: wide(v4_in.multicast_packets),
            ipv6_bytes_received: wide(v6_in.octets),
            ipv6_packets_received: wide(v6_in.packets),
            ipv6_discarded: narrow(v6_in.discarded),
            ipv6_multicast_bytes_received: wide(v6_in.multicast_octets),
            ipv6_multicast_packets_received: wide(v6_in.multicast_packets),
            ipv4_bytes_sent: wide(v4_out.octets),
            ipv4_packets_sent: wide(v4_out.packets),
            ipv4_multicast_bytes_sent: wide(v4_out.multicast_octets),
            ipv4_multicast_packets_sent: wide(v4_out.multicast_packets),
            ipv6_bytes_sent: wide(v6_out.octets),
            ipv6_packets_sent: wide(v6_out.packets),
            ipv6_multicast_bytes_sent: wide(v6_out.multicast_octets),
            ipv6_multicast_packets_sent: wide(v6_out.multicast_packets),
            protocol_errors: narrow(count(protocol_errors)) & 0xff_ffff,
            retransmitted: narrow(count(|stats| stats.recovery.retransmitted_packets)),
            udp_received: wide(count(|stats| stats.received_packets)),
            udp_sent: wide(count(|stats| stats.sent_packets)),
            writes_received: wide(count(|stats| stats.executed.writes)),
            reads_received: wide(count(|stats| stats.executed.reads)),
            sends_received: wide(count(|stats| stats.executed.sends)),
            writes_sent: wide(count(|stats| stats.requested.writes)),
            reads_sent: wide(count(|stats| stats.requested.reads)),
            sends_sent: wide(count(|stats| stats.requested.sends)),
            binds: wide(self.binds),
            invalidates: wide(self.invalidates),
            ecn_marked: wide(count(|stats| stats.congestion.received_marked)),
            cnp_handled: narrow(count(|stats| stats.congestion.received_cnps)),
            cnp_sent: wide(count(|stats| stats.congestion.sent_cnps)),
        }
    }
}

/// Returns the number of received packets that violated the protocol.
fn protocol_errors(stats: &Stats) -> u64 {
    stats.naks_sent.invalid_request + stats.naks_sent.invalid_rd_request + stats.drops.malformed
}

const fn wide(count: u64) -> u64 {
    count & ((1 << 48) - 1)
}

fn narrow(count: u64) -> u32 {
    let [a, b, c, d, ..] = count.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}
