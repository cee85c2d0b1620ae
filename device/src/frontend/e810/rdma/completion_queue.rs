//! A completion queue: its ring, and when software is told that there is something in it.
//!
//! # Spec
//! E810 interface, sections 12.2 and 12.3.

use protocol::hca::e810::rdma::completion_queue::CqCommand;
use protocol::hca::e810::rdma::error::CqpError;
use protocol::ids::Iova;

use super::event_queues::EventQueues;
use super::hmc::Pages;
use super::ring::{EntryRing, Location};
use crate::limited;

/// Bytes of an entry.
pub(super) const ENTRY_LEN: usize = 32;

/// Offset of the arm word in the shadow area.
const ARM_WORD: u64 = 32;
/// Offset of software's head in it.
const HEAD_WORD: u64 = 0;
/// Head, in its word.
const HEAD: u64 = 0xf_ffff;
/// Arm word: tell of the next completion.
const ARM_NEXT: u64 = 1 << 14;
/// Arm word: tell of the next completion that is solicited.
const ARM_SOLICITED: u64 = 1 << 15;

/// What software waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Armed {
    /// Nothing.
    #[default]
    No,
    /// A completion that is solicited, or an error.
    Solicited,
    /// Any.
    Next,
}

/// A completion queue.
#[derive(Debug)]
pub(super) struct CompletionQueue {
    ring: EntryRing<ENTRY_LEN>,
    shadow: Iova,
    /// Its event queue, and what its events carry.
    events: Option<(u16, u64)>,
    armed: Armed,
}

impl CompletionQueue {
    /// A queue without completions.
    ///
    /// # Errors
    /// Its ring makes no sense.
    pub(super) fn new(command: &CqCommand) -> Result<Self, CqpError> {
        let location = Location::new(command.in_pages, command.level, command.ring, command.first_page)?;
        Ok(Self {
            ring: EntryRing::new(location, command.entries)?,
            shadow: command.shadow,
            events: command.ceq_valid.then_some((command.ceq, command.cookie)),
            armed: Armed::No,
        })
    }

    /// Writes a completion, and tells software if it waits for it.
    pub(super) fn post(
        &mut self,
        pages: Pages<'_>,
        events: &mut EventQueues,
        entry: [u8; ENTRY_LEN],
        solicited: bool,
    ) {
        if self.ring.push(pages, entry).is_err() {
            return limited!(warn, "a completion is lost: its ring cannot be reached");
        }
        if self.armed == Armed::Next || self.armed == Armed::Solicited && solicited {
            self.tell(pages, events);
        }
    }

    /// Software has armed the queue. What it has not read yet it may have missed: QEMU posts writes, so that it looked and
    /// went to sleep before the device could know.
    pub(super) fn arm(&mut self, pages: Pages<'_>, events: &mut EventQueues) {
        let Some((arm, head)) = self.shadow(pages) else {
            return limited!(warn, "a completion queue's shadow area cannot be reached");
        };
        self.armed = match (arm & ARM_NEXT != 0, arm & ARM_SOLICITED != 0) {
            (true, _) => Armed::Next,
            (false, true) => Armed::Solicited,
            (false, false) => Armed::No,
        };
        if self.armed != Armed::No && head != u64::from(self.ring.next()) {
            self.tell(pages, events);
        }
    }

    fn tell(&mut self, pages: Pages<'_>, events: &mut EventQueues) {
        self.armed = Armed::No;
        if let Some((ceq, cookie)) = self.events {
            events.notify(pages, ceq, cookie);
        }
    }

    /// Arm word and head.
    fn shadow(&self, pages: Pages<'_>) -> Option<(u64, u64)> {
        let mut words = [[0; 8]; 2];
        for (word, offset) in words.iter_mut().zip([ARM_WORD, HEAD_WORD]) {
            pages.dma().read(Iova::new(self.shadow.get().checked_add(offset)?), word).ok()?;
        }
        let [arm, head] = words.map(u64::from_le_bytes);
        Some((arm, head & HEAD))
    }
}
