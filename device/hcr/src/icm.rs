//! Context memory (ICM): guest memory that software maps, page by page, into a separate address space for the device.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use card::memory::GuestMemory;
use card::memory::dma::{DmaError, PAGE_LEN};
use protocol::hca::status::{CmdError, CmdStatus};
use protocol::ids::{IcmAddr, Iova};
use thiserror::Error;

const PAGE_SHIFT: u32 = PAGE_LEN.trailing_zeros();

/// Maximum number of runs of contiguous pages in one map. This many runs occupy at most 12 MiB. Real drivers map about
/// ten thousand pages.
const MAX_RUNS: usize = 1 << 18;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum IcmError {
    /// No MAP_ICM command covers the address.
    #[error("ICM address {0} is not mapped")]
    Unmapped(IcmAddr),
    /// The guest has not mapped the memory behind the page.
    #[error(transparent)]
    Dma(#[from] DmaError),
}

impl From<IcmError> for CmdError {
    fn from(error: IcmError) -> Self {
        match error {
            IcmError::Unmapped(addr) => Self::param("unmapped ICM address", addr.get()),
            IcmError::Dma(error) => {
                Self::new(CmdStatus::InternalErr, "ICM page not in mapped memory at", error.iova.get())
            }
        }
    }
}

/// A range of pages that is contiguous in ICM and on the bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcmRange {
    /// ICM address of the first page.
    pub start: IcmAddr,
    /// Length in bytes: a positive number of whole pages. The range does not wrap in either address space.
    pub length: u64,
    /// Bus address of the first page.
    pub bus: Iova,
}

/// Page map of one ICM address space.
#[derive(Debug, Default)]
pub struct PageMap(PageRuns);

impl PageMap {
    /// Maps pages, replacing existing mappings. On error, the map is unchanged.
    ///
    /// # Errors
    /// EXCEED_LIM if the map would have too many runs.
    pub fn map(&mut self, ranges: &[IcmRange]) -> Result<(), CmdError> {
        let Self(runs) = self;
        // Each range adds at most two runs: its own, and the second half of a run that it splits.
        if runs.0.len() + 2 * ranges.len() > MAX_RUNS {
            return Err(too_many(runs));
        }
        for range in ranges {
            let first = page_of(range.start);
            let pages = (range.length >> PAGE_SHIFT).max(1);
            runs.cut_out(first..=first + (pages - 1));
            runs.insert(first, Run { pages, bus_page: range.bus.get() >> PAGE_SHIFT });
        }
        Ok(())
    }

    /// Unmaps a non-empty range of pages. The range may include pages that are not mapped.
    ///
    /// # Errors
    /// EXCEED_LIM if the map would have too many runs.
    pub fn unmap(&mut self, pages: RangeInclusive<u64>) -> Result<(), CmdError> {
        let Self(runs) = self;
        if runs.0.len() >= MAX_RUNS {
            return Err(too_many(runs));
        }
        runs.cut_out(pages);
        Ok(())
    }

    /// Returns the bus address of an ICM address, or `None` if the address is not mapped.
    pub fn translate(&self, addr: IcmAddr) -> Option<Iova> {
        let bus_page = self.0.find(page_of(addr))?;
        Some(Iova::new(bus_page << PAGE_SHIFT | addr.get() & (PAGE_LEN - 1)))
    }

    /// Returns the mapped ranges that start at or after ICM page `page`, in ascending order, each with the number of
    /// its first ICM page.
    pub fn ranges_from(&self, page: u64) -> impl Iterator<Item = (u64, IcmRange)> {
        self.0.0.range(page..).map(|(first, run)| {
            let range = IcmRange {
                start: IcmAddr::new(first << PAGE_SHIFT),
                length: run.pages << PAGE_SHIFT,
                bus: Iova::new(run.bus_page << PAGE_SHIFT),
            };
            (*first, range)
        })
    }

    /// Checks that `len` bytes at `addr` are mapped.
    ///
    /// # Errors
    /// [`IcmError::Unmapped`] if one of the pages is not mapped.
    pub fn check(&self, addr: IcmAddr, len: usize) -> Result<(), IcmError> {
        self.for_each_page(addr, len, |_, _| Ok(()))
    }

    /// Reads bytes from ICM.
    ///
    /// # Errors
    /// Fails if part of the range is not mapped in ICM or not accessible by DMA. In that case, `out` may be partly
    /// overwritten.
    pub fn read(&self, dma: &GuestMemory, addr: IcmAddr, out: &mut [u8]) -> Result<(), IcmError> {
        let len = out.len();
        let mut rest = out;
        self.for_each_page(addr, len, |iova, len| {
            let (now, later) = std::mem::take(&mut rest).split_at_mut(len);
            rest = later;
            Ok(dma.read(iova, now)?)
        })
    }

