//! How many messages the responder has receive requests for, as it says in its acknowledges.
//!
//! An acknowledge stands for the messages it completes and tells for how many more there are receive requests. The sum
//! limits the messages that may be sent freely, among those that take a receive request at all. Beyond the limit one
//! packet may ask, with AckReq: the first of a SEND, or the last of a WRITE with immediate. Where it is accepted, the
//! message has its receive request, and goes on.
//!
//! The specification expresses the limit by message numbers: MSN and SSN. We count the messages that the acknowledged PSN
//! completes, which is the same number where both sides count alike; but a READ that is asked for in pieces is several
//! messages for the responder.
//!
//! A responder that gives no counts does not limit; nor does one that has not spoken yet, since asking costs no more
//! than a refusal.
//!
//! # Spec
//! IBTA volume 1, section 9.7.7.2 (end-to-end message level flow control), with its table of credit codes.

/// Credits of the codes 0 to 30; 31 gives none.
const TABLE: [u32; 31] = [
    0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072,
    4096, 6144, 8192, 12288, 16384, 24576, 32768,
];

/// Code of an acknowledge that gives no credits.
const NO_CREDITS: u8 = 31;

/// The code for `posted` receive requests, the largest number that is not larger; or that it is not known how many.
pub(in crate::qp) fn code_of(posted: Option<u32>) -> u8 {
    let Some(posted) = posted else { return NO_CREDITS };
    let above = TABLE.partition_point(|&credits| credits <= posted);
    u8::try_from(above.saturating_sub(1)).unwrap_or(NO_CREDITS)
}

/// The requester's limit. Messages that take a receive request are numbered from 1 on, modulo 2^32.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Credits {
    /// The last message that may be sent freely.
    limit: Option<u32>,
}

impl Credits {
    /// An acknowledge gave credits beyond message `done`. A late one, whose limit lies behind, changes nothing.
    pub(super) fn on_given(&mut self, code: u8, done: u32) {
        let given = TABLE.get(usize::from(code)).map(|credits| done.wrapping_add(*credits));
        self.limit = match (given, self.limit) {
            (Some(given), Some(limit)) if distance(given, limit) < 0 => Some(limit),
            (given, _) => given,
        };
    }

    /// Messages by which `message` is beyond the limit; 0 or less if it is not.
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

    /// IBTA volume 1, section 9.7.7.2, the table of credit codes.
    #[test]
    fn codes_are_those_of_the_table() {
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
            assert_eq!(code_of(Some(posted)), code, "{posted}");
        }
        assert_eq!(code_of(None), 0x1f);
    }

    #[test]
    fn limit_never_moves_back_until_none_is_given() {
        let mut credits = Credits::default();
        assert_eq!(credits.beyond(1000), 0);
        credits.on_given(3, u32::MAX);
        assert_eq!((credits.beyond(2), credits.beyond(3)), (0, 1));
        credits.on_given(0, 0);
        assert_eq!(credits.beyond(3), 1);
        credits.on_given(31, 0);
        assert_eq!(credits.beyond(1000), 0);
    }
}
