//! Connected queue pairs in two guests.

use std::time::Duration;

use agent::wire::{
    CqInfo, Cqe, CreateCq, CreateMr, CreateQp, DestroyCq, DestroyMr, DestroyQp, ModifyQp, MrInfo, Path, Poll,
    PostSend, QpAttributes, QpInfo, QueryQp, SendRequest, Transition, Verify,
};
use anyhow::{Result, ensure};

use super::pair::{Direction, Pair};
use crate::vm::Vm;

/// Attributes of a connection. Both ends use the same values, except for PSNs and paths.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attributes {
    /// Path MTU in bytes.
    pub(super) mtu: u16,
    pub(super) qkey: u32,
    /// Initial PSNs of guests `a` and `b`.
    pub(super) psn: [u32; 2],
    pub(super) timeout: u8,
    pub(super) retry: u8,
    pub(super) rnr_retry: u8,
    pub(super) rnr_timer: u8,
    /// Paths from guest `a` to guest `b` and from guest `b` to guest `a`, in that order.
    pub(super) path: [Path; 2],
}

impl Default for Attributes {
    fn default() -> Self {
        Self {
            mtu: 4096,
            qkey: 0,
            psn: [0x12_3456, 0xab_cdef],
            // 268 ms, which exceeds the scheduling delays on a busy host.
            timeout: 16,
            retry: 7,
            rnr_retry: 7,
            // 1.28 ms.
            rnr_timer: 14,
            path: [Path::default(); 2],
        }
    }
}

/// One end of a connection: a queue pair with its own completion queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct End {
    pub(super) qp: QpInfo,
    pub(super) cq: CqInfo,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Connection {
    a: End,
    b: End,
}

impl Connection {
    /// Creates a queue pair at each end and moves both to RTS.
    pub(super) async fn create(pair: &mut Pair, attributes: &Attributes) -> Result<Self> {
        Self::create_as(pair, attributes, [CreateQp::default(); 2]).await
    }

    /// Creates queue pairs with the given parameters in guests `a` and `b`, and moves both to RTS. The completion
    /// queues in `shapes` are ignored: each queue pair gets its own completion queue.
    pub(super) async fn create_as(
        pair: &mut Pair,
        attributes: &Attributes,
        shapes: [CreateQp; 2],
    ) -> Result<Self> {
        let connection = Self::create_unwired(pair, shapes, [CreateCq::default(); 2]).await?;
        connection.wire(pair, attributes).await?;
        Ok(connection)
    }

    /// Creates queue pairs and their completion queues with the given parameters. The queue pairs stay in RESET.
    pub(super) async fn create_unwired(
        pair: &mut Pair,
        shapes: [CreateQp; 2],
        cqs: [CreateCq; 2],
    ) -> Result<Self> {
        let (a, b) = tokio::try_join!(
            End::create(&mut pair.a.vm, shapes[0], cqs[0]),
            End::create(&mut pair.b.vm, shapes[1], cqs[1])
        )?;
        Ok(Self { a, b })
    }

    /// Moves both ends from RESET to RTS.
    pub(super) async fn wire(&self, pair: &mut Pair, attributes: &Attributes) -> Result<()> {
        tokio::try_join!(
            self.a.connect(&mut pair.a.vm, &self.b, attributes, 0),
            self.b.connect(&mut pair.b.vm, &self.a, attributes, 1)
        )?;
        Ok(())
    }

    /// Returns the requester's end and the responder's end for a direction, in that order.
    pub(super) fn towards(&self, direction: Direction) -> (&End, &End) {
        match direction {
            Direction::AToB => (&self.a, &self.b),
            Direction::BToA => (&self.b, &self.a),
        }
    }

    pub(super) async fn destroy(self, pair: &mut Pair) -> Result<()> {
        tokio::try_join!(self.a.destroy(&mut pair.a.vm), self.b.destroy(&mut pair.b.vm))?;
        Ok(())
    }
}

impl End {
    /// Creates a queue pair in RESET, with one completion queue for both work queues.
    pub(super) async fn create(vm: &mut Vm, shape: CreateQp, cq: CreateCq) -> Result<Self> {
        let cq = vm.call(cq).await?;
        let qp = vm.call(CreateQp { send_cq: cq.id, recv_cq: cq.id, ..shape }).await?;
        Ok(Self { qp, cq })
    }

