//! The device as the engine sees it: work queues and memory.

use engine::{Access, AccessError, AtomicOp, Fetch, Host, RecvRequest, SendRequest};
use protocol::ids::{Lkey, Pdn, Qpn, Va};

use super::resources::Resources;
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
    fn next_send(&mut self, _: Qpn) -> Fetch<SendRequest> {
        Fetch::Empty
    }

    fn next_recv(&mut self, _: Qpn) -> Fetch<RecvRequest> {
        Fetch::Empty
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
