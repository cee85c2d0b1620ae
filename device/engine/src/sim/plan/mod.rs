//! What happens in a simulated run: machines, queue pairs, work and the doings of software, all drawn before it begins.
//!
//! Two queue pairs that talk make a *pair*; the time from one connection to the next RESET is a *life*. Each side of a
//! pair has four regions on its node:
//!
//! - SOURCE: random bytes that nobody writes; gathered from, and READ by the peer;
//! - TARGET: one area per message that arrives here, with gaps that nobody may touch;
//! - HOT: WRITEs overlap here, so that their order shows;
//! - PRIVATE: no rights for anybody but its owner, for requests that must fail.
//!
//! Besides, each protection domain of a node has CELLS: words for the atomics of all its queue pairs; and a pair has keys
//! that lead to parts of these regions while work requests or peers let them.

pub(in crate::sim) mod draw;
mod keys;
mod reliable;
mod script;
mod unreliable;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};

use protocol::ids::{FlowLabel, Lkey, MacAddr, Pdn, Pkey, Qkey, Qpn, Rkey, Va};
use protocol::net::ipv4::Fragmentation;
use protocol::roce::{Encap, IpAddrs};
use protocol::{Psn, roce};

use super::host::Key;
use super::net::Faults;
use crate::{
    AckTimeout, Flush, GrhArea, Instant, Mtu, QpAttrs, Remote, RemoteAccess, RnrRetry, RnrTimer, SendOp,
    SendRequest, Service, Sge, State, Status,
};

pub use draw::draw;

/// Region numbers of a side.
pub const SOURCE: u32 = 1;
/// See [`SOURCE`].
pub const TARGET: u32 = 2;
/// See [`SOURCE`].
pub const HOT: u32 = 3;
/// See [`SOURCE`].
pub const PRIVATE: u32 = 4;
/// Region number of the cells, which belong to no side.
pub const CELLS: u32 = 5;
/// Region number of the slots of a shared receive queue.
pub const SHARED: u32 = 6;

/// Bytes of HOT.
pub const HOT_BYTES: usize = 8192;
/// Bytes of PRIVATE.
pub const PRIVATE_BYTES: usize = 4096;
/// Bytes of CELLS.
pub const CELLS_BYTES: usize = 32;
/// Protection domains in use.
pub const PDS: u32 = 2;
/// Receive requests that a shared queue's software has.
pub const SLOTS: usize = 32;
/// Destination QP of packets to groups.
pub const GROUP_QPN: Qpn = Qpn::new(0xff_ffff);

/// A range of a region of one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Area {
    /// Region number.
    pub region: u32,
    /// First byte.
    pub offset: usize,
    /// Bytes.
    pub len: usize,
}

/// A send request and its effect.
#[derive(Clone, Debug)]
pub struct Op {
    /// As posted.
    pub request: SendRequest,
    /// Bytes of the message.
    pub len: u32,
    /// Where the bytes come from: own areas, or the peer's for a READ.
    pub from: Vec<Area>,
    /// Where they go to: the peer's areas, or own ones for READs and atomics. Empty where the receiver's next request
    /// decides (SENDs of UC and UD). Of a request that fails: what it may leave half written.
    pub to: Vec<Area>,
    /// How it must complete when it gets its turn: success, or one of these.
    pub fails: Vec<Status>,
    /// It completes, but the receiver must refuse it.
    pub refused: bool,
}

/// A receive request.
#[derive(Clone, Debug)]
pub struct Recv {
    /// Where it lets messages go.
    pub areas: Vec<Area>,
    /// It must complete with this if the message meant for it is refused for its sake.
    pub fails: Option<Status>,
}

/// Work of one side in one life.
#[derive(Clone, Debug, Default)]
pub struct Work {
    /// First PSN it sends.
    pub psn: Psn,
    /// Send requests in posting order.
    pub ops: Vec<Op>,
    /// Receive requests in posting order. RC: the n-th is for the peer's n-th message that takes one.
    pub recvs: Vec<Recv>,
}

/// From a connection to the next RESET.
#[derive(Clone, Debug)]
pub struct Life {
    /// Of each side.
    pub sides: [Work; 2],
    /// Timeouts and sequence NAKs before failure. Below 7 the net may exhaust them.
    pub retry_count: u8,
    /// RNR NAKs obeyed.
    pub rnr_retry: RnrRetry,
    /// Nanoseconds that side 1 stays in RTR.
    pub late_ns: u64,
}

