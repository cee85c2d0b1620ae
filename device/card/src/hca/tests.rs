mod impairments;
mod nic;

use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::os::fd::AsFd;

use engine::Event;
use protocol::describe::Visitor;
use protocol::ids::{Iova, Lid, MacAddr, Qpn};
use protocol::roce::{Bth, Ext, FrameWriter, IpAddrs, Mtu, Offload, Opcode, Operation, Packet, RoceFrame};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use vm_memory::VolatileSlice;

use super::testing::{Stub, StubHost};
use super::*;
use crate::fabric::{Arrival, HEADERS_LEN};
use crate::frontend::table::Table;
use crate::frontend::{PortKind, PortNumber, RegisterAccess};
use crate::memory::Permissions;
use crate::net::DropReason;
use crate::net::address::Addresses;
use crate::telemetry::reason::IgnoreReason;
use crate::telemetry::testing::Written;
use crate::vfio::Bar;
use crate::vfio::server::{Device as _, Region};

const TABLE: u64 = 0x2000;
const PBA: u64 = 0x3000;

fn powered_on() -> Hca<Stub> {
    Hca::new(Stub::default(), Identity::from_lid(Lid::new(1)), None)
}

/// Returns a device with memory space and bus mastering enabled, and with one page of memory at bus address 0.
fn ready() -> Hca<Stub> {
    let mut hca = powered_on();
    hca.region_write(Region::Config, 4, &[6, 0]);
    let fd = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&fd, 4096).unwrap();
    let permissions = Permissions { read: true, write: true };
    hca.memory.map(Iova::new(0), 4096, permissions, Some((fd, 0))).unwrap();
    hca
}

fn page_start(hca: &Hca<Stub>) -> [u8; 4] {
    let mut bytes = [0; 4];
    hca.memory.read(Iova::new(0), &mut bytes).unwrap();
    bytes
}

