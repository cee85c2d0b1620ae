//! QUERY_PAGES and MANAGE_PAGES: guest pages for the device. This device never requests any.
//!
//! # Spec
//! mlx5 interface, sections 5.1 and 8.2.

use super::code::codes;
use crate::layout;

codes! {
    /// Purpose of requested pages, given by the op_mod of QUERY_PAGES.
    pub enum PageUse(u16) {
        /// Boot pages, requested before INIT_HCA.
        Boot = 1 "boot",
        /// Pages for the capabilities set by the driver, requested before INIT_HCA.
        Init = 2 "init",
        /// Pages requested while the device runs.
        Regular = 3 "regular",
    }
}

codes! {
    /// Operation of MANAGE_PAGES, given by its op_mod.
    pub enum PageOperation(u16) {
        /// The driver could not allocate the pages.
        CannotGive = 0 "cannot_give",
        /// The driver gives pages to the device.
        Give = 1 "give",
        /// The driver reclaims pages from the device.
        Take = 2 "take",
    }
}

layout! {
    /// Input of the QUERY_PAGES command.
    pub struct QueryPages[16] big_endian {
        /// A value of [`PageUse`].
        @0x06  purpose: u16 => PageUse::word,
    }
}

layout! {
    /// Output of the QUERY_PAGES command.
    pub struct RequestedPages[16] big_endian {
        /// Function that requests the pages, always 0.
        @0x0a  function: u16,
        /// Number of pages, in two's complement; see [`RequestedPages::pages`].
        @0x0c  raw_pages: u32 => signed,
    }
}

/// Converts a page count from two's complement, for traces.
fn signed(raw: u32) -> SignedCount {
    SignedCount(raw.cast_signed())
}

struct SignedCount(i32);

impl crate::describe::Field for SignedCount {
    fn show(&self, name: &str, to: &mut dyn crate::describe::Visitor) {
        to.value(name, crate::describe::Value::Text(format_args!("{}", self.0)));
    }
}

impl RequestedPages {
    /// Creates an output in which function 0 requests `pages` pages, or offers to return pages if the number is
    /// negative.
    pub const fn new(pages: i32) -> Self {
        Self { function: 0, raw_pages: pages.cast_unsigned() }
    }

    /// Returns the number of pages that the device requests.
    pub const fn pages(&self) -> i32 {
        self.raw_pages.cast_signed()
    }
}

layout! {
    /// Fixed part of the MANAGE_PAGES input. The addresses of the pages given by the driver follow.
    pub struct ManagePages[16] big_endian {
        /// A value of [`PageOperation`].
        @0x06  operation: u16 => PageOperation::word,
        /// Function that receives or returns the pages, always 0.
        @0x0a  function: u16,
        /// Number of pages that the driver gives, or the maximum number of pages to return.
        @0x0c  count: u32,
    }
}

layout! {
    /// Fixed part of the MANAGE_PAGES output. The addresses of the pages returned by the device follow.
    pub struct ManagedPages[16] big_endian {
        /// Number of pages returned. The device must return all the pages that it holds, up to the requested number.
        @0x08  count: u32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_pages_count_may_be_negative() {
        let requested = RequestedPages::new(-16);
        assert_eq!(requested.emit()[0x0c..], [0xff, 0xff, 0xff, 0xf0]);
        assert_eq!(RequestedPages::parse(&requested.emit()).pages(), -16);
    }

    #[test]
    fn manage_pages_fields_are_at_specified_offsets() {
        let give = ManagePages { operation: PageOperation::Give.code(), function: 3, count: 700 };
        assert_eq!(give.emit(), [0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 3, 0, 0, 2, 0xbc]);
        assert_eq!(ManagedPages { count: 2 }.emit()[8..12], [0, 0, 0, 2]);
    }
}
