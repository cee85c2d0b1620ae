//! Sorting what arrives at one port, and answering what needs no QP.

mod discovery;
mod source;

use std::borrow::Cow;
use std::net::IpAddr;

use engine::Instant;
use protocol::ids::MacAddr;
use protocol::net::ether::{self, EtherFrame, EtherType, group_mac};
use protocol::net::icmp::{self, EchoRequest};
use protocol::net::icmpv6::{self, Icmpv6};
use protocol::net::ipv4::Ipv4;
use protocol::net::ipv6::Ipv6;
use protocol::roce::RoceFrame;

use super::limit::AnswerLimit;
use super::neighbour::Neighbours;
use super::waiting::Waiting;
use super::{DropReason, PortStats, Resolved};
use crate::fabric::TxBatch;
use crate::identity::Identity;

/// Bound: an answer is given up when this many frames wait already. One frame draws one answer of its own length, to where
/// it came from, so a peer cannot make us send more than it sends; but it can send while our way out is blocked. (The
/// advertisement that answers a probe is eight bytes longer than the shortest one: RFC 4861, section 7.2.4, wants an option
/// in it that a probe must not have.)
const MAX_WAITING: usize = 256;

/// Hop limit of what the port itself sends.
const HOP_LIMIT: u8 = 64;

/// One port: an identity, its neighbours and its counters.
#[derive(Debug)]
pub struct Port {
    identity: Identity,
    neighbours: Neighbours,
    waiting: Waiting,
    limit: AnswerLimit,
    stats: PortStats,
    up: bool,
}

impl Port {
    /// A port that knows nobody, with its link up.
    pub fn new(identity: Identity) -> Self {
        Self {
            identity,
            neighbours: Neighbours::default(),
            waiting: Waiting::default(),
            limit: AnswerLimit::default(),
            stats: PortStats::default(),
            up: true,
        }
    }

    /// Whether the link is up. While it is down every frame that arrives is dropped.
    pub fn is_up(&self) -> bool {
        self.up
    }

    /// Plugs the cable in or pulls it out.
    pub fn set_up(&mut self, up: bool) {
        self.stats.link_downed += u64::from(self.up && !up);
        self.up = up;
    }

    /// Counts a RoCE packet for the fabric.
    pub fn count_sent(&mut self, frame: &[u8]) {
        if self.up {
            self.stats.transmit.count(frame);
        }
    }

    /// Counts a RoCE packet from the fabric that [`Port::receive`] handed on.
    pub fn count_received(&mut self, frame: &[u8]) {
        self.stats.receive.count(frame);
    }

    /// Counts frames that could not leave because the link is down.
    pub fn count_lost(&mut self, frames: usize) {
        self.stats.lost_link_down += frames as u64;
    }

