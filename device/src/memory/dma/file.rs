//! Files of the client, mapped.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{FileType, OFlags, SealFlags, fcntl_get_seals, fcntl_getfl, fstat};
use vm_memory::mmap::MmapRegionBuilder;
use vm_memory::{FileOffset, MmapRegion, VolatileMemory, VolatileSlice};

use crate::limited;

/// What makes two descriptors the same to us. While a file is mapped its inode number is not used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileId {
    device: u64,
    inode: u64,
    writable: bool,
}

/// A descriptor that came with a range, examined but not mapped.
pub(super) struct Candidate {
    fd: OwnedFd,
    id: FileId,
    len: u64,
}

impl Candidate {
    /// # Errors
    /// The descriptor is no regular file, or cannot be written though `writable` asks for it.
    pub(super) fn new(fd: OwnedFd, writable: bool) -> io::Result<Self> {
        let stat = fstat(&fd)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let id = FileId {
            device: stat.st_dev,
            inode: stat.st_ino,
            writable: match fcntl_getfl(&fd)? & OFlags::RWMODE {
                OFlags::RDWR => true,
                OFlags::RDONLY if !writable => false,
                _ => return Err(io::Error::from_raw_os_error(libc::EACCES)),
            },
        };
        let len = u64::try_from(stat.st_size).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
        Ok(Self { fd, id, len })
    }

    /// Bytes of the file now.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Maps the file from its first to its last byte.
    pub(super) fn map(self) -> io::Result<MappedFile> {
        let len = usize::try_from(self.len).map_err(|_| io::Error::from_raw_os_error(libc::ENOMEM))?;
        if !fcntl_get_seals(&self.fd).is_ok_and(|seals| seals.contains(SealFlags::SHRINK)) {
            limited!(
                info,
                inode = self.id.inode,
                "guest memory is a file without F_SEAL_SHRINK: a client that truncates it ends this process"
            );
        }
        let write = if self.id.writable { libc::PROT_WRITE } else { 0 };
        let region = MmapRegionBuilder::new(len)
            .with_mmap_prot(libc::PROT_READ | write)
            .with_mmap_flags(libc::MAP_SHARED | libc::MAP_NORESERVE)
            .with_file_offset(FileOffset::new(File::from(self.fd), 0))
            .build()
            .map_err(|error| match error {
                vm_memory::mmap::MmapRegionError::Mmap(error) => error,
                other => io::Error::other(other),
            })?;
        Ok(MappedFile { id: self.id, region })
    }
}

/// A file of the client in our address space.
#[derive(Debug)]
pub(super) struct MappedFile {
    id: FileId,
    region: MmapRegion,
}

impl MappedFile {
    /// Whether this is the mapping of the candidate's file and has the part. A file that grew needs another.
    pub(super) fn serves(&self, candidate: &Candidate, offset: u64, len: u64) -> bool {
        let mapped = self.region.size() as u64;
        self.id == candidate.id && offset <= mapped && len <= mapped - offset
    }

    /// Bytes of the file.
    pub(super) fn slice(&self, offset: u64, len: usize) -> Option<VolatileSlice<'_>> {
        self.region.get_slice(usize::try_from(offset).ok()?, len).ok()
    }
}
