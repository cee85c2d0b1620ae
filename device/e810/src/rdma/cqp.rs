//! The control queue pair (CQP): creates and destroys the queue and fetches its ring entries.
//!
//! # Spec
//! E810 interface, sections 9.1, 10.1 and 10.2.

use card::frontend::snapshot::{ControlRow, ControlState};
use card::limited;
use card::memory::{DmaError, GuestMemory};
use protocol::hca::e810::rdma::WQE_LEN;
use protocol::hca::e810::rdma::control::{ErrorCodes, HostContext, Status, Tail};
use protocol::ids::Iova;

use crate::limits::MAX_CQP_ENTRIES;

/// Protocol code of RoCEv2 in the host context.
const ROCE: u8 = 2;

#[derive(Debug, Default)]
pub(in super::super) struct Cqp {
    /// High half of the host context address, latched until the low half is written.
    context_high: u32,
    state: State,
    /// Error codes of the last failed operation.
    codes: ErrorCodes,
    /// Whether the last operation failed.
    failed: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Stopped,
    /// The queue was not created because the host context was inaccessible or invalid.
    Refused,
    Running(Running),
}

/// State of a running queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Running {
    ring: Iova,
    entries: u16,
    /// Index of the next entry to fetch.
    next: u16,
    /// Polarity of new entries in the current pass over the ring.
    polarity: bool,
    /// Value from the host context, returned to the driver in every completion.
    cookie: u64,
}

/// An entry fetched from the ring.
#[derive(Clone, Copy, Debug)]
pub(super) struct CqpEntry {
    pub(super) index: u16,
    /// Polarity that was expected when the entry was fetched.
    pub(super) polarity: bool,
    /// The WQE, or an error if the ring is not in mapped memory.
    pub(super) wqe: Result<[u8; WQE_LEN], DmaError>,
}

impl Cqp {
    /// Writes the register PFPE_CCQPHIGH.
    pub(super) const fn set_context_high(&mut self, high: u32) {
        self.context_high = high;
    }

    /// Returns the host context address, given its low half. Returns `None` for an address of 0, which requests
    /// destruction of the queue.
    pub(super) fn context(&self, low: u32) -> Option<Iova> {
        let address = u64::from(self.context_high) << 32 | u64::from(low);
        (address != 0).then_some(Iova::new(address))
    }

    /// Creates the queue. The caller must have destroyed any earlier queue.
    pub(super) fn start(&mut self, dma: &GuestMemory, context: Iova) {
        let mut bytes = [0; HostContext::LEN];
        let read = dma.read(context, &mut bytes);
        let context = HostContext::parse(&bytes);
        let wrong = if read.is_err() {
            Some("the context is not in mapped memory")
        } else if context.entries() > MAX_CQP_ENTRIES {
            Some("the ring is too long")
        } else if context.protocol != ROCE {
            Some("the protocol is not RoCE")
        } else {
            None
        };
        self.state = match (wrong, u16::try_from(context.entries())) {
            (None, Ok(entries)) => {
                limited!(info, entries, "RDMA control queue started");
                State::Running(Running {
                    ring: context.ring,
                    entries,
                    next: 0,
                    polarity: true,
                    cookie: context.cookie,
                })
            }
            (wrong, _) => {
                limited!(warn, "RDMA control queue not started: {}", wrong.unwrap_or_default());
                State::Refused
            }
        };
    }

    /// Reads the register PFPE_CCQPSTATUS.
    pub(super) fn status(&self) -> Status {
        Status { done: matches!(self.state, State::Running(_)), error: self.state == State::Refused }
    }

    /// Writes PFPE_CCQPSTATUS. A write without the error bit clears the error left by a failed creation.
    pub(super) fn clear_status(&mut self, to: Status) {
        if !to.error && self.state == State::Refused {
            self.state = State::Stopped;
        }
    }

    /// Reads the register PFPE_CQPTAIL.
    pub(super) fn tail(&self) -> Tail {
        Tail { next: self.running().map_or(0, |running| running.next), error: self.failed }
    }

    /// Reads the register PFPE_CQPERRCODES.
    pub(super) const fn error_codes(&self) -> ErrorCodes {
        self.codes
    }

    /// Returns the cookie that every completion carries, or `None` if the queue is not running.
    pub(super) fn cookie(&self) -> Option<u64> {
        Some(self.running()?.cookie)
    }

    /// Returns the number of ring entries, or 0 if the queue is not running.
    pub(super) fn entries(&self) -> u16 {
        self.running().map_or(0, |running| running.entries)
    }

    /// Fetches the next entry. Returns `None` if the next ring index is `end`, if `end` is outside the ring,
    /// or if the queue is not running.
    pub(super) fn fetch(&mut self, dma: &GuestMemory, end: u16) -> Option<CqpEntry> {
        let State::Running(running) = &mut self.state else { return None };
        let index = running.next;
        if end >= running.entries || index == end {
            return None;
        }
        let polarity = running.polarity;
        running.next = (index + 1) % running.entries;
        running.polarity ^= running.next == 0;
        let at = running.ring.get().wrapping_add(u64::from(index) * WQE_LEN as u64);
        let mut wqe = [0; WQE_LEN];
        let read = dma.read(Iova::new(at), &mut wqe);
        Some(CqpEntry { index, polarity, wqe: read.map(|()| wqe) })
    }

    /// Records the outcome of the last operation.
    pub(super) fn record_outcome(&mut self, error: Option<ErrorCodes>) {
        self.failed = error.is_some();
        if let Some(codes) = error {
            self.codes = codes;
        }
    }

    /// Returns the row for the control socket. The caller fills in the object counts.
    pub(super) fn row(&self) -> ControlRow {
        let (state, ring, entries, next) = match &self.state {
            State::Stopped => (ControlState::Stopped, 0, 0, 0),
            State::Refused => (ControlState::Refused, 0, 0, 0),
            State::Running(Running { ring, entries, next, .. }) => {
                (ControlState::Running, ring.get(), *entries, *next)
            }
        };
        ControlRow {
            state,
            ring,
            entries,
            next,
            error: u32::from_le_bytes(self.codes.emit()),
            pbles: 0,
            neighbours: 0,
            handles: 0,
            groups: 0,
            nodes: 0,
        }
    }

    const fn running(&self) -> Option<&Running> {
        match &self.state {
            State::Running(running) => Some(running),
            State::Stopped | State::Refused => None,
        }
    }
}
