//! State and activity of an SQ or RQ, as shown to an operator.

use protocol::hca::mlx5::sq::WorkQueueState;
use protocol::hca::mlx5::syndrome::Syndrome;
use serde::Serialize;

/// Counts of the frames handled by a queue since its creation. `bytes` excludes the frame check sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueCounters {
    pub frames: u64,
    pub bytes: u64,
    pub dropped: u64,
}

impl QueueCounters {
    pub const fn count(&mut self, len: usize) {
        self.frames += 1;
        self.bytes += len as u64;
    }
}

/// Work request that moved a queue to the error state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailedAt {
    /// WQE counter, as reported in the CQE.
    pub index: u16,
    pub syndrome: Syndrome,
}

/// A queue's activity, or why it is idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum QueueStatus {
    Reset,
    /// Ready, with nothing to do.
    Idle,
    /// The SQ has WQEs to execute.
    Busy,
    /// The last frame for the RQ was dropped for lack of a posted receive.
    NoReceive,
    /// In the error state; work requests complete with an error.
    Flushing,
    /// In the error state; work requests do not complete.
    Stopped,
}

impl QueueStatus {
    /// Returns the status of a queue that is not ready, or `None` for a ready queue.
    pub const fn unless_ready(state: WorkQueueState, flush_in_error: bool) -> Option<Self> {
        match (state, flush_in_error) {
            (WorkQueueState::Reset, _) => Some(Self::Reset),
            (WorkQueueState::Error, true) => Some(Self::Flushing),
            (WorkQueueState::Error, false) => Some(Self::Stopped),
            (WorkQueueState::Ready, _) => None,
        }
    }

    pub const fn name(self) -> &'static str {
        match self {
            Self::Reset => "reset",
            Self::Idle => "idle",
            Self::Busy => "busy",
            Self::NoReceive => "no_receive",
            Self::Flushing => "flushing",
            Self::Stopped => "stopped",
        }
    }

    /// Explains the status in a clause that can follow "status:".
    pub const fn explanation(self) -> &'static str {
        match self {
            Self::Reset => "in reset; the queue ignores doorbells and frames until the driver makes it ready",
            Self::Idle => "ready; all announced work requests are done",
            Self::Busy => "ready; posted WQEs wait for their turn",
            Self::NoReceive => "ready, but the last frame found no posted receive and was dropped",
            Self::Flushing => "in the error state; posted work requests complete with a flush error",
            Self::Stopped => "in the error state; posted work requests do not complete",
        }
    }
}
