//! Counts queue pairs by state. The counts are updated at each transition, so reading them does not require a scan.

use serde::{Deserialize, Serialize};

use crate::State;

/// Number of queue pairs in each state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct QpStates {
    pub reset: u64,
    pub init: u64,
    pub rtr: u64,
    pub rts: u64,
    pub sqe: u64,
    pub sqd: u64,
    pub err: u64,
}

impl QpStates {
    pub(crate) fn enter(&mut self, state: State) {
        *self.of(state) += 1;
    }

    pub(crate) fn leave(&mut self, state: State) {
        let count = self.of(state);
        *count = count.saturating_sub(1);
    }

    pub(crate) fn change(&mut self, from: State, to: State) {
        if from != to {
            self.leave(from);
            self.enter(to);
        }
    }

    fn of(&mut self, state: State) -> &mut u64 {
        match state {
            State::Reset => &mut self.reset,
            State::Init => &mut self.init,
            State::Rtr => &mut self.rtr,
            State::Rts => &mut self.rts,
            State::Sqe => &mut self.sqe,
            State::Sqd => &mut self.sqd,
            State::Err => &mut self.err,
        }
    }
}
