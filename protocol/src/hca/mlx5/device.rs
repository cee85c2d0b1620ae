//! Commands that start, stop and identify the device.
//!
//! # Spec
//! mlx5 interface, section 5.1.

use super::code::codes;
use crate::ids::{Lkey, Rkey};
use crate::layout;

layout! {
    /// Input of commands without arguments.
    pub struct NoArguments[16] big_endian {
        /// Opcode modifier. Commands without arguments do not use it.
        @0x06  op_mod: u16 => Hex,
    }
}

layout! {
    /// Input of ENABLE_HCA and DISABLE_HCA. Their output is 12 bytes long.
    pub struct Function[16] big_endian {
        /// Function number; 0 is the function that issues the command.
        @0x0a  function: u16,
    }
}

layout! {
    /// Input of the INIT_HCA command.
    pub struct InitHca[32] big_endian {
        /// ID of the software that owns the device. This device ignores it.
        @0x10  owner: [u8; 16],
    }
}

codes! {
    /// How TEARDOWN_HCA stops the device. Drivers use profiles other than `Graceful` only if capability bits advertise
    /// them.
    pub enum TeardownProfile(u16) {
        /// All objects have already been destroyed.
        Graceful = 0 "graceful",
        /// The device stops even if objects still exist.
        Forced = 1 "forced",
        /// The guest is about to power off or reboot, and the driver does not destroy any objects.
        Fast = 2 "fast",
    }
}

layout! {
    /// Input of the TEARDOWN_HCA command.
    pub struct Teardown[16] big_endian {
        /// A value of [`TeardownProfile`].
        @0x0a  profile: u16 => TeardownProfile::word,
    }
}

layout! {
    /// Output of the TEARDOWN_HCA command.
    pub struct TeardownState[16] big_endian {
        /// Whether the teardown failed.
        @0x0c[0]  failed: bool,
    }
}

layout! {
    /// Output of QUERY_ISSI: the interface step sequence IDs (ISSI).
    pub struct Issi[112] big_endian {
        /// Currently selected interface step.
        @0x0a  current: u16,
        /// Mask of supported steps. Bit n is set if step n is supported.
        @0x6c  supported: u32 => Hex,
    }
}

layout! {
    /// Input of the SET_ISSI command.
    pub struct SetIssi[16] big_endian {
        /// Interface step to select.
        @0x0a  issi: u16,
    }
}

layout! {
    /// Output of the QUERY_ADAPTER command.
    pub struct AdapterInfo[272] big_endian {
        /// IEEE vendor ID; see [`AdapterInfo::OUI`].
        @0x28[23:0]  vendor: u32 => Hex,
        /// Board ID as text, padded with zeros.
        @0x100       board_id: [u8; 16],
    }
}

impl AdapterInfo {
    /// IEEE vendor ID (OUI) of Mellanox.
    pub const OUI: u32 = 0x2c9;

    /// Returns adapter information with board ID `id`, truncated to 16 bytes.
    pub fn with_board_id(id: &str) -> Self {
        let mut board_id = [0; 16];
        board_id.iter_mut().zip(id.bytes()).for_each(|(to, from)| *to = from);
        Self { vendor: Self::OUI, board_id }
    }
}

layout! {
    /// Input of the SET_DRIVER_VERSION command.
    pub struct SetDriverVersion[80] big_endian {
        /// Text such as "Linux,mlx5_core,7.3.4", padded with zeros.
        @0x10  text: [u8; 64],
    }
}

impl SetDriverVersion {
    /// Returns the text as printable ASCII. Any other byte becomes `?`.
    pub fn text(&self) -> String {
        let end = self.text.iter().position(|byte| *byte == 0).unwrap_or(self.text.len());
        let printable = |byte: &u8| if matches!(byte, b' '..=b'~') { char::from(*byte) } else { '?' };
        self.text[..end].iter().map(printable).collect()
    }
}

layout! {
    /// Output of QUERY_SPECIAL_CONTEXTS. Drivers issue this command only if a capability bit advertises one of the
    /// keys.
    pub struct SpecialContexts[32] big_endian {
        /// Key for access by physical address, for kernel QPs only.
        @0x0c  reserved_lkey: Lkey,
        /// Key whose reads return zeros and whose writes are dropped.
        @0x10  null_mkey: Rkey,
        /// Key that terminates scatter lists.
        @0x14  terminate_key: Lkey,
        /// Key in the header of a strided list.
        @0x18  repeat_key: Lkey,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adapter_info_matches_trace() {
        let bytes = AdapterInfo::with_board_id("HCD0000000001").emit();
        assert_eq!(bytes[0x28..0x2c], [0, 0, 2, 0xc9]);
        assert_eq!(&bytes[0x100..0x110], b"HCD0000000001\0\0\0");
    }

    #[test]
    fn driver_version_is_sanitized() {
        let mut input = [0; SetDriverVersion::LEN];
        input[0x10..0x1a].copy_from_slice(b"Linux\nm\xff5\0");
        assert_eq!(SetDriverVersion::parse(&input).text(), "Linux?m?5");
        let full = SetDriverVersion { text: [b'x'; 64] };
        assert_eq!(full.text().len(), 64);
    }

    #[test]
    fn query_issi_fields_are_at_specified_offsets() {
        let bytes = Issi { current: 1, supported: 2 }.emit();
        assert_eq!((bytes[0x0b], bytes[0x6f]), (1, 2));
        assert_eq!(SetIssi::parse(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0]).issi, 1);
        assert_eq!(TeardownState { failed: true }.emit()[0x0f], 1);
        assert_eq!(TeardownProfile::from_code(2), Some(TeardownProfile::Fast));
    }
}
