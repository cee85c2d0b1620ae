//! Context memory of a JingZhao: two address spaces, one for each kind of table.
//!
//! The device keeps what it works with, and writes it through to ICM for the guest to see; it never reads ICM back.
//!
//! # Spec
//! JingZhao interface, sections 3.5, 3.6 and 5.

use std::ops::RangeInclusive;

use protocol::hca::jingzhao::cmd::CmdError;
use protocol::hca::jingzhao::icm::{IcmTable, MapEntry};
use protocol::ids::IcmAddr;

use crate::frontend::icm::{IcmError, IcmRange, PageMap};
use crate::memory::GuestMemory;
use crate::memory::dma::PAGE_LEN;

/// The two translation tables.
#[derive(Debug, Default)]
pub struct Icm {
    context: PageMap,
    tpt: PageMap,
}

impl Icm {
    /// See [`PageMap::map`].
    ///
    /// # Errors
    /// As there.
    pub fn map(&mut self, table: IcmTable, entries: &[MapEntry]) -> Result<(), CmdError> {
        let range = |entry: &MapEntry| IcmRange {
            start: entry.virt,
            length: u64::from(entry.pages) * PAGE_LEN,
            bus: entry.bus,
        };
        let ranges: Vec<_> = entries.iter().map(range).collect();
        self.table_mut(table).map(&ranges)
    }

    /// See [`PageMap::unmap`].
    ///
    /// # Errors
    /// As there.
    pub fn unmap(&mut self, table: IcmTable, pages: RangeInclusive<u64>) -> Result<(), CmdError> {
        self.table_mut(table).unmap(pages)
    }

    /// See [`PageMap::ranges_from`].
    pub fn ranges_from(&self, table: IcmTable, page: u64) -> impl Iterator<Item = (u64, IcmRange)> {
        self.table(table).ranges_from(page)
    }

    /// See [`PageMap::check`].
    ///
    /// # Errors
    /// As there.
    pub fn check(&self, table: IcmTable, addr: IcmAddr, len: usize) -> Result<(), IcmError> {
        self.table(table).check(addr, len)
    }

    /// See [`PageMap::write`].
    ///
    /// # Errors
    /// As there.
    pub fn write(
        &self,
        dma: &GuestMemory,
        table: IcmTable,
        addr: IcmAddr,
        data: &[u8],
    ) -> Result<(), IcmError> {
        self.table(table).write(dma, addr, data)
    }

    fn table(&self, table: IcmTable) -> &PageMap {
        match table {
            IcmTable::Context => &self.context,
            IcmTable::Tpt => &self.tpt,
        }
    }

    fn table_mut(&mut self, table: IcmTable) -> &mut PageMap {
        match table {
            IcmTable::Context => &mut self.context,
            IcmTable::Tpt => &mut self.tpt,
        }
    }
}

#[cfg(test)]
mod tests {
    use protocol::ids::Iova;

    use super::*;

    #[test]
    fn the_tables_are_separate() {
        let mut icm = Icm::default();
        let entry = MapEntry { virt: IcmAddr::new(0x4_0000), bus: Iova::new(0x1_0004_0000), pages: 32 };
        icm.map(IcmTable::Context, &[entry]).unwrap();
        let at = IcmAddr::new(0x4_1234);
        assert_eq!(icm.check(IcmTable::Context, at, 8), Ok(()));
        assert_eq!(icm.check(IcmTable::Tpt, at, 8), Err(IcmError::Unmapped(at)));
    }
}
