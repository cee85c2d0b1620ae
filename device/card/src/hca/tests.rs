mod impairments;
mod nic;

use std::collections::VecDeque;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;

use engine::{
    Access, AccessError, AtomicOp, Event, Fence, Fetch, Flush, GrhArea, GroupDatagram, Host, Initiator,
    Modify, Mtu, Payload, QpAttrs, RecvRequest, RecvSource, RemoteAccess, RnrRetry, RnrTimer, SendOp,
    SendRequest, Service, Sge, State, UdDestination,
};
use protocol::Psn;
use protocol::describe::Visitor;
use protocol::ids::{FlowLabel, Iova, Lid, Lkey, MacAddr, Pdn, Qkey, Qpn, Va};
use protocol::net::ipv4::Fragmentation;
use protocol::roce::{Encap, FrameWriter, IcrcField, IpAddrs, RoceFrame};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use smallvec::SmallVec;

use super::*;
use crate::frontend::table::Table;
use crate::frontend::{PortKind, PortNumber, RegisterAccess};
use crate::management::NodeProfile;
use crate::memory::Permissions;
use crate::net::DropReason;
use crate::net::address::Addresses;
use crate::net::lid::{Grh, Route};
use crate::telemetry::reason::IgnoreReason;
use crate::telemetry::trace::tests::Written;
use crate::vfio::server::{Device as _, Region};
use crate::vfio::{Bar, Bars, MemoryBar, MsixLayout};

const TABLE: u64 = 0x2000;
const PBA: u64 = 0x3000;

/// A device with a simple interface. A write to BAR 2, its doorbell, copies the bytes to bus address 0 and
/// raises vector 1. A write to offset 8 of BAR 0 sends a message from QP 1 to QP 2. A write to offset 16
/// sends a datagram from QP 3 to a group that it has joined.
#[derive(Default)]
pub(crate) struct Stub {
    log: Vec<String>,
    queues: Queues,
    dma_failed: bool,
    turns: usize,
}

#[derive(Default)]
pub(crate) struct Queues {
    sends: VecDeque<SendRequest>,
    received: Vec<u8>,
}

pub(crate) struct StubHost<'a>(&'a mut Queues);

impl Frontend for Stub {
    type Host<'a> = StubHost<'a>;
    type Counters = ();

    const KEY: &'static str = "stub";
    const IGNORE_REASONS: &'static [&'static [IgnoreReason]] = &[];
    const TABLES: &'static [Table<Self>] = &[];

    fn pci(&self) -> PciFunction {
        let memory = |len| MemoryBar { len, prefetchable: false };
        PciFunction {
            vendor: 0x1234,
            device: 0x5678,
            subsystem_vendor: 0,
            subsystem: 0,
            revision: 0,
            class: [2, 7, 0],
            bars: Bars::new([(Bar::Bar0, memory(0x10000)), (Bar::Bar2, memory(0x1000))]),
            msix: MsixLayout { vectors: 2, table: (Bar::Bar0, 0x2000), pending: (Bar::Bar0, 0x3000) },
            serial_number: None,
        }
    }

    fn port_kind(&self, _: PortNumber) -> PortKind {
        PortKind::InfiniBand(NodeProfile {
            vendor_id: 0x1234,
            device_id: 0x5678,
            revision: 0,
            gids: 8,
            pkeys: 32,
            mtu: 5,
            capabilities: 0,
            opened_by_software: false,
        })
    }

    fn bar_read(&mut self, _: &mut Context<'_>, bar: Bar, offset: u64, data: &mut [u8]) {
        self.log.push(format!("read {bar:?} {offset:#x} {}", data.len()));
        data.fill(0x5a);
    }

    fn bar_write(&mut self, cx: &mut Context<'_>, bar: Bar, offset: u64, data: &[u8]) {
        self.log.push(format!("write {bar:?} {offset:#x} {data:02x?}"));
        if bar == Bar::Bar2 {
            self.dma_failed = cx.dma.write(Iova::new(0), data).is_err();
            cx.interrupts.raise(1);
        } else if offset == 8 {
            self.send(cx);
        } else if offset == 16 {
            self.send_to_group(cx);
        }
    }

    fn register_name(&self, _: &RegisterAccess<'_>) -> Option<String> {
        None
    }

    fn describe_access(&self, _: &RegisterAccess<'_>, _: &mut dyn Visitor) {}

    fn host<'a>(&'a mut self, _: HostContext<'a>) -> StubHost<'a> {
        StubHost(&mut self.queues)
    }

    fn handle_event(&mut self, _: &mut Context<'_>, event: Event) {
        if let Event::Completion(done) = event {
            self.log.push(format!("{:?} {:?} {}", done.qpn, done.queue, done.result.is_ok()));
        }
    }

    fn end_turn(&mut self, _: &mut Context<'_>) -> bool {
        self.turns += 1;
        false
    }

    fn link_changed(&mut self, _: &mut Context<'_>, up: bool) {
        self.log.push(format!("link {up}"));
    }

    fn fail(&mut self, _: &mut Context<'_>) {
        self.log.push("fail".to_owned());
    }

    fn counters(&self) {}

    fn reset(&mut self) {
        self.log.push("reset".to_owned());
    }
}

