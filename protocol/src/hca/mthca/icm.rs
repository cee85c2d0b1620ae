//! Inboxes of MAP_ICM, MAP_ICM_AUX and MAP_FA, the commands that assign guest memory to the device.
//!
//! # Spec
//! mthca interface, section 3.3.3.

use zerocopy::big_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::describe::{Hex, describe};
use crate::hca::status::CmdError;
use crate::ids::{IcmAddr, Iova};

/// Maximum number of blocks that fit in a mailbox.
pub const MAX_BLOCKS: u32 = 256;

/// A block of contiguous guest memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// ICM address of the block, page-aligned; 0 in MAP_ICM_AUX and MAP_FA.
    pub start: IcmAddr,
    /// Bus address of the block, page-aligned.
    pub bus: Iova,
    /// Length in bytes: a power of two, at least one page.
    pub length: u64,
}

describe!(Block { start, bus, length as Hex });

/// Returns the length in bytes of an inbox with `blocks` blocks.
///
/// # Errors
/// BAD_PARAM if there are no blocks or more than [`MAX_BLOCKS`].
pub fn inbox_len(blocks: u32) -> Result<usize, CmdError> {
    if blocks == 0 || blocks > MAX_BLOCKS {
        return Err(CmdError::param("block count", blocks.into()));
    }
    Ok(blocks as usize * size_of::<Raw>())
}

/// Parses an inbox: a list of blocks.
///
/// # Errors
/// BAD_PARAM for an incomplete entry, an ICM address that is not page-aligned, or a block that extends past the end of
/// the address space.
pub fn parse(inbox: &[u8]) -> Result<Vec<Block>, CmdError> {
    let raw = <[Raw]>::ref_from_bytes(inbox)
        .map_err(|_| CmdError::param("block list length", inbox.len() as u64))?;
    raw.iter().map(Block::parse).collect()
}

impl Block {
    fn parse(raw: &Raw) -> Result<Self, CmdError> {
        const OFFSET: u64 = 0xfff;
        const LOG: u64 = 0x3f;
        let (start, word) = (raw.start.get(), raw.bus.get());
        if start & OFFSET != 0 {
            return Err(CmdError::param("unaligned ICM address", start));
        }
        let bus = word & !OFFSET;
        let log = word & LOG;
        let length = if log < 52 { 4096u64 << log } else { 0 };
        let ends = |first: u64| length.checked_sub(1).and_then(|reach| first.checked_add(reach)).is_some();
        if !ends(start) || !ends(bus) {
            return Err(CmdError::param("address space exceeded by block at", word));
        }
        Ok(Self { start: IcmAddr::new(start), bus: Iova::new(bus), length })
    }

    /// Returns the block in wire format, as a driver builds it.
    pub fn emit(&self) -> [u8; 16] {
        let log = u64::from(self.length.max(4096).ilog2() - 12);
        zerocopy::transmute!(Raw {
            start: self.start.get().into(),
            bus: (self.bus.get() & !0xfff | log).into()
        })
    }
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    start: U64,
    /// Bits 63:12: bus address; bits 5:0: log2 of the number of pages.
    bus: U64,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Example from section 13.3: a 256 KiB block for the MTT.
    const ENTRY: [u8; 16] =
        [0x00, 0x00, 0x00, 0x00, 0x20, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x12, 0x34, 0x00, 0x06];

    #[test]
    fn example_entry_round_trips() {
        let block =
            Block { start: IcmAddr::new(0x2000_0000), bus: Iova::new(0x1234_0000), length: 256 << 10 };
        assert_eq!(parse(&ENTRY), Ok(vec![block]));
        assert_eq!(block.emit(), ENTRY);
    }

    #[test]
    fn rejects_unaligned_or_out_of_range_block() {
        let with = |start: u64, bus: u64| parse(&[start.to_be_bytes(), bus.to_be_bytes()].concat());
        assert!(with(0x2000_0800, 0x1234_0000).is_err());
        assert!(with(0, 0xffff_ffff_ffff_f001).is_err());
        assert!(with(0xffff_ffff_ffff_f000, 1).is_err());
        assert!(with(0, 0x3f).is_err());
        assert!(with(0, 51).is_ok());
        assert!(with(0xffff_ffff_ffff_f000, 0xffff_ffff_ffff_f000).is_ok());
        assert!(parse(&ENTRY[..15]).is_err());
    }
}
