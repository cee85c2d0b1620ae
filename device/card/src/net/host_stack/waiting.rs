//! Frames that are waiting for their destination's MAC to be resolved.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Duration;

use engine::Instant;
use protocol::ids::MacAddr;

/// Maximum number of waiting frames. A frame beyond this limit replaces the oldest one. Requesters retransmit packets
/// lost this way.
const MAX_FRAMES: usize = 256;

/// Maximum time that a frame waits before it is dropped (RFC 4861, section 7.2.2: three requests, one second apart).
const MAX_WAIT: Duration = Duration::from_secs(3);

#[derive(Debug, Default)]
pub(super) struct Waiting {
    frames: VecDeque<(Instant, IpAddr, Vec<u8>)>,
    ready: VecDeque<Vec<u8>>,
}

impl Waiting {
    /// Queues a frame. Returns the number of frames dropped.
    pub(super) fn push(&mut self, now: Instant, ip: IpAddr, frame: Vec<u8>) -> usize {
        let before = self.frames.len();
        self.frames.retain(|(since, ..)| now.saturating_since(*since) < MAX_WAIT);
        if self.frames.len() >= MAX_FRAMES {
            self.frames.pop_front();
        }
        let lost = before - self.frames.len();
        self.frames.push_back((now, ip, frame));
        lost
    }

    /// Moves the frames for a resolved address to the ready queue. Drops frames that are too old and returns their
    /// number.
    pub(super) fn resolve(&mut self, now: Instant, ip: IpAddr, mac: MacAddr) -> usize {
        let mut lost = 0;
        for (since, wanted, mut frame) in std::mem::take(&mut self.frames) {
            if wanted != ip {
                self.frames.push_back((since, wanted, frame));
            } else if now.saturating_since(since) >= MAX_WAIT {
                lost += 1;
            } else if let Some(dst) = frame.first_chunk_mut() {
                *dst = mac.0;
                self.ready.push_back(frame);
            }
        }
        lost
    }

    /// Returns the next ready frame, with its destination MAC filled in.
    pub(super) fn pop_ready(&mut self) -> Option<Vec<u8>> {
        self.ready.pop_front()
    }

    pub(super) fn clear(&mut self) {
        self.frames.clear();
        self.ready.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const A: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
    const B: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2));
    const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 9]);

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    #[test]
    fn resolved_frames_leave_in_order() {
        let mut waiting = Waiting::default();
        for (ip, tag) in [(A, 1), (B, 2), (A, 3)] {
            assert_eq!(waiting.push(at(0), ip, vec![0, 0, 0, 0, 0, 0, tag]), 0);
        }
        assert_eq!(waiting.resolve(at(10), A, MAC), 0);
        let ready: Vec<_> = std::iter::from_fn(|| waiting.pop_ready()).collect();
        assert_eq!(ready, [vec![2, 0, 0, 0, 0, 9, 1], vec![2, 0, 0, 0, 0, 9, 3]]);
        assert_eq!(waiting.frames.len(), 1);
    }

    #[test]
    fn unresolved_frames_are_dropped_after_timeout() {
        let mut waiting = Waiting::default();
        waiting.push(at(0), A, vec![0; 60]);
        waiting.push(at(100), A, vec![1; 60]);
        assert_eq!(waiting.resolve(at(3000), A, MAC), 1);
        assert_eq!(waiting.pop_ready().map(|frame| frame[6]), Some(1));
        waiting.push(at(4000), B, vec![0; 60]);
        assert_eq!(waiting.push(at(7000), B, vec![0; 60]), 1);
    }

    #[test]
    fn full_queue_drops_oldest_frame() {
        let mut waiting = Waiting::default();
        let lost: usize = (0..300).map(|_| waiting.push(at(0), A, vec![0; 60])).sum();
        assert_eq!((lost, waiting.frames.len()), (300 - MAX_FRAMES, MAX_FRAMES));
    }
}
