//! Objects of an initialised device. INIT_HCA creates the tables of objects, and TEARDOWN_HCA or a reset drops them.
//!
//! The following table shows the maximum memory that a hostile guest can make these objects use. The engine's memory is
//! not included; see the engine's `limits` module.
//!
//! | object | size | maximum number | total |
//! |---|---|---|---|
//! | QP | 600 B | 2^17 | 79 MiB |
//! | CQ | 250 B | 2^16 | 16 MiB |
//! | CQ with a delayed event | 20 B | 2^16 | 1 MiB |
//! | SRQ | 400 B | 2^16 | 26 MiB |
//! | EQ | 220 B | 2^6 | 14 KiB |
//! | event that waits for a full EQ | 20 B | 2^18 | 5 MiB |
//! | CQ that waits for a full EQ | 10 B | 2^16 | 600 KiB |
//! | memory key | 220 B | 2^20 | 220 MiB |
//! | page of a queue or key | 8 B | 2^24 | 128 MiB |
//! | reference to an object | 50 B | 2^18 | 13 MiB |
//! | multicast group | 250 B | 2^13 | 2 MiB |
//! | member of a multicast group | 40 B | 56 · 2^13 | 18 MiB |
//! | flow table entry | 340 B | 2^20 | 340 MiB |
//! | destination of a flow table entry | 12 B | 2^21 | 24 MiB |
//! | flow group | 250 B | 2^13 | 2 MiB |
//! | flow counter | 30 B | 2^16 | 2 MiB |
//! | SQ or RQ | 500 B | 2^13 | 4 MiB |
//! | failed RQ that is polled | 50 B | 2^13 | 400 KiB |
//! | LSO in progress on an SQ | 6 KiB | 2^13 | 48 MiB |
//! | TIR | 450 B | 2^12 | 2 MiB |
//! | TIS | 50 B | 2^12 | 200 KiB |
//! | RQT | 1 KiB | 2^10 | 1 MiB |
//! | queue with a polled doorbell | 40 B | 2^18 | 10 MiB |
//! | doorbell shared by queues | 150 B | 2^14 | 3 MiB |
//! | UMEM | 60 B | 2^12 | 240 KiB |
//! | owner of an object | 40 B | 2^21 | 80 MiB |
//! | per-user count of objects of one kind | 30 B | 2^14 | 500 KiB |
//!
//! # Spec
//! mlx5 interface, section 5.

use card::frontend::Context;
use engine::Engine;
use protocol::hca::mlx5::counter::QCounters;
use protocol::hca::mlx5::input::Pages;
use protocol::hca::mlx5::transition::Transition;
use protocol::ids::{Pkey, Qpn, Srqn};

use super::buffer::{PageBudget, Placement, QueueBuffer};
use super::check::{Check, Rejection};
use super::completion_queue::CompletionQueue;
use super::counter_sets::ExecutedRequests;
use super::delayed_events::DelayedEvents;
use super::event_queue::EventQueue;
use super::groups::Groups;
use super::host;
use super::limits::netdev::LAST_WORK_QUEUE;
use super::limits::{MAX_COUNTER_SETS, MAX_EQS, MAX_TRANSPORT_DOMAINS, MAX_UMEMS, first};
use super::mapped::PolledQueues;
use super::mkey::Mkeys;
use super::netdev::Netdev;
use super::numbered::Numbered;
use super::options::{Port, Setup};
use super::port::PortState;
use super::queue_pair::QueuePair;
use super::send_queue::PostedBlocks;
use super::srq::SharedReceiveQueue;
use super::steering::Steering;
use super::uar::UarPages;
use super::umem::Umem;
use super::user::Users;
use super::uses::Uses;

#[derive(Debug)]
pub struct Resources {
    pub uars: UarPages,
    pub pds: Numbered<()>,
    pub xrcds: Numbered<()>,
    pub domains: Numbered<()>,
    pub counter_sets: Numbered<QCounters>,
    /// Executed requests that must be added to a counter set before the next command.
    pub executed: Option<ExecutedRequests>,
    pub eqs: Numbered<EventQueue>,
    pub cqs: Numbered<Box<CompletionQueue>>,
    pub delayed: DelayedEvents,
    pub mkeys: Mkeys,
    pub qps: Numbered<Box<QueuePair>>,
    pub srqs: Numbered<Box<SharedReceiveQueue>>,
    pub groups: Groups,
    pub uses: Uses,
    /// Queues whose doorbells are in mapped UAR pages.
    ///
    /// Each of these queues appears once, in the slot of its UAR page and kind of doorbell.
    pub polled: PolledQueues,
    /// SRQs that fell below their limit in this turn of the event loop.
    ///
    /// Each command that arms a limit adds at most one entry.
    pub low_srqs: Vec<Srqn>,
    /// Pages that are still available to queues and keys.
    pub budget: PageBudget,
    pub steering: Steering,
    /// State of the port. For an Ethernet port, it occupies about 10 KiB.
    pub port: PortState,
    /// P_Key table of an InfiniBand port, as last reported to the driver.
    pub pkeys: Box<[Pkey]>,
    pub netdev: Netdev,
    /// Blocks of the send queue that was read last. Shared by all SQs and QPs.
    pub posted: PostedBlocks,

