//! Limits on the memory that a client may map.

use schemars::JsonSchema;
use serde::Deserialize;

/// Maximum number of ranges after merging. This is the vfio-user protocol's default.
pub const MAX_WINDOWS: usize = 65_535;

/// Maximum number of mapped files. A guest has one file per memory back-end, and QEMU supports 256 back-ends.
pub const MAX_FILES: usize = 256;

/// Default limit on the total length of mapped files: 1 TiB.
pub const DEFAULT_BYTES: u64 = 1 << 40;

/// Maximum total number of bytes that the clients of all devices in a process may map. On x86-64, a Linux process has
/// twice as much address space.
pub const MAX_BYTES_OF_ALL: u64 = 64 << 40;

/// Limits for one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of ranges after merging.
    pub windows: usize,
    pub files: usize,
    /// Maximum total length of the mapped files in bytes. A file counts in full, even if it is sparse.
    pub bytes: u64,
    pub file_systems: FileSystems,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            windows: MAX_WINDOWS,
            files: MAX_FILES,
            bytes: DEFAULT_BYTES,
            file_systems: FileSystems::default(),
        }
    }
}

/// File systems accepted for guest memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FileSystems {
    /// tmpfs (including memfds) and hugetlbfs. A page fault either succeeds or fails immediately.
    #[default]
    Memory,
    /// All file systems. The server of a network or FUSE file system can block the device indefinitely on any access.
    Any,
}
