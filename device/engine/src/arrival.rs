//! Which queue pairs a packet is for.
//!
//! | destination | who |
//! |---|---|
//! | QP 0 and 1 | the QPs that were declared to be the management QPs, where there are such |
//! | QP ffffff and the address of a group | every UD QP attached to the group |
//! | any other | the QP of that whole number, unless it is a management QP |
//!
//! # Spec
//! IBTA volume 1, sections 9.6.1.1 (checks of the BTH), 10.5.2 (multicast) and 13.5 (management QPs).

use protocol::ids::Qpn;
use protocol::roce::{Encap, Ext, IpAddrs, Packet};
use smallvec::SmallVec;

use crate::qp::{is_marked, udp_len};
use crate::{DropReason, Dropped, Engine, GroupDatagram, Host, Instant, Service, limits};

/// Destination QP of packets to groups.
const GROUP_QPN: Qpn = Qpn::new(0xff_ffff);

impl Engine {
    /// A packet arrived whose ICRC is right.
    pub fn handle_packet(&mut self, now: Instant, encap: &Encap, packet: &Packet<'_>, host: &mut impl Host) {
        self.stats.received_packets += 1;
        self.stats.received_opcodes.count(packet.bth.opcode);
        self.stats.received_payload_bytes += packet.payload.len() as u64;
        self.stats.received_ip.count(&encap.ip, encap.ip.header_len() + usize::from(udp_len(packet)));
        self.stats.congestion.received_marked += u64::from(is_marked(encap.traffic_class));
        let to = packet.bth.dest_qp;
        if is_multicast(encap) {
            self.hand_to_group(now, encap, packet, host);
            return;
        }
        let qpn = match (to.get(), self.smi(), self.gsi()) {
            (0, Some(smi), _) => smi,
            (1, _, Some(gsi)) => gsi,
            _ => to,
        };
        let Some(index) = self.destination(qpn, to) else {
            return self.discard(encap, packet, DropReason::UnknownQp, host);
        };
        self.input_at(now, index, host, |qp, ctx| qp.handle_packet(ctx, encap, packet));
    }

    // Out of the way of the others, which are most.
    #[cold]
    fn hand_to_group(&mut self, now: Instant, encap: &Encap, packet: &Packet<'_>, host: &mut impl Host) {
        let mut members = match packet.ext {
            Ext::Deth(deth) | Ext::DethImm(deth, _) => host.group_members(&GroupDatagram {
                gid: gid(encap),
                dst_mac: encap.dst_mac,
                tag: encap.tag,
                src_mac: encap.src_mac,
                src_qp: deth.src_qp,
            }),
            // Only datagrams go to groups.
            _ => SmallVec::new(),
        };
        members.truncate(limits::GROUP_MEMBERS);
        members.retain(|&mut qpn| self.service_of(qpn) == Some(Service::Ud));
        if packet.bth.dest_qp != GROUP_QPN || members.is_empty() {
            return self.discard(encap, packet, DropReason::UnknownGroup, host);
        }
        for qpn in members {
            self.input(now, qpn, host, |qp, ctx| qp.handle_packet(ctx, encap, packet));
        }
    }

    /// A packet is for nobody.
    #[cold]
    fn discard(&mut self, encap: &Encap, packet: &Packet<'_>, reason: DropReason, host: &mut impl Host) {
        self.stats.drops.count(reason);
        self.stats.received_ip.of(&encap.ip).discarded += 1;
        host.dropped(&Dropped::new(packet.bth.dest_qp, packet, reason));
    }
}

fn is_multicast(encap: &Encap) -> bool {
    match encap.ip {
        IpAddrs::V4 { dst, .. } => dst.is_multicast(),
        IpAddrs::V6 { dst, .. } => dst.is_multicast(),
    }
}

/// Where a packet goes to, as a GID: the IPv6 address, or the mapped IPv4 address.
fn gid(encap: &Encap) -> [u8; 16] {
    match encap.ip {
        IpAddrs::V4 { dst, .. } => dst.to_ipv6_mapped().octets(),
        IpAddrs::V6 { dst, .. } => dst.octets(),
    }
}
