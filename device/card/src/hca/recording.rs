//! Records a device's inputs and outputs or, in a replay, compares its outputs with a recording.

use crate::fabric::TxBatch;
use crate::frontend::Frontend;
use crate::record::{Input, RecordSink};

use super::{Hca, WorkLeft};

/// Tracks which outbound frames have been recorded.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    /// Number of frames, counted from the front of the batch, that have been recorded.
    recorded: usize,
    /// Length of the batch when it was passed to the fabric. The fabric removes the frames that it sends.
    shared: Option<usize>,
}

impl Outgoing {
    /// Stores the current length of the batch. Call this before passing the batch to the fabric.
    pub(super) fn note_len(&mut self, batch: &TxBatch) {
        self.shared.get_or_insert(batch.len());
    }

    /// Records that the batch has been cleared.
    pub(super) fn clear(&mut self) {
        self.recorded = 0;
    }
}

impl<F: Frontend> Hca<F> {
    /// Starts recording all inputs and outputs or, in a replay, comparing the outputs with a recording. May only be
    /// called on a device in its power-on state, because a recording does not contain the initial state.
    pub fn set_record_sink(&mut self, sink: &RecordSink) {
        self.use_record_sink(Some(sink));
    }

    /// Ends recording or replay.
    pub fn remove_record_sink(&mut self) {
        self.use_record_sink(None);
    }

    fn use_record_sink(&mut self, sink: Option<&RecordSink>) {
        self.memory.set_record_sink(sink.cloned());
        self.interrupts.set_record_sink(sink.cloned());
        self.sink = sink.cloned();
    }

    /// Records the input that begins a step.
    pub(super) fn step(&mut self, input: Input<'_>) {
        let Some(sink) = &self.sink else { return };
        if let Some(shared) = self.outgoing.shared.take() {
            let frames = self.outbound.len();
            if frames != shared {
                self.outgoing.recorded = self.outgoing.recorded.saturating_sub(shared.saturating_sub(frames));
                sink.input(Input::Left { frames });
            }
        }
        sink.step(self.now.as_nanos(), input);
    }

    /// Records the outputs of one iteration of the event loop.
    pub(super) fn record_drained(&mut self, left: WorkLeft) {
        let Some(sink) = &self.sink else { return };
        self.outbound.iter().skip(self.outgoing.recorded).for_each(|(_, frame)| sink.frame(frame));
        self.outgoing.recorded = self.outbound.len();
        sink.drained(left.frames, left.other);
    }

    /// Records the data read by the client.
    pub(super) fn record_answer(&self, answer: &[u8]) {
        if let Some(sink) = &self.sink {
            sink.answer(answer);
        }
    }
}
