//! A driver for mlx5 that behaves like `mlx5_core`.
//!
//! # Spec
//! mlx5 interface, sections 2.1, 3 and 7.

use protocol::hca::mlx5::PAGE;
use protocol::hca::mlx5::command::{
    BLOCK_DATA, Block, INLINE_LEN, InputHeader, MAX_OUTPUT, NEXT_BLOCK, OWNER_BYTE, OutputHeader, Slot,
    blocks,
};
use protocol::hca::mlx5::input::Command;
use protocol::ids::{Iova, UarIndex};

use crate::Bus;

/// Register addresses in BAR 0.
pub const QUEUE_HIGH: u64 = 0x10;
pub const QUEUE_LOW: u64 = 0x14;
pub const COMMAND_DOORBELL: u64 = 0x18;
pub const HEALTH: u64 = 0x200;
pub const TIMER: u64 = 0x1000;
pub const HEALTH_COUNTER: u64 = 0x1010;

/// Offsets of doorbells in a UAR page.
pub const ARM_CQ: u64 = 0x20;
pub const ARM_EQ: u64 = 0x40;
pub const UPDATE_EQ: u64 = 0x48;
pub const SEND: u64 = 0x800;

/// Maximum number of polls of the owner byte before a command counts as lost. A device that runs on the same thread
/// needs only one.
const MAX_POLLS: usize = 1 << 20;

/// Bus addresses of the command queue and the mailboxes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Bus address of the 4 KiB command queue.
    pub queue: u32,
    /// Bus address of the input mailbox of slot 0. The output mailbox of slot 0 follows it.
    pub mailboxes: u64,
    /// Number of blocks in a mailbox.
    pub blocks: u64,
}

impl Layout {
    /// A layout with mailboxes large enough for the longest outputs. All mailboxes are below 160 MiB. A longer input
    /// extends into the mailboxes that follow, which no other command may use at the same time.
    pub const LARGE: Self =
        Self { queue: 0x10_0000, mailboxes: 0x100_0000, blocks: (MAX_OUTPUT / BLOCK_DATA) as u64 };

    pub const fn slot(&self, slot: usize) -> u64 {
        self.queue as u64 + 64 * slot as u64
    }

    /// Returns the address of a block in a slot's input mailbox.
    pub const fn input(&self, slot: usize, number: usize) -> u64 {
        self.mailboxes + (slot as u64 * 2 * self.blocks + number as u64) * 1024
    }

    /// Returns the address of a block in a slot's output mailbox.
    pub const fn output(&self, slot: usize, number: usize) -> u64 {
        self.input(slot, number) + self.blocks * 1024
    }
}

/// Driver state specific to mlx5.
#[derive(Clone, Copy, Debug)]
pub struct Mlx5 {
    /// Token of the next command.
    pub token: u8,
    pub layout: Layout,
    /// DevX user context on whose behalf commands are sent, or 0 for the kernel.
    pub user: u16,
}

pub type Driver<B> = crate::Driver<Mlx5, B>;

impl<B: Bus> Driver<B> {
    /// Creates a driver for a device that has just been powered on.
    pub const fn new(bus: B, layout: Layout) -> Self {
        Self { bus, interface: Mlx5 { token: 1, layout, user: 0 } }
    }

    /// Starts the command interface by writing the address of the command queue.
    pub fn start(&mut self) {
        self.write(QUEUE_HIGH, 0);
        self.write(QUEUE_LOW, self.interface.layout.queue);
    }

    pub fn write(&mut self, offset: u64, value: u32) {
        self.bus.store(0, offset, &value.to_be_bytes());
    }

    pub fn read(&mut self, offset: u64) -> u32 {
        u32::from_be_bytes(self.bus.load(0, offset))
    }

    /// Writes to a doorbell in a UAR page.
    pub fn ring(&mut self, page: UarIndex, offset: u64, bytes: &[u8]) {
        self.bus.store(0, u64::from(page.get()) * PAGE as u64 + offset, bytes);
    }

