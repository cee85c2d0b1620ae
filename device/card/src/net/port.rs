//! One port: its link, its addresses, the owner of its non-RoCE traffic, and its counters.

use std::borrow::Cow;
use std::net::IpAddr;

use engine::{Instant, Transmit};
use protocol::ids::MacAddr;
use protocol::net::ether::{self, EtherFrame, group_mac};
use protocol::roce::{FlowHeaders, IpAddrs, Offload, RoceFrame, RoceHeaders};

use super::address::Addresses;
use super::classify::{Class, check_destination, classify, is_valid_source};
use super::host_stack::{HostStack, RxContext};
use super::link::Link;
use super::rdma_half::{RdmaHalf, RoceAddress};
use super::{DropReason, PortStats, Resolved};
use crate::fabric::TxBatch;
use crate::identity::Identity;

#[derive(Debug)]
pub struct Port {
    link: Link,
    /// Addresses, which can change at run time. No other component keeps a copy.
    addresses: Addresses,
    owner: PortOwner,
    /// Whether the port is in loopback mode, disconnected from the wire.
    loopback: bool,
    stats: PortStats,
    /// Headers of the last accepted packet from the fabric. For a packet with the same headers, only the ICRC is
    /// checked. Every change to the addresses, the owner or the static neighbours discards the stored headers.
    accepted: Option<FlowHeaders>,
    /// Like `accepted`, but for packets from this HCA to itself, which are subject to different checks.
    accepted_own: Option<FlowHeaders>,
}

/// Owner of the port's non-RoCE traffic.
#[derive(Debug)]
enum PortOwner {
    /// The host stack of an HCA.
    HostStack(Box<HostStack>),
    /// The guest's kernel, through a NIC.
    Nic {
        /// Selects the RoCE packets that go to the engine.
        rdma: RdmaHalf,
        /// MAC of the NIC until the driver sets a different one.
        permanent: MacAddr,
    },
}

impl PortOwner {
    /// Returns whether the RDMA half of a NIC has an address with MAC `mac`.
    fn has_mac(&self, mac: MacAddr) -> bool {
        match self {
            Self::HostStack(_) => false,
            Self::Nic { rdma, .. } => rdma.has_mac(mac),
        }
    }

    /// Checks the destination IP address of a RoCE packet. `mac` is the destination MAC, either this port's or a
    /// group's.
    fn check_destination(
        &self,
        own: &Identity,
        (mac, tag): (MacAddr, Option<u16>),
        ip: IpAddr,
    ) -> Result<(), DropReason> {
        let is_accepted = match self {
            // The transport checks whether the group has been joined.
            Self::HostStack(_) if mac.is_multicast() => group_mac(ip) == Some(mac),
            Self::HostStack(_) => own.owns(ip),
            // The driver programs the MAC of each group, which need not match the one derived from the IP address.
            Self::Nic { .. } if mac.is_multicast() => ip.is_multicast(),
            Self::Nic { rdma, .. } => rdma.accepts(mac, ip, tag),
        };
        match is_accepted {
            true => Ok(()),
            false if mac.is_multicast() => Err(DropReason::OtherMac),
            false => Err(DropReason::OtherIp),
        }
    }

    /// Checks the source of a RoCE packet from the wire.
    fn check_source(&self, own: &Identity, mac: MacAddr, ip: &IpAddrs) -> Result<(), DropReason> {
        match self {
            Self::HostStack(host_stack) => host_stack.check_source(own, mac, ip.src()),
            // A packet to this host whose source equals its destination has a forged source.
            Self::Nic { .. } if is_valid_source(ip.src()) && ip.src() != ip.dst() => Ok(()),
            Self::Nic { .. } => Err(DropReason::BadSource),
        }
    }
}

impl Port {
    /// Creates the port of an HCA, with its link up and the configured ports as static neighbours.
    pub fn new(addresses: impl Into<Addresses>) -> Self {
        let addresses = addresses.into();
        let mut host_stack = HostStack::default();
        addresses.ports().for_each(|other| host_stack.add_static_neighbour(&addresses.own, other));
        Self::of(addresses, PortOwner::HostStack(host_stack.into()))
    }

