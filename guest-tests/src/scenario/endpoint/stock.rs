//! An endpoint on a stock driver: soft-RoCE, or any other driver that rdma-core supports.

use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use agent::wire::{FillFile, Hex, PeekFile, Remote, SendOp, Service, VerifyFile};
use anyhow::{Context, Result, ensure};

use super::{Completion, Endpoint, Link, Message, REGION, gid, number};
use crate::stock_verbs::{
    FileRegion, Port, StockAh, StockCompletion, StockConnect, StockPath, StockQp, StockSend, StockVerbs,
};
use crate::vm::Vm;

/// File that backs the region, so that the agent can access it too.
const FILE: &str = "/dev/shm/region";
/// Timeout for messages of several megabytes in emulated guests.
const POLL_TIMEOUT: Duration = Duration::from_secs(60);

/// How peers are addressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Names {
    /// On Ethernet, by the GIDs derived from their IP addresses. The value is the index of the endpoint's own GID.
    Gids(u32),
    /// On InfiniBand, by their LIDs, which equal the last two bytes of their IP addresses.
    Lids,
}

/// An RDMA device in a guest with a root file system.
#[derive(Debug)]
pub(in super::super) struct Stock {
    name: &'static str,
    ip: IpAddr,
    pub(in super::super) vm: Vm,
    verbs: StockVerbs,
    names: Names,
    region: FileRegion,
    qp: Option<StockQp>,
    /// Destination of UD messages.
    datagram: Option<(StockAh, Link)>,
}

impl Stock {
    /// Opens a RoCE device in the guest, using the GID derived from `ip`.
    pub(in super::super) async fn open(name: &'static str, vm: Vm, device: &str, ip: IpAddr) -> Result<Self> {
        let (mut stock, port) = Self::open_port(name, vm, device, ip).await?;
        let own = gid_text(ip);
        let index = port.gids.iter().position(|gid| *gid == own);
        let index = index.with_context(|| format!("{device} has no GID {own} among {:?}", port.gids))?;
        stock.names = Names::Gids(u32::try_from(index)?);
        Ok(stock)
    }

    /// Opens an InfiniBand device in the guest. The device's LID must equal the last two bytes of `ip`.
    pub(in super::super) async fn open_infiniband(
        name: &'static str,
        vm: Vm,
        device: &str,
        ip: IpAddr,
    ) -> Result<Self> {
        let (stock, port) = Self::open_port(name, vm, device, ip).await?;
        ensure!(port.lid == number(ip), "{device} has LID {}, expected {}", port.lid, number(ip));
        Ok(stock)
    }

    async fn open_port(name: &'static str, mut vm: Vm, device: &str, ip: IpAddr) -> Result<(Self, Port)> {
        let (verbs, port) = StockVerbs::open(&mut vm, device).await?;
        ensure!(port.active, "the port of {device} is not active");
        let region = verbs.region(&mut vm, FILE, REGION).await?;
        Ok((Self { name, ip, vm, verbs, names: Names::Lids, region, qp: None, datagram: None }, port))
    }

    fn path(&self, link: &Link) -> StockPath {
        let (gid, sgid_index, lid) = match self.names {
            Names::Gids(index) => (Some(gid_text(link.peer_ip)), index, 0),
            Names::Lids => (None, 0, number(link.peer_ip)),
        };
        StockPath { qpn: link.peer_qpn, gid, sgid_index, lid }
    }

    fn qp(&self) -> Result<StockQp> {
        self.qp.context("no QP was created")
    }
}

/// Formats the GID derived from an IP address as rdma-core does.
fn gid_text(ip: IpAddr) -> String {
    Ipv6Addr::from(gid(ip)).segments().map(|group| format!("{group:04x}")).join(":")
}

impl Endpoint for Stock {
    fn ip(&self) -> IpAddr {
        self.ip
    }

    fn writes_ip_header(&self) -> bool {
        matches!(self.names, Names::Gids(_))
    }

    fn remote(&self, off: u64) -> Remote {
        Remote { va: self.region.addr + off, rkey: self.region.rkey }
    }

