//! The RDMA half of the function: its control queue (CQP) and all objects created through it.
//!
//! [`cqp`] fetches operations, and [`dispatch`] passes each operation to the module that owns the affected object. On
//! silicon, the host provides memory for object contexts (HMC). This device keeps the contexts itself and reads only
//! page lists from host memory ([`hmc`]). All objects are dropped when the control queue is destroyed, and on every
//! reset.
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

use card::frontend::Context;

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
use super::options::Setup;
use super::vectors::Cause;

#[derive(Debug)]
pub(super) struct Rdma {
    pub(super) limits: Limits,
    /// Control queue. While it is not running, no objects exist.
    pub(super) cqp: Cqp,
    pub(super) hmc: Hmc,
    /// Memory regions and windows.
    pub(super) regions: Regions,
    /// Neighbours and address handles.
    pub(super) paths: Paths,
    pub(super) groups: Groups,
    /// Nodes of the work scheduler.
    pub(super) nodes: Nodes,
    /// Queue pairs and completion queues.
    pub(super) queues: Queues,
    /// Completion and asynchronous event queues.
    pub(super) events: EventQueues,
    pub(super) counts: Counts,
}

impl Rdma {
    /// Creates the state after a reset: the control queue is stopped and no objects exist.
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

    /// Drops all objects, so that the device stops writing to their queues.
    pub(super) fn reset(&mut self, setup: &Setup, cx: &mut Context<'_>) {
        cx.engine.reset(setup.engine);
        cx.monitor.forget_qps();
        *self = Self::new(setup.options.limits);
    }

    /// Returns the interrupt causes of event queues that received entries since the last call.
    pub(super) fn take_causes(&mut self) -> impl Iterator<Item = Cause> + use<> {
        self.events.take_causes()
    }
}
