//! The RDMA half of a NIC. It selects the RoCE packets that go to the engine instead of the guest's kernel.

use std::net::IpAddr;

use protocol::ids::MacAddr;
use protocol::net::ether::EtherFrame;

use super::classify::{destination, is_valid_source};
use crate::identity::Identity;

/// An address of the RDMA half, as in a GID table entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoceAddress {
    pub mac: MacAddr,
    pub ip: IpAddr,
    /// VLAN identifier; `None` for untagged packets.
    pub vlan: Option<u16>,
}

#[derive(Debug, Default)]
pub(super) enum RdmaHalf {
    /// The guest's kernel receives all RoCE packets.
    #[default]
    Disabled,
    /// The engine receives RoCE packets to the port's MAC address, since the driver does not report the guest's IP
    /// addresses and VLANs. Each QP checks the IP addresses and the VLAN of its own connection.
    OfMac,
    /// The engine receives RoCE packets to one of these addresses. The front-end bounds their number.
    OfAddresses(Vec<RoceAddress>),
}

impl RdmaHalf {
    /// Returns whether a frame is for the engine. Unless the RDMA half is disabled, this includes every RoCE packet to
    /// a multicast MAC.
    pub(super) fn takes(&self, frame: &[u8], own: &Identity) -> bool {
        if let Self::Disabled = self {
            return false;
        }
        let Ok((ether, tag)) = EtherFrame::parse_tagged(frame) else { return false };
        let is_accepted = || match self {
            Self::Disabled => false,
            Self::OfMac => ether.dst == own.mac,
            Self::OfAddresses(_) => destination(&ether).is_some_and(|ip| self.accepts(ether.dst, ip, tag)),
        };
        ether.is_roce() && (ether.dst.is_multicast() || is_accepted())
    }

    /// Returns whether the engine receives RoCE packets with the given unicast destination and tag control information.
    pub(super) fn accepts(&self, mac: MacAddr, ip: IpAddr, tag: Option<u16>) -> bool {
        match self {
            Self::Disabled | Self::OfMac => is_valid_source(ip),
            Self::OfAddresses(addresses) => {
                // VLAN 0 is a priority tag, which does not make a packet part of a VLAN.
                let vlan = tag.map(|tag| tag & 0xfff).filter(|vlan| *vlan != 0);
                addresses.iter().any(|of| of.mac == mac && of.ip == ip && of.vlan == vlan)
            }
        }
    }

    /// Returns whether an address of the RDMA half has MAC address `mac`.
    pub(super) fn has_mac(&self, mac: MacAddr) -> bool {
        match self {
            Self::Disabled | Self::OfMac => false,
            Self::OfAddresses(addresses) => addresses.iter().any(|of| of.mac == mac),
        }
    }
}
