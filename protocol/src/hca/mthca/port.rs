//! The inboxes of INIT_IB and SET_IB.
//!
//! # Spec
//! mthca interface, section 3.5.

use crate::describe::{Hex, describe};
use crate::hca::status::CmdError;

/// Inbox of INIT_IB. Software asks for what QUERY_DEV_LIM offered, so nothing of it changes the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InitIb;

impl InitIb {
    /// Bytes of the inbox.
    pub const LEN: usize = 56;
}

/// Inbox of SET_IB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetIb {
    /// Set the counter of Q_Key violations to 0.
    pub reset_qkey_violations: bool,
    /// The whole capability mask that PortInfo shows from now on.
    pub capabilities: u32,
}

describe!(SetIb { reset_qkey_violations, capabilities as Hex });

impl SetIb {
    /// Bytes of the inbox.
    pub const LEN: usize = 0x40;

    /// Reads an inbox.
    pub fn parse(inbox: &[u8; Self::LEN]) -> Self {
        let [_, _, _, flags, a, b, c, d, ..] = *inbox;
        Self { reset_qkey_violations: flags & 1 != 0, capabilities: u32::from_be_bytes([a, b, c, d]) }
    }
}

/// Checks the port in in_modifier; there is one.
///
/// # Errors
/// BAD_PARAM for another.
pub fn check(port: u32) -> Result<(), CmdError> {
    if port == 1 { Ok(()) } else { Err(CmdError::param("port", port.into())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Section 14.3, its last line.
    #[test]
    fn set_ib_carries_the_whole_mask() {
        let mut inbox = [0; SetIb::LEN];
        inbox[4..8].copy_from_slice(&[0x02, 0x51, 0x0a, 0x68]);
        let expected = SetIb { reset_qkey_violations: false, capabilities: 0x0251_0a68 };
        assert_eq!(SetIb::parse(&inbox), expected);
        inbox[3] = 1;
        assert!(SetIb::parse(&inbox).reset_qkey_violations);
    }
}
