//! Strict mode: what a driver does against the interface though the device tolerates it.
//!
//! Nothing here changes what the device does. Commands are looked at before they are executed, when what they are about
//! to undo is still there, and reported if they then succeed: a command that is refused has its answer.
//!
//! # Spec
//! JingZhao interface; [`rules`] names the sections.

mod commands;
mod icm;
mod memory;
mod qps;
mod queues;
mod registers;
pub mod rules;
mod wqes;

use std::collections::VecDeque;

use protocol::ids::Lkey;

use super::resources::Resources;
use crate::frontend::hcr::strict::HcrWatch;
use crate::frontend::strict::Findings;
use crate::memory::GuestMemory;
use crate::telemetry::monitor::Monitor;

pub(super) use self::commands::examine;
pub(super) use self::qps::doorbell;
pub(super) use self::registers::{arm, read, write};
pub(super) use self::wqes::{recv_wqe, send_wqe};

/// Bound: freed keys that are remembered.
const FREED_KEYS: usize = 4096;

/// What strict mode remembers.
#[derive(Debug, Default)]
pub struct Strict {
    hcr: HcrWatch,
    /// UAR page whose doorbell has a first half and no second.
    half_page: Option<u64>,
    /// Keys that were freed, the latest last.
    freed: VecDeque<Lkey>,
}

/// What was found wrong with a command, and what is remembered of it if it succeeds.
#[derive(Debug)]
pub struct Examined {
    found: Findings,
    /// The key that it frees.
    freed: Option<Lkey>,
}

impl Examined {
    /// Tells the operator.
    pub(super) fn report(self, monitor: &mut Monitor) {
        self.found.report(monitor);
    }
}

impl Strict {
    /// CLOSE_HCA: keys begin anew.
    pub(super) fn close(&mut self) {
        self.freed.clear();
    }

    /// Remembers what a command did that was carried out.
    pub(super) fn record(&mut self, examined: &Examined) {
        if let Some(key) = examined.freed {
            if self.freed.len() == FREED_KEYS {
                self.freed.pop_front();
            }
            self.freed.push_back(key);
        }
    }
}

/// An initialised device as a check sees it.
#[derive(Clone, Copy)]
struct View<'a> {
    resources: &'a Resources,
    dma: &'a GuestMemory,
}
