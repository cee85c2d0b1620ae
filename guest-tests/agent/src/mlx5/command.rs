//! The command queue of a ConnectX function.
//!
//! # Spec
//! mlx5 interface, sections 2.1 and 3.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use super::bytes::{get_u32, put_u32, put_u64};
use super::read;
use crate::vfio::{Arena, Bar, Device, PAGE};

/// Timeout for a command, as in `mlx5_core`.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Number of input or output bytes stored in the slot itself.
const INLINE: usize = 16;
/// Number of data bytes in a mailbox block.
const BLOCK_DATA: usize = 512;
/// Distance between mailbox blocks, in bytes.
const STRIDE: usize = 1024;
/// Number of blocks in each mailbox, enough for the page list of a 16 MiB region.
const BLOCKS: usize = 72;
/// Offset of the owner bit and the delivery status in a slot.
const OWNER: usize = 0x3f;
/// Mask for object numbers.
const NUMBER: u32 = 0xff_ffff;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    EnableHca,
    DisableHca,
    QueryIssi,
    SetIssi,
    /// Argument: 1 for boot pages, 2 for init pages.
    QueryPages(u16),
    /// Argument: 1 to give pages to the device, 2 to reclaim them.
    ManagePages(u16),
    InitHca,
    TeardownHca,
    QueryHcaVportContext,
    AllocUar,
    DeallocUar,
    AllocPd,
    DeallocPd,
    CreateEq,
    DestroyEq,
    CreateMkey,
    DestroyMkey,
    CreateCq,
    DestroyCq,
    CreateQp,
    DestroyQp,
    ResetToInit,
    InitToRtr,
    RtrToRts,
    ToReset,
}

impl Op {
    /// Returns the opcode and its modifier.
    const fn code(self) -> (u16, u16) {
        match self {
            Self::EnableHca => (0x104, 0),
            Self::DisableHca => (0x105, 0),
            Self::QueryIssi => (0x10a, 0),
            Self::SetIssi => (0x10b, 0),
            Self::QueryPages(kind) => (0x107, kind),
            Self::ManagePages(direction) => (0x108, direction),
            Self::InitHca => (0x102, 0),
            Self::TeardownHca => (0x103, 0),
            Self::QueryHcaVportContext => (0x762, 0),
            Self::AllocUar => (0x802, 0),
            Self::DeallocUar => (0x803, 0),
            Self::AllocPd => (0x800, 0),
            Self::DeallocPd => (0x801, 0),
            Self::CreateEq => (0x301, 0),
            Self::DestroyEq => (0x302, 0),
            Self::CreateMkey => (0x200, 0),
            Self::DestroyMkey => (0x202, 0),
            Self::CreateCq => (0x400, 0),
            Self::DestroyCq => (0x401, 0),
            Self::CreateQp => (0x500, 0),
            Self::DestroyQp => (0x501, 0),
            Self::ResetToInit => (0x502, 0),
            Self::InitToRtr => (0x503, 0),
            Self::RtrToRts => (0x504, 0),
            Self::ToReset => (0x50a, 0),
        }
    }
}

/// The command queue. This driver uses only the first slot.
#[derive(Debug)]
pub(super) struct Commands {
    slot: usize,
    /// Offset of the input mailbox. The output mailbox follows it.
    mailboxes: usize,
    token: u8,
}

impl Commands {
    /// Maximum number of pages that one command can give to the device or reclaim.
    pub(super) const MAX_PAGES: usize = BLOCKS * BLOCK_DATA / 8;

    /// Allocates the command queue and writes its address to the device.
    pub(super) fn start(device: &Device, arena: &mut Arena) -> Result<Self> {
        let slot = arena.alloc(1, PAGE)?;
        let mailboxes = arena.alloc(2 * BLOCKS * STRIDE / PAGE, PAGE)?;
        let shape = read(device, 0x14)?;
        ensure!(shape & 0xff == 0x56, "the command queue has an unexpected size and stride: {shape:#x}");
        let address = arena.iova(slot);
        device.write(Bar::Zero, 0x10, &u32::try_from(address >> 32)?.to_be_bytes())?;
        device.write(Bar::Zero, 0x14, &(u32::try_from(address & 0xffff_f000)?).to_be_bytes())?;
        Ok(Self { slot, mailboxes, token: 0 })
    }

    /// Executes a command and returns its output. Each pair in `words` is a byte offset in the input and the 32-bit
    /// value at that offset.
    pub(super) fn run(
        &mut self,
        device: &Device,
        arena: &Arena,
        op: Op,
        words: &[(usize, u32)],
        output_len: usize,
    ) -> Result<Vec<u8>> {
        let end = words.iter().map(|(at, _)| at + 4).max().unwrap_or(0);
        let mut input = vec![0; end.max(INLINE)];
        for &(at, word) in words {
            put_u32(&mut input, at, word);
        }
        self.run_long(device, arena, op, input, output_len)
    }

