//! Sorting what arrives at one port, and answering what needs no QP.

use std::net::Ipv4Addr;

use engine::Instant;
use protocol::ids::MacAddr;
use protocol::net::arp::{Arp, ArpOperation};
use protocol::net::ether::{EtherFrame, EtherType};
use protocol::net::icmp::{self, EchoRequest};
use protocol::net::ipv4::Ipv4;
use protocol::roce::{IpAddrs, RoceFrame};

use super::{DropReason, Neighbours, PortStats};
use crate::fabric::TxBatch;
use crate::identity::Identity;

/// Bound: an answer is given up when this many frames wait already. One frame draws one answer of at most its own
/// length, so a peer cannot make us send more than it sends; but it can send while our way out is blocked.
const MAX_WAITING: usize = 256;

/// Hop limit of what the port itself sends.
const HOP_LIMIT: u8 = 64;

/// One port: an identity, its neighbours and its counters.
#[derive(Debug)]
pub struct Port {
    identity: Identity,
    neighbours: Neighbours,
    stats: PortStats,
    up: bool,
}

impl Port {
    /// A port that knows nobody, with its link up.
    pub fn new(identity: Identity) -> Self {
        Self { identity, neighbours: Neighbours::default(), stats: PortStats::default(), up: true }
    }

    /// Whether the link is up. While it is down every frame that arrives is dropped.
    pub fn is_up(&self) -> bool {
        self.up
    }

    /// Plugs the cable in or pulls it out.
    pub fn set_up(&mut self, up: bool) {
        self.up = up;
    }

    /// Counts frames that could not leave because the link is down.
    pub fn count_lost(&mut self, frames: usize) {
        self.stats.lost_link_down += frames as u64;
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

    /// The MAC of a neighbour. While it is not known, each call may put a request into `out`; call again when frames
    /// have arrived.
    pub fn resolve(&mut self, now: Instant, ip: Ipv4Addr, out: &mut TxBatch) -> Option<MacAddr> {
        if ip == self.identity.ipv4 {
            return Some(self.identity.mac);
        }
        let resolved = self.neighbours.resolve(now, ip);
        if resolved.ask && out.len() < MAX_WAITING {
            let request = Arp {
                operation: ArpOperation::Request,
                sender_mac: self.identity.mac,
                sender_ip: self.identity.ipv4,
                target_mac: MacAddr::default(),
                target_ip: ip,
            };
            request.emit_frame(out.buffer());
            out.commit(MacAddr::BROADCAST);
        }
        resolved.mac
    }

    /// The neighbours, to fix some.
    pub fn neighbours(&mut self) -> &mut Neighbours {
        &mut self.neighbours
    }

    /// What arrived and what became of it.
    pub fn stats(&self) -> &PortStats {
        &self.stats
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
        if ether.src.is_multicast() {
            return Err(DropReason::BadSource);
        }
        let broadcast = ether.dst == MacAddr::BROADCAST;
        if !broadcast && ether.dst != self.identity.mac {
            return Err(DropReason::OtherMac);
        }
        match ether.ether_type {
            EtherType::Arp => self.on_arp(now, &ether, answers).map(|()| None),
            // Nothing else that we speak is ever broadcast.
            _ if broadcast => Err(DropReason::OtherMac),
            EtherType::Ipv4 | EtherType::Ipv6 if ether.is_roce() => {
                let roce = RoceFrame::parse(frame)?;
                match roce.shell.ip {
                    IpAddrs::V4 { dst, .. } if dst == self.identity.ipv4 => {
                        self.stats.roce += 1;
                        Ok(Some(roce))
                    }
                    IpAddrs::V4 { .. } | IpAddrs::V6 { .. } => Err(DropReason::OtherIp),
                }
            }
            EtherType::Ipv4 => self.on_ipv4(&ether, answers).map(|()| None),
            // Neighbour discovery belongs here once a port has an IPv6 address.
            EtherType::Ipv6 | EtherType::Other(_) => Err(DropReason::Protocol),
        }
    }

    fn on_arp(
        &mut self,
        now: Instant,
        ether: &EtherFrame<'_>,
        answers: &mut TxBatch,
    ) -> Result<(), DropReason> {
        let arp = Arp::parse(ether.payload)?;
        if arp.sender_mac.is_multicast() || arp.sender_ip == self.identity.ipv4 {
            // Somebody claims our address, or it is our own request coming back.
            return Err(DropReason::BadSource);
        }
        let for_us = arp.target_ip == self.identity.ipv4;
        // A probe (RFC 5227) has no sender address yet.
        if !arp.sender_ip.is_unspecified() {
            self.neighbours.learn(now, arp.sender_ip, arp.sender_mac, for_us);
        }
        if !for_us || arp.operation != ArpOperation::Request {
            self.stats.arp += 1;
            return Ok(());
        }
        if answers.len() >= MAX_WAITING {
            return Err(DropReason::NoRoom);
        }
        let reply = Arp {
            operation: ArpOperation::Reply,
            sender_mac: self.identity.mac,
            sender_ip: self.identity.ipv4,
            target_mac: arp.sender_mac,
            target_ip: arp.sender_ip,
        };
        reply.emit_frame(answers.buffer());
        answers.commit(arp.sender_mac);
        self.stats.arp += 1;
        Ok(())
    }

    fn on_ipv4(&mut self, ether: &EtherFrame<'_>, answers: &mut TxBatch) -> Result<(), DropReason> {
        let (ip, payload) = Ipv4::parse(ether.payload)?;
        if ip.dst != self.identity.ipv4 {
            return Err(DropReason::OtherIp);
        }
        if ip.protocol != icmp::PROTOCOL {
            return Err(DropReason::Protocol);
        }
        let echo = EchoRequest::parse(payload)?.ok_or(DropReason::Protocol)?;
        if answers.len() >= MAX_WAITING {
            return Err(DropReason::NoRoom);
        }
        let header = Ipv4 { src: ip.dst, dst: ip.src, ttl: HOP_LIMIT, ..ip };
        echo.emit_reply_frame(ether.src, self.identity.mac, header, answers.buffer())?;
        answers.commit(ether.src);
        self.stats.echo += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