    /// Connects the queue pair to `peer` and moves it from RESET to RTS. `own` is this guest's index.
    pub(super) async fn connect(
        &self,
        vm: &mut Vm,
        peer: &Self,
        attributes: &Attributes,
        own: usize,
    ) -> Result<()> {
        self.ready_to_receive(vm, peer, attributes, own).await?;
        self.ready_to_send(vm, attributes, own).await
    }

    /// Connects the queue pair to `peer` and moves it from RESET to RTR. `own` is this guest's index: 0 for `a`, 1 for
    /// `b`.
    pub(super) async fn ready_to_receive(
        &self,
        vm: &mut Vm,
        peer: &Self,
        attributes: &Attributes,
        own: usize,
    ) -> Result<()> {
        self.to(vm, Transition::ToInit { pkey_index: 0, qkey: attributes.qkey }).await?;
        let rtr = Transition::ToRtr {
            remote_qpn: peer.qp.qpn,
            mtu: attributes.mtu,
            psn: attributes.psn[1 - own],
            rnr_timer: attributes.rnr_timer,
            path: attributes.path[own],
        };
        self.to(vm, rtr).await
    }

    /// Moves the queue pair from RTR to RTS.
    pub(super) async fn ready_to_send(&self, vm: &mut Vm, attributes: &Attributes, own: usize) -> Result<()> {
        let rts = Transition::ToRts {
            psn: attributes.psn[own],
            timeout: attributes.timeout,
            retry: attributes.retry,
            rnr_retry: attributes.rnr_retry,
        };
        self.to(vm, rts).await
    }

    pub(super) async fn to(&self, vm: &mut Vm, transition: Transition) -> Result<()> {
        vm.call(ModifyQp { qp: self.qp.id, transition }).await.map(drop)
    }

    /// Posts requests with one doorbell and returns the byte offsets of their WQEs.
    pub(super) async fn post(&self, vm: &mut Vm, requests: Vec<SendRequest>) -> Result<Vec<u32>> {
        Ok(vm.call(PostSend { qp: self.qp.id, requests, ..PostSend::default() }).await?.wqes)
    }

    /// Waits for exactly `count` completions.
    pub(super) async fn poll(&self, vm: &mut Vm, count: u32, timeout_ms: u32) -> Result<Vec<Cqe>> {
        let limit = Duration::from_millis(timeout_ms.into()) + Duration::from_secs(20);
        let cqes = vm.call_within(limit, Poll { cq: self.cq.id, count, timeout_ms }).await?.cqes;
        ensure!(cqes.len() == count as usize, "{} of {count} completions in guest {}", cqes.len(), vm.name());
        Ok(cqes)
    }

    pub(super) async fn query(&self, vm: &mut Vm) -> Result<QpAttributes> {
        vm.call(QueryQp { qp: self.qp.id }).await
    }

    pub(super) async fn expect_state(&self, vm: &mut Vm, expected: u8) -> Result<()> {
        let state = self.query(vm).await?.state;
        ensure!(state == expected, "the QP of guest {} is in state {state}, expected {expected}", vm.name());
        Ok(())
    }

    /// Fails unless exactly the expected completions arrive. Each element of `expected` is an error syndrome, or `None`
    /// for success.
    pub(super) async fn expect_completions(
        &self,
        vm: &mut Vm,
        expected: &[Option<u8>],
        timeout_ms: u32,
    ) -> Result<Vec<Cqe>> {
        let mut cqes = self.poll(vm, u32::try_from(expected.len())?, timeout_ms).await?;
        cqes.extend(vm.call(Poll { cq: self.cq.id, count: 1, timeout_ms: 0 }).await?.cqes);
        let seen: Vec<_> = cqes.iter().map(|cqe| cqe.syndrome).collect();
        ensure!(seen == expected, "syndromes in guest {} are {seen:x?}, expected {expected:x?}", vm.name());
        Ok(cqes)
    }

    pub(super) async fn destroy(&self, vm: &mut Vm) -> Result<()> {
        vm.call(DestroyQp { qp: self.qp.id }).await?;
        vm.call(DestroyCq { cq: self.cq.id }).await.map(drop)
    }
}

/// Registers a region of `len` bytes with all access rights. The region starts `page_offset` bytes into a page.
pub(super) async fn region(vm: &mut Vm, len: u64, page_offset: u32) -> Result<MrInfo> {
    vm.call(CreateMr { len, page_offset, ..CreateMr::default() }).await
}

pub(super) async fn destroy_region(vm: &mut Vm, mr: &MrInfo) -> Result<()> {
    vm.call(DestroyMr { mr: mr.id }).await.map(drop)
}

/// Fails unless a region contains the pattern that `part` describes.
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
