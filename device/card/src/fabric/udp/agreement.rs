//! Agreement between two HCAs on padded frames.
//!
//! Before an HCA pads frames to a peer, it sends a request. A peer that removes padding from received frames replies
//! with an acceptance; any other peer ignores the request. The acceptance expires so that padding soon stops if another
//! program takes over the peer's address.
//!
//! An acceptance echoes the random number of its request so that only a program that received the request can accept
//! it.

use std::time::Duration;

use engine::Instant;
use protocol::ids::MacAddr;
use zerocopy::byteorder::network_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Time after which an acceptance expires.
const LIFETIME: Duration = Duration::from_secs(3);
/// Minimum interval between requests. An agreement survives the loss of one renewal.
const INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of doublings. The interval doubles with each unanswered request.
const MAX_DOUBLINGS: u32 = 6;

/// EtherType for local experiments (IEEE 802-2014, section 9.2.3).
const ETHER_TYPE: u16 = 0x88b5;
/// Identifies this protocol and its version among other protocols with the same EtherType.
const MAGIC: [u8; 8] = *b"hcad pad";

/// Wire format of a message.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
struct RawMessage {
    /// Set to the sender's MAC, so that no switch forwards the message: a switch never sends a frame back to the port
    /// that it came from.
    dst: [u8; 6],
    src: [u8; 6],
    ether_type: U16,
    magic: [u8; 8],
    /// 1 for a request, 2 for an acceptance.
    kind: U16,
    number: U64,
}

/// A message about padding between two HCAs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// Requests acceptance of padded frames. The acceptance echoes this random number.
    Request(u64),
    /// Accepts padded frames, in reply to the request with this number.
    Accept(u64),
}

impl Message {
    /// Parses a frame. Returns `None` if it is not a message.
    pub fn parse(frame: &[u8]) -> Option<Self> {
        let (raw, _) = RawMessage::ref_from_prefix(frame).ok()?;
        if raw.ether_type.get() != ETHER_TYPE || raw.magic != MAGIC || raw.dst != raw.src {
            return None;
        }
        match raw.kind.get() {
            1 => Some(Self::Request(raw.number.get())),
            2 => Some(Self::Accept(raw.number.get())),
            _ => None,
        }
    }

    /// Returns the frame that carries the message from the HCA with the MAC `own`.
    pub fn frame(self, own: MacAddr) -> [u8; size_of::<RawMessage>()] {
        let (kind, number) = match self {
            Self::Request(number) => (1, number),
            Self::Accept(number) => (2, number),
        };
        let (ether_type, kind) = (ETHER_TYPE.into(), kind.into());
        let raw =
            RawMessage { dst: own.0, src: own.0, ether_type, magic: MAGIC, kind, number: number.into() };
        zerocopy::transmute!(raw)
    }
}

/// The state of the agreement with one peer.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::fabric) struct Agreement {
    expires: Option<Instant>,
    /// Random number and time of the last request.
    requested: Option<(u64, Instant)>,
    /// Number of requests since the last acceptance.
    unanswered: u32,
}

impl Agreement {
    /// Returns whether the peer accepts padded frames.
    pub(super) fn is_current(&self, now: Instant) -> bool {
        self.expires.is_some_and(|expires| now < expires)
    }

    /// Returns whether a request may be sent.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        let doublings = self.unanswered.saturating_sub(1).min(MAX_DOUBLINGS);
        self.requested.is_none_or(|(_, at)| now.saturating_since(at) >= INTERVAL * (1 << doublings))
    }

    /// Records that request `number` is being sent.
    pub(super) fn request(&mut self, now: Instant, number: u64) {
        self.requested = Some((number, now));
        self.unanswered = self.unanswered.saturating_add(1);
    }

    /// Handles an acceptance. Only the first reply to the last request counts.
    pub(super) fn accept(&mut self, now: Instant, number: u64) {
        if self.unanswered > 0 && self.requested.is_some_and(|(requested, _)| requested == number) {
            self.unanswered = 0;
            self.expires = Some(now + LIFETIME);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);

    fn at(milliseconds: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(milliseconds)
    }

    #[test]
    fn message_round_trips() {
        for message in [Message::Request(7), Message::Accept(u64::MAX)] {
            let frame = message.frame(OWN);
            assert_eq!(Message::parse(&frame), Some(message));
            assert_eq!(Message::parse(&[&frame[..], &[0; 28]].concat()), Some(message), "padding is ignored");
            for len in 0..frame.len() {
                assert_eq!(Message::parse(&frame[..len]), None);
            }
        }
    }

    #[test]
    fn rejects_frames_that_are_not_messages() {
        let valid = Message::Request(7).frame(OWN);
        // Corrupt, in turn, the destination, the EtherType, the first and the last byte of the magic, and the kind.
        for at in [0, 12, 14, 21, 23] {
            let mut frame = valid;
            frame[at] ^= 0x40;
            assert_eq!(Message::parse(&frame), None);
        }
    }

    #[test]
    fn agreement_expires_unless_renewed() {
        let mut agreement = Agreement::default();
        assert!(!agreement.is_current(at(0)) && agreement.is_due(at(0)));
        agreement.request(at(0), 1);
        assert!(!agreement.is_current(at(1)) && !agreement.is_due(at(1)));
        agreement.accept(at(10), 1);
        assert!(agreement.is_current(at(3009)) && !agreement.is_current(at(3010)));

        assert!(agreement.is_due(at(1000)));
        agreement.request(at(1000), 2);
        agreement.accept(at(1010), 2);
        assert!(agreement.is_current(at(4009)) && !agreement.is_current(at(4010)));
    }

    #[test]
    fn only_reply_to_last_request_counts() {
        let mut agreement = Agreement::default();
        agreement.accept(at(0), 0);
        assert!(!agreement.is_current(at(0)), "no request was sent");
        agreement.request(at(0), 1);
        agreement.request(at(1000), 2);
        for number in [0, 1, 3] {
            agreement.accept(at(1001), number);
            assert!(!agreement.is_current(at(1001)));
        }
        agreement.accept(at(1001), 2);
        assert!(agreement.is_current(at(1001)));
        agreement.accept(at(3000), 2);
        assert!(!agreement.is_current(at(4001)), "a repeated reply does not extend the agreement");
    }

    #[test]
    fn unanswered_requests_back_off() {
        let mut agreement = Agreement::default();
        let mut times = Vec::new();
        for seconds in 0..400 {
            let now = at(seconds * 1000);
            if agreement.is_due(now) {
                agreement.request(now, seconds);
                times.push(seconds);
            }
        }
        assert_eq!(times, [0, 1, 3, 7, 15, 31, 63, 127, 191, 255, 319, 383]);
        agreement.accept(at(383_001), 383);
        assert!(agreement.is_due(at(384_000)), "the interval is short again");
    }
}
