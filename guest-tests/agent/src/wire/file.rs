//! Steps about the content of files, which programs of the guest may have mapped.

use serde::{Deserialize, Serialize};

/// Write part of the stream of a seed ([`crate::pattern`]) into part of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FillFile {
    /// The file, which must be there.
    pub path: String,
    /// First byte of the part.
    pub off: u64,
    /// Bytes.
    pub len: u64,
    /// Seed.
    pub seed: u64,
    /// Byte of the stream the part starts with.
    pub position: u64,
}

/// Bytes of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PeekFile {
    /// The file.
    pub path: String,
    /// First byte.
    pub off: u64,
    /// Bytes, at most 65536.
    pub len: u32,
}

/// Does part of a file hold part of the stream of a seed? The answer is [`super::Verified`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct VerifyFile {
    /// The file.
    pub path: String,
    /// First byte of the part.
    pub off: u64,
    /// Bytes.
    pub len: u64,
    /// Seed.
    pub seed: u64,
    /// Byte of the stream the part starts with.
    pub position: u64,
}

/// Wait until one of some files holds one of some texts: the kernel tells most of what it knows that way.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AwaitText {
    /// The files. One that cannot be read holds nothing.
    pub paths: Vec<String>,
    /// The texts.
    pub texts: Vec<String>,
    /// After so long the step fails with what the files hold.
    pub timeout_ms: u32,
}
