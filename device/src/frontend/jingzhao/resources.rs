//! Everything that INIT_HCA begins and CLOSE_HCA ends: the layout of ICM, its mapping, keys, queues and QPs.
//!
//! What a hostile guest can make a device hold here (the engine's part is listed with its limits):
//!
//! | what | each | most of them | together |
//! |---|---|---|---|
//! | QP | 1 KiB | 2^17, in 2^16 groups | 200 MiB |
//! | pending doorbell | 12 B | 2^17 x 16 kept + 2^20 pooled | 36 MiB |
//! | CQ | 100 B | 2^17, in 2^16 groups | 60 MiB |
//! | EQ | 80 B | 2^8 | 20 KiB |
//! | key | 72 B | 2^20, or 2^14 groups of 64 | 75 MiB |
//! | page table chunk | 4 KiB | 2^15 | 128 MiB |
//! | run of ICM pages | 24 B | 2^18 in each of two tables | 24 MiB |
//!
//! # Spec
//! JingZhao interface, sections 3.3, 4 and 5.

use protocol::hca::jingzhao::caps::DevLim;
use protocol::hca::jingzhao::init::{InitHca, Table};
use protocol::ids::{Cqn, Eqn, IcmAddr, Qpn};

use super::completion_queue::CompletionQueue;
use super::event_queue::EventQueues;
use super::icm::Icm;
use super::mtt::Mtt;
use super::qp::QueuePair;
use super::send_queue::DoorbellPool;
use crate::frontend::Context;
use crate::memory::GuestMemory;
use crate::memory::keys::KeyTable;
use crate::memory::translate::RegionAccess;
use crate::sparse::{Capacity, SparseTable};

/// Bound: QPs that left RESET, at once. Twice what the public driver's profile has.
const QPS: Capacity = Capacity { entries: 1 << 17, leaves: 1 << 16 };
/// Bound: CQs, at once.
const CQS: Capacity = Capacity { entries: 1 << 17, leaves: 1 << 16 };

/// The device from INIT_HCA to CLOSE_HCA.
#[derive(Debug)]
pub struct Resources {
    /// Where ICM has which table.
    pub layout: InitHca,
    /// Mapping of ICM.
    pub icm: Icm,
    /// Keys and pages.
    pub regions: Regions,
    /// QPs not in RESET, by index.
    pub qps: SparseTable<Box<QueuePair>>,
    /// Valid CQs, by index.
    pub cqs: SparseTable<Box<CompletionQueue>>,
    /// Event queues.
    pub eqs: EventQueues,
    /// Of the send queues of all QPs.
    pub doorbells: DoorbellPool,
}

/// Memory regions and the pages behind them.
#[derive(Debug)]
pub struct Regions {
    /// Valid MPT entries.
    pub keys: KeyTable,
    /// MTT entries.
    pub mtt: Mtt,
}

impl Resources {
    /// A device with nothing mapped and nothing valid.
    pub fn new(layout: InitHca) -> Self {
        Self {
            layout,
            icm: Icm::default(),
            regions: Regions { keys: KeyTable::new(layout.mpt.log_entries), mtt: Mtt::new(layout.mtt_base) },
            qps: SparseTable::new(QPS),
            cqs: SparseTable::new(CQS),
            eqs: EventQueues::default(),
            doorbells: DoorbellPool::default(),
        }
    }

    /// Index of a QP and ICM address of its context.
    pub fn qp_slot(&self, qpn: Qpn) -> (u32, IcmAddr) {
        let index = self.layout.qpc.index(qpn.get());
        (index, entry(&self.layout.qpc, index, DevLim::RECOMMENDED.qpc_len))
    }

    /// Index of a CQ and ICM address of its context.
    pub fn cq_slot(&self, cqn: Cqn) -> (u32, IcmAddr) {
        let index = self.layout.cqc.index(cqn.get());
        (index, entry(&self.layout.cqc, index, DevLim::RECOMMENDED.cqc_len))
    }

    /// ICM address of an EQ's context.
    pub fn eq_entry(&self, eqn: Eqn) -> IcmAddr {
        entry(&self.layout.eqc, eqn.get(), DevLim::RECOMMENDED.eqc_len)
    }

    /// ICM address of an MPT entry.
    pub fn mpt_entry(&self, index: u32) -> IcmAddr {
        entry(&self.layout.mpt, index, DevLim::RECOMMENDED.mpt_len)
    }

    /// Takes the live values of a QP into its context.
    pub fn observe(&mut self, cx: &Context<'_>, qpn: Qpn) {
        if let Some(qp) = self.qp_mut(qpn)
            && let Some(live) = cx.engine.query_qp(qp.qpn)
        {
            qp.observe(&live);
        }
    }

    /// Writes state and PSNs of QPs that changed to their contexts in ICM.
    pub fn write_back_dirty(&mut self, cx: &mut Context<'_>) {
        while let Some(qpn) = cx.engine.poll_dirty() {
            self.observe(cx, qpn);
            let (index, entry) = self.qp_slot(qpn);
            if let Some(qp) = self.qps.get(index) {
                qp.write_back(&self.icm, cx.dma, entry);
            }
        }
    }

    /// A QP that left RESET.
    pub fn qp(&self, qpn: Qpn) -> Option<&QueuePair> {
        self.qps.get(self.layout.qpc.index(qpn.get())).map(|qp| &**qp)
    }

    /// A QP that left RESET.
    pub fn qp_mut(&mut self, qpn: Qpn) -> Option<&mut QueuePair> {
        self.qps.get_mut(self.layout.qpc.index(qpn.get())).map(|qp| &mut **qp)
    }
}

impl Regions {
    /// Bytes of regions in `dma`.
    pub fn access<'a>(&'a self, dma: &'a GuestMemory) -> RegionAccess<'a, &'a Mtt> {
        RegionAccess { keys: &self.keys, pages: &self.mtt, dma }
    }
}

/// Entries are as far apart as QUERY_DEV_LIM says. Bases come from the guest, so that a sum may wrap; what is there is
/// then not mapped or the guest's own.
fn entry(table: &Table, index: u32, len: u16) -> IcmAddr {
    IcmAddr::new(table.base.get().wrapping_add(u64::from(index) * u64::from(len)))
}
