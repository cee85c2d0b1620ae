//! Initialization segment at the beginning of BAR0.
//!
//! # Spec
//! mlx5 interface, sections 2.1 and 18.2.

use super::code::codes;
use super::command::{LOG_SLOTS, LOG_STRIDE};
use crate::hca::words::{self, Block};
use crate::layout;

/// Length in bytes of the initialization segment. The MSI-X table follows it.
pub const SEGMENT_LEN: u64 = 0x2000;
/// Offset of the MSI-X table, chosen by hcad.
pub const MSIX_TABLE: u32 = 0x2000;
/// Offset of the MSI-X pending bit array, chosen by hcad.
pub const MSIX_PENDING: u32 = 0x3000;
/// Index of the first UAR page that the device allocates, chosen by hcad.
pub const FIRST_UAR: u32 = 16;
/// Revision of the command interface. Drivers reject any other revision.
pub const COMMAND_REVISION: u16 = 5;

/// A register of the initialization segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Register {
    /// 000h: firmware minor and major version.
    FirmwareVersion,
    /// 004h: command interface revision and firmware sub-minor version.
    CommandRevision,
    /// 010h: high half of the command queue address.
    QueueAddressHigh,
    /// 014h: low half of the command queue address. [`QueueWord`] describes its low bits.
    QueueAddressLow,
    /// 018h: command doorbell. Setting bit i passes slot i to the device.
    CommandDoorbell,
    /// 1FCh: the initialization status of the device.
    Initializing,
    /// 200h to 23Ch: health buffer.
    Health,
    /// 1000h: high half of the internal timer.
    TimerHigh,
    /// 1004h: low half of the internal timer.
    TimerLow,
    /// 1010h: health counter. Every read must return a different value.
    HealthCounter,
}

const MAP: [Block<Register>; 10] = [
    (0x000, 4, Register::FirmwareVersion),
    (0x004, 4, Register::CommandRevision),
    (0x010, 4, Register::QueueAddressHigh),
    (0x014, 4, Register::QueueAddressLow),
    (0x018, 4, Register::CommandDoorbell),
    (0x1fc, 4, Register::Initializing),
    (0x200, 0x40, Register::Health),
    (0x1000, 4, Register::TimerHigh),
    (0x1004, 4, Register::TimerLow),
    (0x1010, 4, Register::HealthCounter),
];

const _: () = assert!(words::in_order(&MAP));

impl Register {
    /// Decodes the offset of a word. Returns the register and the offset of the word within the register, or `None` if
    /// the word reads as 0 and ignores writes.
    pub fn at(offset: u64) -> Option<(Self, u32)> {
        words::find(&MAP, offset)
    }

    /// Returns the register name that appears in traces.
    pub const fn name(self) -> &'static str {
        match self {
            Self::FirmwareVersion => "fw_rev",
            Self::CommandRevision => "cmdif_rev_fw_sub",
            Self::QueueAddressHigh => "cmdq_addr_h",
            Self::QueueAddressLow => "cmdq_addr_l_sz",
            Self::CommandDoorbell => "cmd_dbell",
            Self::Initializing => "initializing",
            Self::Health => "health",
            Self::TimerHigh => "internal_timer_h",
            Self::TimerLow => "internal_timer_l",
            Self::HealthCounter => "health_counter",
        }
    }
}

codes! {
    /// State of the NIC. A write to the register at 014h requests a state, and a read returns the current state.
    pub enum NicState(u8) {
        /// The device operates normally.
        Normal = 0 "normal",
        /// The device has failed or is disabled.
        Disabled = 1 "disabled",
        SoftwareReset = 7 "sw_reset",
    }
}

/// Value written to the register at 014h.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueWord {
    /// Bits 31 to 12 of the command queue address.
    Address(u32),
    /// Request for a NIC state. The address bits are ignored, since the driver merely writes back what it has read.
    Request {
        /// Code of the requested state; see [`NicState`].
        state: u8,
    },
}

