//! Checks that congestion notifications (CNPs) are sent only after ECN-marked data has arrived, and at a limited rate.

use std::time::Duration;

use protocol::roce::{Bth, Opcode, RoceFrame};

use super::{Checker, SideId, Violation, ensure};
use engine::{Instant, Service};

/// Minimum time between notifications for a flow. IBTA annex A17 leaves the value to the device.
const INTERVAL: Duration = Duration::from_micros(50);
/// Tolerance for late actions on a rate-limited flow or a slow link. It covers several bursts at the minimum rate.
const SLOW: Duration = Duration::from_millis(20);

#[derive(Debug, Default)]
pub(super) struct Congestion {
    /// Whether ECN-marked data has arrived since the last notification was sent.
    marked: bool,
    last_sent_at: Option<Instant>,
    notified: bool,
}

impl Checker<'_> {
    pub(super) fn record_congestion(&mut self, id: SideId, frame: &RoceFrame<'_>) {
        let connected = self.pair(id).service != Service::Ud;
        let congestion = &mut self.side_mut(id).congestion;
        if frame.packet.bth.opcode == Opcode::CNP {
            congestion.notified = true;
        } else if connected && frame.encap.traffic_class & 3 == 3 && !frame.packet.payload.is_empty() {
            congestion.marked = true;
        }
    }

    pub(super) fn check_notification(&mut self, id: SideId, bth: &Bth) -> Result<(), Violation> {
        let now = self.now;
        let peer = self.pair(id).ends[1 - id.side].qpn;
        ensure!(bth.dest_qp == peer && bth.becn, "expected a CNP to {peer:?} with BECN set: {bth:?}");
        let congestion = &mut self.side_mut(id).congestion;
        ensure!(
            congestion.marked,
            "a CNP was sent, but no ECN-marked data had arrived since the previous CNP"
        );
        let last = congestion.last_sent_at.replace(now);
        ensure!(
            last.is_none_or(|last| now >= last + INTERVAL),
            "a CNP was sent less than {INTERVAL:?} after the previous CNP, which was sent at {last:?}"
        );
        congestion.marked = false;
        Ok(())
    }

    /// Returns the tolerance for late actions. Since simulated time advances from event to event, only rate limits and
    /// slow links can delay an action.
    pub(super) fn slack(&self, id: SideId) -> Duration {
        if self.side(id).congestion.notified || self.plan.frames_per_step < u32::MAX {
            SLOW
        } else {
            Duration::from_nanos(1)
        }
    }
}
