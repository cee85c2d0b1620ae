//! What a port counts.

use protocol::WireError;
use serde::{Deserialize, Serialize};

/// Why a frame was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum DropReason {
    /// For another MAC, or for a group this port does not listen to. Usual where frames are flooded.
    OtherMac,
    /// From a source that no other station can have: a group's MAC or IP address, a loopback or unspecified one, our own
    /// (RFC 1122, section 3.2.1.3; RFC 4291, section 2.7).
    BadSource,
    /// From an IP address that the configuration gives to another MAC.
    ForeignSource,
    /// Of a VLAN, in none of which this port is.
    Vlan,
    /// From our own MAC: the fabric gave us back what we sent to a group, or somebody has our address.
    Reflected,
    /// For our MAC, but another IP address.
    OtherIp,
    /// A protocol that this port does not speak.
    Protocol,
    /// Shorter than its headers or their lengths say.
    Short,
    /// A field with a value that the standard excludes.
    Invalid,
    /// An IP, UDP or ICMP checksum is wrong.
    Checksum,
    /// The invariant CRC is wrong.
    Icrc,
    /// An answer was due, but too many frames were waiting to be sent.
    NoRoom,
    /// An answer was due, but its sender had as many as it may have.
    OverRate,
    /// The link is down.
    LinkDown,
}

impl DropReason {
    /// All reasons, in the order of their declaration.
    pub const ALL: [Self; 14] = [
        Self::OtherMac,
        Self::BadSource,
        Self::ForeignSource,
        Self::Vlan,
        Self::Reflected,
        Self::OtherIp,
        Self::Protocol,
        Self::Short,
        Self::Invalid,
        Self::Checksum,
        Self::Icrc,
        Self::NoRoom,
        Self::OverRate,
        Self::LinkDown,
    ];

    /// Short stable name for counters.
    pub const fn name(self) -> &'static str {
        match self {
            Self::OtherMac => "other_mac",
            Self::BadSource => "bad_source",
            Self::ForeignSource => "foreign_source",
            Self::Vlan => "vlan",
            Self::Reflected => "reflected",
            Self::OtherIp => "other_ip",
            Self::Protocol => "protocol",
            Self::Short => "short",
            Self::Invalid => "invalid",
            Self::Checksum => "checksum",
            Self::Icrc => "icrc",
            Self::NoRoom => "no_room",
            Self::OverRate => "over_rate",
            Self::LinkDown => "link_down",
        }
    }
}

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

/// RoCE packets, or frames of a NIC, in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// Packets or frames.
    pub packets: u64,
    /// Those of them that were sent to a group.
    pub multicast_packets: u64,
    /// Octets: of a RoCE packet from BTH to ICRC, of a frame from the destination MAC on, without frame check sequence.
    pub octets: u64,
}

impl Traffic {
    /// Counts a frame that carries RoCE.
    pub(super) fn count(&mut self, frame: &[u8]) {
        const IPV6: [u8; 2] = [0x86, 0xdd];
        let headers = if frame.get(12..14) == Some(&IPV6) { 14 + 40 + 8 } else { 14 + 20 + 8 };
        self.packets += 1;
        self.octets += frame.len().saturating_sub(headers) as u64;
        self.multicast_packets += u64::from(is_for_group(frame));
    }

    /// Counts a frame of a NIC.
    pub(super) fn count_plain(&mut self, frame: &[u8]) {
        self.packets += 1;
        self.octets += frame.len() as u64;
        self.multicast_packets += u64::from(is_for_group(frame));
    }
}

fn is_for_group(frame: &[u8]) -> bool {
    frame.first().is_some_and(|first| first & 1 != 0)
}

/// Counters of one port. Every frame that arrives is counted once: accepted, answered or dropped. Only a management
/// datagram whose sender may have no answer more is both, since who answers it finds out after the port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortStats {
    /// RoCE packets handed on, those of this HCA to itself too.
    pub roce: u64,
    /// RoCE packets for the fabric.
    pub transmit: Traffic,
    /// RoCE packets from the fabric that were handed on.
    pub receive: Traffic,
    /// Frames of the NIC for the fabric.
    pub nic_transmit: Traffic,
    /// Frames from the fabric that the NIC was given.
    pub nic_receive: Traffic,
    /// Times the link went down.
    pub link_downed: u64,
    /// ARP messages taken in, answered or not.
    pub arp: u64,
    /// IPv6 neighbour discovery messages taken in, answered or not.
    pub neighbour_discovery: u64,
    /// ICMP and ICMPv6 echo requests answered.
    pub echo: u64,
    /// Frames to be sent that were lost because the link is down.
    pub lost_link_down: u64,
    /// Frames to be sent that were lost because nobody told the MAC of their destination.
    pub lost_unresolved: u64,
    /// Frames of the NIC that were lost because they are too short or too long to be frames.
    pub lost_malformed: u64,
    dropped: [u64; DropReason::ALL.len()],
}

impl PortStats {
    /// Frames dropped for `reason`.
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.dropped[reason as usize]
    }

    pub(super) fn count_drop(&mut self, reason: DropReason) {
        self.dropped[reason as usize] += 1;
    }
}
