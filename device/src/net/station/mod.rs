//! What a port answers by itself where no kernel of a guest does: ARP, IPv6 neighbour discovery and ICMP echo. It is also
//! how the engine finds the MAC of an IP address. A device that is a NIC has none: its driver's kernel does all that.

mod discovery;
mod limit;
mod neighbour;
mod waiting;

use std::net::IpAddr;

use engine::Instant;
use protocol::ids::MacAddr;
use protocol::net::ether::{EtherFrame, EtherType};
use protocol::net::icmp::{self, EchoRequest};
use protocol::net::icmpv6::{self, Icmpv6};
use protocol::net::ipv4::Ipv4;
use protocol::net::ipv6::Ipv6;

use self::limit::AnswerLimit;
use self::neighbour::Neighbours;
pub use self::neighbour::Resolved;
use self::waiting::Waiting;
use super::classify::is_a_stations;
use super::{DropReason, PortStats};
use crate::fabric::TxBatch;
use crate::identity::Identity;

/// Bound: an answer is given up when this many frames wait already. One frame draws one answer of its own length, to where
/// it came from, so a peer cannot make us send more than it sends; but it can send while our way out is blocked. (The
/// advertisement that answers a probe is eight bytes longer than the shortest one: RFC 4861, section 7.2.4, wants an option
/// in it that a probe must not have.)
pub(super) const MAX_WAITING: usize = 256;

/// Hop limit of what the station itself sends.
const HOP_LIMIT: u8 = 64;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Station {
    neighbours: Neighbours,
    waiting: Waiting,
    limit: AnswerLimit,
}

/// A frame that is for the station, and what serves it.
pub(super) struct Visit<'a> {
    pub(super) now: Instant,
    /// Whose station it is.
    pub(super) own: &'a Identity,
    pub(super) ether: &'a EtherFrame<'a>,
    pub(super) stats: &'a mut PortStats,
    pub(super) answers: &'a mut TxBatch,
}

impl Station {
    /// Answers a frame, learns from it, or refuses it.
    pub(super) fn serve(&mut self, visit: Visit<'_>) -> Result<(), DropReason> {
        match visit.ether.ether_type {
            EtherType::Arp => self.on_arp(visit),
            EtherType::Ipv4 => self.on_ipv4(visit),
            EtherType::Ipv6 => self.on_ipv6(visit),
            EtherType::Other(_) => Err(DropReason::Protocol),
        }
    }

    /// Another station: its addresses are its own, but for those that are somebody's already.
    pub(super) fn know(&mut self, own: &Identity, other: &Identity) {
        if other.mac == own.mac {
            return;
        }
        for ip in other.addresses().filter(|ip| !own.owns(*ip)) {
            self.neighbours.fix(ip, other.mac);
        }
    }

    /// A station that was known is gone: its addresses may be anybody's.
    pub(super) fn forget(&mut self, other: &Identity) {
        other.addresses().for_each(|ip| self.neighbours.release(ip, other.mac));
    }

    /// What is known of a neighbour.
    pub(super) fn resolve(&mut self, now: Instant, ip: IpAddr) -> Resolved {
        self.neighbours.resolve(now, ip)
    }

    /// Lets a frame wait for the MAC of its destination. Returns how many are lost for it.
    pub(super) fn wait(&mut self, now: Instant, ip: IpAddr, frame: Vec<u8>) -> usize {
        self.waiting.push(now, ip, frame)
    }

    /// The next frame whose destination has become known.
    pub(super) fn next_resolved(&mut self) -> Option<Vec<u8>> {
        self.waiting.pop_ready()
    }

    /// Forgets frames that wait.
    pub(super) fn forget_waiting(&mut self) {
        self.waiting.clear();
    }

    /// Whether an answer may be given: not more than `sender` may have, and not more than there is room for.
    pub(super) fn allow_answer(
        &mut self,
        now: Instant,
        sender: MacAddr,
        answers: &TxBatch,
    ) -> Result<(), DropReason> {
        if answers.len() >= MAX_WAITING {
            return Err(DropReason::NoRoom);
        }
        if self.limit.take(now, sender) { Ok(()) } else { Err(DropReason::OverRate) }
    }

    /// Whether a frame from `mac` can come from `ip`. Frames of this HCA to itself pass no fabric and are not asked.
    pub(super) fn check_source(&self, own: &Identity, mac: MacAddr, ip: IpAddr) -> Result<(), DropReason> {
        if !is_a_stations(ip) || own.owns(ip) {
            return Err(DropReason::BadSource);
        }
        if self.neighbours.has_fixed() && self.neighbours.is_anothers(ip, mac) {
            return Err(DropReason::ForeignSource);
        }
        Ok(())
    }

    fn on_ipv4(&mut self, visit: Visit<'_>) -> Result<(), DropReason> {
        let Visit { now, own, ether, stats, answers } = visit;
        let (ip, payload) = Ipv4::parse(ether.payload)?;
        if ip.dst != own.ipv4 {
            return Err(DropReason::OtherIp);
        }
        if ip.protocol != icmp::PROTOCOL {
            return Err(DropReason::Protocol);
        }
        self.check_source(own, ether.src, ip.src.into())?;
        let echo = EchoRequest::parse(payload)?.ok_or(DropReason::Protocol)?;
        self.allow_answer(now, ether.src, answers)?;
        let header = Ipv4 { src: ip.dst, dst: ip.src, ttl: HOP_LIMIT, ..ip };
        echo.emit_reply_frame(ether.src, own.mac, header, answers.buffer())?;
        commit_answer(answers, ether.src);
        stats.echo += 1;
        Ok(())
    }

    fn on_ipv6(&mut self, visit: Visit<'_>) -> Result<(), DropReason> {
        let (ip, payload) = Ipv6::parse(visit.ether.payload)?;
        let group = ip.dst.is_multicast();
        // A group's IP address needs no look: whoever sends to its MAC means us, as one of many.
        if group != visit.ether.dst.is_multicast() || !group && !visit.own.owns(ip.dst.into()) {
            return Err(DropReason::OtherIp);
        }
        if ip.next_header != icmpv6::PROTOCOL {
            return Err(DropReason::Protocol);
        }
        if !ip.src.is_unspecified() {
            self.check_source(visit.own, visit.ether.src, ip.src.into())?;
        }
        let data = match Icmpv6::parse(&ip, payload)? {
            Icmpv6::Solicitation(solicitation) => return self.on_solicitation(visit, &ip, &solicitation),
            // Only who asks for an address may have none yet (RFC 4862).
            _ if ip.src.is_unspecified() => return Err(DropReason::BadSource),
            Icmpv6::Advertisement(advertisement) => return self.on_advertisement(visit, &advertisement),
            // An answer to a group's request would come from every member (RFC 4443, section 4.2, leaves it open).
            Icmpv6::EchoRequest(data) if !group => data,
            Icmpv6::EchoRequest(_) | Icmpv6::Other => return Err(DropReason::Protocol),
        };
        let Visit { now, own, ether, stats, answers } = visit;
        self.allow_answer(now, ether.src, answers)?;
        let header = Ipv6 { src: ip.dst, dst: ip.src, hop_limit: HOP_LIMIT, ..ip };
        icmpv6::emit_echo_reply(ether.src, own.mac, header, data, answers.buffer())?;
        commit_answer(answers, ether.src);
        stats.echo += 1;
        Ok(())
    }
}

/// What was appended since the last commit answers a frame that came from `asker`, and goes back there.
fn commit_answer(answers: &mut TxBatch, asker: MacAddr) {
    answers.commit(asker);
    answers.mark_answer();
}
