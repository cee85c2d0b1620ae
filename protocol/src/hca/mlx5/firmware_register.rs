//! Registers that describe the firmware and its configuration, accessed with the ACCESS_REG command.
//!
//! # Spec
//! mlx5 interface, section 14.5.

use super::code::codes;
use super::regs::FirmwareVersion;
use crate::layout;

layout! {
    /// Contents of the MCAM register: the supported registers with numbers from 9000h.
    pub struct Mcam[72] big_endian {
        @0x00[23:16]  feature_group: u8,
        /// Group of 128 registers: 0 for 9000h to 907Fh.
        @0x00[7:0]    register_group: u8,
        /// Mask of the upper 64 registers of the group. Bit 0 is register 40h of the group.
        @0x08         upper_registers: u64 => Hex,
    }
}

impl Mcam {
    /// Value of `upper_registers` in group 0: MCQS, MCQI and MCAM.
    pub const SUPPORTED: u64 = 1 << (0x60 - 0x40) | 1 << (0x61 - 0x40) | 1 << (0x7f - 0x40);
}

layout! {
    /// Contents of the MCQS register: the status of a firmware component.
    pub struct Mcqs[16] big_endian {
        /// Whether no component has a higher index.
        @0x00[31]    is_last: bool,
        /// Index of the component, set by the driver.
        @0x00[15:0]  component: u16,
        /// Kind of the component.
        @0x04[15:0]  identifier: u16 => Hex,
        /// Whether the component is present (1) or in use (2).
        @0x08[8:4]   status: u8,
        /// State of an update of the component; 0 means that there is none.
        @0x08[3:0]   update_state: u8,
    }
}

impl Mcqs {
    /// Identifier of the component that contains the firmware image.
    pub const BOOT_IMAGE: u16 = 1;
    /// Status of a component in use.
    pub const IN_USE: u8 = 2;
}

codes! {
    /// Kind of information that MCQI returns.
    pub enum ComponentInfo(u8) {
        Version = 1 "version",
    }
}

layout! {
    /// Fixed part of the MCQI register, which returns information about a firmware component. The information follows.
    pub struct Mcqi[24] big_endian {
        /// Whether the driver requests the version that will run after the next reset.
        @0x00[31]    pending: bool,
        /// Index of the component, set by the driver.
        @0x00[15:0]  component: u16,
        /// A value of [`ComponentInfo`].
        @0x08[4:0]   info_type: u8 => ComponentInfo::word,
        /// Length of the information in bytes.
        @0x0c        info_len: u32,
        /// Offset of the first byte that the driver requests.
        @0x10        offset: u32,
        /// Number of bytes that the driver requests.
        @0x14[15:0]  data_len: u16,
    }
}

layout! {
    /// Version of a firmware component, as returned by MCQI.
    pub struct ComponentVersion[124] big_endian {
        /// Length of the text in bytes.
        @0x00[7:0]    text_len: u8,
        @0x04[31:24]  major: u8,
        @0x04[23:16]  minor: u8,
        @0x04[15:0]   sub_minor: u16,
        /// The version as text, padded with zeros.
        @0x20         text: [u8; 92] => _,
    }
}

impl From<FirmwareVersion> for ComponentVersion {
    /// Numbers that exceed their field are truncated.
    fn from(version: FirmwareVersion) -> Self {
        let FirmwareVersion { major, minor, sub_minor } = version;
        let [[_, major], [_, minor]] = [major, minor].map(u16::to_be_bytes);
        let mut text = [0; 92];
        let mut text_len = 0;
        for (to, byte) in text.iter_mut().zip(format!("{major}.{minor}.{sub_minor}").bytes()) {
            *to = byte;
            text_len += 1;
        }
        Self { text_len, major, minor, sub_minor, text }
    }
}

layout! {
    /// Header of the MNVDA register, which accesses a configuration item in non-volatile memory. The item's data
    /// follows.
    pub struct Mnvda[12] big_endian {
        /// Whether the access is to the value after the next reset (0), the current one (1) or the default (2).
        @0x00[23:22]  access_mode: u8,
        /// Length of the data in bytes.
        @0x00[8:0]    data_len: u16,
        /// Class of the item in the upper eight bits, and its number in the class.
        @0x04         item: u32 => Hex,
    }
}

layout! {
    /// Contents of the MFRL register, without the fields that request a reset.
    pub struct Mfrl[8] big_endian {
        /// Mask of the reset levels that suffice to activate new firmware, apart from a power cycle.
        @0x04[7:0]  levels: u8 => Hex,
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::words;
    use super::*;

    #[test]
    fn firmware_register_fields_are_at_specified_offsets() {
        let mcam = Mcam { feature_group: 1, register_group: 2, upper_registers: Mcam::SUPPORTED };
        assert_eq!(mcam.emit(), words(&[(0, 0x0001_0002), (0x08, 0x8000_0003)]));
        let mcqs = Mcqs { is_last: true, component: 3, identifier: 1, status: 2, update_state: 4 };
        assert_eq!(mcqs.emit(), words(&[(0, 0x8000_0003), (4, 1), (8, 0x24)]));
        let mnvda = Mnvda { access_mode: 2, data_len: 256, item: 0x0300_0080 };
        assert_eq!(mnvda.emit(), words(&[(0, 0x0080_0100), (4, 0x0300_0080)]));
        assert_eq!(Mfrl { levels: 8 }.emit(), words(&[(4, 8)]));
        let mcqi = Mcqi { pending: true, component: 3, info_type: 1, info_len: 124, offset: 4, data_len: 8 };
        let expected = [(0, 0x8000_0003), (8, 1), (0x0c, 124), (0x10, 4), (0x14, 8)];
        assert_eq!(mcqi.emit(), words(&expected));
    }

    #[test]
    fn component_version_is_number_and_text() {
        let bytes = ComponentVersion::from(FirmwareVersion::THIS).emit();
        assert_eq!(bytes[..8], [0, 0, 0, 10, 16, 35, 0x0b, 0xbe]);
        assert_eq!(bytes[0x20..0x2b], *b"16.35.3006\0");
    }
}