/// The broadcast group of IPoIB.
const GROUP: Ipv6Addr = Ipv6Addr::new(0xff12, 0x401b, 0xffff, 0, 0, 0, 0xffff, 0xffff);

impl Stub {
    fn send(&mut self, cx: &mut Context<'_>) {
        for (qpn, remote) in [(1, 2), (2, 1)] {
            self.create(cx, Service::Rc, qpn, remote);
        }
        self.post(cx, 1, None);
    }

    fn send_to_group(&mut self, cx: &mut Context<'_>) {
        self.create(cx, Service::Ud, 3, 0);
        let own = Identity::from_lid(Lid::new(1));
        let addresses = Addresses { own, peers: Vec::new(), default_peer: None };
        let grh = Some(Grh { dgid: GROUP.octets(), ..Grh::default() });
        let route = Route { dlid: Lid::new(0xc000), service_level: 0, grh };
        let group = Qpn::new(0xff_ffff);
        let path = addresses.route(&route, Qpn::new(3), group).unwrap();
        self.post(cx, 3, Some(UdDestination { path, qpn: group, qkey: Qkey::new(0), header: None }));
    }

    fn create(&mut self, cx: &mut Context<'_>, service: Service, qpn: u32, remote: u32) {
        let me = Identity::from_lid(Lid::new(1));
        let attrs = QpAttrs {
            service,
            pd: Pdn::new(0),
            mtu: Mtu::Mtu256,
            alias: None,
            max_message_len: 4096,
            remote_qpn: Qpn::new(remote),
            path: Encap {
                src_mac: me.mac,
                dst_mac: me.mac,
                ip: IpAddrs::V4 { src: me.ipv4, dst: me.ipv4 },
                traffic_class: 0,
                flow_label: FlowLabel::default(),
                hop_limit: 64,
                fragment: Fragmentation::default(),
                tag: None,
                src_port: 0xc000,
            },
            own_address: false,
            pkey_index: 0,
            qkey: Qkey::new(0),
            any_qkey: true,
            ack_timeout: None,
            retry_count: 7,
            rnr_retry: RnrRetry::Infinite,
            min_rnr_timer: RnrTimer::new(1),
            max_rnr_timer: RnrTimer::new(1),
            max_rd_atomic: 1,
            max_dest_rd_atomic: 1,
            remote: RemoteAccess::ALL,
            grh_area: GrhArea::None,
            srq: false,
            reserved_lkey: false,
            flush: Flush::Each,
        };
        let psn = Some(Psn::new(0xff_fffe));
        let modify = |to| Modify { to, attrs, send_psn: psn, recv_psn: psn, notify_drained: false };
        cx.engine.create_qp(Qpn::new(qpn), attrs).unwrap();
        for state in [State::Init, State::Rtr, State::Rts] {
            let host = &mut StubHost(&mut self.queues);
            cx.engine.modify_qp(cx.now, Qpn::new(qpn), &modify(state), host).unwrap();
        }
    }

