//! The engine's access to a device's work queues and memory.

use card::frontend::HostContext;
use card::memory::GuestMemory;
use card::memory::translate::RegionAccess;
use engine::{Fetch, Instant, RecvRequest, SendRequest};
use hcr::host::Queues;
use hcr::mtt::Mtt;
use protocol::ids::Qpn;

use super::observed::Observed;
use super::recv_queue::RecvQueue;
use super::resources::Resources;

impl Queues for Resources {
    fn next_send(&mut self, qpn: Qpn, cx: &mut HostContext<'_>) -> Fetch<SendRequest> {
        let Self { ctx, regions, qps, doorbells, .. } = self;
        let Some(qp) = qps.get_mut(ctx.qp_index(qpn)) else { return Fetch::Empty };
        let before = qp.send.pooled_doorbells();
        let (qpn, monitor) = (qp.qpn, &mut *cx.monitor);
        let fetch = qp.next_send(ctx, &regions.access(cx.dma), cx.addresses, |taken| {
            monitor.observe(Observed::SendWqe { qpn, taken });
        });
        monitor.observe(Observed::SendRequest { qp, fetch: &fetch });
        doorbells.update(before, qp.send.pooled_doorbells());
        fetch
    }

    fn next_recv(&mut self, qpn: Qpn, cx: &mut HostContext<'_>) -> Fetch<RecvRequest> {
        self.take_recv(qpn, cx, |queue, now, mem| queue.next(now, mem))
    }

    fn next_flushed_recv(&mut self, qpn: Qpn, cx: &mut HostContext<'_>) -> Fetch<RecvRequest> {
        self.take_recv(qpn, cx, |queue, now, mem| queue.next_flushed(now, mem))
    }

    fn next_recv_due(&self, qpn: Qpn) -> Option<Instant> {
        self.qps.get(self.ctx.qp_index(qpn)).and_then(|qp| qp.recv.next_due())
    }

    fn access<'a>(&'a self, dma: &'a GuestMemory) -> RegionAccess<'a, &'a Mtt> {
        self.regions.access(dma)
    }
}

impl Resources {
    fn take_recv(
        &mut self,
        qpn: Qpn,
        cx: &mut HostContext<'_>,
        take: impl FnOnce(&mut RecvQueue, Instant, &RegionAccess<'_, &Mtt>) -> Fetch<RecvRequest>,
    ) -> Fetch<RecvRequest> {
        let Self { ctx, regions, qps, .. } = self;
        let Some(qp) = qps.get_mut(ctx.qp_index(qpn)) else { return Fetch::Empty };
        let fetch = take(&mut qp.recv, cx.now, &regions.access(cx.dma));
        cx.monitor.observe(Observed::RecvRequest { qp, fetch: &fetch });
        fetch
    }
}
