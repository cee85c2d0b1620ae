//! User memory (UMEM): pinned guest pages where DevX programs place queues, doorbell records and memory regions.
//!
//! # Spec
//! mlx5 interface, section 23.2.

use card::memory::region::PageShift;
use protocol::hca::mlx5::doorbell::RECORD_LEN;
use protocol::hca::mlx5::input::Pages;
use protocol::hca::mlx5::page_len;
use protocol::hca::mlx5::user_memory::{CreateUmem, UmemPlace};
use protocol::ids::{Iova, UmemId};

use super::buffer::{Placement, QueueBuffer};
use super::check::{Check, Rejection};
use super::resources::Resources;
use super::uses::{Object, Used};

#[derive(Debug)]
pub struct Umem {
    pages: Box<[Iova]>,
    page_shift: PageShift,
    /// Offset of the first byte within the first page.
    start: u64,
    len: u64,
}

/// A part of a UMEM, given by the pages that contain it.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    pub pages: &'a [Iova],
    pub page_shift: PageShift,
    /// Offset of the part within its first page, in bytes.
    pub start: u64,
}

impl Umem {
    /// # Errors
    /// Fails if the list is shorter than its stated length, the page size is unsupported, or the UMEM is empty.
    pub fn new(create: &CreateUmem, list: Pages<'_>) -> Result<Self, Rejection> {
        let short = || Check::UmemList.rejects(create.count);
        let count = usize::try_from(create.count).ok().filter(|count| *count <= list.len());
        let pages: Box<[Iova]> = list.iter().take(count.ok_or_else(short)?).collect();
        let page_len = page_len(create.log_page_size);
        let start = u64::from(create.page_offset);
        let empty = || Check::UmemPages.rejects(start);
        let size = || Check::UmemPageSize.rejects(create.log_page_size);
        let page_shift = PageShift::new(PageShift::MIN.get() + create.log_page_size).ok_or_else(size)?;
        let end = create.count.checked_mul(page_len);
        let len = end.and_then(|end| end.checked_sub(start)).filter(|len| *len != 0 && start < page_len);
        Ok(Self { pages, page_shift, start, len: len.ok_or_else(empty)? })
    }

    pub fn pages(&self) -> usize {
        self.pages.len()
    }

    /// Returns the `len` bytes at `offset`, or `None` if they extend past the end of the UMEM.
    pub fn part(&self, offset: u64, len: u64) -> Option<Part<'_>> {
        offset.checked_add(len).filter(|end| *end <= self.len)?;
        let first = self.start + offset;
        let page_shift = self.page_shift;
        let (page, start) = (first >> page_shift.get(), first & page_shift.offset_mask());
        let count = (start + len).div_ceil(1 << page_shift.get());
        let page = usize::try_from(page).ok()?;
        let end = page.checked_add(usize::try_from(count).ok()?)?;
        Some(Part { pages: self.pages.get(page..end)?, page_shift, start })
    }

    /// Returns the address of a doorbell record, or `None` if it is misaligned or outside the UMEM.
    fn record(&self, offset: u64) -> Option<Iova> {
        let part = self.part(offset, RECORD_LEN as u64)?;
        if !part.start.is_multiple_of(RECORD_LEN as u64) {
            return None;
        }
        part.pages.first()?.get().checked_add(part.start).map(Iova::new)
    }
}

/// The UMEMs that hold a queue and its doorbell record. A field is `None` if the kernel specified an address instead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Umems {
    pub queue: Option<UmemPlace>,
    pub record: Option<UmemPlace>,
}

impl Umems {
    pub fn uses(&self) -> Used {
        [self.queue, self.record].into_iter().flatten().map(|place| Object::Umem(place.umem.get())).collect()
    }

    /// Returns the doorbell record address that software specified, which is an offset if the record is in a UMEM. User
    /// programs must never see DMA addresses.
    pub fn specified(&self, record: Iova) -> Iova {
        self.record.map_or(record, |place| Iova::new(place.offset))
    }
}

impl Resources {
    /// # Errors
    /// Fails if the UMEM does not exist.
    pub fn umem(&self, umem: UmemId) -> Result<&Umem, Rejection> {
        self.umems.get(umem.get()).ok_or_else(|| Check::Umem.rejects(umem.get()))
    }