    /// Creates the port of a NIC, with its link up and its RDMA half disabled.
    pub fn of_nic(addresses: impl Into<Addresses>) -> Self {
        let addresses = addresses.into();
        let permanent = addresses.own.mac;
        Self::of(addresses, PortOwner::Nic { rdma: RdmaHalf::Disabled, permanent })
    }

    fn of(addresses: Addresses, owner: PortOwner) -> Self {
        Self {
            link: Link::default(),
            addresses,
            owner,
            loopback: false,
            stats: PortStats::default(),
            accepted: None,
            accepted_own: None,
        }
    }

    /// Discards the headers of accepted packets. Call this before any change that affects which packets are accepted.
    fn discard_flows(&mut self) {
        (self.accepted, self.accepted_own) = (None, None);
    }

    pub fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    pub fn addresses_mut(&mut self) -> &mut Addresses {
        self.discard_flows();
        &mut self.addresses
    }

    /// Returns whether the link is up. While the link is down, every received frame is dropped.
    pub fn is_up(&self) -> bool {
        self.link.is_up()
    }

    pub fn link(&self) -> Link {
        self.link
    }

    /// Sets the state of the link and counts each change from up to down.
    pub fn set_link(&mut self, link: Link) {
        self.stats.link_downed += u64::from(self.link.is_up() && !link.is_up());
        self.link = link;
    }

    /// Enables or disables the RDMA half of a NIC. While the RDMA half is disabled, the NIC receives RoCE packets like
    /// all other frames. While it is enabled, the engine receives the RoCE packets addressed to the port's MAC. Has no
    /// effect on an HCA without a NIC.
    pub fn set_rdma(&mut self, in_use: bool) {
        self.discard_flows();
        if let PortOwner::Nic { rdma, .. } = &mut self.owner {
            *rdma = if in_use { RdmaHalf::OfMac } else { RdmaHalf::Disabled };
        }
    }

    /// Enables the RDMA half of a NIC for RoCE packets to `addresses`. Has no effect on an HCA without a NIC.
    pub fn set_roce_addresses(&mut self, addresses: Vec<RoceAddress>) {
        self.discard_flows();
        if let PortOwner::Nic { rdma, .. } = &mut self.owner {
            *rdma = RdmaHalf::OfAddresses(addresses);
        }
    }

    /// Returns whether unicast packets to `mac` are for this HCA's engine.
    pub fn is_own_mac(&self, mac: MacAddr) -> bool {
        mac == self.addresses.own.mac || self.owner.has_mac(mac)
    }

    /// Sets the MAC of a NIC until the next [`Port::reset`]. Has no effect on an HCA without a NIC, whose MAC is fixed
    /// by its configuration.
    pub fn set_mac(&mut self, mac: MacAddr) {
        self.discard_flows();
        if let PortOwner::Nic { .. } = self.owner {
            self.addresses.own.mac = mac;
        }
    }

    /// Enables or disables loopback until the next [`Port::reset`]. Returns whether the setting changed.
    pub fn set_loopback(&mut self, loopback: bool) -> bool {
        std::mem::replace(&mut self.loopback, loopback) != loopback
    }

    pub fn is_looped_back(&self) -> bool {
        self.loopback
    }

    /// Resets the port. Discards the driver's settings and any frames waiting for address resolution.
    pub fn reset(&mut self) {
        self.discard_flows();
        self.loopback = false;
        match &mut self.owner {
            PortOwner::HostStack(host_stack) => host_stack.clear_waiting(),
            PortOwner::Nic { rdma, permanent } => {
                *rdma = RdmaHalf::Disabled;
                self.addresses.own.mac = *permanent;
            }
        }
    }

    /// Returns whether a frame is for the NIC. While the RDMA half is enabled, RoCE packets to a group or to the RDMA
    /// half are for the engine instead. Always returns false on a port without a NIC.
    pub fn is_for_nic(&self, frame: &[u8]) -> bool {
        match &self.owner {
            PortOwner::HostStack(_) => false,
            PortOwner::Nic { rdma, .. } => !rdma.takes(frame, &self.addresses.own),
        }
    }

