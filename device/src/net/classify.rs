//! What a frame is: RoCE for the engine, a question for the station, or something for the NIC.

use std::net::{IpAddr, Ipv6Addr};

use protocol::ids::MacAddr;
use protocol::net::ether::{EtherFrame, EtherType};
use protocol::net::icmpv6;
use protocol::net::ipv4::Ipv4;
use protocol::net::ipv6::Ipv6;

use super::DropReason;
use crate::identity::Identity;

/// Who is to have a frame at an HCA without a NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// The engine.
    Roce,
    /// The station.
    Station,
}

/// Sorts a frame that the fabric brought to an HCA without a NIC.
pub(super) fn classify(ether: &EtherFrame<'_>, own: &Identity) -> Result<Class, DropReason> {
    if ether.src.is_multicast() || ether.src == MacAddr::default() {
        return Err(DropReason::BadSource);
    }
    if ether.src == own.mac {
        return Err(DropReason::Reflected);
    }
    check_destination(ether, own)?;
    let group = ether.dst.is_multicast();
    match ether.ether_type {
        EtherType::Arp if !group || ether.dst == MacAddr::BROADCAST => Ok(Class::Station),
        EtherType::Ipv4 | EtherType::Ipv6 if ether.is_roce() => Ok(Class::Roce),
        EtherType::Ipv6 if group && hears(own, ether.dst) => Ok(Class::Station),
        // Nothing else that we speak is sent to groups.
        _ if group => Err(DropReason::OtherMac),
        EtherType::Ipv4 | EtherType::Ipv6 => Ok(Class::Station),
        EtherType::Arp | EtherType::Other(_) => Err(DropReason::Protocol),
    }
}

/// Whether a frame is for the RDMA half of a NIC: RoCE to its MAC or to a group. IP addresses and VLANs are its driver's,
/// and queue pairs know theirs.
pub(super) fn is_for_rdma(frame: &[u8], own: &Identity) -> bool {
    EtherFrame::parse_tagged(frame)
        .is_ok_and(|(ether, _)| ether.is_roce() && check_destination(&ether, own).is_ok())
}

pub(super) fn check_destination(ether: &EtherFrame<'_>, own: &Identity) -> Result<(), DropReason> {
    let ours = ether.dst.is_multicast() || ether.dst == own.mac;
    if ours { Ok(()) } else { Err(DropReason::OtherMac) }
}

/// Whether a station can have an address and send from it over a wire: RFC 1122, section 3.2.1.3, and RFC 4291, sections
/// 2.5.2, 2.5.3 and 2.7.
pub(super) fn is_a_stations(ip: IpAddr) -> bool {
    let of_no_network = matches!(ip, IpAddr::V4(ip) if ip.octets()[0] == 0 || ip.is_broadcast());
    !(of_no_network || ip.is_unspecified() || ip.is_loopback() || ip.is_multicast())
}

/// Where the IP header of a frame says it goes.
pub(crate) fn destination(ether: &EtherFrame<'_>) -> Option<IpAddr> {
    match ether.ether_type {
        EtherType::Ipv4 => Ipv4::parse(ether.payload).ok().map(|(ip, _)| ip.dst.into()),
        EtherType::Ipv6 => Ipv6::parse(ether.payload).ok().map(|(ip, _)| ip.dst.into()),
        EtherType::Arp | EtherType::Other(_) => None,
    }
}

/// Whether an IPv6 station listens to a group: all nodes, and those who ask for its addresses.
fn hears(own: &Identity, group: MacAddr) -> bool {
    let of = |ip: Ipv6Addr| icmpv6::multicast_mac(icmpv6::solicited_node(ip)) == group;
    group == icmpv6::multicast_mac(icmpv6::ALL_NODES) || of(own.link_local()) || own.ipv6.is_some_and(of)
}
