//! The engine's access to work queues and guest memory.

use card::frontend::{Context, HostContext};
use card::memory::translate::{AccessTarget, RegionAccess};
use card::memory::{GuestMemory, GuestRange};
use engine::{
    Access, AccessError, AtomicOp, Dropped, Fetch, GroupDatagram, Initiator, LocalToken, Modify, PayloadRef,
    PeerRequest, ReceivedNak, RecvRequest, RecvSource, Retry, SendRequest, XrcError,
};
use protocol::ids::{Lkey, MacAddr, Pdn, Qpn, Rkey, Srqn, Va};
use smallvec::SmallVec;

use super::address::Resolver;
use super::check::{Check, Rejection};
use super::mkey::Mkeys;
use super::queue_pair::QueuePair;
use super::resources::Resources;
use super::send_queue::PostedBlocks;
use super::{strict, trace};

/// Implements [`engine::Host`] for the device. Without resources, the device has no queues and no memory keys.
#[derive(Debug)]
pub struct Mlx5Host<'a> {
    /// `None` before INIT_HCA, after TEARDOWN_HCA, and once the driver has read a failure.
    pub resources: Option<&'a mut Resources>,
    pub cx: HostContext<'a>,
}

impl Mlx5Host<'_> {
    fn access(&self) -> Result<RegionAccess<'_, &Mkeys>, AccessError> {
        let resources = self.resources.as_deref().ok_or(AccessError::Key)?;
        Ok(resources.mkeys.access(self.cx.dma))
    }
}

impl Resources {
    /// Returns whether a QP has a posted receive. Always true for a QP with an SRQ.
    pub(super) fn can_receive(&mut self, qpn: Qpn, dma: &GuestMemory) -> bool {
        let Some(qp) = self.qps.get_mut(qpn.get()) else { return false };
        qp.srqn().is_some() || qp.is_posted(dma)
    }

    /// Returns the QPs that receive a multicast datagram. `own` is the port's MAC.
    ///
    /// Section 10.1: a QP with "block multicast loopback" does not receive its own datagrams.
    fn group_members(&self, datagram: &GroupDatagram, own: MacAddr) -> SmallVec<[Qpn; 8]> {
        let mut members = self.groups.members(&datagram.gid);
        let sender = self.qps.get(datagram.src_qp.get());
        if sender.is_some_and(|sender| sender.context.block_multicast_loopback)
            && self.port.is_own_mac(own, datagram.src_mac)
        {
            members.retain(|member| *member != datagram.src_qp);
        }
        members
    }

    #[inline]
    fn next_recv(&mut self, source: RecvSource, dma: &GuestMemory) -> Fetch<RecvRequest> {
        let (RecvSource::Qp(qpn) | RecvSource::XrcSrq { qpn, .. }) = source;
        let Some(qp) = self.qps.get_mut(qpn.get()) else { return Fetch::Empty };
        let Some(srqn) = source.srqn().or_else(|| qp.srqn()) else { return qp.next_recv(dma) };
        let Some(srq) = self.srqs.get_mut(srqn.get()) else { return Fetch::Broken };
        let fetch = srq.take(dma);
        if srq.passes_limit(dma) {
            self.low_srqs.push(srqn);
        }
        if matches!(fetch, Fetch::Ready(_)) {
            qp.counters.receives += 1;
        }
        fetch
    }
}

