//! Objects of an initialised device: keys, translations, queues and QPs. INIT_HCA creates them and CLOSE_HCA removes
//! them.
//!
//! Contexts are kept here rather than in ICM. The device reads only page table entries and doorbell records from the
//! memory that software maps (section 4.1).
//!
//! The table shows the maximum memory that a hostile guest can make these objects use. The engine's memory is not
//! included; see the engine's `limits` module.
//!
//! | object | size | maximum number | total |
//! |---|---|---|---|
//! | QP | 1 KiB | 2^17, in 2^16 table leaves | 200 MiB |
//! | CQ | 100 B | 2^17, in 2^16 table leaves | 60 MiB |
//! | SRQ | 100 B | 2^16, in 2^14 table leaves | 15 MiB |
//! | queue listed under its UAR page | 200 B | 2^18 | 50 MiB |
//! | EQ | 80 B | 2^6 | 5 KiB |
//! | key | 80 B | 2^20, in 2^14 table leaves | 83 MiB |
//! | page table chunk | 4 KiB | 2^15 | 128 MiB |
//! | run of ICM pages | 24 B | 2^18 | 12 MiB |
//!
//! # Spec
//! mthca interface, sections 3.3, 4 and 5.4.

use std::ops::RangeInclusive;

use card::sparse::{Capacity, SparseTable};
use hcr::icm::{IcmRange, PageMap};
use protocol::hca::mthca::init::InitHca;
use protocol::hca::status::CmdError;
use protocol::ids::{Cqn, Qpn, Srqn};

use super::completion_queue::CompletionQueue;
use super::event_queue::EventQueues;
use super::groups::Groups;
use super::qp::QueuePair;
use super::regions::Regions;
use super::srq::SharedReceiveQueue;
use super::uar::UarQueues;

/// Maximum number of QPs that are not in RESET. This is twice the number in the driver's profile.
const QPS: Capacity = Capacity { entries: 1 << 17, leaves: 1 << 16 };
const CQS: Capacity = Capacity { entries: 1 << 17, leaves: 1 << 16 };
const SRQS: Capacity = Capacity { entries: 1 << 16, leaves: 1 << 14 };

/// State of the device. ICM is mapped before INIT_HCA and unmapped after CLOSE_HCA.
#[derive(Debug)]
pub enum DeviceState {
    /// The state before INIT_HCA or after CLOSE_HCA. The device has no objects, but ICM pages may be mapped.
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

    /// Discards everything except the ICM mappings (CLOSE_HCA).
    pub fn close(&mut self) {
        *self = Self::Closed(std::mem::take(self.icm()));
    }

    /// Returns the resources, or `None` if the device is not initialised.
    pub fn resources(&self) -> Option<&Resources> {
        match self {
            Self::Closed(_) => None,
            Self::Open(resources) => Some(resources),
        }
    }

    /// Returns the resources, or `None` if the device is not initialised.
    pub fn resources_mut(&mut self) -> Option<&mut Resources> {
        match self {
            Self::Closed(_) => None,
            Self::Open(resources) => Some(resources),
        }
    }

    /// Returns log2 of the UAR page size in units of 4 KiB, as set by INIT_HCA.
    pub fn log_uar_page(&self) -> u8 {
        self.resources().map_or(0, |resources| resources.layout.log_uar_page)
    }

    /// Maps ICM pages (MAP_ICM).
    ///
    /// # Errors
    /// EXCEED_LIM if the page map would then have too many runs.
    pub fn map_icm(&mut self, ranges: &[IcmRange]) -> Result<(), CmdError> {
        self.icm().map(ranges)
    }

    /// Unmaps ICM pages (UNMAP_ICM) and discards the MTT entries read from them.
    ///
    /// # Errors
    /// EXCEED_LIM if the page map would then have too many runs.
    pub fn unmap_icm(&mut self, pages: RangeInclusive<u64>) -> Result<(), CmdError> {
        self.icm().unmap(pages.clone())?;
        if let Some(resources) = self.resources_mut() {
            resources.regions.mtt.invalidate(pages);
        }
        Ok(())
    }

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

#[derive(Debug)]
pub struct Resources {
    pub layout: InitHca,
    pub regions: Regions,
    pub eqs: EventQueues,
    /// Valid CQs, by index.
    pub cqs: SparseTable<Box<CompletionQueue>>,
    /// QPs that are not in RESET, by index.
    pub qps: SparseTable<Box<QueuePair>>,
    /// Valid SRQs, by index.
    pub srqs: SparseTable<Box<SharedReceiveQueue>>,
    pub uar: UarQueues,
    /// SRQs that have fallen below their limit in this turn of the event loop, reported at its end.
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

    /// Returns the table index of a QP. A QPN also contains a generation.
    pub fn qp_index(&self, qpn: Qpn) -> u32 {
        self.layout.qpc.index(qpn.get())
    }

    /// Returns the table index of a CQ. A CQN also contains a generation.
    pub fn cq_index(&self, cqn: Cqn) -> u32 {
        self.layout.cqc.index(cqn.get())
    }

    pub fn srq_index(&self, srqn: Srqn) -> u32 {
        self.layout.srqc.index(srqn.get())
    }
}
