//! What a port counts.

use protocol::WireError;

/// Why a frame was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum DropReason {
    /// For another MAC, or for a group this port does not listen to. Usual where frames are flooded.
    OtherMac,
    /// From a source that no station can have: a group address.
    BadSource,
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
    pub const ALL: [Self; 11] = [
        Self::OtherMac,
        Self::BadSource,
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

/// Counters of one port. Every frame that arrives is counted once: accepted, answered or dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortStats {
    /// RoCE packets handed on.
    pub roce: u64,
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
