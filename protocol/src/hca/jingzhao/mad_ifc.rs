//! Outbox of MAD_IFC: a few bytes of port state. Other HCAs return a MAD instead.
//!
//! # Spec
//! JingZhao interface, section 3.14. The state codes are the same as in `PortInfo` (IBTA volume 1, section 14.2.5.6).

use crate::ids::Lid;

/// Outbox of the MAD_IFC command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MadIfc {
    /// LID of the port.
    pub lid: Lid,
    /// Whether the link is up. If so, the outbox reports port state Active (4) and physical state LinkUp (5).
    /// Otherwise, it reports port state Down (1) and physical state Polling (2).
    pub link_up: bool,
}

impl MadIfc {
    /// Length of the outbox in bytes.
    pub const LEN: usize = 0x20;

    /// Returns the outbox in wire format.
    pub const fn emit(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        [bytes[0], bytes[1]] = self.lid.get().to_be_bytes();
        (bytes[2], bytes[3]) = if self.link_up { (4, 5) } else { (1, 2) };
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mad_ifc_outbox_matches_specified_layout() {
        let mut expected = [0; MadIfc::LEN];
        expected[..4].copy_from_slice(&[0x12, 0x34, 4, 5]);
        let port = MadIfc { lid: Lid::new(0x1234), link_up: true };
        assert_eq!(port.emit(), expected);
        expected[2..4].copy_from_slice(&[1, 2]);
        assert_eq!(MadIfc { link_up: false, ..port }.emit(), expected);
    }
}
