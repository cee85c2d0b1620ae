//! Who has which address: ARP and IPv6 neighbour discovery, asked and answered.

use std::net::{IpAddr, Ipv6Addr};

use engine::Instant;
use protocol::ids::MacAddr;
use protocol::net::arp::{Arp, ArpOperation};
use protocol::net::ether::EtherFrame;
use protocol::net::icmpv6::{self, Advertisement, Solicitation};
use protocol::net::ipv6::Ipv6;
use protocol::roce::IpAddrs;

use super::Port;
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
        if arp.sender_mac.is_multicast() || arp.sender_ip == self.identity.ipv4 {
            // Somebody claims our address, or it is our own request coming back.
            return Err(DropReason::BadSource);
        }
        let for_us = arp.target_ip == self.identity.ipv4;
        // A probe (RFC 5227) has no sender address yet.
        if !arp.sender_ip.is_unspecified() {
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
        answers.commit(arp.sender_mac);
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
        if mac.is_multicast() || ip.src.is_multicast() || self.identity.owns(ip.src.into()) {
            return Err(DropReason::BadSource);
        }
        if !self.identity.owns(solicitation.target.into()) {
            self.stats.neighbour_discovery += 1;
            return Ok(());
        }
        // A probe for a duplicate address (RFC 4862) has no source yet, and its answer is for everybody.
        let probe = ip.src.is_unspecified();
        if !probe && let Some(mac) = solicitation.source_mac {
            self.learn(now, ip.src.into(), mac, true);
        }
        self.allow_answer(now, ether.src, answers)?;
        let (dst_mac, dst) = match probe {
            true => (icmpv6::multicast_mac(icmpv6::ALL_NODES), icmpv6::ALL_NODES),
            false => (mac, ip.src),
        };
        let reply = Advertisement {
            target: solicitation.target,
            target_mac: Some(self.identity.mac),
            solicited: !probe,
        };
        reply.emit_frame(self.identity.mac, dst_mac, dst, answers.buffer());
        answers.commit(dst_mac);
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
            if mac.is_multicast() {
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

    fn learn(&mut self, now: Instant, ip: IpAddr, mac: MacAddr, talks_to_us: bool) {
        self.neighbours.learn(now, ip, mac, talks_to_us);
        self.stats.lost_unresolved += self.waiting.resolve(now, ip, mac) as u64;
    }
}
