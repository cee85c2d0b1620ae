//! Memory regions, with their arena pages, translation entries and keys.

use std::ops::Range;

use anyhow::{Result, ensure};

use super::hcr::Op;
use super::layout::{Mpt, WRITE_MTT_MAX, write_mtt};
use super::open::{Hca, Inbox};
use crate::error::bad_step;
use crate::pattern;
use crate::vfio::{Arena, PAGE};
use crate::wire::{Access, CreateMr, MrId, MrInfo};

#[derive(Clone, Debug)]
pub(crate) struct Region {
    /// Key for both local and remote access.
    pub(crate) key: u32,
    /// Address of the region's first byte, as used in work requests.
    addr: u64,
    len: usize,
    /// Arena offset of each page, in address order.
    pages: Vec<usize>,
    page_size: usize,
    /// Offset of the region's start in its first page.
    first_byte: usize,
    /// Index of the first translation entry.
    mtt: u32,
    /// Arena offset of the allocation.
    allocation: usize,
    /// Whether the memory and the translation entries belong to another region.
    shared: bool,
}

impl Region {
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Returns the address of byte `off`, as used in work requests.
    pub(crate) const fn addr(&self, off: u64) -> u64 {
        self.addr.wrapping_add(off)
    }

    /// Returns the arena offset of a byte in the region.
    pub(crate) fn locate(&self, off: usize) -> usize {
        let linear = self.first_byte + off;
        self.pages[linear / self.page_size] + linear % self.page_size
    }

    pub(crate) fn range(&self, off: u64, len: u64) -> Result<Range<usize>> {
        let end = off.checked_add(len).filter(|&end| end <= self.len as u64).ok_or_else(|| {
            bad_step(format!("{len} bytes at offset {off} are outside the region of {} bytes", self.len))
        })?;
        Ok(usize::try_from(off)?..usize::try_from(end)?)
    }

    pub(crate) fn read(&self, arena: &Arena, off: usize, into: &mut [u8]) {
        for (at, part) in self.pieces(off..off + into.len()) {
            arena.read(at, &mut into[part]);
        }
    }

    pub(crate) fn write(&self, arena: &Arena, off: usize, bytes: &[u8]) {
        for (at, part) in self.pieces(off..off + bytes.len()) {
            arena.write(at, &bytes[part]);
        }
    }

    pub(crate) fn set(&self, arena: &Arena, range: Range<usize>, value: u8) {
        for (at, part) in self.pieces(range) {
            arena.set(at, value, part.len());
        }
    }

    /// Writes the pattern stream for `seed`, starting at byte `position` of the stream.
    pub(crate) fn fill(&self, arena: &Arena, range: Range<usize>, seed: u64, position: u64) {
        let mut block = [0; PAGE];
        for (at, part) in self.pieces(range) {
            let block = &mut block[..part.len()];
            pattern::fill(seed, position + part.start as u64, block);
            arena.write(at, block);
        }
    }

    /// Compares a range with the pattern stream for `seed`, starting at byte `position` of the stream. Returns the
    /// offset of the first difference, relative to the start of the range.
    pub(crate) fn first_difference(
        &self,
        arena: &Arena,
        range: Range<usize>,
        seed: u64,
        position: u64,
    ) -> Option<usize> {
        let mut block = [0; PAGE];
        self.pieces(range).find_map(|(at, part)| {
            let block = &mut block[..part.len()];
            arena.read(at, block);
            let found = pattern::first_difference(seed, position + part.start as u64, block)?;
            Some(part.start + found)
        })
    }

    /// Returns the offset of the first byte that is not `value`, relative to the start of the range.
    pub(crate) fn first_other(&self, arena: &Arena, range: Range<usize>, value: u8) -> Option<usize> {
        let mut block = [0; PAGE];
        self.pieces(range).find_map(|(at, part)| {
            let block = &mut block[..part.len()];
            arena.read(at, block);
            let found = block.iter().position(|&byte| byte != value)?;
            Some(part.start + found)
        })
    }

    pub(crate) fn digest(&self, arena: &Arena, range: Range<usize>) -> u64 {
        let mut block = [0; PAGE];
        let mut digest = pattern::Digest::default();
        for (at, part) in self.pieces(range) {
            let block = &mut block[..part.len()];
            arena.read(at, block);
            digest.update(block);
        }
        digest.finish()
    }