    /// Counts a RoCE packet that is sent to the fabric.
    pub fn count_sent_frame(&mut self, frame: &[u8]) {
        if self.is_up() {
            self.stats.transmit.count(frame);
        }
    }

    /// Counts the RoCE packets of a frame that the engine has built for the fabric.
    pub fn count_sent(&mut self, sent: &Transmit) {
        if self.is_up() {
            self.stats.transmit.count_packets(sent.dst_mac, sent.packets, sent.octets.into());
        }
    }

    /// Counts a RoCE packet returned by [`Port::receive`] or [`Port::receive_in_flow`].
    pub fn count_received(&mut self, frame: &[u8], received: &RoceFrame<'_>, offload: Offload) {
        match offload {
            Offload::None | Offload::Icrc => self.stats.receive.count(frame),
            Offload::Segmentation(mtu) => {
                let RoceFrame { encap, packet } = received;
                let (packets, octets) = (packet.segment_count(mtu), packet.segmented_wire_len(mtu));
                self.stats.receive.count_packets(encap.dst_mac, packets, octets);
            }
        }
    }

    /// Counts a frame for the NIC and returns whether it is accepted. Unless loopback is enabled, frames from the NIC's
    /// own MAC are rejected, since they are reflected multicasts or come from a host with the same MAC.
    pub fn admit_nic_frame(&mut self, frame: &[u8]) -> bool {
        let reason = match EtherFrame::parse(frame) {
            Ok(ether) if self.loopback || ether.src != self.addresses.own.mac => {
                self.stats.nic_receive.count_nic(frame);
                return true;
            }
            Ok(_) => DropReason::Reflected,
            Err(error) => error.into(),
        };
        self.stats.count_drop(reason);
        false
    }

    /// Counts a NIC frame that is sent to the fabric.
    pub fn count_nic_sent(&mut self, frame: &[u8]) {
        self.stats.nic_transmit.count_nic(frame);
    }

    /// Counts a NIC transmit request that does not describe a valid frame.
    pub fn count_malformed(&mut self) {
        self.stats.lost_malformed += 1;
    }

    /// Counts frames dropped because the link is down.
    pub fn count_lost(&mut self, frames: usize) {
        self.stats.lost_link_down += frames as u64;
    }

