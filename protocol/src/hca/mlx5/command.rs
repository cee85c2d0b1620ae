//! Command queue: slots, mailbox blocks, and the headers of inputs and outputs.
//!
//! # Spec
//! mlx5 interface, section 3.

use std::ops::RangeInclusive;

use thiserror::Error;

use super::code::codes;
use super::opcode::Opcode;
use super::status::Status;
use crate::ids::Iova;
use crate::layout;

/// Number of slots in the command queue.
pub const SLOTS: usize = 32;
/// Log2 of [`SLOTS`], as reported in register 014h.
pub const LOG_SLOTS: u8 = 5;
/// Log2 of the distance between slots in bytes, as reported in register 014h.
pub const LOG_STRIDE: u8 = 6;
/// Slot that the driver reserves for MANAGE_PAGES.
pub const PAGES_SLOT: usize = 31;
/// Number of input or output bytes in the slot itself. The rest is in mailbox blocks.
pub const INLINE_LEN: usize = 16;
/// Number of data bytes in a mailbox block.
pub const BLOCK_DATA: usize = 512;
/// Maximum length in bytes of an input (specific to this device). It leaves room for the page addresses of a 16 GiB
/// memory region in 4 KiB pages. `mlx5_ib` lists all pages of a region of 256 MiB or more in CREATE_MKEY.
pub const MAX_INPUT: usize = (1 << 25) + (1 << 12);
/// Maximum length in bytes of an output (specific to this device).
pub const MAX_OUTPUT: usize = (1 << 20) + (1 << 12);
/// Alignment of mailbox blocks in bytes.
pub const BLOCK_ALIGN: u64 = 1024;

layout! {
    /// A slot of the command queue.
    pub struct Slot[64] big_endian {
        /// The slot's kind, always [`Slot::KIND`].
        @0x00[31:24]  kind: u8,
        /// Length of the input in bytes, including the bytes in the slot.
        @0x04         input_len: u32,
        /// Address of the first mailbox block of the input, or 0 if the whole input is in the slot.
        @0x08         input_block: Iova,
        /// First bytes of the input.
        @0x10         input: [u8; INLINE_LEN],
        /// First bytes of the output.
        @0x20         output: [u8; INLINE_LEN],
        /// Address of the first mailbox block of the output, or 0 if the whole output fits in the slot.
        @0x30         output_block: Iova,
        /// Number of output bytes that the driver expects. It can be less than [`INLINE_LEN`].
        @0x38         output_len: u32,
        /// Token of the command. Each of its mailbox blocks contains the same token.
        @0x3c[31:24]  token: u8 => Hex,
        /// Checksum of the slot. The driver does not check it, and this device does not compute it.
        @0x3c[23:16]  signature: u8 => Hex,
        /// Delivery status, a value of [`Delivery`]. 0 means that the command was delivered.
        @0x3c[7:1]    delivery: u8,
        /// Whether the device owns the slot.
        @0x3c[0]      device_owned: bool,
    }
}

layout! {
    /// A mailbox block: the continuation of an input or output. Blocks are aligned to 1 KiB.
    pub struct Block[576] big_endian {
        /// Part of the input or output.
        @0x000         data: [u8; BLOCK_DATA],
        /// Address of the next block, or 0.
        @0x230         next: Iova,
        /// Index of the block in its chain.
        @0x238         number: u32,
        /// Copy of the slot's token.
        @0x23c[23:16]  token: u8 => Hex,
        /// Checksum of the fields after the data.
        @0x23c[15:8]   control_signature: u8 => Hex,
        /// Checksum of the block.
        @0x23c[7:0]    signature: u8 => Hex,
    }
}

/// Offset of the owner bit's byte within a slot. The device writes it last.
pub const OWNER_BYTE: usize = 0x3f;
/// Offset of the next block's address in a block.
pub const NEXT_BLOCK: usize = 0x230;

codes! {
    /// Delivery status of a command: whether the device could read the input and write the output. The driver reads the
    /// output only if the status is [`Delivery::Ok`].
    pub enum Delivery(u8) {
        /// The command was delivered and executed.
        Ok = 0x00 "ok",
        /// A signature is wrong.
        Signature = 0x01 "signature",
        /// The token of a block differs from the slot's token.
        Token = 0x02 "token",
        /// A block's number does not match its place in the chain.
        BlockNumber = 0x03 "block_number",
        /// A block of the output is not aligned or not accessible.
        OutputPointer = 0x04 "output_pointer",
        /// A block of the input is not aligned or not accessible.
        InputPointer = 0x05 "input_pointer",
        /// The device failed to execute the command.
        Internal = 0x06 "internal",
        /// The input length is invalid.
        InputLength = 0x07 "input_length",
        /// The output length is invalid.
        OutputLength = 0x08 "output_length",
        /// A reserved field is not zero.
        Reserved = 0x09 "reserved",
        /// The slot has an unknown kind.
        Kind = 0x10 "kind",
    }
}

