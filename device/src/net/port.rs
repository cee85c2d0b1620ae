//! One port: its link, its addresses, who speaks for it, and what passes it.

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
    /// The one place where they are: others look here, so that they can change.
    addresses: Addresses,
    speaker: Speaker,
    /// What the port sends comes back to it, and the wire is cut off.
    loopback: bool,
    stats: PortStats,
}

/// Who says and hears what is not RoCE.
#[derive(Debug)]
enum Speaker {
    /// We do, for an HCA.
    Station(Box<Station>),
    /// The kernel of a guest, through a NIC.
    Nic {
        /// Its RDMA half is in use: RoCE to our addresses is the engine's.
        rdma: bool,
        /// Its MAC as long as its driver gives it no other.
        permanent: MacAddr,
    },
}

impl Speaker {
    /// Whether a RoCE packet to a MAC that is this port's or a group's may be to this IP address.
    fn check_destination(&self, own: &Identity, mac: MacAddr, ip: IpAddr) -> Result<(), DropReason> {
        let takes = match self {
            // Which groups we are in, the transport knows.
            Self::Station(_) if mac.is_multicast() => group_mac(ip) == Some(mac),
            Self::Station(_) => own.owns(ip),
            // MACs of groups are what the driver has programmed.
            Self::Nic { .. } if mac.is_multicast() => ip.is_multicast(),
            // A driver tells the device no address of the port, only those of each connection, which checks its own.
            Self::Nic { .. } => is_a_stations(ip),
        };
        match takes {
            true => Ok(()),
            false if mac.is_multicast() => Err(DropReason::OtherMac),
            false => Err(DropReason::OtherIp),
        }
    }

    /// Whether a RoCE packet from a wire may come from this source.
    fn check_source(&self, own: &Identity, mac: MacAddr, ip: &IpAddrs) -> Result<(), DropReason> {
        match self {
            Self::Station(station) => station.check_source(own, mac, ip.src()),
            // What the port takes is to its own address.
            Self::Nic { .. } if is_a_stations(ip.src()) && ip.src() != ip.dst() => Ok(()),
            Self::Nic { .. } => Err(DropReason::BadSource),
        }
    }
}

impl Port {
    /// The port of an HCA, with its link up. Those that its addresses list are its neighbours.
    pub fn new(addresses: impl Into<Addresses>) -> Self {
        let addresses = addresses.into();
        let mut station = Station::default();
        addresses.ports().for_each(|other| station.know(&addresses.own, other));
        Self::of(addresses, Speaker::Station(station.into()))
    }

    /// The port of a NIC, with its link up and its RDMA half not in use.
    pub fn of_nic(addresses: impl Into<Addresses>) -> Self {
        let addresses = addresses.into();
        let permanent = addresses.own.mac;
        Self::of(addresses, Speaker::Nic { rdma: false, permanent })
    }

    fn of(addresses: Addresses, speaker: Speaker) -> Self {
        Self { link: Link::default(), addresses, speaker, loopback: false, stats: PortStats::default() }
    }

    /// Who is where, and who we are.
    pub fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    /// The same, to be changed.
    pub fn addresses_mut(&mut self) -> &mut Addresses {
        &mut self.addresses
    }

    /// Whether the link is up. While it is down every frame that arrives is dropped.
    pub fn is_up(&self) -> bool {
        self.link.is_up()
    }

    /// The link, and what keeps it down.
    pub fn link(&self) -> Link {
        self.link
    }

    /// Plugs the cable in or pulls it out, disables the port or enables it.
    pub fn set_link(&mut self, link: Link) {
        self.stats.link_downed += u64::from(self.link.is_up() && !link.is_up());
        self.link = link;
    }

    /// Puts the RDMA half of a NIC to use, or out of it: until then RoCE is a protocol like others. An HCA without a NIC is
    /// always in use.
    pub fn set_rdma(&mut self, in_use: bool) {
        if let Speaker::Nic { rdma, .. } = &mut self.speaker {
            *rdma = in_use;
        }
    }

    /// The driver of a NIC gives it another MAC, up to the next [`Port::reset`]. That of an HCA is its configuration's.
    pub fn set_mac(&mut self, mac: MacAddr) {
        if let Speaker::Nic { .. } = self.speaker {
            self.addresses.own.mac = mac;
        }
    }

    /// Loops the port back to itself, up to the next [`Port::reset`], or ends that. Whether that is a change.
    pub fn set_loopback(&mut self, loopback: bool) -> bool {
        std::mem::replace(&mut self.loopback, loopback) != loopback
    }

    /// Whether what the port sends comes back to it instead of leaving.
    pub fn is_looped_back(&self) -> bool {
        self.loopback
    }

