//! Memory regions with their keys and page table entries, and doorbell records in ICM.
//!
//! # Spec
//! mthca interface, sections 4 and 5.4.

use card::memory::GuestMemory;
use card::memory::keys::KeyTable;
use card::memory::region::MemoryRegion;
use card::memory::translate::RegionAccess;
use card::sparse::TableFull;
use hcr::icm::PageMap;
use hcr::mtt::{ENTRY_LEN, Mtt};
use protocol::hca::mthca::doorbell::{RECORD_LEN, Record};
use protocol::hca::mthca::init::InitHca;
use protocol::hca::mthca::mpt::{KEY_ROTATION, Mpt};
use protocol::hca::status::{CmdError, CmdStatus};
use protocol::ids::{IcmAddr, Iova, Lkey};

use super::mpt::{PageEntries, region};

#[derive(Debug)]
pub struct Regions {
    pub icm: PageMap,
    pub keys: KeyTable,
    /// MTT entries of regions, copied from ICM by SW2HW_MPT. Entries are numbered from ICM address 0.
    pub mtt: Mtt,
}

impl Regions {
    /// Creates the state after INIT_HCA. No key is valid yet.
    pub(super) fn new(layout: &InitHca, icm: PageMap) -> Self {
        Self {
            icm,
            keys: KeyTable::rotated(layout.mpt.log_entries, KEY_ROTATION),
            mtt: Mtt::new(IcmAddr::new(0)),
        }
    }

    pub fn access<'a>(&'a self, dma: &'a GuestMemory) -> RegionAccess<'a, &'a Mtt> {
        RegionAccess { keys: &self.keys, pages: &self.mtt, dma }
    }

    /// Makes an MPT entry valid and copies the MTT entries of the region's pages.
    ///
    /// # Errors
    /// - BAD_RES_STATE if the entry is already valid.
    /// - BAD_PARAM if the region's MTT entries are not in mapped ICM.
    /// - EXCEED_LIM if the device does not support that many regions or pages.
    pub fn validate(&mut self, dma: &GuestMemory, mpt: &Mpt) -> Result<(), CmdError> {
        let index = self.keys.index(mpt.key);
        if self.keys.get(index).is_some() {
            return Err(CmdError::new(
                CmdStatus::BadResState,
                "already in hardware ownership: MPT entry",
                index.into(),
            ));
        }
        let (region, entries) = region(mpt)?;
        if let Some(entries) = entries {
            self.take_over(dma, &entries)?;
        }
        let full = |TableFull| {
            CmdError::new(CmdStatus::ExceedLim, "limit of MPT entries reached at index", index.into())
        };
        self.keys.insert(region).map_err(full)?;
        Ok(())
    }

    /// Makes an MPT entry invalid.
    ///
    /// # Errors
    /// BAD_INDEX if the index is beyond the end of the table, or BAD_RES_STATE if the entry is not valid.
    pub fn invalidate(&mut self, index: u32) -> Result<MemoryRegion, CmdError> {
        if !self.keys.contains_index(index) {
            return Err(CmdError::new(CmdStatus::BadIndex, "MPT index", index.into()));
        }
        let not_valid =
            CmdError::new(CmdStatus::BadResState, "not in hardware ownership: MPT entry", index.into());
        self.keys.remove(index).ok_or(not_valid)
    }

    /// Reads a doorbell record. Returns `None` if it is not accessible.
    pub fn whole_record(&self, layout: &InitHca, dma: &GuestMemory, page: u32, index: u32) -> Option<Record> {
        let mut record = [0; RECORD_LEN];
        self.icm.read(dma, layout.record(page, index), &mut record).ok()?;
        Some(Record::parse(record))
    }

    /// Reads the counter in the first half of a doorbell record. Returns `None` if it is not accessible.
    pub fn record(&self, layout: &InitHca, dma: &GuestMemory, page: u32, index: u32) -> Option<u32> {
        let mut counter = [0; 4];
        self.icm.read(dma, layout.record(page, index), &mut counter).ok()?;
        Some(u32::from_be_bytes(counter))
    }

    /// Copies MTT entries from ICM.
    fn take_over(&mut self, dma: &GuestMemory, entries: &PageEntries) -> Result<(), CmdError> {
        /// Number of MTT entries per ICM page.
        const AT_ONCE: usize = 512;
        let PageEntries { first, count } = *entries;
        let unmapped = CmdError::param("MTT entry", first);
        let start = self.mtt.addr(first).ok_or(unmapped)?;
        self.icm.check(start, count * ENTRY_LEN)?;
        let full =
            |TableFull| CmdError::new(CmdStatus::ExceedLim, "limit of MTT entries reached at index", first);
        self.mtt.reserve(first, count).map_err(full)?;
        let mut at = first;
        let mut left = count;
        let mut bytes = [0; AT_ONCE * ENTRY_LEN];
        while left != 0 {
            let now = left.min(AT_ONCE);
            let (part, _) = bytes.split_at_mut(now * ENTRY_LEN);
            self.icm.read(dma, self.mtt.addr(at).ok_or(unmapped)?, part)?;
            let (words, _) = part.as_chunks::<ENTRY_LEN>();
            for word in words {
                let word = u64::from_be_bytes(*word);
                self.mtt.set(at, (word & 1 != 0).then_some(Iova::new(word)));
                at += 1;
            }
            left -= now;
        }
        Ok(())
    }

    pub fn is_valid(&self, key: Lkey) -> bool {
        self.keys.find(key).is_ok()
    }
}

/// Guest memory, as the device's queues access it.
#[derive(Clone, Copy, Debug)]
pub struct DeviceMemory<'a> {
    pub layout: &'a InitHca,
    pub regions: &'a Regions,
    pub dma: &'a GuestMemory,
}

impl<'a> DeviceMemory<'a> {
    pub fn access(self) -> RegionAccess<'a, &'a Mtt> {
        self.regions.access(self.dma)
    }

    /// Reads a doorbell record. Returns `None` if it is not accessible.
    pub fn whole_record(self, page: u32, index: u32) -> Option<Record> {
        self.regions.whole_record(self.layout, self.dma, page, index)
    }

    /// Reads the counter in a doorbell record. Returns `None` if it is not accessible.
    pub fn record(self, page: u32, index: u32) -> Option<u32> {
        self.regions.record(self.layout, self.dma, page, index)
    }
}
