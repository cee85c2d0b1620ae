//! Allocation of UAR pages. Pages whose doorbells are mapped into the guest have their own range of page numbers.
//!
//! The VMM maps a fixed range of BAR0 when it creates the device, long before software allocates a page. A page's
//! number therefore determines whether stores to it trap. EQs have no doorbell record and need pages that trap.
//! Software allocates the page for EQ doorbells before it creates any EQ. Until an EQ exists, the device therefore
//! prefers pages that trap.
//!
//! A driver for a processor with larger pages sets the UAR page size to the processor's page size. The BAR then holds
//! fewer UAR pages. With mapped doorbells, the page size stays at 4 KiB, because the VMM has already mapped the range.
//!
//! # Spec
//! mlx5 interface, sections 5.2 and 7.4.

use protocol::hca::mlx5::PAGE;
use protocol::ids::UarIndex;

use super::limits::TRAPPED_UARS;
use super::numbered::Numbered;
use super::options::{Doorbells, Options};

/// The allocated UAR pages.
#[derive(Debug)]
pub struct UarPages {
    /// Log2 of the page size in units of 4 KiB.
    log_page: u16,
    trapped: Numbered<()>,
    /// Pages in the range that the VMM can map, or `None` if all doorbells trap.
    mapped: Option<Numbered<()>>,
}

/// Returns the numbers of the first and the last page in the range that the VMM can map.
const fn mapped_pages(options: &Options) -> [u32; 2] {
    let [first, last] = options.limits.uar_pages();
    [first + TRAPPED_UARS, last]
}

/// Returns the offsets in BAR0 of the range that the VMM can map.
pub fn mapped_offsets(options: &Options) -> std::ops::Range<u64> {
    let [first, last] = mapped_pages(options);
    let offset = |page: u32| u64::from(page) * PAGE as u64;
    offset(first)..offset(last + 1)
}

impl UarPages {
    /// Creates the pages of a device whose driver has set the page size to 2^`log_uar_page` times 4 KiB.
    pub fn new(options: &Options, log_uar_page: u16) -> Self {
        let [first, last] = options.limits.uar_pages();
        let log_page = log_uar_page.min(options.max_log_uar_page());
        let last = ((last + 1) >> log_page) - 1;
        match options.doorbells {
            Doorbells::Trapped => Self { log_page, trapped: Numbered::new(first, last), mapped: None },
            Doorbells::Mapped => {
                let [first_mapped, last_mapped] = mapped_pages(options);
                Self {
                    log_page,
                    trapped: Numbered::new(first, first_mapped - 1),
                    mapped: Some(Numbered::new(first_mapped, last_mapped)),
                }
            }
        }
    }

    /// Returns log2 of the page size in units of 4 KiB.
    pub const fn log_page(&self) -> u16 {
        self.log_page
    }

    /// Allocates a page, or returns `None` if no page is free. If an EQ exists, a page that can be mapped is preferred;
    /// otherwise, a page that traps.
    pub fn alloc(&mut self, has_eqs: bool) -> Option<UarIndex> {
        let Self { trapped, mapped, .. } = self;
        let page = match mapped {
            None => trapped.insert(()),
            Some(mapped) if has_eqs => mapped.insert(()).or_else(|| trapped.insert(())),
            Some(mapped) => trapped.insert(()).or_else(|| mapped.insert(())),
        };
        page.map(UarIndex::new)
    }

    /// Frees a page. Returns false if the page is not allocated.
    pub fn dealloc(&mut self, page: UarIndex) -> bool {
        let mapped = self.mapped.as_mut().and_then(|mapped| mapped.remove(page.get()));
        mapped.or_else(|| self.trapped.remove(page.get())).is_some()
    }

    pub fn contains(&self, page: u32) -> bool {
        self.trapped.contains(page) || self.mapped.as_ref().is_some_and(|mapped| mapped.contains(page))
    }

    /// Returns whether a page is allocated from the range that the VMM can map.
    pub fn is_mapped(&self, page: UarIndex) -> bool {
        self.mapped.as_ref().is_some_and(|mapped| mapped.contains(page.get()))
    }

    pub fn count(&self) -> usize {
        self.trapped.count() + self.mapped.as_ref().map_or(0, Numbered::count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the options of a device with the smallest BAR, which has pages 16 to 255.
    fn small(doorbells: Doorbells) -> Options {
        let limits = serde_json::from_str(r#"{"bar_mib": 1}"#).unwrap();
        Options { doorbells, limits, ..Options::default() }
    }

    #[test]
    fn larger_uar_page_size_reduces_page_count() {
        let count = |doorbells, log_page| {
            let mut pages = UarPages::new(&small(doorbells), log_page);
            std::iter::from_fn(|| pages.alloc(true)).count()
        };
        // With mapped doorbells, the size is always 4 KiB.
        assert_eq!([0, 1, 2].map(|log_page| count(Doorbells::Trapped, log_page)), [240, 112, 48]);
        assert_eq!([0, 1, 2].map(|log_page| count(Doorbells::Mapped, log_page)), [240; 3]);
    }

    #[test]
    fn pages_that_trap_are_preferred_until_first_eq() {
        let mut pages = UarPages::new(&small(Doorbells::Mapped), 0);
        let mut alloc = |has_eqs| pages.alloc(has_eqs).unwrap();
        let [first, second, third, last] = [alloc(false), alloc(true), alloc(true), alloc(false)];
        assert_eq!([first, second, third, last].map(UarIndex::get), [16, 32, 33, 17]);
        assert_eq!(
            [first, second, third, last].map(|page| pages.is_mapped(page)),
            [false, true, true, false]
        );
        assert_eq!(mapped_offsets(&small(Doorbells::Mapped)), 32 << 12..1 << 20);
        assert!(pages.dealloc(second) && !pages.dealloc(second) && !pages.is_mapped(second));
        assert!(!pages.contains(32) && pages.contains(33) && pages.count() == 3);
    }

    #[test]
    fn alloc_uses_other_range_if_preferred_range_is_full() {
        for has_eqs in [false, true] {
            let mut pages = UarPages::new(&small(Doorbells::Mapped), 0);
            let all: Vec<u32> = std::iter::from_fn(|| pages.alloc(has_eqs)).map(UarIndex::get).collect();
            let mut sorted = all.clone();
            sorted.sort_unstable();
            assert_eq!((sorted, all[0]), ((16..256).collect(), if has_eqs { 32 } else { 16 }));
        }
    }

    #[test]
    fn device_with_trapped_doorbells_has_no_mapped_pages() {
        let mut pages = UarPages::new(&small(Doorbells::Trapped), 0);
        let all: Vec<UarIndex> = std::iter::from_fn(|| pages.alloc(true)).collect();
        assert_eq!((all.len(), all[0].get()), (240, 16));
        assert!(!all.into_iter().any(|page| pages.is_mapped(page)));
    }

    #[test]
    fn uar_page_size_is_limited_by_bar_and_mapped_doorbells() {
        assert_eq!(small(Doorbells::Trapped).max_log_uar_page(), 3);
        assert_eq!(Options::default().max_log_uar_page(), 4);
        assert_eq!(small(Doorbells::Mapped).max_log_uar_page(), 0);
    }
}
