//! Objects of an initialised device: keys, translations, queues and QPs. INIT_HCA creates them and CLOSE_HCA removes
//! them.
//!
//! Contexts are kept here instead of in ICM. Of the memory that software maps, the device reads only page table entries
//! and doorbell records (section 4.1).
//!
//! Maximum memory that a hostile guest can make the device use here (the engine lists its own part with its limits):
//!
//! | object | size | maximum number | total |
//! |---|---|---|---|
//! | QP | 1 KiB | 2^17, in 2^16 groups | 200 MiB |
//! | CQ | 100 B | 2^17, in 2^16 groups | 60 MiB |
//! | SRQ | 100 B | 2^16, in 2^14 groups | 15 MiB |
//! | entry of a queue in its UAR page | 200 B | 2^18 | 50 MiB |
//! | EQ | 80 B | 2^5 | 3 KiB |
//! | key | 80 B | 2^20, or 2^14 groups of 64 | 83 MiB |
//! | page table chunk | 4 KiB | 2^15 | 128 MiB |
//! | run of ICM pages | 24 B | 2^18 | 12 MiB |
//!
//! # Spec
//! mthca interface, sections 3.3, 4 and 5.4.

use std::ops::RangeInclusive;

use protocol::hca::mthca::doorbell::{RECORD_LEN, Record};
use protocol::hca::mthca::init::InitHca;
use protocol::hca::mthca::mpt::{KEY_ROTATION, Mpt};
use protocol::hca::status::{CmdError, CmdStatus};
use protocol::ids::{Cqn, IcmAddr, Iova, Lkey, Qpn, Srqn};

use super::completion_queue::CompletionQueue;
use super::event_queue::EventQueues;
use super::groups::Groups;
use super::mpt::{PageEntries, region};
use super::qp::QueuePair;
use super::srq::SharedReceiveQueue;
use super::uar::UarQueues;
use crate::frontend::hcr::icm::{IcmRange, PageMap};
use crate::frontend::hcr::mtt::{ENTRY_LEN, Mtt};
use crate::memory::GuestMemory;
use crate::memory::keys::KeyTable;
use crate::memory::region::MemoryRegion;
use crate::memory::translate::RegionAccess;
use crate::sparse::{Capacity, SparseTable, TableFull};

/// Bound: QPs outside RESET. Twice the number in the driver's profile.
const QPS: Capacity = Capacity { entries: 1 << 17, leaves: 1 << 16 };
/// Limit of valid CQs.
const CQS: Capacity = Capacity { entries: 1 << 17, leaves: 1 << 16 };
/// Limit of valid SRQs.
const SRQS: Capacity = Capacity { entries: 1 << 16, leaves: 1 << 14 };

/// State of the device. ICM is mapped before INIT_HCA, and unmapped after CLOSE_HCA.
#[derive(Debug)]
pub enum DeviceState {
    /// Before INIT_HCA or after CLOSE_HCA, with the ICM pages.
    Closed(PageMap),
    Open(Box<Resources>),
}

impl Default for DeviceState {
    fn default() -> Self {
        Self::Closed(PageMap::default())
    }
}

impl DeviceState {
    /// Creates the resources (INIT_HCA).
    pub fn open(&mut self, layout: &InitHca) {
        let icm = std::mem::take(self.icm());
        *self = Self::Open(Box::new(Resources::new(layout, icm)));
    }

    /// Discards everything except ICM mappings (CLOSE_HCA).
    pub fn close(&mut self) {
        *self = Self::Closed(std::mem::take(self.icm()));
    }

    /// The resources; `None` unless initialised.
    pub fn resources(&self) -> Option<&Resources> {
        match self {
            Self::Closed(_) => None,
            Self::Open(resources) => Some(resources),
        }
    }

    /// The resources; `None` unless initialised.
    pub fn resources_mut(&mut self) -> Option<&mut Resources> {
        match self {
            Self::Closed(_) => None,
            Self::Open(resources) => Some(resources),
        }
    }

    /// Maps ICM pages (MAP_ICM).
    ///
    /// # Errors
    /// EXCEED_LIM, see [`PageMap::map`].
    pub fn map_icm(&mut self, ranges: &[IcmRange]) -> Result<(), CmdError> {
        self.icm().map(ranges)
    }

    /// Unmaps ICM pages (UNMAP_ICM), and discards the MTT entries read from them.
    ///
    /// # Errors
    /// EXCEED_LIM, see [`PageMap::unmap`].
    pub fn unmap_icm(&mut self, pages: RangeInclusive<u64>) -> Result<(), CmdError> {
        self.icm().unmap(pages.clone())?;
        if let Some(resources) = self.resources_mut() {
            resources.regions.mtt.invalidate(pages);
        }
        Ok(())
    }

