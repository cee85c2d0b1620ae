//! What a client may take of this process with its memory.

use schemars::JsonSchema;
use serde::Deserialize;

/// Bound: ranges after merging; the number the protocol assumes when a server names none.
pub const MAX_WINDOWS: usize = 65_535;

/// Bound: files mapped at once. A guest has one per memory back-end, QEMU 256 of those at most.
pub const MAX_FILES: usize = 256;

/// Bound: bytes of files mapped at once, where the configuration does not say. Guests of half of it exist.
pub const DEFAULT_BYTES: u64 = 1 << 40;

/// Bound: bytes that the clients of all devices of a process may have mapped together. Linux gives a process on x86-64
/// twice as much.
pub const MAX_BYTES_OF_ALL: u64 = 64 << 40;

/// What one client may have mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Ranges, after merging.
    pub windows: usize,
    /// Files.
    pub files: usize,
    /// Bytes of these files, each of which counts whole.
    pub bytes: u64,
    /// Where these files may be.
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
    /// tmpfs (including memfds) and hugetlbfs. A page is available immediately or never.
    #[default]
    Memory,
    /// All file systems. The server of a network or FUSE file system can block the device indefinitely on any access.
    Any,
}
