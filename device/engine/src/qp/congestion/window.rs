//! Packets that a QP may have unacknowledged.
//!
//! Below us are UDP sockets whose buffers may hold no more than some dozen full frames, so a fixed window would lose
//! the same packets again in every round. The rule is additive increase, multiplicative decrease:
//!
//! - start at the configured window, which is also the cap;
//! - a loss (sequence NAK, implied NAK, timeout) halves it, once per round trip, down to
//!   [`MIN_WINDOW`](limits::MIN_WINDOW);
//! - each window's worth of acknowledged packets widens it by one packet.

use crate::limits;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    packets: u32,
    cap: u32,
    /// Packets acknowledged since the window last grew.
    credit: u32,
    /// Acknowledged packets to go until the loss that halved the window is behind us.
    recovering: u32,
}

impl Window {
    pub(crate) fn new(cap: u32) -> Self {
        let cap = cap.max(1);
        Self { packets: cap, cap, credit: 0, recovering: 0 }
    }

    /// Packets that may be unacknowledged.
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

    /// The loss that follows is one that an earlier cut did not prevent: it counts whatever came before.
    pub(crate) fn on_timeout(&mut self) {
        self.recovering = 0;
    }

    /// A loss was noticed while `outstanding` packets were unacknowledged. Returns whether the window shrank: all losses
    /// among those packets count once.
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
    fn losses_of_one_round_halve_the_window_once() {
        let mut window = Window::new(128);
        assert!(window.on_loss(100));
        assert!(!window.on_loss(90));
        assert_eq!(window.packets(), 64);
        window.on_acknowledged(100);
        assert!(window.on_loss(10));
        assert_eq!(window.packets(), 32);
    }

    #[test]
    fn a_window_of_acknowledgements_widens_it_by_one_up_to_the_cap() {
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
    fn a_window_smaller_than_the_minimum_stays() {
        let mut window = Window::new(2);
        window.on_loss(2);
        assert_eq!(window.packets(), 2);
    }
}
