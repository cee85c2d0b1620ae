//! Memory shared with another process through a memfd.
//!
//! The length of the memfd is sealed so that no recipient can truncate it and cause a SIGBUS here. The memory is not
//! executable. Its contents may change at any time.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::Errno;
use vm_memory::{FileOffset, MmapRegion};

/// Seals that fix the length of a file so that an untrusted process cannot truncate it.
pub const LENGTH_SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// Creates a file of `len` zero bytes. Memory is allocated only for pages that are touched. `name` is the file's name
/// in `/proc/PID/maps`.
///
/// # Errors
/// Fails if the process has reached its descriptor limit.
pub fn make(name: &str, len: usize) -> io::Result<OwnedFd> {
    let memfd = create(name)?;
    ftruncate(&memfd, len as u64)?;
    fcntl_add_seals(&memfd, LENGTH_SEALS | SealFlags::SEAL)?;
    Ok(memfd)
}

/// Maps a file created by [`make`].
///
/// # Errors
/// Fails if the host cannot map the file.
pub fn map(memfd: OwnedFd, len: usize) -> io::Result<MmapRegion> {
    MmapRegion::from_file(FileOffset::new(File::from(memfd), 0), len).map_err(io::Error::other)
}

/// Creates a memfd, without execute permission if the kernel supports this. Before Linux 6.3, every memfd has
/// execute permission. Later kernels may refuse executable memfds (`vm.memfd_noexec`).
fn create(name: &str) -> rustix::io::Result<OwnedFd> {
    let usual = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    match memfd_create(name, usual | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => memfd_create(name, usual),
        made => made,
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{Mode, fchmod, fcntl_get_seals, fstat};

    use super::*;

    #[test]
    fn memfd_length_is_sealed() {
        let memfd = make("test", 4096).unwrap();
        for len in [0, 8192] {
            assert_eq!(ftruncate(&memfd, len).unwrap_err(), Errno::PERM);
        }
        assert_eq!(map(memfd, 4096).unwrap().size(), 4096);
    }

    #[test]
    fn shared_memory_is_not_executable() {
        let memfd = make("test", 4096).unwrap();
        if !fcntl_get_seals(&memfd).unwrap().contains(SealFlags::EXEC) {
            // Kernels before Linux 6.3 do not support MFD_NOEXEC_SEAL.
            assert_eq!(memfd_create("test", MemfdFlags::NOEXEC_SEAL).unwrap_err(), Errno::INVAL);
            return;
        }
        assert_eq!(fstat(&memfd).unwrap().st_mode & 0o111, 0);
        assert!(fchmod(&memfd, Mode::RWXU).is_err());
    }
}
