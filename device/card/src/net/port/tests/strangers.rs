//! Tests how much traffic unknown senders can cause, measured at the peers' sockets.

use std::net::UdpSocket;
use std::time::Duration;

use protocol::net::icmpv6;

use super::*;
use crate::fabric::udp::{UdpFabric, UdpPeer};
use crate::fabric::{Fabric as _, RxBatch};
use crate::hca::Hca;
use crate::hca::testing::Stub;
use crate::management::{Datagram, PERMISSIVE_LID, QP0, QP1};
use crate::vfio::Bar;
use crate::vfio::server::{Device as _, Region};

/// Number of bytes by which the reply to a probe exceeds the shortest probe (RFC 4861, section 7.2.4).
const OPTION: usize = 8;
/// Number of bytes by which an acknowledgement exceeds a SEND without data: the AETH (IBTA 9.2).
const AETH: usize = 4;

/// Number of forged source MACs, which exceeds the number that the fabric learns from one peer.
const FORGED_MACS: u16 = 600;
/// Number of frames that the HCA handles from each burst, oldest first. By the time it handles them, newer MACs have
/// replaced their source MACs in the fabric's table.
const SERVED: usize = 80;

/// An HCA with LID 2 and its peers: one that sends requests and two bystanders.
struct Wire {
    hca: Hca<Stub>,
    fabric: UdpFabric,
    peers: [UdpSocket; 3],
    now: Instant,
}

impl Wire {
    fn new() -> Self {
        let peers = [(); 3].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
        peers.iter().for_each(|peer| peer.set_nonblocking(true).unwrap());
        let entries = peers.each_ref().map(|peer| UdpPeer::at(peer.local_addr().unwrap()));
        let fabric = UdpFabric::bind("127.0.0.1:0".parse().unwrap(), mac(2), &entries).unwrap();
        let mut hca = Hca::new(Stub::default(), Identity::from_lid(Lid::new(2)), None);
        hca.region_write(Region::Config, 4, &[6, 0]);
        Self { hca, fabric, peers, now: NOW }
    }

    /// Connects QP 2 to QP 1 of LID 1. Discards the frame that the HCA's own QP 1 sends.
    fn connect(&mut self) {
        self.hca.region_write(Region::Bar(Bar::Bar0), 8, &[1]);
        self.hca.drain();
        self.hca.outbound().clear();
    }

    /// Receives all frames, handles the first `served` of them, and then sends all replies. Returns the number of bytes
    /// sent to each peer.
    fn exchange(&mut self, frames: &[Vec<u8>], served: usize) -> [usize; 3] {
        self.now = self.now + Duration::from_secs(1);
        self.hca.set_now(self.now);
        let to = self.fabric.local_addr().unwrap();
        let (mut arrived, mut batch) = (Vec::new(), RxBatch::new());
        for frame in frames {
            self.peers[0].send_to(frame, to).unwrap();
            self.fabric.recv(&mut batch).unwrap();
            arrived.extend(batch.iter().map(|arrival| arrival.contents().to_vec()));
        }
        assert_eq!(arrived.len(), frames.len());
        for frame in &arrived[..served] {
            self.hca.handle_frame(frame);
            self.hca.drain();
        }
        self.fabric.send(self.hca.outbound());
        let mut buffer = [0; 2048];
        self.peers.each_ref().map(|peer| std::iter::from_fn(|| peer.recv(&mut buffer).ok()).sum())
    }
}

/// Returns a SEND Only packet from LID 1 to a QP, without a payload.
fn send_to_qp(dest_qp: u32, psn: u32) -> Vec<u8> {
    let (peer, own) = (Identity::from_lid(Lid::new(1)), Identity::from_lid(Lid::new(2)));
    let encap = encap(IpAddrs::V4 { src: peer.ipv4, dst: own.ipv4 }, own.mac);
    let bth = Bth {
        opcode: Opcode::rc(Operation::SendOnly),
        solicited: false,
        mig_req: true,
        pkey: Pkey::DEFAULT,
        fecn: false,
        becn: false,
        dest_qp: Qpn::new(dest_qp),
        ack_req: true,
        psn: Psn::new(psn),
    };
    let mut frame = Vec::new();
    FrameWriter::new(&mut frame, &encap, &bth, &Ext::None, 0).finish();
    frame
}

