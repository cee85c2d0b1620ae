//! What a device tells its record: which step begins, and what came of it.

use crate::fabric::TxBatch;
use crate::frontend::Frontend;
use crate::record::{Input, Tape};

use super::{Hca, WorkLeft};

/// What is to be known of frames on their way out.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    /// Of those in the batch, how many were told, from the front on.
    told: usize,
    /// How many there were when the batch was lent to whoever sends them.
    lent: Option<usize>,
}

impl Outgoing {
    /// The batch is lent.
    pub(super) fn lend(&mut self, batch: &TxBatch) {
        self.lent.get_or_insert(batch.len());
    }

    /// The batch was emptied.
    pub(super) fn clear(&mut self) {
        self.told = 0;
    }
}

impl<F: Frontend> Hca<F> {
    /// Records everything from now on, or compares it with what was recorded. For a device after power-on: what it is made
    /// of by its configuration is no part of a record.
    pub fn set_tape(&mut self, tape: &Tape) {
        self.use_tape(Some(tape));
    }

    /// Ends that.
    pub fn remove_tape(&mut self) {
        self.use_tape(None);
    }

    fn use_tape(&mut self, tape: Option<&Tape>) {
        self.memory.set_tape(tape.cloned());
        self.interrupts.set_tape(tape.cloned());
        self.tape = tape.cloned();
    }

    /// A step begins.
    pub(super) fn step(&mut self, input: Input<'_>) {
        let Some(tape) = &self.tape else { return };
        if let Some(lent) = self.outgoing.lent.take() {
            let frames = self.outbound.len();
            if frames != lent {
                self.outgoing.told = self.outgoing.told.saturating_sub(lent.saturating_sub(frames));
                tape.input(Input::Left { frames });
            }
        }
        tape.step(self.now.as_nanos(), input);
    }

    /// A turn has ended.
    pub(super) fn tell_drained(&mut self, left: WorkLeft) {
        let Some(tape) = &self.tape else { return };
        self.outbound.iter().skip(self.outgoing.told).for_each(|(_, frame)| tape.frame(frame));
        self.outgoing.told = self.outbound.len();
        tape.drained(left.frames, left.other);
    }

    /// The client has read.
    pub(super) fn tell_answer(&self, answer: &[u8]) {
        if let Some(tape) = &self.tape {
            tape.answer(answer);
        }
    }
}
