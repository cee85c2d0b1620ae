//! Queue memory: the pages that the driver lists when it creates the queue.
//!
//! # Spec
//! mlx5 interface, sections 5, 8.1 and 10.1.

use card::memory::GuestMemory;
use card::memory::region::PageShift;
use engine::AccessError;
use protocol::hca::mlx5::input::Pages;
use protocol::hca::mlx5::{page_len, page_offset};
use protocol::ids::Iova;

use super::limits::MAX_QUEUE_PAGES;

/// Largest supported `log_page_size`: pages of 8 TiB. No guest has memory for larger ones.
const MAX_LOG_PAGE: u8 = 31;

/// Log2 of the smallest page size in bytes.
const PAGE_SHIFT: u8 = 12;
const _: () = assert!(page_len(0) == 1 << PAGE_SHIFT);

/// Position of a queue within its pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Each page has `4096 << log_page_size` bytes.
    pub log_page_size: u8,
    /// Offset of the queue in its first page, in 64ths of the page size.
    pub page_offset: u8,
}

#[derive(Debug, PartialEq, Eq)]
pub struct QueueBuffer {
    pages: Box<[Iova]>,
    /// Log2 of the page size in bytes.
    page_shift: u8,
    /// Offset of the queue in its first page, in bytes.
    start: u64,
    len: u64,
}

impl QueueBuffer {
    /// Creates the buffer for a `len`-byte queue. Returns `None` if `pages` has too few pages or the page size is not
    /// supported. Pages past the end of the queue are dropped.
    pub fn new(pages: Pages<'_>, placement: Placement, len: u64) -> Option<Self> {
        let Placement { log_page_size, page_offset: offset } = placement;
        if log_page_size > MAX_LOG_PAGE {
            return None;
        }
        let (page_shift, start) = (PAGE_SHIFT + log_page_size, page_offset(log_page_size, offset));
        let needed = usize::try_from(start.checked_add(len)?.div_ceil(1 << page_shift)).ok()?;
        if needed > pages.len() {
            return None;
        }
        Some(Self { pages: pages.iter().take(needed).collect(), page_shift, start, len })
    }

    /// Creates the buffer for a `len`-byte queue that starts at byte `start` of the first page. Accesses past the end
    /// of the pages fail.
    pub fn within(pages: &[Iova], page_shift: PageShift, start: u64, len: u64) -> Self {
        Self { pages: pages.into(), page_shift: page_shift.get(), start, len }
    }

    pub fn pages(&self) -> usize {
        self.pages.len()
    }

    /// Copies bytes out of the queue.
    ///
    /// # Errors
    /// Fails with [`AccessError::Bounds`] past the end of the queue and with [`AccessError::Unmapped`] if the guest has
    /// not mapped a page.
    pub fn read(&self, dma: &GuestMemory, offset: u64, out: &mut [u8]) -> Result<(), AccessError> {
        self.check(offset, out.len())?;
        if let Some(iova) = self.in_one_page(offset, out.len()) {
            return dma.read(iova, out).map_err(|_| AccessError::Unmapped);
        }
        self.read_pages(dma, offset, out)
    }

    #[cold]
    fn read_pages(&self, dma: &GuestMemory, offset: u64, out: &mut [u8]) -> Result<(), AccessError> {
        let (mut at, mut rest) = (offset, out);
        while !rest.is_empty() {
            let (iova, room) = self.locate(at)?;
            let (now, later) = rest.split_at_mut(rest.len().min(room));
            dma.read(iova, now).map_err(|_| AccessError::Unmapped)?;
            at += now.len() as u64;
            rest = later;
        }
        Ok(())
    }

    /// Writes an entry so that its last byte becomes visible last. A reader that sees the last byte also sees the rest
    /// of the entry and all earlier writes.
    ///
    /// # Errors
    /// Fails under the same conditions as [`QueueBuffer::read`]. The last byte is then not written.
    pub fn publish(&self, dma: &GuestMemory, offset: u64, entry: &[u8]) -> Result<(), AccessError> {
        self.check(offset, entry.len())?;
        match self.in_one_page(offset, entry.len()) {
            Some(iova) if is_in_one_page(iova, entry.len()) => {
                dma.publish(iova, entry).map_err(|_| AccessError::Unmapped)
            }
            _ => self.publish_pages(dma, offset, entry),
        }
    }

    #[cold]
    fn publish_pages(&self, dma: &GuestMemory, offset: u64, entry: &[u8]) -> Result<(), AccessError> {
        let Some((owner, body)) = entry.split_last() else { return Ok(()) };
        let (mut at, mut rest) = (offset, body);
        while !rest.is_empty() {
            let (iova, room) = self.locate(at)?;
            let (now, later) = rest.split_at(rest.len().min(room));
            dma.write(iova, now).map_err(|_| AccessError::Unmapped)?;
            at += now.len() as u64;
            rest = later;
        }
        let (iova, _) = self.locate(at)?;
        dma.publish(iova, &[*owner]).map_err(|_| AccessError::Unmapped)
    }

    fn check(&self, offset: u64, len: usize) -> Result<(), AccessError> {
        match offset.checked_add(len as u64) {
            Some(end) if end <= self.len => Ok(()),
            _ => Err(AccessError::Bounds),
        }
    }

