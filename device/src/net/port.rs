//! One port: its link, its addresses, the owner of its non-RoCE traffic, and its counters.

use std::borrow::Cow;
use std::net::IpAddr;

use engine::Instant;
use protocol::ids::MacAddr;
use protocol::net::ether::{self, EtherFrame, group_mac};
use protocol::roce::{IcrcField, IpAddrs, RoceFrame};

use super::address::Addresses;
use super::classify::{Class, check_destination, classify, is_a_stations, is_for_rdma};
use super::link::Link;
use super::station::{Station, Visit};
use super::{DropReason, PortStats, Resolved};
use crate::fabric::TxBatch;
use crate::identity::Identity;

/// One port.
#[derive(Debug)]
pub struct Port {
    link: Link,
    /// The only copy. Other modules read it here, so that it can change.
    addresses: Addresses,
    speaker: Speaker,
    /// Frames sent by the port return to it, and the wire is disconnected.
    loopback: bool,
    stats: PortStats,
}

/// Owner of the port's non-RoCE traffic.
#[derive(Debug)]
enum Speaker {
    /// The host stack of an HCA.
    Station(Box<Station>),
    /// The guest's kernel, through a NIC.
    Nic {
        /// The RDMA half is in use, so RoCE to this port goes to the engine.
        rdma: bool,
        /// Its MAC until its driver sets another.
        permanent: MacAddr,
    },
}

impl Speaker {
    /// Checks the destination IP address of a RoCE packet whose MAC is this port's or a group's.
    fn check_destination(&self, own: &Identity, mac: MacAddr, ip: IpAddr) -> Result<(), DropReason> {
        let takes = match self {
            // The transport knows which groups it has joined.
            Self::Station(_) if mac.is_multicast() => group_mac(ip) == Some(mac),
            Self::Station(_) => own.owns(ip),
            // Group MACs are programmed by the driver.
            Self::Nic { .. } if mac.is_multicast() => ip.is_multicast(),
            // The driver gives the device no address of the port, only those of each connection, which the QP checks.
            Self::Nic { .. } => is_a_stations(ip),
        };
        match takes {
            true => Ok(()),
            false if mac.is_multicast() => Err(DropReason::OtherMac),
            false => Err(DropReason::OtherIp),
        }
    }

    /// Checks the source of a RoCE packet from a wire.
    fn check_source(&self, own: &Identity, mac: MacAddr, ip: &IpAddrs) -> Result<(), DropReason> {
        match self {
            Self::Station(station) => station.check_source(own, mac, ip.src()),
            // The port only accepts packets to its own address.
            Self::Nic { .. } if is_a_stations(ip.src()) && ip.src() != ip.dst() => Ok(()),
            Self::Nic { .. } => Err(DropReason::BadSource),
        }
    }
}

impl Port {
    /// Creates the port of an HCA, with its link up and its configured ports as static neighbours.
    pub fn new(addresses: impl Into<Addresses>) -> Self {
        let addresses = addresses.into();
        let mut station = Station::default();
        addresses.ports().for_each(|other| station.know(&addresses.own, other));
        Self::of(addresses, Speaker::Station(station.into()))
    }

    /// Creates the port of a NIC, with its link up and its RDMA half not in use.
    pub fn of_nic(addresses: impl Into<Addresses>) -> Self {
        let addresses = addresses.into();
        let permanent = addresses.own.mac;
        Self::of(addresses, Speaker::Nic { rdma: false, permanent })
    }

    fn of(addresses: Addresses, speaker: Speaker) -> Self {
        Self { link: Link::default(), addresses, speaker, loopback: false, stats: PortStats::default() }
    }

    /// Returns the configured addresses.
    pub fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    /// Returns the configured addresses for modification.
    pub fn addresses_mut(&mut self) -> &mut Addresses {
        &mut self.addresses
    }

    /// Returns whether the link is up. While it is down, every received frame is dropped.
    pub fn is_up(&self) -> bool {
        self.link.is_up()
    }

    /// Returns the state of the link.
    pub fn link(&self) -> Link {
        self.link
    }

    /// Changes the state of the link.
    pub fn set_link(&mut self, link: Link) {
        self.stats.link_downed += u64::from(self.link.is_up() && !link.is_up());
        self.link = link;
    }

    /// Enables or disables the RDMA half of a NIC. While disabled, RoCE is not treated specially. An HCA without a
    /// NIC is always enabled.
    pub fn set_rdma(&mut self, in_use: bool) {
        if let Speaker::Nic { rdma, .. } = &mut self.speaker {
            *rdma = in_use;
        }
    }

