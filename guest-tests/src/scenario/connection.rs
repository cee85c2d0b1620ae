//! Queue pairs of two guests connected to each other.

use agent::wire::{
    CqInfo, CreateCq, CreateMr, CreateQp, DestroyCq, DestroyMr, DestroyQp, ModifyQp, MrInfo, Path,
    QpAttributes, QpInfo, QueryQp, Transition, Verify,
};
use anyhow::{Result, ensure};

use super::pair::{Direction, Pair};
use crate::vm::Vm;

/// Attributes of a connection, the same at both ends but for the PSNs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attributes {
    /// Path MTU in bytes.
    pub(super) mtu: u16,
    /// First PSN sent by a and by b.
    pub(super) psn: [u32; 2],
    /// ACK timeout code.
    pub(super) timeout: u8,
    /// Retries after timeouts.
    pub(super) retry: u8,
    /// Retries after RNR NAKs.
    pub(super) rnr_retry: u8,
    /// Code of the RNR NAKs sent.
    pub(super) rnr_timer: u8,
    /// Where a finds b, and b finds a.
    pub(super) path: [Path; 2],
}

impl Default for Attributes {
    fn default() -> Self {
        Self {
            mtu: 4096,
            psn: [0x12_3456, 0xab_cdef],
            // 268 ms: longer than a busy host keeps a daemon waiting.
            timeout: 16,
            retry: 7,
            rnr_retry: 7,
            // 1.28 ms.
            rnr_timer: 14,
            path: [Path::default(); 2],
        }
    }
}

/// One end: a queue pair with a completion queue of its own.
#[derive(Clone, Copy, Debug)]
pub(super) struct End {
    pub(super) qp: QpInfo,
    pub(super) cq: CqInfo,
}

/// Both ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Connection {
    a: End,
    b: End,
}

impl Connection {
    /// Creates a queue pair at each end and moves both to RTS.
    pub(super) async fn create(pair: &mut Pair, attributes: &Attributes) -> Result<Self> {
        let (a, b) = tokio::try_join!(End::create(&mut pair.a.vm), End::create(&mut pair.b.vm))?;
        tokio::try_join!(
            a.connect(&mut pair.a.vm, &b, attributes, 0),
            b.connect(&mut pair.b.vm, &a, attributes, 1)
        )?;
        Ok(Self { a, b })
    }

    /// Requester's and responder's end of one direction.
    pub(super) fn towards(&self, direction: Direction) -> (&End, &End) {
        match direction {
            Direction::AToB => (&self.a, &self.b),
            Direction::BToA => (&self.b, &self.a),
        }
    }

    /// Destroys both ends.
    pub(super) async fn destroy(self, pair: &mut Pair) -> Result<()> {
        tokio::try_join!(self.a.destroy(&mut pair.a.vm), self.b.destroy(&mut pair.b.vm))?;
        Ok(())
    }
}

impl End {
    async fn create(vm: &mut Vm) -> Result<Self> {
        let cq = vm.call(CreateCq::default()).await?;
        let qp = vm.call(CreateQp { send_cq: cq.id, recv_cq: cq.id, ..CreateQp::default() }).await?;
        Ok(Self { qp, cq })
    }

    async fn connect(&self, vm: &mut Vm, peer: &Self, attributes: &Attributes, own: usize) -> Result<()> {
        self.to(vm, Transition::ToInit { pkey_index: 0, qkey: 0 }).await?;
        let rtr = Transition::ToRtr {
            remote_qpn: peer.qp.qpn,
            mtu: attributes.mtu,
            psn: attributes.psn[1 - own],
            rnr_timer: attributes.rnr_timer,
            path: attributes.path[own],
        };
        self.to(vm, rtr).await?;
        let rts = Transition::ToRts {
            psn: attributes.psn[own],
            timeout: attributes.timeout,
            retry: attributes.retry,
            rnr_retry: attributes.rnr_retry,
        };
        self.to(vm, rts).await
    }

    /// Moves the queue pair.
    pub(super) async fn to(&self, vm: &mut Vm, transition: Transition) -> Result<()> {
        vm.call(ModifyQp { qp: self.qp.id, transition }).await.map(drop)
    }

    /// QUERY_QP.
    pub(super) async fn query(&self, vm: &mut Vm) -> Result<QpAttributes> {
        vm.call(QueryQp { qp: self.qp.id }).await
    }

    async fn destroy(&self, vm: &mut Vm) -> Result<()> {
        vm.call(DestroyQp { qp: self.qp.id }).await?;
        vm.call(DestroyCq { cq: self.cq.id }).await.map(drop)
    }
}

/// A region of `len` bytes with every right, beginning `page_offset` bytes into a page.
pub(super) async fn region(vm: &mut Vm, len: u64, page_offset: u32) -> Result<MrInfo> {
    vm.call(CreateMr { len, page_offset, ..CreateMr::default() }).await
}

/// Destroys a region.
pub(super) async fn destroy_region(vm: &mut Vm, mr: &MrInfo) -> Result<()> {
    vm.call(DestroyMr { mr: mr.id }).await.map(drop)
}

/// Fails unless part of a region holds what `part` says.
pub(super) async fn expect_stream(vm: &mut Vm, part: Verify, what: &str) -> Result<()> {
    let verified = vm.call(part).await?;
    ensure!(
        verified.first_difference.is_none(),
        "{what} in guest {} differs at byte {} of {}",
        vm.name(),
        verified.first_difference.unwrap_or_default(),
        part.len
    );
    Ok(())
}
