//! The host stack: ARP, IPv6 neighbour discovery and ICMP echo for a port without a NIC. The engine also uses it to
//! resolve IP addresses. A NIC has no host stack, since the guest's kernel handles these protocols.

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
use super::classify::is_valid_source;
use super::{DropReason, PortStats};
use crate::fabric::TxBatch;
use crate::identity::Identity;

/// Maximum number of pending replies, which accumulate while the fabric is blocked. Replies beyond this limit are
/// dropped.
///
/// A frame triggers at most one reply, which goes to the frame's source and is not longer than the frame. A peer
/// therefore cannot use this port to amplify traffic. The only exception is the advertisement sent in reply to a probe,
/// which is longer than the probe by an eight-byte option (RFC 4861, section 7.2.4).
pub(super) const MAX_WAITING: usize = 256;

const HOP_LIMIT: u8 = 64;

#[derive(Debug, Default)]
pub(super) struct HostStack {
    neighbours: Neighbours,
    waiting: Waiting,
    limit: AnswerLimit,
}

/// A frame for the host stack, and the context in which to handle it.
pub(super) struct RxContext<'a> {
    pub(super) now: Instant,
    /// Addresses of the port.
    pub(super) own: &'a Identity,
    pub(super) ether: &'a EtherFrame<'a>,
    pub(super) stats: &'a mut PortStats,
    pub(super) answers: &'a mut TxBatch,
}

impl HostStack {
    /// Handles a frame, which may trigger a reply or update the neighbour table.
    pub(super) fn serve(&mut self, cx: RxContext<'_>) -> Result<(), DropReason> {
        match cx.ether.ether_type {
            EtherType::Arp => self.on_arp(cx),
            EtherType::Ipv4 => self.on_ipv4(cx),
            EtherType::Ipv6 => self.on_ipv6(cx),
            EtherType::Other(_) => Err(DropReason::Protocol),
        }
    }

    /// Adds static neighbour entries that map another host's IP addresses to its MAC. Skips the port's own addresses
    /// and addresses with a static entry for a different MAC.
    pub(super) fn add_static_neighbour(&mut self, own: &Identity, other: &Identity) {
        if other.mac == own.mac {
            return;
        }
        for ip in other.addresses().filter(|ip| !own.owns(*ip)) {
            self.neighbours.add_static(ip, other.mac);
        }
    }

    pub(super) fn remove_static_neighbour(&mut self, other: &Identity) {
        other.addresses().for_each(|ip| self.neighbours.remove_static(ip, other.mac));
    }

    pub(super) fn resolve(&mut self, now: Instant, ip: IpAddr) -> Resolved {
        self.neighbours.resolve(now, ip)
    }

    /// Queues a frame until the MAC of its destination is known. Returns the number of frames dropped.
    pub(super) fn wait(&mut self, now: Instant, ip: IpAddr, frame: Vec<u8>) -> usize {
        self.waiting.push(now, ip, frame)
    }

    /// Returns the next frame whose destination has been resolved.
    pub(super) fn next_resolved(&mut self) -> Option<Vec<u8>> {
        self.waiting.pop_ready()
    }

    pub(super) fn clear_waiting(&mut self) {
        self.waiting.clear();
    }

    /// Checks that a reply to `sender` is within the sender's rate limit and fits into the queue.
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

    /// Checks that a frame from `mac` may have the source `ip`. Frames from this HCA to itself do not pass
    /// through the fabric and are not checked.
    pub(super) fn check_source(&self, own: &Identity, mac: MacAddr, ip: IpAddr) -> Result<(), DropReason> {
        if !is_valid_source(ip) || own.owns(ip) {
            return Err(DropReason::BadSource);
        }
        if self.neighbours.has_static() && self.neighbours.conflicts_with_static(ip, mac) {
            return Err(DropReason::ForeignSource);
        }
        Ok(())
    }

    fn on_ipv4(&mut self, cx: RxContext<'_>) -> Result<(), DropReason> {
        let RxContext { now, own, ether, stats, answers } = cx;
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

    fn on_ipv6(&mut self, cx: RxContext<'_>) -> Result<(), DropReason> {
        let (ip, payload) = Ipv6::parse(cx.ether.payload)?;
        let group = ip.dst.is_multicast();
        // The destination IP of a multicast frame needs no check, as the frame was sent to a group that this port has
        // joined.
        if group != cx.ether.dst.is_multicast() || !group && !cx.own.owns(ip.dst.into()) {
            return Err(DropReason::OtherIp);
        }
        if ip.next_header != icmpv6::PROTOCOL {
            return Err(DropReason::Protocol);
        }
        if !ip.src.is_unspecified() {
            self.check_source(cx.own, cx.ether.src, ip.src.into())?;
        }
        let data = match Icmpv6::parse(&ip, payload)? {
            Icmpv6::Solicitation(solicitation) => return self.on_solicitation(cx, &ip, &solicitation),
            // Only a solicitation may have an unspecified source (RFC 4862).
            _ if ip.src.is_unspecified() => return Err(DropReason::BadSource),
            Icmpv6::Advertisement(advertisement) => return self.on_advertisement(cx, &advertisement),
            // RFC 4443, section 4.2, permits ignoring multicast requests, to which every group member would reply.
            Icmpv6::EchoRequest(data) if !group => data,
            Icmpv6::EchoRequest(_) | Icmpv6::Other => return Err(DropReason::Protocol),
        };
        let RxContext { now, own, ether, stats, answers } = cx;
        self.allow_answer(now, ether.src, answers)?;
        let header = Ipv6 { src: ip.dst, dst: ip.src, hop_limit: HOP_LIMIT, ..ip };
        icmpv6::emit_echo_reply(ether.src, own.mac, header, data, answers.buffer())?;
        commit_answer(answers, ether.src);
        stats.echo += 1;
        Ok(())
    }
}

/// Commits the bytes appended since the last commit as a reply to `requester`.
fn commit_answer(answers: &mut TxBatch, requester: MacAddr) {
    answers.commit(requester);
    answers.mark_answer();
}
