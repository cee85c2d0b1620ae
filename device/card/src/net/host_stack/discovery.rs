//! ARP and IPv6 neighbour discovery: sends requests, and answers the requests of other hosts.

use std::net::IpAddr;

use engine::Instant;
use protocol::ids::MacAddr;
use protocol::net::arp::{Arp, ArpOperation};
use protocol::net::icmpv6::{self, Advertisement, Solicitation};
use protocol::net::ipv6::Ipv6;
use protocol::roce::IpAddrs;

use super::{HostStack, RxContext, commit_answer};
use crate::fabric::TxBatch;
use crate::identity::Identity;
use crate::net::{DropReason, PortStats};

impl HostStack {
    /// Appends a request for the MAC of `ip` to `out`.
    pub(in crate::net) fn send_request(&self, own: &Identity, ip: IpAddr, out: &mut TxBatch) {
        match own.towards(ip) {
            IpAddrs::V4 { src, dst } => {
                let request = Arp {
                    operation: ArpOperation::Request,
                    sender_mac: own.mac,
                    sender_ip: src,
                    target_mac: MacAddr::default(),
                    target_ip: dst,
                };
                request.emit_frame(out.buffer());
                out.commit(MacAddr::BROADCAST);
            }
            IpAddrs::V6 { src, dst } => {
                let request = Solicitation { target: dst, source_mac: Some(own.mac) };
                request.emit_frame(own.mac, src, out.buffer());
                out.commit(icmpv6::multicast_mac(icmpv6::solicited_node(dst)));
            }
        }
    }

    pub(super) fn on_arp(&mut self, cx: RxContext<'_>) -> Result<(), DropReason> {
        let RxContext { now, own, ether, stats, answers } = cx;
        let arp = Arp::parse(ether.payload)?;
        if !is_valid_neighbour_mac(own, arp.sender_mac) {
            return Err(DropReason::BadSource);
        }
        let for_us = arp.target_ip == own.ipv4;
        // An ARP probe (RFC 5227) does not have a sender IP address to check or learn.
        if !arp.sender_ip.is_unspecified() {
            // This also rejects a sender that uses the port's own address. Either another host claims that address, or
            // the port's own request was reflected.
            self.check_source(own, arp.sender_mac, arp.sender_ip.into())?;
            self.learn(stats, now, arp.sender_ip.into(), arp.sender_mac, for_us);
        }
        if !for_us || arp.operation != ArpOperation::Request {
            stats.arp += 1;
            return Ok(());
        }
        self.allow_answer(now, ether.src, answers)?;
        let reply = Arp {
            operation: ArpOperation::Reply,
            sender_mac: own.mac,
            sender_ip: own.ipv4,
            target_mac: arp.sender_mac,
            target_ip: arp.sender_ip,
        };
        reply.emit_frame(answers.buffer());
        // The reply goes to the frame's source MAC, which nearly always equals the sender MAC in the ARP request.
        commit_answer(answers, ether.src);
        answers.readdress_last(ether.src);
        stats.arp += 1;
        Ok(())
    }

    /// Handles a neighbour solicitation (RFC 4861, section 7.2.3).
    pub(super) fn on_solicitation(
        &mut self,
        cx: RxContext<'_>,
        ip: &Ipv6,
        solicitation: &Solicitation,
    ) -> Result<(), DropReason> {
        let RxContext { now, own, ether, stats, answers } = cx;
        let mac = solicitation.source_mac.unwrap_or(ether.src);
        if !is_valid_neighbour_mac(own, mac) {
            return Err(DropReason::BadSource);
        }
        let probe = ip.src.is_unspecified();
        // RFC 4861, section 7.1.1: a probe is sent to a solicited-node multicast address. Section 4.3: any other
        // multicast solicitation contains the sender's MAC.
        if probe && !ip.dst.is_multicast()
            || !probe && ip.dst.is_multicast() && solicitation.source_mac.is_none()
        {
            return Err(DropReason::Invalid);
        }
        if !own.owns(solicitation.target.into()) {
            stats.neighbour_discovery += 1;
            return Ok(());
        }
        if !probe && let Some(mac) = solicitation.source_mac {
            self.learn(stats, now, ip.src.into(), mac, true);
        }
        self.allow_answer(now, ether.src, answers)?;
        let reply = Advertisement {
            target: solicitation.target,
            // RFC 4861, section 7.2.4: a unicast solicitation without a source link-layer address is answered without a
            // target link-layer address. Its sender already has the port's MAC.
            target_mac: (ip.dst.is_multicast() || solicitation.source_mac.is_some()).then_some(own.mac),
            solicited: !probe,
            // RFC 4861, section 7.2.4: the target is neither an anycast address nor proxied. Without `target_mac`, the
            // flag has no effect (section 7.2.5).
            overrides: true,
        };
        // A duplicate address detection probe (RFC 4862) comes from the unspecified address, and the reply is addressed
        // to all nodes. As RFC 6085 permits, the frame goes only to the prober's MAC, which avoids a broadcast per
        // probe.
        let dst = if probe { icmpv6::ALL_NODES } else { ip.src };
        reply.emit_frame(own.mac, ether.src, dst, answers.buffer());
        commit_answer(answers, ether.src);
        stats.neighbour_discovery += 1;
        Ok(())
    }

    /// Handles a neighbour advertisement (RFC 4861, section 7.2.5).
    pub(super) fn on_advertisement(
        &mut self,
        cx: RxContext<'_>,
        advertisement: &Advertisement,
    ) -> Result<(), DropReason> {
        let RxContext { now, own, stats, .. } = cx;
        if own.owns(advertisement.target.into()) {
            return Err(DropReason::BadSource);
        }
        if let Some(mac) = advertisement.target_mac {
            if !is_valid_neighbour_mac(own, mac) {
                return Err(DropReason::BadSource);
            }
            let ip = advertisement.target.into();
            if advertisement.overrides || !self.neighbours.retain_mac(ip, mac) {
                self.learn(stats, now, ip, mac, false);
            }
        }
        stats.neighbour_discovery += 1;
        Ok(())
    }

    fn learn(&mut self, stats: &mut PortStats, now: Instant, ip: IpAddr, mac: MacAddr, is_target: bool) {
        self.neighbours.learn(now, ip, mac, is_target);
        stats.lost_unresolved += self.waiting.resolve(now, ip, mac) as u64;
    }
}

/// Returns whether a MAC can belong to another host.
fn is_valid_neighbour_mac(own: &Identity, mac: MacAddr) -> bool {
    !mac.is_multicast() && mac != MacAddr::default() && mac != own.mac
}