    /// Sets the MAC of a NIC until the next [`Port::reset`]. The MAC of an HCA is fixed by its configuration.
    pub fn set_mac(&mut self, mac: MacAddr) {
        if let Speaker::Nic { .. } = self.speaker {
            self.addresses.own.mac = mac;
        }
    }

    /// Enables or disables loopback until the next [`Port::reset`]. Returns whether that is a change.
    pub fn set_loopback(&mut self, loopback: bool) -> bool {
        std::mem::replace(&mut self.loopback, loopback) != loopback
    }

    /// Returns whether loopback is enabled.
    pub fn is_looped_back(&self) -> bool {
        self.loopback
    }

    /// Resets the port: drops frames that wait for address resolution, and settings of a driver.
    pub fn reset(&mut self) {
        self.loopback = false;
        match &mut self.speaker {
            Speaker::Station(station) => station.forget_waiting(),
            Speaker::Nic { rdma, permanent } => {
                *rdma = false;
                self.addresses.own.mac = *permanent;
            }
        }
    }

    /// Returns whether a frame is for the NIC: anything but RoCE to a group or to the MAC that NIC and RDMA half
    /// share.
    pub fn is_for_nic(&self, frame: &[u8]) -> bool {
        match self.speaker {
            Speaker::Station(_) => false,
            Speaker::Nic { rdma, .. } => !(rdma && is_for_rdma(frame, &self.addresses.own)),
        }
    }

    /// Counts a RoCE packet to the fabric.
    pub fn count_sent(&mut self, frame: &[u8]) {
        if self.is_up() {
            self.stats.transmit.count(frame);
        }
    }

    /// Counts a RoCE packet that [`Port::receive`] returned.
    pub fn count_received(&mut self, frame: &[u8]) {
        self.stats.receive.count(frame);
    }

    /// Checks and counts a frame for the NIC. Rejects frames from the NIC's own MAC unless loopback is enabled: they
    /// are reflections of its own multicasts, or from a host with the same address.
    pub fn admit_plain(&mut self, frame: &[u8]) -> bool {
        let reason = match EtherFrame::parse(frame) {
            Ok(ether) if self.loopback || ether.src != self.addresses.own.mac => {
                self.stats.nic_receive.count_plain(frame);
                return true;
            }
            Ok(_) => DropReason::Reflected,
            Err(error) => error.into(),
        };
        self.stats.count_drop(reason);
        false
    }

    /// Counts a frame of the NIC to the fabric.
    pub fn count_plain_sent(&mut self, frame: &[u8]) {
        self.stats.nic_transmit.count_plain(frame);
    }

    /// Counts a transmit request of the NIC that is not a valid frame.
    pub fn count_malformed(&mut self) {
        self.stats.lost_malformed += 1;
    }

    /// Counts frames dropped because the link is down.
    pub fn count_lost(&mut self, frames: usize) {
        self.stats.lost_link_down += frames as u64;
    }

