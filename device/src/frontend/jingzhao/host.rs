//! The device as the engine sees it: work queues and memory.

use engine::{Access, AccessError, AtomicOp, Fetch, Host, RecvRequest, SendRequest};
use protocol::ids::{Lkey, Pdn, Qpn, Va};

use super::resources::Resources;
use super::{strict, trace};
use crate::frontend::address::Addresses;
use crate::frontend::mtt::Mtt;
use crate::memory::GuestMemory;
use crate::memory::translate::{Place, RegionAccess};
use crate::telemetry::monitor::Monitor;

/// [`engine::Host`] of a JingZhao. Before INIT_HCA it has no queue and no key.
pub struct JingZhaoHost<'a> {
    pub(super) resources: Option<&'a mut Resources>,
    pub(super) addresses: &'a Addresses,
    pub(super) dma: &'a GuestMemory,
    pub(super) monitor: &'a mut Monitor,
}

impl JingZhaoHost<'_> {
    fn access(&self) -> Result<RegionAccess<'_, &Mtt>, AccessError> {
        let resources = self.resources.as_deref().ok_or(AccessError::Key)?;
        Ok(resources.regions.access(self.dma))
    }
}

impl Host for JingZhaoHost<'_> {
    fn next_send(&mut self, qpn: Qpn) -> Fetch<SendRequest> {
        let Some(Resources { ctx, regions, qps, doorbells, .. }) = self.resources.as_deref_mut() else {
            return Fetch::Empty;
        };
        match qps.get_mut(ctx.qp_index(qpn)) {
            Some(qp) => {
                let before = qp.send.doorbells_taken();
                let (number, monitor) = (qp.qpn, &mut *self.monitor);
                let fetch = qp.next_send(ctx, &regions.access(self.dma), self.addresses, |taken| {
                    if let Some(trace) = monitor.trace() {
                        trace::send_wqe(trace, number, taken);
                    }
                    if monitor.is_strict() {
                        strict::send_wqe(number, taken).report(monitor);
                    }
                });
                qp.counters.sends += u64::from(matches!(fetch, Fetch::Ready(_) | Fetch::Refused { .. }));
                doorbells.update(before, qp.send.doorbells_taken());
                fetch
            }
            None => Fetch::Empty,
        }
    }

    fn next_recv(&mut self, qpn: Qpn) -> Fetch<RecvRequest> {
        let Some(Resources { ctx, regions, qps, .. }) = self.resources.as_deref_mut() else {
            return Fetch::Empty;
        };
        match qps.get_mut(ctx.qp_index(qpn)) {
            Some(qp) => {
                let fetch = qp.recv.next(&regions.access(self.dma));
                qp.counters.receives += u64::from(matches!(fetch, Fetch::Ready(_) | Fetch::Refused { .. }));
                if let Some(trace) = self.monitor.trace() {
                    trace::recv_wqe(trace, qp.qpn, &fetch);
                }
                if self.monitor.is_strict()
                    && let Fetch::Ready(RecvRequest { wr_id, .. }) = &fetch
                {
                    strict::recv_wqe(qp, *wr_id).report(self.monitor);
                }
                fetch
            }
            None => Fetch::Empty,
        }
    }

    fn check(&self, pd: Pdn, key: Lkey, va: Va, len: u64, access: Access) -> Result<(), AccessError> {
        self.access()?.check(Place::address(pd, key, va), len, access)
    }

    fn read(&self, pd: Pdn, key: Lkey, va: Va, out: &mut [u8], access: Access) -> Result<(), AccessError> {
        self.access()?.read(Place::address(pd, key, va), out, access)
    }

    fn write(&mut self, pd: Pdn, key: Lkey, va: Va, data: &[u8], access: Access) -> Result<(), AccessError> {
        self.access()?.write(Place::address(pd, key, va), data, access)
    }

    fn atomic(&mut self, pd: Pdn, key: Lkey, va: Va, op: AtomicOp) -> Result<u64, AccessError> {
        self.access()?.atomic(Place::address(pd, key, va), op)
    }
}