    /// Removes a priority tag (VLAN ID 0), which switches may add to untagged frames. Returns `None` for a frame with
    /// any other VLAN ID, since this port does not belong to a VLAN. Frames for a NIC are returned unchanged.
    pub fn untag<'a>(&mut self, frame: &'a [u8]) -> Option<Cow<'a, [u8]>> {
        if let PortOwner::Nic { .. } = self.owner {
            return Some(frame.into());
        }
        let untagged = ether::untagged(frame);
        untagged.inspect_err(|_| self.stats.count_drop(DropReason::Vlan)).ok()
    }

    /// Checks a frame from the fabric that belongs to the flow of the last packet returned by [`Port::receive`], and
    /// returns its packet. Returns `None` for a frame that is outside the flow or has a wrong ICRC. Such a frame must
    /// be passed to [`Port::receive`].
    pub fn receive_in_flow<'a>(&mut self, frame: &'a [u8], offload: Offload) -> Option<RoceFrame<'a>> {
        let flow = self.accepted.as_ref().filter(|_| self.link.is_up())?;
        // Return the result unchanged, since unwrapping and rewrapping would copy it.
        let roce = RoceFrame::parse_in_flow(flow, frame, offload);
        self.stats.roce += roce.as_ref().map_or(0, |roce| packets_in(roce, offload));
        roce
    }

    /// Parses the headers of a frame of the flow that was last received. `head` is the beginning of the frame, whose
    /// length is `len`. Returns `None` for any other frame.
    #[inline]
    pub fn headers_in_flow(&self, head: &[u8], len: usize, offload: Offload) -> Option<RoceHeaders> {
        let flow = self.accepted.as_ref().filter(|_| self.link.is_up())?;
        RoceHeaders::parse_in_flow(flow, head, len, offload)
    }

    /// Accepts and counts the packets of a frame whose headers [`Port::headers_in_flow`] has returned.
    #[inline]
    pub fn accept_headers(&mut self, headers: &RoceHeaders, offload: Offload) {
        let RoceHeaders { encap, packet, .. } = headers;
        let (packets, octets) = match offload {
            Offload::None | Offload::Icrc => (1, packet.wire_len() as u64),
            Offload::Segmentation(mtu) => (packet.segment_count(mtu), packet.segmented_wire_len(mtu)),
        };
        self.stats.roce += u64::from(packets);
        self.stats.receive.count_packets(encap.dst_mac, packets, octets);
    }

    /// Handles a frame from the fabric. If the frame is a packet for a QP, checks the packet, including its ICRC if
    /// present, and returns it. For other frames, appends a reply to `answers`, updates the neighbour table, or drops
    /// and counts the frame.
    pub fn receive<'a>(
        &mut self,
        now: Instant,
        frame: &'a [u8],
        offload: Offload,
        answers: &mut TxBatch,
    ) -> Option<RoceFrame<'a>> {
        match self.sort(now, frame, offload, answers) {
            Ok(roce) => {
                if let Some(roce) = &roce {
                    self.accepted = FlowHeaders::of(frame, &roce.encap);
                }
                roce
            }
            Err(reason) => {
                self.stats.count_drop(reason);
                None
            }
        }
    }

    /// Resolves a neighbour. While its MAC is unknown, frames for it can be queued with [`wait`](Self::wait). A NIC
    /// port does not resolve neighbours; the guest's kernel does.
    pub fn resolve(&mut self, now: Instant, ip: IpAddr) -> Resolved {
        self.host_stack()
            .map_or(Resolved { mac: None, request: false }, |host_stack| host_stack.resolve(now, ip))
    }

    /// Appends an ARP or neighbour discovery request for `ip` to `out`.
    pub fn send_request(&mut self, ip: IpAddr, out: &mut TxBatch) {
        if let PortOwner::HostStack(host_stack) = &self.owner {
            host_stack.send_request(&self.addresses.own, ip, out);
        }
    }

    /// Queues a frame until the MAC of its destination is known; see [`Port::next_resolved`].
    pub fn wait(&mut self, now: Instant, ip: IpAddr, frame: Vec<u8>) {
        let lost = self.host_stack().map_or(1, |host_stack| host_stack.wait(now, ip, frame));
        self.stats.lost_unresolved += lost as u64;
    }

    /// Returns the next frame whose destination has been resolved, with the destination MAC filled in. Call
    /// this after [`Port::receive`].
    pub fn next_resolved(&mut self) -> Option<Vec<u8>> {
        self.host_stack()?.next_resolved()
    }

    /// Counts a frame whose destination cannot be resolved.
    pub fn count_unresolvable(&mut self) {
        self.stats.lost_unresolved += 1;
    }

    /// Adds static neighbour entries that map another host's IP addresses to its MAC. Skips the port's own addresses
    /// and addresses with a static entry for a different MAC. Has no effect on the port of a NIC.
    pub fn add_static_neighbour(&mut self, other: &Identity) {
        self.discard_flows();
        if let PortOwner::HostStack(host_stack) = &mut self.owner {
            host_stack.add_static_neighbour(&self.addresses.own, other);
        }
    }

    /// Removes the entries added by [`Port::add_static_neighbour`].
    pub fn remove_static_neighbour(&mut self, other: &Identity) {
        self.discard_flows();
        if let Some(host_stack) = self.host_stack() {
            host_stack.remove_static_neighbour(other);
        }
    }

    pub fn stats(&self) -> &PortStats {
        &self.stats
    }

    /// Handles a frame that this HCA sent to itself. Such a frame bypasses the fabric, so its ICRC may not have been
    /// computed and its payload may not have been segmented; see [`Offload`].
    pub fn receive_own<'a>(&mut self, frame: &'a [u8], offload: Offload) -> Option<RoceFrame<'a>> {
        let accepted = self.accepted_own.as_ref();
        if let Some(roce) = accepted.and_then(|flow| RoceFrame::parse_in_flow(flow, frame, offload)) {
            self.stats.roce += packets_in(&roce, offload);
            return Some(roce);
        }
        let (ether, tag) = EtherFrame::parse_tagged(frame).ok()?;
        let Self { addresses: Addresses { own, .. }, owner, .. } = self;
        let sorted = check_destination(&ether, |mac| mac == own.mac || owner.has_mac(mac)).and_then(|()| {
            let roce = RoceFrame::parse_with(frame, offload)?;
            owner.check_destination(own, (ether.dst, tag), roce.encap.ip.dst())?;
            Ok(roce)
        });
        match sorted {
            Ok(roce) => {
                self.stats.roce += packets_in(&roce, offload);
                self.accepted_own = FlowHeaders::of(frame, &roce.encap);
                Some(roce)
            }
            Err(reason) => {
                self.stats.count_drop(reason);
                None
            }
        }
    }

    /// Returns the reason for the latest drop since the last call, if any.
    pub fn take_drop(&mut self) -> Option<DropReason> {
        self.stats.take_drop()
    }

    /// Counts a received frame that is dropped.
    pub fn refuse(&mut self, reason: DropReason) {
        self.stats.count_drop(reason);
    }

    /// Returns whether a reply to a management datagram is allowed. The reply counts against the rate limit of
    /// `sender`, like any other reply.
    pub fn allow_management(&mut self, now: Instant, sender: MacAddr, waiting: &TxBatch) -> bool {
        let Some(host_stack) = self.host_stack() else { return false };
        let allowed = host_stack.allow_answer(now, sender, waiting);
        allowed.inspect_err(|reason| self.stats.count_drop(*reason)).is_ok()
    }

    fn sort<'a>(
        &mut self,
        now: Instant,
        frame: &'a [u8],
        offload: Offload,
        answers: &mut TxBatch,
    ) -> Result<Option<RoceFrame<'a>>, DropReason> {
        if !self.is_up() {
            return Err(DropReason::LinkDown);
        }
        let Self { addresses: Addresses { own, .. }, owner, stats, .. } = self;
        let (ether, tag) = match owner {
            PortOwner::HostStack(_) => (EtherFrame::parse(frame)?, None),
            PortOwner::Nic { .. } => EtherFrame::parse_tagged(frame)?,
        };
        match (classify(&ether, own, |mac| owner.has_mac(mac))?, owner) {
            (Class::Roce, owner) => {
                let roce = RoceFrame::parse_with(frame, offload)?;
                owner.check_destination(own, (ether.dst, tag), roce.encap.ip.dst())?;
                owner.check_source(own, ether.src, &roce.encap.ip)?;
                stats.roce += packets_in(&roce, offload);
                Ok(Some(roce))
            }
            // Only RoCE frames carry several packets.
            (Class::HostStack, _) if matches!(offload, Offload::Segmentation(_)) => Err(DropReason::Invalid),
            (Class::HostStack, PortOwner::HostStack(host_stack)) => {
                host_stack.serve(RxContext { now, own, ether: &ether, stats, answers }).map(|()| None)
            }
            (Class::HostStack, PortOwner::Nic { .. }) => Err(DropReason::Protocol),
        }
    }

    fn host_stack(&mut self) -> Option<&mut HostStack> {
        match &mut self.owner {
            PortOwner::HostStack(host_stack) => Some(host_stack),
            PortOwner::Nic { .. } => None,
        }
    }
}

/// Returns the number of packets that a frame carries.
fn packets_in(frame: &RoceFrame<'_>, offload: Offload) -> u64 {
    match offload {
        Offload::None | Offload::Icrc => 1,
        Offload::Segmentation(mtu) => frame.packet.segment_count(mtu).into(),
    }
}

#[cfg(test)]
mod tests;