    /// The device is reset: what waits for an answer is lost, and what a driver has set is forgotten.
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

    /// Whether a frame is for the NIC: all that is not RoCE to the MAC of the RDMA half, which is the NIC's, or to a group.
    pub fn is_for_nic(&self, frame: &[u8]) -> bool {
        match self.speaker {
            Speaker::Station(_) => false,
            Speaker::Nic { rdma, .. } => !(rdma && is_for_rdma(frame, &self.addresses.own)),
        }
    }

    /// Counts a RoCE packet for the fabric.
    pub fn count_sent(&mut self, frame: &[u8]) {
        if self.is_up() {
            self.stats.transmit.count(frame);
        }
    }

    /// Counts a RoCE packet from the fabric that [`Port::receive`] handed on.
    pub fn count_received(&mut self, frame: &[u8]) {
        self.stats.receive.count(frame);
    }

    /// Takes a frame for the NIC, unless it comes from the NIC's own MAC without a loopback: the fabric gave us back what we
    /// sent to a group, or somebody has our address.
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

    /// Counts a frame of the NIC for the fabric.
    pub fn count_plain_sent(&mut self, frame: &[u8]) {
        self.stats.nic_transmit.count_plain(frame);
    }

    /// Counts what the NIC wanted to send and is no frame.
    pub fn count_malformed(&mut self) {
        self.stats.lost_malformed += 1;
    }

    /// Counts frames that could not leave because the link is down.
    pub fn count_lost(&mut self, frames: usize) {
        self.stats.lost_link_down += frames as u64;
    }

    /// A frame as the port takes it in, without a priority tag: that one says how urgent the frame was on its way, and
    /// switches put it in front of frames of no VLAN. `None` for a frame of a VLAN: VLANs keep networks apart, and nobody
    /// has said that this port is in one. To a NIC frames come as they are.
    pub fn untag<'a>(&mut self, frame: &'a [u8]) -> Option<Cow<'a, [u8]>> {
        if let Speaker::Nic { .. } = self.speaker {
            return Some(frame.into());
        }
        let untagged = ether::untagged(frame);
        untagged.inspect_err(|_| self.stats.count_drop(DropReason::Vlan)).ok()
    }

    /// Takes a frame from the fabric. What is for a QP comes back, verified up to its ICRC if it has one; the rest is answered
    /// into `answers`, learned from, or dropped and counted.
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

    /// What is known of a neighbour. While its MAC is not known, frames for it can [`wait`](Self::wait). A NIC knows no
    /// neighbours: those are its driver's.
    pub fn resolve(&mut self, now: Instant, ip: IpAddr) -> Resolved {
        self.station().map_or(Resolved { mac: None, ask: false }, |station| station.resolve(now, ip))
    }

    /// Asks who has an address, into `out`.
    pub fn ask(&mut self, ip: IpAddr, out: &mut TxBatch) {
        if let Speaker::Station(station) = &self.speaker {
            station.ask(&self.addresses.own, ip, out);
        }
    }

    /// Lets a frame wait for the MAC of its destination; see [`Port::next_resolved`].
    pub fn wait(&mut self, now: Instant, ip: IpAddr, frame: Vec<u8>) {
        let lost = self.station().map_or(1, |station| station.wait(now, ip, frame));
        self.stats.lost_unresolved += lost as u64;
    }

    /// The next frame whose destination has become known, which is filled in. Ask after [`Port::receive`].
    pub fn next_resolved(&mut self) -> Option<Vec<u8>> {
        self.station()?.next_resolved()
    }

    /// Counts a frame that names no destination.
    pub fn count_unresolvable(&mut self) {
        self.stats.lost_unresolved += 1;
    }

    /// Another station: its addresses are its own, but for those that are somebody's already.
    pub fn know(&mut self, other: &Identity) {
        if let Speaker::Station(station) = &mut self.speaker {
            station.know(&self.addresses.own, other);
        }
    }

    /// A station that was known is gone: its addresses may be anybody's.
    pub fn forget(&mut self, other: &Identity) {
        if let Some(station) = self.station() {
            station.forget(other);
        }
    }

    /// What arrived and what became of it.
    pub fn stats(&self) -> &PortStats {
        &self.stats
    }

    /// Takes a frame of this HCA for itself, which passed no fabric.
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

    /// Why a frame was dropped since the last call, if one was.
    pub fn take_drop(&mut self) -> Option<DropReason> {
        self.stats.take_drop()
    }

    /// Counts a frame that arrived and is dropped.
    pub fn refuse(&mut self, reason: DropReason) {
        self.stats.count_drop(reason);
    }

    /// Whether a management datagram may be answered: what `sender` may have is the same for answers of any kind.
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