    /// Fills in the header of `input` and executes the command. Returns the output.
    pub(super) fn run_long(
        &mut self,
        device: &Device,
        arena: &Arena,
        op: Op,
        mut input: Vec<u8>,
        output_len: usize,
    ) -> Result<Vec<u8>> {
        let (opcode, modifier) = op.code();
        input[0..2].copy_from_slice(&opcode.to_be_bytes());
        input[6..8].copy_from_slice(&modifier.to_be_bytes());
        self.token = self.token.wrapping_add(1);
        let (inline, rest) = input.split_at(INLINE);
        let output_rest = output_len.saturating_sub(INLINE);
        let output = self.mailboxes + BLOCKS * STRIDE;
        let input_block = self.write_mailbox(arena, self.mailboxes, rest)?;
        let output_block = self.write_mailbox(arena, output, &vec![0; output_rest])?;

        let mut slot = [0; 64];
        put_u32(&mut slot, 0x00, 7 << 24);
        put_u32(&mut slot, 0x04, u32::try_from(input.len())?);
        put_u64(&mut slot, 0x08, input_block);
        slot[0x10..0x20].copy_from_slice(inline);
        put_u64(&mut slot, 0x30, output_block);
        put_u32(&mut slot, 0x38, u32::try_from(output_len)?);
        slot[0x3c] = self.token;
        arena.write(self.slot, &slot);
        arena.publish_byte(self.slot + OWNER, 1);
        device.write(Bar::Zero, 0x18, &1_u32.to_be_bytes())?;

        let started = Instant::now();
        let owner = loop {
            let owner = arena.observe_byte(self.slot + OWNER);
            if owner & 1 == 0 {
                break owner;
            }
            ensure!(started.elapsed() < TIMEOUT, "{op:?} did not complete within {TIMEOUT:?}");
            std::thread::yield_now();
        };
        ensure!(owner == 0, "{op:?} was not delivered: delivery status {:#x}", owner >> 1);
        let mut answer = vec![0; INLINE];
        arena.read(self.slot + 0x20, &mut answer);
        for block in 0..output_rest.div_ceil(BLOCK_DATA) {
            let mut data = [0; BLOCK_DATA];
            arena.read(output + block * STRIDE, &mut data);
            answer.extend(data);
        }
        answer.truncate(output_len.max(INLINE));
        match answer[0] {
            0 => Ok(answer),
            status => bail!("{op:?} failed: status {status:#x}, syndrome {:#x}", get_u32(&answer, 4)),
        }
    }

    /// Writes data to a chain of mailbox blocks. Returns the bus address of the first block, or 0 if `data` is empty.
    fn write_mailbox(&self, arena: &Arena, mailbox: usize, data: &[u8]) -> Result<u64> {
        let count = data.len().div_ceil(BLOCK_DATA);
        ensure!(count <= BLOCKS, "{} bytes do not fit into a mailbox", data.len());
        for (n, part) in data.chunks(BLOCK_DATA).enumerate() {
            let mut block = [0; 576];
            block[..part.len()].copy_from_slice(part);
            if n + 1 < count {
                put_u64(&mut block, 0x230, arena.iova(mailbox + (n + 1) * STRIDE));
            }
            put_u32(&mut block, 0x238, u32::try_from(n).context("block number")?);
            block[0x23d] = self.token;
            arena.write(mailbox + n * STRIDE, &block);
        }
        Ok(if count == 0 { 0 } else { arena.iova(mailbox) })
    }
}

/// The parts of an open function that commands use.
#[derive(Debug)]
pub(super) struct Function<'a> {
    pub(super) device: &'a Device,
    pub(super) arena: &'a Arena,
    pub(super) commands: &'a mut Commands,
}

impl Function<'_> {
    /// Creates or allocates an object. Returns its number.
    pub(super) fn create(&mut self, op: Op, input: Vec<u8>) -> Result<u32> {
        let output = self.commands.run_long(self.device, self.arena, op, input, 16)?;
        Ok(get_u32(&output, 0x08) & NUMBER)
    }

    /// Allocates an object that needs no arguments. Returns its number.
    pub(super) fn allocate(&mut self, op: Op) -> Result<u32> {
        self.create(op, vec![0; INLINE])
    }

    /// Executes a command that changes an object.
    pub(super) fn modify(&mut self, op: Op, input: Vec<u8>) -> Result<()> {
        self.commands.run_long(self.device, self.arena, op, input, 16).map(drop)
    }

    /// Executes a command whose only argument is the number of an object.
    pub(super) fn execute(&mut self, op: Op, number: u32) -> Result<()> {
        self.commands.run(self.device, self.arena, op, &[(0x08, number)], 16).map(drop)
    }
}