    async fn create(&mut self, service: Service) -> Result<u32> {
        if let Some(qp) = self.qp.take() {
            self.verbs.destroy(&mut self.vm, qp).await?;
        }
        let qp = self.verbs.queue_pair(&mut self.vm, service).await?;
        self.qp = Some(qp);
        Ok(qp.qpn)
    }

    async fn connect(&mut self, link: &Link) -> Result<()> {
        let qp = self.qp()?;
        let peer = self.path(link);
        self.datagram = Some((self.verbs.address(&mut self.vm, &peer).await?, *link));
        let connect = StockConnect {
            peer,
            mtu: link.mtu,
            psn: link.psn,
            peer_psn: link.peer_psn,
            qkey: link.qkey,
            timeout: super::ACK_TIMEOUT,
            retry: super::RETRIES,
            rnr_retry: super::RETRIES,
            rnr_timer: super::RNR_TIMER,
        };
        self.verbs.connect(&mut self.vm, qp, &connect).await
    }

    async fn fill(&mut self, off: u64, len: u64, seed: u64) -> Result<()> {
        self.vm.call(FillFile { path: FILE.into(), off, len, seed, position: 0 }).await.map(drop)
    }

    async fn verify(&mut self, off: u64, len: u64, seed: u64, position: u64) -> Result<()> {
        let verified = self.vm.call(VerifyFile { path: FILE.into(), off, len, seed, position }).await?;
        super::expect_same(self.name, off, len, verified)
    }

    async fn peek(&mut self, off: u64, len: u32) -> Result<Vec<u8>> {
        Ok(self.vm.call(PeekFile { path: FILE.into(), off, len }).await?.0)
    }

    async fn post_recv(&mut self, places: &[(u64, u32)]) -> Result<()> {
        let sge = |&(off, len): &(u64, u32)| vec![(self.region.addr + off, len, self.region.lkey)];
        let lists: Vec<_> = places.iter().map(sge).collect();
        let qp = self.qp()?;
        self.verbs.post_recv(&mut self.vm, qp, &lists).await
    }

    async fn post_send(&mut self, messages: &[Message]) -> Result<()> {
        let qp = self.qp()?;
        let mut requests = Vec::new();
        for message in messages {
            let remote = message.remote.unwrap_or_default();
            let (op, compare_add, swap) = match message.op {
                SendOp::Send => ("send", 0, 0),
                SendOp::SendImm => ("send_imm", 0, 0),
                SendOp::Write => ("write", 0, 0),
                SendOp::WriteImm => ("write_imm", 0, 0),
                SendOp::Read => ("read", 0, 0),
                SendOp::CmpSwap { compare, swap } => ("cmp_swap", compare, swap),
                SendOp::FetchAdd { add } => ("fetch_add", add, 0),
                SendOp::Raw(code) => anyhow::bail!("stock verbs do not support operation {code:#x}"),
            };
            let datagram = self.datagram.filter(|_| message.datagram);
            requests.push(StockSend {
                op,
                sges: vec![(self.region.addr + message.off, message.len, self.region.lkey)],
                imm: Hex(message.imm.to_vec()),
                va: remote.va,
                rkey: remote.rkey,
                compare_add,
                swap,
                ah: datagram.map(|(ah, _)| ah),
                qpn: datagram.map_or(0, |(_, link)| link.peer_qpn),
                qkey: datagram.map_or(0, |(_, link)| link.qkey),
            });
        }
        self.verbs.post_send(&mut self.vm, qp, &requests).await
    }

    async fn poll(&mut self, count: u32) -> Result<Vec<Completion>> {
        let qp = self.qp()?;
        let found = self.verbs.poll(&mut self.vm, qp, count, POLL_TIMEOUT).await?;
        ensure!(found.len() == count as usize, "{} of {count} completions at {}", found.len(), self.name);
        let bad = found.iter().find(|completion| completion.status != 0);
        ensure!(bad.is_none(), "{} completed requests with {bad:?}", self.name);
        let imm = |imm: &Option<Hex>| imm.as_ref().and_then(|imm| imm.0.as_slice().try_into().ok());
        let completion =
            |c: &StockCompletion| Completion { received: c.received, bytes: c.bytes, imm: imm(&c.imm) };
        Ok(found.iter().map(completion).collect())
    }
}
