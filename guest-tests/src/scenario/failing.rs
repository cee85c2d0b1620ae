//! Connections that are meant to fail. Each end runs a verbs program that reports statuses and events.

use std::time::Duration;

use agent::wire::{Hex, Service};
use anyhow::{Context, Result, ensure};

use crate::stock_verbs::{FileRegion, Port, StockConnect, StockPath, StockQp, StockSend, StockVerbs};
use crate::vm::Vm;

/// Values of rdma-core's `ibv_wc_status`.
pub(super) mod status {
    pub(in super::super) const SUCCESS: u32 = 0;
    pub(in super::super) const LOC_LEN_ERR: u32 = 1;
    pub(in super::super) const LOC_PROT_ERR: u32 = 4;
    pub(in super::super) const WR_FLUSH_ERR: u32 = 5;
    pub(in super::super) const REM_INV_REQ_ERR: u32 = 9;
    pub(in super::super) const REM_ACCESS_ERR: u32 = 10;
    pub(in super::super) const RETRY_EXC_ERR: u32 = 12;
    pub(in super::super) const RNR_RETRY_EXC_ERR: u32 = 13;
    pub(in super::super) const FATAL_ERR: u32 = 19;
}

/// Values of rdma-core's `ibv_event_type`.
pub(super) mod event {
    pub(in super::super) const CQ_ERR: u32 = 0;
    pub(in super::super) const QP_FATAL: u32 = 1;
    pub(in super::super) const QP_ACCESS_ERR: u32 = 3;
    pub(in super::super) const DEVICE_FATAL: u32 = 8;
}

/// Default size of each side's region in bytes.
pub(super) const REGION: u32 = 1 << 16;
const LIMIT: Duration = Duration::from_secs(60);
/// How long an event may take to arrive after its cause.
pub(super) const EVENT_LIMIT: Duration = Duration::from_secs(60);

/// One side of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Side {
    pub(super) verbs: StockVerbs,
    pub(super) region: FileRegion,
    pub(super) qp: StockQp,
}

/// How the peer addresses this side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PeerAddress {
    Lid(u16),
    /// The peer uses this side's GID with the given index.
    Gid(usize),
}

impl PeerAddress {
    fn path(self, port: &Port, qp: StockQp) -> Result<StockPath> {
        let qpn = qp.qpn;
        Ok(match self {
            Self::Lid(lid) => StockPath { qpn, lid, ..StockPath::default() },
            Self::Gid(index) => {
                let gid = port.gids.get(index).with_context(|| format!("no GID {index}"))?;
                StockPath { qpn, gid: Some(gid.clone()), ..StockPath::default() }
            }
        })
    }
}

/// Options for opening a side.
#[derive(Clone, Copy, Debug)]
pub(super) struct SideOptions {
    pub(super) device: &'static str,
    pub(super) place: PeerAddress,
    /// Capacity of the side's completion queue.
    pub(super) completions: Option<u32>,
    /// Size of the side's region in bytes.
    pub(super) region: u32,
}

impl SideOptions {
    pub(super) const fn new(device: &'static str, place: PeerAddress) -> Self {
        Self { device, place, completions: None, region: REGION }
    }
}

impl Side {
    /// Opens both sides and connects them.
    pub(super) async fn pair(
        (vm_a, a): (&mut Vm, SideOptions),
        (vm_b, b): (&mut Vm, SideOptions),
    ) -> Result<[Self; 2]> {
        let ((side_a, path_a), (side_b, path_b)) =
            tokio::try_join!(Self::open(vm_a, a), Self::open(vm_b, b))?;
        side_a.connect(vm_a, path_b, a.place).await?;
        side_b.connect(vm_b, path_a, b.place).await?;
        Ok([side_a, side_b])
    }

    async fn open(vm: &mut Vm, wanted: SideOptions) -> Result<(Self, StockPath)> {
        let (verbs, port) = StockVerbs::open(vm, wanted.device).await?;
        let region = verbs.region(vm, "/dev/shm/errors", wanted.region.into()).await?;
        let qp = verbs.queue_pair_with(vm, Service::Rc, wanted.completions).await?;
        let path = wanted.place.path(&port, qp)?;
        Ok((Self { verbs, region, qp }, path))
    }

    async fn connect(&self, vm: &mut Vm, peer: StockPath, own: PeerAddress) -> Result<()> {
        let sgid_index = match own {
            PeerAddress::Lid(_) => 0,
            PeerAddress::Gid(index) => u32::try_from(index)?,
        };
        // The ACK timeout is 67 ms, with up to 3 retries after timeouts and up to 2 after RNR NAKs. RNR NAKs request a
        // delay of 1.28 ms if the interface has a field for it.
        let connect = StockConnect {
            peer: StockPath { sgid_index, ..peer },
            mtu: 1024,
            psn: 7,
            peer_psn: 7,
            qkey: 0,
            timeout: 14,
            retry: 3,
            rnr_retry: 2,
            rnr_timer: 14,
        };
        self.verbs.connect(vm, self.qp, &connect).await
    }

    /// Returns a scatter/gather list with one element, which covers the first `len` bytes of the region.
    fn sges(&self, len: u32) -> Vec<(u64, u32, u32)> {
        vec![(self.region.addr, len, self.region.lkey)]
    }

    /// Returns a SEND of the first `len` bytes of the region.
    pub(super) fn send(&self, len: u32) -> StockSend {
        StockSend { op: "send", sges: self.sges(len), imm: Hex(vec![0; 4]), ..StockSend::default() }
    }

    /// Returns a WRITE of the first `len` bytes of the region.
    pub(super) fn write(&self, va: u64, rkey: u32, len: u32) -> StockSend {
        StockSend { op: "write", va, rkey, ..self.send(len) }
    }

    pub(super) async fn receive(&self, vm: &mut Vm, len: u32) -> Result<()> {
        self.verbs.post_recv(vm, self.qp, &[self.sges(len)]).await
    }

    pub(super) async fn post(&self, vm: &mut Vm, requests: &[StockSend]) -> Result<()> {
        self.verbs.post_send(vm, self.qp, requests).await
    }

    /// Returns the statuses of the next completions.
    pub(super) async fn statuses(&self, vm: &mut Vm, count: u32) -> Result<Vec<u32>> {
        let completions = self.verbs.poll(vm, self.qp, count, LIMIT).await?;
        Ok(completions.iter().map(|completion| completion.status).collect())
    }

    /// Checks the statuses of the next completions.
    pub(super) async fn expect(&self, vm: &mut Vm, expected: &[u32]) -> Result<()> {
        let found = self.statuses(vm, u32::try_from(expected.len())?).await?;
        ensure!(found == expected, "statuses are {found:?}, expected {expected:?}");
        Ok(())
    }

    /// Checks that `expected` is the only event that has been reported.
    pub(super) async fn expect_event(&self, vm: &mut Vm, expected: u32) -> Result<()> {
        let found = self.verbs.events(vm, EVENT_LIMIT).await?;
        ensure!(found == [expected], "events are {found:?}, expected {expected}");
        Ok(())
    }
}
