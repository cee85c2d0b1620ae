//! Permissions of a key.

use bitflags::bitflags;

use crate::Access;

bitflags! {
    /// Permissions of a key. Local reads are always permitted.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct Rights: u8 {
        /// Local requests can write.
        const LOCAL_WRITE = 1 << 0;
        /// Peers can write with RDMA WRITE.
        const REMOTE_WRITE = 1 << 1;
        /// Peers can read with RDMA READ.
        const REMOTE_READ = 1 << 2;
        /// Peers can execute atomic operations.
        const REMOTE_ATOMIC = 1 << 3;
        /// Memory windows can be bound to the region.
        const BIND = 1 << 4;
    }
}

impl Rights {
    /// Returns whether `access` is permitted.
    pub const fn permit(self, access: Access) -> bool {
        self.contains(match access {
            Access::LocalRead => Self::empty(),
            Access::LocalWrite => Self::LOCAL_WRITE,
            Access::RemoteWrite => Self::REMOTE_WRITE,
            Access::RemoteRead => Self::REMOTE_READ,
            Access::RemoteAtomic => Self::REMOTE_ATOMIC,
        })
    }
}