/// What stays of a side from life to life.
#[derive(Clone, Debug)]
pub struct End {
    /// Node it is on.
    pub node: usize,
    /// Its QP.
    pub qpn: Qpn,
    /// Content of SOURCE.
    pub source: Vec<u8>,
    /// Size of TARGET.
    pub target_len: usize,
    /// Queue key (UD).
    pub qkey: Qkey,
    /// The queue it takes its receive requests from, if that is shared.
    pub srq: Option<usize>,
    /// Its entry of the node's P_Key table, in the beginning and after each connection.
    pub pkey: Pkey,
    /// Who completes what it leaves behind in ERR.
    pub flush: Flush,
}

/// Two queue pairs.
#[derive(Clone, Debug)]
pub struct Pair {
    /// Place in the plan.
    pub index: usize,
    /// Service of both.
    pub service: Service,
    /// Protection domain of both.
    pub pd: u32,
    /// Path MTU.
    pub mtu: Mtu,
    /// Both sides.
    pub ends: [End; 2],
    /// At least one.
    pub lives: Vec<Life>,
    /// ACK timeout.
    pub ack_timeout: AckTimeout,
    /// RNR timer code.
    pub rnr_timer: u8,
    /// READs and atomics outstanding.
    pub rd_atomic: u8,
    /// What is in front of datagrams.
    pub grh_area: GrhArea,
    /// Keys that work requests change, each with its side, as they are before the first life. Each is of one life.
    pub keys: Vec<(usize, Key)>,
}

/// A multicast group.
#[derive(Clone, Debug)]
pub struct Group {
    /// Its MGID.
    pub gid: Ipv6Addr,
    /// Pairs and sides that are attached, of any service.
    pub members: Vec<(usize, usize)>,
}

/// A doing of software, or a change of the net.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Posts the next `count` send requests of a side and rings.
    Send {
        /// Pair.
        pair: usize,
        /// Side.
        side: usize,
        /// Requests.
        count: usize,
    },
    /// Posts the next `count` receive requests of a side.
    Recv {
        /// Pair.
        pair: usize,
        /// Side.
        side: usize,
        /// Requests.
        count: usize,
    },
    /// Posts requests to a shared queue, as far as there are slots.
    Share {
        /// The queue.
        srq: usize,
        /// Requests.
        count: usize,
    },
    /// Moves a QP, if that is a legal move from where it is.
    Move {
        /// Pair.
        pair: usize,
        /// Side.
        side: usize,
        /// New state.
        to: State,
    },
    /// Both sides go from RESET to RTS, side 1 perhaps to RTR only, and begin their next life.
    Connect {
        /// Pair.
        pair: usize,
    },
    /// A side's entry of the P_Key table is replaced, until the pair is connected anew.
    Partition {
        /// Pair.
        pair: usize,
        /// Side.
        side: usize,
        /// New entry.
        pkey: Pkey,
    },
    /// The net loses everything for a side, until it is connected anew.
    Silence {
        /// Pair.
        pair: usize,
        /// Side that hears nothing any more.
        side: usize,
    },
}

/// Everything about a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Of the net.
    pub faults: Faults,
    /// When the net is healed.
    pub heal_at: Instant,
    /// Of the engines.
    pub window_packets: u32,
    /// Frames that a node's link takes at once; the next ones a microsecond later.
    pub frames_per_step: u32,
    /// Whether nodes tell of their posted receive requests.
    pub credits: bool,
    /// Queue pairs.
    pub pairs: Vec<Pair>,
    /// Groups.
    pub groups: Vec<Group>,
    /// Bytes of a request of each shared queue that is in use.
    pub slots: BTreeMap<usize, usize>,
    /// In order of time.
    pub actions: Vec<(Instant, Action)>,
}

/// Address of a region's first byte.
pub fn va(region: u32) -> u64 {
    u64::from(region) << 32 | 0x7f0
}

/// Key of the cells of a protection domain.
pub fn cells_key(pd: u32) -> u32 {
    pd
}

/// The way from node to node.
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

/// The way from a node to a group.
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

