//! Shared receive queues: RMPs, XRC SRQs, and the basic SRQs used with interface step sequence ID (ISSI) 0. All three
//! kinds share one number space.
//!
//! # Spec
//! mlx5 interface, sections 5.4 and 12.

use card::memory::GuestMemory;
use engine::{Fetch, RecvRequest};
use protocol::hca::mlx5::doorbell::QueueRecord;
use protocol::hca::mlx5::opcode::Opcode;
use protocol::hca::mlx5::srq::{RmpContext, SrqContext, WorkQueue, WorkQueueKind};
use protocol::hca::mlx5::wqe::SrqEntry;
use protocol::ids::{Iova, Pdn};

use super::buffer::{Placement, QueueBuffer};
use super::recv_queue::{Entry, request};
use super::umem::Umems;
use super::uses::{Object, Used};
use super::work_queue::Counters;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Context {
    Rmp(RmpContext),
    Xrc(SrqContext),
    /// SRQ created with ISSI 0.
    Basic(SrqContext),
}

impl Context {
    /// Returns log2 of the number of entries and log2 of the entry size in bytes.
    pub const fn logs(&self) -> [u8; 2] {
        match self {
            Self::Rmp(RmpContext { queue, .. }) => [queue.log_entries, queue.log_stride],
            Self::Xrc(context) | Self::Basic(context) => [context.log_entries, context.log_stride + 4],
        }
    }

    /// Returns the position of the queue within its pages.
    pub const fn placement(&self) -> Placement {
        let (log_page_size, page_offset) = match self {
            Self::Rmp(RmpContext { queue: WorkQueue { log_page_size, page_offset, .. }, .. })
            | Self::Xrc(SrqContext { log_page_size, page_offset, .. })
            | Self::Basic(SrqContext { log_page_size, page_offset, .. }) => (*log_page_size, *page_offset),
        };
        Placement { log_page_size, page_offset }
    }

    pub const fn record(&self) -> Iova {
        match self {
            Self::Rmp(context) => context.queue.record,
            Self::Xrc(context) | Self::Basic(context) => context.record,
        }
    }

    pub fn uses(&self) -> Used {
        match self {
            Self::Rmp(context) => Used::from_slice(&[Object::Pd(context.queue.pd.get())]),
            Self::Xrc(context) => Used::from_slice(&[
                Object::Pd(context.pd.get()),
                Object::Cq(context.cqn.get()),
                Object::Xrcd(context.xrcd.get()),
            ]),
            Self::Basic(context) => Used::from_slice(&[Object::Pd(context.pd.get())]),
        }
    }

    /// Returns whether the entries are used in ascending order. If not, each entry links to the next.
    fn is_cyclic(&self) -> bool {
        match self {
            Self::Rmp(context) => WorkQueueKind::from_code(context.queue.kind) == Some(WorkQueueKind::Cyclic),
            Self::Xrc(_) | Self::Basic(_) => false,
        }
    }

    const fn limit(&self) -> u16 {
        match self {
            Self::Rmp(context) => context.queue.limit,
            Self::Xrc(context) | Self::Basic(context) => context.limit,
        }
    }

    const fn limit_mut(&mut self) -> &mut u16 {
        match self {
            Self::Rmp(context) => &mut context.queue.limit,
            Self::Xrc(context) | Self::Basic(context) => &mut context.limit,
        }
    }
}

#[derive(Debug)]
pub struct SharedReceiveQueue {
    context: Context,
    buffer: QueueBuffer,
    counters: Counters,
    /// Entry that the device consumes next: the head of the list or ring.
    head: u16,
    /// Whether the event for an unreadable queue has been raised.
    reported_broken: bool,
    pub umems: Umems,
}

impl SharedReceiveQueue {
    pub fn new(context: Context, buffer: QueueBuffer) -> Self {
        Self {
            context,
            buffer,
            counters: Counters::default(),
            head: 0,
            reported_broken: false,
            umems: Umems::default(),
        }
    }

    pub const fn created_by(&self) -> Opcode {
        match self.context {
            Context::Rmp(_) => Opcode::CreateRmp,
            Context::Xrc(_) => Opcode::CreateXrcSrq,
            Context::Basic(_) => Opcode::CreateSrq,
        }
    }

