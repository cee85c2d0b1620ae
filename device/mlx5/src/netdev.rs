//! The netdev's data path: send queues (SQ), receive queues (RQ) and the objects that assign frames to them.
//!
//! [`transmit`] turns WQEs into frames, and [`receive`] writes frames to receive buffers. The flow tables select the
//! TIRs for a frame ([`steer`]).
//!
//! # Spec
//! mlx5 interface, section 16.

pub mod counters;
pub mod explain;
pub mod gather;
pub mod hash;
pub mod offload;
pub mod receive;
pub mod rq;
pub mod rqt;
pub mod sq;
pub mod status;
pub mod steer;
pub mod tir;
pub mod transmit;

use std::collections::VecDeque;

use card::frontend::poll_set::PollSet;
use engine::Instant;
use protocol::hca::mlx5::sq::WorkQueueState;
use protocol::hca::mlx5::tis::TisContext;
use protocol::ids::{Cqn, Iova, Rqn, Sqn, TransportDomain};

use self::counters::NetdevCounters;
use self::rq::Rq;
use self::rqt::Rqt;
use self::sq::Sq;
use self::tir::Tir;
use super::limits::{first, netdev as limits};
use super::numbered::Numbered;

/// An SQ or RQ. Both kinds share one number space, so that doorbells and events identify a queue unambiguously.
#[derive(Debug)]
pub enum Queue {
    Send(Box<Sq>),
    Receive(Box<Rq>),
}

impl Queue {
    const fn cqn(&self) -> Cqn {
        match self {
            Self::Send(sq) => sq.cqn(),
            Self::Receive(rq) => rq.cqn(),
        }
    }

    /// Returns the address of the doorbell record.
    pub const fn record(&self) -> Iova {
        match self {
            Self::Send(sq) => sq.context().queue.record,
            Self::Receive(rq) => rq.context().queue.record,
        }
    }

    /// Moves the queue to the error state, unless it is in the reset state.
    fn fail(&mut self) {
        match self {
            Self::Send(sq) if sq.state() == WorkQueueState::Ready => sq.set_state(WorkQueueState::Error),
            Self::Receive(rq) if rq.state() == WorkQueueState::Ready => rq.set_state(WorkQueueState::Error),
            _ => {}
        }
    }
}

#[derive(Debug)]
pub struct Netdev {
    pub tiss: Numbered<TisContext>,
    pub tirs: Numbered<Box<Tir>>,
    pub rqts: Numbered<Rqt>,
    pub queues: Numbered<Queue>,
    /// Queues with posted WQEs to execute or flush, in service order.
    ///
    /// Each queue occurs at most once.
    ready: VecDeque<u32>,
    /// Whether the last poll reached its limit with queues still to serve.
    has_more: bool,
    /// RQs in the error state that complete all receives with an error. They are polled for new receives, which are
    /// posted without a doorbell (section 20, M-12).
    pub flushed: PollSet<10>,
    pub counters: NetdevCounters,
}

impl Default for Netdev {
    fn default() -> Self {
        Self {
            tiss: Numbered::new(1, limits::MAX_TISS),
            tirs: Numbered::new(1, limits::MAX_TIRS),
            rqts: Numbered::new(1, limits::MAX_RQTS),
            queues: Numbered::new(first::WORK_QUEUE, limits::LAST_WORK_QUEUE),
            ready: VecDeque::new(),
            has_more: false,
            flushed: PollSet::default(),
            counters: NetdevCounters::default(),
        }
    }
}

impl Netdev {
    pub fn sq(&self, sqn: Sqn) -> Option<&Sq> {
        match self.queues.get(sqn.get()) {
            Some(Queue::Send(sq)) => Some(sq),
            _ => None,
        }
    }

    pub fn sq_mut(&mut self, sqn: Sqn) -> Option<&mut Sq> {
        match self.queues.get_mut(sqn.get()) {
            Some(Queue::Send(sq)) => Some(sq),
            _ => None,
        }
    }

    pub fn rq(&self, rqn: Rqn) -> Option<&Rq> {
        match self.queues.get(rqn.get()) {
            Some(Queue::Receive(rq)) => Some(rq),
            _ => None,
        }
    }

    pub fn rq_mut(&mut self, rqn: Rqn) -> Option<&mut Rq> {
        match self.queues.get_mut(rqn.get()) {
            Some(Queue::Receive(rq)) => Some(rq),
            _ => None,
        }
    }

    /// Returns the transport domain of an SQ, or `None` if the SQ has no TIS.
    pub fn domain(&self, sqn: Sqn) -> Option<TransportDomain> {
        let tisn = self.sq(sqn)?.context().tis()?;
        Some(self.tiss.get(tisn.get())?.domain)
    }

    /// Removes a queue. Afterwards, the device no longer accesses the queue's memory.
    pub fn remove_queue(&mut self, number: u32) -> Option<Queue> {
        self.ready.retain(|waiting| *waiting != number);
        self.flushed.remove(number);
        self.queues.remove(number)
    }

    /// Schedules the failed RQs whose doorbell records must be read again.
    pub fn poll_flushed(&mut self, now: Instant) {
        for number in self.flushed.take_due(now) {
            match self.rq(Rqn::new(number)) {
                Some(rq) if rq.flushes() => self.schedule(number),
                _ => self.flushed.remove(number),
            }
        }
    }

    /// Schedules a queue to be served by a later poll, unless it is already scheduled.
    pub fn schedule(&mut self, number: u32) {
        let queued = match self.queues.get_mut(number) {
            Some(Queue::Send(sq)) => &mut sq.is_scheduled,
            Some(Queue::Receive(rq)) => &mut rq.is_scheduled,
            None => return,
        };
        if !std::mem::replace(queued, true) {
            self.ready.push_back(number);
        }
    }

    /// Returns whether the last poll left work for the next turn.
    pub const fn has_more(&self) -> bool {
        self.has_more
    }

    /// Moves a queue to the error state.
    pub fn fail_queue(&mut self, number: u32) {
        if let Some(queue) = self.queues.get_mut(number) {
            queue.fail();
            self.schedule(number);
        }
    }

    /// Moves all queues that use a CQ to the error state.
    pub fn fail_users(&mut self, cqn: Cqn) {
        let users = self.queues.iter_from(0).filter(|(_, queue)| queue.cqn() == cqn);
        let users: Vec<u32> = users.map(|(number, _)| number).collect();
        users.into_iter().for_each(|number| self.fail_queue(number));
    }
}