    /// A frame as the port takes it in, without a priority tag: that one says how urgent the frame was on its way, and
    /// switches put it in front of frames of no VLAN. `None` for a frame of a VLAN: VLANs keep networks apart, and nobody
    /// has said that this port is in one.
    pub fn untag<'a>(&mut self, frame: &'a [u8]) -> Option<Cow<'a, [u8]>> {
        let untagged = ether::untagged(frame);
        untagged.inspect_err(|_| self.stats.count_drop(DropReason::Vlan)).ok()
    }

    /// Takes a frame from the fabric. What is for a QP comes back, verified up to its ICRC; the rest is answered into
    /// `answers`, learned from, or dropped and counted.
    pub fn receive<'a>(
        &mut self,
        now: Instant,
        frame: &'a [u8],
        answers: &mut TxBatch,
    ) -> Option<RoceFrame<'a>> {
        match self.sort(now, frame, answers) {
            Ok(roce) => roce,
            Err(reason) => {
                self.stats.count_drop(reason);
                None
            }
        }
    }

    /// What is known of a neighbour. While its MAC is not known, frames for it can [`wait`](Self::wait).
    pub fn resolve(&mut self, now: Instant, ip: IpAddr) -> Resolved {
        self.neighbours.resolve(now, ip)
    }

    /// Lets a frame wait for the MAC of its destination; see [`Port::next_resolved`].
    pub fn wait(&mut self, now: Instant, ip: IpAddr, frame: Vec<u8>) {
        self.stats.lost_unresolved += self.waiting.push(now, ip, frame) as u64;
    }

    /// The next frame whose destination has become known, which is filled in. Ask after [`Port::receive`].
    pub fn next_resolved(&mut self) -> Option<Vec<u8>> {
        self.waiting.pop_ready()
    }

    /// Counts a frame that names no destination.
    pub fn count_unresolvable(&mut self) {
        self.stats.lost_unresolved += 1;
    }

    /// Forgets frames that wait.
    pub fn forget_waiting(&mut self) {
        self.waiting.clear();
    }

    /// Another station: its addresses are its own, but for those that are somebody's already.
    pub fn know(&mut self, other: &Identity) {
        if other.mac == self.identity.mac {
            return;
        }
        for ip in other.addresses().filter(|ip| !self.identity.owns(*ip)) {
            self.neighbours.fix(ip, other.mac);
        }
    }

    /// A station that was known is gone: its addresses may be anybody's.
    pub fn forget(&mut self, other: &Identity) {
        other.addresses().for_each(|ip| self.neighbours.release(ip, other.mac));
    }

    /// What arrived and what became of it.
    pub fn stats(&self) -> &PortStats {
        &self.stats
    }

    /// Takes a frame of this HCA for itself, which passed no fabric.
    pub fn receive_own<'a>(&mut self, frame: &'a [u8]) -> Option<RoceFrame<'a>> {
        let ether = EtherFrame::parse(frame).ok()?;
        let sorted = self.check_destination(&ether).and_then(|()| self.on_roce(frame, &ether));
        self.stats.roce += u64::from(sorted.is_ok());
        sorted.inspect_err(|reason| self.stats.count_drop(*reason)).ok()
    }

    /// Counts a frame that arrived and is dropped.
    pub fn refuse(&mut self, reason: DropReason) {
        self.stats.count_drop(reason);
    }

    /// Whether a management datagram may be answered: what `sender` may have is the same for answers of any kind.
    pub fn allow_management(&mut self, now: Instant, sender: MacAddr, waiting: &TxBatch) -> bool {
        let allowed = self.allow_answer(now, sender, waiting);
        allowed.inspect_err(|reason| self.stats.count_drop(*reason)).is_ok()
    }

    fn sort<'a>(
        &mut self,
        now: Instant,
        frame: &'a [u8],
        answers: &mut TxBatch,
    ) -> Result<Option<RoceFrame<'a>>, DropReason> {
        if !self.up {
            return Err(DropReason::LinkDown);
        }
        let ether = EtherFrame::parse(frame)?;
        if ether.src.is_multicast() || ether.src == MacAddr::default() {
            return Err(DropReason::BadSource);
        }
        if ether.src == self.identity.mac {
            return Err(DropReason::Reflected);
        }
        self.check_destination(&ether)?;
        let group = ether.dst.is_multicast();
        match ether.ether_type {
            EtherType::Arp if !group || ether.dst == MacAddr::BROADCAST => {
                self.on_arp(now, &ether, answers).map(|()| None)
            }
            EtherType::Ipv4 | EtherType::Ipv6 if ether.is_roce() => {
                let roce = self.on_roce(frame, &ether)?;
                self.check_source(ether.src, roce.shell.ip.src())?;
                self.stats.roce += 1;
                Ok(Some(roce))
            }
            EtherType::Ipv6 if group && self.hears(ether.dst) => {
                self.on_ipv6(now, &ether, answers).map(|()| None)
            }
            // Nothing else that we speak is sent to groups.
            _ if group => Err(DropReason::OtherMac),
            EtherType::Ipv4 => self.on_ipv4(now, &ether, answers).map(|()| None),
            EtherType::Ipv6 => self.on_ipv6(now, &ether, answers).map(|()| None),
            EtherType::Arp | EtherType::Other(_) => Err(DropReason::Protocol),
        }
    }

    fn check_destination(&self, ether: &EtherFrame<'_>) -> Result<(), DropReason> {
        let ours = ether.dst.is_multicast() || ether.dst == self.identity.mac;
        if ours { Ok(()) } else { Err(DropReason::OtherMac) }
    }

    fn on_roce<'a>(&self, frame: &'a [u8], ether: &EtherFrame<'_>) -> Result<RoceFrame<'a>, DropReason> {
        let roce = RoceFrame::parse(frame)?;
        let dst = roce.shell.ip.dst();
        let group = ether.dst.is_multicast();
        // Which groups we are in, the transport knows.
        if group && group_mac(dst) != Some(ether.dst) {
            return Err(DropReason::OtherMac);
        }
        if !group && !self.identity.owns(dst) {
            return Err(DropReason::OtherIp);
        }
        Ok(roce)
    }

    /// Whether an answer may be given: not more than `sender` may have, and not more than there is room for.
    fn allow_answer(&mut self, now: Instant, sender: MacAddr, answers: &TxBatch) -> Result<(), DropReason> {
        if answers.len() >= MAX_WAITING {
            return Err(DropReason::NoRoom);
        }
        if self.limit.take(now, sender) { Ok(()) } else { Err(DropReason::OverRate) }
    }

    fn on_ipv4(
        &mut self,
        now: Instant,
        ether: &EtherFrame<'_>,
        answers: &mut TxBatch,
    ) -> Result<(), DropReason> {
        let (ip, payload) = Ipv4::parse(ether.payload)?;
        if ip.dst != self.identity.ipv4 {
            return Err(DropReason::OtherIp);
        }
        if ip.protocol != icmp::PROTOCOL {
            return Err(DropReason::Protocol);
        }
        self.check_source(ether.src, ip.src.into())?;
        let echo = EchoRequest::parse(payload)?.ok_or(DropReason::Protocol)?;
        self.allow_answer(now, ether.src, answers)?;
        let header = Ipv4 { src: ip.dst, dst: ip.src, ttl: HOP_LIMIT, ..ip };
        echo.emit_reply_frame(ether.src, self.identity.mac, header, answers.buffer())?;
        commit_answer(answers, ether.src);
        self.stats.echo += 1;
        Ok(())
    }

    fn on_ipv6(
        &mut self,
        now: Instant,
        ether: &EtherFrame<'_>,
        answers: &mut TxBatch,
    ) -> Result<(), DropReason> {
        let (ip, payload) = Ipv6::parse(ether.payload)?;
        let group = ip.dst.is_multicast();
        // A group's IP address needs no look: whoever sends to its MAC means us, as one of many.
        if group != ether.dst.is_multicast() || !group && !self.identity.owns(ip.dst.into()) {
            return Err(DropReason::OtherIp);
        }
        if ip.next_header != icmpv6::PROTOCOL {
            return Err(DropReason::Protocol);
        }
        if !ip.src.is_unspecified() {
            self.check_source(ether.src, ip.src.into())?;
        }
        let data = match Icmpv6::parse(&ip, payload)? {
            Icmpv6::Solicitation(solicitation) => {
                return self.on_solicitation(now, ether, &ip, &solicitation, answers);
            }
            // Only who asks for an address may have none yet (RFC 4862).
            _ if ip.src.is_unspecified() => return Err(DropReason::BadSource),
            Icmpv6::Advertisement(advertisement) => return self.on_advertisement(now, &advertisement),
            // An answer to a group's request would come from every member (RFC 4443, section 4.2, leaves it open).
            Icmpv6::EchoRequest(data) if !group => data,
            Icmpv6::EchoRequest(_) | Icmpv6::Other => return Err(DropReason::Protocol),
        };
        self.allow_answer(now, ether.src, answers)?;
        let header = Ipv6 { src: ip.dst, dst: ip.src, hop_limit: HOP_LIMIT, ..ip };
        icmpv6::emit_echo_reply(ether.src, self.identity.mac, header, data, answers.buffer())?;
        commit_answer(answers, ether.src);
        self.stats.echo += 1;
        Ok(())
    }
}

/// What was appended since the last commit answers a frame that came from `asker`, and goes back there.
fn commit_answer(answers: &mut TxBatch, asker: MacAddr) {
    answers.commit(asker);
    answers.mark_answer();
}

#[cfg(test)]
mod tests;