/// Nodes that a frame to an address arrives at.
pub fn nodes_of(mac: MacAddr) -> std::ops::Range<usize> {
    if mac.is_multicast() {
        return 0..draw::NODES;
    }
    let node = usize::from(mac.0[5]) - 1;
    node..node + 1
}

/// Key of the slots of a shared queue.
pub fn slots_key(srq: usize) -> u32 {
    u32::try_from(0x100_0000 + srq).expect("there are few queues")
}

/// The shared queue of a node and a protection domain.
pub fn srq_of(node: usize, pd: u32) -> usize {
    node * PDS as usize + pd as usize - 1
}

impl Pair {
    /// Key of a region of a side.
    pub fn key(&self, side: usize, region: u32) -> u32 {
        match (region, self.ends[side].srq) {
            (CELLS, _) => cells_key(self.pd),
            (SHARED, Some(srq)) => slots_key(srq),
            _ => key_base(self.index, side) + region,
        }
    }

    /// Scatter or gather list of areas of a side.
    pub fn sges(&self, side: usize, areas: &[Area]) -> Vec<Sge> {
        let sge = |area: &Area| Sge {
            va: Va::new(va(area.region) + area.offset as u64),
            lkey: Lkey::new(self.key(side, area.region)),
            len: u32::try_from(area.len).expect("areas are small"),
        };
        areas.iter().map(sge).collect()
    }

    /// An area of a side as its peer names it.
    pub fn remote(&self, side: usize, area: Area) -> Remote {
        let rkey = Lkey::new(self.key(side, area.region)).as_rkey();
        Remote { va: Va::new(va(area.region) + area.offset as u64), rkey }
    }

    /// Bytes of areas of a side's SOURCE.
    pub fn source_bytes(&self, side: usize, areas: &[Area]) -> Vec<u8> {
        let source = &self.ends[side].source;
        areas.iter().flat_map(|area| &source[area.offset..area.offset + area.len]).copied().collect()
    }

    /// Attributes of a side in a life.
    pub fn attrs(&self, side: usize, life: usize) -> QpAttrs {
        let (mine, theirs) = (&self.ends[side], &self.ends[1 - side]);
        QpAttrs {
            service: self.service,
            pd: Pdn::new(self.pd),
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

    /// The next area of a side's TARGET.
    fn allocate(&mut self, side: usize, len: usize) -> Area {
        /// Bytes between two areas.
        const GAP: usize = 8;
        let end = &mut self.ends[side];
        let offset = end.target_len + GAP;
        end.target_len = offset + len + GAP;
        Area { region: TARGET, offset, len }
    }
}

impl Op {
    /// Whether the message takes a receive request.
    pub fn takes_receive(&self) -> bool {
        self.request.op.consumes_receive()
    }

    /// Whether data comes back.
    pub fn wants_data(&self) -> bool {
        matches!(self.request.op, SendOp::Read { .. }) || self.is_atomic()
    }

    /// The peer's key that it invalidates.
    pub fn invalidates(&self) -> Option<Rkey> {
        match self.request.op {
            SendOp::SendInvalidate { rkey } => Some(rkey),
            _ => None,
        }
    }

    /// The own key that it invalidates once its data is there.
    pub fn ends_key(&self) -> Option<Lkey> {
        match self.request.op {
            SendOp::Read { invalidate, .. } => invalidate,
            _ => None,
        }
    }

    /// Whether it is work on a key, and nothing else.
    pub fn is_local(&self) -> bool {
        matches!(self.request.op, SendOp::Local(_))
    }

    /// CMP_SWAP or FETCH_ADD.
    pub fn is_atomic(&self) -> bool {
        matches!(self.request.op, SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. })
    }

    /// Immediate data.
    pub fn imm(&self) -> Option<roce::Imm> {
        match self.request.op {
            SendOp::Send { imm } | SendOp::Write { imm, .. } => imm,
            _ => None,
        }
    }

    /// PSNs it takes.
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

/// Place of a side's entry in the P_Key table of its node.
pub fn pkey_index(pair: usize, side: usize) -> u16 {
    u16::try_from(1 + pair * 2 + side).expect("there are few pairs")
}

fn key_base(pair: usize, side: usize) -> u32 {
    16 * u32::try_from(pair * 2 + side + 1).expect("there are few pairs")
}
