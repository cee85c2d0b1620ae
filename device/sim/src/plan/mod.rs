//! The plan for a simulated run: nodes, queue pairs, requests and software actions, all drawn before the run.
//!
//! A *pair* is two queue pairs connected to each other (for XRC, an initiator and its target). A pair can be connected
//! several times in a row; each connection, up to the next RESET, is called a *life*. Each side of a pair has four
//! regions on its node:
//!
//! - SOURCE: random bytes that never change, used for gathers and for READs by the peer;
//! - TARGET: one area per incoming message, separated by gaps that must not be written;
//! - HOT: the target of overlapping WRITEs, which reveal wrong ordering;
//! - PRIVATE: a region without remote permissions, for requests that must fail.
//!
//! Each protection domain of a node also has a CELLS region. Its words are the targets of atomics by all queue pairs of
//! the domain. A pair also has keys for parts of its sides' regions. Such a key is valid until a work request or the
//! peer invalidates it.

pub(crate) mod draw;
mod keys;
mod reliable;
mod script;
mod unreliable;
mod xrc;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};

use protocol::ids::{FlowLabel, Lkey, MacAddr, Pdn, Pkey, Qkey, Qpn, Rkey, Srqn, Va};
use protocol::net::ipv4::Fragmentation;
use protocol::roce::{Encap, IpAddrs};
use protocol::{Psn, roce};

use super::host::Key;
use super::net::Faults;
use engine::{
    AckTimeout, Flush, GrhArea, Instant, Mtu, QpAttrs, Remote, RemoteAccess, RnrRetry, RnrTimer, SendOp,
    SendRequest, Service, Sge, State, Status,
};

pub use draw::draw;
pub(crate) use xrc::draw_target_srq;
pub use xrc::{XRC_SRQS, XrcSrqId};

pub const SOURCE: u32 = 1;
pub const TARGET: u32 = 2;
pub const HOT: u32 = 3;
pub const PRIVATE: u32 = 4;
pub const CELLS: u32 = 5;
/// Region that holds the buffers of a shared receive queue.
pub const SHARED: u32 = 6;

/// Size of the GRH at the start of a UD receive buffer, in bytes.
pub const GRH_BYTES: usize = 40;
pub const HOT_BYTES: usize = 8192;
pub const PRIVATE_BYTES: usize = 4096;
pub const CELLS_BYTES: usize = 32;
/// Number of protection domains on each node, not counting [`KERNEL_PD`].
pub const PDS: u32 = 2;
/// Protection domain of XRC targets. It has no memory regions.
pub const KERNEL_PD: u32 = 9;
/// Number of receive slots in a shared receive queue.
pub const SLOTS: usize = 32;
/// Destination QP number of multicast packets.
pub const GROUP_QPN: Qpn = Qpn::new(0xff_ffff);

/// A range in one of a side's regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Area {
    pub region: u32,
    pub offset: usize,
    pub len: usize,
}

/// A send request and its expected effect.
#[derive(Clone, Debug)]
pub struct Op {
    pub request: SendRequest,
    /// Message length in bytes.
    pub len: u32,
    /// Source of the data: local areas or, for a READ, areas of the peer.
    pub from: Vec<Area>,
    /// Destination of the data: areas of the peer or, for READs and atomics, local areas. Empty if the receiver's next
    /// receive request determines the destination (SENDs on UC and UD). For a request that fails, the areas may be
    /// partly written.
    pub to: Vec<Area>,
    /// Error statuses that the request may complete with. Empty if the request must succeed.
    pub fails: Vec<Status>,
    /// Whether the receiver must reject the message although the request completes successfully.
    pub refused: bool,
    /// For XRC, an SRQ number that replaces the requested one in all packets except the first, as if the peer were
    /// hostile.
    pub changes_srq: Option<Srqn>,
}

#[derive(Clone, Debug)]
pub struct Recv {
    pub areas: Vec<Area>,
    /// Error status of this receive request's completion, if the message that consumes it must be rejected.
    pub fails: Option<Status>,
}