#[test]
fn accesses_are_split_into_aligned_words() {
    let mut hca = ready();
    let mut out = [0; 17];
    hca.region_read(Region::Bar(Bar::Bar0), 0x13, &mut out);
    assert_eq!(out, [0x5a; 17]);
    hca.region_write(Region::Bar(Bar::Bar0), 0x40, &[1, 2, 3, 4]);
    hca.region_write(Region::Bar(Bar::Bar0), 0x44, &[1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(
        hca.frontend.log,
        [
            "read Bar0 0x13 5",
            "read Bar0 0x18 8",
            "read Bar0 0x20 4",
            "write Bar0 0x40 [01, 02, 03, 04]",
            "write Bar0 0x44 [01, 02, 03, 04]",
            "write Bar0 0x48 [05, 06, 07, 08]",
        ]
    );
}

#[test]
fn msix_structure_accesses_do_not_reach_frontend() {
    let mut hca = ready();
    hca.region_write(Region::Bar(Bar::Bar0), TABLE, &[0xaa; 40]);
    let mut table = [0; 40];
    hca.region_read(Region::Bar(Bar::Bar0), TABLE, &mut table);
    assert_eq!(table[..32], [0xaa; 32], "the table has two entries");
    assert_eq!(table[32..], [0x5a; 8], "bytes after the table belong to the front-end");
    hca.region_write(Region::Bar(Bar::Bar0), PBA, &[0xff; 8]);
    let mut pending = [0xff; 8];
    hca.region_read(Region::Bar(Bar::Bar0), PBA, &mut pending);
    assert_eq!(pending, [0; 8], "pending bits are read-only");
    assert_eq!(hca.frontend.log.len(), 2, "{:?}", hca.frontend.log);
    hca.region_write(Region::Bar(Bar::Bar2), TABLE & 0xfff, &[0; 4]);
    assert_eq!(hca.frontend.log.len(), 3);
}

#[test]
fn disabled_memory_space_reads_as_ones() {
    let mut hca = powered_on();
    let mut out = [0; 4];
    hca.region_read(Region::Bar(Bar::Bar0), 0, &mut out);
    hca.region_write(Region::Bar(Bar::Bar0), 0, &out);
    assert_eq!(out, [0xff; 4]);
    assert!(hca.frontend.log.is_empty());
}

#[test]
fn dma_and_interrupts_require_bus_master_enable() {
    let mut hca = ready();
    let fd = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    hca.interrupts.set_eventfd(1, Some(fd.as_fd().try_clone_to_owned().unwrap()));
    hca.region_write(Region::Config, 0x52, &[0x00, 0x80]);
    hca.region_write(Region::Config, 4, &[2, 0]);
    hca.region_write(Region::Bar(Bar::Bar2), 0, b"dead");
    assert!(hca.frontend.dma_failed);
    assert_eq!(rustix::io::read(&fd, &mut [0; 8]), Err(rustix::io::Errno::AGAIN));

    hca.region_write(Region::Config, 4, &[6, 0]);
    assert_eq!(rustix::io::read(&fd, &mut [0; 8]), Ok(8), "the pending interrupt is delivered");
    hca.region_write(Region::Bar(Bar::Bar2), 0, b"live");
    assert_eq!(&page_start(&hca), b"live");
    assert_eq!(rustix::io::read(&fd, &mut [0; 8]), Ok(8));
}

#[test]
fn flr_resets_device_but_keeps_client_dma_map() {
    let mut hca = ready();
    hca.region_write(Region::Bar(Bar::Bar0), 8, &[1]);
    hca.region_write(Region::Config, 0x68, &[0x10, 0xa8]);
    assert_eq!(hca.frontend.log.last().unwrap(), "reset");
    assert_eq!(hca.drain(), WorkLeft { frames: false, other: false });
    assert!(hca.outbound().is_empty() && hca.engine.query_qp(Qpn::new(1)).is_none());
    hca.region_write(Region::Bar(Bar::Bar2), 0, b"dead");
    assert_eq!(hca.frontend.log.last().unwrap(), "reset", "the reset disables memory space");
    hca.region_write(Region::Config, 4, &[6, 0]);
    hca.region_write(Region::Bar(Bar::Bar2), 0, b"live");
    assert_eq!(&page_start(&hca), b"live", "the reset must keep the DMA map");
}

#[test]
fn disconnect_unmaps_client_memory() {
    let mut hca = ready();
    hca.disconnect();
    assert_eq!(hca.memory.window_count(), 0);
    assert_eq!(hca.frontend.log, ["reset"]);
}

/// The address table takes precedence over addresses derived from a peer's MAC.
#[test]
fn arp_from_configured_ip_requires_configured_mac() {
    let other = Identity { ipv4: Ipv4Addr::new(10, 77, 0, 3), ..Identity::from_lid(Lid::new(5)) };
    let own = Identity::from_lid(Lid::new(1));
    let addresses = Addresses { own, peers: vec![other], default_peer: None };
    let mut hca = Hca::new(Stub::default(), addresses, None);
    hca.add_static_neighbour(MacAddr::from_lid(Lid::new(3)));
    hca.add_static_neighbour(MacAddr::from_lid(Lid::new(6)));
    let mut answered = |from: u8, ip: u8| {
        hca.outbound().clear();
        let mac = [2, 0, 0, 0, 0, from];
        let head = [8, 6, 0, 1, 8, 0, 6, 4, 0, 1];
        let request =
            [&[0xff; 6][..], &mac, &head, &mac, &[10, 77, 0, ip], &[0; 6], &[10, 77, 0, 1]].concat();
        hca.handle_frame(&request);
        !hca.outbound().is_empty()
    };
    assert_eq!([5, 3, 4].map(|from| answered(from, 3)), [true, false, false]);
    assert_eq!([6, 4].map(|from| answered(from, 6)), [true, false]);
    assert!(answered(4, 9), "any host may use an address that has no owner");
}

#[test]
fn own_frames_loop_back_without_fabric() {
    let mut hca = ready();
    hca.region_write(Region::Bar(Bar::Bar0), 8, &[1]);
    // The request, its acknowledgement and the completion take one turn each.
    let mut turns = 0;
    while hca.drain().other {
        turns += 1;
        assert!(turns < 10, "the device must become idle");
    }
    assert!(hca.outbound().is_empty());
    assert_eq!(hca.frontend.queues.received, (0..200).collect::<Vec<u8>>());
    assert_eq!(hca.frontend.log[1..], ["qpn:0x2 Recv true", "qpn:0x1 Send true"]);
    assert_eq!(hca.frontend.turns, turns + 1, "end_turn must be called once per turn");
}

/// Returns `frame` with its source addresses replaced by those of LID 9.
pub(super) fn from_lid_9(frame: &[u8]) -> Vec<u8> {
    from_lid_9_with(frame, Offload::None)
}

fn from_lid_9_with(frame: &[u8], icrc: Offload) -> Vec<u8> {
    let other = Identity::from_lid(Lid::new(9));
    let RoceFrame { mut encap, packet } = RoceFrame::parse(frame).unwrap();
    encap.src_mac = other.mac;
    encap.ip = match encap.ip {
        IpAddrs::V4 { dst, .. } => IpAddrs::V4 { src: other.ipv4, dst },
        IpAddrs::V6 { dst, .. } => IpAddrs::V6 { src: other.link_local(), dst },
    };
    let mut out = Vec::new();
    let mut writer = FrameWriter::new(&mut out, &encap, &packet.bth, &packet.ext, packet.payload.len());
    writer.extend(packet.payload);
    writer.finish_with(icrc);
    out
}

#[test]
fn multicast_loops_back_to_own_members() {
    let mut hca = ready();
    hca.region_write(Region::Bar(Bar::Bar0), 16, &[1]);
    assert_eq!(hca.drain(), WorkLeft { frames: false, other: true });
    let sent: Vec<_> = hca.outbound().iter().map(|(dst, frame)| (dst, frame.to_vec())).collect();
    let [(dst, frame)] = sent.as_slice() else { panic!("{sent:?}") };
    assert_eq!(*dst, MacAddr([0x33, 0x33, 0xff, 0xff, 0xff, 0xff]));
    hca.outbound().clear();
    assert_eq!(hca.drain(), WorkLeft { frames: false, other: false });
    assert_eq!(hca.frontend.queues.received, (0..200).collect::<Vec<u8>>());
    assert_eq!(hca.frontend.log[1..], ["qpn:0x3 Send true", "qpn:0x3 Recv true"]);
    // Now the datagram arrives over the fabric, from another port.
    hca.frontend.queues.received.clear();
    hca.handle_frame(&from_lid_9(frame));
    assert_eq!(hca.frontend.queues.received.len(), 200);
    assert_eq!(hca.port_stats().roce, 2);
}

#[test]
fn frames_for_other_devices_go_to_fabric() {
    let mut hca = powered_on();
    hca.port.addresses_mut().own =
        Identity { ipv4: Ipv4Addr::new(10, 77, 9, 9), ..Identity::from_lid(Lid::new(9)) };
    hca.region_write(Region::Config, 4, &[6, 0]);
    hca.region_write(Region::Bar(Bar::Bar0), 8, &[1]);
    assert_eq!(hca.drain(), WorkLeft { frames: false, other: false });
    let sent: Vec<_> = hca.outbound().iter().map(|(dst, _)| dst).collect();
    assert_eq!(sent, [Identity::from_lid(Lid::new(1)).mac]);
}

/// Posts three equal messages, which the engine sends as one burst unless frames are captured. Returns the frames for
/// the fabric, the counters and the front-end's log.
fn send_three(mut hca: Hca<Stub>) -> (Vec<Vec<u8>>, PortStats, Stats, Vec<String>) {
    hca.region_write(Region::Bar(Bar::Bar0), 8, &[1]);
    let message = hca.frontend.queues.sends[0].clone();
    hca.frontend.queues.sends.extend([message.clone(), message]);
    hca.drain();
    let frames = hca.outbound().iter().map(|(_, frame)| frame.to_vec()).collect();
    hca.outbound().clear();
    while hca.drain().other {}
    (frames, *hca.port_stats(), *hca.engine_stats(), hca.frontend.log)
}

#[test]
fn burst_is_sent_like_single_frames() {
    let folder = tempfile::tempdir().unwrap();
    for lid in [1, 9] {
        let [burst, single] = [false, true].map(|captured| {
            let mut hca = ready();
            hca.port.addresses_mut().own = Identity::from_lid(Lid::new(lid));
            let capture = || Capture::create(&folder.path().join("frames.pcapng"), "hca").unwrap();
            hca.set_capture(captured.then(capture));
            send_three(hca)
        });
        assert_eq!(burst, single);
        let (frames, port, ..) = burst;
        let (to_fabric, to_itself) = if lid == 9 { (3, 0) } else { (0, 3) };
        assert_eq!((frames.len(), port.transmit.packets), (to_fabric, to_fabric as u64));
        assert!(port.roce >= to_itself, "the device also receives its own ACKs");
    }
}

/// Frames in a capture must be complete, and multicast frames may reach members over a wire. Both therefore have an
/// ICRC even if the fabric needs none.
#[test]
fn icrc_is_computed_for_capture_and_multicast() {
    let folder = tempfile::tempdir().unwrap();
    for (captured, doorbell, icrc) in [(false, 8, false), (true, 8, true), (false, 16, true)] {
        let mut hca = powered_on().with_icrc_needed(false);
        if captured {
            let path = folder.path().join("frames.pcapng");
            hca.set_capture(Some(Capture::create(&path, "hca9").unwrap()));
        }
        hca.port.addresses_mut().own =
            Identity { ipv4: Ipv4Addr::new(10, 77, 9, 9), ..Identity::from_lid(Lid::new(9)) };
        hca.region_write(Region::Config, 4, &[6, 0]);
        hca.region_write(Region::Bar(Bar::Bar0), doorbell, &[1]);
        hca.drain();
        let sent: Vec<_> = hca.outbound().iter().map(|(_, frame)| frame.to_vec()).collect();
        let [frame] = sent.as_slice() else { panic!("{sent:?}") };
        assert_eq!(RoceFrame::parse(frame).is_ok(), icrc, "captured: {captured}, doorbell {doorbell}");
        assert!(RoceFrame::parse_with(frame, Offload::Icrc).is_ok());
    }
}

#[test]
fn missing_icrc_is_added_for_capture() {
    let folder = tempfile::tempdir().unwrap();
    let mut sender = ready();
    sender.region_write(Region::Bar(Bar::Bar0), 16, &[1]);
    sender.drain();
    let [whole, frame] =
        [Offload::None, Offload::Icrc].map(|icrc| from_lid_9_with(sender.outbound().last().unwrap(), icrc));
    for path in [None, Some(folder.path().join("frames.pcapng"))] {
        let mut hca = ready();
        hca.region_write(Region::Bar(Bar::Bar0), 16, &[1]);
        hca.drain();
        hca.set_capture(path.as_ref().map(|path| Capture::create(path, "hca1").unwrap()));
        hca.drain();
        hca.frontend.queues.received.clear();
        hca.handle_arrival(Arrival::new(&frame, Offload::Icrc));
        hca.handle_frame(&frame);
        assert_eq!(hca.frontend.queues.received.len(), 200);
        assert_eq!(hca.port_stats().dropped(DropReason::Icrc), 1, "only a fabric may omit the ICRC");
        hca.set_capture(None);
        if let Some(path) = path {
            let frames: Vec<_> = impairments::captured(&path).into_iter().map(|(_, frame)| frame).collect();
            assert_eq!(frames, [whole.clone(), frame.clone()]);
        }
    }
}

/// Returns four packets of a SEND from LID 9 to LID 1 in two forms: combined in one frame, and as one frame per packet.
fn frame_of_four_packets() -> (Vec<u8>, [Vec<u8>; 4]) {
    let mut sender = ready();
    sender.port.addresses_mut().own = Identity::from_lid(Lid::new(9));
    sender.region_write(Region::Bar(Bar::Bar0), 8, &[1]);
    sender.drain();
    let single = from_lid_9(sender.outbound().last().unwrap());
    let RoceFrame { encap, packet } = RoceFrame::parse(&single).unwrap();
    let bth = Bth { opcode: Opcode::rc(Operation::SendOnly), ..packet.bth };
    let build = |Packet { bth, srqn: _, ext, payload }, offload| {
        let mut out = Vec::new();
        let mut writer = FrameWriter::new(&mut out, &encap, &bth, &ext, payload.len());
        writer.extend(payload);
        writer.finish_with(offload);
        out
    };
    let payload = [0x5a; 1000];
    let whole = Packet { bth, srqn: None, ext: Ext::None, payload: &payload };
    let mut packets = whole.segments(Mtu::Mtu256);
    let frames = [(); 4].map(|()| build(packets.next().unwrap(), Offload::None));
    (build(whole, Offload::Segmentation(Mtu::Mtu256)), frames)
}

/// A capture shows what a wire would carry. Capturing does not change the counters.
#[test]
fn packets_in_frame_are_captured_and_counted_individually() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("frames.pcapng");
    let (frame, packets) = frame_of_four_packets();
    let [plain, captured] = [None, Some(&path)].map(|path| {
        let mut hca = ready();
        hca.set_capture(path.map(|path| Capture::create(path, "hca1").unwrap()));
        hca.handle_arrival(Arrival::new(&frame, Offload::Segmentation(Mtu::Mtu256)));
        hca.set_capture(None);
        (*hca.port_stats(), *hca.engine.stats())
    });
    assert_eq!(plain, captured);
    assert_eq!((plain.0.roce, plain.0.receive.packets), (4, 4));
    let octets: usize = packets.iter().map(|frame| frame.len() - 14 - 20 - 8).sum();
    assert_eq!(plain.0.receive.octets, octets as u64);
    let frames: Vec<_> = impairments::captured(&path).into_iter().map(|(_, frame)| frame).collect();
    assert_eq!(frames, packets);
}

/// Returns the frame in `memory`, with the headers of `frame`.
fn in_shared_memory<'a>(frame: &'a [u8], memory: &'a mut [u8], offload: Offload) -> Arrival<'a> {
    Arrival::in_shared_memory(&frame[..HEADERS_LEN], VolatileSlice::from(memory), offload)
}

/// A frame in memory that the sender can still change is handled like a private copy.
#[test]
fn frame_in_shared_memory_is_handled_like_private_frame() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("frames.pcapng");
    let (frame, _) = frame_of_four_packets();
    let offload = Offload::Segmentation(Mtu::Mtu256);
    let results = [(false, None), (true, None), (true, Some(&path))].map(|(is_shared, path)| {
        let mut hca = ready();
        // The second frame of a flow is handled in place.
        for _ in 0..2 {
            let mut memory = frame.clone();
            let arrival = match is_shared {
                true => in_shared_memory(&frame, &mut memory, offload),
                false => Arrival::new(&frame, offload),
            };
            hca.set_capture(path.map(|path| Capture::create(path, "hca1").unwrap()));
            hca.handle_arrival(arrival);
            hca.set_capture(None);
        }
        (*hca.port_stats(), *hca.engine.stats())
    });
    assert_eq!((results[0].0.roce, results[0].1.received_packets), (8, 8));
    assert_eq!(results[1], results[0]);
    assert_eq!(results[2], results[0]);
}

