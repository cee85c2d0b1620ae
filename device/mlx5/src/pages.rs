//! Pages that the driver has given to the device. The device neither requests nor uses pages, but keeps those it is
//! given and returns them on request.
//!
//! # Spec
//! mlx5 interface, sections 4 and 5.1.

use protocol::hca::mlx5::input::Pages;
use protocol::ids::Iova;

use super::check::{Check, Rejection};
use super::limits::MAX_GIVEN_PAGES;

#[derive(Debug, Default)]
pub struct GivenPages(Vec<Iova>);

impl GivenPages {
    /// Accepts pages from the driver.
    ///
    /// # Errors
    /// Fails if the list is too short, or the device would hold too many pages.
    pub fn give(&mut self, count: u32, pages: Pages<'_>) -> Result<(), Rejection> {
        let wanted = usize::try_from(count).unwrap_or(usize::MAX);
        if wanted > pages.len() {
            return Err(Check::PageList.rejects(count));
        }
        if wanted > MAX_GIVEN_PAGES - self.0.len() {
            return Err(Check::PageLimit.rejects(count));
        }
        self.0.extend(pages.iter().take(wanted));
        Ok(())
    }

    /// Returns the pages that the device holds.
    pub fn held(&self) -> &[Iova] {
        &self.0
    }

    /// Removes and returns up to `max` pages, for the driver to take back. Section 20, M-14: a page is returned only
    /// once.
    pub fn take(&mut self, max: usize) -> Vec<Iova> {
        self.0.split_off(self.0.len().saturating_sub(max))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_returns_all_given_pages() {
        let list: Vec<u8> = (1..=20_u64).flat_map(|page| (page << 12).to_be_bytes()).collect();
        let mut pages = GivenPages::default();
        assert!(pages.take(768).is_empty());
        pages.give(16, Pages::parse(&list)).unwrap();
        assert_eq!(pages.give(21, Pages::parse(&list)), Err(Check::PageList.rejects(21_u32)));
        assert_eq!(pages.take(10).len(), 10);
        let rest = pages.take(768);
        assert_eq!((rest.len(), rest[0], pages.take(1).len()), (6, Iova::new(0x1000), 0));
    }

    #[test]
    fn number_of_given_pages_is_limited() {
        let list = vec![0; 8 * (MAX_GIVEN_PAGES + 1)];
        let mut pages = GivenPages::default();
        let most = u32::try_from(MAX_GIVEN_PAGES).unwrap();
        assert_eq!(pages.give(most + 1, Pages::parse(&list)), Err(Check::PageLimit.rejects(most + 1)));
        pages.give(most, Pages::parse(&list)).unwrap();
        assert_eq!(pages.give(1, Pages::parse(&list)), Err(Check::PageLimit.rejects(1_u32)));
    }
}
