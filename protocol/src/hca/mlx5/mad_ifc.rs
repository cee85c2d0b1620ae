//! MAD_IFC: executes a management datagram (MAD) as if it had arrived at QP0 or QP1 of the port.
//!
//! # Spec
//! mlx5 interface, sections 5.4 and 14.1.

use crate::ids::Lid;
use crate::layout;

/// Length of a MAD in bytes.
pub const MAD_LEN: usize = 256;

layout! {
    /// Input of the MAD_IFC command.
    pub struct MadIfc[272] big_endian {
        /// Whether to skip the B_Key check.
        @0x04[1]      ignore_bkey: bool,
        /// Whether to skip the M_Key check.
        @0x04[0]      ignore_mkey: bool,
        /// LID that the MAD was received from.
        @0x08         source_lid: Lid,
        /// Port number, starting at 1.
        @0x08[7:0]    port: u8,
        @0x10         mad: [u8; MAD_LEN],
    }
}

layout! {
    /// Output of the MAD_IFC command.
    pub struct MadAnswer[272] big_endian {
        /// Response MAD, or all zeros if the MAD has no response.
        @0x10  mad: [u8; MAD_LEN],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mad_ifc_fields_are_at_specified_offsets() {
        let mut input = [0; MadIfc::LEN];
        input[..0x14].copy_from_slice(&[5, 0x0d, 0, 0, 0, 0, 0, 3, 0, 0x12, 0, 1, 0, 0, 0, 0, 1, 1, 1, 1]);
        let command = MadIfc::parse(&input);
        assert!(command.ignore_mkey && command.ignore_bkey);
        assert_eq!((command.source_lid, command.port), (Lid::new(0x12), 1));
        assert_eq!(command.mad[..4], [1; 4]);
        assert_eq!(command.emit()[4..], input[4..]);
        assert_eq!(MadAnswer { mad: [7; 256] }.emit()[0x0f..0x11], [0, 7]);
    }
}