    /// The ICM page map.
    pub fn page_map(&self) -> &PageMap {
        match self {
            Self::Closed(icm) => icm,
            Self::Open(resources) => &resources.regions.icm,
        }
    }

    fn icm(&mut self) -> &mut PageMap {
        match self {
            Self::Closed(icm) => icm,
            Self::Open(resources) => &mut resources.regions.icm,
        }
    }
}

/// Objects of an initialised device.
#[derive(Debug)]
pub struct Resources {
    /// Table layout of INIT_HCA.
    pub layout: InitHca,
    pub regions: Regions,
    pub eqs: EventQueues,
    /// Valid CQs, by index.
    pub cqs: SparseTable<Box<CompletionQueue>>,
    /// QPs outside RESET, by index.
    pub qps: SparseTable<Box<QueuePair>>,
    /// Valid SRQs, by index.
    pub srqs: SparseTable<Box<SharedReceiveQueue>>,
    /// Queues by UAR page.
    pub uar: UarQueues,
    /// SRQs that passed their limit in this turn. They are reported at its end.
    pub low_srqs: Vec<Srqn>,
    pub groups: Groups,
}

impl Resources {
    fn new(layout: &InitHca, icm: PageMap) -> Self {
        Self {
            layout: *layout,
            regions: Regions::new(layout, icm),
            eqs: EventQueues::default(),
            cqs: SparseTable::new(CQS),
            qps: SparseTable::new(QPS),
            srqs: SparseTable::new(SRQS),
            uar: UarQueues::default(),
            low_srqs: Vec::new(),
            groups: Groups::default(),
        }
    }

    /// Table index of a QP, whose number also contains a generation.
    pub fn qp_index(&self, qpn: Qpn) -> u32 {
        self.layout.qpc.index(qpn.get())
    }

    /// Table index of a CQ, whose number also contains a generation.
    pub fn cq_index(&self, cqn: Cqn) -> u32 {
        self.layout.cqc.index(cqn.get())
    }

    /// Table index of an SRQ.
    pub fn srq_index(&self, srqn: Srqn) -> u32 {
        self.layout.srqc.index(srqn.get())
    }
}

/// Memory regions and their pages.
#[derive(Debug)]
pub struct Regions {
    pub icm: PageMap,
    pub keys: KeyTable,
    /// MTT entries of regions, as copied by SW2HW_MPT. Numbered from ICM address 0.
    pub mtt: Mtt,
}

impl Regions {
    fn new(layout: &InitHca, icm: PageMap) -> Self {
        Self {
            icm,
            keys: KeyTable::rotated(layout.mpt.log_entries, KEY_ROTATION),
            mtt: Mtt::new(IcmAddr::new(0)),
        }
    }

    /// Access to the memory of regions.
    pub fn access<'a>(&'a self, dma: &'a GuestMemory) -> RegionAccess<'a, &'a Mtt> {
        RegionAccess { keys: &self.keys, pages: &self.mtt, dma }
    }

    /// Makes an MPT entry valid, and copies the MTT entries of its pages.
    ///
    /// # Errors
    /// BAD_RES_STATE if it is already valid, BAD_PARAM if its MTT entries are not in mapped ICM, EXCEED_LIM for more
    /// regions or pages than the device supports.
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
    /// BAD_INDEX, or BAD_RES_STATE if it is not valid.
    pub fn invalidate(&mut self, index: u32) -> Result<MemoryRegion, CmdError> {
        if !self.keys.contains_index(index) {
            return Err(CmdError::new(CmdStatus::BadIndex, "MPT index", index.into()));
        }
        let not_valid =
            CmdError::new(CmdStatus::BadResState, "not in hardware ownership: MPT entry", index.into());
        self.keys.remove(index).ok_or(not_valid)
    }

    /// Reads a doorbell record. `None` if its memory is not accessible.
    pub fn whole_record(&self, layout: &InitHca, dma: &GuestMemory, page: u32, index: u32) -> Option<Record> {
        let mut record = [0; RECORD_LEN];
        self.icm.read(dma, layout.record(page, index), &mut record).ok()?;
        Some(Record::parse(record))
    }

    /// Reads the counter, which is the first half of a doorbell record. `None` if its memory is not accessible.
    pub fn record(&self, layout: &InitHca, dma: &GuestMemory, page: u32, index: u32) -> Option<u32> {
        let mut counter = [0; 4];
        self.icm.read(dma, layout.record(page, index), &mut counter).ok()?;
        Some(u32::from_be_bytes(counter))
    }

    /// Copies MTT entries from ICM.
    fn take_over(&mut self, dma: &GuestMemory, entries: &PageEntries) -> Result<(), CmdError> {
        /// Entries per ICM page.
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

    /// Whether the key belongs to a valid region.
    pub fn is_valid(&self, key: Lkey) -> bool {
        self.keys.find(key).is_ok()
    }
}
