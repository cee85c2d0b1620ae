//! A device as the engine sees it: its work queues, and the memory behind its keys.

use engine::{Access, AccessError, AtomicOp, Fetch, Instant, Modify, RecvRequest, SendRequest};
use protocol::hca::status::{CmdError, CmdStatus};
use protocol::ids::{Lkey, Pdn, Qpn, Va};
use smallvec::SmallVec;

use super::Context;
use super::address::Addresses;
use super::mtt::Mtt;
use crate::memory::GuestMemory;
use crate::memory::translate::{Place, RegionAccess};
use crate::telemetry::monitor::Monitor;

/// Work queues and regions that a device has from INIT_HCA to CLOSE_HCA.
pub trait Queues {
    /// Takes the next request of a QP's send queue.
    fn next_send(&mut self, qpn: Qpn, around: &mut Around<'_>) -> Fetch<SendRequest>;

    /// Takes the next request of a QP's receive queue, or of the one it shares.
    fn next_recv(&mut self, qpn: Qpn, around: &mut Around<'_>) -> Fetch<RecvRequest>;

    /// QPs that are attached to a multicast group.
    fn group_members(&self, gid: &[u8; 16]) -> SmallVec<[Qpn; 8]> {
        let _ = gid;
        SmallVec::new()
    }

    /// Bytes of regions in `dma`.
    fn access<'a>(&'a self, dma: &'a GuestMemory) -> RegionAccess<'a, &'a Mtt>;
}

/// What a device's queues are looked at with.
#[derive(Debug)]
pub struct Around<'a> {
    /// What time it is.
    pub now: Instant,
    /// Who is where on the fabric.
    pub addresses: &'a Addresses,
    /// Guest memory.
    pub dma: &'a GuestMemory,
    /// Who looks on.
    pub monitor: &'a mut Monitor,
}

/// [`engine::Host`] of a device. Before INIT_HCA it has no queue and no key.
#[derive(Debug)]
pub struct Host<'a, Q> {
    /// From INIT_HCA to CLOSE_HCA.
    pub queues: Option<&'a mut Q>,
    /// What they are looked at with.
    pub around: Around<'a>,
}

impl<Q: Queues> Host<'_, Q> {
    fn access(&self) -> Result<RegionAccess<'_, &Mtt>, AccessError> {
        let queues = self.queues.as_deref().ok_or(AccessError::Key)?;
        Ok(queues.access(self.around.dma))
    }
}

impl<Q: Queues> engine::Host for Host<'_, Q> {
    fn next_send(&mut self, qpn: Qpn) -> Fetch<SendRequest> {
        let Self { queues, around } = self;
        queues.as_mut().map_or(Fetch::Empty, |queues| queues.next_send(qpn, around))
    }

    fn next_recv(&mut self, qpn: Qpn) -> Fetch<RecvRequest> {
        let Self { queues, around } = self;
        queues.as_mut().map_or(Fetch::Empty, |queues| queues.next_recv(qpn, around))
    }

    fn group_members(&self, gid: &[u8; 16]) -> SmallVec<[Qpn; 8]> {
        self.queues.as_ref().map_or_else(SmallVec::new, |queues| queues.group_members(gid))
    }

    fn check(&self, pd: Pdn, key: Lkey, va: Va, len: u64, access: Access) -> Result<(), AccessError> {
        self.access()?.check(Place::address(pd, key, va), len, access)
    }

    fn read(
        &self,
        pd: Pdn,
        key: Lkey,
        va: Va,
        len: usize,
        out: &mut Vec<u8>,
        access: Access,
    ) -> Result<(), AccessError> {
        self.access()?.append(Place::address(pd, key, va), len, out, access)
    }

    fn write(&mut self, pd: Pdn, key: Lkey, va: Va, data: &[u8], access: Access) -> Result<(), AccessError> {
        self.access()?.write(Place::address(pd, key, va), data, access)
    }

    fn atomic(&mut self, pd: Pdn, key: Lkey, va: Va, op: AtomicOp) -> Result<u64, AccessError> {
        self.access()?.atomic(Place::address(pd, key, va), op)
    }
}

impl Context<'_> {
    /// Moves a QP of the engine to another state, or changes its attributes.
    ///
    /// # Errors
    /// INTERNAL_ERR: the engine has no such QP, which a front-end that has one does not let happen.
    pub fn modify_qp(
        &mut self,
        queues: &mut impl Queues,
        addresses: &Addresses,
        qpn: Qpn,
        modify: &Modify,
    ) -> Result<(), CmdError> {
        let around = Around { now: self.now, addresses, dma: self.dma, monitor: self.monitor };
        let mut host = Host { queues: Some(queues), around };
        let moved = self.engine.modify_qp(self.now, qpn, modify, &mut host);
        moved.map_err(|_| CmdError::new(CmdStatus::InternalErr, "QP", qpn.get().into()))
    }

    /// Tells the engine that a send queue may have new requests.
    pub fn ring(&mut self, queues: &mut impl Queues, addresses: &Addresses, qpn: Qpn) {
        let around = Around { now: self.now, addresses, dma: self.dma, monitor: self.monitor };
        self.engine.ring(self.now, qpn, &mut Host { queues: Some(queues), around });
    }
}
