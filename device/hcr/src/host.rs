//! The engine's view of a device: work queues and memory access by key.

use card::frontend::{Context, HostContext};
use card::memory::translate::{AccessTarget, RegionAccess};
use card::memory::{GuestMemory, GuestRange};
use engine::{
    Access, AccessError, AtomicOp, Dropped, Fetch, GroupDatagram, Initiator, Instant, Modify, PayloadRef,
    ReceivedNak, RecvRequest, RecvSource, Retry, SendRequest,
};
use protocol::hca::status::{CmdError, CmdStatus};
use protocol::ids::{Lkey, Qpn, Va};
use smallvec::SmallVec;

use super::mtt::Mtt;

/// A device's work queues and memory regions, which exist between INIT_HCA and CLOSE_HCA.
pub trait Queues {
    fn next_send(&mut self, qpn: Qpn, cx: &mut HostContext<'_>) -> Fetch<SendRequest>;

    /// Fetches the next request from a QP's receive queue or SRQ.
    fn next_recv(&mut self, qpn: Qpn, cx: &mut HostContext<'_>) -> Fetch<RecvRequest>;

    /// Like [`Queues::next_recv`], but the request will be flushed, so its scatter list is not used.
    fn next_flushed_recv(&mut self, qpn: Qpn, cx: &mut HostContext<'_>) -> Fetch<RecvRequest> {
        self.next_recv(qpn, cx)
    }

    fn next_recv_due(&self, qpn: Qpn) -> Option<Instant> {
        let _ = qpn;
        None
    }

    fn group_members(&self, gid: &[u8; 16]) -> SmallVec<[Qpn; 8]> {
        let _ = gid;
        SmallVec::new()
    }

    /// Returns a view of the memory regions, for access by key.
    fn access<'a>(&'a self, dma: &'a GuestMemory) -> RegionAccess<'a, &'a Mtt>;
}

/// Implements [`engine::Host`] for a device. Before INIT_HCA, the device has no queues and no keys.
#[derive(Debug)]
pub struct DeviceHost<'a, Q> {
    /// `None` before INIT_HCA and after CLOSE_HCA.
    pub queues: Option<&'a mut Q>,
    pub cx: HostContext<'a>,
}

impl<Q: Queues> DeviceHost<'_, Q> {
    fn access(&self) -> Result<RegionAccess<'_, &Mtt>, AccessError> {
        let queues = self.queues.as_deref().ok_or(AccessError::Key)?;
        Ok(queues.access(self.cx.dma))
    }
}

impl<Q: Queues> engine::Host for DeviceHost<'_, Q> {
    type Range = GuestRange;

    fn next_send(&mut self, qpn: Qpn) -> Fetch<SendRequest> {
        let Self { queues, cx } = self;
        queues.as_mut().map_or(Fetch::Empty, |queues| queues.next_send(qpn, cx))
    }

    fn next_recv(&mut self, source: RecvSource) -> Fetch<RecvRequest> {
        let Self { queues, cx } = self;
        // HCR interfaces do not support XRC, so the source is always a QP.
        let RecvSource::Qp(qpn) = source else { return Fetch::Empty };
        queues.as_mut().map_or(Fetch::Empty, |queues| queues.next_recv(qpn, cx))
    }

    fn next_flushed_recv(&mut self, qpn: Qpn) -> Fetch<RecvRequest> {
        let Self { queues, cx } = self;
        queues.as_mut().map_or(Fetch::Empty, |queues| queues.next_flushed_recv(qpn, cx))
    }

    fn next_recv_due(&self, qpn: Qpn) -> Option<Instant> {
        self.queues.as_ref().and_then(|queues| queues.next_recv_due(qpn))
    }

    fn group_members(&self, datagram: &GroupDatagram) -> SmallVec<[Qpn; 8]> {
        // The result may include the sender. Members of a group receive their own datagrams, which software drops.
        self.queues.as_ref().map_or_else(SmallVec::new, |queues| queues.group_members(&datagram.gid))
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

    fn dropped(&mut self, dropped: &Dropped) {
        self.cx.monitor.packet_dropped(dropped);
    }

    fn nak_received(&mut self, nak: &ReceivedNak) {
        self.cx.monitor.nak_received(nak);
    }

    fn retrying(&mut self, retry: &Retry) {
        self.cx.monitor.retrying(retry);
    }
}

/// Moves a QP in the engine to another state or changes its attributes.
///
/// # Errors
/// INTERNAL_ERR if the QP does not exist in the engine, which would be a bug in the front-end.
pub fn modify_qp(
    cx: &mut Context<'_>,
    queues: &mut impl Queues,
    qpn: Qpn,
    modify: &Modify,
) -> Result<(), CmdError> {
    let (engine, cx) = cx.split();
    let moved = engine.modify_qp(cx.now, qpn, modify, &mut DeviceHost { queues: Some(queues), cx });
    moved.map_err(|_| CmdError::new(CmdStatus::InternalErr, "unknown QP", qpn.get().into()))
}

/// Notifies the engine that a send queue may have new requests.
pub fn notify_send(cx: &mut Context<'_>, queues: &mut impl Queues, qpn: Qpn) {
    let (engine, cx) = cx.split();
    engine.notify_send(cx.now, qpn, &mut DeviceHost { queues: Some(queues), cx });
}
