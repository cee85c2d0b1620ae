//! The device as the engine sees it: work queues and memory.

use engine::{Access, AccessError, AtomicOp, Fetch, Host, RecvRequest, SendRequest};
use protocol::ids::{Lkey, Pdn, Qpn, Va};
use smallvec::SmallVec;

use super::resources::Resources;
use super::trace;
use crate::frontend::address::Addresses;
use crate::frontend::mtt::Mtt;
use crate::memory::GuestMemory;
use crate::memory::translate::{Place, RegionAccess};
use crate::telemetry::monitor::Monitor;

/// [`engine::Host`] of the device. Before INIT_HCA it has no queue and no key.
pub struct MthcaHost<'a> {
    /// From INIT_HCA to CLOSE_HCA.
    pub resources: Option<&'a mut Resources>,
    /// Who is where on the fabric.
    pub addresses: &'a Addresses,
    /// Guest memory.
    pub dma: &'a GuestMemory,
    /// Who looks on.
    pub monitor: &'a mut Monitor,
}

impl MthcaHost<'_> {
    fn access(&self) -> Result<RegionAccess<'_, &Mtt>, AccessError> {
        let resources = self.resources.as_deref().ok_or(AccessError::Key)?;
        Ok(resources.regions.access(self.dma))
    }
}

impl Host for MthcaHost<'_> {
    fn next_send(&mut self, qpn: Qpn) -> Fetch<SendRequest> {
        let Some(Resources { layout, regions, qps, .. }) = self.resources.as_deref_mut() else {
            return Fetch::Empty;
        };
        let Some(qp) = qps.get_mut(layout.qpc.index(qpn.get())) else { return Fetch::Empty };
        let fetch = qp.next_send(&regions.access(self.dma), self.addresses);
        qp.counters.sends += u64::from(matches!(fetch, Fetch::Ready(_) | Fetch::Refused { .. }));
        if let Some(trace) = self.monitor.trace() {
            trace::send_wqe(trace, qp.qpn, &fetch);
        }
        fetch
    }

    fn next_recv(&mut self, qpn: Qpn) -> Fetch<RecvRequest> {
        let Some(Resources { layout, regions, qps, srqs, low_srqs, .. }) = self.resources.as_deref_mut()
        else {
            return Fetch::Empty;
        };
        let Some(qp) = qps.get_mut(layout.qpc.index(qpn.get())) else { return Fetch::Empty };
        let memory = regions.access(self.dma);
        let fetch = if qp.qpc.responder.srq() {
            // Software does not destroy a queue that has QPs.
            let Some(srq) = srqs.get_mut(layout.srqc.index(qp.qpc.srqn.get())) else {
                return Fetch::Broken;
            };
            let (page, index) = srq.record();
            let record = || regions.record(layout, self.dma, page, index);
            let fetch = srq.take(&memory, record);
            if srq.passes_limit(record) {
                low_srqs.push(srq.srqn());
            }
            fetch
        } else {
            let (page, index) = (qp.qpc.page, qp.qpc.rq_record);
            qp.recv.take(&memory, || regions.record(layout, self.dma, page, index))
        };
        qp.counters.receives += u64::from(matches!(fetch, Fetch::Ready(_) | Fetch::Refused { .. }));
        if let Some(trace) = self.monitor.trace() {
            trace::recv_wqe(trace, qp.qpn, &fetch);
        }
        fetch
    }

    fn group_members(&self, gid: &[u8; 16]) -> SmallVec<[Qpn; 8]> {
        let Some(Resources { layout, groups, .. }) = self.resources.as_deref() else {
            return SmallVec::new();
        };
        groups.members(layout.group_buckets, gid)
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