    /// Returns the address of a range if it is not empty and lies in one page of the queue, as almost all entries do.
    #[inline]
    fn in_one_page(&self, offset: u64, len: usize) -> Option<Iova> {
        let (iova, room) = self.locate(offset).ok()?;
        (len > 0 && len <= room).then_some(iova)
    }

    /// Returns a byte's address and the number of bytes from there to the end of its page.
    fn locate(&self, offset: u64) -> Result<(Iova, usize), AccessError> {
        let linear = self.start + offset;
        let page_len = 1 << self.page_shift;
        let (page, within) = (linear >> self.page_shift, linear & (page_len - 1));
        let page = usize::try_from(page).ok().and_then(|page| self.pages.get(page));
        let page = page.ok_or(AccessError::Bounds)?;
        let iova = page.get().checked_add(within).ok_or(AccessError::Unmapped)?;
        let room = usize::try_from(page_len - within).unwrap_or(usize::MAX);
        Ok((Iova::new(iova), room))
    }
}

fn is_in_one_page(iova: Iova, len: usize) -> bool {
    iova.get() % page_len(0) + len as u64 <= page_len(0)
}

/// Number of pages that are still available. All queues, keys and UMEMs share this budget.
#[derive(Debug)]
pub struct PageBudget {
    left: usize,
}

impl Default for PageBudget {
    fn default() -> Self {
        Self { left: MAX_QUEUE_PAGES }
    }
}

impl PageBudget {
    /// Takes pages from the budget. If it is too small, takes none and returns false.
    #[must_use]
    pub fn take(&mut self, pages: usize) -> bool {
        match self.left.checked_sub(pages) {
            Some(left) => {
                self.left = left;
                true
            }
            None => false,
        }
    }

    pub fn give_back(&mut self, pages: usize) {
        self.left = self.left.saturating_add(pages);
    }
}

#[cfg(test)]
mod tests {
    use card::memory::testing::guest_memory;

    use super::*;

    fn list(pages: &[u64]) -> Vec<u8> {
        pages.iter().flat_map(|page| page.to_be_bytes()).collect()
    }

    /// Section 20, M-2: the offset counts 64ths of a page, so an offset of 32 in an 8 KiB page is 4096 bytes.
    #[test]
    fn page_offset_counts_64ths_of_page() {
        let dma = guest_memory(0, 8);
        let bytes = list(&[0x2000, 0x6000]);
        let placement = Placement { log_page_size: 1, page_offset: 32 };
        let buffer = QueueBuffer::new(Pages::parse(&bytes), placement, 0x2000).unwrap();
        assert_eq!((buffer.pages(), buffer.len), (2, 0x2000));
        buffer.publish(&dma, 0, &[1; 64]).unwrap();
        buffer.publish(&dma, 0xfe0, &[2; 64]).unwrap();
        let mut there = [0; 64];
        dma.read(Iova::new(0x3000), &mut there).unwrap();
        assert_eq!(there, [1; 64]);
        let mut ends = [[0; 32]; 2];
        dma.read(Iova::new(0x3fe0), &mut ends[0]).unwrap();
        dma.read(Iova::new(0x6000), &mut ends[1]).unwrap();
        assert_eq!(ends, [[2; 32]; 2]);
        let mut back = [0; 64];
        buffer.read(&dma, 0xfe0, &mut back).unwrap();
        assert_eq!(back, [2; 64]);
    }

    #[test]
    fn page_list_too_short_for_queue_is_rejected() {
        let bytes = list(&[0x1000, 0x2000]);
        let of = |log_page_size, page_offset, len| {
            QueueBuffer::new(Pages::parse(&bytes), Placement { log_page_size, page_offset }, len)
        };
        assert!(of(0, 0, 0x2000).is_some());
        assert_eq!(of(0, 0, 0x2001), None);
        assert_eq!(of(0, 1, 0x2000), None);
        assert_eq!((of(32, 0, 64), of(0, 0, u64::MAX)), (None, None));
        assert_eq!(of(0, 0, 64).map(|buffer| buffer.pages()), Some(1));
        assert_eq!(of(0, 0, 0).map(|buffer| buffer.pages()), Some(0));
    }

    #[test]
    fn accesses_past_end_of_queue_buffer_are_rejected() {
        let dma = guest_memory(0, 1);
        let bytes = list(&[0, 0x10_0000]);
        let placement = Placement { log_page_size: 0, page_offset: 0 };
        let buffer = QueueBuffer::new(Pages::parse(&bytes), placement, 0x1040).unwrap();
        assert_eq!(buffer.read(&dma, 0x1020, &mut [0; 64]), Err(AccessError::Bounds));
        assert_eq!(buffer.publish(&dma, u64::MAX, &[0; 64]), Err(AccessError::Bounds));
        assert_eq!(buffer.publish(&dma, 0x1000, &[0; 64]), Err(AccessError::Unmapped));
    }

    #[test]
    fn budget_never_exceeds_limit() {
        let mut budget = PageBudget { left: 10 };
        assert!(budget.take(8) && !budget.take(3) && budget.take(2) && !budget.take(1));
        budget.give_back(8);
        assert!(budget.take(8));
    }
}
