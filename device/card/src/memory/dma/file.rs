//! Client files mapped by the device.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{FileType, OFlags, fcntl_getfl, fstat, fstatfs};
use vm_memory::VolatileSlice;

use super::MapError;
use super::mapping::Mapping;
use crate::memory::limits::FileSystems;

/// Identity of a mapped file. The inode number is not reused while the file is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileId {
    device: u64,
    inode: u64,
    writable: bool,
}

/// A new range's descriptor, which has been validated but not mapped yet.
pub(super) struct Candidate {
    fd: OwnedFd,
    id: FileId,
    len: u64,
}

impl Candidate {
    /// Checks the descriptor of a new range.
    ///
    /// # Errors
    /// Fails if the descriptor does not refer to a regular file or is not readable, or if `writable` is set and the
    /// descriptor is not writable.
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

    /// Returns the length of the file at the time of the check.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    pub(super) fn map(self, allowed: FileSystems) -> Result<MappedFile, MapError> {
        let system = fstatfs(&self.fd).map_err(io::Error::from)?;
        let huge = system.f_type == libc::HUGETLBFS_MAGIC;
        if allowed == FileSystems::Memory && !huge && system.f_type != libc::TMPFS_MAGIC {
            return Err(MapError::FileSystem { magic: system.f_type.cast_unsigned() });
        }
        // The block size of hugetlbfs is its page size.
        let page_len = match usize::try_from(system.f_bsize) {
            Ok(block) if huge => block,
            _ => rustix::param::page_size(),
        };
        let len = usize::try_from(self.len).map_err(|_| io::Error::from_raw_os_error(libc::ENOMEM))?;
        let mapping = Mapping::new(&self.fd, len, page_len, self.id.writable)?;
        Ok(MappedFile { id: self.id, mapping })
    }
}

/// A mapped client file. Its descriptor has been closed and no longer counts towards the descriptor limit.
#[derive(Debug)]
pub(super) struct MappedFile {
    id: FileId,
    mapping: Mapping,
}

impl MappedFile {
    /// Returns whether this mapping covers the given part of the candidate's file. If a file has grown, the added part
    /// needs another mapping.
    pub(super) fn serves(&self, candidate: &Candidate, offset: u64, len: u64) -> bool {
        let mapped = self.len();
        self.id == candidate.id && offset <= mapped && len <= mapped - offset
    }

    pub(super) fn len(&self) -> u64 {
        self.mapping.len() as u64
    }

    #[inline]
    pub(super) fn slice(&self, offset: u64, len: usize) -> Option<VolatileSlice<'_>> {
        self.mapping.slice(usize::try_from(offset).ok()?, len)
    }

    /// Returns whether a page was lost; see [`Mapping::is_lost`].
    #[inline]
    pub(super) fn is_lost(&self) -> bool {
        self.mapping.is_lost()
    }
}
