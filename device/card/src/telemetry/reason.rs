//! Reasons for ignoring an input. Each component that handles untrusted input has a table of reasons, and
//! [`Reason`] covers all of them.
//!
//! A reason has the same name in traces, counters and `hcactl` rows. Ignored inputs are counted where they
//! occur: packets in the engine, frames in the port, everything else in the
//! [`Monitor`](super::monitor::Monitor).

use engine::DropReason;

macro_rules! reasons {
    ($(#[doc = $doc_of_all:literal])+ $all:ident { $($(#[doc = $doc:literal])+ $reason:ident $name:literal,)+ }) => {
        $(#[doc = $doc_of_all])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        pub enum $all {
            $($(#[doc = $doc])+ $reason,)+
        }

        impl $all {
            /// All reasons, in declaration order.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$reason,)+];

            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$reason => $name,)+
                }
            }
        }
    };
}

reasons! {
    /// Why a port dropped a frame.
    FrameReason {
        /// The destination is another MAC, or a group that this port has not joined. This is normal on
        /// fabrics that flood frames.
        OtherMac "other_mac",
        /// The source address cannot belong to a station: a group MAC or IP address, a loopback or
        /// unspecified address, or the address of this port (RFC 1122, section 3.2.1.3; RFC 4291, section
        /// 2.7).
        BadSource "bad_source",
        /// The configuration assigns the source IP address to another MAC.
        ForeignSource "foreign_source",
        /// The frame belongs to a VLAN. This port is not a member of any VLAN.
        Vlan "vlan",
        /// The source is this port's MAC. Either the fabric returned a multicast frame to its sender, or another
        /// station uses the same MAC.
        Reflected "reflected",
        /// The destination is this port's MAC, but the destination IP address is not one of this port's addresses.
        OtherIp "other_ip",
        /// The port does not support the protocol.
        Protocol "protocol",
        /// The frame is shorter than its headers, or shorter than the length given in one of them.
        Short "short",
        /// A field has a value that the standard does not allow.
        Invalid "invalid",
        /// An IP, UDP or ICMP checksum is wrong.
        Checksum "checksum",
        /// The ICRC is wrong.
        Icrc "icrc",
        /// The port should have replied, but too many frames were waiting to be sent.
        NoRoom "no_room",
        /// The port should have replied, but the sender exceeded its reply rate limit.
        OverRate "over_rate",
        /// The link is down.
        LinkDown "link_down",
        /// The frame came from the wire while the port was in loopback mode.
        Loopback "loopback",
    }
}

/// Why a device interface ignored a doorbell, a register write or a frame. Each interface declares its own
/// reasons.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IgnoreReason {
    /// Short stable name. It is unique among the interface's own reasons and those in [`DropReason`] and
    /// [`FrameReason`].
    pub name: &'static str,
    /// Severity, which selects the log level.
    pub severity: Severity,
}

impl IgnoreReason {
    /// Creates a reason that indicates a bug in the guest's software.
    pub const fn guest_bug(name: &'static str) -> Self {
        Self { name, severity: Severity::GuestBug }
    }

    /// Creates a reason that is expected during normal operation.
    pub const fn expected(name: &'static str) -> Self {
        Self { name, severity: Severity::Expected }
    }
}

/// Why an operation, packet or frame was ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Reason given by the device interface.
    Interface(IgnoreReason),
    /// Reason given by the transport, for a packet.
    Packet(DropReason),
    /// Reason given by the port, for a frame.
    Frame(FrameReason),
}

/// Severity of a reason, which selects the log level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// The guest's software has a bug, or is waiting for an event that will never occur.
    GuestBug,
    /// An access was denied.
    Denied,
    /// Expected during normal operation, because the wire is shared or loses frames.
    Expected,
}

impl Reason {
    /// Returns the reason's stable name, which is unique among all of a device's reasons.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Interface(reason) => reason.name,
            Self::Packet(reason) => reason.name(),
            Self::Frame(reason) => reason.name(),
        }
    }

    /// Returns the names of the transport and port reasons, which every device has.
    pub fn shared_names() -> impl Iterator<Item = &'static str> {
        let packets = DropReason::ALL.iter().map(|reason| reason.name());
        packets.chain(FrameReason::ALL.into_iter().map(FrameReason::name))
    }

    pub const fn severity(self) -> Severity {
        use DropReason as Drop;
        match self {
            Self::Interface(reason) => reason.severity,
            Self::Packet(
                Drop::InvalidRequest | Drop::NoAccess | Drop::BadReceive | Drop::BrokenQueue | Drop::TooLong,
            ) => Severity::Denied,
            Self::Packet(_) | Self::Frame(_) => Severity::Expected,
        }
    }
}

impl From<IgnoreReason> for Reason {
    fn from(reason: IgnoreReason) -> Self {
        Self::Interface(reason)
    }
}

impl From<DropReason> for Reason {
    fn from(reason: DropReason) -> Self {
        Self::Packet(reason)
    }
}

impl From<FrameReason> for Reason {
    fn from(reason: FrameReason) -> Self {
        Self::Frame(reason)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn shared_names_are_unique() {
        let names: BTreeSet<_> = Reason::shared_names().collect();
        assert_eq!(names.len(), Reason::shared_names().count());
        for name in names {
            assert!(name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_')), "{name}");
        }
    }
}
