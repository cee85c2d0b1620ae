//! Why a frame cannot be parsed.

use thiserror::Error;

/// Why bytes from the wire were not what they should be. Each variant is a drop reason of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum WireError {
    /// Fewer bytes than the header or length field demands.
    #[error("{what} requires {need} bytes, {have} available")]
    Short {
        /// The header that did not fit.
        what: &'static str,
        /// Bytes it takes.
        need: usize,
        /// Bytes there were.
        have: usize,
    },
    /// A field holds a value the specification excludes.
    #[error("invalid {what} {value:#x}")]
    Invalid {
        /// The field.
        what: &'static str,
        /// Its value.
        value: u64,
    },
    /// The invariant CRC does not cover these bytes.
    #[error("ICRC is {found:#010x}, expected {expected:#010x}")]
    Icrc {
        /// CRC in the packet.
        found: u32,
        /// CRC computed.
        expected: u32,
    },
    /// A checksum of an IP or UDP header is wrong.
    #[error("invalid {what} checksum")]
    Checksum {
        /// The header.
        what: &'static str,
    },
}

impl WireError {
    /// Short stable name for counters.
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Short { .. } => "short",
            Self::Invalid { .. } => "invalid",
            Self::Icrc { .. } => "icrc",
            Self::Checksum { .. } => "checksum",
        }
    }
}
