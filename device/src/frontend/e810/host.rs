//! What the engine sees of a device without RDMA: no queue, no key, no memory.

use engine::{Access, AccessError, Accessor, AtomicOp, Fetch, RecvRequest, SendRequest};
use protocol::ids::{Lkey, Qpn, Va};
use smallvec::SmallVec;

/// Nothing that the engine could work with.
#[derive(Debug)]
pub struct NoRdma;

impl engine::Host for NoRdma {
    fn next_send(&mut self, _: Qpn) -> Fetch<SendRequest> {
        Fetch::Empty
    }

    fn next_recv(&mut self, _: Qpn) -> Fetch<RecvRequest> {
        Fetch::Empty
    }

    fn group_members(&self, _: &[u8; 16]) -> SmallVec<[Qpn; 8]> {
        SmallVec::new()
    }

    fn check(&self, _: Accessor, _: Lkey, _: Va, _: u64, _: Access) -> Result<(), AccessError> {
        Err(AccessError::Key)
    }

    fn read(
        &self,
        _: Accessor,
        _: Lkey,
        _: Va,
        _: usize,
        _: &mut Vec<u8>,
        _: Access,
    ) -> Result<(), AccessError> {
        Err(AccessError::Key)
    }

    fn write(&mut self, _: Accessor, _: Lkey, _: Va, _: &[u8], _: Access) -> Result<(), AccessError> {
        Err(AccessError::Key)
    }

    fn atomic(&mut self, _: Accessor, _: Lkey, _: Va, _: AtomicOp) -> Result<u64, AccessError> {
        Err(AccessError::Key)
    }
}
