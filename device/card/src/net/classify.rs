//! Decides which component handles a frame that is not for the NIC: the engine (RoCE) or the host stack.

use std::net::{IpAddr, Ipv6Addr};

use protocol::ids::MacAddr;
use protocol::net::ether::{EtherFrame, EtherType};
use protocol::net::icmpv6;
use protocol::net::ipv4::Ipv4;
use protocol::net::ipv6::Ipv6;

use super::DropReason;
use crate::identity::Identity;

/// The component that handles a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    Roce,
    HostStack,
}

/// Classifies a frame that came from the fabric and is not for the NIC (`Port::is_for_nic` is false). For a MAC other
/// than `own.mac`, `has_mac` returns whether it also belongs to the port.
pub(super) fn classify(
    ether: &EtherFrame<'_>,
    own: &Identity,
    has_mac: impl Fn(MacAddr) -> bool,
) -> Result<Class, DropReason> {
    if ether.src.is_multicast() || ether.src == MacAddr::default() {
        return Err(DropReason::BadSource);
    }
    if ether.src == own.mac {
        return Err(DropReason::Reflected);
    }
    check_destination(ether, |mac| mac == own.mac || has_mac(mac))?;
    let group = ether.dst.is_multicast();
    match ether.ether_type {
        EtherType::Arp if !group || ether.dst == MacAddr::BROADCAST => Ok(Class::HostStack),
        EtherType::Ipv4 | EtherType::Ipv6 if ether.is_roce() => Ok(Class::Roce),
        EtherType::Ipv6 if group && is_member(own, ether.dst) => Ok(Class::HostStack),
        // No other protocol of the host stack uses multicast.
        _ if group => Err(DropReason::OtherMac),
        EtherType::Ipv4 | EtherType::Ipv6 => Ok(Class::HostStack),
        EtherType::Arp | EtherType::Other(_) => Err(DropReason::Protocol),
    }
}

pub(super) fn check_destination(
    ether: &EtherFrame<'_>,
    is_own: impl Fn(MacAddr) -> bool,
) -> Result<(), DropReason> {
    let ours = ether.dst.is_multicast() || is_own(ether.dst);
    if ours { Ok(()) } else { Err(DropReason::OtherMac) }
}

/// Returns whether a host may use an IP address as a source on the wire (RFC 1122, section 3.2.1.3, and RFC
/// 4291, sections 2.5.2, 2.5.3 and 2.7).
pub(super) fn is_valid_source(ip: IpAddr) -> bool {
    let of_no_network = matches!(ip, IpAddr::V4(ip) if ip.octets()[0] == 0 || ip.is_broadcast());
    !(of_no_network || ip.is_unspecified() || ip.is_loopback() || ip.is_multicast())
}

/// Returns the destination address in the IP header of a frame.
pub(crate) fn destination(ether: &EtherFrame<'_>) -> Option<IpAddr> {
    match ether.ether_type {
        EtherType::Ipv4 => Ipv4::parse(ether.payload).ok().map(|(ip, _)| ip.dst.into()),
        EtherType::Ipv6 => Ipv6::parse(ether.payload).ok().map(|(ip, _)| ip.dst.into()),
        EtherType::Arp | EtherType::Other(_) => None,
    }
}

/// Returns whether an IPv6 host has joined a group. A host joins the all-nodes group and the solicited-node
/// groups of its addresses.
fn is_member(own: &Identity, group: MacAddr) -> bool {
    let of = |ip: Ipv6Addr| icmpv6::multicast_mac(icmpv6::solicited_node(ip)) == group;
    group == icmpv6::multicast_mac(icmpv6::ALL_NODES) || of(own.link_local()) || own.ipv6.is_some_and(of)
}
