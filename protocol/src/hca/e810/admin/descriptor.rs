//! Descriptors of both rings.
//!
//! # Spec
//! E810 interface, sections 4.1 and 4.2.

use bitflags::bitflags;

use crate::describe::{Field, Value, Visitor};
use crate::ids::Iova;
use crate::layout;

/// Bytes of the parameters of a command.
pub const PARAMETERS_LEN: usize = 16;
/// Largest buffer of a command or event, bytes.
pub const BUFFER_LEN: usize = 4096;
/// Longest buffer without [`Flags::LARGE`], bytes.
pub const LARGE_FROM: usize = 512;

layout! {
    /// A command and, in its place, its completion; or an event.
    pub struct Descriptor[32] {
        /// What it is, and what became of it.
        @0   flags: Flags as u16,
        /// Command or event, see [`super::Opcode`].
        @2   opcode: u16 => Hex,
        /// Bytes of the buffer: that there are, in a command; that were written, in its completion.
        @4   buffer_len: u16,
        /// See [`super::AdminStatus`].
        @6   status: u16,
        /// The driver's.
        @8   cookie: u64 => Hex,
        /// Parameters; of a command with a buffer, the second half is its address.
        @16  parameters: [u8; PARAMETERS_LEN],
    }
}

layout! {
    /// Second half of the parameters of a command or event with a buffer.
    pub struct BufferAddress[8] {
        /// Upper half of the address.
        @0  high: u32 => Hex,
        /// Lower half.
        @4  low: u32 => Hex,
    }
}

impl Descriptor {
    /// Where its buffer is.
    pub fn buffer(&self) -> Iova {
        let address = self.parameters.last_chunk().map(BufferAddress::parse).unwrap_or_default();
        Iova::new(u64::from(address.high) << 32 | u64::from(address.low))
    }
}

bitflags! {
    /// Flags of a descriptor.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Flags: u16 {
        /// The device is done with it.
        const DONE = 1 << 0;
        /// It is a completion.
        const COMPLETE = 1 << 1;
        /// The command failed.
        const ERROR = 1 << 2;
        /// The buffer is longer than 512 bytes.
        const LARGE = 1 << 9;
        /// The device reads the buffer.
        const READ = 1 << 10;
        /// There is a buffer.
        const BUFFER = 1 << 12;
        /// Interrupt when done; the device completes commands before the driver can look.
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
    /// A queue's length register.
    pub struct QueueLength[4] {
        /// Entries of the ring.
        [9:0]   entries: u16,
        /// The mailbox of a virtual function overflowed.
        [28]    vf_error: bool,
        /// The ring overflowed.
        [29]    overflow: bool,
        /// The ring cannot be reached or what is in it makes no sense.
        [30]    critical: bool,
        /// The queue is in use.
        [31]    enable: bool,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 0C43 of `probe-synth-fd.aq.gz`.
    const COMMAND: [u8; 32] = [
        0x00, 0x30, 0x43, 0x0c, 0xa4, 0x00, 0x00, 0x00, 0, 0, 0, 0, 0, 0, 0, 0, //
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x00, 0x20, 0x7b, 0x02,
    ];

    #[test]
    fn a_command_says_where_its_buffer_is() {
        let command = Descriptor::parse(&COMMAND);
        assert_eq!(command.flags, Flags::BUFFER | Flags::INTERRUPT);
        assert_eq!((command.opcode, command.buffer_len), (0x0c43, 164));
        assert_eq!(command.buffer(), Iova::new(0x027b_2000));
        assert_eq!(command.emit(), COMMAND);
    }

    #[test]
    fn unknown_flags_come_back() {
        let mut bytes = COMMAND;
        bytes[1] |= 0x40;
        assert_eq!(Descriptor::parse(&bytes).emit(), bytes);
    }

    #[test]
    fn the_length_register_is_as_the_driver_writes_it() {
        let length = QueueLength::parse(&0x8000_00c0_u32.to_le_bytes());
        assert_eq!(length, QueueLength { entries: 192, enable: true, ..QueueLength::default() });
    }
}
