//! A minimal front-end for tests of code that all front-ends share.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::collections::VecDeque;
use std::net::Ipv6Addr;

use engine::{
    Access, AccessError, AtomicOp, Event, Fence, Fetch, Flush, GrhArea, GroupDatagram, Host, Initiator,
    Modify, Mtu, Payload, PayloadRef, QpAttrs, RecvRequest, RecvSource, RemoteAccess, RnrRetry, RnrTimer,
    SendOp, SendRequest, Service, Sge, State, UdDestination,
};
use protocol::Psn;
use protocol::describe::Visitor;
use protocol::ids::{FlowLabel, Iova, Lid, Lkey, Pdn, Qkey, Qpn, Va};
use protocol::net::ipv4::Fragmentation;
use protocol::roce::{Encap, IpAddrs};
use smallvec::SmallVec;

use crate::frontend::table::Table;
use crate::frontend::{Context, Frontend, HostContext, PortKind, PortNumber, RegisterAccess};
use crate::identity::Identity;
use crate::management::NodeProfile;
use crate::memory::GuestRange;
use crate::net::address::Addresses;
use crate::net::lid::{Grh, Route};
use crate::telemetry::reason::IgnoreReason;
use crate::vfio::{Bar, Bars, MemoryBar, MsixLayout, PciFunction};

/// A device with a simple interface. BAR 2 is its doorbell: a write there copies the written bytes to bus address 0 and
/// raises vector 1. A write to offset 8 of BAR 0 sends a message from QP 1 to QP 2, and a write to offset 16 sends a
/// datagram from QP 3 to a group that QP 3 has joined.
#[derive(Default)]
pub struct Stub {
    pub log: Vec<String>,
    pub queues: Queues,
    pub dma_failed: bool,
    pub turns: usize,
}

#[derive(Default)]
pub struct Queues {
    pub(super) sends: VecDeque<SendRequest>,
    pub received: Vec<u8>,
}

pub struct StubHost<'a>(&'a mut Queues);

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
            always_answers_perf: false,
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

    fn handle_event(&mut self, _: &mut Context<'_>, event: &Event) {
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

/// The IPoIB broadcast group.
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
    type Range = GuestRange;

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

    fn write(
        &mut self,
        _: Initiator,
        _: Lkey,
        _: Va,
        data: PayloadRef<'_>,
        _: Access,
    ) -> Result<(), AccessError> {
        self.0.received.extend(data.to_vec());
        Ok(())
    }

    fn atomic(&mut self, _: Initiator, _: Lkey, _: Va, _: AtomicOp) -> Result<u64, AccessError> {
        Err(AccessError::Key)
    }
}
