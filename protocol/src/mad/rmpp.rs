//! Reliable multi-packet transactions: answers longer than one datagram.
//!
//! # Spec
//! IBTA volume 1, section 13.6.

use super::field::attribute;

/// `RMPPType` of a segment with data.
pub const DATA: u8 = 1;
/// `RMPPType` of an acknowledgement.
pub const ACK: u8 = 2;
/// `RMPPType` of an end for want of resources.
pub const STOP: u8 = 3;
/// `RMPPType` of an end for an error.
pub const ABORT: u8 = 4;

/// The version.
pub const VERSION: u8 = 1;

attribute! {
    /// The header of a segment, behind the common header.
    pub struct Rmpp[12] {
        /// [`VERSION`]; 0 where there is one datagram only.
        version: u8 = 0, 8;
        /// What it is.
        kind: u8 = 8, 8;
        /// Time an answer may take: 4.096 us times 2 to this; 31 says nothing.
        resp_time: u8 = 16, 5;
        /// The last segment.
        last: bool = 21, 1;
        /// The first segment.
        first: bool = 22, 1;
        /// The header counts.
        active: bool = 23, 1;
        /// Why it ended.
        status: u8 = 24, 8;
        /// Number of the segment, from 1; in an acknowledgement the last one received.
        segment: u32 = 32, 32;
        /// In the first segment the bytes of all payload, in the last one those of its own; in an acknowledgement the
        /// last segment that may be sent.
        length_or_window: u32 = 64, 32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Figure 166 of the specification: type 1, response time 31, flags last, first and active.
    #[test]
    fn a_segment_that_is_first_and_last() {
        let rmpp = Rmpp {
            version: VERSION,
            kind: DATA,
            resp_time: 31,
            last: true,
            first: true,
            active: true,
            status: 0,
            segment: 1,
            length_or_window: 0x84,
        };
        let bytes = [1, 1, 0xff, 0, 0, 0, 0, 1, 0, 0, 0, 0x84];
        assert_eq!(rmpp.emit(), bytes);
        assert_eq!(Rmpp::parse(&bytes), rmpp);
        let active = Rmpp::parse(&[1, 1, 0xf9, 0, 0, 0, 0, 2, 0, 0, 0, 0]);
        assert!(active.active && !active.first && !active.last);
    }
}
