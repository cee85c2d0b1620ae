//! Strict mode: reports violations of the interface that the device tolerates.
//!
//! Checks do not change the device's behaviour. A command is checked before it executes, while the objects that it
//! removes still exist. Findings are reported only if the command succeeds, since a rejected command already returns an
//! error status.
//!
//! Section 5.2: memory may be newer than the doorbell being checked, as stores to BARs are posted. Only a value in
//! memory that is older than the doorbell is a violation.
//!
//! # Spec
//! mthca interface; [`rules`] cites the sections.

mod commands;
mod doorbells;
mod entries;
mod icm;
mod memory;
mod qps;
mod queues;
mod registers;
pub mod rules;
mod work;

use card::memory::GuestMemory;
use hcr::strict::HcrWatch;
use protocol::hca::mthca::cmd::Op;
use protocol::hca::mthca::doorbell::UarRegister;

use super::resources::Resources;

pub(super) use self::commands::examine;
pub(super) use self::doorbells::{arm_cq, arms, send, sends};
pub(super) use self::entries::{cqe, eqe};
pub(super) use self::registers::{read, write, write_register};
pub(super) use self::work::{recv_wqe, send_wqe, shared_wqe};

#[derive(Debug, Default)]
pub struct Strict {
    hcr: HcrWatch,
    /// UAR page and register with a half-written doorbell.
    half: Option<(u64, UarRegister)>,
    bring_up: BringUp,
}

/// Progress of firmware start-up, which the device itself does not track.
#[derive(Clone, Copy, Debug, Default)]
struct BringUp {
    firmware_mapped: bool,
    firmware_running: bool,
    aux_mapped: bool,
}

impl BringUp {
    fn done(&mut self, op: Op) {
        match op {
            Op::MapFa => self.firmware_mapped = true,
            Op::RunFw => self.firmware_running = true,
            Op::MapIcmAux => self.aux_mapped = true,
            Op::UnmapIcmAux => self.aux_mapped = false,
            Op::UnmapFa => (self.firmware_mapped, self.firmware_running) = (false, false),
            _ => {}
        }
    }
}

/// The parts of an initialised device that the checks access.
#[derive(Clone, Copy)]
struct View<'a> {
    resources: &'a Resources,
    dma: &'a GuestMemory,
    uar_pages: u32,
}