    /// Writes bytes to ICM.
    ///
    /// # Errors
    /// Fails if part of the range is not mapped in ICM or not accessible by DMA. In that case, the pages before that
    /// part have already been written.
    pub fn write(&self, dma: &GuestMemory, addr: IcmAddr, data: &[u8]) -> Result<(), IcmError> {
        let mut rest = data;
        self.for_each_page(addr, data.len(), |iova, len| {
            let (now, later) = rest.split_at(len);
            rest = later;
            Ok(dma.write(iova, now)?)
        })
    }

    /// Splits a range at page boundaries and calls `visit` for each part.
    fn for_each_page(
        &self,
        addr: IcmAddr,
        len: usize,
        mut visit: impl FnMut(Iova, usize) -> Result<(), IcmError>,
    ) -> Result<(), IcmError> {
        let mut at = addr;
        let mut left = len;
        while left != 0 {
            let iova = self.translate(at).ok_or(IcmError::Unmapped(at))?;
            let room = PAGE_LEN - at.get() % PAGE_LEN;
            let now = usize::try_from(room).unwrap_or(usize::MAX).min(left);
            visit(iova, now)?;
            left -= now;
            at = IcmAddr::new(at.get().wrapping_add(now as u64));
        }
        Ok(())
    }
}

/// Returns the range of pages that an UNMAP_ICM command unmaps, clipped to the end of ICM.
///
/// # Errors
/// BAD_PARAM if the address is not page-aligned or the range is empty.
pub fn pages(start: u64, count: u32) -> Result<RangeInclusive<u64>, CmdError> {
    const LAST_PAGE: u64 = u64::MAX >> PAGE_SHIFT;
    if !start.is_multiple_of(PAGE_LEN) {
        return Err(CmdError::param("unaligned ICM address", start));
    }
    let Some(more) = u64::from(count).checked_sub(1) else {
        return Err(CmdError::param("UNMAP_ICM page count", 0));
    };
    let first = page_of(IcmAddr::new(start));
    Ok(first..=LAST_PAGE.min(first + more))
}

pub fn page_of(addr: IcmAddr) -> u64 {
    addr.get() >> PAGE_SHIFT
}

fn too_many(runs: &PageRuns) -> CmdError {
    CmdError::new(CmdStatus::ExceedLim, "limit of mapped ICM ranges reached at", runs.0.len() as u64)
}

/// Runs of pages that are contiguous in ICM and on the bus, keyed by their first ICM page. Runs do not overlap.
#[derive(Debug, Default)]
struct PageRuns(BTreeMap<u64, Run>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    /// Length in pages, at least 1.
    pages: u64,
    bus_page: u64,
}

impl PageRuns {
    fn find(&self, page: u64) -> Option<u64> {
        let (first, run) = self.0.range(..=page).next_back()?;
        let offset = page - first;
        (offset < run.pages).then(|| run.bus_page + offset)
    }

    /// Inserts a run, whose pages must be unmapped, and merges it with adjacent runs.
    fn insert(&mut self, first: u64, run: Run) {
        let mut run = run;
        if let Some(next) = self.0.get(&(first + run.pages)).copied()
            && run.bus_page + run.pages == next.bus_page
        {
            self.0.remove(&(first + run.pages));
            run.pages += next.pages;
        }
        match self.0.range_mut(..first).next_back() {
            Some((start, before))
                if start + before.pages == first && before.bus_page + before.pages == run.bus_page =>
            {
                before.pages += run.pages;
            }
            _ => {
                self.0.insert(first, run);
            }
        }
    }

    fn cut_out(&mut self, pages: RangeInclusive<u64>) {
        let (first, last) = pages.into_inner();
        self.split_at(first);
        self.split_at(last + 1);
        self.0.extract_if(first..=last, |_, _| true).for_each(drop);
    }

    /// Splits the run that contains `page`, so that `page` starts a run.
    fn split_at(&mut self, page: u64) {
        let Some((start, run)) = self.0.range_mut(..page).next_back() else { return };
        let keep = page - start;
        if keep < run.pages {
            let rest = Run { pages: run.pages - keep, bus_page: run.bus_page + keep };
            run.pages = keep;
            self.0.insert(page, rest);
        }
    }
}

#[cfg(test)]
mod tests {
    use card::memory::testing::guest_memory;

    use super::*;

    fn entry(start: u64, bus: u64, pages: u64) -> IcmRange {
        IcmRange { start: IcmAddr::new(start), bus: Iova::new(bus), length: pages << PAGE_SHIFT }
    }