    fn post(&mut self, cx: &mut Context<'_>, qpn: u32, ud: Option<UdDestination>) {
        self.queues.sends.push_back(SendRequest {
            wr_id: 77,
            op: SendOp::Send { imm: None },
            payload: Payload::Inline((0..200).collect()),
            fence: Fence::None,
            solicited: false,
            ud,
            remote_srq: None,
        });
        cx.engine.notify_send(cx.now, Qpn::new(qpn), &mut StubHost(&mut self.queues));
    }
}

impl Host for StubHost<'_> {
    fn next_send(&mut self, _: Qpn) -> Fetch<SendRequest> {
        self.0.sends.pop_front().map_or(Fetch::Empty, Fetch::Ready)
    }

    fn next_recv(&mut self, _: RecvSource) -> Fetch<RecvRequest> {
        let sge = Sge { va: Va::new(0), lkey: Lkey::new(0), len: 4096 };
        Fetch::Ready(RecvRequest { wr_id: 78, sges: [sge].into_iter().collect() })
    }

    fn group_members(&self, datagram: &GroupDatagram) -> SmallVec<[Qpn; 8]> {
        if datagram.gid == GROUP.octets() { [Qpn::new(3)].into_iter().collect() } else { SmallVec::new() }
    }

    fn check(&self, _: Initiator, _: Lkey, _: Va, _: u64, _: Access) -> Result<(), AccessError> {
        Ok(())
    }

    fn read(
        &self,
        _: Initiator,
        _: Lkey,
        _: Va,
        _: usize,
        _: &mut Vec<u8>,
        _: Access,
    ) -> Result<(), AccessError> {
        Err(AccessError::Key)
    }

    fn write(&mut self, _: Initiator, _: Lkey, _: Va, data: &[u8], _: Access) -> Result<(), AccessError> {
        self.0.received.extend_from_slice(data);
        Ok(())
    }

    fn atomic(&mut self, _: Initiator, _: Lkey, _: Va, _: AtomicOp) -> Result<u64, AccessError> {
        Err(AccessError::Key)
    }
}

fn powered_on() -> Hca<Stub> {
    Hca::new(Stub::default(), Identity::from_lid(Lid::new(1)), None)
}

/// Returns a device with memory space and bus master enabled and a page of memory at 0.
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
fn msix_structures_are_not_passed_to_frontend() {
    let mut hca = ready();
    hca.region_write(Region::Bar(Bar::Bar0), TABLE, &[0xaa; 40]);
    let mut table = [0; 40];
    hca.region_read(Region::Bar(Bar::Bar0), TABLE, &mut table);
    assert_eq!(table[..32], [0xaa; 32], "two entries");
    assert_eq!(table[32..], [0x5a; 8], "the window ends with the table");
    hca.region_write(Region::Bar(Bar::Bar0), PBA, &[0xff; 8]);
    let mut pending = [0xff; 8];
    hca.region_read(Region::Bar(Bar::Bar0), PBA, &mut pending);
    assert_eq!(pending, [0; 8], "pending bits are read only");
    assert_eq!(hca.frontend.log.len(), 2, "{:?}", hca.frontend.log);
    hca.region_write(Region::Bar(Bar::Bar2), TABLE & 0xfff, &[0; 4]);
    assert_eq!(hca.frontend.log.len(), 3);
}