impl engine::Host for Mlx5Host<'_> {
    type Range = GuestRange;

    fn next_send(&mut self, qpn: Qpn) -> Fetch<SendRequest> {
        let Self { resources, cx } = self;
        let Some(Resources { qps, port, posted, .. }) = resources.as_deref_mut() else { return Fetch::Empty };
        let Some(qp) = qps.get_mut(qpn.get()) else { return Fetch::Empty };
        let resolver = port.resolver(cx.addresses);
        if cx.monitor.is_strict() || cx.monitor.trace().is_some() {
            return next_observed_send(cx, qp, posted, resolver);
        }
        qp.next_send(cx.dma, posted, resolver)
    }

    fn next_recv(&mut self, source: RecvSource) -> Fetch<RecvRequest> {
        let Self { resources, cx } = self;
        let dma = cx.dma;
        // A second return statement would make the compiler copy the request.
        let fetch = match resources {
            Some(resources) => {
                cx.monitor.check(|| strict::receives(resources, source, dma));
                resources.next_recv(source, dma)
            }
            None => Fetch::Empty,
        };
        if let Some(trace) = cx.monitor.trace() {
            trace::recv_wqe(trace, source, &fetch);
        }
        fetch
    }

    fn xrc_srq(&self, qpn: Qpn, srqn: Srqn) -> Result<Pdn, XrcError> {
        let resources = self.resources.as_deref().ok_or(XrcError::InvalidXrceth)?;
        let srq = resources.srqs.get(srqn.get()).and_then(|srq| srq.xrc()).ok_or(XrcError::InvalidXrceth)?;
        let xrcd = resources.qps.get(qpn.get()).map(|qp| qp.context.xrcd);
        if xrcd == Some(srq.xrcd) { Ok(srq.pd) } else { Err(XrcError::DomainViolation) }
    }

    fn group_members(&self, datagram: &GroupDatagram) -> SmallVec<[Qpn; 8]> {
        self.resources
            .as_ref()
            .map_or_else(SmallVec::new, |all| all.group_members(datagram, self.cx.addresses.own.mac))
    }

    fn check(&self, who: Initiator, key: Lkey, va: Va, len: u64, access: Access) -> Result<(), AccessError> {
        self.access()?.check(AccessTarget::address(who, key, va), len, access)
    }

    fn read(
        &self,
        who: Initiator,
        key: Lkey,
        va: Va,
        len: usize,
        out: &mut Vec<u8>,
        access: Access,
    ) -> Result<(), AccessError> {
        self.access()?.append(AccessTarget::address(who, key, va), len, out, access)
    }

    fn locate(
        &self,
        who: Initiator,
        key: Lkey,
        va: Va,
        len: usize,
        ranges: &mut Vec<GuestRange>,
        access: Access,
    ) -> Result<bool, AccessError> {
        self.access()?.locate(AccessTarget::address(who, key, va), len, ranges, access)
    }

    fn write(
        &mut self,
        who: Initiator,
        key: Lkey,
        va: Va,
        data: PayloadRef<'_>,
        access: Access,
    ) -> Result<(), AccessError> {
        self.access()?.write(AccessTarget::address(who, key, va), data, access)
    }

    fn atomic(&mut self, who: Initiator, key: Lkey, va: Va, op: AtomicOp) -> Result<u64, AccessError> {
        self.access()?.atomic(AccessTarget::address(who, key, va), op)
    }

    fn run_local(&mut self, who: Initiator, token: &LocalToken) -> Result<(), AccessError> {
        let Self { resources, cx } = self;
        let dma = cx.dma;
        let resources = resources.as_deref_mut().ok_or(AccessError::Key)?;
        cx.monitor.check(|| strict::umr(resources, who, token, dma));
        let result = resources.run_umr(dma, who, token);
        if let Some(trace) = cx.monitor.trace() {
            trace::umr(trace, resources, who.qpn, token, dma, result.err());
        }
        result
    }

    fn remote_invalidate(&mut self, who: Initiator, key: Rkey) -> Result<(), AccessError> {
        self.resources.as_mut().ok_or(AccessError::Key)?.mkeys.remote_invalidate(who, key)
    }

    fn dropped(&mut self, dropped: &Dropped) {
        if let Some(resources) = &mut self.resources {
            resources.count_drop(dropped.qpn, dropped.reason);
        }
        self.cx.monitor.packet_dropped(dropped);
    }

    fn request_executed(&mut self, qpn: Qpn, request: PeerRequest) {
        if let Some(resources) = &mut self.resources {
            resources.count_request(qpn, request);
        }
    }

    fn nak_received(&mut self, nak: &ReceivedNak) {
        self.cx.monitor.nak_received(nak);
    }

    fn retrying(&mut self, retry: &Retry) {
        if let Some(resources) = &mut self.resources {
            resources.count_retry(retry.qpn, retry.cause);
        }
        self.cx.monitor.retrying(retry);
    }
}

/// Fetches the next send request and passes it to strict mode and to the trace. This copies the request, unlike the
/// usual path of [`engine::Host::next_send`].
#[cold]
fn next_observed_send(
    cx: &mut HostContext<'_>,
    qp: &mut QueuePair,
    posted: &mut PostedBlocks,
    resolver: Resolver<'_>,
) -> Fetch<SendRequest> {
    let dma = cx.dma;
    let fetch = qp.next_send(dma, posted, resolver);
    cx.monitor.check(|| strict::send_wqe(qp, &fetch, dma));
    if let Some(trace) = cx.monitor.trace() {
        trace::send_wqe(trace, qp.qpn, &fetch);
    }
    fetch
}

/// Changes a QP's state or attributes in the engine.
///
/// # Errors
/// Fails if the engine does not have the QP. That would be a bug in this front-end.
pub fn modify_qp(
    cx: &mut Context<'_>,
    resources: &mut Resources,
    qpn: Qpn,
    modify: &Modify,
) -> Result<(), Rejection> {
    let (engine, cx) = cx.split();
    let moved = engine.modify_qp(cx.now, qpn, modify, &mut Mlx5Host { resources: Some(resources), cx });
    moved.map_err(|_| Check::QpEngine.rejects(qpn.get()))
}

pub fn notify_send(cx: &mut Context<'_>, resources: &mut Resources, qpn: Qpn) {
    let (engine, cx) = cx.split();
    engine.notify_send(cx.now, qpn, &mut Mlx5Host { resources: Some(resources), cx });
}
