//! What a function has until it is reset: queues, interrupts, and all that its driver has set up.
//!
//! What a hostile guest can make a device hold:
//!
//! | what | each | most of them | together |
//! |---|---|---|---|
//! | transmit queue, with the buffers of one frame | 5 KiB | 256, as configured | 1.3 MiB |
//! | receive queue | 600 B | 256, as configured | 150 KiB |
//! | vector | 64 B | 2,048, as configured | 128 KiB |
//! | register that keeps what is written | 20 B | 8,000 | 160 KiB |
//! | VSI | 400 B | 768 | 300 KiB |
//! | switch rule | 100 B | 8,192 | 800 KiB |
//! | list of VSIs | 140 B | 2,046 | 280 KiB |
//! | large action | 50 B | 512 | 25 KiB |
//! | element of the scheduler | 120 B | 4,608 | 540 KiB |
//! | handle of a set of RDMA queues | 20 B | 512 | 10 KiB |
//! | buffer of a command | 4 KiB | 1 | 4 KiB |
//! | queue pair of the RDMA half, beside what the engine has of it | 310 B | 1,024, as configured | 310 KiB |
//! | completion queue | 80 B | 2,048, as configured | 160 KiB |
//! | memory region or window | 80 B | 16,384, as configured | 1.3 MiB |
//! | segment of context memory | 24 B | 319, as configured | 8 KiB |
//! | address handle | 100 B | 4,096, as configured | 400 KiB |
//! | neighbour | 16 B | 4,096, as configured | 64 KiB |
//! | multicast group | 100 B | 1,024, as many as queue pairs | 100 KiB |
//! | node of its scheduler | 20 B | 512 | 10 KiB |
//!
//! The flash image, 128 KiB, is the device's own.
//!
//! # Spec
//! E810 interface, section 1.2.

use std::collections::BTreeMap;

use protocol::hca::e810::admin::scheduler::Teid;

use super::admin::Rings;
use super::device::Setup;
use super::link::MAX_FRAME;
use super::rdma::Rdma;
use super::registers::Stored;
use super::strict::Strict;
use super::switching::Switching;
use super::vectors::Vectors;

/// Leaves of the scheduler's tree, by what they are of. An entry outlives its leaf if that is deleted with a node above.
///
/// Bound: queues that the device has, and sets that "add RDMA queue sets" allows.
#[derive(Debug, Default)]
pub(super) struct Leaves {
    /// By transmit queue.
    pub(super) queues: BTreeMap<u16, Teid>,
    /// By handle of a set of RDMA queues.
    pub(super) rdma_sets: BTreeMap<u16, Teid>,
}

/// State of the function, which a PF reset drops.
#[derive(Debug)]
pub struct Function {
    /// Admin queue and mailbox.
    pub rings: Rings,
    /// Interrupts.
    pub vectors: Vectors,
    /// Registers that only keep what is written.
    pub stored: Stored,
    /// Link status events are wanted.
    pub link_events: bool,
    /// Longest frame that the MAC takes, with its check sequence.
    pub max_frame: u16,
    /// Switch, VSIs and scheduler.
    pub(super) switching: Switching,
    /// What strict mode remembers.
    pub(super) strict: Strict,
    /// Queues in the tree of the scheduler.
    pub(super) leaves: Leaves,
    /// The RDMA half.
    pub(super) rdma: Rdma,
}

impl Function {
    /// As after a reset.
    pub fn new(setup: &Setup) -> Self {
        let options = &setup.options;
        Self {
            rings: Rings::default(),
            vectors: Vectors::new(options.vectors.get(), options.queues.get()),
            stored: Stored::default(),
            link_events: false,
            max_frame: MAX_FRAME,
            switching: Switching::default(),
            strict: Strict::default(),
            leaves: Leaves::default(),
            rdma: Rdma::new(options.limits),
        }
    }
}
