//! Counters for one engine. Each drop reason and each NAK code has its own counter; see [`Drops`].

use protocol::roce::{IpAddrs, Kind};
use serde::{Deserialize, Serialize};

use crate::{ByOpcode, Drops, Durations, SendOp};

/// Counters since the engine was created. Unless stated otherwise, they count packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Stats {
    /// Number of packets sent.
    pub sent_packets: u64,
    /// Number of payload bytes in the packets sent.
    pub sent_payload_bytes: u64,
    /// Number of packets received.
    pub received_packets: u64,
    /// Number of payload bytes in the packets received.
    pub received_payload_bytes: u64,
    /// Packets dropped or rejected, by reason.
    pub drops: Drops,
    /// NAKs sent, counted by code.
    pub naks_sent: Naks,
    /// NAKs received, except for duplicate and late ones.
    pub naks_received: Naks,
    /// Counters for loss recovery.
    pub recovery: Recovery,
    /// Counters for congestion management.
    pub congestion: Congestion,
    /// Messages sent and completed as the requester.
    pub requested: Messages,
    /// Messages executed as the responder.
    pub executed: Messages,
    /// Packets sent, by IP version.
    pub sent_ip: ByVersion,
    /// Packets received, by IP version.
    pub received_ip: ByVersion,
    /// Packets sent, by opcode.
    #[serde(default)]
    pub sent_opcodes: ByOpcode,
    /// Packets received, by opcode.
    #[serde(default)]
    pub received_opcodes: ByOpcode,
    /// Latency of successful RC send requests, from fetch to completion. The fetch follows the doorbell immediately
    /// unless earlier requests fill the window.
    #[serde(default)]
    pub request_time: Durations,
}

/// Messages by operation. Each message counts once, regardless of the number of its packets and retransmissions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Messages {
    /// Number of SENDs, including datagrams and SENDs with immediate data or invalidate.
    pub sends: u64,
    /// Number of RDMA WRITEs, including those with immediate data.
    pub writes: u64,
    /// Number of RDMA READ requests.
    pub reads: u64,
    /// Number of atomic requests.
    pub atomics: u64,
}

/// Packets by IP version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ByVersion {
    /// Traffic in IPv4 packets.
    pub v4: IpTraffic,
    /// Traffic in IPv6 packets.
    pub v6: IpTraffic,
}

/// Packets of one IP version in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct IpTraffic {
    /// Total number of packets of this IP version.
    pub packets: u64,
    /// Octets in these packets, including IP headers.
    pub octets: u64,
    /// Number of packets to multicast addresses.
    pub multicast_packets: u64,
    /// Octets in the multicast packets.
    pub multicast_octets: u64,
    /// Received packets that no QP accepted: no QP matched, or the service, state, addresses or P_Key did not match.
    /// Their PSNs were not checked.
    pub discarded: u64,
}

impl IpTraffic {
    /// Returns the difference from an earlier reading.
    #[must_use]
    pub const fn since(&self, earlier: &Self) -> Self {
        Self {
            packets: self.packets.wrapping_sub(earlier.packets),
            octets: self.octets.wrapping_sub(earlier.octets),
            multicast_packets: self.multicast_packets.wrapping_sub(earlier.multicast_packets),
            multicast_octets: self.multicast_octets.wrapping_sub(earlier.multicast_octets),
            discarded: self.discarded.wrapping_sub(earlier.discarded),
        }
    }
}

impl Stats {
    /// Returns the number of messages completed as the requester or executed as the responder.
    pub const fn messages(&self) -> u64 {
        self.requested.total().wrapping_add(self.executed.total())
    }
}

impl Messages {
    /// Returns the total number of messages.
    pub const fn total(&self) -> u64 {
        self.sends.wrapping_add(self.writes).wrapping_add(self.reads).wrapping_add(self.atomics)
    }

    #[inline]
    pub(crate) fn count(&mut self, kind: Kind) {
        match kind {
            Kind::Send => self.sends += 1,
            Kind::Write => self.writes += 1,
            Kind::Read => self.reads += 1,
            Kind::Atomic => self.atomics += 1,
            Kind::ReadResponse | Kind::Acknowledge | Kind::AtomicAcknowledge | Kind::Reserved => {}
        }
    }

    pub(crate) fn count_request(&mut self, op: &SendOp) {
        match op {
            SendOp::Send { .. } | SendOp::SendInvalidate { .. } => self.count(Kind::Send),
            SendOp::Write { .. } => self.count(Kind::Write),
            SendOp::Read { .. } => self.count(Kind::Read),
            SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } => self.count(Kind::Atomic),
            SendOp::Local(_) | SendOp::Nop => {}
        }
    }
}

impl ByVersion {
    /// Counts packets of `octets` each, including the IP header.
    #[inline]
    pub(crate) fn count(&mut self, ip: &IpAddrs, octets: usize, packets: u32) {
        let of = self.of(ip);
        let (packets, octets) = (u64::from(packets), u64::from(packets) * octets as u64);
        of.packets += packets;
        of.octets += octets;
        if ip.dst().is_multicast() {
            of.multicast_packets += packets;
            of.multicast_octets += octets;
        }
    }

    /// Returns the counters for the IP version of `ip`.
    pub(crate) fn of(&mut self, ip: &IpAddrs) -> &mut IpTraffic {
        match ip {
            IpAddrs::V4 { .. } => &mut self.v4,
            IpAddrs::V6 { .. } => &mut self.v6,
        }
    }
}

/// Number of NAKs, by code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
#[allow(missing_docs)]
pub struct Naks {
    pub sequence: u64,
    pub invalid_request: u64,
    pub remote_access: u64,
    pub remote_operational: u64,
    pub invalid_rd_request: u64,
    pub rnr: u64,
}

/// Counters for congestion management (IBTA annex A17, section A17.9).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Congestion {
    /// Packets received with the ECN mark of a congested switch (CE).
    pub received_marked: u64,
    /// Congestion notification packets (CNPs) sent.
    pub sent_cnps: u64,
    /// Number of CNPs received that reduced a QP's rate.
    pub received_cnps: u64,
}

/// Counters for loss recovery events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Recovery {
    /// Number of request packets retransmitted.
    pub retransmitted_packets: u64,
    /// Number of expired ACK timers.
    pub timeouts: u64,
    /// Number of implied NAKs: gaps in the responses, revealed by a later response.
    pub implied_naks: u64,
    /// Number of duplicate requests acknowledged or executed again.
    pub duplicates: u64,
    /// Number of times a congestion window was halved.
    pub window_cuts: u64,
}
