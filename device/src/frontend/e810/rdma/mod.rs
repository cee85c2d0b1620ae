//! The RDMA half of the function: its control queue and all that is made by it.
//!
//! [`cqp`] takes operations, [`dispatch`] gives each to the part that has its objects. Context memory is the guest's on
//! silicon; here the device keeps objects itself, and only lists of pages are read from it ([`hmc`]). Everything goes with
//! the control queue, and with every reset.
//!
//! # Spec
//! E810 interface, sections 9 to 14.

mod completion;
mod completion_queue;
mod cqp;
mod dispatch;
mod event_queues;
mod failure;
mod features;
mod fpm;
mod groups;
mod hmc;
mod host;
mod nodes;
mod paths;
mod queue_pair;
mod queues;
mod receive_queue;
mod regions;
mod registers;
mod ring;
mod send_queue;
mod snapshot;
mod statistics;
mod strict;
#[cfg(test)]
mod tests;
mod trace;
mod work;
mod work_ring;

pub(super) use self::completion::handle_event;
use self::cqp::Cqp;
use self::event_queues::EventQueues;
use self::groups::Groups;
use self::hmc::Hmc;
pub(super) use self::host::RdmaHost;
use self::nodes::Nodes;
use self::paths::Paths;
use self::queues::Queues;
pub(super) use self::queues::{flush_late, next_deadline};
use self::regions::Regions;
pub(super) use self::registers::{read, write};
pub(super) use self::send_queue::work_request;
pub(super) use self::snapshot::View;
use self::statistics::Counts;
use super::limits::Limits;
use super::vectors::Cause;

/// State of the RDMA half.
#[derive(Debug)]
pub(super) struct Rdma {
    /// How many objects of each kind there can be.
    pub(super) limits: Limits,
    /// Its control queue. While that does not run there are no objects.
    pub(super) cqp: Cqp,
    /// Context memory.
    pub(super) hmc: Hmc,
    /// Memory regions and windows.
    pub(super) regions: Regions,
    /// Neighbours and address handles.
    pub(super) paths: Paths,
    /// Multicast groups.
    pub(super) groups: Groups,
    /// The scheduler's tree.
    pub(super) nodes: Nodes,
    /// Queue pairs and completion queues.
    pub(super) queues: Queues,
    /// Queues of events.
    pub(super) events: EventQueues,
    /// What the transport has done.
    pub(super) counts: Counts,
}

impl Rdma {
    /// Without a control queue, so without any objects.
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            cqp: Cqp::default(),
            hmc: Hmc::new(fpm::segments(&limits)),
            regions: Regions::new(&limits),
            paths: Paths::new(&limits),
            groups: Groups::new(&limits),
            nodes: Nodes::default(),
            queues: Queues::new(&limits),
            events: EventQueues::default(),
            counts: Counts::default(),
        }
    }

    /// Event queues that have something new since the last call.
    pub(super) fn take_causes(&mut self) -> impl Iterator<Item = Cause> + use<> {
        self.events.take_causes()
    }
}
