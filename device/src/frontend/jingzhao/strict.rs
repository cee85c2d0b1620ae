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
use crate::memory::GuestMemory;
use crate::telemetry::monitor::{Monitor, Rule};

pub(super) use self::commands::examine;
pub(super) use self::qps::doorbell;
pub(super) use self::registers::{arm, read, write};
pub(super) use self::wqes::{recv_wqe, send_wqe};

/// Bound: freed keys that are remembered.
const FREED_KEYS: usize = 4096;

/// What strict mode remembers.
#[derive(Debug, Default)]
pub struct Strict {
    /// A command was started, and its end not looked for.
    unseen_command: bool,
    /// UAR page whose doorbell has a first half and no second.
    half_page: Option<u64>,
    /// Keys that were freed, the latest last.
    freed: VecDeque<Lkey>,
}

/// What was found wrong with one thing that software did.
#[derive(Debug, Default)]
pub struct Findings {
    violations: Vec<(&'static Rule, String)>,
    /// The key that it frees.
    freed: Option<Lkey>,
}

impl Findings {
    fn add(&mut self, rule: &'static Rule, what: impl Into<String>) {
        self.violations.push((rule, what.into()));
    }

    /// Tells the operator.
    pub(super) fn report(self, monitor: &mut Monitor) {
        for (rule, what) in self.violations {
            monitor.violation(rule, format_args!("{what}"));
        }
    }
}

impl Strict {
    /// CLOSE_HCA: keys begin anew.
    pub(super) fn close(&mut self) {
        self.freed.clear();
    }

    /// Remembers what a command did that was carried out.
    pub(super) fn remember(&mut self, found: &Findings) {
        if let Some(key) = found.freed {
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
