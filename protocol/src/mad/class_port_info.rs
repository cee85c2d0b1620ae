//! ClassPortInfo: capabilities of a management class agent.
//!
//! # Spec
//! IBTA volume 1, section 13.4.8.1.

use super::field::attribute;

/// Attribute ID, the same in all classes.
pub const ATTRIBUTE: u16 = 0x01;

attribute! {
    /// The ClassPortInfo attribute. Redirection and trap fields are omitted here and emitted as 0.
    pub struct ClassPortInfo[72] {
        /// Supported MAD base version.
        base_version: u8 = 0, 8;
        class_version: u8 = 8, 8;
        /// Capability mask. Bits 7:0 are common to all classes; bits 15:8 are class-specific.
        capabilities: u16 = 16, 16;
        /// Second capability mask, 27 bits. All of its bits are class-specific.
        capabilities2: u32 = 32, 27;
        /// Response time: 4.096 us * 2^n.
        resp_time: u8 = 59, 5;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Section 9.2 of the mthca interface: send-only full membership is bit 17 of the word at byte 4.
    #[test]
    fn capability_mask_2_excludes_response_time() {
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