    /// Returns the context with its current limit. The context of an XRC or basic SRQ also contains the current number
    /// of available entries.
    pub fn context(&self, dma: &GuestMemory) -> Context {
        match self.context {
            Context::Rmp(context) => Context::Rmp(context),
            Context::Xrc(context) => Context::Xrc(SrqContext { count: self.available(dma), ..context }),
            Context::Basic(context) => Context::Basic(SrqContext { count: self.available(dma), ..context }),
        }
    }

    /// Arms the limit event, which is due when fewer than `limit` entries are available. A limit of 0 disarms it.
    pub fn set_limit(&mut self, limit: u16) {
        *self.context.limit_mut() = limit;
    }

    pub fn pages(&self) -> usize {
        self.buffer.pages()
    }

    pub fn uses(&self) -> Used {
        let mut used = self.context.uses();
        used.extend(self.umems.uses());
        used
    }

    /// Returns the context of an XRC SRQ, or `None` for other queues.
    pub const fn xrc(&self) -> Option<&SrqContext> {
        match &self.context {
            Context::Xrc(context) => Some(context),
            Context::Rmp(_) | Context::Basic(_) => None,
        }
    }

    /// Fetches the entry at the head, if one is posted. The request's `wr_id` is the entry number.
    pub fn take(&mut self, dma: &GuestMemory) -> Fetch<RecvRequest> {
        // The limit applies to all entries posted so far. Read the record again before reporting that too few are left.
        if self.counters.waiting() <= self.context.limit() {
            self.learn(dma);
        }
        if self.counters.waiting() == 0 {
            return Fetch::Empty;
        }
        let number = self.head;
        let Some(entry) = self.entry(number, dma) else { return Fetch::Broken };
        self.counters.take(1);
        let [log_entries, _] = self.context.logs();
        let next = self.link(&entry).unwrap_or_else(|| number.wrapping_add(1));
        self.head = next & ((1 << log_entries) - 1);
        Fetch::Ready(request(number, &entry.wqe))
    }

    /// Copies entry `number`. Returns `None` if the queue's memory is not accessible.
    pub fn entry(&self, number: u16, dma: &GuestMemory) -> Option<SrqEntry> {
        let [_, log_stride] = self.context.logs();
        let mut entry = Entry::from_elem(0, 1 << log_stride);
        self.buffer.read(dma, u64::from(number) << log_stride, &mut entry).ok()?;
        SrqEntry::parse(&entry)
    }

    /// Returns the entry that `entry` links to, or `None` if the queue is cyclic.
    pub fn link(&self, entry: &SrqEntry) -> Option<u16> {
        (!self.context.is_cyclic()).then_some(entry.next)
    }

    pub const fn entries(&self) -> u32 {
        1 << self.context.logs()[0]
    }

    pub const fn pd(&self) -> Pdn {
        match &self.context {
            Context::Rmp(context) => context.queue.pd,
            Context::Xrc(context) | Context::Basic(context) => context.pd,
        }
    }

    pub const fn record(&self) -> Iova {
        self.context.record()
    }

    pub const fn head(&self) -> u16 {
        self.head
    }

    /// Returns whether the number of available entries is below the limit. If so, also disarms the limit, so that the
    /// event is raised only once.
    pub fn passes_limit(&mut self, dma: &GuestMemory) -> bool {
        let limit = self.context.limit();
        if self.counters.waiting() < limit {
            self.learn(dma);
        }
        let passes = self.counters.waiting() < limit;
        if passes {
            self.set_limit(0);
        }
        passes
    }

    /// Returns whether to report that the queue cannot be read. Only the first call returns true.
    pub fn reports_fault(&mut self) -> bool {
        !std::mem::replace(&mut self.reported_broken, true)
    }

    /// Reads the doorbell record. An implausible counter is ignored.
    fn learn(&mut self, dma: &GuestMemory) {
        let [log_entries, _] = self.context.logs();
        if let Some(posted) = self.posted(dma) {
            let _ = self.counters.learn(posted, 1 << log_entries);
        }
    }

    /// Returns the receive counter from the doorbell record, or `None` if the record is not accessible.
    fn posted(&self, dma: &GuestMemory) -> Option<u16> {
        let mut record = [0; QueueRecord::LEN];
        dma.read(self.context.record(), &mut record).ok()?;
        Some(QueueRecord::parse(&record).received)
    }

    /// Returns the number of entries that the driver has posted and the device has not consumed.
    pub fn available(&self, dma: &GuestMemory) -> u16 {
        self.posted(dma).map_or(0, |posted| posted.wrapping_sub(self.counters.taken))
    }
}