    /// Removes a priority tag, which only says how urgent a frame is; switches add it to frames without a VLAN.
    /// Returns `None` for a frame of a VLAN: VLANs separate networks, and this port is in none. Frames for a NIC are
    /// unchanged.
    pub fn untag<'a>(&mut self, frame: &'a [u8]) -> Option<Cow<'a, [u8]>> {
        if let Speaker::Nic { .. } = self.speaker {
            return Some(frame.into());
        }
        let untagged = ether::untagged(frame);
        untagged.inspect_err(|_| self.stats.count_drop(DropReason::Vlan)).ok()
    }

    /// Handles a frame from the fabric. Returns a packet for a QP, checked up to its ICRC if it has one. Other frames
    /// are answered into `answers`, learned from, or dropped and counted.
    pub fn receive<'a>(
        &mut self,
        now: Instant,
        frame: &'a [u8],
        icrc: IcrcField,
        answers: &mut TxBatch,
    ) -> Option<RoceFrame<'a>> {
        match self.sort(now, frame, icrc, answers) {
            Ok(roce) => roce,
            Err(reason) => {
                self.stats.count_drop(reason);
                None
            }
        }
    }

    /// Resolves a neighbour. While its MAC is unknown, frames for it can [`wait`](Self::wait). A NIC has no
    /// neighbours here: its driver's kernel resolves them.
    pub fn resolve(&mut self, now: Instant, ip: IpAddr) -> Resolved {
        self.station().map_or(Resolved { mac: None, ask: false }, |station| station.resolve(now, ip))
    }

    /// Appends a request for an address to `out`.
    pub fn ask(&mut self, ip: IpAddr, out: &mut TxBatch) {
        if let Speaker::Station(station) = &self.speaker {
            station.ask(&self.addresses.own, ip, out);
        }
    }

    /// Queues a frame until the MAC of its destination is known; see [`Port::next_resolved`].
    pub fn wait(&mut self, now: Instant, ip: IpAddr, frame: Vec<u8>) {
        let lost = self.station().map_or(1, |station| station.wait(now, ip, frame));
        self.stats.lost_unresolved += lost as u64;
    }

    /// Returns the next frame whose destination was resolved, with its MAC filled in. Call it after
    /// [`Port::receive`].
    pub fn next_resolved(&mut self) -> Option<Vec<u8>> {
        self.station()?.next_resolved()
    }

    /// Counts a frame without a destination.
    pub fn count_unresolvable(&mut self) {
        self.stats.lost_unresolved += 1;
    }

    /// Reserves the addresses of another host for it, unless they are reserved already.
    pub fn know(&mut self, other: &Identity) {
        if let Speaker::Station(station) = &mut self.speaker {
            station.know(&self.addresses.own, other);
        }
    }

    /// Releases the addresses of a host added with [`Port::add_static_neighbour`].
    pub fn forget(&mut self, other: &Identity) {
        if let Some(station) = self.station() {
            station.forget(other);
        }
    }

    /// Returns the counters.
    pub fn stats(&self) -> &PortStats {
        &self.stats
    }

    /// Handles a frame of this HCA to itself, which does not pass the fabric.
    pub fn receive_own<'a>(&mut self, frame: &'a [u8]) -> Option<RoceFrame<'a>> {
        let (ether, _) = EtherFrame::parse_tagged(frame).ok()?;
        let Self { addresses: Addresses { own, .. }, speaker, .. } = self;
        let sorted = check_destination(&ether, own).and_then(|()| {
            let roce = RoceFrame::parse(frame)?;
            speaker.check_destination(own, ether.dst, roce.encap.ip.dst())?;
            Ok(roce)
        });
        self.stats.roce += u64::from(sorted.is_ok());
        sorted.inspect_err(|reason| self.stats.count_drop(*reason)).ok()
    }

    /// Returns why a frame was dropped since the last call, if one was.
    pub fn take_drop(&mut self) -> Option<DropReason> {
        self.stats.take_drop()
    }

    /// Counts a received frame that is dropped.
    pub fn refuse(&mut self, reason: DropReason) {
        self.stats.count_drop(reason);
    }

    /// Returns whether a management datagram may be answered. It counts against the same limit of `sender` as other
    /// answers.
    pub fn allow_management(&mut self, now: Instant, sender: MacAddr, waiting: &TxBatch) -> bool {
        let Some(station) = self.station() else { return false };
        let allowed = station.allow_answer(now, sender, waiting);
        allowed.inspect_err(|reason| self.stats.count_drop(*reason)).is_ok()
    }

    fn sort<'a>(
        &mut self,
        now: Instant,
        frame: &'a [u8],
        icrc: IcrcField,
        answers: &mut TxBatch,
    ) -> Result<Option<RoceFrame<'a>>, DropReason> {
        if !self.is_up() {
            return Err(DropReason::LinkDown);
        }
        let Self { addresses: Addresses { own, .. }, speaker, stats, .. } = self;
        let ether = match speaker {
            Speaker::Station(_) => EtherFrame::parse(frame)?,
            Speaker::Nic { .. } => EtherFrame::parse_tagged(frame)?.0,
        };
        match (classify(&ether, own)?, speaker) {
            (Class::Roce, speaker) => {
                let roce = RoceFrame::parse_with(frame, icrc)?;
                speaker.check_destination(own, ether.dst, roce.encap.ip.dst())?;
                speaker.check_source(own, ether.src, &roce.encap.ip)?;
                stats.roce += 1;
                Ok(Some(roce))
            }
            (Class::Station, Speaker::Station(station)) => {
                station.serve(Visit { now, own, ether: &ether, stats, answers }).map(|()| None)
            }
            (Class::Station, Speaker::Nic { .. }) => Err(DropReason::Protocol),
        }
    }

    fn station(&mut self) -> Option<&mut Station> {
        match &mut self.speaker {
            Speaker::Station(station) => Some(station),
            Speaker::Nic { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests;
