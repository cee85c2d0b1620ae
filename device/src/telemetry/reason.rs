//! Why something was ignored: one table per component that handles untrusted input, and one type for all of them.
//!
//! A reason has the same name in traces, counters and rows of `hcactl`. It is counted where it occurs: packets in the
//! engine, frames in the port, everything else in the [`Monitor`](super::monitor::Monitor).

use engine::DropReason;
use serde::{Deserialize, Serialize};

macro_rules! reasons {
    ($(#[doc = $doc_of_all:literal])+ $all:ident { $($(#[doc = $doc:literal])+ $reason:ident $name:literal,)+ }) => {
        $(#[doc = $doc_of_all])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        pub enum $all {
            $($(#[doc = $doc])+ $reason,)+
        }

        impl $all {
            /// All reasons, in the order of their declaration.
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
        /// The destination is another MAC, or a group that this port has not joined. Normal on fabrics that flood
        /// frames.
        OtherMac "other_mac",
        /// The source cannot be that of a station: a group MAC or IP address, a loopback or unspecified address, or the
        /// address of this port (RFC 1122, section 3.2.1.3; RFC 4291, section 2.7).
        BadSource "bad_source",
        /// The configuration assigns the source IP address to another MAC.
        ForeignSource "foreign_source",
        /// The frame belongs to a VLAN. This port is a member of none.
        Vlan "vlan",
        /// The source is the MAC of this port. Either the fabric returned a multicast frame to its sender, or another
        /// station uses the same MAC.
        Reflected "reflected",
        /// The destination is the MAC of this port, but another IP address.
        OtherIp "other_ip",
        /// The port does not support the protocol.
        Protocol "protocol",
        /// The frame is shorter than its headers, or than the length in one of them.
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
        /// The frame came from the wire while the port was in loopback.
        Loopback "loopback",
    }
}

reasons! {
    /// Why a device interface ignored a doorbell, a register write or a frame.
    InterfaceReason {
        /// The QP is in RESET.
        QpReset "qp_reset",
        /// The QP is in INIT and cannot send yet.
        QpInit "qp_init",
        /// The QP is in RTR and cannot send yet.
        QpRtr "qp_rtr",
        /// No QP has this number.
        NoQp "no_qp",
        /// No CQ has this number.
        NoCq "no_cq",
        /// No EQ has this number.
        NoEq "no_eq",
        /// No NIC queue has this number, or the queue is not enabled.
        NoQueue "no_queue",
        /// The object belongs to a different doorbell page.
        ForeignPage "foreign_page",
        /// The number is that of an earlier QP with the same index.
        StaleQpn "stale_qpn",
        /// The doorbell announces more requests than the queue has slots.
        Overflow "overflow",
        /// The device had already found the request in guest memory and executed it.
        AlreadyTaken "already_taken",
        /// Software has not initialised the device.
        NotInitialised "not_initialised",
        /// No register exists at this address.
        NoRegister "no_register",
        /// The width or alignment of the store is not supported by the registers.
        Width "width",
        /// Memory space is disabled in the PCI command register.
        MemorySpaceOff "memory_space_off",
        /// The frame exceeds the maximum frame size of the MAC.
        Oversize "oversize",
        /// The headers of the frame cannot be parsed.
        Unparsed "unparsed",
        /// No VSI accepts the frame.
        NoTaker "no_taker",
        /// The receive queue has no free buffer.
        NoBuffer "no_buffer",
        /// The frame exceeds the maximum frame size of its receive queue.
        LongerThanQueue "longer_than_queue",
        /// The VSI is not allowed to send this frame.
        MayNotSend "may_not_send",
        /// The RDMA ARP table has no free entry for a neighbour that is needed.
        ArpTableFull "arp_table_full",
    }
}

/// Why something was ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Reason {
    /// Reason of the device interface.
    Interface(InterfaceReason),
    /// Reason of the transport, for a packet.
    Packet(DropReason),
    /// Reason of the port, for a frame.
    Frame(FrameReason),
}

/// Severity of a reason, which selects the log level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// The guest's software has a bug, or will wait in vain.
    GuestBug,
    /// An access was denied.
    Denied,
    /// Expected during normal operation, on a wire that loses frames or is shared.
    Expected,
}

impl Reason {
    /// Returns its stable name, which is unique among all reasons.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Interface(reason) => reason.name(),
            Self::Packet(reason) => reason.name(),
            Self::Frame(reason) => reason.name(),
        }
    }

    /// Returns the reason with a name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::all().find(|reason| reason.name() == name)
    }

    fn all() -> impl Iterator<Item = Self> {
        InterfaceReason::ALL
            .into_iter()
            .map(Self::Interface)
            .chain(DropReason::ALL.iter().copied().map(Self::Packet))
            .chain(FrameReason::ALL.into_iter().map(Self::Frame))
    }

    pub const fn severity(self) -> Severity {
        use {DropReason as Drop, InterfaceReason as Interface};
        match self {
            Self::Interface(
                Interface::QpReset
                | Interface::QpInit
                | Interface::QpRtr
                | Interface::NoCq
                | Interface::NoEq
                | Interface::ForeignPage
                | Interface::StaleQpn
                | Interface::Overflow
                | Interface::NotInitialised
                | Interface::Width
                | Interface::ArpTableFull,
            ) => Severity::GuestBug,
            Self::Interface(_) => Severity::Expected,
            Self::Packet(
                Drop::InvalidRequest | Drop::NoAccess | Drop::BadReceive | Drop::BrokenQueue | Drop::TooLong,
            ) => Severity::Denied,
            Self::Packet(_) | Self::Frame(_) => Severity::Expected,
        }
    }
}

impl From<InterfaceReason> for Reason {
    fn from(reason: InterfaceReason) -> Self {
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

impl From<Reason> for String {
    fn from(reason: Reason) -> Self {
        reason.name().to_owned()
    }
}

impl TryFrom<String> for Reason {
    type Error = String;

    fn try_from(name: String) -> Result<Self, Self::Error> {
        Self::of_name(&name).ok_or_else(|| format!("unknown reason {name:?}"))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn reason_names_are_unique() {
        let names: BTreeSet<_> = Reason::all().map(Reason::name).collect();
        assert_eq!(names.len(), Reason::all().count());
        for name in names {
            assert!(name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_')), "{name}");
            assert_eq!(Reason::of_name(name).map(Reason::name), Some(name));
        }
        assert_eq!(Reason::of_name("bad_weather"), None);
    }
}
