//! The request controller, which determines the order in which the engine's units write back key data of QPs.
//!
//! In the CtxMgt document, the command unit has priority, followed by the engine's units in round-robin order. Here, a
//! command completes within the MMIO write that starts it, and a unit's read is served immediately. Neither is queued,
//! so commands always have priority. Only the units' writes are queued: they reach guest memory at the end of a pass
//! of the device's event loop, in the order that this controller chooses.
//!
//! # Spec
//! CtxMgt document, section 5.2; JingZhao interface, section 5.4.

use std::collections::VecDeque;

/// A unit of the engine, numbered by its bit in `selected_channel` of the CtxMgt document. Bit 0 is the command unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Channel {
    DoorbellProcessing = 1,
    WqeParser = 2,
    RequesterTransControl = 3,
    RequesterRecvControl = 4,
    ExecutionEngine = 5,
    FrameEncap = 6,
}

/// A unit that writes the state and one of the PSNs in a QP's key data. The variants are in channel order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Writer {
    /// The unit that writes NextPSN.
    RequesterTransControl,
    /// The unit that writes UnAckedPSN.
    RequesterRecvControl,
    /// The unit that writes Expected PSN.
    ExecutionEngine,
}

impl Writer {
    /// All writers, in channel order.
    pub const ALL: [Self; 3] =
        [Self::RequesterTransControl, Self::RequesterRecvControl, Self::ExecutionEngine];

    pub const fn channel(self) -> Channel {
        match self {
            Self::RequesterTransControl => Channel::RequesterTransControl,
            Self::RequesterRecvControl => Channel::RequesterRecvControl,
            Self::ExecutionEngine => Channel::ExecutionEngine,
        }
    }

    const fn next(self) -> Self {
        match self {
            Self::RequesterTransControl => Self::RequesterRecvControl,
            Self::RequesterRecvControl => Self::ExecutionEngine,
            Self::ExecutionEngine => Self::RequesterTransControl,
        }
    }
}

/// Queued write-backs by writer, as QP indices.
#[derive(Debug)]
pub struct RequestController {
    requests: [VecDeque<u32>; 3],
    /// The last writer served. The search for the next request starts at the writer after it.
    last: Writer,
}

impl Default for RequestController {
    fn default() -> Self {
        Self { requests: Default::default(), last: Writer::ExecutionEngine }
    }
}

impl RequestController {
    /// Queues a write-back of the key data that `writer` has changed for a QP.
    pub fn post(&mut self, writer: Writer, index: u32) {
        self.requests[writer as usize].push_back(index);
    }

    pub fn is_empty(&self) -> bool {
        self.requests.iter().all(VecDeque::is_empty)
    }

    /// Removes and returns the next request, round-robin among the writers.
    pub fn select(&mut self) -> Option<(Writer, u32)> {
        let mut writer = self.last;
        for _ in Writer::ALL {
            writer = writer.next();
            if let Some(index) = self.requests[writer as usize].pop_front() {
                self.last = writer;
                return Some((writer, index));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::Writer::{ExecutionEngine as Ee, RequesterRecvControl as Rrc, RequesterTransControl as Rtc};
    use super::*;

    fn served(controller: &mut RequestController) -> Vec<(Writer, u32)> {
        std::iter::from_fn(|| controller.select()).collect()
    }

    /// Section 5.2.1: "the RDMA engine's requests are scheduled in turn".
    #[test]
    fn channels_are_fifo_and_served_round_robin() {
        let mut controller = RequestController::default();
        for (writer, index) in [(Ee, 1), (Ee, 2), (Rtc, 3), (Rtc, 4), (Rtc, 5), (Rrc, 6)] {
            controller.post(writer, index);
        }
        assert_eq!(served(&mut controller), [(Rtc, 3), (Rrc, 6), (Ee, 1), (Rtc, 4), (Ee, 2), (Rtc, 5)]);
        assert!(controller.is_empty());
    }

    #[test]
    fn busy_channel_does_not_starve_others() {
        let mut controller = RequestController::default();
        (0..100).for_each(|index| controller.post(Rtc, index));
        assert_eq!(controller.select(), Some((Rtc, 0)));
        controller.post(Ee, 7);
        controller.post(Rrc, 8);
        assert_eq!([controller.select(), controller.select()], [Some((Rrc, 8)), Some((Ee, 7))]);
    }
}