/// The headers of a shared frame come only from the private copy. A length that exceeds the frame is rejected.
#[test]
fn shared_frame_with_wrong_length_is_dropped() {
    let (frame, _) = frame_of_four_packets();
    let offload = Offload::Segmentation(Mtu::Mtu256);
    let mut hca = ready();
    hca.handle_arrival(Arrival::new(&frame, offload));
    let mut memory = frame[..900].to_vec();
    hca.handle_arrival(in_shared_memory(&frame, &mut memory, offload));
    assert_eq!((hca.port_stats().roce, hca.port_stats().dropped(DropReason::Short)), (4, 1));
}

/// Frames to the device itself are counted like those from other devices.
#[test]
fn packets_in_loopback_frame_are_counted_individually() {
    let (frame, _) = frame_of_four_packets();
    let mut hca = ready();
    let before = hca.port_stats().roce;
    hca.looped.push(&frame, Offload::Segmentation(Mtu::Mtu256));
    hca.deliver_looped();
    assert_eq!(hca.port_stats().roce - before, 4);
    assert_eq!(hca.engine.stats().received_packets, 4);
}

#[test]
fn arp_frame_with_segmentation_offload_is_dropped() {
    let mut hca = ready();
    let mut arp = [0; 60];
    arp[..6].fill(0xff);
    arp[6..14].copy_from_slice(&[2, 0, 0, 0, 0, 9, 8, 6]);
    hca.handle_arrival(Arrival::new(&arp, Offload::Segmentation(Mtu::Mtu256)));
    assert_eq!(hca.port_stats().dropped(DropReason::Invalid), 1);
}