/// Requests posted by one side during one life.
#[derive(Clone, Debug, Default)]
pub struct Work {
    /// PSN of the first packet sent.
    pub psn: Psn,
    /// Send requests in posting order.
    pub ops: Vec<Op>,
    /// Receive requests in posting order. Some of the peer's messages consume a receive request. On RC, the n-th such
    /// message consumes the n-th receive request.
    pub recvs: Vec<Recv>,
}

/// One connection of a pair, up to the next RESET.
#[derive(Clone, Debug)]
pub struct Connection {
    pub sides: [Work; 2],
    /// Retry limit for timeouts and sequence NAKs. A limit below 7 can be exhausted by network faults.
    pub retry_count: u8,
    pub rnr_retry: RnrRetry,
    /// How long side 1 stays in RTR, in nanoseconds.
    pub late_ns: u64,
}

/// Properties of a side that persist across lives.
#[derive(Clone, Debug)]
pub struct End {
    pub node: usize,
    pub qpn: Qpn,
    /// Initial content of the SOURCE region.
    pub source: Vec<u8>,
    /// Size of the TARGET region in bytes.
    pub target_len: usize,
    pub qkey: Qkey,
    /// Shared receive queue, if the side uses one.
    pub srq: Option<usize>,
    /// P_Key of the side, restored whenever the pair is connected.
    pub pkey: Pkey,
    /// Whether the engine or its owner flushes requests in ERR.
    pub flush: Flush,
}

#[derive(Clone, Debug)]
pub struct Pair {
    pub index: usize,
    /// Transport service; for XRC, side 0 is the initiator and side 1 the target.
    pub service: Service,
    /// Protection domain of both sides. An XRC target is in [`KERNEL_PD`] instead, but its memory is in this domain.
    pub pd: u32,
    /// XRC domain of the target.
    pub xrc_domain: u32,
    pub mtu: Mtu,
    pub ends: [End; 2],
    /// Successive lives of the pair, at least one.
    pub lives: Vec<Connection>,
    pub ack_timeout: AckTimeout,
    pub rnr_timer: u8,
    /// Maximum number of outstanding READs and atomics.
    pub rd_atomic: u8,
    /// Layout of the GRH area in front of received datagrams.
    pub grh_area: GrhArea,
    /// Keys that work requests can modify, as pairs of side and initial state. Each key is used in only one life.
    pub keys: Vec<(usize, Key)>,
}

#[derive(Clone, Debug)]
pub struct Group {
    pub gid: Ipv6Addr,
    /// Attached QPs of any service, as pairs of `Pair::index` and side.
    pub members: Vec<(usize, usize)>,
}

/// An action by software, or a change in the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Posts a side's next `count` send requests and rings the doorbell.
    Send { pair: usize, side: usize, count: usize },
    /// Posts a side's next `count` receive requests.
    Recv { pair: usize, side: usize, count: usize },
    /// Posts up to `count` requests to a shared queue, limited by its free slots.
    Share { srq: usize, count: usize },
    /// Moves a QP to another state if the transition is legal.
    Move { pair: usize, side: usize, to: State },
    /// Moves both sides from RESET to RTS and starts their next life. If the connection has a nonzero `late_ns`, side 1
    /// stays in RTR for that time.
    Connect { pair: usize },
    /// Replaces a side's P_Key until the pair is connected again.
    Partition { pair: usize, side: usize, pkey: Pkey },
    /// Makes the network lose every packet to a side until the pair is connected again.
    Silence { pair: usize, side: usize },
}

#[derive(Clone, Debug)]
pub struct Plan {
    pub faults: Faults,
    /// Time at which the network faults end.
    pub heal_at: Instant,
    /// Maximum number of unacknowledged packets per QP.
    pub window_packets: u32,
    /// Number of frames that a node's link accepts per microsecond.
    pub frames_per_step: u32,
    /// Whether responders advertise credits.
    pub credits: bool,
    pub pairs: Vec<Pair>,
    pub groups: Vec<Group>,
    /// Buffer size, in bytes, of each shared queue in use, by queue number.
    pub slots: BTreeMap<usize, usize>,
    /// Actions, ordered by time.
    pub actions: Vec<(Instant, Action)>,
}

/// Returns the start address of a region.
pub fn va(region: u32) -> u64 {
    u64::from(region) << 32 | 0x7f0
}

