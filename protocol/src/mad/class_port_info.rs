//! ClassPortInfo: what an agent of a class can do.
//!
//! # Spec
//! IBTA volume 1, section 13.4.8.1.

use super::field::attribute;

/// Attribute number, the same in all classes.
pub const ATTRIBUTE: u16 = 0x01;

attribute! {
    /// ClassPortInfo, without redirection and trap destination, which are 0.
    pub struct ClassPortInfo[72] {
        /// Supported version of management datagrams.
        base_version: u8 = 0, 8;
        /// Supported version of the class.
        class_version: u8 = 8, 8;
        /// What the agent can do; bits from 8 up belong to the class.
        capabilities: u16 = 16, 16;
        /// More of it, of the class.
        capabilities2: u32 = 32, 27;
        /// Time an answer may take: 4.096 us times 2 to this.
        resp_time: u8 = 59, 5;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// mthca interface, section 9.2: send-only full members are bit 17 of the word at 4.
    #[test]
    fn capability_mask_2_ends_at_bit_5() {
        let info = ClassPortInfo {
            base_version: 1,
            class_version: 2,
            capabilities2: 1 << 12,
            resp_time: 18,
            ..ClassPortInfo::default()
        };
        let mut bytes = [0; 72];
        bytes[..8].copy_from_slice(&[1, 2, 0, 0, 0, 0x02, 0, 18]);
        assert_eq!(info.emit(), bytes);
        assert_eq!(u32::from_be_bytes([0, 0x02, 0, 18]) >> 17 & 1, 1);
    }
}