#[test]
fn disabled_memory_space_reads_ones() {
    let mut hca = powered_on();
    let mut out = [0; 4];
    hca.region_read(Region::Bar(Bar::Bar0), 0, &mut out);
    hca.region_write(Region::Bar(Bar::Bar0), 0, &out);
    assert_eq!(out, [0xff; 4]);
    assert!(hca.frontend.log.is_empty());
}

#[test]
fn no_bus_master_no_dma_or_interrupt() {
    let mut hca = ready();
    let fd = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    hca.interrupts.set_eventfd(1, Some(fd.as_fd().try_clone_to_owned().unwrap()));
    hca.region_write(Region::Config, 0x52, &[0x00, 0x80]);
    hca.region_write(Region::Config, 4, &[2, 0]);
    hca.region_write(Region::Bar(Bar::Bar2), 0, b"dead");
    assert!(hca.frontend.dma_failed);
    assert_eq!(rustix::io::read(&fd, &mut [0; 8]), Err(rustix::io::Errno::AGAIN));

    hca.region_write(Region::Config, 4, &[6, 0]);
    assert_eq!(rustix::io::read(&fd, &mut [0; 8]), Ok(8), "the vector was pending");
    hca.region_write(Region::Bar(Bar::Bar2), 0, b"live");
    assert_eq!(&page_start(&hca), b"live");
    assert_eq!(rustix::io::read(&fd, &mut [0; 8]), Ok(8));
}

#[test]
fn flr_resets_all_but_client_wiring() {
    let mut hca = ready();
    hca.region_write(Region::Bar(Bar::Bar0), 8, &[1]);
    hca.region_write(Region::Config, 0x68, &[0x10, 0xa8]);
    assert_eq!(hca.frontend.log.last().unwrap(), "reset");
    assert_eq!(hca.drain(), WorkLeft { frames: false, other: false });
    assert!(hca.outbound().is_empty() && hca.engine.query_qp(Qpn::new(1)).is_none());
    hca.region_write(Region::Bar(Bar::Bar2), 0, b"dead");
    assert_eq!(hca.frontend.log.last().unwrap(), "reset", "memory space is off again");
    hca.region_write(Region::Config, 4, &[6, 0]);
    hca.region_write(Region::Bar(Bar::Bar2), 0, b"live");
    assert_eq!(&page_start(&hca), b"live", "the DMA map is still there");
}

#[test]
fn disconnect_unmaps_client_memory() {
    let mut hca = ready();
    hca.disconnect();
    assert_eq!(hca.memory.window_count(), 0);
    assert_eq!(hca.frontend.log, ["reset"]);
}

/// The address table takes precedence over addresses derived from the MAC of a peer.
#[test]
fn configured_ip_requires_its_mac() {
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
    assert!(answered(4, 9), "nobody's");
}

#[test]
fn own_frames_loop_back_without_fabric() {
    let mut hca = ready();
    hca.region_write(Region::Bar(Bar::Bar0), 8, &[1]);
    // The request, its acknowledgement and the completion take one turn each.
    let mut turns = 0;
    while hca.drain().other {
        turns += 1;
        assert!(turns < 10, "the loop does not end");
    }
    assert!(hca.outbound().is_empty());
    assert_eq!(hca.frontend.queues.received, (0..200).collect::<Vec<u8>>());
    assert_eq!(hca.frontend.log[1..], ["qpn:0x2 Recv true", "qpn:0x1 Send true"]);
    assert_eq!(hca.frontend.turns, turns + 1, "end_turn is called once a turn");
}

/// Returns a frame of an HCA, changed as if LID 9 had sent it.
pub(super) fn from_lid_9(frame: &[u8]) -> Vec<u8> {
    from_lid_9_with(frame, IcrcField::Computed)
}

fn from_lid_9_with(frame: &[u8], icrc: IcrcField) -> Vec<u8> {
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
    // Deliver the datagram from another port over the fabric.
    hca.frontend.queues.received.clear();
    hca.handle_frame(&from_lid_9(frame));
    assert_eq!(hca.frontend.queues.received.len(), 200);
    assert_eq!(hca.port_stats().roce, 2);
}