    pub users: Users,
    pub umems: Numbered<Umem>,
}

/// Returns an empty table of QPs. Section 20, M-22: on an Ethernet port, QPs do not use the numbers of SQs and RQs,
/// because doorbells identify all three in the same way.
pub fn qp_numbers<T>(setup: &Setup) -> Numbered<T> {
    // QP numbers are below `1 << log_max_qps`, because the engine uses their low bits as its table index.
    let last = (1 << setup.options.limits.caps().log_max_qps) - 1;
    let numbers = Numbered::new(first::QP, last);
    match setup.options.port {
        Port::InfiniBand => numbers,
        Port::Ethernet => numbers.without(first::WORK_QUEUE, LAST_WORK_QUEUE),
    }
}

impl Resources {
    /// Creates the objects of a device whose driver has set the size of UAR pages to 2^`log_uar_page` times 4 KiB.
    pub fn new(setup: &Setup, log_uar_page: u16) -> Self {
        let limits = &setup.options.limits;
        let caps = limits.caps();
        let count = |log: u8| 1_u32 << log;
        Self {
            uars: UarPages::new(&setup.options, log_uar_page),
            pds: Numbered::new(1, count(caps.log_max_pds)),
            xrcds: Numbered::new(1, count(caps.log_max_xrcds)),
            domains: Numbered::new(1, MAX_TRANSPORT_DOMAINS),
            counter_sets: Numbered::new(1, MAX_COUNTER_SETS),
            executed: None,
            eqs: Numbered::new(1, MAX_EQS),
            cqs: Numbered::new(first::CQ, first::CQ + count(caps.log_max_cqs) - 1),
            delayed: DelayedEvents::default(),
            mkeys: Mkeys::new(caps.log_max_mkeys),
            qps: qp_numbers(setup),
            srqs: Numbered::new(first::SRQ, first::SRQ + count(caps.log_max_srqs) - 1),
            groups: Groups::new(caps.log_max_groups),
            uses: Uses::default(),
            polled: PolledQueues::default(),
            low_srqs: Vec::new(),
            budget: PageBudget::default(),
            steering: Steering::default(),
            port: PortState::new(setup.options.port, setup.mac),
            pkeys: Box::default(),
            netdev: Netdev::default(),
            posted: PostedBlocks::default(),

            users: Users::default(),
            umems: Numbered::new(1, MAX_UMEMS),
        }
    }

    /// Creates the buffer of a `len`-byte queue and takes its pages from the budget. The caller must return them with
    /// [`Resources::release_pages`].
    ///
    /// # Errors
    /// Fails with `too_few` if `pages` lists too few pages for the queue. Also fails if the budget has too few pages.
    pub fn buffer(
        &mut self,
        pages: Pages<'_>,
        placement: Placement,
        len: u64,
        too_few: Rejection,
    ) -> Result<QueueBuffer, Rejection> {
        let buffer = QueueBuffer::new(pages, placement, len).ok_or(too_few)?;
        self.take_pages(buffer.pages())?;
        Ok(buffer)
    }

    /// Takes pages for a queue or key from the budget.
    ///
    /// # Errors
    /// Fails if the budget has too few pages.
    pub fn take_pages(&mut self, pages: usize) -> Result<(), Rejection> {
        if self.budget.take(pages) { Ok(()) } else { Err(Check::QueueMemory.rejects(pages as u64)) }
    }

    pub fn release_pages(&mut self, pages: usize) {
        self.budget.give_back(pages);
    }

    /// Moves all QPs to RESET in the engine, without completing their requests. Afterwards, they drop all packets.
    pub fn reset_qps(&mut self, cx: &mut Context<'_>) {
        let numbers: Vec<u32> = self.qps.iter_from(0).map(|(number, _)| number).collect();
        for number in numbers {
            let resolver = self.port.resolver(cx.port.addresses());
            let qp = self.qps.get(number);
            if let Some(to_reset) = qp.and_then(|qp| qp.modification(Transition::ToRst, resolver)) {
                // Cannot fail: CREATE_QP has created the QP in the engine.
                let _ = host::modify_qp(cx, self, Qpn::new(number), &to_reset);
            }
        }
    }

    /// Copies a QP's state and PSNs from the engine to its context.
    pub fn observe(&mut self, engine: &Engine, qpn: Qpn) {
        if let (Some(qp), Some(live)) = (self.qps.get_mut(qpn.get()), engine.query_qp(qpn)) {
            qp.observe(&live);
        }
    }
}
