//! Command queue slots and the mailboxes that hold long inputs and outputs.
//!
//! # Spec
//! mlx5 interface, sections 3.1 and 3.2.

use std::collections::VecDeque;

use card::memory::GuestMemory;
use protocol::hca::mlx5::command::{
    BLOCK_ALIGN, BLOCK_DATA, Block, BlockTail, Delivery, INLINE_LEN, NEXT_BLOCK, OWNER_BYTE, OutputHeader,
    SLOTS, Slot, blocks,
};
use protocol::ids::Iova;

use super::check::{Check, Rejection};

/// Offset of the first output bytes in a slot.
const OUTPUT: u64 = 0x20;

/// Slots whose doorbell has been rung but whose command has not been executed, in the order of their doorbells.
///
/// Each slot appears at most once.
#[derive(Debug, Default)]
pub struct PendingSlots(VecDeque<usize>);

impl PendingSlots {
    /// Adds the slots in a bit mask. Slots that are already pending keep their position.
    pub fn add(&mut self, slots: u32) {
        for slot in (0..SLOTS).filter(|slot| slots >> slot & 1 != 0) {
            if !self.0.contains(&slot) {
                self.0.push_back(slot);
            }
        }
    }

    pub fn take_next(&mut self) -> Option<usize> {
        self.0.pop_front()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Reason why the command in a slot was not executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotFault {
    Unmapped,
    /// The driver owns the slot, which is left unchanged.
    NotOwned,
    /// The command could not be delivered.
    Undelivered(Undelivered),
}

/// A command that could not be delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Undelivered {
    pub rejection: Rejection,
    /// Delivery status, which is written to the slot.
    pub delivery: Delivery,
}

impl Undelivered {
    fn of(check: Check, value: u64, delivery: Delivery) -> Self {
        Self { rejection: check.rejects(value), delivery }
    }
}

/// A command that the driver has passed to the device.
#[derive(Debug)]
pub struct Request {
    at: Iova,
    /// The slot's token, which every mailbox block repeats.
    pub token: u8,
    pub input: Vec<u8>,
    /// Length of the output that the driver expects.
    pub output_len: usize,
    /// Addresses of the output blocks. Their number is limited by the maximum output length.
    output_blocks: Vec<Iova>,
}

impl Request {
    /// Fetches the command from the slot at `at`. Each byte of the slot and its mailboxes is read only once.
    ///
    /// # Errors
    /// Fails if the slot is not accessible, is owned by the driver, or contains a command that cannot be delivered. In
    /// the last case, the slot is returned to the driver.
    pub fn take(dma: &GuestMemory, at: Iova) -> Result<Self, SlotFault> {
        let mut bytes = [0; Slot::LEN];
        dma.read(at, &mut bytes).map_err(|_| SlotFault::Unmapped)?;
        let slot = Slot::parse(&bytes);
        if !slot.device_owned {
            return Err(SlotFault::NotOwned);
        }
        Self::of_slot(dma, at, &slot).map_err(|error| {
            let header = error.rejection.header().emit();
            // If the slot is not writable, the status is lost. There is no other place to report it.
            let _ = release(dma, at, &header, error.delivery);
            SlotFault::Undelivered(error)
        })
    }

    fn of_slot(dma: &GuestMemory, at: Iova, slot: &Slot) -> Result<Self, Undelivered> {
        let (input_len, output_len) = slot.lengths().map_err(|error| {
            let rejection = Rejection::from(error);
            let delivery = match rejection.check {
                Check::SlotKind => Delivery::Kind,
                // Delivery itself succeeded. The driver finds the error in the status field of the output.
                _ => Delivery::Ok,
            };
            Undelivered { rejection, delivery }
        })?;
        let mut input = slot.input.to_vec();
        let mut chain = Chain::new(slot.input_block, slot.token, Check::InputBlock, Delivery::InputPointer);
        for _ in 0..blocks(input_len) {
            let block = chain.aligned()?;
            let mut bytes = [0; Block::LEN];
            dma.read(block, &mut bytes).map_err(|_| chain.inaccessible())?;
            let (data, tail) = bytes.split_at(NEXT_BLOCK);
            chain.advance(&BlockTail::parse_prefix(tail).unwrap_or_default())?;
            let now = (input_len - input.len()).min(BLOCK_DATA);
            input.extend_from_slice(data.get(..now).unwrap_or_default());
        }
        let mut output_blocks = Vec::new();
        let mut chain =
            Chain::new(slot.output_block, slot.token, Check::OutputBlock, Delivery::OutputPointer);
        for _ in 0..blocks(output_len) {
            let block = chain.aligned()?;
            let mut tail = [0; BlockTail::LEN];
            let at = Iova::new(block.get().wrapping_add(NEXT_BLOCK as u64));
            dma.read(at, &mut tail).map_err(|_| chain.inaccessible())?;
            chain.advance(&BlockTail::parse(&tail))?;
            output_blocks.push(block);
        }
        input.truncate(input_len);
        Ok(Self { at, token: slot.token, input, output_len, output_blocks })
    }