#[test]
fn frame_that_cannot_be_segmented_is_dropped() {
    let (mut frame, _) = frame_of_four_packets();
    frame.truncate(100);
    for captured in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let mut hca = ready();
        if captured {
            let path = folder.path().join("frames.pcapng");
            hca.set_capture(Some(Capture::create(&path, "hca1").unwrap()));
        }
        hca.handle_arrival(Arrival::new(&frame, Offload::Segmentation(Mtu::Mtu256)));
        assert_eq!((hca.port_stats().roce, hca.port_stats().dropped(DropReason::Short)), (0, 1));
    }
}

#[test]
fn flapping_link_does_not_fill_log() {
    let written = Written::default();
    let to = written.clone();
    let subscriber = tracing_subscriber::fmt().with_writer(move || to.clone()).finish();
    // Log lines are rate-limited per thread. Use a new thread, as every device does.
    let thread = std::thread::spawn(move || {
        tracing::subscriber::with_default(subscriber, || {
            let mut hca = powered_on();
            (0..1000).for_each(|turn| hca.set_enabled(turn % 2 == 1));
        });
    });
    thread.join().unwrap();
    let text = written.text();
    let lines = text.lines().filter(|line| line.contains("link state changed")).count() as u64;
    assert_eq!(lines, crate::telemetry::log::BURST, "{text}");
}

#[test]
fn link_down_drops_frames_in_both_directions() {
    let mut hca = powered_on();
    hca.port.addresses_mut().own =
        Identity { ipv4: Ipv4Addr::new(10, 77, 9, 9), ..Identity::from_lid(Lid::new(9)) };
    hca.region_write(Region::Config, 4, &[6, 0]);
    hca.set_link(true);
    hca.set_link(false);
    hca.set_link(false);
    assert_eq!(hca.frontend.log, ["link false"], "only changes are reported");

    hca.region_write(Region::Bar(Bar::Bar0), 8, &[1]);
    assert_eq!(hca.drain(), WorkLeft { frames: false, other: false });
    assert!(hca.outbound().is_empty());
    hca.handle_frame(&[0; 64]);
    let stats = *hca.port_stats();
    assert_eq!((stats.lost_link_down, stats.dropped(DropReason::LinkDown)), (1, 1));

    hca.reset();
    assert!(!hca.is_link_up(), "a reset must not plug in the cable");
    hca.set_link(true);
    assert_eq!(hca.frontend.log.last().unwrap(), "link true");
    hca.handle_frame(&[0; 64]);
    assert_eq!(hca.port_stats().dropped(DropReason::LinkDown), 1);
}
