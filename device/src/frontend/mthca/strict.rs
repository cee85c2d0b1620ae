//! Strict mode: what a driver does against the interface though the device tolerates it.
//!
//! Nothing here changes what the device does. Commands are looked at before they are executed, when what they are about
//! to undo is still there, and reported if they then succeed: a command that is refused has its answer.
//!
//! Stores to BARs are posted, and memory runs ahead of them (section 5.2). So what memory says may be newer than the
//! doorbell that is looked at, and is never held against it for that; only what is older than the doorbell is wrong.
//!
//! # Spec
//! mthca interface; [`rules`] names the sections.

mod commands;
mod doorbells;
mod entries;
mod icm;
mod memory;
mod qps;
mod queues;
mod registers;
pub mod rules;
mod sequence;
mod work;

use protocol::hca::mthca::cmd::Op;
use protocol::hca::mthca::doorbell::UarRegister;

use super::resources::Resources;
use crate::frontend::hcr::strict::HcrWatch;
use crate::memory::GuestMemory;

pub(super) use self::commands::examine;
pub(super) use self::doorbells::{arm_cq, arms, send, sends};
pub(super) use self::entries::{cqe, eqe};
pub(super) use self::registers::{arm_eqs, read, set_consumer, write};
pub(super) use self::sequence::Sequence;
pub(super) use self::work::{recv_wqe, send_wqe, shared_wqe};

/// What strict mode remembers of a device.
#[derive(Debug, Default)]
pub struct Strict {
    hcr: HcrWatch,
    /// UAR page and register of a doorbell that has a first half and no second.
    half: Option<(u64, UarRegister)>,
    bring_up: BringUp,
}

/// How far software has come with the firmware, which the device does not have.
#[derive(Clone, Copy, Debug, Default)]
struct BringUp {
    firmware_lent: bool,
    firmware_runs: bool,
    aux_lent: bool,
}

impl BringUp {
    /// A command succeeded.
    fn done(&mut self, op: Op) {
        match op {
            Op::MapFa => self.firmware_lent = true,
            Op::RunFw => self.firmware_runs = true,
            Op::MapIcmAux => self.aux_lent = true,
            Op::UnmapIcmAux => self.aux_lent = false,
            Op::UnmapFa => (self.firmware_lent, self.firmware_runs) = (false, false),
            _ => {}
        }
    }
}

/// An initialised device as a check sees it.
#[derive(Clone, Copy)]
struct View<'a> {
    resources: &'a Resources,
    dma: &'a GuestMemory,
    /// UAR pages of BAR2.
    uar_pages: u32,
}
