//! Congestion window of a QP: the maximum number of unacknowledged packets.
//!
//! The underlying UDP sockets may buffer only a few dozen full frames, so a fixed window would lose the same packets
//! again in every round trip. The window uses additive increase and multiplicative decrease:
//!
//! - it starts at the configured window, which is also its maximum;
//! - a loss (sequence NAK, implied NAK, timeout) halves it, at most once per round trip, down to
//!   [`MIN_WINDOW`](limits::MIN_WINDOW);
//! - it widens by one packet whenever a full window of packets has been acknowledged.

use crate::limits;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    packets: u32,
    cap: u32,
    /// Packets acknowledged since the window was last widened.
    credit: u32,
    /// Number of packets still to be acknowledged before another loss is counted.
    recovering: u32,
}

impl Window {
    pub(crate) fn new(cap: u32) -> Self {
        let cap = cap.max(1);
        Self { packets: cap, cap, credit: 0, recovering: 0 }
    }

    /// Returns the maximum number of unacknowledged packets.
    pub(crate) fn packets(&self) -> u32 {
        self.packets
    }

    pub(crate) fn on_acknowledged(&mut self, packets: u32) {
        self.recovering = self.recovering.saturating_sub(packets);
        if self.packets == self.cap {
            return;
        }
        self.credit += packets.min(self.cap);
        if self.credit >= self.packets {
            self.credit -= self.packets;
            self.packets += 1;
        }
    }

    /// Allows the next loss to shrink the window even within the same round trip. A timeout shows that the earlier
    /// reduction was not enough.
    pub(crate) fn on_timeout(&mut self) {
        self.recovering = 0;
    }

    /// Records a loss detected while `outstanding` packets were unacknowledged. All losses among those packets count as
    /// one. Returns false if one of them has already been counted.
    pub(crate) fn on_loss(&mut self, outstanding: u32) -> bool {
        if self.recovering > 0 {
            return false;
        }
        self.recovering = outstanding;
        self.packets = (self.packets / 2).max(limits::MIN_WINDOW.min(self.cap));
        self.credit = 0;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_in_one_round_trip_halve_window_once() {
        let mut window = Window::new(128);
        assert!(window.on_loss(100));
        assert!(!window.on_loss(90));
        assert_eq!(window.packets(), 64);
        window.on_acknowledged(100);
        assert!(window.on_loss(10));
        assert_eq!(window.packets(), 32);
    }

    #[test]
    fn window_grows_by_one_packet_per_acknowledged_window() {
        let mut window = Window::new(16);
        window.on_loss(16);
        for expected in 9..=16 {
            window.on_acknowledged(window.packets());
            assert_eq!(window.packets(), expected);
        }
        window.on_acknowledged(1000);
        assert_eq!(window.packets(), 16);
    }

    #[test]
    fn window_below_minimum_never_shrinks() {
        let mut window = Window::new(2);
        window.on_loss(2);
        assert_eq!(window.packets(), 2);
    }
}