    /// Writes a command to a slot without ringing the doorbell.
    pub fn post(&mut self, slot: usize, input: &[u8], output_len: usize) {
        let Mlx5 { token, layout, .. } = self.interface;
        self.interface.token = token.wrapping_add(1);
        let (inline, rest) = input.split_at(input.len().min(INLINE_LEN));
        let count = blocks(input.len());
        for number in 0..count {
            let part = rest.get(number * BLOCK_DATA..).unwrap_or_default();
            let block = block(part, number, count, token, |next| layout.input(slot, next));
            self.bus.poke(layout.input(slot, number), &block);
        }
        let outputs = blocks(output_len);
        for number in 0..outputs {
            // The device overwrites this filler with its output.
            let block = block(&[0xa5; BLOCK_DATA], number, outputs, token, |next| layout.output(slot, next));
            self.bus.poke(layout.output(slot, number), &block);
        }
        let first = |count: usize, address: u64| Iova::new(if count == 0 { 0 } else { address });
        let mut bytes = [0; INLINE_LEN];
        bytes.iter_mut().zip(inline).for_each(|(to, from)| *to = *from);
        let len = |len: usize| u32::try_from(len).unwrap_or(u32::MAX);
        let written = Slot {
            kind: Slot::KIND,
            input_len: len(input.len()),
            input_block: first(count, layout.input(slot, 0)),
            input: bytes,
            output: [0xa5; INLINE_LEN],
            output_block: first(outputs, layout.output(slot, 0)),
            output_len: len(output_len),
            token,
            device_owned: true,
            ..Slot::default()
        };
        self.bus.poke(layout.slot(slot), &written.emit());
    }

    /// Rings the command doorbell for the slots in the bit mask `slots`.
    pub fn submit(&mut self, slots: u32) {
        self.write(COMMAND_DOORBELL, slots);
    }

    /// Returns a slot's byte with the owner bit and the delivery status.
    pub fn owner_byte(&mut self, slot: usize) -> u8 {
        let at = self.interface.layout.slot(slot) + OWNER_BYTE as u64;
        self.bus.peek(at, 1).first().copied().unwrap_or(0xff)
    }

    /// Reads the output of a slot.
    pub fn output(&mut self, slot: usize, output_len: usize) -> Vec<u8> {
        let layout = self.interface.layout;
        let mut output = self.bus.peek(layout.slot(slot) + 0x20, INLINE_LEN);
        for number in 0..blocks(output_len) {
            output.extend(self.bus.peek(layout.output(slot, number), BLOCK_DATA));
        }
        output.truncate(output_len);
        output
    }

    /// Executes a command in slot 0 and returns its output. Gives up waiting after a bounded number of polls.
    pub fn execute(&mut self, input: &[u8], output_len: usize) -> Vec<u8> {
        self.post(0, input, output_len);
        self.submit(1);
        for _ in 0..MAX_POLLS {
            if self.owner_byte(0) & 1 == 0 || !self.bus.wait() {
                break;
            }
        }
        self.output(0, output_len)
    }

    /// Executes a command. Returns the output header and the whole output.
    pub fn command(&mut self, command: &Command<'_>) -> (OutputHeader, Vec<u8>) {
        let output = self.execute(&command.emit(self.interface.user), command.output_len());
        (OutputHeader::parse_prefix(&output).unwrap_or_default(), output)
    }
}

fn block(
    data: &[u8],
    number: usize,
    count: usize,
    token: u8,
    address: impl Fn(usize) -> u64,
) -> [u8; Block::LEN] {
    let mut bytes = [0; BLOCK_DATA];
    bytes.iter_mut().zip(data).for_each(|(to, from)| *to = *from);
    let next = if number + 1 < count { address(number + 1) } else { 0 };
    let block = Block {
        data: bytes,
        next: Iova::new(next),
        number: u32::try_from(number).unwrap_or(u32::MAX),
        token,
        ..Block::default()
    };
    block.emit()
}

/// Returns the address of a mailbox block's link to the next block.
pub const fn link(block: u64) -> u64 {
    block + NEXT_BLOCK as u64
}

/// Returns the input of a command without arguments.
pub fn bare(opcode: u16) -> [u8; InputHeader::LEN] {
    InputHeader { opcode, ..InputHeader::default() }.emit()
}