#[test]
fn frames_for_others_go_to_fabric() {
    let mut hca = powered_on();
    hca.port.addresses_mut().own =
        Identity { ipv4: Ipv4Addr::new(10, 77, 9, 9), ..Identity::from_lid(Lid::new(9)) };
    hca.region_write(Region::Config, 4, &[6, 0]);
    hca.region_write(Region::Bar(Bar::Bar0), 8, &[1]);
    assert_eq!(hca.drain(), WorkLeft { frames: false, other: false });
    let sent: Vec<_> = hca.outbound().iter().map(|(dst, _)| dst).collect();
    assert_eq!(sent, [Identity::from_lid(Lid::new(1)).mac]);
}

/// The ICRC is computed if frames are captured. It is also computed for multicast, because group members may
/// be on a wire.
#[test]
fn unneeded_icrc_is_computed_only_for_capture() {
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
        assert!(RoceFrame::parse_with(frame, IcrcField::LeftOut).is_ok());
    }
}

#[test]
fn missing_icrc_is_added_for_capture() {
    let folder = tempfile::tempdir().unwrap();
    let mut sender = ready();
    sender.region_write(Region::Bar(Bar::Bar0), 16, &[1]);
    sender.drain();
    let [whole, frame] = [IcrcField::Computed, IcrcField::LeftOut]
        .map(|icrc| from_lid_9_with(sender.outbound().last().unwrap(), icrc));
    for path in [None, Some(folder.path().join("frames.pcapng"))] {
        let mut hca = ready();
        hca.region_write(Region::Bar(Bar::Bar0), 16, &[1]);
        hca.drain();
        hca.set_capture(path.as_ref().map(|path| Capture::create(path, "hca1").unwrap()));
        hca.drain();
        hca.frontend.queues.received.clear();
        hca.handle_arrival(&frame, IcrcField::LeftOut);
        hca.handle_frame(&frame);
        assert_eq!(hca.frontend.queues.received.len(), 200);
        assert_eq!(hca.port_stats().dropped(DropReason::Icrc), 1, "only a fabric may say that it needs none");
        hca.set_capture(None);
        if let Some(path) = path {
            let frames: Vec<_> = impairments::captured(&path).into_iter().map(|(_, frame)| frame).collect();
            assert_eq!(frames, [whole.clone(), frame.clone()]);
        }
    }
}

#[test]
fn flapping_link_does_not_fill_log() {
    let written = Written::default();
    let to = written.clone();
    let subscriber = tracing_subscriber::fmt().with_writer(move || to.clone()).finish();
    // Each device has its own thread, and thus its own log allowance.
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
fn link_down_drops_frames_both_ways() {
    let mut hca = powered_on();
    hca.port.addresses_mut().own =
        Identity { ipv4: Ipv4Addr::new(10, 77, 9, 9), ..Identity::from_lid(Lid::new(9)) };
    hca.region_write(Region::Config, 4, &[6, 0]);
    hca.set_link(true);
    hca.set_link(false);
    hca.set_link(false);
    assert_eq!(hca.frontend.log, ["link false"], "told of changes only");

    hca.region_write(Region::Bar(Bar::Bar0), 8, &[1]);
    assert_eq!(hca.drain(), WorkLeft { frames: false, other: false });
    assert!(hca.outbound().is_empty());
    hca.handle_frame(&[0; 64]);
    let stats = *hca.port_stats();
    assert_eq!((stats.lost_link_down, stats.dropped(DropReason::LinkDown)), (1, 1));

    hca.reset();
    assert!(!hca.is_link_up(), "a reset does not plug the cable in");
    hca.set_link(true);
    assert_eq!(hca.frontend.log.last().unwrap(), "link true");
    hca.handle_frame(&[0; 64]);
    assert_eq!(hca.port_stats().dropped(DropReason::LinkDown), 1);
}
