//! What a frame is: RoCE for the engine, a question for the station, or something for the NIC.

use std::net::{IpAddr, Ipv6Addr};

use protocol::ids::MacAddr;
use protocol::net::ether::{EtherFrame, EtherType, group_mac};
use protocol::net::icmpv6;
use protocol::net::ipv4::Ipv4;
use protocol::net::ipv6::Ipv6;
use protocol::roce::{IcrcField, RoceFrame};

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

/// A RoCE packet, verified up to its ICRC if it has one, to a group or to an address that is ours.
pub(super) fn verified<'a>(
    frame: &'a [u8],
    icrc: IcrcField,
    ether: &EtherFrame<'_>,
    is_ours: impl FnOnce(IpAddr) -> bool,
) -> Result<RoceFrame<'a>, DropReason> {
    let roce = RoceFrame::parse_with(frame, icrc)?;
    let dst = roce.shell.ip.dst();
    let group = ether.dst.is_multicast();
    // Which groups we are in, the transport knows.
    if group && group_mac(dst) != Some(ether.dst) {
        return Err(DropReason::OtherMac);
    }
    if !group && !is_ours(dst) {
        return Err(DropReason::OtherIp);
    }
    Ok(roce)
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
