//! A JingZhao HCA together with its driver.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::Arc;

use agent::wire::{
    Call, CreateCq, CreateMr, CreateQp, DeviceSelector, Flow, IcmOptions, ModifyQp, MrId, MrInfo, OpenHca,
    Path as QpPath, PingPong, QpId, RoundTrips, Traffic, TrafficReport, Transition,
};
use anyhow::Result;
use serde_json::{Value, json};

use crate::daemon::Daemon;
use crate::endpoint::Endpoint;
use crate::pair::Wire;

/// Timeout for a single measurement.
const TIMEOUT_MS: u32 = 60_000;

/// Memory sizes for a device and its driver.
#[derive(Clone, Debug)]
pub(crate) struct Sizes {
    pub(crate) arena_mib: u32,
    pub(crate) icm: IcmOptions,
    /// Log2 of the number of entries in a CQ. Several queue pairs share one CQ.
    pub(crate) log_cq: u8,
}

impl Default for Sizes {
    /// Returns sizes that suffice for a few queue pairs and 8 MiB of buffers.
    fn default() -> Self {
        Self { arena_mib: 64, icm: IcmOptions::default(), log_cq: 14 }
    }
}

/// Log2 of the number of slots in a ring and of the slot size in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rings {
    pub(crate) log_slots: u8,
    pub(crate) log_slot_bytes: u8,
}

pub(crate) struct Node {
    endpoint: Endpoint,
    log_cq: u8,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Qp {
    pub(crate) id: QpId,
    qpn: u32,
}

impl Node {
    /// Opens HCA `id` through its vfio-user socket.
    pub(crate) fn open(id: usize, socket: &Path, daemon: Arc<Daemon>, sizes: &Sizes) -> Result<Self> {
        let open = OpenHca {
            device: DeviceSelector::Socket(socket.display().to_string()),
            arena_mib: sizes.arena_mib,
            icm: sizes.icm,
            huge_pages: true,
            ..OpenHca::default()
        };
        let (endpoint, _) = Endpoint::open(id, daemon, open)?;
        Ok(Self { endpoint, log_cq: sizes.log_cq })
    }

    pub(crate) fn daemon(&self) -> &Daemon {
        self.endpoint.daemon()
    }

    /// Registers a region of `len` bytes with all access rights.
    pub(crate) fn region(&mut self, len: u64) -> Result<MrInfo> {
        self.call(CreateMr { len, scattered: false, ..CreateMr::default() })
    }

    /// Registers an additional key for the memory of region `other`.
    pub(crate) fn region_over(&mut self, other: MrId) -> Result<MrInfo> {
        self.call(CreateMr { over: Some(other), ..CreateMr::default() })
    }

    pub(crate) fn run(&mut self, flows: Vec<Flow>) -> Result<TrafficReport> {
        self.endpoint.timed(Traffic { flows, timeout_ms: TIMEOUT_MS })
    }

    pub(crate) fn ping_pong(&mut self, step: PingPong) -> Result<RoundTrips> {
        self.call(step)
    }

    /// Creates queue pairs in groups. The queue pairs in a group share one completion queue for sends and one for
    /// receives. The size of the completion queues determines the size of a group.
    pub(crate) fn queue_pairs(&mut self, count: usize, rings: Rings) -> Result<Vec<Qp>> {
        let Rings { log_slots, log_slot_bytes } = rings;
        let cq = CreateCq { log_entries: self.log_cq, ..CreateCq::default() };
        let sharing = 1_usize << (self.log_cq - log_slots);
        let mut all = Vec::with_capacity(count);
        while all.len() < count {
            let (send_cq, recv_cq) = (self.call(cq)?.id, self.call(cq)?.id);
            let step = CreateQp {
                send_cq,
                recv_cq,
                log_sq_slots: log_slots,
                log_sq_slot_bytes: log_slot_bytes,
                log_rq_slots: log_slots,
                log_rq_slot_bytes: log_slot_bytes,
                ..CreateQp::default()
            };
            for _ in 0..sharing.min(count - all.len()) {
                let info = self.call(step)?;
                all.push(Qp { id: info.id, qpn: info.qpn });
            }
        }
        Ok(all)
    }

    /// Connects a queue pair to the queue pair `peer` of HCA `peer_id` or, if `peer_id` is `None`, of the default peer.
    pub(crate) fn connect(&mut self, qp: Qp, peer: Qp, peer_id: Option<u16>) -> Result<()> {
        let path = QpPath { dlid: peer_id, ..QpPath::default() };
        for transition in [
            Transition::ToInit { pkey_index: 0, qkey: 0 },
            Transition::ToRtr { remote_qpn: peer.qpn, mtu: 4096, psn: 0, rnr_timer: 1, path },
            // This timeout, about a quarter of a second, exceeds the scheduling delays on a busy host that runs many
            // daemons.
            Transition::ToRts { psn: 0, timeout: 16, retry: 7, rnr_retry: 7 },
        ] {
            self.call(ModifyQp { qp: qp.id, transition })?;
        }
        Ok(())
    }

    fn call<C: Call>(&mut self, step: C) -> Result<C::Answer> {
        self.endpoint.call(step)
    }
}

impl AsMut<Endpoint> for Node {
    fn as_mut(&mut self) -> &mut Endpoint {
        &mut self.endpoint
    }
}

/// Returns the configuration entry of an HCA.
pub(crate) fn device(id: usize, socket: &Path, fabric: &Value) -> Value {
    json!({ "id": id, "socket_path": socket, "frontend": { "jingzhao": {} }, "fabric": fabric })
}

/// Returns the fabric configuration of an HCA. With UDP, `addresses[own]` is the HCA's own address.
pub(crate) fn fabric(wire: Wire, folder: &Path, addresses: &[SocketAddr], own: usize) -> Value {
    match wire {
        Wire::Udp => {
            let peers = addresses.iter().enumerate().filter(|&(other, _)| other != own);
            // The entries do not need an `id`, since the peers' addresses are learned.
            let peers: Vec<_> = peers.map(|(_, addr)| json!({ "addr": addr })).collect();
            json!({ "udp": { "bind": addresses[own], "peers": peers } })
        }
        Wire::Ring => json!({ "ring": { "folder": folder.join("ring") } }),
        Wire::Local => json!({ "local": {} }),
    }
}

/// Returns free UDP addresses on this host.
pub(crate) fn free_addresses(count: usize) -> io::Result<Vec<SocketAddr>> {
    let held: Vec<_> = (0..count).map(|_| UdpSocket::bind(("127.0.0.1", 0))).collect::<io::Result<_>>()?;
    held.iter().map(UdpSocket::local_addr).collect()
}
