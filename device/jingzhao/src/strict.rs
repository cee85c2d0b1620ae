//! Strict mode: reports violations of the interface that the device tolerates.
//!
//! Checks do not change the device's behaviour. A command is checked before it executes, while the objects that it
//! removes still exist. Findings are reported only if the command succeeds, because a rejected command already returns
//! an error status.
//!
//! # Spec
//! JingZhao interface; [`rules`] cites the sections.

mod commands;
mod icm;
mod memory;
mod qps;
mod queues;
mod registers;
pub mod rules;
mod wqes;

use std::collections::VecDeque;

use card::frontend::strict::Findings;
use card::memory::GuestMemory;
use card::telemetry::monitor::Monitor;
use hcr::strict::HcrWatch;
use protocol::ids::Lkey;

use super::resources::Resources;

pub(super) use self::commands::{Before, examine};
pub(super) use self::qps::doorbell;
pub(super) use self::registers::{arm, read, write};
pub(super) use self::wqes::{recv_wqe, send_wqe};

/// Maximum number of freed keys kept for reuse detection.
const FREED_KEYS: usize = 4096;

#[derive(Debug, Default)]
pub struct Strict {
    hcr: HcrWatch,
    /// UAR page with a half-written doorbell.
    half_page: Option<u64>,
    /// Freed keys, most recent last.
    freed: VecDeque<Lkey>,
}

/// Result of checking a command. It is reported and recorded only if the command succeeds.
#[derive(Debug)]
pub struct Examined {
    found: Findings,
    freed: Option<Lkey>,
}

impl Examined {
    pub(super) fn report(self, monitor: &mut Monitor) {
        self.found.report(monitor);
    }
}

impl Strict {
    /// Handles CLOSE_HCA, whether it was issued or is implied by INIT_HCA. Afterwards, any key may be reused.
    pub(super) fn close(&mut self) {
        self.freed.clear();
    }

    pub(super) fn record(&mut self, examined: &Examined) {
        if let Some(key) = examined.freed {
            if self.freed.len() == FREED_KEYS {
                self.freed.pop_front();
            }
            self.freed.push_back(key);
        }
    }
}

/// The parts of an initialised device that the checks examine.
#[derive(Clone, Copy)]
struct View<'a> {
    resources: &'a Resources,
    dma: &'a GuestMemory,
}
