//! The request controller: which channel is served next.
//!
//! The command unit comes first, then the engine's units in turn. Here a command runs to its end inside the store that
//! starts it, and a unit's read is answered where it is made, so neither ever waits; the units' writes do, since they
//! reach guest memory at the end of a turn. So the priority of the command unit is a fact of the structure - its
//! requests pass whatever waits here - and this file has the turns of the rest.
//!
//! # Spec
//! CtxMgt document, section 5.2; JingZhao interface, section 5.4.

use std::collections::VecDeque;

/// A unit of the engine, by its bit in the document's `selected_channel`. Bit 0 is the command unit's.
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

/// A unit that writes, in the order of the channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Writer {
    /// Writes NextPSN.
    RequesterTransControl,
    /// Writes UnAckedPSN.
    RequesterRecvControl,
    /// Writes Expected PSN.
    ExecutionEngine,
}

impl Writer {
    /// All of them, in the order of the channels.
    pub const ALL: [Self; 3] =
        [Self::RequesterTransControl, Self::RequesterRecvControl, Self::ExecutionEngine];

    /// Its channel.
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

/// Writes that wait, by QP index.
#[derive(Debug)]
pub struct RequestController {
    requests: [VecDeque<u32>; 3],
    /// Served last; the one behind it is looked at first.
    last: Writer,
}

impl Default for RequestController {
    fn default() -> Self {
        Self { requests: Default::default(), last: Writer::ExecutionEngine }
    }
}

impl RequestController {
    /// A unit wants the values of a QP written back.
    pub fn post(&mut self, writer: Writer, index: u32) {
        self.requests[writer as usize].push_back(index);
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.requests.iter().all(VecDeque::is_empty)
    }

    /// Takes the next request: of the first channel behind the one served last that has any.
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
    fn channels_take_turns_and_each_keeps_its_order() {
        let mut controller = RequestController::default();
        for (writer, index) in [(Ee, 1), (Ee, 2), (Rtc, 3), (Rtc, 4), (Rtc, 5), (Rrc, 6)] {
            controller.post(writer, index);
        }
        assert_eq!(served(&mut controller), [(Rtc, 3), (Rrc, 6), (Ee, 1), (Rtc, 4), (Ee, 2), (Rtc, 5)]);
        assert!(controller.is_empty());
    }

    #[test]
    fn a_busy_channel_does_not_starve_the_others() {
        let mut controller = RequestController::default();
        (0..100).for_each(|index| controller.post(Rtc, index));
        assert_eq!(controller.select(), Some((Rtc, 0)));
        controller.post(Ee, 7);
        controller.post(Rrc, 8);
        assert_eq!([controller.select(), controller.select()], [Some((Rrc, 8)), Some((Ee, 7))]);
    }
}
