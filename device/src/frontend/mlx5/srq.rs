//! Shared receive queues: RMPs, XRC SRQs, and the SRQs of interface step 0. They share one number space.
//!
//! # Spec
//! mlx5 interface, sections 5.4 and 12.

use protocol::hca::mlx5::doorbell::QueueRecord;
use protocol::hca::mlx5::opcode::Opcode;
use protocol::hca::mlx5::srq::{RmpContext, SrqContext, WorkQueue};
use protocol::ids::Iova;

use super::buffer::{Placement, QueueBuffer};
use super::uses::{Object, Used};
use crate::memory::GuestMemory;

/// Context of a shared receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Context {
    Rmp(RmpContext),
    Xrc(SrqContext),
    /// SRQ of interface step 0.
    Basic(SrqContext),
}

impl Context {
    /// Log2 of the number of entries, and of their size in bytes.
    pub const fn logs(&self) -> [u8; 2] {
        match self {
            Self::Rmp(RmpContext { queue, .. }) => [queue.log_entries, queue.log_stride],
            Self::Xrc(context) | Self::Basic(context) => [context.log_entries, context.log_stride + 4],
        }
    }

    /// Place in the pages.
    pub const fn placement(&self) -> Placement {
        let (log_page_size, page_offset) = match self {
            Self::Rmp(RmpContext { queue: WorkQueue { log_page_size, page_offset, .. }, .. })
            | Self::Xrc(SrqContext { log_page_size, page_offset, .. })
            | Self::Basic(SrqContext { log_page_size, page_offset, .. }) => (*log_page_size, *page_offset),
        };
        Placement { log_page_size, page_offset }
    }

    /// Address of the doorbell record.
    pub const fn record(&self) -> Iova {
        match self {
            Self::Rmp(context) => context.queue.record,
            Self::Xrc(context) | Self::Basic(context) => context.record,
        }
    }

    /// Objects that the queue uses.
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

    const fn limit_mut(&mut self) -> &mut u16 {
        match self {
            Self::Rmp(context) => &mut context.queue.limit,
            Self::Xrc(context) | Self::Basic(context) => &mut context.limit,
        }
    }
}

/// A shared receive queue.
#[derive(Debug)]
pub struct SharedReceiveQueue {
    context: Context,
    buffer: QueueBuffer,
    /// Entries taken, modulo 2^16.
    taken: u16,
}

impl SharedReceiveQueue {
    /// Creates an empty queue.
    pub fn new(context: Context, buffer: QueueBuffer) -> Self {
        Self { context, buffer, taken: 0 }
    }

    /// The command that creates queues of this kind.
    pub const fn created_by(&self) -> Opcode {
        match self.context {
            Context::Rmp(_) => Opcode::CreateRmp,
            Context::Xrc(_) => Opcode::CreateXrcSrq,
            Context::Basic(_) => Opcode::CreateSrq,
        }
    }

    /// Context with the current limit and number of entries.
    pub fn context(&self, dma: &GuestMemory) -> Context {
        match self.context {
            Context::Rmp(context) => Context::Rmp(context),
            Context::Xrc(context) => Context::Xrc(SrqContext { count: self.available(dma), ..context }),
            Context::Basic(context) => Context::Basic(SrqContext { count: self.available(dma), ..context }),
        }
    }

    /// Arms the limit: an event is due when fewer entries are available. 0 disarms it.
    pub fn set_limit(&mut self, limit: u16) {
        *self.context.limit_mut() = limit;
    }

    pub fn pages(&self) -> usize {
        self.buffer.pages()
    }

    /// Objects that the queue uses.
    pub fn uses(&self) -> Used {
        self.context.uses()
    }

    /// Entries that the driver has posted and the device has not taken.
    fn available(&self, dma: &GuestMemory) -> u16 {
        let mut record = [0; QueueRecord::LEN];
        match dma.read(self.context.record(), &mut record) {
            Ok(()) => QueueRecord::parse(&record).received.wrapping_sub(self.taken),
            Err(_) => 0,
        }
    }
}
