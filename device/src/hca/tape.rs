//! Records the inputs and outputs of a device, or compares them in a replay.

use crate::fabric::TxBatch;
use crate::frontend::Frontend;
use crate::record::{Input, Tape};

use super::{Hca, WorkLeft};

/// Bookkeeping of outbound frames for the record.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    /// Number of frames at the front of the batch that were recorded.
    told: usize,
    /// Length of the batch when the fabric got access to it.
    lent: Option<usize>,
}

impl Outgoing {
    /// Notes the length of the batch before the fabric gets access to it.
    pub(super) fn lend(&mut self, batch: &TxBatch) {
        self.lent.get_or_insert(batch.len());
    }

    /// Notes that the batch was cleared.
    pub(super) fn clear(&mut self) {
        self.told = 0;
    }
}

impl<F: Frontend> Hca<F> {
    /// Records everything from now on, or compares it with a record. Only for a device after power-on: its creation
    /// from the configuration is not part of a record.
    pub fn set_tape(&mut self, tape: &Tape) {
        self.use_tape(Some(tape));
    }

    /// Ends recording or replay.
    pub fn remove_tape(&mut self) {
        self.use_tape(None);
    }

    fn use_tape(&mut self, tape: Option<&Tape>) {
        self.memory.set_tape(tape.cloned());
        self.interrupts.set_tape(tape.cloned());
        self.tape = tape.cloned();
    }

    /// Records the input that begins a step.
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

    /// Records the outputs of a turn.
    pub(super) fn tell_drained(&mut self, left: WorkLeft) {
        let Some(tape) = &self.tape else { return };
        self.outbound.iter().skip(self.outgoing.told).for_each(|(_, frame)| tape.frame(frame));
        self.outgoing.told = self.outbound.len();
        tape.drained(left.frames, left.other);
    }

    /// Records the data that the client has read.
    pub(super) fn tell_answer(&self, answer: &[u8]) {
        if let Some(tape) = &self.tape {
            tape.answer(answer);
        }
    }
}
