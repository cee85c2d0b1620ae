//! Memory that is handed to another process: a memfd of ours, mapped.
//!
//! Its length is sealed, so that nobody who is given it can cut it short and end us by SIGBUS in the middle of a look, and it
//! is no program for anybody. What is in it may change at any time.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::Errno;
use vm_memory::{FileOffset, MmapRegion};

/// Seals without which a file of a stranger's can be cut short.
pub const LENGTH_SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// A file of `len` bytes of zeros, of which the host has none until they are touched. `name` is what `/proc/PID/maps` calls it.
///
/// # Errors
/// The host refuses a descriptor.
pub fn make(name: &str, len: usize) -> io::Result<OwnedFd> {
    let memfd = create(name)?;
    ftruncate(&memfd, len as u64)?;
    fcntl_add_seals(&memfd, LENGTH_SEALS | SealFlags::SEAL)?;
    Ok(memfd)
}

/// The bytes of such a file.
///
/// # Errors
/// The host refuses to map it.
pub fn map(memfd: OwnedFd, len: usize) -> io::Result<MmapRegion> {
    MmapRegion::from_file(FileOffset::new(File::from(memfd), 0), len).map_err(io::Error::other)
}

/// Kernels before 6.3 know no files that nobody can execute; from then on one may refuse all others (`vm.memfd_noexec`).
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
    fn its_length_cannot_be_changed() {
        let memfd = make("test", 4096).unwrap();
        for len in [0, 8192] {
            assert_eq!(ftruncate(&memfd, len).unwrap_err(), Errno::PERM);
        }
        assert_eq!(map(memfd, 4096).unwrap().size(), 4096);
    }

    #[test]
    fn it_is_no_program_for_anybody() {
        let memfd = make("test", 4096).unwrap();
        if !fcntl_get_seals(&memfd).unwrap().contains(SealFlags::EXEC) {
            // A kernel before 6.3.
            assert_eq!(memfd_create("test", MemfdFlags::NOEXEC_SEAL).unwrap_err(), Errno::INVAL);
            return;
        }
        assert_eq!(fstat(&memfd).unwrap().st_mode & 0o111, 0);
        assert!(fchmod(&memfd, Mode::RWXU).is_err());
    }
}