impl Delivery {
    /// Returns the value of the slot's last byte. Writing this value gives the slot back to the driver.
    pub const fn owner_byte(self) -> u8 {
        self.code() << 1
    }
}

layout! {
    /// Last 16 bytes of a mailbox block, which start with the address of the next block.
    pub struct BlockTail[16] big_endian {
        /// Address of the next block, or 0.
        @0x00         next: Iova,
        /// Index of the block in its chain.
        @0x08         number: u32,
        /// Copy of the slot's token.
        @0x0c[23:16]  token: u8 => Hex,
    }
}

/// Error that prevents the device from executing the command in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SlotError {
    /// The kind is not [`Slot::KIND`].
    #[error("unknown command slot type {0:#x}")]
    Kind(u8),
    /// The input is shorter than its header or longer than [`MAX_INPUT`].
    #[error("the input length is {0} bytes, but must be between {INLINE_LEN} and {MAX_INPUT}")]
    InputLength(u32),
    /// The output is longer than [`MAX_OUTPUT`].
    #[error("the output length is {0} bytes, but must be at most {MAX_OUTPUT}")]
    OutputLength(u32),
    /// The driver owns the slot.
    #[error("the command slot is owned by the driver")]
    NotOwned,
}

impl SlotError {
    /// Returns the command status that reports this error.
    pub const fn status(self) -> Status {
        match self {
            Self::Kind(_) | Self::NotOwned => Status::BadParameter,
            Self::InputLength(_) => Status::BadInputLength,
            Self::OutputLength(_) => Status::BadOutputLength,
        }
    }
}

impl Slot {
    /// The only valid kind of slot.
    pub const KIND: u8 = 7;

    /// Checks the slot and returns the lengths of its input and output in bytes.
    ///
    /// # Errors
    /// Fails if the driver owns the slot, its kind is unknown, or a length is out of range.
    pub fn lengths(&self) -> Result<(usize, usize), SlotError> {
        let within = |len: u32, range: RangeInclusive<usize>| {
            usize::try_from(len).ok().filter(|len| range.contains(len))
        };
        if !self.device_owned {
            return Err(SlotError::NotOwned);
        }
        if self.kind != Self::KIND {
            return Err(SlotError::Kind(self.kind));
        }
        let input = within(self.input_len, INLINE_LEN..=MAX_INPUT);
        let input = input.ok_or(SlotError::InputLength(self.input_len))?;
        let output = within(self.output_len, 0..=MAX_OUTPUT);
        let output = output.ok_or(SlotError::OutputLength(self.output_len))?;
        Ok((input, output))
    }
}

/// Returns the number of mailbox blocks that an input or output of `len` bytes requires in addition to the slot.
pub const fn blocks(len: usize) -> usize {
    len.saturating_sub(INLINE_LEN).div_ceil(BLOCK_DATA)
}

layout! {
    /// First bytes of every input.
    pub struct InputHeader[16] big_endian {
        /// A value of [`Opcode`].
        @0x00  opcode: u16 => Opcode::word,
        /// Raw code of a [`User`](super::user_context::User). The kernel sets it to the user context on whose behalf it
        /// sends the command.
        @0x02  user: u16,
        /// Variant of the command.
        @0x06  op_mod: u16 => Hex,
    }
}

layout! {
    /// First bytes of every output.
    pub struct OutputHeader[16] big_endian {
        /// A value of [`Status`].
        @0x00[31:24]  status: u8 => Status::word,
        /// Code of the failed check (specific to this device), which the driver logs.
        @0x04         syndrome: u32 => Hex,
    }
}

impl OutputHeader {
    /// Returns the header for the output of a failed command.
    pub const fn failed(status: Status, syndrome: u32) -> Self {
        Self { status: status.code(), syndrome }
    }