    /// Replaces a doorbell record's offset in a UMEM with its address.
    ///
    /// # Errors
    /// Fails if the UMEM does not exist, or the record is misaligned or outside it.
    pub fn resolve_record(&self, umems: &Umems, record: &mut Iova) -> Result<(), Rejection> {
        if let Some(place) = umems.record {
            let outside = || Check::UmemRecord.rejects(place.offset);
            *record = self.umem(place.umem)?.record(place.offset).ok_or_else(outside)?;
        }
        Ok(())
    }

    /// Like [`Resources::buffer`], but the queue may be in a UMEM.
    ///
    /// # Errors
    /// Also fails if the UMEM does not exist, or the queue is outside it.
    pub fn buffer_in(
        &mut self,
        umems: &Umems,
        pages: Pages<'_>,
        placement: Placement,
        len: u64,
        too_few: Rejection,
    ) -> Result<QueueBuffer, Rejection> {
        let Some(place) = umems.queue else { return self.buffer(pages, placement, len, too_few) };
        let outside = || Check::UmemRange.rejects(place.offset);
        let part = self.umem(place.umem)?.part(place.offset, len).ok_or_else(outside)?;
        let buffer = QueueBuffer::within(part.pages, part.page_shift, part.start, len);
        self.take_pages(buffer.pages())?;
        Ok(buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(pages: &[u64]) -> Vec<u8> {
        pages.iter().flat_map(|page| page.to_be_bytes()).collect()
    }

    fn umem(log_page_size: u8, page_offset: u32, pages: &[u64]) -> Result<Umem, Rejection> {
        let create = CreateUmem { log_page_size, page_offset, count: pages.len() as u64 };
        Umem::new(&create, Pages::parse(&list(pages)))
    }

    #[test]
    fn part_offset_is_relative_to_first_byte() {
        let umem = umem(1, 0x1040, &[0x2000, 0x8000, 0x1_0000]).unwrap();
        let part = umem.part(0xfc0, 0x2000).unwrap();
        assert_eq!((part.pages, part.start), (&[Iova::new(0x8000)][..], 0));
        let part = umem.part(0, 0x1000).unwrap();
        assert_eq!((part.pages, part.start), (&[Iova::new(0x2000), Iova::new(0x8000)][..], 0x1040));
        assert_eq!(umem.part(0x20, 0).unwrap().pages.len(), 1);
    }

    #[test]
    fn ranges_past_end_are_rejected() {
        let umem = umem(0, 0x10, &[0x2000, 0x8000]).unwrap();
        let has = |offset, len| umem.part(offset, len).is_some();
        assert!(has(0, 0x1ff0) && has(0x1fef, 1) && has(0x1ff0, 0));
        assert!(!has(0, 0x1ff1) && !has(0x1fef, 2) && !has(u64::MAX, 1) && !has(1, u64::MAX));
    }

    #[test]
    fn record_must_be_aligned_and_inside_umem() {
        let umem = umem(0, 0x10, &[0x2000, 0x8000]).unwrap();
        assert_eq!(umem.record(0x18), Some(Iova::new(0x2028)));
        assert_eq!(umem.record(0x1fe8), Some(Iova::new(0x8ff8)));
        let bad = [0x1fec, 0x1ff0, 0x14, 0x1f_fff8, u64::MAX - 7];
        assert_eq!(bad.map(|offset| umem.record(offset)), [None; 5]);
    }

    #[test]
    fn rejects_invalid_umems() {
        assert_eq!(umem(0, 0, &[]).unwrap_err(), Check::UmemPages.rejects(0_u8));
        assert_eq!(umem(0, 0x1000, &[0, 0]).unwrap_err(), Check::UmemPages.rejects(0x1000_u32));
        let create = CreateUmem { count: 2, ..CreateUmem::default() };
        let bytes = list(&[0x1000]);
        let of = |create| Umem::new(&create, Pages::parse(&bytes)).map(|umem| umem.len);
        assert_eq!(of(create), Err(Check::UmemList.rejects(2_u8)));
        assert_eq!(of(CreateUmem { count: u64::MAX, ..create }), Err(Check::UmemList.rejects(u64::MAX)));
        assert_eq!(of(CreateUmem { count: 1, log_page_size: 19, ..create }), Ok(1 << 31));
        let large = CreateUmem { count: 1, log_page_size: 20, ..create };
        assert_eq!(of(large), Err(Check::UmemPageSize.rejects(20_u8)));
    }
}
