//! Tests a device that is both an HCA and a NIC, as seen by the guest's network stack and by other hosts.

use std::os::unix::net::UnixDatagram;

use super::impairments::captured;
use super::*;
use crate::fabric::impair::{Rule, RuleEntry};
use crate::fabric::local::Networks;
use crate::fabric::ring::RingFabric;
use crate::fabric::tap::TapFabric;
use crate::fabric::udp::{UdpFabric, UdpPeer};
use crate::fabric::{Fabric, MAX_FRAME_LEN, RxBatch, Sent};
use crate::net::{RoceAddress, Traffic};
use crate::replay::testing::{assert_same, record, recorded};

/// A device that has QPs, like [`Stub`], and a NIC without filters.
#[derive(Default)]
struct Nic {
    stub: Stub,
    to_send: VecDeque<Vec<u8>>,
    received: Vec<Vec<u8>>,
    deadline: Option<Instant>,
    link: Vec<bool>,
}

impl Frontend for Nic {
    type Host<'a> = StubHost<'a>;
    type Counters = ();

    const KEY: &'static str = "stub_nic";
    const IGNORE_REASONS: &'static [&'static [IgnoreReason]] = &[];
    const TABLES: &'static [Table<Self>] = &[];

    fn pci(&self) -> PciFunction {
        self.stub.pci()
    }

    fn port_kind(&self, _: PortNumber) -> PortKind {
        PortKind::Nic
    }

    fn receive_frame(&mut self, _: &mut Context<'_>, frame: &[u8]) {
        self.received.push(frame.to_vec());
    }

    fn poll_frame(&mut self, _: &mut Context<'_>, out: &mut Vec<u8>) -> bool {
        self.to_send.pop_front().inspect(|frame| out.extend_from_slice(frame)).is_some()
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.deadline
    }

    fn handle_deadline(&mut self, cx: &mut Context<'_>) {
        self.stub.log.push(format!("deadline {:?}", cx.now));
        self.deadline = None;
    }

    fn bar_read(&mut self, cx: &mut Context<'_>, bar: Bar, offset: u64, data: &mut [u8]) {
        self.stub.bar_read(cx, bar, offset, data);
    }

    fn bar_write(&mut self, cx: &mut Context<'_>, bar: Bar, offset: u64, data: &[u8]) {
        self.stub.bar_write(cx, bar, offset, data);
    }

    fn register_name(&self, _: &RegisterAccess<'_>) -> Option<String> {
        None
    }

    fn describe_access(&self, _: &RegisterAccess<'_>, _: &mut dyn Visitor) {}

    fn host<'a>(&'a mut self, cx: HostContext<'a>) -> StubHost<'a> {
        self.stub.host(cx)
    }

    fn handle_event(&mut self, cx: &mut Context<'_>, event: &Event) {
        self.stub.handle_event(cx, event);
    }

    fn end_turn(&mut self, cx: &mut Context<'_>) -> bool {
        self.stub.end_turn(cx)
    }

    fn link_changed(&mut self, cx: &mut Context<'_>, up: bool) {
        assert_eq!((cx.port.is_up(), cx.is_port_active()), (up, up));
        self.link.push(up);
    }

    fn fail(&mut self, _: &mut Context<'_>) {}

    fn counters(&self) {}

    fn reset(&mut self) {
        self.to_send.clear();
    }
}

fn nic(lid: u16) -> Hca<Nic> {
    let mut hca = Hca::new(Nic::default(), Identity::from_lid(Lid::new(lid)), None);
    hca.region_write(Region::Config, 4, &[6, 0]);
    hca
}

/// Returns a frame of a protocol that no device handles.
fn plain(dst: MacAddr, src: MacAddr, len: usize) -> Vec<u8> {
    let head = [&dst.0[..], &src.0, &[0x88, 0xb5]].concat();
    let body = (0_u8..=255).cycle().take(len - head.len());
    head.into_iter().chain(body).collect()
}

fn mac(lid: u16) -> MacAddr {
    MacAddr::from_lid(Lid::new(lid))
}

/// Returns a RoCE packet from LID 9 to LID 1.
fn roce_for_lid_1() -> Vec<u8> {
    let mut sender = ready();
    sender.port.addresses_mut().own = Identity::from_lid(Lid::new(9));
    sender.region_write(Region::Bar(Bar::Bar0), 8, &[1]);
    sender.drain();
    from_lid_9(sender.outbound().last().unwrap())
}

/// Runs turns until no frames are left. Returns the lengths of the frames sent in each turn.
fn turns(hca: &mut Hca<Nic>) -> Vec<Vec<usize>> {
    let mut turns = Vec::new();
    loop {
        let left = hca.drain();
        turns.push(hca.outbound().iter().map(|(_, frame)| frame.len()).collect());
        hca.outbound().clear();
        if !left.frames {
            return turns;
        }
    }
}

/// An ARP request built with scapy 2.8.0. It asks for the MAC of 10.77.0.2 and comes from 10.77.0.1 at
/// 02:00:00:00:00:01.
const ARP_REQUEST: [u8; 42] = [
    0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 1, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1, 10,
    77, 0, 1, 0, 0, 0, 0, 0, 0, 10, 77, 0, 2,
];

#[test]
fn port_with_nic_leaves_arp_to_guest() {
    let mut hca = nic(2);
    hca.handle_frame(&ARP_REQUEST);
    assert!(turns(&mut hca).concat().is_empty());
    assert_eq!(hca.frontend.received, [ARP_REQUEST]);
    assert_eq!((hca.port_stats().arp, hca.port_stats().nic_receive.packets), (0, 1));

    let mut other = Hca::new(Stub::default(), Identity::from_lid(Lid::new(2)), None);
    other.handle_frame(&ARP_REQUEST);
    assert_eq!(other.outbound().len(), 1, "without a NIC, the port replies");
}

#[test]
fn nic_receives_all_frames_unmodified() {
    let mut hca = nic(2);
    let tag = [0x81, 0x00, 0x00, 0x05];
    let tagged = [&plain(mac(2), mac(1), 60)[..12], &tag, &[0x08, 0x00, 1, 2, 3]].concat();
    let priority = [&plain(mac(2), mac(1), 60)[..12], &[0x81, 0x00, 0xe0, 0x00], &[0x08, 0x00]].concat();
    // Without an RDMA driver, UDP port 4791 is not special (E810 interface, section 16.2).
    let roce = roce_for_lid_1();
    let frames = [
        plain(mac(7), mac(1), 60),
        plain(MacAddr::BROADCAST, mac(1), 60),
        plain(MacAddr([0x33, 0x33, 0, 0, 0, 1]), mac(1), 14),
        plain(mac(2), mac(1), MAX_FRAME_LEN),
        tagged,
        priority,
        roce,
    ];
    frames.iter().for_each(|frame| hca.handle_frame(frame));
    assert_eq!(hca.frontend.received, frames);
    let stats = *hca.port_stats();
    let octets = frames.iter().map(|frame| frame.len() as u64).sum();
    assert_eq!(stats.nic_receive, Traffic { packets: 7, multicast_packets: 2, octets });
    assert_eq!((stats.roce, stats.receive), (0, Traffic::default()));

    hca.handle_frame(&plain(MacAddr::BROADCAST, mac(2), 60));
    hca.handle_frame(&[0; 13]);
    assert_eq!(hca.frontend.received.len(), 7, "the device's own frame and a short frame are dropped");
    assert_eq!(
        [DropReason::Reflected, DropReason::Short].map(|reason| hca.port_stats().dropped(reason)),
        [1, 1]
    );
}

#[test]
fn loopback_disconnects_port_from_wire() {
    let mut hca = nic(2);
    assert!(hca.port.set_loopback(true));
    let sent = [plain(MacAddr::BROADCAST, mac(2), 60), plain(mac(1), mac(2), 9728)];
    hca.frontend.to_send.extend(sent.clone());
    hca.handle_frame(&plain(mac(2), mac(1), 60));
    assert!(turns(&mut hca).concat().is_empty());
    // Frames are looped back one turn after they are sent.
    assert!(!hca.drain().other);
    assert!(hca.frontend.received == sent);
    assert_eq!(hca.port_stats().dropped(DropReason::Loopback), 1);
    // Send more frames than fit into one turn.
    hca.frontend.to_send.extend(vec![sent[0].clone(); 1000]);
    while hca.drain() != (WorkLeft { frames: false, other: false }) {}
    assert_eq!((hca.frontend.received.len(), hca.outbound().len()), (1002, 0));
    hca.port.reset();
    hca.frontend.to_send.extend(sent);
    assert_eq!(turns(&mut hca).concat(), [60, 9728]);
}

#[test]
fn roce_frames_go_to_rdma_while_rdma_is_enabled() {
    let mut hca = nic(1);
    hca.port.set_rdma(true);
    let roce = roce_for_lid_1();
    hca.handle_frame(&roce);
    assert_eq!((hca.port_stats().roce, hca.frontend.received.len()), (1, 0));
    let mut others = [roce.clone(), roce.clone(), plain(mac(1), mac(9), 60)];
    // Send the first frame to another MAC, and the second one to another UDP port.
    others[0][5] = 3;
    others[1][37] += 1;
    others.iter().for_each(|frame| hca.handle_frame(frame));
    assert!(hca.frontend.received == others);
    // The guest chooses its IP addresses and VLANs, so RoCE packets go to the RDMA engine regardless of destination IP
    // address and VLAN.
    hca.port.addresses_mut().own.ipv4 = Ipv4Addr::new(10, 77, 0, 3);
    hca.handle_frame(&roce);
    let tagged = [&roce[..12], &[0x81, 0x00, 0x60, 0x05], &roce[12..]].concat();
    hca.handle_frame(&tagged);
    assert_eq!((hca.port_stats().roce, hca.frontend.received.len()), (3, 3));
    hca.port.set_rdma(false);
    hca.handle_frame(&roce);
    hca.handle_frame(&tagged);
    assert_eq!((hca.port_stats().roce, hca.frontend.received.len()), (3, 5));
}

#[test]
fn rdma_receives_only_packets_to_its_addresses() {
    let mut hca = nic(1);
    let ip = Identity::from_lid(Lid::new(1)).ipv4.into();
    let address = RoceAddress { mac: mac(1), ip, vlan: None };
    hca.port.set_roce_addresses(vec![address]);
    let roce = roce_for_lid_1();
    let tagged = |tci: u8| [&roce[..12], &[0x81, 0x00, 0x60, tci], &roce[12..]].concat();
    let mut counts = |frame: &[u8]| {
        hca.handle_frame(frame);
        (hca.port_stats().roce, hca.frontend.received.len())
    };
    assert_eq!([counts(&roce), counts(&tagged(0)), counts(&tagged(5))], [(1, 0), (2, 0), (2, 1)]);
    // The MAC of a RoCE address can differ from the port's MAC.
    let other = RoceAddress { mac: mac(7), vlan: Some(5), ..address };
    hca.port.set_roce_addresses(vec![other]);
    let mut to_other = tagged(5);
    to_other[..6].copy_from_slice(&mac(7).0);
    let mut counts = |frame: &[u8]| {
        hca.handle_frame(frame);
        (hca.port_stats().roce, hca.frontend.received.len())
    };
    assert_eq!([counts(&roce), counts(&tagged(5)), counts(&to_other)], [(2, 2), (2, 3), (3, 3)]);
    assert!(hca.port.is_own_mac(mac(7)) && hca.port.is_own_mac(mac(1)) && !hca.port.is_own_mac(mac(2)));
}

/// The guest may run its own RoCE software, such as soft-RoCE, which checks the ICRC of frames to the NIC.
#[test]
fn frames_to_nic_have_icrc() {
    let mut hca = nic(2);
    let roce = roce_for_lid_1();
    let mut unsealed = roce.clone();
    unsealed.iter_mut().rev().take(4).for_each(|byte| *byte = 0);
    hca.handle_arrival(Arrival::new(&unsealed, Offload::Icrc));
    hca.handle_arrival(Arrival::new(&[0; 13], Offload::Icrc));
    assert_eq!(hca.frontend.received, [roce]);
    hca.port.set_rdma(true);
    unsealed[..6].copy_from_slice(&mac(2).0);
    hca.handle_arrival(Arrival::new(&unsealed, Offload::Icrc));
    assert_eq!((hca.port_stats().roce, hca.frontend.received.len()), (1, 1), "the engine needs no ICRC");
}

/// A NIC's driver receives frames as they would appear on a wire.
#[test]
fn nic_receives_each_packet_in_its_own_frame() {
    let mut hca = nic(1);
    let (frame, packets) = frame_of_four_packets();
    hca.handle_arrival(Arrival::new(&frame, Offload::Segmentation(Mtu::Mtu256)));
    hca.handle_arrival(Arrival::new(&frame[..100], Offload::Segmentation(Mtu::Mtu256)));
    assert_eq!(hca.frontend.received, packets);
    assert_eq!(hca.port_stats().dropped(DropReason::Short), 1);
}

#[test]
fn nic_mac_is_restored_by_reset() {
    let mut hca = nic(1);
    hca.port.set_rdma(true);
    hca.port.set_mac(mac(7));
    let to_old = roce_for_lid_1();
    let mut to_new = to_old.clone();
    to_new[..6].copy_from_slice(&mac(7).0);
    hca.handle_frame(&to_old);
    hca.handle_frame(&to_new);
    assert_eq!((hca.port_stats().roce, &hca.frontend.received), (1, &vec![to_old.clone()]));
    hca.reset();
    hca.region_write(Region::Config, 4, &[6, 0]);
    hca.handle_frame(&to_old);
    assert_eq!(
        (hca.port_stats().roce, hca.frontend.received.len()),
        (1, 2),
        "the reset disables the RDMA half"
    );
    hca.port.set_rdma(true);
    hca.handle_frame(&to_old);
    assert_eq!(hca.port_stats().roce, 2);
}

#[test]
fn nic_frames_are_unmodified_and_length_checked() {
    let mut hca = nic(2);
    let guest_mac = MacAddr([0x52, 0x54, 0, 1, 2, 3]);
    let frames = [
        plain(mac(1), mac(2), 60),
        plain(MacAddr::BROADCAST, guest_mac, 14),
        plain(mac(2), guest_mac, MAX_FRAME_LEN),
    ];
    hca.frontend.to_send =
        [vec![0; 13], vec![0; MAX_FRAME_LEN + 1]].into_iter().chain(frames.clone()).collect();
    assert_eq!(hca.drain(), WorkLeft { frames: false, other: false });
    let sent: Vec<_> = hca.outbound().iter().map(|(dst, frame)| (dst, frame.to_vec())).collect();
    let [one, all, own] = frames;
    assert_eq!(sent, [(mac(1), one), (MacAddr::BROADCAST, all), (mac(2), own)]);
    let stats = hca.port_stats();
    let octets = 60 + 14 + MAX_FRAME_LEN as u64;
    assert_eq!(stats.nic_transmit, Traffic { packets: 3, multicast_packets: 1, octets });
    assert_eq!(stats.lost_malformed, 2);
}

#[test]
fn engine_and_nic_alternate_after_at_most_32_frames() {
    let mut hca = nic(9);
    // The doorbell makes QP 1 send one packet to LID 1. Its length distinguishes it from the NIC's frames.
    hca.region_write(Region::Bar(Bar::Bar0), 8, &[1]);
    hca.frontend.to_send = vec![plain(mac(1), mac(9), 1000); 300].into();
    let turns = turns(&mut hca);
    assert_eq!(turns.iter().map(Vec::len).collect::<Vec<_>>(), [128, 128, 45]);
    assert_ne!(turns[0][0], 1000, "the engine's packet is sent first");
    assert!(turns.concat()[1..].iter().all(|len| *len == 1000));

    // The engine sends after at most 32 NIC frames, even if the NIC has more.
    let mut hca = nic(9);
    hca.sender = Sender::Nic;
    hca.region_write(Region::Bar(Bar::Bar0), 8, &[1]);
    hca.frontend.to_send = vec![plain(mac(1), mac(9), 1000); 100].into();
    let sent = self::turns(&mut hca).concat();
    assert_eq!((sent.iter().position(|len| *len != 1000), sent.len()), (Some(32), 101));
}

/// Returns a device whose NIC has more long frames queued than one turn may send to a shared-memory fabric.
fn nic_with_long_frames() -> Hca<Nic> {
    let mut hca = nic(9);
    hca.frontend.to_send = vec![plain(mac(1), mac(9), 9000); 70].into();
    hca
}

fn lengths_of_turns(hca: &mut Hca<Nic>) -> Vec<usize> {
    turns(hca).iter().map(Vec::len).collect()
}

#[test]
fn long_frames_are_limited_per_turn() {
    // The thirtieth frame takes the total past 256 KiB.
    let expected = [("local", vec![30, 30, 10]), ("udp", vec![70]), ("tap", vec![70])];
    for ((name, [fabric, _]), expected) in fabrics().into_iter().zip(expected) {
        let mut hca = nic_with_long_frames().with_turn_bytes(fabric.turn_bytes());
        assert_eq!((name, lengths_of_turns(&mut hca)), expected);
    }
}

#[test]
fn replayed_turns_send_as_many_frames_as_recorded() {
    let records = recorded(|| {
        let mut hca = nic_with_long_frames().with_turn_bytes(usize::MAX);
        let recorder = record().unwrap();
        hca.set_record_sink(recorder.sink());
        lengths_of_turns(&mut hca);
    });
    assert_eq!(assert_same(&mut nic_with_long_frames(), &records[0]).frames, 70);
}

#[test]
fn nic_deadline_is_handled_when_due() {
    let mut hca = nic(2);
    let at = |millis: u64| Instant::from_nanos(millis * 1_000_000);
    assert_eq!(hca.next_deadline(), None);
    hca.frontend.deadline = Some(at(10));
    assert_eq!(hca.next_deadline(), Some(at(10)));
    hca.set_now(at(9));
    hca.handle_deadline();
    assert_eq!(hca.next_deadline(), Some(at(10)), "a deadline must not be handled early");
    hca.set_now(at(11));
    hca.handle_deadline();
    assert_eq!(
        (hca.next_deadline(), &*hca.frontend.stub.log),
        (None, &[format!("deadline {:?}", at(11))][..])
    );
}

#[test]
fn link_down_stops_frames_and_notifies_nic() {
    let mut hca = nic(2);
    hca.set_link(false);
    hca.handle_frame(&ARP_REQUEST);
    hca.frontend.to_send.push_back(plain(mac(1), mac(2), 60));
    hca.drain();
    assert!(
        hca.outbound().is_empty() && hca.frontend.to_send.is_empty(),
        "descriptors must complete even while the link is down"
    );
    assert!(hca.frontend.received.is_empty());
    let stats = hca.port_stats();
    assert_eq!((stats.lost_link_down, stats.dropped(DropReason::LinkDown)), (1, 1));
    assert_eq!(stats.nic_transmit, Traffic::default());
    hca.set_link(true);
    hca.handle_frame(&ARP_REQUEST);
    assert_eq!(hca.frontend.received.len(), 1);
    assert_eq!(hca.frontend.link, [false, true]);
}

/// Sends two frames with the source IP address of LID 1: a datagram from the RDMA engine and a plain frame.
fn send_as_lid_1(hca: &mut Hca<Nic>) {
    let own = hca.mac();
    let ipv4 = [&[0x45; 12][..], &[10, 77, 0, 1], &[0; 40]].concat();
    hca.frontend.to_send.push_back([&mac(2).0[..], &own.0, &[0x08, 0x00], &ipv4].concat());
    hca.region_write(Region::Bar(Bar::Bar0), 16, &[0; 4]);
    hca.drain();
    assert_eq!(hca.outbound().len(), 2);
}

#[test]
fn frames_with_foreign_source_ip_are_dropped() {
    let identity = |lid| Identity::from_lid(Lid::new(lid));
    let folder = tempfile::tempdir().unwrap();
    let mut networks = Networks::default();
    let local =
        [7, 1, 2].map(|lid| Box::new(networks.network("a").join(&identity(lid)).unwrap()) as Box<dyn Fabric>);
    let ring = [7, 1, 2]
        .map(|lid| Box::new(RingFabric::join(folder.path(), &identity(lid)).unwrap()) as Box<dyn Fabric>);
    for mut members in [local, ring] {
        for _ in 0..8 {
            members.iter_mut().for_each(|member| member.handle_ready().unwrap());
        }
        let [own, owner, listener] = &mut members;
        let mut arrived = || {
            let (mut batch, mut frames) = (RxBatch::new(), 0);
            loop {
                listener.recv(&mut batch).unwrap();
                if batch.is_empty() {
                    return frames;
                }
                frames += batch.len();
            }
        };
        let mut hca = nic(7);
        send_as_lid_1(&mut hca);
        own.send(hca.outbound());
        assert_eq!((own.stats().tx_foreign_ip, own.stats().tx_frames, arrived()), (2, 0, 0));
        let mut hca = nic(1);
        send_as_lid_1(&mut hca);
        owner.send(hca.outbound());
        assert_eq!((owner.stats().tx_foreign_ip, arrived()), (0, 2));
    }
}

/// Returns a `local`, a `udp` and a `tap` fabric. Each consists of two connected ends, for LID 1 and LID 2.
fn fabrics() -> Vec<(&'static str, [Box<dyn Fabric>; 2])> {
    let mut networks = Networks::default();
    let local = [1, 2].map(|lid| {
        Box::new(networks.network("a").join(&Identity::from_lid(Lid::new(lid))).unwrap()) as Box<dyn Fabric>
    });

    let mut udp = [1, 2].map(|lid| UdpFabric::bind("127.0.0.1:0".parse().unwrap(), mac(lid), &[]).unwrap());
    let [a, b] = udp.each_ref().map(|fabric| fabric.local_addr().unwrap());
    for (fabric, other) in udp.iter_mut().zip([b, a]) {
        fabric.switch().unwrap().add(UdpPeer::at(other)).unwrap();
    }
    let udp = udp.map(|fabric| Box::new(fabric) as Box<dyn Fabric>);

    let (a, b) = UnixDatagram::pair().unwrap();
    let tap = [a, b].map(|socket| {
        socket.set_nonblocking(true).unwrap();
        Box::new(TapFabric::on(socket.into())) as Box<dyn Fabric>
    });
    vec![("local", local), ("udp", udp), ("tap", tap)]
}

/// Runs turns on both devices until no frames are left.
fn exchange<A: Frontend, B: Frontend>(
    a: &mut Hca<A>,
    b: &mut Hca<B>,
    [to_a, to_b]: &mut [Box<dyn Fabric>; 2],
) {
    fn turn<F: Frontend>(hca: &mut Hca<F>, fabric: &mut dyn Fabric, batch: &mut RxBatch) -> bool {
        fabric.recv(batch).unwrap();
        batch.iter().for_each(|arrival| hca.handle_arrival(arrival));
        let left = hca.drain();
        let sent = !hca.outbound().is_empty();
        // Frames that do not fit into the other end's buffer are sent later.
        let blocked = fabric.send(hca.outbound()) == Sent::Blocked;
        left.frames || left.other || sent || blocked || !batch.is_empty()
    }
    let mut batch = RxBatch::new();
    while turn(a, &mut **to_a, &mut batch) | turn(b, &mut **to_b, &mut batch) {}
}

#[test]
fn nics_exchange_frames_over_local_udp_and_tap_fabrics() {
    for (name, mut ends) in fabrics() {
        ends.iter_mut().for_each(|end| end.set_promiscuous());
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.pcapng");
        let (mut a, mut b) = (nic(1), nic(2));
        a.set_capture(Some(Capture::create(&path, "hca1").unwrap()));
        let rule: RuleEntry =
            serde_json::from_str(r#"{"direction": "tx", "action": "drop", "nth": 2}"#).unwrap();
        a.impair(Rule::try_from(rule).unwrap()).unwrap();

        // The destinations are the other device, an unknown MAC, broadcast and multicast. Some frames have the source
        // MAC of a guest behind the NIC. There are runs of frames of equal length, and one frame is as long as a
        // fabric permits. The frames do not fit into one turn.
        let unknown = MacAddr([0x52, 0x54, 0, 0, 0, 9]);
        let behind = MacAddr([0x52, 0x54, 0, 0, 0, 1]);
        let mut frames: Vec<_> = [mac(2), unknown, MacAddr::BROADCAST, MacAddr([0x33, 0x33, 0, 0, 0, 1])]
            .into_iter()
            .flat_map(|dst| [plain(dst, mac(1), 1514), plain(dst, behind, 60)])
            .collect();
        frames.push(plain(mac(2), mac(1), MAX_FRAME_LEN));
        frames.extend(vec![plain(mac(2), mac(1), 1514); 300]);
        a.frontend.to_send = frames.clone().into();
        let back = vec![plain(behind, mac(2), 90), plain(mac(1), mac(2), 14)];
        b.frontend.to_send = back.clone().into();
        exchange(&mut a, &mut b, &mut ends);

        let dropped = frames.remove(1);
        assert_eq!(b.frontend.received.len(), frames.len(), "{name}");
        assert!(b.frontend.received == frames, "{name}");
        assert!(a.frontend.received == back, "{name}");
        a.flush();
        let captured = captured(&path);
        assert_eq!(captured.len(), frames.len() + 1 + back.len(), "{name}");
        let with_reason = captured.iter().find(|(options, _)| options.contains("impairment 1: dropped"));
        assert!(with_reason.is_some_and(|(_, frame)| *frame == dropped), "{name}");
    }
}
