//! Reasons why received bytes are rejected.

use thiserror::Error;

/// Why bytes from the wire are rejected. Each variant has its own drop counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum WireError {
    /// The input is shorter than a header or a length field requires.
    #[error("{what} requires {need} bytes, but only {have} are available")]
    Short {
        /// Name of the header that did not fit.
        what: &'static str,
        /// Number of bytes required.
        need: usize,
        /// Number of bytes available.
        have: usize,
    },
    /// A field has a value that the specification forbids.
    #[error("invalid {what} {value:#x}")]
    Invalid {
        /// Name of the field.
        what: &'static str,
        /// Value that was received.
        value: u64,
    },
    /// The ICRC does not match the packet.
    #[error("ICRC is {found:#010x}, expected {expected:#010x}")]
    Icrc {
        /// ICRC in the packet, as a little-endian integer.
        found: u32,
        /// ICRC computed over the packet.
        expected: u32,
    },
    /// An IP, UDP, ICMP or ICMPv6 checksum is wrong.
    #[error("invalid {what} checksum")]
    Checksum {
        /// Protocol whose checksum is wrong.
        what: &'static str,
    },
}

impl WireError {
    /// Returns the variant's short, stable name for counters.
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Short { .. } => "short",
            Self::Invalid { .. } => "invalid",
            Self::Icrc { .. } => "icrc",
            Self::Checksum { .. } => "checksum",
        }
    }
}