    /// Splits a range at 4 KiB page boundaries. For each part, yields the arena offset and the position relative to the
    /// start of the range.
    fn pieces(&self, range: Range<usize>) -> impl Iterator<Item = (usize, Range<usize>)> {
        let mut off = range.start;
        std::iter::from_fn(move || {
            if off >= range.end {
                return None;
            }
            let in_page = (self.first_byte + off) % PAGE;
            let len = (PAGE - in_page).min(range.end - off);
            let piece = (self.locate(off), off - range.start..off - range.start + len);
            off += len;
            Some(piece)
        })
    }
}

impl Hca {
    pub(crate) fn create_mr(&mut self, step: &CreateMr) -> Result<MrInfo> {
        let region = self.register(step)?;
        let id = MrId(self.next_id());
        let info = MrInfo {
            id,
            key: region.key,
            addr: region.addr,
            len: region.len as u64,
            iova: self.arena.iova(region.locate(0)),
        };
        self.mrs.insert(id, region);
        Ok(info)
    }

    /// Registers the buffer of a queue. The buffer's addresses start at 0, and its pages are scattered.
    pub(crate) fn register_queue(&mut self, len: usize, pd: u32, local_write: bool) -> Result<Region> {
        self.register(&CreateMr {
            len: len as u64,
            access: Access { local_write, ..Access::default() },
            pd,
            va: Some(0),
            ..CreateMr::default()
        })
    }

    pub(crate) fn destroy_mr(&mut self, mr: MrId) -> Result<()> {
        let region = self.mrs.remove(&mr).ok_or_else(|| bad_step(format!("unknown {mr:?}")))?;
        // If the device rejects the command, the region still exists, so keep it.
        let result = self.unregister(&region);
        if result.is_err() {
            self.mrs.insert(mr, region);
        }
        result
    }

    pub(crate) fn mr(&self, mr: MrId) -> Result<&Region> {
        self.mrs.get(&mr).ok_or_else(|| bad_step(format!("unknown {mr:?}")))
    }

    pub(crate) fn unregister(&mut self, region: &Region) -> Result<()> {
        let index = self.mpt_index(region.key);
        self.command(Op::Hw2SwMpt, 0, index, Inbox::None)?;
        self.mpts.free(index, 1);
        self.release(region);
        Ok(())
    }

    fn register(&mut self, step: &CreateMr) -> Result<Region> {
        if let Some(other) = step.over {
            return self.register_over(step, other);
        }
        let page_size = step.page_size as usize;
        ensure!(
            page_size >= PAGE && page_size.is_power_of_two(),
            bad_step(format!("page size {page_size} is not a power of two of at least {PAGE}"))
        );
        let first_byte = match step.va {
            Some(va) => usize::try_from(va % page_size as u64)?,
            None => step.page_offset as usize,
        };
        ensure!(
            first_byte < page_size && (step.page_offset == 0 || first_byte == step.page_offset as usize),
            bad_step("page offset, address and page size are inconsistent")
        );
        let len = usize::try_from(step.len)?;
        let count = (first_byte + len).div_ceil(page_size).max(1);
        let allocation = self.arena.alloc(count * page_size / PAGE, page_size)?;
        let entries = u32::try_from(count)?;
        let Some(mtt) = self.mtts.alloc(entries, 1) else {
            self.arena.free(allocation, count * page_size / PAGE);
            return Err(bad_step(format!("no {count} free translation entries")));
        };
        let Some(index) = self.mpts.alloc(1, 1) else {
            self.arena.free(allocation, count * page_size / PAGE);
            self.mtts.free(mtt, entries);
            return Err(bad_step("no free memory region"));
        };
        let key = self.new_key(index);
        let start = step.va.unwrap_or_else(|| virtual_address(key, first_byte));
        let pages: Vec<usize> =
            page_order(count, step.scattered).map(|page| allocation + page * page_size).collect();
        let region = Region {
            key,
            addr: if step.zero_based { 0 } else { start },
            len,
            pages,
            page_size,
            first_byte,
            mtt,
            allocation,
            shared: false,
        };
        let entered = self.write_mtt(&region).and_then(|()| self.enter(step, &region, start));
        if let Err(error) = entered {
            self.mpts.free(index, 1);
            self.release(&region);
            return Err(error);
        }
        Ok(region)
    }

    /// Registers an additional key for the memory of region `other`.
    fn register_over(&mut self, step: &CreateMr, other: MrId) -> Result<Region> {
        let mut region = self.mr(other)?.clone();
        let index = self.mpts.alloc(1, 1).ok_or_else(|| bad_step("no free memory region"))?;
        let key = self.new_key(index);
        let start = virtual_address(key, region.first_byte);
        (region.key, region.addr, region.shared) = (key, if step.zero_based { 0 } else { start }, true);
        if let Err(error) = self.enter(step, &region, start) {
            self.mpts.free(index, 1);
            return Err(error);
        }
        Ok(region)
    }

