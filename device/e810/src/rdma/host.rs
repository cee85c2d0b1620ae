//! Implements the engine's host interface for the RDMA half: work queues, multicast groups, and memory access
//! by key.

use std::net::IpAddr;

use card::frontend::{Context, HostContext};
use card::memory::GuestRange;
use card::memory::key_op::KeyOp;
use card::memory::translate::{AccessTarget, RegionAccess};
use engine::{
    Access, AccessError, AtomicOp, Dropped, Fetch, GroupDatagram, Initiator, LocalToken, Modify, PayloadRef,
    ReceivedNak, RecvRequest, RecvSource, Retry, SendRequest,
};
use protocol::ids::{Lkey, Qpn, Rkey, Va};
use smallvec::SmallVec;

use super::Rdma;
use super::hmc::Pages;
use super::queue_pair::PathContext;
use super::trace;

#[derive(Debug)]
pub struct RdmaHost<'a> {
    pub(in super::super) rdma: &'a mut Rdma,
    /// Guest memory, addresses and monitor of the device.
    pub(in super::super) cx: HostContext<'a>,
}

impl RdmaHost<'_> {
    fn access(&self) -> RegionAccess<'_, Pages<'_>> {
        let Rdma { regions, hmc, .. } = &*self.rdma;
        RegionAccess { keys: &regions.keys, pages: hmc.pages(self.cx.dma), dma: self.cx.dma }
    }

    fn run(&mut self, initiator: Initiator, op: &KeyOp) -> Result<(), AccessError> {
        self.rdma.regions.keys.run(initiator, op)?;
        self.rdma.counts.count_key_op(op);
        Ok(())
    }
}

impl engine::Host for RdmaHost<'_> {
    type Range = GuestRange;

    fn next_send(&mut self, qpn: Qpn) -> Fetch<SendRequest> {
        let Rdma { queues, hmc, paths, .. } = &mut *self.rdma;
        let Some(qp) = queues.qp_mut(qpn) else { return Fetch::Empty };
        let path_context = PathContext { paths, mac: self.cx.addresses.own.mac };
        let fetch = qp.next_send(hmc.pages(self.cx.dma), path_context);
        trace::send(self.cx.monitor, qpn, &fetch, qp.rejected.map(|(_, code)| code));
        qp.counters.sends += u64::from(matches!(fetch, Fetch::Ready(_) | Fetch::Refused { .. }));
        fetch
    }

    fn next_recv(&mut self, source: RecvSource) -> Fetch<RecvRequest> {
        // This interface does not support XRC.
        let RecvSource::Qp(qpn) = source else { return Fetch::Empty };
        let Rdma { queues, hmc, .. } = &mut *self.rdma;
        let Some(qp) = queues.qp_mut(qpn) else { return Fetch::Empty };
        let fetch = qp.next_receive(hmc.pages(self.cx.dma));
        trace::receive(self.cx.monitor, qpn, &fetch);
        qp.counters.receives += u64::from(matches!(fetch, Fetch::Ready(_) | Fetch::Refused { .. }));
        fetch
    }

    /// Returns a group's members, except the sender. A queue pair does not receive its own multicast datagrams (section
    /// 13.8).
    fn group_members(&self, datagram: &GroupDatagram) -> SmallVec<[Qpn; 8]> {
        let GroupDatagram { gid, dst_mac, tag, src_mac, src_qp } = *datagram;
        let address = IpAddr::from(gid).to_canonical();
        let mut members = self.rdma.groups.members(address, dst_mac, tag.map(|tag| tag.vid()));
        if src_mac == self.cx.addresses.own.mac {
            members.retain(|member| *member != src_qp);
        }
        members
    }

    fn check(
        &self,
        initiator: Initiator,
        key: Lkey,
        va: Va,
        len: u64,
        access: Access,
    ) -> Result<(), AccessError> {
        self.access().check(AccessTarget::address(initiator, key, va), len, access)
    }

    fn read(
        &self,
        initiator: Initiator,
        key: Lkey,
        va: Va,
        len: usize,
        out: &mut Vec<u8>,
        access: Access,
    ) -> Result<(), AccessError> {
        self.access().append(AccessTarget::address(initiator, key, va), len, out, access)
    }

    fn locate(
        &self,
        initiator: Initiator,
        key: Lkey,
        va: Va,
        len: usize,
        ranges: &mut Vec<GuestRange>,
        access: Access,
    ) -> Result<bool, AccessError> {
        self.access().locate(AccessTarget::address(initiator, key, va), len, ranges, access)
    }

    fn write(
        &mut self,
        initiator: Initiator,
        key: Lkey,
        va: Va,
        data: PayloadRef<'_>,
        access: Access,
    ) -> Result<(), AccessError> {
        self.access().write(AccessTarget::address(initiator, key, va), data, access)
    }

    fn atomic(&mut self, initiator: Initiator, key: Lkey, va: Va, op: AtomicOp) -> Result<u64, AccessError> {
        self.access().atomic(AccessTarget::address(initiator, key, va), op)
    }

    fn dropped(&mut self, dropped: &Dropped) {
        self.cx.monitor.packet_dropped(dropped);
    }

    fn nak_received(&mut self, nak: &ReceivedNak) {
        self.cx.monitor.nak_received(nak);
    }

    fn retrying(&mut self, retry: &Retry) {
        self.cx.monitor.retrying(retry);
    }

    fn run_local(&mut self, initiator: Initiator, token: &LocalToken) -> Result<(), AccessError> {
        let op = KeyOp::of(token).ok_or(AccessError::Kind)?;
        self.run(initiator, &op)
    }

    fn invalidate(&mut self, initiator: Initiator, key: Lkey) -> Result<(), AccessError> {
        self.run(initiator, &KeyOp::Invalidate(key))
    }

    fn remote_invalidate(&mut self, initiator: Initiator, key: Rkey) -> Result<(), AccessError> {
        self.rdma.regions.keys.remote_invalidate(initiator, key)?;
        self.rdma.counts.count_invalidate();
        Ok(())
    }
}

/// Modifies the state and attributes of a QP in the engine.
pub(super) fn modify(rdma: &mut Rdma, cx: &mut Context<'_>, qpn: Qpn, modify: &Modify) {
    let (engine, cx) = cx.split();
    // The engine contains exactly the QPs in `Rdma::queues`, so `modify_qp` always finds the QP.
    let _ = engine.modify_qp(cx.now, qpn, modify, &mut RdmaHost { rdma, cx });
}

/// Notifies the engine that a send queue may have new requests.
pub(super) fn notify_send(rdma: &mut Rdma, cx: &mut Context<'_>, qpn: Qpn) {
    let (engine, cx) = cx.split();
    engine.notify_send(cx.now, qpn, &mut RdmaHost { rdma, cx });
}
