//! ctxmdata: the guest pages that hold the context tables.
//!
//! | table | entry size | page of entry n | offset in page | RAM in the CtxMgt document |
//! |---|---|---|---|---|
//! | qpctxmdata | 256 bytes | `(n << 8) >> 12` | `(n << 8) & 0xfff` | `[21:12]`, 1024 pages, 2^14 QPs |
//! | cqctxmdata | 64 bytes | `(n << 6) >> 12` | `(n << 6) & 0xfff` | `[19:12]`, 256 pages, 2^14 CQs |
//! | eqctxmdata | 64 bytes | `(n << 6) >> 12` | `(n << 6) & 0xfff` | one register, 32 EQs |
//!
//! Pages are counted from the table's base, which INIT_HCA sets. All three tables share one page map, which is indexed
//! by ICM address, because a single MAP_ICM may cover parts of several tables. The map has no fixed size (J-09). A
//! table's base is a multiple of 256, so no entry crosses a page boundary.
//!
//! # Spec
//! CtxMgt document, section 5.3.3; JingZhao interface, sections 3.5, 3.6 and 5.2.

use std::ops::RangeInclusive;

use card::memory::dma::PAGE_LEN;
use hcr::icm::{IcmError, IcmRange, PageMap};
use protocol::hca::jingzhao::caps::DevLim;
use protocol::hca::jingzhao::cmd::CmdError;
use protocol::hca::jingzhao::icm::MapEntry;
use protocol::hca::jingzhao::init::{InitHca, Table};
use protocol::ids::{IcmAddr, Iova};

/// Locations of the context tables in ICM and in guest memory.
#[derive(Debug)]
pub struct CtxMdata {
    pub qpc: CtxTable,
    pub cqc: CtxTable,
    pub eqc: CtxTable,
    pages: PageMap,
}

#[derive(Clone, Copy, Debug)]
pub struct CtxTable {
    table: Table,
    /// Log2 of the entry size in bytes.
    shift: u32,
}

const QPC_SHIFT: u32 = 8;
const CQC_SHIFT: u32 = 6;
const EQC_SHIFT: u32 = 6;

const _: () = {
    // The shifts must match the entry sizes that QUERY_DEV_LIM reports, because software lays out the tables with those
    // sizes.
    assert!(DevLim::RECOMMENDED.qpc_len == 1 << QPC_SHIFT);
    assert!(DevLim::RECOMMENDED.cqc_len == 1 << CQC_SHIFT);
    assert!(DevLim::RECOMMENDED.eqc_len == 1 << EQC_SHIFT);
};

impl CtxTable {
    /// Returns the table index of object `number`. Number bits above the index are ignored.
    pub const fn index(&self, number: u32) -> u32 {
        self.table.index(number)
    }

    pub const fn contains(&self, index: u32) -> bool {
        (index as u64) < self.table.entries()
    }

    /// Returns an entry's ICM address. The base comes from the guest, so the sum may wrap. A wrapped address is either
    /// unmapped or maps to other memory of the same guest.
    pub const fn entry(&self, index: u32) -> IcmAddr {
        IcmAddr::new(self.table.base.get().wrapping_add((index as u64) << self.shift))
    }
}

impl CtxMdata {
    /// Creates the tables, with none of their pages mapped.
    pub(super) fn new(layout: &InitHca) -> Self {
        Self {
            qpc: CtxTable { table: layout.qpc, shift: QPC_SHIFT },
            cqc: CtxTable { table: layout.cqc, shift: CQC_SHIFT },
            eqc: CtxTable { table: layout.eqc, shift: EQC_SHIFT },
            pages: PageMap::default(),
        }
    }

    /// Returns an entry's bus address.
    ///
    /// # Errors
    /// [`IcmError::Unmapped`] if the entry's page is not mapped.
    pub fn locate(&self, entry: IcmAddr) -> Result<Iova, IcmError> {
        self.pages.translate(entry).ok_or(IcmError::Unmapped(entry))
    }

    pub fn ranges_from(&self, page: u64) -> impl Iterator<Item = (u64, IcmRange)> {
        self.pages.ranges_from(page)
    }

    pub(super) fn map(&mut self, entries: &[MapEntry]) -> Result<(), CmdError> {
        self.pages.map(&ranges(entries))
    }

    pub(super) fn unmap(&mut self, pages: RangeInclusive<u64>) -> Result<(), CmdError> {
        self.pages.unmap(pages)
    }
}

/// Converts the entries of a MAP_ICM mailbox to ranges of ICM.
pub fn ranges(entries: &[MapEntry]) -> Vec<IcmRange> {
    let range = |entry: &MapEntry| IcmRange {
        start: entry.virt,
        length: u64::from(entry.pages) * PAGE_LEN,
        bus: entry.bus,
    };
    entries.iter().map(range).collect()
}
