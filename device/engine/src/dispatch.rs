//! Dispatches incoming packets to queue pairs.
//!
//! | destination | receiver |
//! |---|---|
//! | QP 0xffffff at a multicast address | every UD QP attached to the group |
//! | any other QP at a multicast address | none; the packet is dropped |
//! | QP 0 or 1 at a unicast address | the QP declared as QP0 or QP1, if one is declared |
//! | any other QP at a unicast address | the QP with that number or alias; never QP0 or QP1 |
//!
//! # Spec
//! IBTA volume 1, sections 9.6.1.1 (BTH checks), 10.5.2 (multicast) and 13.5 (management QPs).

use protocol::ids::Qpn;
use protocol::roce::{Encap, Ext, IpAddrs, Mtu, PacketPayload as _};
use smallvec::SmallVec;

use crate::qp::{is_marked, udp_len};
use crate::{DropReason, Dropped, Engine, GroupDatagram, Host, Instant, ReceivedPacket, Service, limits};

/// Destination QP of multicast packets.
const GROUP_QPN: Qpn = Qpn::new(0xff_ffff);

impl Engine {
    /// Handles an incoming packet. The caller has verified the ICRC.
    pub fn handle_packet(
        &mut self,
        now: Instant,
        encap: &Encap,
        packet: &ReceivedPacket<'_>,
        host: &mut impl Host,
    ) {
        self.count_received(encap, packet, 1);
        if is_multicast(encap) {
            self.deliver_to_group(now, encap, packet, host);
            return;
        }
        let Some(index) = self.receiver(packet) else {
            return self.discard(encap, packet, DropReason::UnknownQp, host);
        };
        self.input_at(now, index, host, |qp, ctx| qp.handle_packet(ctx, encap, packet));
    }

    /// Handles a frame that carries several packets. `packet` has a single set of headers and the combined payload; see
    /// [`Segmentation`](protocol::roce::Offload::Segmentation).
    pub fn handle_segments(
        &mut self,
        now: Instant,
        encap: &Encap,
        packet: &ReceivedPacket<'_>,
        mtu: Mtu,
        host: &mut impl Host,
    ) {
        let Some(index) = self.receiver(packet).filter(|_| !is_multicast(encap)) else {
            return packet.segments(mtu).for_each(|segment| self.handle_packet(now, encap, &segment, host));
        };
        packet.segment_runs(mtu).for_each(|(segment, packets)| self.count_received(encap, &segment, packets));
        self.input_at(now, index, host, |qp, ctx| qp.handle_segments(ctx, encap, packet, mtu));
    }

    /// Counts `packets` packets that differ from `packet` at most in PSN and payload.
    fn count_received(&mut self, encap: &Encap, packet: &ReceivedPacket<'_>, packets: u32) {
        let (count, octets) = (u64::from(packets), encap.ip.header_len() + usize::from(udp_len(packet)));
        self.stats.received_packets += count;
        self.stats.received_opcodes.count(packet.bth.opcode, packets);
        self.stats.received_payload_bytes += count * packet.payload.len() as u64;
        self.stats.received_ip.count(&encap.ip, octets, packets);
        if is_marked(encap.traffic_class) {
            self.stats.congestion.received_marked += count;
        }
    }

    /// Returns the table index of the QP that receives a unicast packet.
    fn receiver(&self, packet: &ReceivedPacket<'_>) -> Option<u32> {
        let to = packet.bth.dest_qp;
        // IBTA 13.5: on the wire, QP0 and QP1 are always addressed as 0 and 1. Internally, the QPs declared as QP0 and
        // QP1 have other numbers.
        let qpn = match (to.get(), self.smi(), self.gsi()) {
            (0, Some(smi), _) => smi,
            (1, _, Some(gsi)) => gsi,
            _ => to,
        };
        self.destination(qpn, to)
    }

    // Marked cold to keep the unicast path small.
    #[cold]
    fn deliver_to_group(
        &mut self,
        now: Instant,
        encap: &Encap,
        packet: &ReceivedPacket<'_>,
        host: &mut impl Host,
    ) {
        let mut members = match packet.ext {
            Ext::Deth(deth) | Ext::DethImm(deth, _) => host.group_members(&GroupDatagram {
                gid: gid(encap),
                dst_mac: encap.dst_mac,
                tag: encap.tag,
                src_mac: encap.src_mac,
                src_qp: deth.src_qp,
            }),
            // Only datagrams can be multicast.
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

    /// Counts and reports a packet that no QP receives.
    #[cold]
    fn discard(
        &mut self,
        encap: &Encap,
        packet: &ReceivedPacket<'_>,
        reason: DropReason,
        host: &mut impl Host,
    ) {
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

/// Returns the packet's destination address as a GID, mapping an IPv4 address to IPv6.
fn gid(encap: &Encap) -> [u8; 16] {
    match encap.ip {
        IpAddrs::V4 { dst, .. } => dst.to_ipv6_mapped().octets(),
        IpAddrs::V6 { dst, .. } => dst.octets(),
    }
}