    fn at(icm: &PageMap, addr: u64) -> Option<u64> {
        icm.translate(IcmAddr::new(addr)).map(Iova::get)
    }

    /// Returns a map with the three entries from the example in section 14.3 of the JingZhao interface.
    fn example_map() -> PageMap {
        let mut icm = PageMap::default();
        let entries = [
            entry(0, 0x1_0000_0000, 64),
            entry(0x4_0000, 0x1_0004_0000, 32),
            entry(0x6_0000, 0x1_0020_0000, 32),
        ];
        icm.map(&entries).unwrap();
        icm
    }

    #[test]
    fn example_map_translates_to_documented_bus_addresses() {
        let icm = example_map();
        assert_eq!(at(&icm, 0x4_1234), Some(0x1_0004_1234));
        assert_eq!(at(&icm, 0x6_0ff8), Some(0x1_0020_0ff8));
        assert_eq!(at(&icm, 0x8_0000), None);
    }

    #[test]
    fn contiguous_pages_merge_into_one_run() {
        assert_eq!(example_map().0.0.len(), 2);
        let mut icm = PageMap::default();
        for page in [0, 2, 1] {
            icm.map(&[entry(page << 12, 0x5000 + (page << 12), 1)]).unwrap();
        }
        assert_eq!(icm.0.0.len(), 1);
        assert_eq!(at(&icm, 0x2fff), Some(0x7fff));
    }

    #[test]
    fn later_mapping_replaces_earlier_one() {
        let mut icm = example_map();
        icm.map(&[entry(0x1000, 0x9000, 2)]).unwrap();
        assert_eq!(at(&icm, 0x0fff), Some(0x1_0000_0fff));
        assert_eq!(at(&icm, 0x1000), Some(0x9000));
        assert_eq!(at(&icm, 0x2fff), Some(0xafff));
        assert_eq!(at(&icm, 0x3000), Some(0x1_0000_3000));
    }

    #[test]
    fn unmapping_accepts_unmapped_pages() {
        let mut icm = example_map();
        icm.unmap(0x30..=0x50).unwrap();
        icm.unmap(0x1000..=0xf_ffff_ffff_ffff).unwrap();
        assert_eq!(at(&icm, 0x2_ffff), Some(0x1_0002_ffff));
        assert_eq!(at(&icm, 0x3_0000), None);
        assert_eq!(at(&icm, 0x5_0fff), None);
        assert_eq!(at(&icm, 0x5_1000), Some(0x1_0005_1000));
        icm.unmap(0..=0xf_ffff_ffff_ffff).unwrap();
        assert!(icm.0.0.is_empty());
    }

    #[test]
    fn last_page_of_address_space_is_mappable() {
        let mut icm = PageMap::default();
        let last = !0xfff;
        icm.map(&[entry(last, last, 1)]).unwrap();
        assert_eq!(at(&icm, u64::MAX), Some(u64::MAX));
        assert_eq!(at(&icm, 0), None);
    }

    #[test]
    fn write_across_pages_stops_at_first_hole() {
        let dma = guest_memory(0, 4);
        let mut icm = PageMap::default();
        icm.map(&[entry(0x1000, 0x3000, 1), entry(0x2000, 0x1000, 1)]).unwrap();
        icm.write(&dma, IcmAddr::new(0x1ffe), b"abcd").unwrap();
        assert_eq!((dma.peek(0x3ffe), dma.peek(0x1000)), (*b"ab", *b"cd"));
        let hole = icm.write(&dma, IcmAddr::new(0x2ffe), b"abcd");
        assert_eq!(hole, Err(IcmError::Unmapped(IcmAddr::new(0x3000))));
        icm.map(&[entry(0x3000, 0x10_0000, 1)]).unwrap();
        let beyond = icm.write(&dma, IcmAddr::new(0x3000), b"abcd");
        assert!(matches!(beyond, Err(IcmError::Dma(_))));
    }

    #[test]
    fn page_runs_translate_like_single_pages() {
        let mut icm = PageMap::default();
        let mut model = BTreeMap::new();
        let mut state = 7u64;
        let mut draw = |limit: u64| {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (state >> 33) % limit
        };
        for _ in 0..3000 {
            let (first, pages) = (draw(200), 1 + draw(20));
            if draw(3) == 0 {
                icm.unmap(first..=first + pages - 1).unwrap();
                model.retain(|page, _| !(first..first + pages).contains(page));
            } else {
                let bus = 1000 + draw(8) * 16;
                icm.map(&[entry(first << 12, bus << 12, pages)]).unwrap();
                model.extend((0..pages).map(|n| (first + n, bus + n)));
            }
            for page in 0..230 {
                assert_eq!(icm.0.find(page), model.get(&page).copied());
            }
        }
    }
}