impl QueueWord {
    const STATE: u32 = 0x700;
    const ADDRESS: u32 = 0xffff_f000;

    /// Parses a value written to the register.
    pub const fn parse(word: u32) -> Self {
        let [.., state, _] = (word & Self::STATE).to_be_bytes();
        if state != 0 { Self::Request { state } } else { Self::Address(word & Self::ADDRESS) }
    }

    /// Returns the value that the driver reads: the address, the state code and the queue geometry.
    pub const fn read(address: u32, state: u8) -> u32 {
        address & Self::ADDRESS
            | (state as u32) << 8 & Self::STATE
            | (LOG_SLOTS as u32) << 4
            | LOG_STRIDE as u32
    }
}

/// Firmware version, as logged by the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct FirmwareVersion {
    pub major: u16,
    pub minor: u16,
    /// Third component of the version number.
    pub sub_minor: u16,
}

impl FirmwareVersion {
    /// Firmware version of this device, chosen by hcad.
    pub const THIS: Self = Self { major: 16, minor: 35, sub_minor: 3006 };

    /// Returns the contents of the registers at 000h and 004h.
    pub const fn registers(self) -> (u32, u32) {
        let first = (self.minor as u32) << 16 | self.major as u32;
        (first, (COMMAND_REVISION as u32) << 16 | self.sub_minor as u32)
    }
}

layout! {
    /// The health buffer of the device.
    pub struct Health[64] big_endian {
        /// Firmware version. Any value except all ones is valid.
        @0x30         firmware_version: u32 => Hex,
        /// Hardware ID; must be [`Health::HARDWARE_ID`].
        @0x34         hardware_id: u32 => Hex,
        /// Whether the syndrome is fatal.
        @0x38[31]     fatal: bool,
        /// Cause of a failure; 0 if the device is working.
        @0x3c[23:16]  syndrome: u8 => Hex,
    }
}

impl Health {
    /// Hardware ID of ConnectX-5.
    pub const HARDWARE_ID: u32 = 0x20d;

    /// Returns the health buffer of a working device.
    pub const fn good(firmware_version: u32) -> Self {
        Self { firmware_version, hardware_id: Self::HARDWARE_ID, fatal: false, syndrome: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segment_offsets_map_to_registers() {
        assert_eq!(Register::at(0x018), Some((Register::CommandDoorbell, 0)));
        assert_eq!(Register::at(0x23c), Some((Register::Health, 0x3c)));
        assert_eq!(Register::at(0x1010), Some((Register::HealthCounter, 0)));
        for offset in [0x008, 0x00c, 0x01c, 0x240, 0x1008, 0x1040, 0x016, u64::MAX] {
            assert_eq!(Register::at(offset), None, "{offset:#x}");
        }
    }

    #[test]
    fn queue_word_is_address_or_request() {
        assert_eq!(QueueWord::parse(0x3659_e000), QueueWord::Address(0x3659_e000));
        assert_eq!(QueueWord::parse(0x700), QueueWord::Request { state: 7 });
        assert_eq!(QueueWord::parse(0x3659_e100), QueueWord::Request { state: 1 });
        assert_eq!(QueueWord::parse(0), QueueWord::Address(0));
        assert_eq!(QueueWord::read(0x3659_e000, 0), 0x3659_e056);
        assert_eq!(QueueWord::read(0, 1), 0x156);
    }

    #[test]
    fn version_registers_have_specified_values() {
        assert_eq!(FirmwareVersion::THIS.registers(), (0x0023_0010, 0x0005_0bbe));
    }

    #[test]
    fn health_buffer_of_failed_device_has_syndrome() {
        let failed = Health { fatal: true, syndrome: 1, ..Health::good(0x10_0023) }.emit();
        assert_eq!(failed[0x30..], [0, 0x10, 0, 0x23, 0, 0, 2, 0x0d, 0x80, 0, 0, 0, 0, 1, 0, 0]);
    }
}
