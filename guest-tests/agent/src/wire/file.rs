//! Steps that read, write and check file contents. If a program in the guest has mapped a file as shared memory, these
//! steps access the program's memory.

use serde::{Deserialize, Serialize};

/// Writes part of a pattern stream ([`crate::pattern`]) to part of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FillFile {
    /// The file, which must exist.
    pub path: String,
    /// Offset of the part in the file.
    pub off: u64,
    pub len: u64,
    pub seed: u64,
    /// Position of the part's first byte in the stream.
    pub position: u64,
}

/// Reads bytes from a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PeekFile {
    pub path: String,
    /// Offset of the first byte.
    pub off: u64,
    /// Number of bytes, at most 65536.
    pub len: u32,
}

/// Compares part of a file with part of a pattern stream. The answer is a [`super::Verified`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct VerifyFile {
    pub path: String,
    /// Offset of the part in the file.
    pub off: u64,
    pub len: u64,
    pub seed: u64,
    /// Position of the part's first byte in the stream.
    pub position: u64,
}

/// Waits until one of the files contains one of the strings. This step is for kernel state that is visible only in
/// sysfs or procfs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AwaitText {
    /// Files to read. Unreadable files count as empty.
    pub paths: Vec<String>,
    pub texts: Vec<String>,
    /// Timeout in milliseconds, after which the step fails and reports the contents of the files.
    pub timeout_ms: u32,
}