    /// Makes the region's key valid. `start` is the address of the region's first byte.
    fn enter(&mut self, step: &CreateMr, region: &Region, start: u64) -> Result<()> {
        let mpt = Mpt {
            access: step.access,
            zero_based: step.zero_based,
            page_size: step.page_size_field.unwrap_or(u32::try_from(region.page_size)?),
            key: region.key,
            pd: step.pd,
            start,
            length: region.len as u64,
            mtt_seg: u64::from(region.mtt),
        };
        self.command(Op::Sw2HwMpt, 0, self.mpt_index(region.key), Inbox::Bytes(&mpt.emit()))
    }

    /// Writes a region's translation entries. As in the public driver (`ib_hgrnic`), the in_modifier of each command is
    /// the number of entries left to write.
    fn write_mtt(&mut self, region: &Region) -> Result<()> {
        let addresses: Vec<u64> = region.pages.iter().map(|&page| self.arena.iova(page)).collect();
        let mut start = u64::from(region.mtt);
        let mut rest = addresses.as_slice();
        while !rest.is_empty() {
            let left = u32::try_from(rest.len())?;
            self.command(Op::WriteMtt, 0, left, Inbox::Bytes(&write_mtt(start, rest)))?;
            let written = rest.len().min(WRITE_MTT_MAX);
            rest = &rest[written..];
            start += written as u64;
        }
        Ok(())
    }

    fn release(&mut self, region: &Region) {
        if region.shared {
            return;
        }
        let pages = region.pages.len() * region.page_size / PAGE;
        self.arena.free(region.allocation, pages);
        self.mtts.free(region.mtt, u32::try_from(region.pages.len()).expect("allocated as 32-bit units"));
    }
}

/// Returns an address that is unique to the key and differs from all of the arena's bus addresses.
fn virtual_address(key: u32, first_byte: usize) -> u64 {
    0x7e00_0000_0000 + (u64::from(key & 0xffff) << 28) + first_byte as u64
}

/// Returns the numbers `0..count` in ascending order or, if `scattered` is set, in an order that never places n
/// directly before n + 1 (unless `count` is less than 3).
fn page_order(count: usize, scattered: bool) -> impl Iterator<Item = usize> {
    let step = if scattered { coprime_step(count) } else { 1 };
    (0..count).map(move |i| (i * step + if scattered { count / 3 } else { 0 }) % count)
}

fn coprime_step(count: usize) -> usize {
    let gcd = |mut a: usize, mut b: usize| {
        while b != 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    (count * 3 / 5 + 1..count).find(|&step| gcd(step, count) == 1).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scattered_order_visits_every_page_once() {
        for count in 1..200 {
            let order: Vec<usize> = page_order(count, true).collect();
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert!(sorted.into_iter().eq(0..count), "{count}");
            let neighbours = order.windows(2).filter(|pair| pair[0] + 1 == pair[1]).count();
            assert!(
                count < 3 || neighbours == 0,
                "{neighbours} of {count} pages are followed by the next page"
            );
        }
    }

    #[test]
    fn content_is_contiguous_across_scattered_unaligned_pages() {
        let mut arena = Arena::detached(1 << 20);
        let allocation = arena.alloc(4, PAGE).unwrap();
        let region = Region {
            key: 0,
            addr: 0x1000,
            len: 3 * PAGE,
            pages: [2, 0, 3, 1].map(|page| allocation + page * PAGE).to_vec(),
            page_size: PAGE,
            first_byte: 100,
            mtt: 0,
            allocation,
            shared: false,
        };
        region.fill(&arena, 50..3 * PAGE, 9, 0);
        assert_eq!(region.first_difference(&arena, 50..3 * PAGE, 9, 0), None);
        assert_eq!(region.first_difference(&arena, 58..3 * PAGE, 9, 8), None);
        // Offset `PAGE` in the region is byte 100 of the region's second page, which is the allocation's first page.
        let mut byte = [0];
        arena.read(allocation + 100, &mut byte);
        byte[0] ^= 1;
        arena.write(allocation + 100, &byte);
        assert_eq!(region.first_difference(&arena, 50..3 * PAGE, 9, 0), Some(PAGE - 50));
    }
}
