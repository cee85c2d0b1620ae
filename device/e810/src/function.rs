//! State of the function: queues, interrupts and configuration. Every reset discards this state.
//!
//! Memory that a hostile guest can make a device allocate:
//!
//! | object | size | maximum number | total |
//! |---|---|---|---|
//! | transmit queue, with the buffers of one frame | 5 KiB | 256, as configured | 1.3 MiB |
//! | receive queue | 600 B | 256, as configured | 150 KiB |
//! | vector | 64 B | 2,048, as configured | 128 KiB |
//! | stored register | 20 B | 8,000 | 160 KiB |
//! | VSI | 400 B | 768 | 300 KiB |
//! | switch rule | 100 B | 8,192 | 800 KiB |
//! | VSI list | 140 B | 2,046 | 280 KiB |
//! | large action | 50 B | 512 | 25 KiB |
//! | scheduler element | 120 B | 4,608 | 540 KiB |
//! | RDMA queue set handle | 20 B | 512 | 10 KiB |
//! | admin command buffer | 4 KiB | 1 | 4 KiB |
//! | RDMA queue pair, without engine state | 310 B | 1,024, as configured | 310 KiB |
//! | completion queue | 80 B | 2,048, as configured | 160 KiB |
//! | memory region or window | 80 B | 16,384, as configured | 1.3 MiB |
//! | context memory segment | 24 B | 319, as configured | 8 KiB |
//! | address handle | 100 B | 4,096, as configured | 400 KiB |
//! | ARP entry | 16 B | 4,096, as configured | 64 KiB |
//! | multicast group | 100 B | 1,024, one per queue pair | 100 KiB |
//! | work scheduler node | 20 B | 512 | 10 KiB |
//!
//! The flash image occupies another 128 KiB, regardless of what the guest does.
//!
//! # Spec
//! E810 interface, section 1.2.

use std::collections::BTreeMap;

use protocol::hca::e810::admin::scheduler::Teid;

use super::admin::ring::Rings;
use super::link::MAX_FRAME;
use super::options::Setup;
use super::pf_config::PfConfig;
use super::rdma::Rdma;
use super::registers::Stored;
use super::strict::Strict;
use super::vectors::Vectors;

/// Scheduler leaves for transmit queues and RDMA queue sets. If a leaf is deleted together with an ancestor, its entry
/// in these maps remains. The maps are nevertheless bounded: they have at most one entry per transmit queue and one per
/// RDMA queue set.
#[derive(Debug, Default)]
pub(super) struct Leaves {
    /// Leaves, indexed by transmit queue number.
    pub(super) queues: BTreeMap<u16, Teid>,
    /// Leaves, indexed by RDMA queue set handle.
    pub(super) rdma_sets: BTreeMap<u16, Teid>,
}

#[derive(Debug)]
pub struct Function {
    pub rings: Rings,
    pub vectors: Vectors,
    /// Registers that return the last value written.
    pub stored: Stored,
    /// Whether the driver has enabled link status events.
    pub link_events: bool,
    /// Maximum frame size of the MAC, including the FCS.
    pub max_frame: u16,
    pub(super) pf_config: PfConfig,
    pub(super) strict: Strict,
    pub(super) leaves: Leaves,
    pub(super) rdma: Rdma,
}

impl Function {
    pub fn new(setup: &Setup) -> Self {
        let options = &setup.options;
        Self {
            rings: Rings::default(),
            vectors: Vectors::new(options.vectors.get(), options.queues.get()),
            stored: Stored::default(),
            link_events: false,
            max_frame: MAX_FRAME,
            pf_config: PfConfig::default(),
            strict: Strict::default(),
            leaves: Leaves::default(),
            rdma: Rdma::new(options.limits),
        }
    }
}
