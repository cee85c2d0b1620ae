//! Admin send and receive queue descriptors.
//!
//! # Spec
//! E810 interface, sections 4.1 and 4.2.

use bitflags::bitflags;

use crate::describe::{Field, Value, Visitor};
use crate::ids::Iova;
use crate::layout;

/// Length of the command parameters in bytes.
pub const PARAMETERS_LEN: usize = 16;
/// Maximum buffer size of a command or event in bytes.
pub const BUFFER_LEN: usize = 4096;
/// Maximum buffer size in bytes without [`Flags::LARGE`].
pub const LARGE_FROM: usize = 512;

layout! {
    /// An admin descriptor: a command, the completion that overwrites it, or an event.
    pub struct Descriptor[32] {
        /// The descriptor's type and completion state.
        @0   flags: Flags as u16,
        /// Opcode of the command or event; see [`super::opcode::Opcode`].
        @2   opcode: u16 => Hex,
        /// Buffer length in bytes. In a completion, the number of bytes written.
        @4   buffer_len: u16,
        /// Return value; see [`super::status::AdminStatus`].
        @6   status: u16,
        /// Opaque to the device.
        @8   cookie: u64 => Hex,
        /// Command parameters. If the command has a buffer, the second half is the buffer address.
        @16  parameters: [u8; PARAMETERS_LEN],
    }
}

layout! {
    /// Second half of the parameters of a command or event that has a buffer.
    pub struct BufferAddress[8] {
        /// High half of the buffer address.
        @0  high: u32 => Hex,
        /// Low half of the buffer address.
        @4  low: u32 => Hex,
    }
}

impl Descriptor {
    /// Returns the buffer's address.
    pub fn buffer(&self) -> Iova {
        let address = self.parameters.last_chunk().map(BufferAddress::parse).unwrap_or_default();
        Iova::new(u64::from(address.high) << 32 | u64::from(address.low))
    }
}

bitflags! {
    /// Flags of an admin descriptor.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Flags: u16 {
        /// DD: the device is done with the descriptor.
        const DONE = 1 << 0;
        /// CMP: the descriptor is a completion.
        const COMPLETE = 1 << 1;
        /// ERR: the command failed.
        const ERROR = 1 << 2;
        /// LB: the buffer is longer than 512 bytes.
        const LARGE = 1 << 9;
        /// RD: the device reads the buffer.
        const READ = 1 << 10;
        /// BUF: the command has a buffer.
        const BUFFER = 1 << 12;
        /// SI: the driver requests an interrupt on completion. The device ignores this flag, because commands complete
        /// before the driver can poll.
        const INTERRUPT = 1 << 13;
    }
}

impl From<u16> for Flags {
    fn from(bits: u16) -> Self {
        Self::from_bits_retain(bits)
    }
}

impl From<Flags> for u16 {
    fn from(flags: Flags) -> Self {
        flags.bits()
    }
}

impl Field for Flags {
    fn show(&self, name: &str, to: &mut dyn Visitor) {
        let mut names = self.iter_names();
        let known: smallvec::SmallVec<[_; 8]> = names.by_ref().map(|(name, _)| name).collect();
        to.value(name, Value::Set(&known, names.remaining().bits().into()));
    }
}

layout! {
    /// Length register of a queue.
    pub struct QueueLength[4] {
        /// Number of entries in the ring.
        [9:0]   entries: u16,
        /// Whether the mailbox of a virtual function has overflowed.
        [28]    vf_error: bool,
        /// Whether the ring has overflowed.
        [29]    overflow: bool,
        /// Whether the ring is inaccessible or contains invalid descriptors.
        [30]    critical: bool,
        /// Whether the queue is enabled.
        [31]    enable: bool,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Command 0C43 from the recording `probe-synth-fd.aq.gz`.
    const COMMAND: [u8; 32] = [
        0x00, 0x30, 0x43, 0x0c, 0xa4, 0x00, 0x00, 0x00, 0, 0, 0, 0, 0, 0, 0, 0, //
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x00, 0x20, 0x7b, 0x02,
    ];

    #[test]
    fn recorded_admin_descriptor_round_trips() {
        let command = Descriptor::parse(&COMMAND);
        assert_eq!(command.flags, Flags::BUFFER | Flags::INTERRUPT);
        assert_eq!((command.opcode, command.buffer_len), (0x0c43, 164));
        assert_eq!(command.buffer(), Iova::new(0x027b_2000));
        assert_eq!(command.emit(), COMMAND);
    }

    #[test]
    fn unknown_flags_are_preserved() {
        let mut bytes = COMMAND;
        bytes[1] |= 0x40;
        assert_eq!(Descriptor::parse(&bytes).emit(), bytes);
    }

    #[test]
    fn parses_length_of_enabled_queue() {
        let length = QueueLength::parse(&0x8000_00c0_u32.to_le_bytes());
        assert_eq!(length, QueueLength { entries: 192, enable: true, ..QueueLength::default() });
    }
}
