//! Counters that a port maintains.

use protocol::WireError;
use protocol::ids::MacAddr;
use protocol::net::ether::{TAG_LEN, TAGS};
use serde::{Deserialize, Serialize};

pub use crate::telemetry::reason::FrameReason as DropReason;

impl From<WireError> for DropReason {
    fn from(error: WireError) -> Self {
        match error {
            WireError::Short { .. } => Self::Short,
            WireError::Invalid { .. } => Self::Invalid,
            WireError::Icrc { .. } => Self::Icrc,
            WireError::Checksum { .. } => Self::Checksum,
        }
    }
}

/// RoCE packets or NIC frames in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// Number of packets or frames.
    pub packets: u64,
    /// Number of packets or frames addressed to a multicast group.
    pub multicast_packets: u64,
    /// Number of octets. A RoCE packet is counted from the BTH to the ICRC. A NIC frame is counted from its
    /// destination MAC to its end, without the frame check sequence.
    pub octets: u64,
}

impl Traffic {
    pub(super) fn count(&mut self, frame: &[u8]) {
        const IPV6: [u8; 2] = [0x86, 0xdd];
        let has_tag = TAGS.iter().any(|tag| frame.get(12..14) == Some(tag));
        let ether = if has_tag { 14 + TAG_LEN } else { 14 };
        let ip = if frame.get(ether - 2..ether) == Some(&IPV6) { 40 } else { 20 };
        let headers = ether + ip + 8;
        self.packets += 1;
        self.octets += frame.len().saturating_sub(headers) as u64;
        self.multicast_packets += u64::from(is_for_group(frame));
    }

    /// Counts `packets` packets for `dst`, with a total length of `octets` from the BTH to the ICRC.
    pub(super) fn count_packets(&mut self, dst: MacAddr, packets: u32, octets: u64) {
        let packets = u64::from(packets);
        self.packets += packets;
        self.octets += octets;
        self.multicast_packets += packets * u64::from(dst.is_multicast());
    }

    pub(super) fn count_nic(&mut self, frame: &[u8]) {
        self.packets += 1;
        self.octets += frame.len() as u64;
        self.multicast_packets += u64::from(is_for_group(frame));
    }
}

fn is_for_group(frame: &[u8]) -> bool {
    frame.first().is_some_and(|first| first & 1 != 0)
}

/// Counters for one port. Every received frame is counted exactly once, as accepted, answered or dropped, with one
/// exception: a management datagram that exceeds its sender's rate limit is counted as accepted and then as dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortStats {
    /// RoCE packets delivered, including those from this HCA to itself.
    pub roce: u64,
    /// RoCE packets sent to the fabric.
    pub transmit: Traffic,
    /// RoCE packets from the fabric that were delivered.
    pub receive: Traffic,
    /// NIC frames sent to the fabric.
    pub nic_transmit: Traffic,
    /// Frames from the fabric that were delivered to the NIC.
    pub nic_receive: Traffic,
    /// Number of times the link went down.
    pub link_downed: u64,
    /// ARP messages accepted, whether answered or not.
    pub arp: u64,
    /// IPv6 neighbour discovery messages accepted, whether answered or not.
    pub neighbour_discovery: u64,
    /// ICMP and ICMPv6 echo requests answered.
    pub echo: u64,
    /// Outbound frames dropped because the link was down.
    pub lost_link_down: u64,
    /// Outbound frames dropped because their destination's MAC could not be resolved.
    pub lost_unresolved: u64,
    /// NIC frames dropped because they were too short or too long.
    pub lost_malformed: u64,
    dropped: [u64; DropReason::ALL.len()],
    newest_drop: Option<DropReason>,
}

impl PortStats {
    /// Returns the number of frames dropped for `reason`.
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.dropped[reason as usize]
    }

    pub(super) fn count_drop(&mut self, reason: DropReason) {
        self.dropped[reason as usize] += 1;
        self.newest_drop = Some(reason);
    }

    /// Returns the reason for the latest drop since the last call, if any.
    pub(super) fn take_drop(&mut self) -> Option<DropReason> {
        self.newest_drop.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn octets_exclude_tags_of_both_types() {
        let frame = [&[2; 12][..], &[8, 0], &[0; 28], &[0; 16]].concat();
        for tag in [&[][..], &[0x81, 0, 0, 5], &[0x88, 0xa8, 0, 5]] {
            let mut traffic = Traffic::default();
            traffic.count(&[&frame[..12], tag, &frame[12..]].concat());
            assert_eq!(traffic, Traffic { packets: 1, multicast_packets: 0, octets: 16 }, "{tag:x?}");
        }
    }
}
