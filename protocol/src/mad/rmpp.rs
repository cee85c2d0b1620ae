//! Reliable multi-packet transaction protocol (RMPP), for responses longer than one MAD.
//!
//! # Spec
//! IBTA volume 1, section 13.6.

use super::field::attribute;

/// `RMPPType` of a data segment.
pub const DATA: u8 = 1;
/// `RMPPType` of an acknowledgement.
pub const ACK: u8 = 2;
/// `RMPPType` that stops a transfer for lack of resources.
pub const STOP: u8 = 3;
/// `RMPPType` that aborts a transfer after an error.
pub const ABORT: u8 = 4;

/// RMPP version that this crate supports.
pub const VERSION: u8 = 1;

attribute! {
    /// The RMPP header, which follows the common MAD header.
    pub struct Rmpp[12] {
        /// Version of RMPP, [`VERSION`]; 0 if the transfer consists of a single MAD.
        version: u8 = 0, 8;
        /// `RMPPType`: [`DATA`], [`ACK`], [`STOP`] or [`ABORT`].
        kind: u8 = 8, 8;
        /// Response time: 4.096 us * 2^n; 31 means unspecified.
        resp_time: u8 = 16, 5;
        /// Whether this is the last segment of the transfer.
        last: bool = 21, 1;
        /// Whether this is the first segment of the transfer.
        first: bool = 22, 1;
        /// Whether RMPP is in use. If not, the other fields are undefined.
        active: bool = 23, 1;
        /// Reason for a STOP or ABORT.
        status: u8 = 24, 8;
        /// Segment number, starting at 1. In an ACK, the number of the last segment received.
        segment: u32 = 32, 32;
        /// In the first segment, the payload length of the whole transfer in bytes. In the last segment, the payload
        /// length of that segment. In an ACK, the number of the last segment that may be sent.
        length_or_window: u32 = 64, 32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// IBTA volume 1, figure 166: type 1, response time 31, and the flags Last, First and Active.
    #[test]
    fn single_segment_round_trips() {
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
