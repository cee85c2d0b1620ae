//! Rows for the netdev's queues, the objects that distribute frames among them, and the link.

use card::frontend::snapshot::LinkRow;
use card::frontend::table::{Row, TableSpec, or_dash};
use card::net::address::Addresses;
use protocol::hca::mlx5::sq::WorkQueueState;
use protocol::hca::mlx5::tir::{Dispatch, HashFunction};
use serde::Serialize;

use crate::limits::GBPS;
use crate::netdev::Queue;
use crate::netdev::rq::Rq;
use crate::netdev::rqt::Rqt;
use crate::netdev::sq::Sq;
use crate::netdev::status::{FailedAt, QueueCounters, QueueStatus};
use crate::netdev::tir::Tir;
use crate::resources::Resources;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct SqRow {
    pub(super) sqn: u32,
    pub(super) status: QueueStatus,
    /// WQE that moved the SQ to the error state, and its syndrome.
    pub(super) failure: Option<Failure>,
    pub(super) cqn: u32,
    /// TIS; `None` if the SQ cannot send frames.
    pub(super) tisn: Option<u32>,
    pub(super) pd: u32,
    /// Number of 64-byte blocks.
    pub(super) blocks: u32,
    /// Number of posted blocks that have not been executed.
    pub(super) waiting: u16,
    pub(super) frames: u64,
    pub(super) bytes: u64,
    /// Number of frames dropped because they exceeded the MTU or because the link was down.
    pub(super) dropped: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct RqRow {
    pub(super) rqn: u32,
    pub(super) status: QueueStatus,
    /// Receive that moved the RQ to the error state, and its syndrome.
    pub(super) failure: Option<Failure>,
    pub(super) cqn: u32,
    pub(super) pd: u32,
    /// Q counter set, or 0.
    pub(super) counter_set: u8,
    pub(super) entries: u32,
    /// Number of receives consumed, modulo 2^16.
    pub(super) consumed: u16,
    pub(super) frames: u64,
    pub(super) bytes: u64,
    pub(super) dropped: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Failure {
    /// WQE counter of the failed request, as reported in the CQE.
    pub(super) wr: u16,
    pub(super) syndrome: &'static str,
}

impl From<FailedAt> for Failure {
    fn from(failed: FailedAt) -> Self {
        Self { wr: failed.index, syndrome: failed.syndrome.name() }
    }
}

impl Failure {
    fn text(&self) -> String {
        format!("{:#x}:{}", self.wr, self.syndrome)
    }
}

/// Returns the SQs in ascending order of SQN, starting at `from`.
pub(super) fn sqs(all: &Resources, from: u32) -> impl Iterator<Item = (u32, SqRow)> {
    all.netdev.queues.iter_from(from).filter_map(|(number, queue)| match queue {
        Queue::Send(sq) => Some((number, SqRow::new(sq))),
        Queue::Receive(_) => None,
    })
}

/// Returns the RQs in ascending order of RQN, starting at `from`.
pub(super) fn rqs(all: &Resources, from: u32) -> impl Iterator<Item = (u32, RqRow)> {
    all.netdev.queues.iter_from(from).filter_map(|(number, queue)| match queue {
        Queue::Receive(rq) => Some((number, RqRow::new(rq))),
        Queue::Send(_) => None,
    })
}

impl SqRow {
    fn new(sq: &Sq) -> Self {
        let QueueCounters { frames, bytes, dropped } = sq.counters;
        let context = sq.context();
        Self {
            sqn: sq.sqn().get(),
            status: sq.status(),
            failure: sq.failure().map(Failure::from),
            cqn: context.cqn.get(),
            tisn: context.tis().map(|tisn| tisn.get()),
            pd: context.queue.pd.get(),
            blocks: sq.queue().blocks(),
            waiting: if sq.state() == WorkQueueState::Reset { 0 } else { sq.queue().waiting() },
            frames,
            bytes,
            dropped,
        }
    }
}

impl RqRow {
    fn new(rq: &Rq) -> Self {
        let QueueCounters { frames, bytes, dropped } = rq.counters;
        let context = rq.context();
        Self {
            rqn: rq.rqn().get(),
            status: rq.status(),
            failure: rq.failure().map(Failure::from),
            cqn: context.cqn.get(),
            pd: context.queue.pd.get(),
            counter_set: context.counter_set.get(),
            entries: rq.queue().entries(),
            consumed: rq.queue().taken(),
            frames,
            bytes,
            dropped,
        }
    }
}

impl Row for SqRow {
    const TABLE: &'static TableSpec = &TableSpec {
        name: "sqs",
        help: "send queues (SQs) of the netdev: status, WQEs, frame counts",
        columns: &[
            "SQN", "STATUS", "FAILURE", "CQN", "TIS", "PD", "BLOCKS", "WAITING", "FRAMES", "BYTES", "DROPPED",
        ],
    };

    fn cells(&self) -> Vec<String> {
        vec![
            format!("{:#x}", self.sqn),
            self.status.name().to_owned(),
            or_dash(self.failure.as_ref().map(Failure::text)),
            format!("{:#x}", self.cqn),
            or_dash(self.tisn),
            self.pd.to_string(),
            self.blocks.to_string(),
            self.waiting.to_string(),
            self.frames.to_string(),
            self.bytes.to_string(),
            self.dropped.to_string(),
        ]
    }
}

impl Row for RqRow {
    const TABLE: &'static TableSpec = &TableSpec {
        name: "rqs",
        help: "receive queues (RQs) of the netdev: status, receives, frame counts",
        columns: &[
            "RQN", "STATUS", "FAILURE", "CQN", "PD", "COUNTERS", "ENTRIES", "CONSUMED", "FRAMES", "BYTES",
            "DROPPED",
        ],
    };

    fn cells(&self) -> Vec<String> {
        vec![
            format!("{:#x}", self.rqn),
            self.status.name().to_owned(),
            or_dash(self.failure.as_ref().map(Failure::text)),
            format!("{:#x}", self.cqn),
            self.pd.to_string(),
            self.counter_set.to_string(),
            self.entries.to_string(),
            self.consumed.to_string(),
            self.frames.to_string(),
            self.bytes.to_string(),
            self.dropped.to_string(),
        ]
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct TirRow {
    pub(super) tirn: u32,
    /// RQ of a direct TIR.
    pub(super) rqn: Option<u32>,
    /// RQT of an indirect TIR.
    pub(super) rqtn: Option<u32>,
    pub(super) domain: u32,
    /// Hash function: `none`, `xor` or `toeplitz`.
    pub(super) hash: &'static str,
    /// Fields that the hash covers.
    pub(super) hashed: Vec<&'static str>,
    /// Whether the TIR receives unicast frames from SQs of its transport domain.
    pub(super) unicast_loopback: bool,
    /// Whether the TIR receives multicast frames from SQs of its transport domain.
    pub(super) multicast_loopback: bool,
}

impl TirRow {
    pub(super) fn new(tirn: u32, tir: &Tir) -> Self {
        let context = tir.context();
        let is_indirect = Dispatch::from_code(context.dispatch) == Some(Dispatch::Indirect);
        let function = HashFunction::from_code(context.hash_function).unwrap_or(HashFunction::None);
        let fields = &context.fields;
        let hashed = [
            (fields.source_ip, if fields.ipv6 { "src_ipv6" } else { "src_ipv4" }),
            (fields.destination_ip, if fields.ipv6 { "dst_ipv6" } else { "dst_ipv4" }),
            (fields.source_port, if fields.udp { "udp_src_port" } else { "tcp_src_port" }),
            (fields.destination_port, if fields.udp { "udp_dst_port" } else { "tcp_dst_port" }),
            (fields.spi, "spi"),
        ];
        let is_hashed = function != HashFunction::None;
        Self {
            tirn,
            rqn: (!is_indirect).then_some(context.rqn.get()),
            rqtn: is_indirect.then_some(context.rqtn.get()),
            domain: context.domain.get(),
            hash: function.name(),
            hashed: hashed.into_iter().filter_map(|(on, name)| (on && is_hashed).then_some(name)).collect(),
            unicast_loopback: context.unicast_loopback,
            multicast_loopback: context.multicast_loopback,
        }
    }
}

impl Row for TirRow {
    const TABLE: &'static TableSpec = &TableSpec {
        name: "tirs",
        help: "receive objects (TIRs) of the netdev: queue or RQT, hash, loopback",
        columns: &["TIRN", "RQN", "RQT", "DOMAIN", "HASH", "HASHED", "LOOPBACK"],
    };

    fn cells(&self) -> Vec<String> {
        let loopback = match (self.unicast_loopback, self.multicast_loopback) {
            (false, false) => "none",
            (true, false) => "unicast",
            (false, true) => "multicast",
            (true, true) => "all",
        };
        vec![
            self.tirn.to_string(),
            or_dash(self.rqn.map(|rqn| format!("{rqn:#x}"))),
            or_dash(self.rqtn),
            self.domain.to_string(),
            self.hash.to_owned(),
            or_dash(Some(self.hashed.join(",")).filter(|hashed| !hashed.is_empty())),
            loopback.to_owned(),
        ]
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct RqtRow {
    pub(super) rqtn: u32,
    pub(super) max_entries: u16,
    /// RQN in each entry.
    pub(super) queues: Vec<u32>,
}

impl RqtRow {
    pub(super) fn new(rqtn: u32, rqt: &Rqt) -> Self {
        let queues = rqt.queues().iter().map(|rqn| rqn.get()).collect();
        Self { rqtn, max_entries: rqt.context().max_entries, queues }
    }
}

impl Row for RqtRow {
    const TABLE: &'static TableSpec = &TableSpec {
        name: "rqts",
        help: "receive queue tables (RQTs) of the netdev: the RQ of each hash value",
        columns: &["RQT", "ENTRIES", "MAX", "QUEUES"],
    };

    /// Formats the row as text. Each RQ is shown with the number of entries that contain it.
    fn cells(&self) -> Vec<String> {
        let mut shares: Vec<(u32, usize)> = Vec::new();
        for rqn in &self.queues {
            match shares.iter_mut().find(|(known, _)| known == rqn) {
                Some((_, count)) => *count += 1,
                None => shares.push((*rqn, 1)),
            }
        }
        let shares: Vec<_> = shares.iter().map(|(rqn, count)| format!("{rqn:#x}:{count}")).collect();
        vec![
            self.rqtn.to_string(),
            self.queues.len().to_string(),
            self.max_entries.to_string(),
            shares.join(","),
        ]
    }
}

/// Returns an Ethernet port's link.
pub(super) fn link(all: &Resources, addresses: &Addresses) -> Option<LinkRow> {
    let port = all.port.ethernet()?;
    Some(LinkRow {
        enabled: port.is_enabled(),
        gbps: GBPS,
        mac: addresses.own.mac.to_string(),
        max_frame: port.mtu,
        received: port.frames.received.packets(),
        sent: port.frames.sent.packets(),
        lost: all.netdev.counters.tx_link_down,
    })
}