fn encap(ip: IpAddrs, dst_mac: MacAddr) -> Encap {
    Encap {
        src_mac: mac(1),
        dst_mac,
        ip,
        traffic_class: 0,
        flow_label: FlowLabel::default(),
        hop_limit: 64,
        fragment: Fragmentation::default(),
        tag: None,
        src_port: 0xc000,
    }
}

/// Returns a MAD from LID 1. `header` contains its class, method and attribute. `hops` is the number of hops in a
/// directed route.
fn mad(qp: Qpn, to_all: bool, header: [u8; 3], hops: u8) -> Vec<u8> {
    let (peer, own) = (Identity::from_lid(Lid::new(1)), Identity::from_lid(Lid::new(2)));
    let [class, method, attribute] = header;
    let mut mad = [0; 256];
    mad[..8].copy_from_slice(&[1, class, if class == 3 { 2 } else { 1 }, method, 0, 0, hops, hops]);
    mad[17] = attribute;
    if class == 0x81 {
        mad[32..36].fill(0xff);
    }
    let (dst_mac, ip) = match to_all {
        true => (
            icmpv6::multicast_mac(icmpv6::ALL_NODES),
            IpAddrs::V6 { src: peer.link_local(), dst: icmpv6::ALL_NODES },
        ),
        false => (own.mac, IpAddrs::V4 { src: peer.ipv4, dst: own.ipv4 }),
    };
    let destination = if to_all { PERMISSIVE_LID } else { own.lid };
    let sent = Datagram { source: peer.lid, source_qp: qp, destination, destination_qp: qp, mad };
    let mut frame = Vec::new();
    sent.emit(&encap(ip, dst_mac), &mut frame);
    frame
}

#[test]
fn replies_reach_only_sender_without_amplification() {
    let urgent = |frame: Vec<u8>| [&frame[..12], &[0x81, 0, 0xe0, 0], &frame[12..]].concat();
    // Each entry consists of a name, a frame, whether the frame triggers a reply, and how many bytes longer than the
    // frame the reply may be.
    let kinds = [
        ("ARP request", arp_request(), true, 0),
        ("ARP reply", arp_reply(), false, 0),
        ("echo", ping(), true, 0),
        ("echo with priority tag", urgent(ping()), true, 0),
        ("IPv6 echo", ping6(), true, 0),
        ("solicitation", solicitation(), true, 0),
        ("unicast solicitation", unicast_solicitation(), true, 0),
        ("duplicate address probe", probe6(), true, OPTION),
        ("Get(NodeInfo)", mad(QP0, false, [1, 1, 0x11], 0), true, 0),
        ("Get(NodeInfo) to all nodes", mad(QP0, true, [1, 1, 0x11], 0), true, 0),
        ("GetResp(NodeInfo)", mad(QP0, false, [1, 0x81, 0x11], 0), false, 0),
        ("directed route", mad(QP0, false, [0x81, 1, 0x11], 1), false, 0),
        ("Get(ClassPortInfo) of PerfMgt", mad(QP1, false, [4, 1, 1], 0), true, 0),
        ("Get(ClassPortInfo) of SubnAdm", mad(QP1, false, [3, 1, 1], 0), false, 0),
        ("SEND to a QP", send_to_qp(2, 0xff_fffe), true, AETH),
        ("repeated SEND to a QP", send_to_qp(2, 0xff_fffe), true, AETH),
        ("SEND to an unknown QP", send_to_qp(99, 0), false, 0),
    ];
    let mut wire = Wire::new();
    for (name, frame, answered, more) in kinds {
        if name == "SEND to a QP" {
            wire.connect();
        }
        let [own, ..] = wire.exchange(std::slice::from_ref(&frame), 1);
        let bytes = wire.exchange(std::slice::from_ref(&frame), 1);
        assert_eq!(own > 0, answered, "{name}");
        assert!(own <= frame.len() + more && bytes[0] <= frame.len() + more, "{name}: {own}, {bytes:?}");
        assert_eq!(bytes[1..], [0, 0], "{name}: third parties must receive nothing");

        let forged: Vec<_> = (0..FORGED_MACS).map(|n| replace_mac(frame.clone(), 6, mac(1000 + n))).collect();
        let bytes = wire.exchange(&forged, SERVED);
        assert!(bytes[0] <= SERVED * (frame.len() + more), "{name}: {bytes:?}");
        assert_eq!(bytes[1..], [0, 0], "{name}: third parties must receive nothing during a flood");
    }
}