    /// Writes the output and then returns the slot to the driver. The output is truncated or zero-padded to the length
    /// that the driver expects (section 20, M-31). Returns whether guest memory could be written.
    pub fn finish(&self, dma: &GuestMemory, output: &[u8]) -> bool {
        let rest = output.get(INLINE_LEN..).unwrap_or_default();
        let mut left = self.output_len.saturating_sub(INLINE_LEN);
        for (index, block) in self.output_blocks.iter().enumerate() {
            let mut data = [0; BLOCK_DATA];
            let part = rest.get(index * BLOCK_DATA..).unwrap_or_default();
            data.iter_mut().zip(part).for_each(|(to, from)| *to = *from);
            let (data, _) = data.split_at(left.min(BLOCK_DATA));
            left -= data.len();
            if dma.write(*block, data).is_err() {
                let error = Check::OutputBlock.rejects(block.get());
                let _ = release(dma, self.at, &error.header().emit(), Delivery::OutputPointer);
                return false;
            }
        }
        let mut inline = [0; INLINE_LEN];
        inline.iter_mut().zip(output).for_each(|(to, from)| *to = *from);
        release(dma, self.at, &inline, Delivery::Ok)
    }
}

const _: () = assert!(OutputHeader::LEN == INLINE_LEN);

/// Writes the first bytes of an output to the slot, and then the byte with the owner bit. Returns whether the slot
/// could be written.
fn release(dma: &GuestMemory, at: Iova, inline: &[u8; INLINE_LEN], delivery: Delivery) -> bool {
    let place = |offset: u64| Iova::new(at.get().wrapping_add(offset));
    dma.write(place(OUTPUT), inline).is_ok()
        && dma.publish(place(OWNER_BYTE as u64), &[delivery.owner_byte()]).is_ok()
}

/// Walks the blocks of a mailbox. Each block must carry the slot's token and its own position in the chain, so the walk
/// ends even if the chain is circular.
struct Chain {
    next: Iova,
    number: u32,
    token: u8,
    check: Check,
    delivery: Delivery,
}

impl Chain {
    fn new(first: Iova, token: u8, check: Check, delivery: Delivery) -> Self {
        Self { next: first, number: 0, token, check, delivery }
    }

    /// Returns the current block's address. Fails if the chain has ended or the address is misaligned.
    fn aligned(&self) -> Result<Iova, Undelivered> {
        match self.next.get() {
            // An address of 0 ends the chain, so the block is missing.
            at if at == 0 || !at.is_multiple_of(BLOCK_ALIGN) => Err(self.inaccessible()),
            at => Ok(Iova::new(at)),
        }
    }

    fn inaccessible(&self) -> Undelivered {
        Undelivered::of(self.check, self.next.get(), self.delivery)
    }

    /// Checks the current block and advances to the next one.
    fn advance(&mut self, tail: &BlockTail) -> Result<(), Undelivered> {
        if tail.token != self.token {
            return Err(Undelivered::of(Check::BlockToken, tail.token.into(), Delivery::Token));
        }
        if tail.number != self.number {
            return Err(Undelivered::of(Check::BlockNumber, tail.number.into(), Delivery::BlockNumber));
        }
        self.number += 1;
        self.next = tail.next;
        Ok(())
    }
}
