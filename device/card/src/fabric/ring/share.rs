//! Creates the shared memory of a link and maps shared memory created by a peer.
//!
//! A peer's file is mapped only if its length is sealed: an access beyond the end of a truncated file would raise
//! SIGBUS. The file must also be on tmpfs. A hugetlbfs file can lack pages even if its length is sealed, and an access
//! to a missing page would raise SIGBUS as well.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{fcntl_get_seals, fstat, fstatfs};
use thiserror::Error;

use super::memory::{Consumer, Producer, RingLen, Side, ends};
use crate::shared_memory::{self, LENGTH_SEALS};

/// The constant `TMPFS_MAGIC` from linux/magic.h.
const TMPFS: u64 = 0x0102_1994;

/// Name of the memory in `/proc/PID/maps`.
const NAME: &str = "hcad-ring";

/// Why a peer's memory is rejected.
#[derive(Debug, Error)]
pub(super) enum ShareError {
    #[error("the shared memory is not sealed against resizing")]
    Unsealed,
    #[error("the shared memory size ({0} bytes) does not match the ring size")]
    Len(u64),
    #[error("the shared memory must be a memfd that does not use huge pages")]
    FileSystem,
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Creates shared memory. Returns the descriptor to send to the peer, and this side's ends of the rings.
pub(super) fn make(len: RingLen) -> io::Result<(OwnedFd, Producer, Consumer)> {
    let memfd = shared_memory::make(NAME, len.memory_len())?;
    let region = shared_memory::map(memfd.try_clone()?, len.memory_len())?;
    let (producer, consumer) = ends(Arc::new(region), len, Side::Creator)?;
    Ok((memfd, producer, consumer))
}

/// Maps shared memory created by a peer. Returns this side's ends of the rings.
pub(super) fn take(memfd: OwnedFd, len: RingLen) -> Result<(Producer, Consumer), ShareError> {
    // The call fails with EINVAL for a socket or for a file that does not support seals.
    if !fcntl_get_seals(&memfd).is_ok_and(|seals| seals.contains(LENGTH_SEALS)) {
        return Err(ShareError::Unsealed);
    }
    let kind = fstatfs(&memfd).map_err(io::Error::from)?.f_type;
    if u64::try_from(kind) != Ok(TMPFS) {
        return Err(ShareError::FileSystem);
    }
    let bytes = u64::try_from(fstat(&memfd).map_err(io::Error::from)?.st_size).unwrap_or_default();
    if bytes != len.memory_len() as u64 {
        return Err(ShareError::Len(bytes));
    }
    let region = shared_memory::map(memfd, len.memory_len())?;
    Ok(ends(Arc::new(region), len, Side::Receiver)?)
}

#[cfg(test)]
mod tests {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

    use super::*;

    const LEN: RingLen = RingLen::DEFAULT;

    fn memfd(seals: SealFlags, bytes: u64) -> OwnedFd {
        let memfd = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&memfd, bytes).unwrap();
        fcntl_add_seals(&memfd, seals).unwrap();
        memfd
    }

    #[test]
    fn created_memory_is_accepted_and_sealed() {
        let (memfd, ..) = make(LEN).unwrap();
        assert!(ftruncate(&memfd, 0).is_err());
        take(memfd, LEN).unwrap();
    }

    #[test]
    fn resizable_memory_is_rejected() {
        let bytes = LEN.memory_len() as u64;
        for seals in [SealFlags::empty(), SealFlags::GROW, SealFlags::SHRINK] {
            assert!(matches!(take(memfd(seals, bytes), LEN), Err(ShareError::Unsealed)), "{seals:?}");
        }
        let file = tempfile::tempfile().unwrap();
        file.set_len(bytes).unwrap();
        assert!(matches!(take(file.into(), LEN), Err(ShareError::Unsealed)));
        let (pipe, _writer) = rustix::pipe::pipe().unwrap();
        assert!(matches!(take(pipe, LEN), Err(ShareError::Unsealed)));
    }

    #[test]
    fn read_only_or_wrongly_sized_memory_is_rejected() {
        let bytes = LEN.memory_len() as u64;
        for wrong in [0, 4096, bytes - 1, bytes + 1] {
            assert!(
                matches!(take(memfd(LENGTH_SEALS, wrong), LEN), Err(ShareError::Len(len)) if len == wrong)
            );
        }
        let read_only = memfd(LENGTH_SEALS | SealFlags::WRITE, bytes);
        assert!(matches!(take(read_only, LEN), Err(ShareError::Io(_))));
    }
}
