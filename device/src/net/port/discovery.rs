//! Who has which address: ARP and IPv6 neighbour discovery, asked and answered.

use std::net::{IpAddr, Ipv6Addr};

use engine::Instant;
use protocol::ids::MacAddr;
use protocol::net::arp::{Arp, ArpOperation};
use protocol::net::ether::EtherFrame;
use protocol::net::icmpv6::{self, Advertisement, Solicitation};
use protocol::net::ipv6::Ipv6;
use protocol::roce::IpAddrs;

use super::{Port, commit_answer};
use crate::fabric::TxBatch;
use crate::net::DropReason;

impl Port {
    /// Asks who has an address, into `out`.
    pub fn ask(&mut self, ip: IpAddr, out: &mut TxBatch) {
        match self.identity.towards(ip) {
            IpAddrs::V4 { src, dst } => {
                let request = Arp {
                    operation: ArpOperation::Request,
                    sender_mac: self.identity.mac,
                    sender_ip: src,
                    target_mac: MacAddr::default(),
                    target_ip: dst,
                };
                request.emit_frame(out.buffer());
                out.commit(MacAddr::BROADCAST);
            }
            IpAddrs::V6 { src, dst } => {
                let request = Solicitation { target: dst, source_mac: Some(self.identity.mac) };
                request.emit_frame(self.identity.mac, src, out.buffer());
                out.commit(icmpv6::multicast_mac(icmpv6::solicited_node(dst)));
            }
        }
    }

    pub(super) fn on_arp(
        &mut self,
        now: Instant,
        ether: &EtherFrame<'_>,
        answers: &mut TxBatch,
    ) -> Result<(), DropReason> {
        let arp = Arp::parse(ether.payload)?;
        if !self.is_anothers_mac(arp.sender_mac) {
            return Err(DropReason::BadSource);
        }
        let for_us = arp.target_ip == self.identity.ipv4;
        // A probe (RFC 5227) has no sender address yet.
        if !arp.sender_ip.is_unspecified() {
            // Our own: somebody claims it, or it is our own request coming back.
            self.check_source(arp.sender_mac, arp.sender_ip.into())?;
            self.learn(now, arp.sender_ip.into(), arp.sender_mac, for_us);
        }
        if !for_us || arp.operation != ArpOperation::Request {
            self.stats.arp += 1;
            return Ok(());
        }
        self.allow_answer(now, ether.src, answers)?;
        let reply = Arp {
            operation: ArpOperation::Reply,
            sender_mac: self.identity.mac,
            sender_ip: self.identity.ipv4,
            target_mac: arp.sender_mac,
            target_ip: arp.sender_ip,
        };
        reply.emit_frame(answers.buffer());
        // Where the request came from; nearly always that is the sender's own MAC.
        commit_answer(answers, ether.src);
        answers.readdress_last(ether.src);
        self.stats.arp += 1;
        Ok(())
    }

    /// RFC 4861, section 7.2.3.
    pub(super) fn on_solicitation(
        &mut self,
        now: Instant,
        ether: &EtherFrame<'_>,
        ip: &Ipv6,
        solicitation: &Solicitation,
        answers: &mut TxBatch,
    ) -> Result<(), DropReason> {
        let mac = solicitation.source_mac.unwrap_or(ether.src);
        if !self.is_anothers_mac(mac) {
            return Err(DropReason::BadSource);
        }
        let probe = ip.src.is_unspecified();
        // Section 7.1.1: a probe is for the group of its target. Section 4.3: who asks the group says where it is.
        if probe && !ip.dst.is_multicast()
            || !probe && ip.dst.is_multicast() && solicitation.source_mac.is_none()
        {
            return Err(DropReason::Invalid);
        }
        if !self.identity.owns(solicitation.target.into()) {
            self.stats.neighbour_discovery += 1;
            return Ok(());
        }
        if !probe && let Some(mac) = solicitation.source_mac {
            self.learn(now, ip.src.into(), mac, true);
        }
        self.allow_answer(now, ether.src, answers)?;
        let reply = Advertisement {
            target: solicitation.target,
            // Who asks us alone knows our MAC already, and may leave its own out.
            target_mac: (ip.dst.is_multicast() || solicitation.source_mac.is_some())
                .then_some(self.identity.mac),
            solicited: !probe,
        };
        // The answer to a probe for a duplicate address (RFC 4862), which has no source yet, is for all nodes. One of them
        // asked, so the frame is for that one alone, as RFC 6085 allows: else a probe would cost us a frame to each peer.
        let dst = if probe { icmpv6::ALL_NODES } else { ip.src };
        reply.emit_frame(self.identity.mac, ether.src, dst, answers.buffer());
        commit_answer(answers, ether.src);
        self.stats.neighbour_discovery += 1;
        Ok(())
    }

    /// RFC 4861, section 7.2.5.
    pub(super) fn on_advertisement(
        &mut self,
        now: Instant,
        advertisement: &Advertisement,
    ) -> Result<(), DropReason> {
        if self.identity.owns(advertisement.target.into()) {
            return Err(DropReason::BadSource);
        }
        if let Some(mac) = advertisement.target_mac {
            if !self.is_anothers_mac(mac) {
                return Err(DropReason::BadSource);
            }
            self.learn(now, advertisement.target.into(), mac, false);
        }
        self.stats.neighbour_discovery += 1;
        Ok(())
    }

    /// Whether this port listens to a group: all nodes, and those who ask for its addresses.
    pub(super) fn hears(&self, group: MacAddr) -> bool {
        let of = |ip: Ipv6Addr| icmpv6::multicast_mac(icmpv6::solicited_node(ip)) == group;
        group == icmpv6::multicast_mac(icmpv6::ALL_NODES)
            || of(self.identity.link_local())
            || self.identity.ipv6.is_some_and(of)
    }

    /// Whether another station can have a MAC.
    fn is_anothers_mac(&self, mac: MacAddr) -> bool {
        !mac.is_multicast() && mac != MacAddr::default() && mac != self.identity.mac
    }

    fn learn(&mut self, now: Instant, ip: IpAddr, mac: MacAddr, talks_to_us: bool) {
        self.neighbours.learn(now, ip, mac, talks_to_us);
        self.stats.lost_unresolved += self.waiting.resolve(now, ip, mac) as u64;
    }
}
