//! Work queues and memory of the device, for the engine.

use engine::{
    Access, AccessError, AtomicOp, Dropped, Fetch, GroupDatagram, Initiator, Modify, RecvRequest, RecvSource,
    SendRequest,
};
use protocol::ids::{Lkey, Qpn, Va};
use smallvec::SmallVec;

use super::check::{Check, Rejection};
use super::mkey::Mkeys;
use super::resources::Resources;
use crate::frontend::{Context, HostContext};
use crate::memory::translate::{AccessTarget, RegionAccess};

/// Implements [`engine::Host`] for the device. Before INIT_HCA it has no queues and no keys.
#[derive(Debug)]
pub struct Mlx5Host<'a> {
    /// `None` before INIT_HCA and after TEARDOWN_HCA.
    pub resources: Option<&'a mut Resources>,
    /// Guest memory, addresses and monitor of the current input.
    pub cx: HostContext<'a>,
}

impl Mlx5Host<'_> {
    fn access(&self) -> Result<RegionAccess<'_, &Mkeys>, AccessError> {
        let resources = self.resources.as_deref().ok_or(AccessError::Key)?;
        Ok(resources.mkeys.access(self.cx.dma))
    }
}

impl engine::Host for Mlx5Host<'_> {
    /// Work requests are not executed yet.
    fn next_send(&mut self, _: Qpn) -> Fetch<SendRequest> {
        Fetch::Empty
    }

    /// Receives are not taken yet.
    fn next_recv(&mut self, _: RecvSource) -> Fetch<RecvRequest> {
        Fetch::Empty
    }

    fn group_members(&self, datagram: &GroupDatagram) -> SmallVec<[Qpn; 8]> {
        self.resources.as_ref().map_or_else(SmallVec::new, |all| all.groups.members(&datagram.gid))
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

/// Moves a QP of the engine to another state, or changes its attributes.
///
/// # Errors
/// The engine does not have the QP, which would be a bug of this front-end.
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

/// Notifies the engine that a send queue may have new requests.
pub fn notify_send(cx: &mut Context<'_>, resources: &mut Resources, qpn: Qpn) {
    let (engine, cx) = cx.split();
    engine.notify_send(cx.now, qpn, &mut Mlx5Host { resources: Some(resources), cx });
}