    /// Returns the status, or `None` if the code is unknown.
    pub const fn status(&self) -> Option<Status> {
        Status::from_code(self.status)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot() -> Slot {
        Slot { kind: Slot::KIND, input_len: 304, output_len: 12, device_owned: true, ..Slot::default() }
    }

    #[test]
    fn command_slot_fields_are_at_specified_offsets() {
        let slot = Slot {
            input_block: Iova::new(0x1_0000_0400),
            input: [0x11; 16],
            output: [0x22; 16],
            output_block: Iova::new(0x2_0000_0800),
            token: 0x5a,
            signature: 0xa5,
            delivery: 3,
            ..slot()
        };
        let bytes = slot.emit();
        assert_eq!(bytes[..8], [7, 0, 0, 0, 0, 0, 1, 0x30]);
        assert_eq!(bytes[8..16], [0, 0, 0, 1, 0, 0, 4, 0]);
        assert_eq!(bytes[0x10..0x30], [[0x11; 16], [0x22; 16]].concat());
        assert_eq!(bytes[0x30..], [0, 0, 0, 2, 0, 0, 8, 0, 0, 0, 0, 12, 0x5a, 0xa5, 0, 7]);
        assert_eq!(bytes[OWNER_BYTE] & 1, 1);
        assert_eq!(Slot::parse(&bytes), slot);
        assert_eq!(slot.lengths(), Ok((304, 12)));
    }

    #[test]
    fn rejects_invalid_slots() {
        assert_eq!(Slot { input_len: 15, ..slot() }.lengths(), Err(SlotError::InputLength(15)));
        let most = u32::try_from(MAX_INPUT).unwrap();
        assert_eq!(Slot { input_len: most, ..slot() }.lengths(), Ok((MAX_INPUT, 12)));
        let large = Slot { input_len: most + 1, ..slot() }.lengths().unwrap_err();
        assert_eq!(large.status(), Status::BadInputLength);
        let most = u32::try_from(MAX_OUTPUT).unwrap();
        assert_eq!(Slot { output_len: most, ..slot() }.lengths(), Ok((304, MAX_OUTPUT)));
        assert_eq!(Slot { output_len: most + 1, ..slot() }.lengths().unwrap_err().status().code(), 0x51);
        assert_eq!(Slot { kind: 0, ..slot() }.lengths(), Err(SlotError::Kind(0)));
        assert_eq!(Slot { device_owned: false, ..slot() }.lengths(), Err(SlotError::NotOwned));
    }

    #[test]
    fn mailbox_block_fields_are_at_specified_offsets() {
        let mut bytes = [0; Block::LEN];
        bytes[511] = 9;
        bytes[NEXT_BLOCK + 6] = 4;
        bytes[0x23b..0x240].copy_from_slice(&[2, 0, 0x5a, 1, 3]);
        let block = Block::parse(&bytes);
        assert_eq!((block.data[511], block.next, block.number), (9, Iova::new(0x400), 2));
        assert_eq!((block.token, block.control_signature, block.signature), (0x5a, 1, 3));
        assert_eq!(block.emit(), bytes);
    }

    #[test]
    fn block_tail_matches_end_of_block() {
        let mut bytes = [0; Block::LEN];
        bytes[NEXT_BLOCK..].copy_from_slice(&[0, 0, 0, 1, 0, 0, 4, 0, 0, 0, 0, 7, 0, 0x5a, 1, 2]);
        let block = Block::parse(&bytes);
        let tail = BlockTail::parse_prefix(&bytes[NEXT_BLOCK..]).unwrap();
        assert_eq!((tail.next, tail.number, tail.token), (block.next, block.number, block.token));
        assert_eq!(NEXT_BLOCK + BlockTail::LEN, Block::LEN);
        assert_eq!(Delivery::Token.owner_byte(), 4);
    }

    #[test]
    fn block_count_excludes_inline_bytes() {
        assert_eq!([0, 16, 17, 528, 529, 4112].map(blocks), [0, 0, 1, 1, 2, 8]);
    }

    #[test]
    fn headers_hold_opcode_and_status() {
        let header = InputHeader::parse(&[0x08, 0x05, 0, 3, 0, 0, 0, 1, 0, 0, 0x70, 0x04, 0, 0, 0, 0]);
        assert_eq!((header.opcode, header.user, header.op_mod), (0x805, 3, 1));
        let failed = OutputHeader::failed(Status::BadQpState, 0x1234).emit();
        assert_eq!(failed[..8], [0x10, 0, 0, 0, 0, 0, 0x12, 0x34]);
        assert_eq!(OutputHeader::parse(&failed).status(), Some(Status::BadQpState));
    }
}