pub fn cells_key(pd: u32) -> u32 {
    pd
}

/// Returns the path between two nodes.
pub fn path(from: usize, to: usize) -> Encap {
    let octet = |node: usize| u8::try_from(node + 1).expect("there are few nodes");
    let mac = |node| MacAddr([2, 0, 0, 0, 0, octet(node)]);
    let ip = |node| Ipv4Addr::new(10, 77, 0, octet(node));
    Encap {
        src_mac: mac(from),
        dst_mac: mac(to),
        ip: IpAddrs::V4 { src: ip(from), dst: ip(to) },
        traffic_class: 0,
        flow_label: FlowLabel::default(),
        hop_limit: 64,
        fragment: Fragmentation::default(),
        tag: None,
        src_port: 49152,
    }
}

/// Returns the path from a node to a multicast group.
pub fn group_path(from: usize, gid: Ipv6Addr) -> Encap {
    let [.., a, b, c, d] = gid.octets();
    let src = Ipv6Addr::new(
        0xfe80,
        0,
        0,
        0,
        0,
        0xff,
        0xfe00,
        u16::try_from(from + 1).expect("there are few nodes"),
    );
    let dst_mac = MacAddr([0x33, 0x33, a, b, c, d]);
    Encap { dst_mac, ip: IpAddrs::V6 { src, dst: gid }, ..path(from, from) }
}

/// Returns the nodes that receive a frame addressed to a MAC address.
pub fn nodes_of(mac: MacAddr) -> std::ops::Range<usize> {
    if mac.is_multicast() {
        return 0..draw::NODES;
    }
    let node = usize::from(mac.0[5]) - 1;
    node..node + 1
}

/// Returns the key of a shared queue's buffers.
pub fn slots_key(srq: usize) -> u32 {
    u32::try_from(0x100_0000 + srq).expect("there are few queues")
}

/// Returns the index of a node's shared queue for a protection domain.
pub fn srq_of(node: usize, pd: u32) -> usize {
    node * PDS as usize + pd as usize - 1
}

pub fn node_of_srq(srq: usize) -> usize {
    XrcSrqId::of(srq).map_or(srq / PDS as usize, |id| id.node)
}

pub fn pd_of_srq(srq: usize) -> u32 {
    let pd = || u32::try_from(srq % PDS as usize + 1).expect("there are few protection domains");
    XrcSrqId::of(srq).map_or_else(pd, XrcSrqId::pd)
}

impl Pair {
    /// Returns whether the service acknowledges and retries requests.
    pub fn is_reliable(&self) -> bool {
        self.service.is_reliable()
    }

    /// Returns whether the pair is an XRC initiator and its target.
    pub fn is_xrc(&self) -> bool {
        self.service == Service::XrcIni
    }

    pub fn service_of(&self, side: usize) -> Service {
        if self.is_xrc() && side == 1 { Service::XrcTgt } else { self.service }
    }

    /// Returns whether a side's receive requests come from shared queues.
    pub fn shares_receives(&self, side: usize) -> bool {
        self.ends[side].srq.is_some() || self.service_of(side) == Service::XrcTgt
    }

    /// Returns the key of a side's region. The buffers of XRC SRQs belong to no side; see [`slots_key`].
    pub fn key(&self, side: usize, region: u32) -> u32 {
        match (region, self.ends[side].srq) {
            (CELLS, _) => cells_key(self.pd),
            (SHARED, Some(srq)) => slots_key(srq),
            _ => key_base(self.index, side) + region,
        }
    }

    /// Returns a scatter/gather list that covers a side's `areas`.
    pub fn sges(&self, side: usize, areas: &[Area]) -> Vec<Sge> {
        let sge = |area: &Area| Sge {
            va: Va::new(va(area.region) + area.offset as u64),
            lkey: Lkey::new(self.key(side, area.region)),
            len: u32::try_from(area.len).expect("areas are small"),
        };
        areas.iter().map(sge).collect()
    }

    /// Returns the address and key that a side's peer uses to access `area`.
    pub fn remote(&self, side: usize, area: Area) -> Remote {
        let rkey = Lkey::new(self.key(side, area.region)).as_rkey();
        Remote { va: Va::new(va(area.region) + area.offset as u64), rkey }
    }

