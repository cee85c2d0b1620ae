//! Why nothing was done: one table for each part that looks at what strangers ask for, and one type for all of them.
//!
//! A reason has one name in the trace, in counters and in rows for an operator. Each counts where it is met: packets in
//! the engine, frames in the port, the rest in the [`Monitor`](super::monitor::Monitor).

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

            /// Short stable name.
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
        /// For another MAC, or for a group this port does not listen to. Usual where frames are flooded.
        OtherMac "other_mac",
        /// From a source that no other station can have: a group's MAC or IP address, a loopback or unspecified one, our
        /// own (RFC 1122, section 3.2.1.3; RFC 4291, section 2.7).
        BadSource "bad_source",
        /// From an IP address that the configuration gives to another MAC.
        ForeignSource "foreign_source",
        /// Of a VLAN, in none of which this port is.
        Vlan "vlan",
        /// From our own MAC: the fabric gave us back what we sent to a group, or somebody has our address.
        Reflected "reflected",
        /// For our MAC, but another IP address.
        OtherIp "other_ip",
        /// A protocol that this port does not speak.
        Protocol "protocol",
        /// Shorter than its headers or their lengths say.
        Short "short",
        /// A field with a value that the standard excludes.
        Invalid "invalid",
        /// An IP, UDP or ICMP checksum is wrong.
        Checksum "checksum",
        /// The invariant CRC is wrong.
        Icrc "icrc",
        /// An answer was due, but too many frames were waiting to be sent.
        NoRoom "no_room",
        /// An answer was due, but its sender had as many as it may have.
        OverRate "over_rate",
        /// The link is down.
        LinkDown "link_down",
        /// From the wire, from which the loopback of the port cuts it off.
        Loopback "loopback",
    }
}

reasons! {
    /// Why a device interface ignored a doorbell, a store or a frame.
    InterfaceReason {
        /// The queue pair is in RESET, where interfaces know it by nothing but its number.
        QpReset "qp_reset",
        /// The queue pair is in INIT, and cannot send yet.
        QpInit "qp_init",
        /// The queue pair is in RTR, and cannot send yet.
        QpRtr "qp_rtr",
        /// No queue pair has this number.
        NoQp "no_qp",
        /// No completion queue has this number.
        NoCq "no_cq",
        /// No event queue has this number.
        NoEq "no_eq",
        /// No queue of the NIC has this number, or it is not enabled.
        NoQueue "no_queue",
        /// The object belongs to another page of doorbells.
        ForeignPage "foreign_page",
        /// The number is that of an earlier queue pair in the same place.
        StaleQpn "stale_qpn",
        /// More would be announced than the queue has slots.
        Overflow "overflow",
        /// What it announces was found in memory before it came, and is executed.
        AlreadyTaken "already_taken",
        /// Software has not initialised the device.
        NotInitialised "not_initialised",
        /// There is no register.
        NoRegister "no_register",
        /// A store of a width or alignment that the registers do not have.
        Width "width",
        /// Memory space is disabled in the PCI command register.
        MemorySpaceOff "memory_space_off",
        /// A frame longer than the MAC takes.
        Oversize "oversize",
        /// A frame whose headers make no sense.
        Unparsed "unparsed",
        /// No VSI takes the frame.
        NoTaker "no_taker",
        /// The frame's queue has no free buffer.
        NoBuffer "no_buffer",
        /// The frame is longer than its queue takes.
        LongerThanQueue "longer_than_queue",
        /// The VSI may not send this frame.
        MayNotSend "may_not_send",
        /// The RDMA half's table of neighbours has no room for the one that is needed.
        ArpTableFull "arp_table_full",
    }
}

/// Why nothing was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Reason {
    /// By the device interface.
    Interface(InterfaceReason),
    /// With a packet, by the transport.
    Packet(DropReason),
    /// With a frame, by the port.
    Frame(FrameReason),
}

/// Who is to hear of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weight {
    /// The guest's software made a mistake, or will wait in vain.
    Mistake,
    /// Somebody was refused.
    Refusal,
    /// It happens where all is well: on a wire that loses, or that others use too.
    Usual,
}

impl Reason {
    /// Short stable name. No two reasons have the same.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Interface(reason) => reason.name(),
            Self::Packet(reason) => reason.name(),
            Self::Frame(reason) => reason.name(),
        }
    }

    /// The reason of this name.
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

    /// Who is to hear of it.
    pub const fn weight(self) -> Weight {
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
            ) => Weight::Mistake,
            Self::Interface(_) => Weight::Usual,
            Self::Packet(
                Drop::InvalidRequest | Drop::NoAccess | Drop::BadReceive | Drop::BrokenQueue | Drop::TooLong,
            ) => Weight::Refusal,
            Self::Packet(_) | Self::Frame(_) => Weight::Usual,
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
    fn no_two_reasons_have_the_same_name() {
        let names: BTreeSet<_> = Reason::all().map(Reason::name).collect();
        assert_eq!(names.len(), Reason::all().count());
        for name in names {
            assert!(name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_')), "{name}");
            assert_eq!(Reason::of_name(name).map(Reason::name), Some(name));
        }
        assert_eq!(Reason::of_name("bad_weather"), None);
    }
}
