//! The transport part of a RoCE packet: what lies between the UDP header and the ICRC.

use super::{Bth, Ext};

/// A parsed packet. `ext` is the variant that `bth.opcode` demands; `payload` excludes the pad bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// Base transport header.
    pub bth: Bth,
    /// Extension headers.
    pub ext: Ext,
    /// Payload without pad.
    pub payload: &'a [u8],
}
