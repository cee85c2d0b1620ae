//! End-to-end message level flow control. The responder advertises the number of its posted receive requests in ACKs.
//!
//! An ACK sets a limit: the last message that it completes, plus the credits that it grants. Only messages that consume
//! a receive request count. Messages up to the limit can be sent freely. Beyond the limit, a single packet with AckReq
//! can be sent as a probe: the first packet of a SEND, or the last packet of a WRITE with immediate. If the probe is
//! accepted, the message has obtained its receive request and can continue.
//!
//! The specification expresses the limit in message sequence numbers (MSN, SSN). This code instead counts the messages
//! completed up to the acknowledged PSN, because the responder counts a READ that is split into chunks as several
//! messages. Apart from this difference, the two counts are equal.
//!
//! The requester is not limited before the first ACK, or if the responder does not advertise credits. In both cases,
//! the worst outcome of sending is an RNR NAK.
//!
//! # Spec
//! IBTA volume 1, section 9.7.7.2 (end-to-end message level flow control), with its table of credit codes.

/// Credit counts for codes 0 to 30. Code 31 means that no count is advertised.
const TABLE: [u32; 31] = [
    0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072,
    4096, 6144, 8192, 12288, 16384, 24576, 32768,
];

/// Code in an ACK without a credit count.
const NO_CREDITS: u8 = 31;

/// Returns the code for the largest credit count not above `posted`, or [`NO_CREDITS`] if `posted` is `None`.
pub(in crate::qp) fn credit_code(posted: Option<u32>) -> u8 {
    let Some(posted) = posted else { return NO_CREDITS };
    let above = TABLE.partition_point(|&credits| credits <= posted);
    u8::try_from(above.saturating_sub(1)).unwrap_or(NO_CREDITS)
}

/// A requester's credit limit. Messages that consume a receive request are numbered from 1, modulo 2^32.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Credits {
    /// Number of the last message that can be sent freely; `None` if unlimited.
    limit: Option<u32>,
}

impl Credits {
    /// Applies the credit `code` from an ACK whose last completed message is `done`. A late ACK never lowers the limit.
    pub(super) fn update(&mut self, code: u8, done: u32) {
        let given = TABLE.get(usize::from(code)).map(|credits| done.wrapping_add(*credits));
        self.limit = match (given, self.limit) {
            (Some(given), Some(limit)) if distance(given, limit) < 0 => Some(limit),
            (given, _) => given,
        };
    }

    /// Returns the distance of `message` beyond the limit, in messages; 0 or less if it is within the limit.
    pub(super) fn beyond(&self, message: u32) -> i32 {
        self.limit.map_or(0, |limit| distance(message, limit))
    }
}

fn distance(a: u32, b: u32) -> i32 {
    a.wrapping_sub(b).cast_signed()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Codes from the table in IBTA volume 1, section 9.7.7.2.
    #[test]
    fn credit_codes_match_specification_table() {
        for (posted, code) in [
            (0, 0x00),
            (1, 0x01),
            (4, 0x04),
            (5, 0x04),
            (6, 0x05),
            (8, 0x06),
            (12, 0x07),
            (16, 0x08),
            (24, 0x09),
            (127, 0x0d),
            (128, 0x0e),
            (1024, 0x14),
            (32767, 0x1d),
            (32768, 0x1e),
            (u32::MAX, 0x1e),
        ] {
            assert_eq!(credit_code(Some(posted)), code, "{posted}");
        }
        assert_eq!(credit_code(None), 0x1f);
    }

    #[test]
    fn late_ack_never_lowers_credit_limit() {
        let mut credits = Credits::default();
        assert_eq!(credits.beyond(1000), 0);
        credits.update(3, u32::MAX);
        assert_eq!((credits.beyond(2), credits.beyond(3)), (0, 1));
        credits.update(0, 0);
        assert_eq!(credits.beyond(3), 1);
        credits.update(31, 0);
        assert_eq!(credits.beyond(1000), 0);
    }
}