    /// Returns the content of areas in a side's SOURCE region.
    pub fn source_bytes(&self, side: usize, areas: &[Area]) -> Vec<u8> {
        let source = &self.ends[side].source;
        areas.iter().flat_map(|area| &source[area.offset..area.offset + area.len]).copied().collect()
    }

    /// Returns a side's QP attributes during a life.
    pub fn attrs(&self, side: usize, life: usize) -> QpAttrs {
        let (mine, theirs) = (&self.ends[side], &self.ends[1 - side]);
        QpAttrs {
            service: self.service_of(side),
            pd: Pdn::new(if self.service_of(side) == Service::XrcTgt { KERNEL_PD } else { self.pd }),
            mtu: self.mtu,
            alias: None,
            max_message_len: 1 << 31,
            remote_qpn: theirs.qpn,
            path: path(mine.node, theirs.node),
            own_address: true,
            pkey_index: pkey_index(self.index, side),
            qkey: mine.qkey,
            any_qkey: mine.qkey == Qkey::default(),
            ack_timeout: Some(self.ack_timeout),
            retry_count: self.lives[life].retry_count,
            rnr_retry: self.lives[life].rnr_retry,
            min_rnr_timer: RnrTimer::new(self.rnr_timer),
            max_rnr_timer: RnrTimer::new(self.rnr_timer),
            max_rd_atomic: self.rd_atomic,
            max_dest_rd_atomic: self.rd_atomic,
            remote: RemoteAccess::ALL,
            grh_area: self.grh_area,
            srq: mine.srq.is_some(),
            reserved_lkey: false,
            flush: mine.flush,
        }
    }

    /// Allocates the next area in a side's TARGET region.
    fn allocate(&mut self, side: usize, len: usize) -> Area {
        /// Size of the gap before and after each area, in bytes.
        const GAP: usize = 8;
        let end = &mut self.ends[side];
        let offset = end.target_len + GAP;
        end.target_len = offset + len + GAP;
        Area { region: TARGET, offset, len }
    }
}

impl Op {
    /// Returns whether the message consumes a receive request.
    pub fn takes_receive(&self) -> bool {
        self.request.op.consumes_receive()
    }

    /// Returns whether the response carries data.
    pub fn returns_data(&self) -> bool {
        matches!(self.request.op, SendOp::Read { .. }) || self.is_atomic()
    }

    /// Returns the peer's key that the request invalidates.
    pub fn invalidates(&self) -> Option<Rkey> {
        match self.request.op {
            SendOp::SendInvalidate { rkey } => Some(rkey),
            _ => None,
        }
    }

    /// Returns the local key invalidated by a READ once all its data has arrived.
    pub fn ends_key(&self) -> Option<Lkey> {
        match self.request.op {
            SendOp::Read { invalidate, .. } => invalidate,
            _ => None,
        }
    }

    pub fn is_local(&self) -> bool {
        matches!(self.request.op, SendOp::Local(_))
    }

    pub fn is_atomic(&self) -> bool {
        matches!(self.request.op, SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. })
    }

    pub fn imm(&self) -> Option<roce::Imm> {
        match self.request.op {
            SendOp::Send { imm } | SendOp::Write { imm, .. } => imm,
            _ => None,
        }
    }

    /// Returns the number of PSNs that the request consumes.
    pub fn packets(&self, mtu: Mtu) -> u32 {
        let refused_at_once = self.fails.iter().any(|fate| {
            matches!(fate, Status::LocalLength | Status::LocalQpOperation) && self.request.op != SendOp::Nop
        });
        if refused_at_once || matches!(self.request.op, SendOp::Nop | SendOp::Local(_)) {
            return 0;
        }
        u32::try_from((self.len as usize).div_ceil(mtu.bytes()).max(1)).expect("messages are short")
    }
}

/// Returns the index of a side's entry in its node's P_Key table.
pub fn pkey_index(pair: usize, side: usize) -> u16 {
    u16::try_from(1 + pair * 2 + side).expect("there are few pairs")
}

fn key_base(pair: usize, side: usize) -> u32 {
    16 * u32::try_from(pair * 2 + side + 1).expect("there are few pairs")
}
