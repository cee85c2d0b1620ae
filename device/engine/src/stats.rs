//! Counters of one engine: plain fields, each drop and each NAK with its own reason ([`Drops`]).

use protocol::roce::{IpAddrs, Kind};
use serde::{Deserialize, Serialize};

use crate::{ByOpcode, Drops, Durations, SendOp};

/// What the engine saw and did since it was created. Packets unless said otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Stats {
    /// Frames handed out.
    pub sent_packets: u64,
    /// Payload bytes in them.
    pub sent_payload_bytes: u64,
    /// Packets handed in.
    pub received_packets: u64,
    /// Payload bytes in them.
    pub received_payload_bytes: u64,
    /// Packets dropped or refused, by reason.
    pub drops: Drops,
    /// Negative acknowledgements sent.
    pub naks_sent: Naks,
    /// Negative acknowledgements obeyed.
    pub naks_received: Naks,
    /// Recovery from loss.
    pub recovery: Recovery,
    /// Congestion on the way.
    pub congestion: Congestion,
    /// Messages that were sent and completed.
    pub requested: Messages,
    /// Messages of peers that were executed.
    pub executed: Messages,
    /// Frames handed out, by IP version.
    pub sent_ip: ByVersion,
    /// Packets handed in, by IP version.
    pub received_ip: ByVersion,
    /// Frames handed out, by opcode.
    #[serde(default)]
    pub sent_opcodes: ByOpcode,
    /// Packets handed in, by opcode.
    #[serde(default)]
    pub received_opcodes: ByOpcode,
    /// From when a send request of a reliable connection was taken from its queue, which is right after its doorbell unless
    /// older ones fill the window, to its completion with success.
    #[serde(default)]
    pub request_time: Durations,
}

/// Messages by what they ask for; each counts once, however many packets it takes and however often they are sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Messages {
    /// SENDs, with immediate data and with invalidation too; datagrams.
    pub sends: u64,
    /// RDMA WRITEs, with immediate data too.
    pub writes: u64,
    /// RDMA READs.
    pub reads: u64,
    /// Atomic operations.
    pub atomics: u64,
}

/// Packets by version of IP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ByVersion {
    /// IPv4.
    pub v4: IpTraffic,
    /// IPv6.
    pub v6: IpTraffic,
}

/// Packets of one version of IP in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct IpTraffic {
    /// All of them.
    pub packets: u64,
    /// Octets in them, from the IP header on.
    pub octets: u64,
    /// Those of them to groups.
    pub multicast_packets: u64,
    /// Octets in these.
    pub multicast_octets: u64,
    /// Packets that came and were for no QP, or not for one in its state: nobody counted their PSNs.
    pub discarded: u64,
}

impl IpTraffic {
    /// What was counted since `earlier`.
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
    /// Messages that were sent and completed, and messages of peers that were executed.
    pub const fn messages(&self) -> u64 {
        self.requested.total().wrapping_add(self.executed.total())
    }
}

impl Messages {
    /// Of all kinds.
    pub const fn total(&self) -> u64 {
        self.sends.wrapping_add(self.writes).wrapping_add(self.reads).wrapping_add(self.atomics)
    }

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
    /// Counts a packet of this length from its IP header on.
    pub(crate) fn count(&mut self, ip: &IpAddrs, octets: usize) {
        let of = self.of(ip);
        of.packets += 1;
        of.octets += octets as u64;
        if ip.dst().is_multicast() {
            of.multicast_packets += 1;
            of.multicast_octets += octets as u64;
        }
    }

    /// Those of the version of these addresses.
    pub(crate) fn of(&mut self, ip: &IpAddrs) -> &mut IpTraffic {
        match ip {
            IpAddrs::V4 { .. } => &mut self.v4,
            IpAddrs::V6 { .. } => &mut self.v6,
        }
    }
}

/// Negative acknowledgements by meaning.
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

/// Congestion management (IBTA annex A17, section A17.9).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Congestion {
    /// Packets handed in with the ECN mark of a congested switch (CE).
    pub received_marked: u64,
    /// Notifications sent for them.
    pub sent_cnps: u64,
    /// Notifications that slowed a QP.
    pub received_cnps: u64,
}

/// Events of loss recovery.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Recovery {
    /// Request packets sent a second time or more.
    pub retransmitted_packets: u64,
    /// ACK timeouts.
    pub timeouts: u64,
    /// Holes noticed by a later response.
    pub implied_naks: u64,
    /// Duplicate requests answered.
    pub duplicates: u64,
    /// Congestion windows halved.
    pub window_cuts: u64,
}
