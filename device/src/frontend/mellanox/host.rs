//! A device as the engine sees it: its work queues, and the memory behind its keys.

use engine::{
    Access, AccessError, AtomicOp, Dropped, Fetch, GroupDatagram, Initiator, Modify, RecvRequest, SendRequest,
};
use protocol::hca::status::{CmdError, CmdStatus};
use protocol::ids::{Lkey, Qpn, Va};
use smallvec::SmallVec;

use super::mtt::Mtt;
use crate::frontend::{Context, HostContext};
use crate::memory::GuestMemory;
use crate::memory::translate::{AccessTarget, RegionAccess};

/// Work queues and regions that a device has from INIT_HCA to CLOSE_HCA.
pub trait Queues {
    /// Takes the next request of a QP's send queue.
    fn next_send(&mut self, qpn: Qpn, cx: &mut HostContext<'_>) -> Fetch<SendRequest>;

    /// Takes the next request of a QP's receive queue, or of the one it shares.
    fn next_recv(&mut self, qpn: Qpn, cx: &mut HostContext<'_>) -> Fetch<RecvRequest>;

    /// As [`Queues::next_recv`], for a request that completes as flushed: its list is not used.
    fn next_flushed_recv(&mut self, qpn: Qpn, cx: &mut HostContext<'_>) -> Fetch<RecvRequest> {
        self.next_recv(qpn, cx)
    }

    /// QPs that are attached to a multicast group.
    fn group_members(&self, gid: &[u8; 16]) -> SmallVec<[Qpn; 8]> {
        let _ = gid;
        SmallVec::new()
    }

    /// Bytes of regions in `dma`.
    fn access<'a>(&'a self, dma: &'a GuestMemory) -> RegionAccess<'a, &'a Mtt>;
}

/// [`engine::Host`] of a device. Before INIT_HCA it has no queue and no key.
#[derive(Debug)]
pub struct DeviceHost<'a, Q> {
    /// From INIT_HCA to CLOSE_HCA.
    pub queues: Option<&'a mut Q>,
    /// What they are looked at with.
    pub cx: HostContext<'a>,
}

impl<Q: Queues> DeviceHost<'_, Q> {
    fn access(&self) -> Result<RegionAccess<'_, &Mtt>, AccessError> {
        let queues = self.queues.as_deref().ok_or(AccessError::Key)?;
        Ok(queues.access(self.cx.dma))
    }
}

impl<Q: Queues> engine::Host for DeviceHost<'_, Q> {
    fn next_send(&mut self, qpn: Qpn) -> Fetch<SendRequest> {
        let Self { queues, cx } = self;
        queues.as_mut().map_or(Fetch::Empty, |queues| queues.next_send(qpn, cx))
    }

    fn next_recv(&mut self, qpn: Qpn) -> Fetch<RecvRequest> {
        let Self { queues, cx } = self;
        queues.as_mut().map_or(Fetch::Empty, |queues| queues.next_recv(qpn, cx))
    }

    fn next_flushed_recv(&mut self, qpn: Qpn) -> Fetch<RecvRequest> {
        let Self { queues, cx } = self;
        queues.as_mut().map_or(Fetch::Empty, |queues| queues.next_flushed_recv(qpn, cx))
    }

    fn group_members(&self, datagram: &GroupDatagram) -> SmallVec<[Qpn; 8]> {
        // A sender that is a member gets its own: software is used to knowing and leaving out its own packets.
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

    fn write(
        &mut self,
        who: Initiator,
        key: Lkey,
        va: Va,
        data: &[u8],
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
}

impl Context<'_> {
    /// Moves a QP of the engine to another state, or changes its attributes.
    ///
    /// # Errors
    /// INTERNAL_ERR: the engine has no such QP, which a front-end that has one does not let happen.
    pub fn modify_qp(&mut self, queues: &mut impl Queues, qpn: Qpn, modify: &Modify) -> Result<(), CmdError> {
        let (engine, cx) = self.split();
        let moved = engine.modify_qp(cx.now, qpn, modify, &mut DeviceHost { queues: Some(queues), cx });
        moved.map_err(|_| CmdError::new(CmdStatus::InternalErr, "unknown QP", qpn.get().into()))
    }

    /// Tells the engine that a send queue may have new requests.
    pub fn ring(&mut self, queues: &mut impl Queues, qpn: Qpn) {
        let (engine, cx) = self.split();
        engine.notify_send(cx.now, qpn, &mut DeviceHost { queues: Some(queues), cx });
    }
}
