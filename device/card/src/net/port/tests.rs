//! Tests of a port. Frames from other hosts were built with scapy.

mod strangers;

use std::net::{Ipv4Addr, Ipv6Addr};

use super::*;
use crate::net::host_stack::MAX_WAITING;
use protocol::Psn;
use protocol::ids::{FlowLabel, Lid, Pkey, Qkey, Qpn};
use protocol::net::icmpv6::Advertisement;
use protocol::net::ipv4::Fragmentation;
use protocol::roce::{Bth, Deth, Encap, Ext, FrameWriter, IpAddrs, Opcode, Operation};

const NOW: Instant = Instant::ZERO;

/// Returns the port with LID 2, which is the destination of every frame in
/// `protocol/tests/data/scapy_frames.txt`.
fn port() -> Port {
    Port::new(Identity::from_lid(Lid::new(2)))
}

fn mac(lid: u16) -> MacAddr {
    MacAddr::from_lid(Lid::new(lid))
}

fn frame(hex: &str) -> Vec<u8> {
    let pairs = hex.as_bytes().as_chunks::<2>().0;
    pairs.iter().map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

fn roce(name: &str) -> Vec<u8> {
    let frames = include_str!("../../../../../protocol/tests/data/scapy_frames.txt");
    frame(frames.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')).unwrap())
}

/// Returns an ARP request, built with scapy 2.8.0: who has 10.77.0.2, tell 10.77.0.1 at 02:00:00:00:00:01.
fn arp_request() -> Vec<u8> {
    frame("ffffffffffff020000000001080600010800060400010200000000010a4d00010000000000000a4d0002")
}

/// Returns an ARP reply, built with scapy 2.8.0: 10.77.0.2 is at 02:00:00:00:00:02, sent to 10.77.0.1.
fn arp_reply() -> Vec<u8> {
    frame("020000000001020000000002080600010800060400020200000000020a4d00020200000000010a4d0001")
}

/// Returns an echo request from 10.77.0.1 to 10.77.0.2 with identifier 4321h and sequence 7, built with scapy 2.8.0.
fn ping() -> Vec<u8> {
    frame(
        "02000000000202000000000108004500002512344000400114080a4d00010a4d00020800fa3043210007686361642070696e67",
    )
}

/// Returns the echo reply to `ping`, built with scapy 2.8.0.
fn pong() -> Vec<u8> {
    frame(
        "020000000001020000000002080045000025000040004001263c0a4d00020a4d00010000023143210007686361642070696e67",
    )
}

/// Passes frames to the port, asserts that none is a RoCE packet, and returns the replies.
fn answers(port: &mut Port, frames: &[Vec<u8>]) -> Vec<(MacAddr, Vec<u8>)> {
    let mut out = TxBatch::default();
    for frame in frames {
        assert_eq!(port.receive(NOW, frame, Offload::None, &mut out), None);
    }
    out.iter().map(|(dst, frame)| (dst, frame.to_vec())).collect()
}

/// Returns why a frame is dropped and asserts that it is not answered.
fn drop_reason(frame: Vec<u8>) -> DropReason {
    let mut port = port();
    assert_eq!(answers(&mut port, &[frame]), []);
    let counted: Vec<_> =
        DropReason::ALL.into_iter().filter(|reason| port.stats().dropped(*reason) > 0).collect();
    assert_eq!(counted.len(), 1, "{counted:?}");
    assert_eq!(port.stats().roce + port.stats().arp + port.stats().echo, 0);
    counted[0]
}

#[test]
fn roce_packets_are_delivered() {
    let mut port = port();
    let frame = roce("rc_write_only");
    let mut out = TxBatch::default();
    let packet = port.receive(NOW, &frame, Offload::None, &mut out).unwrap();
    assert_eq!(packet.packet.payload.len(), 5);
    assert_eq!((out.len(), port.stats().roce), (0, 1));
}

#[test]
fn changed_address_ends_flow() {
    let (mut port, mut out) = (port(), TxBatch::default());
    let mut frame = roce("rc_write_only");
    // Clear the UDP checksum, since only packets without one form a flow. The ICRC remains valid, since it does not
    // cover the UDP checksum.
    frame[40..42].fill(0);
    assert_eq!(port.receive_in_flow(&frame, Offload::None), None);
    let first = port.receive(NOW, &frame, Offload::None, &mut out);
    assert!(first.is_some());
    assert_eq!(port.receive_in_flow(&frame, Offload::None), first);
    let mut damaged = frame.clone();
    damaged[60] ^= 1;
    assert_eq!(port.receive_in_flow(&damaged, Offload::None), None);
    port.addresses_mut().own = Identity::from_lid(Lid::new(3));
    assert_eq!(port.receive_in_flow(&frame, Offload::None), None);
    assert_eq!(port.stats().roce, 2);
}

/// A hub or bridge may reflect a multicast frame to its sender. If the sender is a member of the group, it already
/// receives the looped-back frame and must ignore the reflected one.
#[test]
fn only_looped_back_frames_may_have_own_source_mac() {
    let own = |frame: Vec<u8>| replace_mac(frame, 6, mac(2));
    for frame in [roce("rc_write_only"), datagram_to_group(), arp_request(), our_own_solicitation()] {
        assert_eq!(drop_reason(own(frame)), DropReason::Reflected);
    }
    let mut port = port();
    for frame in [roce("rc_write_only"), datagram_to_group()] {
        assert!(port.receive_own(&own(frame), Offload::None).is_some());
    }
    for frame in [replace_mac(roce("rc_write_only"), 0, mac(3)), arp_request()] {
        assert_eq!(port.receive_own(&frame, Offload::None), None);
    }
    assert_eq!(port.stats().roce, 2);
}

#[test]
fn management_and_ping_replies_share_rate_limit() {
    let mut port = port();
    let pings: Vec<_> = std::iter::repeat_n(ping(), 60).collect();
    assert_eq!(answers(&mut port, &pings).len(), 60);
    let waiting = TxBatch::default();
    let allowed = (0..60).filter(|_| port.allow_management(NOW, mac(1), &waiting)).count();
    assert_eq!((allowed, port.stats().dropped(DropReason::OverRate)), (40, 20));
    assert!(port.allow_management(NOW, mac(3), &waiting));
}

#[test]
fn arp_requests_for_own_address_are_answered() {
    let mut unicast = arp_request();
    unicast[..6].copy_from_slice(&mac(2).0);
    let mut port = port();
    let expected = (mac(1), arp_reply());
    assert_eq!(answers(&mut port, &[arp_request(), unicast]), [expected.clone(), expected]);
    assert_eq!(port.stats().arp, 2);
}

#[test]
fn arp_requests_for_other_addresses_are_ignored() {
    let mut other = arp_request();
    other[41] = 3;
    assert_eq!(answers(&mut port(), &[other]), []);
}

fn known(port: &mut Port, ip: impl Into<IpAddr>) -> Option<MacAddr> {
    port.resolve(NOW, ip.into()).mac
}

#[test]
fn arp_requester_becomes_neighbour() {
    let mut port = port();
    answers(&mut port, &[arp_request()]);
    let resolved = Resolved { mac: Some(mac(1)), request: false };
    assert_eq!(port.resolve(NOW, Ipv4Addr::new(10, 77, 0, 1).into()), resolved);
}

#[test]
fn unknown_neighbours_are_resolved_by_arp() {
    let mut port = Port::new(Identity::from_lid(Lid::new(1)));
    let (mut out, ip) = (TxBatch::default(), Ipv4Addr::new(10, 77, 0, 2).into());
    assert_eq!(port.resolve(NOW, ip), Resolved { mac: None, request: true });
    assert_eq!(port.resolve(NOW, ip), Resolved { mac: None, request: false });
    port.send_request(ip, &mut out);
    assert_eq!(out.iter().collect::<Vec<_>>(), [(MacAddr::BROADCAST, arp_request().as_slice())]);
    port.wait(NOW, ip, vec![0; 60]);
    assert_eq!(answers(&mut port, &[arp_reply()]), []);
    assert_eq!(known(&mut port, ip), Some(mac(2)));
    assert_eq!(port.next_resolved().map(|frame| frame[..6].to_vec()), Some(mac(2).0.to_vec()));
    assert_eq!(port.next_resolved(), None);
}

#[test]
fn arp_request_claiming_own_address_is_dropped() {
    let mut conflicting = arp_request();
    conflicting[28..32].copy_from_slice(&[10, 77, 0, 2]);
    assert_eq!(drop_reason(conflicting), DropReason::BadSource);
}

#[test]
fn arp_probes_are_answered_but_not_learned() {
    let mut probe = arp_request();
    probe[28..32].fill(0);
    let mut port = port();
    assert_eq!(answers(&mut port, &[probe]).len(), 1);
    assert_eq!(known(&mut port, Ipv4Addr::UNSPECIFIED), None);
}

#[test]
fn pings_are_answered() {
    let mut port = port();
    assert_eq!(answers(&mut port, &[ping()]), [(mac(1), pong())]);
    assert_eq!(port.stats().echo, 1);
}

#[test]
fn ping_reply_omits_ethernet_padding() {
    let mut padded = ping();
    padded.resize(60, 0xee);
    assert_eq!(answers(&mut port(), &[padded]), [(mac(1), pong())]);
}

#[test]
fn reply_queue_is_bounded() {
    let (mut port, mut out) = (port(), TxBatch::default());
    for _ in 0..MAX_WAITING {
        out.push(&pong());
    }
    for frame in [ping(), arp_request(), ping6(), solicitation()] {
        assert_eq!(port.receive(NOW, &frame, Offload::None, &mut out), None);
    }
    assert_eq!(out.len(), MAX_WAITING);
    assert_eq!(port.stats().dropped(DropReason::NoRoom), 4);
}

#[test]
fn replies_to_one_sender_are_rate_limited() {
    for question in [ping(), arp_request(), ping6(), solicitation(), unicast_solicitation(), probe6()] {
        let mut port = port();
        let flood = vec![question.clone(); 250];
        assert_eq!(answers(&mut port, &flood).len(), 100, "{question:02x?}");
        assert_eq!(port.stats().dropped(DropReason::OverRate), 150);
        let other = replace_mac(question, 6, mac(9));
        assert_eq!(answers(&mut port, &[other]).len(), 1, "requests from another sender are answered");
    }
}

/// An attacker that forges its source address triggers no more traffic than it sends, and none to third parties.
#[test]
fn replies_are_not_longer_than_requests() {
    for question in [ping(), arp_request(), ping6(), solicitation(), probe6(), unicast_solicitation()] {
        let found = answers(&mut port(), std::slice::from_ref(&question));
        // The reply to a probe must contain the MAC address in an eight-byte option (RFC 4861, section 7.2.4).
        let option = if question == probe6() { 8 } else { 0 };
        assert_eq!(found.len(), 1);
        assert!(found[0].1.len() <= question.len() + option, "{question:02x?}");
        assert_eq!((found[0].0, &found[0].1[..6]), (mac(1), &question[6..12]));
    }
    let mut of_another = arp_request();
    of_another[22..28].copy_from_slice(&mac(7).0);
    let found = answers(&mut port(), &[of_another]);
    assert_eq!(
        (found[0].0, &found[0].1[..6]),
        (mac(1), &mac(1).0[..]),
        "the reply goes to the source MAC of the frame"
    );
    assert_eq!(found[0].1[32..38], mac(7).0, "the reply repeats the sender address of the ARP request");
}

/// Replaces the source address. IPv4 frames get a valid header checksum, a valid ICRC if they have one, and no UDP
/// checksum. IPv6 frames get a valid ICMPv6 checksum.
fn from_ip(mut frame: Vec<u8>, src: IpAddr) -> Vec<u8> {
    let sum = |bytes: &[u8]| protocol::net::checksum::Checksum::new().with(bytes).value().to_be_bytes();
    match src {
        IpAddr::V4(ip) => {
            frame[26..30].copy_from_slice(&ip.octets());
            frame[24..26].fill(0);
            let checksum = sum(&frame[14..34]);
            frame[24..26].copy_from_slice(&checksum);
        }
        IpAddr::V6(ip) => {
            frame[22..38].copy_from_slice(&ip.octets());
            frame[56..58].fill(0);
            let (message, len) = (frame[54..].to_vec(), u8::try_from(frame.len() - 54).unwrap());
            let pseudo = [&frame[22..54], &[0, 0, 0, len, 0, 0, 0, 58], &message].concat();
            let checksum = sum(&pseudo);
            frame[56..58].copy_from_slice(&checksum);
        }
    }
    frame
}

/// Returns a SEND for QP 7 with a valid ICRC.
fn send_from(src_mac: MacAddr, ip: IpAddrs) -> Vec<u8> {
    let dst_mac = mac(2);
    let encap = Encap {
        src_mac,
        dst_mac,
        ip,
        traffic_class: 0,
        flow_label: FlowLabel::default(),
        hop_limit: 64,
        fragment: Fragmentation::default(),
        tag: None,
        src_port: 0xc000,
    };
    let bth = Bth {
        opcode: Opcode::ud(Operation::SendOnly),
        solicited: false,
        mig_req: false,
        pkey: Pkey::DEFAULT,
        fecn: false,
        becn: false,
        dest_qp: Qpn::new(7),
        ack_req: false,
        psn: Psn::new(0),
    };
    let mut frame = Vec::new();
    let ext = Ext::Deth(Deth { qkey: Qkey::new(1), src_qp: Qpn::new(8) });
    FrameWriter::new(&mut frame, &encap, &bth, &ext, 0).finish();
    frame
}

/// Frames with an invalid source address (RFC 1122, section 3.2.1.3; RFC 4291, sections 2.5.2, 2.5.3 and 2.7)
/// are neither delivered nor answered, and nothing is learned from them.
#[test]
fn invalid_source_addresses_are_dropped() {
    let own = Identity::from_lid(Lid::new(2));
    for src in ["224.0.0.1", "239.1.2.3", "255.255.255.255", "127.0.0.1", "0.0.0.0", "0.0.0.9", "10.77.0.2"] {
        let src: Ipv4Addr = src.parse().unwrap();
        let ip = IpAddrs::V4 { src, dst: own.ipv4 };
        assert_eq!(drop_reason(send_from(mac(1), ip)), DropReason::BadSource, "RoCE from {src}");
        assert_eq!(drop_reason(from_ip(ping(), src.into())), DropReason::BadSource, "ping from {src}");
        if !src.is_unspecified() {
            let mut request = arp_request();
            request[28..32].copy_from_slice(&src.octets());
            assert_eq!(drop_reason(request), DropReason::BadSource, "ARP from {src}");
        }
    }
    for src in ["ff02::1", "::", "::1", "fe80::ff:fe00:2"] {
        let src: Ipv6Addr = src.parse().unwrap();
        let ip = IpAddrs::V6 { src, dst: own.link_local() };
        assert_eq!(drop_reason(send_from(mac(1), ip)), DropReason::BadSource, "RoCE from {src}");
        assert_eq!(drop_reason(from_ip(ping6(), src.into())), DropReason::BadSource, "ping from {src}");
        if !src.is_unspecified() {
            let solicitation = from_ip(solicitation(), src.into());
            assert_eq!(drop_reason(solicitation), DropReason::BadSource, "solicitation from {src}");
        }
    }
    let ip = IpAddrs::V4 { src: Ipv4Addr::new(10, 77, 0, 1), dst: own.ipv4 };
    for src in [MacAddr::BROADCAST, MacAddr([1, 0, 0x5e, 0, 0, 1]), MacAddr::default()] {
        assert_eq!(drop_reason(send_from(src, ip)), DropReason::BadSource, "RoCE from {src}");
    }
    assert_eq!(drop_reason(send_from(mac(2), ip)), DropReason::Reflected);
    for (at, question) in [(22, arp_request()), (80, solicitation())] {
        for claimed in [mac(2), MacAddr::BROADCAST, MacAddr::default()] {
            let mut question = replace_mac(question.clone(), at, claimed);
            if at == 80 {
                question = from_ip(question, PEER.into());
            }
            assert_eq!(drop_reason(question), DropReason::BadSource, "claims to be at {claimed}");
        }
    }
    assert!(port().receive(NOW, &send_from(mac(1), ip), Offload::None, &mut TxBatch::default()).is_some());
}

#[test]
fn packet_from_configured_ip_requires_configured_mac() {
    let mut port = port();
    let (configured, own) = (Identity::from_lid(Lid::new(1)), Identity::from_lid(Lid::new(2)));
    port.add_static_neighbour(&configured);
    let v4 = IpAddrs::V4 { src: configured.ipv4, dst: own.ipv4 };
    let v6 = IpAddrs::V6 { src: configured.link_local(), dst: own.link_local() };
    let mut out = TxBatch::default();
    for (dropped, frame) in [
        send_from(mac(3), v4),
        send_from(mac(3), v6),
        replace_mac(ping(), 6, mac(3)),
        replace_mac(ping6(), 6, mac(3)),
        replace_mac(arp_request(), 22, mac(3)),
        from_ip(replace_mac(replace_mac(solicitation(), 6, mac(3)), 80, mac(3)), PEER.into()),
    ]
    .into_iter()
    .enumerate()
    {
        assert_eq!(port.receive(NOW, &frame, Offload::None, &mut out), None);
        assert_eq!(port.stats().dropped(DropReason::ForeignSource), dropped as u64 + 1, "{frame:02x?}");
    }
    assert!(out.is_empty());
    for ip in [v4, v6] {
        assert!(port.receive(NOW, &send_from(mac(1), ip), Offload::None, &mut out).is_some());
    }
    let stranger = IpAddrs::V4 { src: Ipv4Addr::new(10, 77, 0, 9), dst: own.ipv4 };
    assert!(
        port.receive(NOW, &send_from(mac(3), stranger), Offload::None, &mut out).is_some(),
        "any host may use an IP address that is not configured"
    );
}

/// RFC 4861, sections 4.3 and 7.1.1: requirements on solicitations.
#[test]
fn invalid_solicitations_are_dropped() {
    let mut without_mac = solicitation();
    without_mac.truncate(78);
    without_mac[19] = 24;
    assert_eq!(drop_reason(from_ip(without_mac, PEER.into())), DropReason::Invalid);
    let unicast = from_ip(unicast_solicitation(), Ipv6Addr::UNSPECIFIED.into());
    assert_eq!(drop_reason(unicast), DropReason::Invalid);
}

/// IEEE 802.1Q-2018, section 6.9: VLAN ID 0 does not denote a VLAN.
#[test]
fn vlan_frames_are_dropped_unless_priority_tagged() {
    let tagged = |frame: &[u8], tag: [u8; 4]| [&frame[..12], &tag, &frame[12..]].concat();
    let mut port = port();
    for frame in [roce("rc_write_only"), ping(), arp_request(), solicitation()] {
        let urgent = tagged(&frame, [0x81, 0x00, 0xe0, 0x00]);
        assert_eq!(port.untag(&urgent).unwrap(), frame);
        assert_eq!(port.untag(&frame).unwrap(), frame);
        assert_eq!(port.untag(&tagged(&frame, [0x81, 0x00, 0xe0, 0x05])), None);
    }
    assert_eq!(port.stats().dropped(DropReason::Vlan), 4);
    let mut twice = tagged(&tagged(&ping(), [0x81, 0x00, 0, 5]), [0x81, 0x00, 0, 0]);
    twice = port.untag(&twice).unwrap().into_owned();
    assert_eq!(drop_reason(twice), DropReason::Protocol);
}

/// Returns an 8-byte datagram, built with scapy 2.8.0. fe80::ff:fe00:1 sends it to QP ffffff of IPoIB's broadcast
/// group, with Q_Key b1b.
fn datagram_to_group() -> Vec<u8> {
    frame(
        "3333ffffffff02000000000186dd6000000000281101fe80000000000000000000fffe000001ff12401bffff000000000000ffff\
         ffffc00112b70028d4aa6440ffff00ffffff0000000700000b1b0000001468616c6c6f2121219420b1e4",
    )
}

#[test]
fn multicast_requires_matching_group_addresses() {
    let mut port = port();
    let frame = datagram_to_group();
    let roce = port.receive(Instant::ZERO, &frame, Offload::None, &mut TxBatch::default()).unwrap();
    assert_eq!((roce.packet.bth.dest_qp.get(), roce.packet.payload), (0xff_ffff, &b"hallo!!!"[..]));
    assert_eq!(port.stats().roce, 1);
    for dst in [[0x33, 0x33, 0xff, 0xff, 0xff, 0xfe], [0x01, 0x00, 0x5e, 0x7f, 0xff, 0xff], [0xff; 6]] {
        let frame = [&dst, &frame[6..]].concat();
        assert_eq!(drop_reason(frame), DropReason::OtherMac);
    }
    let ours = [&[2, 0, 0, 0, 0, 2], &frame[6..]].concat();
    assert_eq!(drop_reason(ours), DropReason::OtherIp, "a unicast frame must not have a group's IP address");
}

#[test]
fn dropped_frames_are_counted_by_reason() {
    let edit = |mut frame: Vec<u8>, at: usize, byte: u8| {
        frame[at] = byte;
        frame
    };
    let roce = || roce("rc_ack");
    let last = roce().len() - 1;
    for (reason, frame) in [
        (DropReason::OtherMac, edit(roce(), 5, 3)),
        (DropReason::OtherMac, [vec![0xff; 6], roce()[6..].to_vec()].concat()),
        (DropReason::OtherMac, [vec![0xff; 6], ping()[6..].to_vec()].concat()),
        (DropReason::BadSource, edit(roce(), 6, 3)),
        (DropReason::Protocol, edit(roce(), 12, 0x88)),
        (DropReason::Protocol, pong_to_us()),
        (DropReason::Short, roce()[..13].to_vec()),
        (DropReason::Short, roce()[..last].to_vec()),
        (DropReason::Invalid, edit(arp_request(), 15, 6)),
        (DropReason::Checksum, edit(ping(), 22, 63)),
        (DropReason::Checksum, edit(ping(), 50, 0)),
        (DropReason::Icrc, edit(roce(), last, 0)),
        (DropReason::OtherIp, ping_to_other_ip()),
        (DropReason::OtherIp, edit(ping6(), 53, 3)),
        (DropReason::OtherMac, edit(solicitation(), 5, 3)),
        (DropReason::OtherIp, edit(solicitation(), 38, 0xfe)),
        (DropReason::Checksum, edit(ping6(), 62, 0)),
        (DropReason::Invalid, edit(solicitation(), 21, 254)),
        (DropReason::Protocol, edit(ping6(), 20, 6)),
        (DropReason::BadSource, our_own_solicitation()),
    ] {
        assert_eq!(drop_reason(frame.clone()), reason, "{frame:02x?}");
    }
}

/// Returns an unsolicited echo reply: `pong` with the addresses of `ping`.
fn pong_to_us() -> Vec<u8> {
    let mut frame = pong();
    frame[..12].copy_from_slice(&ping()[..12]);
    frame[26..34].copy_from_slice(&ping()[26..34]);
    frame
}

/// Returns a ping to the port's MAC but to another IP address, with a valid checksum.
fn ping_to_other_ip() -> Vec<u8> {
    let mut frame = ping();
    frame[33] = 3;
    frame[25] -= 1;
    frame
}

/// Link-local address derived from LID 1.
const PEER: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0xff, 0xfe00, 1);

/// Returns a solicitation for fe80::ff:fe00:2, built with scapy 2.8.0. fe80::ff:fe00:1 at 02:00:00:00:00:01 sends it to
/// the solicited-node group.
fn solicitation() -> Vec<u8> {
    frame(
        "3333ff00000202000000000186dd6000000000203afffe80000000000000000000fffe000001ff0200000000000000000001ff00\
         000287007c9700000000fe80000000000000000000fffe0000020101020000000001",
    )
}

/// Returns a solicitation that is sent to the requested address itself and lacks the sender's MAC address, built with
/// scapy 2.8.0.
fn unicast_solicitation() -> Vec<u8> {
    frame(
        "02000000000202000000000186dd6000000000183afffe80000000000000000000fffe000001fe80000000000000000000fffe00\
         00028700802500000000fe80000000000000000000fffe000002",
    )
}

/// Returns the reply to `solicitation`, built with scapy 2.8.0: an advertisement with the Solicited and Override flags.
fn advertisement() -> Vec<u8> {
    frame(
        "02000000000102000000000286dd6000000000203afffe80000000000000000000fffe000002fe80000000000000000000fffe00\
         000188001b1a60000000fe80000000000000000000fffe0000020201020000000002",
    )
}

/// Returns a duplicate address probe from LID 1 for the address of LID 2, built with scapy 2.8.0.
fn probe6() -> Vec<u8> {
    frame(
        "3333ff00000202000000000186dd6000000000183aff00000000000000000000000000000000ff0200000000000000000001ff00\
         000287007d2300000000fe80000000000000000000fffe000002",
    )
}

/// Returns the reply to `probe6`, built with scapy 2.8.0: an advertisement to all nodes with the Override flag.
fn probe6_reply() -> Vec<u8> {
    frame(
        "33330000000102000000000286dd6000000000203afffe80000000000000000000fffe000002ff02000000000000000000000000\
         00018800599820000000fe80000000000000000000fffe0000020201020000000002",
    )
}

/// Returns an echo request from fe80::ff:fe00:1 with identifier 4321h and sequence 7, built with scapy 2.8.0. [`pong6`]
/// is its reply.
fn ping6() -> Vec<u8> {
    frame(
        "02000000000202000000000186dd6000000000113a40fe80000000000000000000fffe000001fe80000000000000000000fffe00\
         0002800086e043210007686361642070696e67",
    )
}

fn pong6() -> Vec<u8> {
    frame(
        "02000000000102000000000286dd6000000000113a40fe80000000000000000000fffe000002fe80000000000000000000fffe00\
         0001810085e043210007686361642070696e67",
    )
}

/// Returns a solicitation whose source address is also its target.
fn our_own_solicitation() -> Vec<u8> {
    let mut frame = solicitation();
    // The checksum is the complement of a sum of 16-bit words. Adding 1 to a word therefore subtracts 1 from
    // the checksum.
    frame[37] = 2;
    let sum = u16::from_be_bytes([frame[56], frame[57]]) - 1;
    frame[56..58].copy_from_slice(&sum.to_be_bytes());
    frame
}

fn replace_mac(mut frame: Vec<u8>, at: usize, mac: MacAddr) -> Vec<u8> {
    frame[at..at + 6].copy_from_slice(&mac.0);
    frame
}

#[test]
fn ipv6_packets_are_delivered() {
    let mut port = port();
    let frame = roce("v6_rc_ack");
    let mut out = TxBatch::default();
    assert!(port.receive(NOW, &frame, Offload::None, &mut out).is_some());
    assert_eq!((out.len(), port.stats().roce), (0, 1));
}

#[test]
fn solicitations_are_answered_and_update_neighbours() {
    let mut port = port();
    assert_eq!(answers(&mut port, &[solicitation()]), [(mac(1), advertisement())]);
    assert_eq!(port.stats().neighbour_discovery, 1);
    assert_eq!(known(&mut port, PEER), Some(mac(1)));
}

/// Returns [`advertisement`] without its target link-layer address option.
fn short_advertisement() -> Vec<u8> {
    let mut frame = advertisement();
    frame.truncate(78);
    frame[19] = 24;
    from_ip(frame, Identity::from_lid(Lid::new(2)).link_local().into())
}

/// RFC 4861, section 7.2.4: the reply may omit the MAC address if the solicitation was already sent to it.
#[test]
fn solicitation_without_mac_is_answered() {
    let mut port = port();
    assert_eq!(answers(&mut port, &[unicast_solicitation()]), [(mac(1), short_advertisement())]);
    assert_eq!(known(&mut port, PEER), None);
}

/// RFC 4861, section 7.2.4: the reply is addressed to all nodes. RFC 6085: the frame is sent only to the probing node.
#[test]
fn duplicate_address_probe_is_answered() {
    let answer = replace_mac(probe6_reply(), 0, mac(1));
    assert_eq!(answers(&mut port(), &[probe6()]), [(mac(1), answer)]);
}

#[test]
fn link_local_and_global_addresses_are_answered() {
    let global: Ipv6Addr = "2001:db8::ff:fe00:2".parse().unwrap();
    let mut port = Port::new(Identity { ipv6: Some(global), ..Identity::from_lid(Lid::new(2)) });
    assert_eq!(answers(&mut port, &[solicitation(), ping6()]).len(), 2);
    let mut out = TxBatch::default();
    Port::new(Identity::from_lid(Lid::new(1))).send_request(global.into(), &mut out);
    let request = out.last().unwrap().to_vec();
    let replies = answers(&mut port, &[request]);
    assert_eq!(replies.len(), 1);
    assert_eq!(replies[0].1[62..78], global.octets(), "the reply advertises the requested address");
}

#[test]
fn unknown_ipv6_neighbours_are_resolved() {
    let mut port = Port::new(Identity::from_lid(Lid::new(1)));
    let ip: IpAddr = Identity::from_lid(Lid::new(2)).link_local().into();
    assert_eq!(port.resolve(NOW, ip), Resolved { mac: None, request: true });
    let mut out = TxBatch::default();
    port.send_request(ip, &mut out);
    assert_eq!(out.last().unwrap(), solicitation());
    assert_eq!(answers(&mut port, &[advertisement()]), []);
    assert_eq!(known(&mut port, ip), Some(mac(2)));
}

/// RFC 4861, section 7.2.5: an advertisement without the Override flag fills an incomplete entry, but does not replace
/// the MAC address of a complete one.
#[test]
fn only_overriding_advertisement_replaces_mac() {
    let ip = Identity::from_lid(Lid::new(2)).link_local();
    let from = |n, overrides| {
        let fields = Advertisement { target: ip, target_mac: Some(mac(n)), solicited: true, overrides };
        let mut frame = Vec::new();
        fields.emit_frame(mac(n), mac(1), Identity::from_lid(Lid::new(1)).link_local(), &mut frame);
        frame
    };
    let mut port = Port::new(Identity::from_lid(Lid::new(1)));
    port.resolve(NOW, ip.into());
    for (n, overrides, learned) in [(2, false, 2), (7, false, 2), (8, true, 8), (9, false, 8)] {
        assert_eq!(answers(&mut port, &[from(n, overrides)]), []);
        assert_eq!(known(&mut port, ip), Some(mac(learned)), "{n} {overrides}");
    }
}

#[test]
fn misdirected_and_conflicting_advertisements_are_ignored() {
    let mut port = Port::new(Identity::from_lid(Lid::new(9)));
    let frame = replace_mac(advertisement(), 0, mac(9));
    answers(&mut port, &[frame]);
    assert_eq!(
        port.stats().dropped(DropReason::OtherIp),
        1,
        "an advertisement to another IP address is dropped"
    );

    let mut port = self::port();
    let to_us = replace_mac(probe6_reply(), 6, mac(7));
    assert_eq!(answers(&mut port, &[to_us]), []);
    assert_eq!(port.stats().dropped(DropReason::BadSource), 1);
}

#[test]
fn ipv6_pings_are_answered() {
    let mut port = port();
    assert_eq!(answers(&mut port, &[ping6()]), [(mac(1), pong6())]);
    assert_eq!(port.stats().echo, 1);
}
