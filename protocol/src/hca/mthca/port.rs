//! Inboxes of INIT_IB and SET_IB.
//!
//! # Spec
//! mthca interface, section 3.5.

use crate::describe::{Hex, describe};
use crate::hca::status::CmdError;

/// Inbox of INIT_IB. The device ignores it, because drivers only echo the values that QUERY_DEV_LIM reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InitIb;

impl InitIb {
    /// Length of the inbox in bytes.
    pub const LEN: usize = 56;
}

/// Inbox of the SET_IB command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetIb {
    /// Whether to reset the Q_Key violation counter.
    pub reset_qkey_violations: bool,
    /// New capability mask of the port, as in PortInfo.
    pub capabilities: u32,
}

describe!(SetIb { reset_qkey_violations, capabilities as Hex });

impl SetIb {
    /// Length of the inbox in bytes.
    pub const LEN: usize = 0x40;

    /// Parses the inbox from its bytes.
    pub fn parse(inbox: &[u8; Self::LEN]) -> Self {
        let [_, _, _, flags, a, b, c, d, ..] = *inbox;
        Self { reset_qkey_violations: flags & 1 != 0, capabilities: u32::from_be_bytes([a, b, c, d]) }
    }
}

/// Checks that the port number in in_modifier is 1.
///
/// # Errors
/// BAD_PARAM for any other port.
pub fn check(port: u32) -> Result<(), CmdError> {
    if port == 1 { Ok(()) } else { Err(CmdError::param("port", port.into())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Example from section 14.3, last line.
    #[test]
    fn set_ib_contains_capability_mask() {
        let mut inbox = [0; SetIb::LEN];
        inbox[4..8].copy_from_slice(&[0x02, 0x51, 0x0a, 0x68]);
        let expected = SetIb { reset_qkey_violations: false, capabilities: 0x0251_0a68 };
        assert_eq!(SetIb::parse(&inbox), expected);
        inbox[3] = 1;
        assert!(SetIb::parse(&inbox).reset_qkey_violations);
    }
}
