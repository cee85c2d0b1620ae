//! Who is told of congestion, how often, and what that changes.

use std::time::Duration;

use protocol::roce::{Bth, Opcode, RoceFrame};

use super::{Checker, Place, Violation, demand};
use crate::{Instant, Service};

/// IBTA annex A17 leaves the time between notifications of one flow to the device: so long, here.
const INTERVAL: Duration = Duration::from_micros(50);
/// What a notified flow may be late by, or one on a slow link: some bursts at the slowest rate.
const SLOW: Duration = Duration::from_millis(20);

/// What one side knows of congestion.
#[derive(Debug, Default)]
pub(super) struct Congestion {
    /// Marked data arrived since it last told its peer.
    marked: bool,
    told_at: Option<Instant>,
    /// It was told.
    notified: bool,
}

impl Checker<'_> {
    /// The net hands a frame to `place`.
    pub(super) fn hear_congestion(&mut self, place: Place, frame: &RoceFrame<'_>) {
        let connected = self.pair(place).service != Service::Ud;
        let congestion = &mut self.side_mut(place).congestion;
        if frame.packet.bth.opcode == Opcode::CNP {
            congestion.notified = true;
        } else if connected && frame.encap.traffic_class & 3 == 3 && !frame.packet.payload.is_empty() {
            congestion.marked = true;
        }
    }

    /// `place` sends a notification.
    pub(super) fn judge_notification(&mut self, place: Place, bth: &Bth) -> Result<(), Violation> {
        let now = self.now;
        let peer = self.pair(place).ends[1 - place.side].qpn;
        demand!(bth.dest_qp == peer && bth.becn, "{bth:?}");
        let congestion = &mut self.side_mut(place).congestion;
        demand!(congestion.marked, "a notification, and nothing was marked");
        let last = congestion.told_at.replace(now);
        demand!(last.is_none_or(|last| now >= last + INTERVAL), "a notification after one at {last:?}");
        congestion.marked = false;
        Ok(())
    }

    /// How late `place` may do what is due: time moves from event to event, so not at all, but for a slow link or a rate.
    pub(super) fn slack(&self, place: Place) -> Duration {
        if self.side(place).congestion.notified || self.plan.frames_per_step < u32::MAX {
            SLOW
        } else {
            Duration::from_nanos(1)
        }
    }
}
