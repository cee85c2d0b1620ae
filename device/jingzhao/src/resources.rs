//! Objects of an initialised device: ICM layout and mappings, memory keys, queues and QPs. INIT_HCA creates them and
//! CLOSE_HCA removes them.
//!
//! The table lists the maximum memory that a hostile guest can make this module's objects use. The engine's memory is
//! not included; see the engine's `limits` module.
//!
//! | object | size | maximum number | total |
//! |---|---|---|---|
//! | QP | 1 KiB | 2^17 entries, 2^16 leaves | 200 MiB |
//! | pending doorbell | 12 B | 2^17 x 16 reserved + 2^20 pooled | 36 MiB |
//! | CQ | 100 B | 2^17 entries, 2^16 leaves | 60 MiB |
//! | QP whose receives are polled | 16 B | 2^17 | 2 MiB |
//! | EQ | 80 B | 2^8 | 20 KiB |
//! | key | 80 B | 2^20 entries, 2^14 leaves | 83 MiB |
//! | page table chunk | 4 KiB | 2^15 | 128 MiB |
//! | run of ICM pages | 24 B | 2^18 in each of two tables | 24 MiB |
//!
//! The tables of QPs, CQs and keys are sparse: entries are allocated in leaves ([`SparseTable`]). Both the number of
//! entries and the number of leaves are limited, and the total includes the leaves.
//!
//! # Spec
//! JingZhao interface, sections 3.3, 4 and 5.

use card::frontend::Context;
use card::memory::GuestMemory;
use card::memory::keys::KeyTable;
use card::memory::translate::RegionAccess;
use card::sparse::{Capacity, SparseTable};
use hcr::icm::PageMap;
use hcr::mtt::Mtt;
use protocol::hca::jingzhao::caps::DevLim;
use protocol::hca::jingzhao::init::{InitHca, Table};
use protocol::ids::{Cqn, IcmAddr, Qpn};

use super::completion_queue::CompletionQueue;
use super::ctxmgt::CtxMgt;
use super::ctxmgt::stats::CtxStats;
use super::event_queue::EventQueues;
use super::qp::QueuePair;
use super::recv_watch::RecvWatch;
use super::send_queue::DoorbellPool;

/// Maximum number of QPs that are not in RESET. This is twice the number in the public driver's profile.
const QPS: Capacity = Capacity { entries: 1 << 17, leaves: 1 << 16 };
/// Maximum number of valid CQs.
const CQS: Capacity = Capacity { entries: 1 << 17, leaves: 1 << 16 };

/// Maximum number of write-backs at the end of one turn. They take about 100 microseconds, too little to noticeably
/// delay register accesses or frames.
const WRITE_BACKS_PER_TURN: usize = 1024;

/// State of the device. The counters survive CLOSE_HCA.
#[derive(Debug, Default)]
pub struct DeviceState {
    /// `None` before INIT_HCA and after CLOSE_HCA.
    pub resources: Option<Resources>,
    /// Counters of the context manager, saved here while `resources` is `None`.
    stats: CtxStats,
}

impl DeviceState {
    /// Creates the resources (INIT_HCA).
    pub fn open(&mut self, layout: &InitHca) {
        self.close();
        self.resources = Some(Resources::new(layout, self.stats));
    }

    /// Discards the resources (CLOSE_HCA, reset).
    pub fn close(&mut self) {
        self.stats = *self.stats();
        self.resources = None;
    }

    pub fn stats(&self) -> &CtxStats {
        self.resources.as_ref().map_or(&self.stats, |resources| resources.ctx.stats())
    }
}

/// Objects of an initialised device.
#[derive(Debug)]
pub struct Resources {
    pub ctx: CtxMgt,
    pub regions: Regions,
    /// QPs that are not in RESET, by index.
    pub qps: SparseTable<Box<QueuePair>>,
    /// Valid CQs, by index.
    pub cqs: SparseTable<Box<CompletionQueue>>,
    pub eqs: EventQueues,
    /// Slots for pending doorbells, shared by the send queues.
    pub doorbells: DoorbellPool,
    /// QPs whose receive queues are polled.
    pub(super) watch: RecvWatch,
}

/// VirtToPhys: memory regions and their pages.
#[derive(Debug)]
pub struct Regions {
    /// ICM pages of the MPT and the MTT.
    pub icm: PageMap,
    pub mpt: Table,
    pub keys: KeyTable,
    pub mtt: Mtt,
}

impl Resources {
    /// Creates the resources, with no ICM pages mapped and no valid objects. The counters start at the values in
    /// `stats`.
    fn new(layout: &InitHca, stats: CtxStats) -> Self {
        Self {
            ctx: CtxMgt::new(layout, stats),
            regions: Regions::new(layout),
            qps: SparseTable::new(QPS),
            cqs: SparseTable::new(CQS),
            eqs: EventQueues::default(),
            doorbells: DoorbellPool::default(),
            watch: RecvWatch::default(),
        }
    }

    /// Returns a QP, or `None` if it is in RESET.
    pub fn qp(&self, qpn: Qpn) -> Option<&QueuePair> {
        self.qps.get(self.ctx.qp_index(qpn)).map(|qp| &**qp)
    }

    pub fn cq_mut(&mut self, cqn: Cqn) -> Option<&mut CompletionQueue> {
        self.cqs.get_mut(self.ctx.cq_index(cqn)).map(|cq| &mut **cq)
    }

    /// Copies a QP's current state and PSNs from the engine to the device's copy of the QP context.
    pub fn observe(&mut self, cx: &Context<'_>, qpn: Qpn) {
        let index = self.ctx.qp_index(qpn);
        if let Some(qp) = self.qps.get_mut(index)
            && let Some(live) = cx.engine.query_qp(qp.qpn)
        {
            self.ctx.observe(index, &mut qp.key, &live);
        }
    }

    /// Ends a turn: copies changes from the engine to the device's copies of the contexts and writes a limited number
    /// of them back to guest memory. Returns whether more write-backs are pending.
    pub fn write_back_some(&mut self, cx: &mut Context<'_>) -> bool {
        self.observe_dirty(cx);
        let Self { ctx, qps, .. } = self;
        for _ in 0..WRITE_BACKS_PER_TURN {
            if ctx.serve(cx.dma, qps).is_none() {
                return false;
            }
        }
        !ctx.is_idle()
    }

    /// Writes all changes made by the engine back to guest memory.
    pub fn write_back_all(&mut self, cx: &mut Context<'_>) {
        while self.write_back_some(cx) {}
    }

    fn observe_dirty(&mut self, cx: &mut Context<'_>) {
        while let Some(qpn) = cx.engine.poll_dirty() {
            self.observe(cx, qpn);
        }
    }
}

impl Regions {
    fn new(layout: &InitHca) -> Self {
        Self {
            icm: PageMap::default(),
            mpt: layout.mpt,
            keys: KeyTable::new(layout.mpt.log_entries),
            mtt: Mtt::new(layout.mtt_base),
        }
    }

    /// Returns the ICM address of an MPT entry. The base comes from the guest, and the sum may wrap. A wrapped address
    /// is either unmapped or maps to other memory of the same guest.
    pub fn mpt_entry(&self, index: u32) -> IcmAddr {
        let offset = u64::from(index) * u64::from(DevLim::RECOMMENDED.mpt_len);
        IcmAddr::new(self.mpt.base.get().wrapping_add(offset))
    }

    pub fn access<'a>(&'a self, dma: &'a GuestMemory) -> RegionAccess<'a, &'a Mtt> {
        RegionAccess { keys: &self.keys, pages: &self.mtt, dma }
    }
}
