//! The engine's access to a device's work queues and memory.

use card::frontend::HostContext;
use card::memory::GuestMemory;
use card::memory::translate::RegionAccess;
use engine::{Fetch, RecvRequest, SendRequest};
use hcr::host::Queues;
use hcr::mtt::Mtt;
use protocol::ids::Qpn;
use smallvec::SmallVec;

use super::observed::Observed;
use super::regions::DeviceMemory;
use super::resources::Resources;

impl Resources {
    /// Returns whether a QP has a posted receive request. Always true for a QP with an SRQ.
    pub(super) fn can_receive(&mut self, qpn: Qpn, dma: &GuestMemory) -> bool {
        let Self { layout, regions, qps, .. } = self;
        let Some(qp) = qps.get_mut(layout.qpc.index(qpn.get())) else { return false };
        let (page, index) = (qp.qpc.page, qp.qpc.rq_record);
        qp.qpc.responder.srq() || qp.recv.is_posted(|| regions.record(layout, dma, page, index))
    }
}

impl Queues for Resources {
    fn next_send(&mut self, qpn: Qpn, cx: &mut HostContext<'_>) -> Fetch<SendRequest> {
        let Self { layout, regions, qps, .. } = self;
        let Some(qp) = qps.get_mut(layout.qpc.index(qpn.get())) else { return Fetch::Empty };
        let memory = DeviceMemory { layout, regions, dma: cx.dma };
        cx.monitor.observe(Observed::SendQueue { qp, memory });
        let fetch = qp.next_send(&memory.access(), cx.addresses);
        cx.monitor.observe(Observed::SendWqe { qp, fetch: &fetch });
        fetch
    }

    fn next_recv(&mut self, qpn: Qpn, cx: &mut HostContext<'_>) -> Fetch<RecvRequest> {
        let Self { layout, regions, qps, srqs, low_srqs, .. } = self;
        let Some(qp) = qps.get_mut(layout.qpc.index(qpn.get())) else { return Fetch::Empty };
        let memory = DeviceMemory { layout, regions, dma: cx.dma };
        let mut shared = None;
        let fetch = if qp.qpc.responder.srq() {
            // The SRQ is missing only if software destroyed it while QPs were still using it.
            let Some(srq) = srqs.get_mut(layout.srqc.index(qp.qpc.srqn.get())) else {
                return Fetch::Broken;
            };
            let (page, index) = srq.record();
            let record = || memory.record(page, index);
            let fetch = srq.take(&memory.access(), record);
            if srq.passes_limit(record) {
                low_srqs.push(srq.srqn());
            }
            shared = Some(&**srq);
            fetch
        } else {
            let (page, index) = (qp.qpc.page, qp.qpc.rq_record);
            qp.recv.take(&memory.access(), || memory.record(page, index))
        };
        cx.monitor.observe(Observed::RecvWqe { qp, srq: shared, fetch: &fetch, memory });
        fetch
    }

    fn group_members(&self, gid: &[u8; 16]) -> SmallVec<[Qpn; 8]> {
        self.groups.members(self.layout.group_buckets, gid)
    }

    fn access<'a>(&'a self, dma: &'a GuestMemory) -> RegionAccess<'a, &'a Mtt> {
        self.regions.access(dma)
    }
}
